//! The Chakra execution trace: what reader and writer both need to know of the format.
//!
//! A file is a sequence of messages, each behind its length as a varint: one `GlobalMetadata`, then
//! one `Node` per operator. The field numbers are those of the schema 0.0.4 (MLCommons Chakra,
//! `et_def.proto`), which 1.x extends without changing them. What a node does beyond its type is in
//! named attributes: `num_ops`, `tensor_size`, `comm_type`, `comm_size` and so on.

use crate::import::Pattern;

/// The schema that is written.
pub(crate) const VERSION: &str = "0.0.4";

/// What a node is.
pub(crate) mod node_type {
    pub(crate) const METADATA: u64 = 1;
    pub(crate) const MEMORY_LOAD: u64 = 2;
    pub(crate) const MEMORY_STORE: u64 = 3;
    pub(crate) const COMPUTE: u64 = 4;
    pub(crate) const SEND: u64 = 5;
    pub(crate) const RECEIVE: u64 = 6;
    pub(crate) const COLLECTIVE: u64 = 7;
    pub(crate) const STORAGE: u64 = 8;
    pub(crate) const BATCH: u64 = 9;
    pub(crate) const CHECKPOINT: u64 = 10;

    /// By number: the names of the schema, which JSON has in their place.
    pub(crate) const NAMES: [&str; 11] = [
        "INVALID_NODE",
        "METADATA_NODE",
        "MEM_LOAD_NODE",
        "MEM_STORE_NODE",
        "COMP_NODE",
        "COMM_SEND_NODE",
        "COMM_RECV_NODE",
        "COMM_COLL_NODE",
        "STORAGE_NODE",
        "BATCH_NODE",
        "CHECKPOINT_NODE",
    ];
}

/// The first message of a file.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct GlobalMetadata {
    #[prost(string, tag = "1")]
    pub(crate) version: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) attributes: Vec<Attribute>,
}

/// One operator.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Node {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(uint64, tag = "3")]
    pub(crate) node_type: u64,
    #[prost(uint64, repeated, tag = "4")]
    pub(crate) control: Vec<u64>,
    #[prost(uint64, repeated, tag = "5")]
    pub(crate) data: Vec<u64>,
    #[prost(uint64, tag = "6")]
    pub(crate) start_micros: u64,
    #[prost(uint64, tag = "7")]
    pub(crate) duration_micros: u64,
    #[prost(message, repeated, tag = "10")]
    pub(crate) attributes: Vec<Attribute>,
}

/// Something named about a node.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Attribute {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(oneof = "Value", tags = "3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29")]
    pub(crate) value: Option<Value>,
}

/// The value of an attribute. Lists and bytes are left out: nothing that is read here has them.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Value {
    #[prost(double, tag = "3")]
    Double(f64),
    #[prost(float, tag = "5")]
    Float(f32),
    #[prost(int32, tag = "7")]
    Int32(i32),
    #[prost(int64, tag = "9")]
    Int64(i64),
    #[prost(uint32, tag = "11")]
    Uint32(u32),
    #[prost(uint64, tag = "13")]
    Uint64(u64),
    #[prost(sint32, tag = "15")]
    Sint32(i32),
    #[prost(sint64, tag = "17")]
    Sint64(i64),
    #[prost(fixed32, tag = "19")]
    Fixed32(u32),
    #[prost(fixed64, tag = "21")]
    Fixed64(u64),
    #[prost(sfixed32, tag = "23")]
    Sfixed32(i32),
    #[prost(sfixed64, tag = "25")]
    Sfixed64(i64),
    #[prost(bool, tag = "27")]
    Bool(bool),
    #[prost(string, tag = "29")]
    Text(String),
}

/// By `comm_type`: what a collective does. Two entries are one pattern to us.
pub(crate) const COLLECTIVES: [Pattern; 10] = [
    Pattern::AllReduce,
    Pattern::Reduce,
    Pattern::AllGather,
    Pattern::Gather,
    Pattern::Scatter,
    Pattern::Broadcast,
    Pattern::AllToAll,
    Pattern::ReduceScatter,
    Pattern::ReduceScatter,
    Pattern::Barrier,
];

/// By `comm_type`: the names of the schema.
pub(crate) const COLLECTIVE_NAMES: [&str; 10] = [
    "ALL_REDUCE",
    "REDUCE",
    "ALL_GATHER",
    "GATHER",
    "SCATTER",
    "BROADCAST",
    "ALL_TO_ALL",
    "REDUCE_SCATTER",
    "REDUCE_SCATTER_BLOCK",
    "BARRIER",
];

/// The names of attributes.
pub(crate) mod attribute {
    pub(crate) const IS_CPU_OP: &str = "is_cpu_op";
    pub(crate) const NUM_OPS: &str = "num_ops";
    pub(crate) const TENSOR_SIZE: &str = "tensor_size";
    pub(crate) const COMM_TYPE: &str = "comm_type";
    pub(crate) const COMM_SIZE: &str = "comm_size";
    pub(crate) const COMM_SRC: &str = "comm_src";
    pub(crate) const COMM_DST: &str = "comm_dst";
    pub(crate) const COMM_TAG: &str = "comm_tag";
    pub(crate) const GROUP: &str = "pg_name";

    // Ours: what the schema has no place for, so that a graph that is written comes back equal.
    pub(crate) const KIND: &str = "slicescheduler_kind";
    pub(crate) const WEIGHT_BYTES: &str = "slicescheduler_weight_bytes";
    pub(crate) const READ_BYTES: &str = "slicescheduler_read_bytes";
    pub(crate) const WRITTEN_BYTES: &str = "slicescheduler_written_bytes";
    pub(crate) const START_NANOS: &str = "slicescheduler_start_nanos";
    pub(crate) const DURATION_NANOS: &str = "slicescheduler_duration_nanos";
    pub(crate) const LANE: &str = "slicescheduler_lane";
    pub(crate) const RANKS: &str = "slicescheduler_ranks";
}
