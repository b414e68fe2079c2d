//! Where weights come from.

use std::fmt::Debug;

use slicescheduler_gmg::dtype::DType;

use crate::error::{ExecutorError, Result};
use crate::kernels::{HalfFormat, QuantFormat, quantize};

/// A weight that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard<'a> {
    /// Its qualified name in the template, such as `layers.3.attn.qkv.weight`. Of a weight with a matrix for each expert,
    /// each is a shard of its own, such as `layers.3.mlp.down.weight.0` of the first.
    pub name: &'a str,
    /// Its dimensions, outermost first: `[length]`, or `[outputs, inputs]`.
    pub shape: &'a [usize],
}

/// Gives the weights of a model, one after the other.
///
/// # Contract
/// `fill` writes every element of `into`, row-major, as many as the shape has. The same shard gives
/// the same bits on every call: a model that is loaded twice is the same model.
///
/// ```
/// use slicescheduler_executor::model::{Shard, WeightSource};
///
/// /// Every projection passes its input on.
/// #[derive(Debug)]
/// struct Identity;
///
/// impl WeightSource for Identity {
///     fn fill(&self, shard: Shard<'_>, into: &mut [f32]) -> slicescheduler_executor::Result<()> {
///         let columns = *shard.shape.last().unwrap_or(&1);
///         for (index, value) in into.iter_mut().enumerate() {
///             let diagonal = shard.shape.len() == 1 || index / columns == index % columns;
///             *value = if diagonal { 1.0 } else { 0.0 };
///         }
///         Ok(())
///     }
/// }
/// ```
pub trait WeightSource: Debug + Send + Sync {
    /// Writes the elements of `shard` to `into`.
    ///
    /// # Errors
    /// When the source does not have the shard, or can not read it.
    fn fill(&self, shard: Shard<'_>, into: &mut [f32]) -> Result<()>;

    /// Writes the bytes of a matrix as files have them: row-major and little-endian, numbers of
    /// `dtype` or whole blocks of them. Unless overridden, what [`fill`](Self::fill) gives is rounded.
    ///
    /// # Errors
    /// As [`fill`](Self::fill), or when there is no rounding to this type.
    fn fill_stored(&self, shard: Shard<'_>, dtype: DType, into: &mut [u8]) -> Result<()> {
        let mut plain = Vec::new();
        super::resize(&mut plain, shard.shape.iter().product())?;
        self.fill(shard, &mut plain)?;
        round_to(shard, &plain, dtype, into)
    }
}

/// Rounds a shard's elements to `dtype`.
pub(crate) fn round_to(shard: Shard<'_>, plain: &[f32], dtype: DType, into: &mut [u8]) -> Result<()> {
    if let Some(format) = QuantFormat::of(dtype) {
        return quantize(format, plain, into);
    }
    let Some(format) = HalfFormat::of(dtype) else {
        return Err(ExecutorError::UnsupportedTensor {
            tensor: shard.name.to_owned(),
            dtype,
            shape: format!("{:?}", shard.shape),
            expected: "F16, BF16, Q8_0, Q4_0 or Q4_1",
        });
    };
    for (bytes, value) in into.as_chunks_mut::<2>().0.iter_mut().zip(plain) {
        *bytes = format.round(*value).to_le_bytes();
    }
    Ok(())
}

/// Random weights that need no download: the same seed gives the same model on every machine.
///
/// Matrices are uniform with variance `1 / inputs`, so that a projection keeps the size of what it
/// is given (LeCun et al. 1998); vectors, the gains of norms, are within a tenth of 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeededWeights {
    seed: u64,
}

impl SeededWeights {
    /// The weights of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self { seed }
    }
}

impl WeightSource for SeededWeights {
    fn fill(&self, shard: Shard<'_>, into: &mut [f32]) -> Result<()> {
        let mut state = self.seed ^ fnv1a(shard.name);
        let (middle, width) = match *shard.shape {
            [_, inputs] => (0.0, (3.0 / inputs.max(1) as f32).sqrt()),
            _ => (1.0, 0.1),
        };
        for value in into {
            // 24 bits: every value is exact.
            let uniform = (split_mix(&mut state) >> 40) as f32 / (1u32 << 23) as f32 - 1.0;
            *value = middle + width * uniform;
        }
        Ok(())
    }
}

/// FNV-1a (Fowler, Noll and Vo).
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// SplitMix64 (Steele, Lea and Flood 2014).
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of SplitMix64 for seed 1234567, as published with Vigna's reference code.
    #[test]
    fn the_generator_is_split_mix_64() {
        let mut state = 1_234_567;
        let first: Vec<u64> = (0..3).map(|_| split_mix(&mut state)).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn a_matrix_keeps_the_size_of_what_it_multiplies() {
        let (n, k) = (64, 256);
        let mut matrix = vec![0.0; n * k];
        let shard = Shard { name: "w", shape: &[n, k] };
        SeededWeights::new(3).fill(shard, &mut matrix).unwrap();
        let variance = matrix.iter().map(|w| f64::from(*w).powi(2)).sum::<f64>() / (n * k) as f64;
        assert!((variance * k as f64 - 1.0).abs() < 0.05, "{variance}");

        let mut again = vec![0.0; n * k];
        SeededWeights::new(3).fill(shard, &mut again).unwrap();
        assert_eq!(matrix, again);
        SeededWeights::new(4).fill(shard, &mut again).unwrap();
        assert_ne!(matrix, again);
    }
}
