//! Values where traces disagree about the type.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::import::error::shortened;
use crate::import::{ImportError, Position};

/// A value where traces disagree about the type: numbers as strings, identifiers as numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::import) enum Scalar {
    /// Absent, null, or neither number nor string.
    #[default]
    Nothing,
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(Box<str>),
}

impl Scalar {
    /// The value as a whole number; a float, in a text or not, only if it is whole and exact.
    pub(in crate::import) fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Unsigned(value) => Some(*value),
            Self::Float(value) => whole(*value),
            Self::Text(text) => text.parse().ok().or_else(|| text.parse().ok().and_then(whole)),
            Self::Nothing | Self::Signed(_) => None,
        }
    }

    /// The value as a float.
    pub(in crate::import) fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Unsigned(value) => Some(*value as f64),
            Self::Signed(value) => Some(*value as f64),
            Self::Float(value) => Some(*value),
            Self::Text(text) => text.parse().ok().filter(|value: &f64| value.is_finite()),
            Self::Nothing => None,
        }
    }

    pub(in crate::import) fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub(in crate::import) fn is_nothing(&self) -> bool {
        *self == Self::Nothing
    }

    /// The value as a whole number, or an error about `field` of `node`.
    pub(in crate::import) fn require_u64(
        &self,
        field: &'static str,
        node: Option<u64>,
        position: Position,
    ) -> Result<u64, ImportError> {
        let expected = "a whole number from 0 to 2^64 - 1";
        self.as_u64().ok_or_else(|| ImportError::Field { position, node, field, found: shortened(self), expected })
    }
}

fn whole(value: f64) -> Option<u64> {
    let whole = value.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(&value);
    whole.then_some(value as u64)
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("missing"),
            Self::Unsigned(value) => value.fmt(f),
            Self::Signed(value) => value.fmt(f),
            Self::Float(value) => value.fmt(f),
            Self::Text(text) => write!(f, "{text:?}"),
        }
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyScalar;

        impl<'de> Visitor<'de> for AnyScalar {
            type Value = Scalar;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }

            fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
                Ok(Scalar::Unsigned(value))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
                Ok(u64::try_from(value).map_or(Scalar::Signed(value), Scalar::Unsigned))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
                Ok(Scalar::Float(value))
            }

            fn visit_str<E>(self, value: &str) -> Result<Scalar, E> {
                Ok(Scalar::Text(value.into()))
            }

            fn visit_bool<E>(self, _: bool) -> Result<Scalar, E> {
                Ok(Scalar::Nothing)
            }

            fn visit_unit<E>(self) -> Result<Scalar, E> {
                Ok(Scalar::Nothing)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Scalar, A::Error> {
                while elements.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Scalar::Nothing)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scalar, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Scalar::Nothing)
            }
        }

        deserializer.deserialize_any(AnyScalar)
    }
}
