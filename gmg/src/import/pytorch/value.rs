//! Inputs and outputs of a node, as far as they are tensors.
//!
//! A tensor is written `[id, storage, offset, elements, bytes of an element, "device"]`. Lists of
//! tensors nest; everything else is a plain value and is not kept.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;

use crate::dtype::DType;
use crate::import::Pattern;
use crate::import::json::Scalar;

/// Dimensions of a shape. A list of more is none.
const RANK: usize = 64;

/// Fields of a written tensor.
const FIELDS: usize = 6;

/// A tensor that a node uses.
#[derive(Debug, PartialEq)]
pub(super) struct TensorUse {
    pub(super) storage: u64,
    pub(super) elements: u64,
    pub(super) element_bytes: u64,
    pub(super) device: Box<str>,
}

/// The values of a node, one entry per tensor, in order.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Values {
    /// With the position of the argument that a tensor is, or is in.
    pub(super) tensors: Vec<(u32, TensorUse)>,
    /// The collective that an argument names.
    pub(super) pattern: Option<Pattern>,
}

/// The shapes of a node's values, with the position of the argument.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Shapes(pub(super) Vec<(u32, SmallVec<[u64; 4]>)>);

/// The element types of a node's tensors, in order; [`None`] for one that has no equal here.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Types(pub(super) Vec<Option<DType>>);

/// What one argument is.
enum Argument {
    Plain(Scalar),
    Tensors(Vec<TensorUse>),
}

impl<'de> Deserialize<'de> for Argument {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Argument;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_u64<E>(self, value: u64) -> Result<Argument, E> {
                Ok(Argument::Plain(Scalar::Unsigned(value)))
            }

            fn visit_str<E>(self, value: &str) -> Result<Argument, E> {
                Ok(Argument::Plain(Scalar::Text(value.into())))
            }

            fn visit_i64<E>(self, _: i64) -> Result<Argument, E> {
                Ok(Argument::Plain(Scalar::Nothing))
            }

            fn visit_f64<E>(self, _: f64) -> Result<Argument, E> {
                Ok(Argument::Plain(Scalar::Nothing))
            }

            fn visit_bool<E>(self, _: bool) -> Result<Argument, E> {
                Ok(Argument::Plain(Scalar::Nothing))
            }

            fn visit_unit<E>(self) -> Result<Argument, E> {
                Ok(Argument::Plain(Scalar::Nothing))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Argument, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Argument::Plain(Scalar::Nothing))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Argument, A::Error> {
                let mut fields: SmallVec<[Scalar; FIELDS]> = SmallVec::new();
                let (mut count, mut tensors) = (0, Vec::new());
                while let Some(element) = elements.next_element::<Argument>()? {
                    match element {
                        Argument::Plain(value) if count < FIELDS => fields.push(value),
                        Argument::Plain(_) => {}
                        Argument::Tensors(inner) => tensors.extend(inner),
                    }
                    count += 1;
                }
                if count == FIELDS && fields.len() == FIELDS {
                    tensors.extend(tensor(&fields));
                }
                Ok(Argument::Tensors(tensors))
            }
        }

        deserializer.deserialize_any(Any)
    }
}

fn tensor(fields: &[Scalar]) -> Option<TensorUse> {
    let [id, storage, offset, elements, element_bytes, device] = fields else { return None };
    let (_, _) = (id.as_u64()?, offset.as_u64()?);
    Some(TensorUse {
        storage: storage.as_u64()?,
        elements: elements.as_u64()?,
        element_bytes: element_bytes.as_u64()?,
        device: device.as_text()?.into(),
    })
}

/// Deserializes a sequence by what is done with each element.
macro_rules! from_sequence {
    ($name:ident, $element:ty, $expected:literal, |$into:ident, $position:ident, $value:ident| $body:expr) => {
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Elements;

                impl<'de> Visitor<'de> for Elements {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }

                    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<$name, A::Error> {
                        let mut $into = $name::default();
                        let mut $position = 0u32;
                        while let Some($value) = elements.next_element::<$element>()? {
                            $body;
                            $position += 1;
                        }
                        Ok($into)
                    }
                }

                deserializer.deserialize_seq(Elements)
            }
        }
    };
}

from_sequence!(Values, Argument, "an array of values", |into, position, value| match value {
    Argument::Tensors(tensors) => into.tensors.extend(tensors.into_iter().map(|tensor| (position, tensor))),
    Argument::Plain(Scalar::Text(text)) if into.pattern.is_none() && text.len() <= 32 => {
        into.pattern = Pattern::of_name(&text);
    }
    Argument::Plain(_) => {}
});

from_sequence!(Shapes, Nested, "an array of shapes", |into, position, value| {
    into.0.extend(value.shapes().into_iter().map(|shape| (position, shape)))
});

from_sequence!(Types, Scalar, "an array of names of types", |into, _position, value| {
    into.0.extend(dtypes(value.as_text().unwrap_or_default()))
});

/// A number, a shape, or shapes within each other.
enum Nested {
    Dim(Option<u64>),
    Shapes(Vec<SmallVec<[u64; 4]>>),
}

impl Nested {
    fn shapes(self) -> Vec<SmallVec<[u64; 4]>> {
        if let Self::Shapes(shapes) = self { shapes } else { Vec::new() }
    }
}

impl<'de> Deserialize<'de> for Nested {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Nested;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a shape")
            }

            fn visit_u64<E>(self, dim: u64) -> Result<Nested, E> {
                Ok(Nested::Dim(Some(dim)))
            }

            fn visit_i64<E>(self, _: i64) -> Result<Nested, E> {
                Ok(Nested::Dim(None))
            }

            fn visit_f64<E>(self, _: f64) -> Result<Nested, E> {
                Ok(Nested::Dim(None))
            }

            fn visit_str<E>(self, _: &str) -> Result<Nested, E> {
                Ok(Nested::Dim(None))
            }

            fn visit_unit<E>(self) -> Result<Nested, E> {
                Ok(Nested::Dim(None))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Nested, A::Error> {
                let (mut dims, mut shapes, mut plain) = (SmallVec::new(), Vec::new(), true);
                while let Some(element) = elements.next_element::<Nested>()? {
                    match element {
                        Nested::Dim(Some(dim)) if dims.len() < RANK => dims.push(dim),
                        Nested::Dim(_) => plain = false,
                        Nested::Shapes(inner) => shapes.extend(inner),
                    }
                }
                if shapes.is_empty() && plain {
                    shapes.push(dims);
                }
                Ok(Nested::Shapes(shapes))
            }
        }

        deserializer.deserialize_any(Any)
    }
}

/// The types of the tensors that the name of a type speaks of: `Tensor(float)`,
/// `GenericList[Tensor(float),Tensor(long int)]`.
fn dtypes(name: &str) -> impl Iterator<Item = Option<DType>> {
    name.split("Tensor(").skip(1).map(|rest| dtype(rest.split(')').next().unwrap_or_default()))
}

fn dtype(name: &str) -> Option<DType> {
    Some(match name {
        "float" => DType::F32,
        "double" => DType::F64,
        "c10::Half" => DType::F16,
        "c10::BFloat16" => DType::BF16,
        "long" | "long int" => DType::I64,
        "int" => DType::I32,
        "short" | "short int" => DType::I16,
        "signed char" => DType::I8,
        "unsigned char" => DType::U8,
        "bool" => DType::Bool,
        name if name.starts_with("c10::Float8") => DType::F8,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_found_in_nested_lists_and_nothing_else_is_kept() {
        let text =
            r#"[[5, 6, 0, 12, 4, "cuda:0"], [1, 2], [[7, 8, 0, 3, 8, "cpu"]], "allreduce", null, {"a": []}, -1.5]"#;
        let values: Values = serde_json::from_str(text).unwrap();
        let tensor = |storage, elements, element_bytes, device: &str| TensorUse {
            storage,
            elements,
            element_bytes,
            device: device.into(),
        };
        assert_eq!(values.tensors, [(0, tensor(6, 12, 4, "cuda:0")), (2, tensor(8, 3, 8, "cpu"))]);
        assert_eq!(values.pattern, Some(Pattern::AllReduce));
        let shapes: Shapes = serde_json::from_str("[[3, 4], [[], []], [[3]], [], []]").unwrap();
        let shapes: Vec<_> = shapes.0.iter().map(|(position, shape)| (*position, shape.to_vec())).collect();
        let expected: [(u32, Vec<u64>); 6] =
            [(0, vec![3, 4]), (1, vec![]), (1, vec![]), (2, vec![3]), (3, vec![]), (4, vec![])];
        assert_eq!(shapes, expected);
        let types: Types =
            serde_json::from_str(r#"["Tensor(float)", "Int", "GenericList[Tensor(long int),Tensor(x)]"]"#).unwrap();
        assert_eq!(types.0, [Some(DType::F32), Some(DType::I64), None]);
    }
}
