//! Events as they are in the file.

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;

use crate::import::draft::cut;
use crate::import::json::Scalar;
use crate::import::{Communication, Pattern};
use crate::units::Bytes;

/// Tensors of one call whose shapes are kept: no product has more.
const SHAPES: usize = 8;

/// One element of `traceEvents`.
#[derive(Debug, Deserialize)]
pub(in crate::import) struct Event {
    #[serde(default)]
    pub(super) ph: Scalar,
    #[serde(default)]
    pub(super) cat: Scalar,
    #[serde(default)]
    pub(super) name: Scalar,
    #[serde(default)]
    pub(super) pid: Scalar,
    #[serde(default)]
    pub(super) tid: Scalar,
    #[serde(default)]
    pub(super) ts: Scalar,
    #[serde(default)]
    pub(super) dur: Scalar,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) args: Arguments,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Arguments {
    #[serde(rename = "External id", alias = "external id", default)]
    pub(super) external: Scalar,
    #[serde(default)]
    pub(super) correlation: Scalar,
    #[serde(default)]
    pub(super) device: Scalar,
    #[serde(default)]
    pub(super) stream: Scalar,
    #[serde(default)]
    pub(super) bytes: Scalar,
    #[serde(rename = "Input Dims", alias = "Input dims", default)]
    pub(super) shapes: Shapes,
    #[serde(rename = "Collective name", default)]
    collective: Scalar,
    #[serde(rename = "In msg nelems", default)]
    elements: Scalar,
    #[serde(default)]
    dtype: Scalar,
    #[serde(rename = "Group size", default)]
    ranks: Scalar,
    #[serde(rename = "Process Group Name", default)]
    group: Scalar,
    #[serde(rename = "Src Rank", default)]
    from: Scalar,
    #[serde(rename = "Dst Rank", default)]
    to: Scalar,
    #[serde(default)]
    pub(super) wait_on_stream: Scalar,
    #[serde(rename = "wait_on_cuda_event_record_corr_id", default)]
    pub(super) wait_on_record: Scalar,
}

impl Arguments {
    /// The elements that a collective says that it moves.
    pub(super) fn elements(&self) -> &Scalar {
        &self.elements
    }

    /// The collective that the arguments describe; of the name of its group at most so many bytes.
    pub(super) fn communication(&self, name_bytes: usize) -> Option<Communication> {
        let name = self.collective.as_text()?;
        let bytes = self.elements.as_u64().unwrap_or_default().saturating_mul(element_bytes(self.dtype.as_text()));
        let small = |value: &Scalar| value.as_u64().and_then(|value| u32::try_from(value).ok());
        Some(Communication {
            group: self.group.as_text().map(|group| cut(group, name_bytes).into()),
            ranks: small(&self.ranks),
            from: small(&self.from),
            to: small(&self.to),
            ..Communication::new(Pattern::of_name(name), Bytes(bytes))
        })
    }
}

/// Bytes of an element, by the names of `c10::ScalarType`; 0 for others.
fn element_bytes(dtype: Option<&str>) -> u64 {
    match dtype.unwrap_or_default() {
        "Double" | "Long" | "ComplexFloat" => 8,
        "Float" | "Int" => 4,
        "Half" | "BFloat16" | "Short" => 2,
        "Byte" | "Char" | "Bool" => 1,
        name if name.starts_with("Float8") => 1,
        _ => 0,
    }
}

/// `null` is as good as nothing.
fn or_default<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arguments, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// The shapes of a call's first inputs; of an input that is no tensor, or a list of them, an empty
/// one.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Shapes(pub(super) SmallVec<[SmallVec<[u64; 5]>; 2]>);

/// One shape; empty if it is none.
#[derive(Debug, Default)]
struct Dims(SmallVec<[u64; 5]>);

/// Deserializes an array by `$visit`; whatever is no array is as good as an empty one.
macro_rules! array_or_default {
    ($name:ident, $expected:literal, |$elements:ident| $visit:expr) => {
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Elements;

                impl<'de> Visitor<'de> for Elements {
                    type Value = $name;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str($expected)
                    }

                    fn visit_seq<A: SeqAccess<'de>>(self, mut $elements: A) -> Result<$name, A::Error> {
                        $visit
                    }

                    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<$name, A::Error> {
                        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                        Ok($name::default())
                    }

                    fn visit_u64<E>(self, _: u64) -> Result<$name, E> {
                        Ok($name::default())
                    }

                    fn visit_i64<E>(self, _: i64) -> Result<$name, E> {
                        Ok($name::default())
                    }

                    fn visit_f64<E>(self, _: f64) -> Result<$name, E> {
                        Ok($name::default())
                    }

                    fn visit_bool<E>(self, _: bool) -> Result<$name, E> {
                        Ok($name::default())
                    }

                    fn visit_str<E>(self, _: &str) -> Result<$name, E> {
                        Ok($name::default())
                    }

                    fn visit_unit<E>(self) -> Result<$name, E> {
                        Ok($name::default())
                    }
                }

                deserializer.deserialize_any(Elements)
            }
        }
    };
}

array_or_default!(Shapes, "an array of shapes", |elements| {
    let mut shapes = Shapes::default();
    while shapes.0.len() < SHAPES {
        let Some(Dims(dims)) = elements.next_element()? else { return Ok(shapes) };
        shapes.0.push(dims);
    }
    while elements.next_element::<IgnoredAny>()?.is_some() {}
    Ok(shapes)
});

array_or_default!(Dims, "an array of dimensions", |elements| {
    let (mut dims, mut plain) = (SmallVec::new(), true);
    while let Some(dim) = elements.next_element::<Scalar>()? {
        match dim.as_u64() {
            Some(dim) if dims.len() < SHAPES => dims.push(dim),
            _ => plain = false,
        }
    }
    Ok(Dims(if plain { dims } else { SmallVec::new() }))
});
