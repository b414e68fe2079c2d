//! Fields of protobuf's JSON mapping that are no scalars.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;

use crate::chakra::{Attribute, Value};
use crate::import::error::shortened;
use crate::import::json::Scalar;
use crate::import::{ImportError, Position};

/// Ids of nodes: an array of numbers or texts, or `null`.
#[derive(Debug, Default)]
pub(super) struct Ids {
    ids: SmallVec<[u64; 4]>,
    /// The first that is none.
    other: Option<Scalar>,
}

impl Ids {
    pub(super) fn all(
        self,
        field: &'static str,
        node: u64,
        position: Position,
    ) -> Result<SmallVec<[u64; 4]>, ImportError> {
        let expected = "an array of whole numbers from 0 to 2^64 - 1";
        match self.other {
            None => Ok(self.ids),
            Some(other) => {
                let found = shortened(format_args!("an array with {other}"));
                Err(ImportError::Field { position, node: Some(node), field, found, expected })
            }
        }
    }
}

impl<'de> Deserialize<'de> for Ids {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Elements;

        impl<'de> Visitor<'de> for Elements {
            type Value = Ids;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of ids of nodes")
            }

            fn visit_unit<E>(self) -> Result<Ids, E> {
                Ok(Ids::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Ids, A::Error> {
                let mut read = Ids::default();
                while let Some(element) = elements.next_element::<Scalar>()? {
                    match element.as_u64() {
                        Some(id) => read.ids.push(id),
                        None => _ = read.other.get_or_insert(element),
                    }
                }
                Ok(read)
            }
        }

        deserializer.deserialize_any(Elements)
    }
}

/// What is named about a node, without lists and bytes.
#[derive(Debug, Default)]
pub(super) struct Attributes(pub(super) Vec<Attribute>);

impl<'de> Deserialize<'de> for Attributes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Elements;

        impl<'de> Visitor<'de> for Elements {
            type Value = Attributes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of attributes")
            }

            fn visit_unit<E>(self) -> Result<Attributes, E> {
                Ok(Attributes::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Attributes, A::Error> {
                let mut read = Vec::new();
                while let Some(Named(attribute)) = elements.next_element()? {
                    read.extend(attribute);
                }
                Ok(Attributes(read))
            }
        }

        deserializer.deserialize_any(Elements)
    }
}

/// One attribute, if it has a value that is read.
struct Named(Option<Attribute>);

impl<'de> Deserialize<'de> for Named {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Named;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an attribute: an object with a name and a value")
            }

            fn visit_unit<E>(self) -> Result<Named, E> {
                Ok(Named(None))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Named, A::Error> {
                let (mut name, mut value) = (None, None);
                while let Some(field) = map.next_key::<Box<str>>()? {
                    match &*field {
                        "name" => name = map.next_value::<Option<String>>()?,
                        "boolVal" | "bool_val" => value = map.next_value::<Option<bool>>()?.map(Value::Bool).or(value),
                        "stringVal" | "string_val" => {
                            value = map.next_value::<Option<String>>()?.map(Value::Text).or(value);
                        }
                        field if is_number(field) => value = number(map.next_value()?).or(value),
                        _ => _ = map.next_value::<IgnoredAny>()?,
                    }
                }
                let attribute = name.zip(value).map(|(name, value)| Attribute { name, value: Some(value) });
                Ok(Named(attribute))
            }
        }

        deserializer.deserialize_any(Fields)
    }
}

/// True if the field is one of the numeric values of an attribute.
fn is_number(field: &str) -> bool {
    let of_type = field.strip_suffix("_val").or_else(|| field.strip_suffix("Val"));
    of_type.is_some_and(|of_type| {
        matches!(
            of_type,
            "double"
                | "float"
                | "int32"
                | "int64"
                | "uint32"
                | "uint64"
                | "sint32"
                | "sint64"
                | "fixed32"
                | "fixed64"
                | "sfixed32"
                | "sfixed64"
        )
    })
}

/// A number as a value of the type that keeps it; a text that is none stays one, to be refused where it is used.
fn number(value: Scalar) -> Option<Value> {
    match value {
        Scalar::Nothing => None,
        Scalar::Unsigned(value) => Some(Value::Uint64(value)),
        Scalar::Signed(value) => Some(Value::Int64(value)),
        Scalar::Float(value) => Some(Value::Double(value)),
        Scalar::Text(ref text) => Some(value.as_u64().map_or_else(|| Value::Text(text.to_string()), Value::Uint64)),
    }
}
