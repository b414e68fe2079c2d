//! Nodes as they are in the file, in the forms of schema 1.0 and 1.1.

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};

use super::value::{Shapes, Types, Values};
use crate::import::json::Scalar;

/// One element of `nodes`.
#[derive(Debug, Deserialize)]
pub(in crate::import) struct Node {
    #[serde(default)]
    pub(super) id: Scalar,
    #[serde(default)]
    pub(super) name: String,
    /// The call that it is within.
    #[serde(rename = "ctrl_deps", alias = "parent", default)]
    pub(super) caller: Scalar,
    #[serde(default)]
    pub(super) inputs: Io,
    #[serde(default)]
    pub(super) outputs: Io,
    #[serde(default)]
    pub(super) attrs: Attributes,
    // Schema 1.0 has beside the node what 1.1 has in `inputs`, `outputs` and `attrs`.
    #[serde(default)]
    input_shapes: Shapes,
    #[serde(default)]
    input_types: Types,
    #[serde(default)]
    output_shapes: Shapes,
    #[serde(default)]
    output_types: Types,
    op_schema: Option<String>,
    #[serde(default)]
    tid: Scalar,
    // In microseconds, from linkers.
    #[serde(default)]
    pub(super) ts: Scalar,
    #[serde(default)]
    pub(super) dur: Scalar,
}

impl Node {
    /// Moves what schema 1.0 has elsewhere to where 1.1 has it.
    pub(super) fn unify(&mut self) {
        let move_to = |io: &mut Io, shapes: &mut Shapes, types: &mut Types| {
            if !shapes.0.is_empty() {
                io.shapes = std::mem::take(shapes);
            }
            if !types.0.is_empty() {
                io.types = std::mem::take(types);
            }
        };
        move_to(&mut self.inputs, &mut self.input_shapes, &mut self.input_types);
        move_to(&mut self.outputs, &mut self.output_shapes, &mut self.output_types);
        if self.op_schema.is_some() {
            self.attrs.schema = self.op_schema.take();
        }
        if !self.tid.is_nothing() {
            self.attrs.thread = std::mem::take(&mut self.tid);
        }
    }
}

/// Inputs or outputs.
#[derive(Debug, Default)]
pub(super) struct Io {
    pub(super) values: Values,
    pub(super) shapes: Shapes,
    pub(super) types: Types,
}

impl<'de> Deserialize<'de> for Io {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Fields {
            #[serde(default)]
            values: Values,
            #[serde(default)]
            shapes: Shapes,
            #[serde(default)]
            types: Types,
        }

        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Io;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("values, or an object with values, shapes and types")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Io, A::Error> {
                let Fields { values, shapes, types } =
                    Deserialize::deserialize(serde::de::value::MapAccessDeserializer::new(map))?;
                Ok(Io { values, shapes, types })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, elements: A) -> Result<Io, A::Error> {
                let values = Deserialize::deserialize(serde::de::value::SeqAccessDeserializer::new(elements))?;
                Ok(Io { values, ..Io::default() })
            }
        }

        deserializer.deserialize_any(Either)
    }
}

/// What is wanted of the attributes: an array of objects with name and value.
#[derive(Debug, Default)]
pub(super) struct Attributes {
    /// What the operator takes and gives, with aliases: `aten::view(Tensor(a) self, ..) -> Tensor(a)`.
    pub(super) schema: Option<String>,
    pub(super) thread: Scalar,
    /// Not empty for kernels that a compiler generated.
    pub(super) kernel_backend: Option<String>,
}

impl<'de> Deserialize<'de> for Attributes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Attribute {
            #[serde(default)]
            name: String,
            #[serde(default)]
            value: Scalar,
        }

        struct All;

        impl<'de> Visitor<'de> for All {
            type Value = Attributes;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an array of attributes")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Attributes, A::Error> {
                let mut attributes = Attributes::default();
                while let Some(Attribute { name, value }) = elements.next_element()? {
                    match (name.as_str(), value) {
                        ("op_schema", Scalar::Text(schema)) => attributes.schema = Some(schema.into()),
                        ("kernel_backend", Scalar::Text(backend)) => attributes.kernel_backend = Some(backend.into()),
                        ("tid", thread) => attributes.thread = thread,
                        _ => {}
                    }
                }
                Ok(attributes)
            }
        }

        deserializer.deserialize_seq(All)
    }
}
