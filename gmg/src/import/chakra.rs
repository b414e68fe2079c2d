//! Chakra execution traces.
//!
//! Every node becomes an operator, metadata and storage nodes included, so that dependencies
//! through them hold. `num_ops` is its arithmetic; `tensor_size` what it reads (or writes, for a
//! store). Its kind is its name without the `(0)` that trace linkers append, and the pattern for
//! communication.
//!
//! Data dependencies are edges, and a circle of them is refused. Control dependencies are edges where
//! they agree with the order that data asks for: in traces of PyTorch they name the caller, and
//! sometimes the node itself.
//!
//! Three forms of the schema are read: 0.0.4 and later, the one before it whose metadata has
//! attributes only, and 0.0.1, which has no metadata and keeps in fields what later ones keep in
//! attributes.

pub(super) mod json;
mod legacy;

use std::io::Read;
use std::rc::Rc;

use prost::Message;
use smallvec::SmallVec;

use super::draft::{Draft, Node, cut};
use super::error::shortened;
use super::source::{Meter, Progress};
use super::{Communication, Format, Import, ImportError, OpRecord, Options, Pattern, Position, Reason};
use crate::chakra::{self, COLLECTIVES, Value, attribute, node_type};
use crate::semantics::OpCost;
use crate::units::{Bytes, Flops, Nanos};

/// The longest varint of 64 bits.
const VARINT_BYTES: usize = 10;

/// A node of any form of the schema.
#[derive(Debug, Default)]
struct Fields {
    id: u64,
    name: String,
    node_type: u64,
    after: SmallVec<[u64; 4]>,
    control: SmallVec<[u64; 2]>,
    start: Option<Nanos>,
    duration: Option<Nanos>,
    on_host: Option<bool>,
    flops: u64,
    tensor_bytes: u64,
    /// Bytes of weights, reads and writes, if the file tells them apart.
    bytes: Option<[u64; 3]>,
    pattern: Option<Pattern>,
    communicated: u64,
    group: Option<Box<str>>,
    ranks: Option<u64>,
    from: Option<u64>,
    to: Option<u64>,
    tag: Option<u64>,
    kind: Option<Box<str>>,
    lane: Option<Box<str>>,
}

/// Reads length-delimited messages.
pub(super) fn read(mut meter: Meter<'_>, name: &str, options: &Options) -> Result<Import, ImportError> {
    let progress = meter.progress();
    let mut draft = Draft::new(Format::Chakra, options);
    let mut message = Vec::new();
    let mut records = 0;
    let mut decode: fn(&[u8], Position) -> Result<Fields, ImportError> = current;
    let mut first = true;
    loop {
        progress.next_record(Some(records));
        if meter.is_at_end()? {
            break;
        }
        read_message(&mut meter, &progress, options, &mut message)?;
        if std::mem::take(&mut first) {
            if is_metadata(&message) {
                continue;
            }
            if legacy::is_legacy(&message) {
                decode = legacy::decode;
            }
        }
        let position = progress.position();
        if message.is_empty() {
            let reason = "an empty message: expected a node".to_owned();
            return Err(ImportError::Syntax { position, reason });
        }
        add(&mut draft, decode(&message, position)?, options, position)?;
        records += 1;
    }
    draft.finish(name, records)
}

/// One message without its length.
fn read_message(
    meter: &mut Meter<'_>,
    progress: &Rc<Progress>,
    options: &Options,
    message: &mut Vec<u8>,
) -> Result<(), ImportError> {
    let failed =
        |source: std::io::Error| progress.failure().unwrap_or(ImportError::Read { position: progress.here(), source });
    let mut length = 0u64;
    for index in 0.. {
        let mut byte = [0];
        meter.read_exact(&mut byte).map_err(failed)?;
        let bits = u64::from(byte[0] & 0x7f);
        let shift = 7 * index as u32;
        if index == VARINT_BYTES || (shift == 63 && bits > 1) {
            let reason = "the length of a message has more than 64 bits".to_owned();
            return Err(ImportError::Syntax { position: progress.position(), reason });
        }
        length |= bits << shift;
        if byte[0] & 0x80 == 0 {
            break;
        }
    }
    if length > options.limits.record_bytes {
        let most = options.limits.record_bytes;
        let (position, what) = (progress.position(), "bytes in one record");
        return Err(ImportError::Limit { position, what, most, limit: "record_bytes" });
    }
    message.clear();
    let read = meter.take(length).read_to_end(message).map_err(failed)? as u64;
    if read == length {
        return Ok(());
    }
    let reason = format!("the file ends {} bytes into a message of {length}", read);
    Err(ImportError::Syntax { position: progress.position(), reason })
}

/// True if all fields are texts or messages numbered 1 and 2; a node has a number or a type.
fn is_metadata(message: &[u8]) -> bool {
    fields(message).all(|(field, wire)| matches!((field, wire), (1 | 2, prost::encoding::WireType::LengthDelimited)))
}

/// The fields of a message up to the first that is malformed.
fn fields(mut message: &[u8]) -> impl Iterator<Item = (u32, prost::encoding::WireType)> {
    use prost::encoding::{DecodeContext, decode_key, skip_field};
    std::iter::from_fn(move || {
        let (field, wire) = decode_key(&mut message).ok()?;
        skip_field(wire, field, &mut message, DecodeContext::default()).ok()?;
        Some((field, wire))
    })
}

fn malformed(error: &prost::DecodeError, position: Position) -> ImportError {
    ImportError::Syntax { position, reason: error.to_string() }
}

/// A node of schema 0.0.4 and later.
fn current(message: &[u8], position: Position) -> Result<Fields, ImportError> {
    let node = chakra::Node::decode(message).map_err(|error| malformed(&error, position))?;
    let mut fields = Fields {
        id: node.id,
        name: node.name,
        node_type: node.node_type,
        after: node.data.into_iter().collect(),
        control: node.control.into_iter().collect(),
        // Protobuf does not tell zero from absent.
        start: (node.start_micros > 0).then(|| Nanos::us(node.start_micros)),
        duration: (node.duration_micros > 0).then(|| Nanos::us(node.duration_micros)),
        ..Fields::default()
    };
    for attribute in node.attributes {
        fields.set(attribute, position)?;
    }
    Ok(fields)
}

impl Fields {
    fn set(&mut self, attribute: chakra::Attribute, position: Position) -> Result<(), ImportError> {
        let Some(value) = attribute.value else { return Ok(()) };
        let node = Some(self.id);
        let number = |field| whole(&value, field, node, position);
        match attribute.name.as_str() {
            // An integer in early files.
            attribute::IS_CPU_OP => self.on_host = Some(number("is_cpu_op")? != 0),
            attribute::NUM_OPS => self.flops = number("num_ops")?,
            attribute::TENSOR_SIZE => self.tensor_bytes = number("tensor_size")?,
            attribute::COMM_TYPE => self.pattern = Some(collective(number("comm_type")?, node, position)?),
            attribute::COMM_SIZE => self.communicated = number("comm_size")?,
            attribute::COMM_SRC => self.from = Some(number("comm_src")?),
            attribute::COMM_DST => self.to = Some(number("comm_dst")?),
            attribute::COMM_TAG => self.tag = Some(number("comm_tag")?),
            attribute::GROUP => self.group = text(value),
            attribute::KIND => self.kind = text(value),
            attribute::LANE => self.lane = text(value),
            attribute::WEIGHT_BYTES => self.bytes.get_or_insert_default()[0] = number("slicescheduler_weight_bytes")?,
            attribute::READ_BYTES => self.bytes.get_or_insert_default()[1] = number("slicescheduler_read_bytes")?,
            attribute::WRITTEN_BYTES => self.bytes.get_or_insert_default()[2] = number("slicescheduler_written_bytes")?,
            attribute::START_NANOS => self.start = Some(Nanos(number("slicescheduler_start_nanos")?)),
            attribute::DURATION_NANOS => self.duration = Some(Nanos(number("slicescheduler_duration_nanos")?)),
            attribute::RANKS => self.ranks = Some(number("slicescheduler_ranks")?),
            _ => {}
        }
        Ok(())
    }
}

fn text(value: Value) -> Option<Box<str>> {
    if let Value::Text(text) = value { Some(text.into()) } else { None }
}

/// A number of any type as a whole one that is not negative.
fn whole(value: &Value, field: &'static str, node: Option<u64>, position: Position) -> Result<u64, ImportError> {
    let float = |value: f64| (value.fract() == 0.0 && (0.0..1e15).contains(&value)).then_some(value as u64);
    let number = match *value {
        Value::Double(value) => float(value),
        Value::Float(value) => float(f64::from(value)),
        Value::Int32(value) | Value::Sint32(value) | Value::Sfixed32(value) => u64::try_from(value).ok(),
        Value::Int64(value) | Value::Sint64(value) | Value::Sfixed64(value) => u64::try_from(value).ok(),
        Value::Uint32(value) | Value::Fixed32(value) => Some(u64::from(value)),
        Value::Uint64(value) | Value::Fixed64(value) => Some(value),
        Value::Bool(value) => Some(u64::from(value)),
        Value::Text(ref text) => text.parse().ok(),
    };
    let expected = "a whole number that is not negative";
    number.ok_or_else(|| ImportError::Field {
        position,
        node,
        field,
        found: shortened(format_args!("{value:?}")),
        expected,
    })
}

fn collective(number: u64, node: Option<u64>, position: Position) -> Result<Pattern, ImportError> {
    let known = usize::try_from(number).ok().and_then(|number| COLLECTIVES.get(number)).copied();
    let expected = "a collective from 0 (all-reduce) to 9 (barrier)";
    known.ok_or_else(|| ImportError::Field { position, node, field: "comm_type", found: number.to_string(), expected })
}

/// Adds a node as an operator.
fn add(draft: &mut Draft, fields: Fields, options: &Options, position: Position) -> Result<(), ImportError> {
    let Fields { id, node_type, .. } = fields;
    let node = Some(id);
    if let Some(duration) = fields.duration
        && draft.duration(duration.get() as f64, 1.0).is_none()
    {
        let (found, expected) = (duration.to_string(), "a duration within the limit");
        return Err(ImportError::Field { position, node, field: "duration", found, expected });
    }
    let communicates = (node_type::SEND..=node_type::COLLECTIVE).contains(&node_type);
    let pattern = match node_type {
        node_type::SEND => Some(Pattern::Send),
        node_type::RECEIVE => Some(Pattern::Receive),
        _ => fields.pattern.or_else(|| Pattern::of_name(&fields.name).filter(|_| communicates)),
    };
    let communication = communicates.then(|| {
        let rank = |rank: Option<u64>| rank.and_then(|rank| u32::try_from(rank).ok());
        Box::new(Communication {
            group: fields.group.map(|group| cut(&group, options.limits.name_bytes).into()),
            ranks: rank(fields.ranks),
            from: rank(fields.from),
            to: rank(fields.to),
            tag: fields.tag,
            ..Communication::new(pattern, Bytes(fields.communicated))
        })
    });
    let lane = fields.lane.or_else(|| fields.on_host.map(|host| if host { "host" } else { "device" }.into()));
    let bytes = fields.bytes.unwrap_or(match node_type {
        node_type::MEMORY_STORE => [0, 0, fields.tensor_bytes],
        _ => [0, fields.tensor_bytes, 0],
    });
    let plain = base_name(&fields.name);
    let by_type = match node_type {
        node_type::METADATA => "metadata",
        node_type::MEMORY_LOAD => "load",
        node_type::MEMORY_STORE => "store",
        node_type::STORAGE => "storage",
        node_type::BATCH => "batch",
        node_type::CHECKPOINT => "checkpoint",
        _ => pattern.filter(|_| communicates).map_or(plain, |pattern| pattern.name()),
    };
    let kind = fields.kind.as_deref().unwrap_or(by_type);
    let control = if options.data_only {
        draft.drop_many(Reason::Control, fields.control.len() as u64);
        SmallVec::new()
    } else {
        fields.control
    };
    let lane = lane.map(|lane| draft.lane(&lane));
    draft.add(
        Node {
            id,
            name: &fields.name,
            kind: if kind.is_empty() { "unnamed" } else { kind },
            cost: OpCost {
                flops: Flops(fields.flops),
                weights: Bytes(bytes[0]),
                read: Bytes(bytes[1]),
                written: Bytes(bytes[2]),
            },
            record: OpRecord { id, duration: fields.duration, start: fields.start, lane, communication },
            after: fields.after,
            control,
            ..Node::default()
        },
        position,
    )
}

/// The name without a number in parentheses behind it.
fn base_name(name: &str) -> &str {
    let numbered = name.strip_suffix(')').and_then(|name| name.rsplit_once('('));
    match numbered {
        Some((base, number)) if !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit()) => base,
        _ => name,
    }
}
