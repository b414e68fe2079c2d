//! Nodes in JSON: as ASTRA-sim reads them, and as protobuf writes them.
//!
//! ASTRA-sim's names begin with capitals (`Id`, `Name`, `NodeType`), and what attributes say is in fields of
//! the node. Protobuf's mapping has `id`, `name`, `type` and an array `attr`; its names are
//! in lower camel case or as the schema has them, numbers of 64 bits are texts, enums are names,
//! and what is 0 or empty is `null` or not there.

mod fields;

use serde::Deserialize;
use smallvec::SmallVec;

use self::fields::{Attributes, Ids};
use super::{Fields, add, collective};
use crate::chakra::{COLLECTIVE_NAMES, node_type};
use crate::import::draft::Draft;
use crate::import::error::shortened;
use crate::import::json::{Records, Scalar};
use crate::import::{Format, Import, ImportError, Options, Position};
use crate::units::Nanos;

/// A node. Fields that are no numbers, although they should be, are refused when they are used, so
/// that the error names the node.
#[derive(Debug, Deserialize)]
pub(in crate::import) struct Node {
    #[serde(rename = "Id", alias = "id", default)]
    id: Scalar,
    #[serde(rename = "Name")]
    astra_name: Option<String>,
    #[serde(rename = "NodeType", default)]
    astra_type: Scalar,
    name: Option<String>,
    #[serde(rename = "type", default)]
    node_type: Scalar,
    #[serde(default)]
    runtime: Scalar,
    #[serde(alias = "durationMicros", default)]
    duration_micros: Scalar,
    #[serde(default)]
    start: Scalar,
    #[serde(alias = "startTimeMicros", default)]
    start_time_micros: Scalar,
    #[serde(alias = "dataDeps", default)]
    data_deps: Ids,
    #[serde(alias = "ctrlDeps", default)]
    ctrl_deps: Ids,
    #[serde(default)]
    attr: Attributes,
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
        // Protobuf leaves a zero out. Something of its names must be there, or any object would be node 0.
        let omits = node.astra_name.is_none()
            && node.astra_type.is_nothing()
            && (node.name.is_some() || !node.node_type.is_nothing());
        let id = match node.id.is_nothing() && omits {
            true => 0,
            false => node.id.require_u64("Id", None, position)?,
        };
        let optional = |value: &Scalar, field| match value.is_nothing() {
            true => Ok(None),
            false => value.require_u64(field, Some(id), position).map(Some),
        };
        // As in messages, a zero of protobuf is no time.
        let time = |astra: &Scalar, [field, micros_field]: [&'static str; 2], micros: &Scalar| {
            let micros = optional(micros, micros_field)?.filter(|&micros| micros > 0);
            Ok::<_, ImportError>(optional(astra, field)?.or(micros).map(Nanos::us))
        };
        let node_type = if node.astra_type.is_nothing() { &node.node_type } else { &node.astra_type };
        let node_type = match node_type.is_nothing() && omits {
            true => 0,
            false => number_or_name(node_type, &node_type::NAMES, "NodeType", id, position)?,
        };
        let pattern = match node.comm_type.is_nothing() {
            true => None,
            false => {
                let number = number_or_name(&node.comm_type, &COLLECTIVE_NAMES, "comm_type", id, position)?;
                Some(collective(number, Some(id), position)?)
            }
        };
        let mut fields = Fields {
            id,
            name: node.astra_name.or(node.name).unwrap_or_default(),
            node_type,
            after: node.data_deps.all("data_deps", id, position)?,
            control: node.ctrl_deps.all("ctrl_deps", id, position)?.into_iter().collect::<SmallVec<_>>(),
            start: time(&node.start, ["start", "start_time_micros"], &node.start_time_micros)?,
            duration: time(&node.runtime, ["runtime", "duration_micros"], &node.duration_micros)?,
            on_host: node.is_cpu_op,
            flops: optional(&node.num_ops, "num_ops")?.unwrap_or_default(),
            tensor_bytes: optional(&node.tensor_size, "tensor_size")?.unwrap_or_default(),
            pattern,
            communicated: optional(&node.comm_size, "comm_size")?.unwrap_or_default(),
            group: node.pg_name,
            from: optional(&node.comm_src, "comm_src")?,
            to: optional(&node.comm_dst, "comm_dst")?,
            tag: optional(&node.comm_tag, "comm_tag")?,
            ..Fields::default()
        };
        for attribute in node.attr.0 {
            fields.set(attribute, position)?;
        }
        add(&mut self.draft, fields, &self.options, position)
    }
}

/// The number of an enum, which may be given by name.
fn number_or_name(
    value: &Scalar,
    names: &[&str],
    field: &'static str,
    node: u64,
    position: Position,
) -> Result<u64, ImportError> {
    let by_name = |name| names.iter().position(|&known| known == name).map(|number| number as u64);
    let number = value.as_u64().or_else(|| value.as_text().and_then(by_name));
    let expected = "a number or a name of the schema, as COMP_NODE or ALL_REDUCE";
    number.ok_or_else(|| ImportError::Field { position, node: Some(node), field, found: shortened(value), expected })
}
