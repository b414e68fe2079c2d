//! Chakra execution traces, as ASTRA-sim reads them: one file for one rank.

use std::io::{self, Write};

use prost::Message;

use super::Source;
use crate::chakra::{self, Attribute, COLLECTIVES, GlobalMetadata, VERSION, Value, attribute, node_type};
use crate::graph::OpView;
use crate::import::{Communication, Pattern};

/// Writes the graph as a Chakra trace of schema 0.0.4: a node per operator, all of its dependencies
/// as data dependencies (the only ones that every version of ASTRA-sim's feeder waits for).
///
/// Attributes have the types that the feeder expects; what the schema has no place for is in
/// attributes of our own, so that reading the file gives an equal graph. An operator without a lane
/// comes back on the lane `device`.
///
/// # Errors
///
/// Those of the writer.
pub fn chakra(source: Source<'_>, mut out: impl Write) -> io::Result<()> {
    let mut buffer = Vec::new();
    let mut write = |message: &dyn Fn(&mut Vec<u8>) -> Result<(), prost::EncodeError>| {
        buffer.clear();
        message(&mut buffer).map_err(io::Error::other)?;
        out.write_all(&buffer)
    };
    let metadata = GlobalMetadata { version: VERSION.to_owned(), attributes: Vec::new() };
    write(&|buffer| metadata.encode_length_delimited(buffer))?;
    for view in source.graph.ops() {
        let node = node(&source, &view);
        write(&|buffer| node.encode_length_delimited(buffer))?;
    }
    Ok(())
}

fn node(source: &Source<'_>, view: &OpView<'_>) -> chakra::Node {
    let op = view.index();
    let record = source.record(op);
    let id = |op| source.record(op).map_or(u64::from(op.0), |record| record.id);
    let cost = view.cost(&source.binding);
    let kind = view.kind().to_string();
    let communication = source.communication(view);
    let communication = communication.as_deref();
    let node_type = match (communication, kind.as_str()) {
        (Some(Communication { pattern: Some(Pattern::Send), .. }), _) => node_type::SEND,
        (Some(Communication { pattern: Some(Pattern::Receive), .. }), _) => node_type::RECEIVE,
        (Some(_), _) => node_type::COLLECTIVE,
        (None, "metadata") => node_type::METADATA,
        (None, "load") => node_type::MEMORY_LOAD,
        (None, "store") => node_type::MEMORY_STORE,
        (None, "storage") => node_type::STORAGE,
        (None, "batch") => node_type::BATCH,
        (None, "checkpoint") => node_type::CHECKPOINT,
        (None, _) => node_type::COMPUTE,
    };
    let mut attributes = Vec::new();
    let mut set = |name: &str, value: Value| attributes.push(Attribute { name: name.to_owned(), value: Some(value) });
    let lane = source.lane(op).unwrap_or("device");
    set(attribute::IS_CPU_OP, Value::Bool(lane == "host"));
    if !matches!(lane, "host" | "device") {
        set(attribute::LANE, Value::Text(lane.to_owned()));
    }
    set(attribute::KIND, Value::Text(kind));
    set(attribute::NUM_OPS, signed(cost.flops.get()));
    set(attribute::TENSOR_SIZE, Value::Uint64(cost.bytes().get()));
    set(attribute::WEIGHT_BYTES, Value::Uint64(cost.weights.get()));
    set(attribute::READ_BYTES, Value::Uint64(cost.read.get()));
    set(attribute::WRITTEN_BYTES, Value::Uint64(cost.written.get()));
    if let Some(Communication { pattern, bytes, group, ranks, from, to, tag }) = communication {
        set(attribute::COMM_SIZE, signed(bytes.get()));
        let number = pattern.and_then(|pattern| COLLECTIVES.iter().position(|&known| known == pattern));
        if let Some(number) = number {
            set(attribute::COMM_TYPE, Value::Int64(number as i64));
        }
        if let Some(group) = group {
            set(attribute::GROUP, Value::Text(group.to_string()));
        }
        if let Some(ranks) = ranks {
            set(attribute::RANKS, Value::Uint64(u64::from(*ranks)));
        }
        for (name, rank) in [(attribute::COMM_SRC, from), (attribute::COMM_DST, to)] {
            if let Some(rank) = rank {
                set(name, small(u64::from(*rank)));
            }
        }
        if let Some(tag) = tag {
            set(attribute::COMM_TAG, small(*tag));
        }
    }
    let (start, duration) = record.map_or((None, None), |record| (record.start, record.duration));
    if let Some(start) = start {
        set(attribute::START_NANOS, Value::Uint64(start.get()));
    }
    if let Some(duration) = duration {
        set(attribute::DURATION_NANOS, Value::Uint64(duration.get()));
    }
    chakra::Node {
        id: id(op),
        name: view.name().to_string(),
        node_type,
        control: Vec::new(),
        data: source.graph.predecessors(op).map(id).collect(),
        start_micros: start.map_or(0, |start| start.get() / 1000),
        duration_micros: duration.map_or(0, |duration| duration.get().div_ceil(1000)),
        attributes,
    }
}

/// The feeder reads a signed number; one that has no place in it is unsigned and ours.
fn signed(value: u64) -> Value {
    i64::try_from(value).map_or(Value::Uint64(value), Value::Int64)
}

fn small(value: u64) -> Value {
    i32::try_from(value).map_or(Value::Uint64(value), Value::Int32)
}
