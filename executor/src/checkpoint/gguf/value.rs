//! The values of metadata.

use std::ops::Range;

use super::GgufError;
use super::cursor::Cursor;

/// A value of metadata.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GgufValue<'a> {
    /// A whole number of an unsigned kind.
    Unsigned(u64),
    /// A whole number of a signed kind.
    Signed(i64),
    /// A floating-point number.
    Float(f64),
    /// True or false.
    Bool(bool),
    /// A text.
    Text(&'a str),
    /// Several values of one kind.
    Array(GgufArray<'a>),
}

impl GgufValue<'_> {
    pub(super) fn as_u64(self) -> Option<u64> {
        match self {
            Self::Unsigned(value) => Some(value),
            Self::Signed(value) => u64::try_from(value).ok(),
            _ => None,
        }
    }

    pub(super) fn refused(self, key: &str, expected: &'static str) -> GgufError {
        let found = match self {
            Self::Array(array) => format!("an array of {} elements", array.count),
            Self::Text(_) => "a text".to_owned(),
            other => format!("{other:?}"),
        };
        GgufError::Value { key: key.to_owned(), found, expected }
    }
}

/// An array of metadata, as it lies in the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GgufArray<'a> {
    kind: Kind,
    count: u64,
    bytes: &'a [u8],
}

impl<'a> GgufArray<'a> {
    /// How many values.
    pub const fn len(&self) -> u64 {
        self.count
    }

    /// True without a value.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Its texts, if that is what it holds.
    pub fn texts(&self) -> Option<Vec<&'a str>> {
        if self.kind != Kind::Text {
            return None;
        }
        let mut cursor = Cursor::new(self.bytes);
        (0..self.count).map(|_| cursor.text("a text of an array").ok()).collect()
    }

    /// Its whole numbers, if that is what it holds and none is negative.
    pub fn numbers(&self) -> Option<Vec<u64>> {
        let width = self.kind.bytes().filter(|_| self.kind != Kind::Bool)?;
        self.bytes.chunks_exact(width).map(|bytes| self.kind.scalar(bytes).as_u64()).collect()
    }
}

/// The kinds of values but arrays, by their numbers in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    U64,
    I64,
    F64,
}

const ARRAY: u32 = 9;

impl Kind {
    const fn of(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::Text,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    /// Bytes of a value; `None` for a text.
    const fn bytes(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::Text => None,
        }
    }

    /// The value of `bytes`, as many as the kind has; not for a text.
    fn scalar(self, bytes: &[u8]) -> GgufValue<'static> {
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let unsigned = u64::from_le_bytes(wide);
        match self {
            Self::I8 => GgufValue::Signed(i64::from(unsigned as i8)),
            Self::I16 => GgufValue::Signed(i64::from(unsigned as i16)),
            Self::I32 => GgufValue::Signed(i64::from(unsigned as i32)),
            Self::I64 => GgufValue::Signed(unsigned as i64),
            Self::F32 => GgufValue::Float(f64::from(f32::from_bits(unsigned as u32))),
            Self::F64 => GgufValue::Float(f64::from_bits(unsigned)),
            Self::Bool => GgufValue::Bool(unsigned != 0),
            Self::U8 | Self::U16 | Self::U32 | Self::U64 | Self::Text => GgufValue::Unsigned(unsigned),
        }
    }
}

/// Where a value lies; the bytes have been checked.
#[derive(Debug)]
pub(super) enum Stored {
    Scalar(GgufValue<'static>),
    Text(Range<usize>),
    Array { kind: Kind, count: u64, bytes: Range<usize> },
}

impl Stored {
    pub(super) fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Self, GgufError> {
        let number = cursor.u32("the kind of a value")?;
        let unknown = |kind| GgufError::Kind { key: key.to_owned(), kind };
        if number != ARRAY {
            let kind = Kind::of(number).ok_or_else(|| unknown(number))?;
            return match kind.bytes() {
                Some(width) => Ok(Self::Scalar(kind.scalar(cursor.take("a value", width as u64)?))),
                None => {
                    let length = cursor.text("a text")?.len();
                    let end = cursor.position() as usize;
                    Ok(Self::Text(end - length..end))
                }
            };
        }
        let number = cursor.u32("the kind of an array")?;
        let kind = Kind::of(number).ok_or_else(|| unknown(number))?;
        let count = cursor.u64("the length of an array")?;
        cursor.room_for("values of an array", count, kind.bytes().unwrap_or(8) as u64)?;
        let start = cursor.position() as usize;
        match kind.bytes() {
            Some(width) => {
                cursor.take("an array", count * width as u64)?;
            }
            None => {
                for _ in 0..count {
                    cursor.text("a text of an array")?;
                }
            }
        }
        Ok(Self::Array { kind, count, bytes: start..cursor.position() as usize })
    }

    pub(super) fn value<'a>(&self, file: &'a [u8]) -> GgufValue<'a> {
        match self {
            Self::Scalar(value) => *value,
            // Checked when it was read.
            Self::Text(place) => GgufValue::Text(std::str::from_utf8(&file[place.clone()]).unwrap_or_default()),
            Self::Array { kind, count, bytes } => {
                GgufValue::Array(GgufArray { kind: *kind, count: *count, bytes: &file[bytes.clone()] })
            }
        }
    }
}
