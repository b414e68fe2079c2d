//! Values where traces disagree about the type.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::import::error::shortened;
use crate::import::{ImportError, Position};
#[cfg(any(feature = "kineto", feature = "pytorch"))]
use crate::units::Nanos;

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

    /// Microseconds as nanoseconds: whole ones exactly, the fraction as exactly as the number holds it.
    #[cfg(any(feature = "kineto", feature = "pytorch"))]
    pub(in crate::import) fn as_micros(&self) -> Option<Nanos> {
        if let Self::Unsigned(micros) = self {
            return micros.checked_mul(1000).map(Nanos);
        }
        let micros = self.as_f64().filter(|micros| (0.0..1.8e16).contains(micros))?;
        Some(Nanos(micros.trunc() as u64 * 1000 + (micros.fract() * 1000.0).round() as u64))
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

#[cfg(all(test, any(feature = "kineto", feature = "pytorch")))]
mod tests {
    use super::*;

    #[test]
    fn whole_microseconds_are_exact_and_impossible_ones_refused() {
        assert_eq!(Scalar::Unsigned(1_711_964_646_000_001).as_micros(), Some(Nanos(1_711_964_646_000_001_000)));
        assert_eq!(Scalar::Float(4_458_676_522_690.655).as_micros(), Some(Nanos(4_458_676_522_690_655)));
        assert_eq!(Scalar::Unsigned(u64::MAX).as_micros(), None);
        assert_eq!(Scalar::Signed(-1).as_micros(), None);
        assert_eq!(Scalar::Nothing.as_micros(), None);
    }
}
