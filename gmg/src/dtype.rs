//! Element types of tensors.

use std::fmt;

use crate::units::Bytes;

/// The element type of a tensor.
///
/// Quantized types store blocks of elements with a shared scale, in the layout of GGUF; the last
/// dimension of such a tensor is a whole number of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper half of an [`F32`](Self::F32).
    BF16,
    /// An eight-bit float (E4M3 or E5M2).
    F8,
    /// A signed 32-bit integer.
    I32,
    /// An unsigned 32-bit integer; token ids, positions and row numbers have this type.
    U32,
    /// A signed 8-bit integer.
    I8,
    /// An unsigned 8-bit integer.
    U8,
    /// IEEE 754 binary64.
    F64,
    /// A signed 64-bit integer.
    I64,
    /// A signed 16-bit integer.
    I16,
    /// A truth value in a byte.
    Bool,
    /// Blocks of 32 eight-bit integers with an `F16` scale: 34 bytes.
    Q8_0,
    /// Blocks of 32 four-bit integers with an `F16` scale: 18 bytes.
    Q4_0,
    /// Blocks of 32 four-bit integers with an `F16` scale and an `F16` minimum: 20 bytes.
    Q4_1,
}

/// The arithmetic unit that a product with operands of some [`DType`] runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ComputeClass {
    /// Single precision, and everything that has no faster unit.
    F32,
    /// Half precision (`F16`, `BF16`), and quantized types, which are widened to it.
    Half,
    /// Eight-bit floats.
    F8,
}

impl DType {
    /// Elements in the smallest unit that is stored together: 1 unless quantized.
    pub const fn block_elements(self) -> u64 {
        match self {
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 => 32,
            _ => 1,
        }
    }

    /// Bytes of one block of [`block_elements`](Self::block_elements) elements.
    pub const fn block_bytes(self) -> Bytes {
        Bytes(match self {
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 => 8,
            Self::F16 | Self::BF16 | Self::I16 => 2,
            Self::F8 | Self::I8 | Self::U8 | Self::Bool => 1,
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
        })
    }

    /// Bytes of `elements` elements; a started block counts whole.
    pub const fn bytes(self, elements: u64) -> Bytes {
        self.block_bytes().times(elements.div_ceil(self.block_elements()))
    }

    /// Average size of an element in bits, block scales included: 4.5 for [`Q4_0`](Self::Q4_0).
    pub fn bits(self) -> f64 {
        self.block_bytes().get() as f64 * 8.0 / self.block_elements() as f64
    }

    /// True for floats and for quantized floats.
    pub const fn is_float(self) -> bool {
        !self.is_integer()
    }

    /// True for plain integers, which hold ids and not values.
    pub const fn is_integer(self) -> bool {
        matches!(self, Self::I64 | Self::I32 | Self::U32 | Self::I16 | Self::I8 | Self::U8 | Self::Bool)
    }

    /// The unit that products of this type run on; integers count as [`ComputeClass::F32`].
    pub const fn compute_class(self) -> ComputeClass {
        match self {
            Self::F16 | Self::BF16 | Self::Q8_0 | Self::Q4_0 | Self::Q4_1 => ComputeClass::Half,
            Self::F8 => ComputeClass::F8,
            Self::F64
            | Self::F32
            | Self::I64
            | Self::I32
            | Self::U32
            | Self::I16
            | Self::I8
            | Self::U8
            | Self::Bool => ComputeClass::F32,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F8 => "f8",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::F64 => "f64",
            Self::I64 => "i64",
            Self::I16 => "i16",
            Self::Bool => "bool",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantized_elements_are_counted_in_whole_blocks() {
        assert_eq!(DType::Q4_0.bytes(32), Bytes(18));
        assert_eq!(DType::Q4_0.bytes(33), Bytes(36));
        assert_eq!(DType::BF16.bytes(33), Bytes(66));
        assert_eq!(DType::Q4_1.bits(), 5.0);
        assert_eq!(DType::F32.bytes(u64::MAX), Bytes::MAX);
    }
}
