//! The JSON form that ASTRA-sim reads: an object whose `workload_graph` is the array of nodes.

use serde::Deserialize;

use super::{Fields, add, collective};
use crate::import::draft::Draft;
use crate::import::json::{Records, Scalar};
use crate::import::{Format, Import, ImportError, Options, Position};
use crate::units::Nanos;

/// A node. Fields that are no numbers, although they should be, are refused when they are used, so
/// that the error names the node.
#[derive(Debug, Deserialize)]
pub(in crate::import) struct Node {
    #[serde(rename = "Id", alias = "id", default)]
    id: Scalar,
    #[serde(rename = "Name", alias = "name", default)]
    name: String,
    #[serde(rename = "NodeType", alias = "type", default)]
    node_type: Scalar,
    #[serde(alias = "duration_micros", default)]
    runtime: Scalar,
    #[serde(alias = "start_time_micros", default)]
    start: Scalar,
    #[serde(default)]
    data_deps: Vec<u64>,
    #[serde(default)]
    ctrl_deps: Vec<u64>,
    is_cpu_op: Option<bool>,
    #[serde(default)]
    num_ops: Scalar,
    #[serde(default)]
    tensor_size: Scalar,
    #[serde(default)]
    comm_type: Scalar,
    #[serde(default)]
    comm_size: Scalar,
    #[serde(default)]
    comm_src: Scalar,
    #[serde(default)]
    comm_dst: Scalar,
    #[serde(default)]
    comm_tag: Scalar,
    pg_name: Option<Box<str>>,
}

#[derive(Debug)]
pub(in crate::import) struct Reader {
    draft: Draft,
    options: Options,
}

impl Reader {
    pub(in crate::import) fn new(options: &Options) -> Self {
        Self { draft: Draft::new(Format::ChakraJson, options), options: options.clone() }
    }

    pub(in crate::import) fn finish(self, name: &str, records: u64) -> Result<Import, ImportError> {
        self.draft.finish(name, records)
    }
}

impl Records for Reader {
    type Record = Node;

    fn record(&mut self, node: Node, position: Position) -> Result<(), ImportError> {
        let id = node.id.require_u64("Id", None, position)?;
        let optional = |value: &Scalar, field| match value.is_nothing() {
            true => Ok(None),
            false => value.require_u64(field, Some(id), position).map(Some),
        };
        let comm_type = optional(&node.comm_type, "comm_type")?;
        let fields = Fields {
            id,
            name: node.name,
            node_type: node.node_type.require_u64("NodeType", Some(id), position)?,
            after: node.data_deps.into_iter().collect(),
            control: node.ctrl_deps.into_iter().collect(),
            start: optional(&node.start, "start")?.map(Nanos::us),
            duration: optional(&node.runtime, "runtime")?.map(Nanos::us),
            on_host: node.is_cpu_op,
            flops: optional(&node.num_ops, "num_ops")?.unwrap_or_default(),
            tensor_bytes: optional(&node.tensor_size, "tensor_size")?.unwrap_or_default(),
            pattern: comm_type.map(|number| collective(number, Some(id), position)).transpose()?,
            communicated: optional(&node.comm_size, "comm_size")?.unwrap_or_default(),
            group: node.pg_name,
            from: optional(&node.comm_src, "comm_src")?,
            to: optional(&node.comm_dst, "comm_dst")?,
            tag: optional(&node.comm_tag, "comm_tag")?,
            ..Fields::default()
        };
        add(&mut self.draft, fields, &self.options, position)
    }
}
