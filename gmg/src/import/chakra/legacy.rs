//! Schema 0.0.1: no metadata, and fields where later schemas have attributes.

use prost::Message;
use prost::encoding::WireType;

use super::{Fields, malformed};
use crate::chakra::node_type;
use crate::import::{ImportError, Pattern, Position};
use crate::units::Nanos;

#[derive(Clone, PartialEq, Message)]
struct Node {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(uint64, tag = "3")]
    node_type: u64,
    #[prost(uint64, repeated, packed = "false", tag = "4")]
    parents: Vec<u64>,
    #[prost(uint64, tag = "6")]
    tensor_size: u64,
    #[prost(uint64, tag = "7")]
    run_time_micros: u64,
    #[prost(uint64, tag = "12")]
    num_ops: u64,
    #[prost(uint64, tag = "13")]
    comm_type: u64,
    #[prost(uint64, optional, tag = "16")]
    comm_src: Option<u64>,
    #[prost(uint64, optional, tag = "17")]
    comm_dst: Option<u64>,
    #[prost(uint64, tag = "18")]
    comm_size: u64,
    #[prost(uint64, optional, tag = "19")]
    comm_tag: Option<u64>,
}

/// True if a message has a field that later schemas do not have, or have as something else.
pub(super) fn is_legacy(message: &[u8]) -> bool {
    super::fields(message).any(|(field, wire)| match field {
        8..=10 => wire == WireType::Varint,
        12..=20 => true,
        _ => false,
    })
}

pub(super) fn decode(message: &[u8], position: Position) -> Result<Fields, ImportError> {
    let node = Node::decode(message).map_err(|error| malformed(&error, position))?;
    // It has no metadata nodes, so its types are one less than those of today.
    let node_type = match node.node_type {
        0 => 0,
        kind @ 1..=6 => kind + node_type::METADATA,
        other => {
            let (found, expected) = (other.to_string(), "a type from 0 to 6");
            return Err(ImportError::Field { position, node: Some(node.id), field: "node_type", found, expected });
        }
    };
    let pattern = match node.comm_type {
        1 => Some(Pattern::AllReduce),
        2 => Some(Pattern::AllToAll),
        3 => Some(Pattern::AllGather),
        4 => Some(Pattern::ReduceScatter),
        _ => None,
    };
    Ok(Fields {
        id: node.id,
        name: node.name,
        node_type,
        after: node.parents.into_iter().collect(),
        duration: (node.run_time_micros > 0).then(|| Nanos::us(node.run_time_micros)),
        flops: node.num_ops,
        tensor_bytes: node.tensor_size,
        pattern,
        communicated: node.comm_size,
        from: node.comm_src,
        to: node.comm_dst,
        tag: node.comm_tag,
        ..Fields::default()
    })
}
