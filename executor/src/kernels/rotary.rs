//! Rotary position embedding, and the entry of keys and values into the cache.

use slicescheduler_gmg::units::Bytes;

use super::simd::versioned;
use super::{AttentionDims, KvCache, TokenRows, check};
use crate::error::{ExecutorError, Result};

/// The angles per position of the pairs of a head, in radians: `theta^(-2 i / head_dim)` for
/// `i < head_dim / 2` (Su et al. 2021).
pub fn rotary_frequencies(theta: f64, head_dim: usize) -> Vec<f64> {
    (0..head_dim / 2).map(|i| theta.powf(-2.0 * i as f64 / head_dim as f64)).collect()
}

/// Sines and cosines of all positions up to a limit, computed once per model.
#[derive(Clone, Debug)]
pub struct RotaryTable {
    pairs: usize,
    positions: usize,
    /// Per position: the cosines of all pairs, then their sines.
    table: Vec<f32>,
}

impl RotaryTable {
    /// The table for positions below `positions`, from the angles per position (see
    /// [`rotary_frequencies`]; models with a longer context scale them first). Takes
    /// `8 positions frequencies` bytes.
    ///
    /// # Errors
    /// [`ExecutorError::OutOfMemory`] when the system has not that much.
    pub fn new(frequencies: &[f64], positions: usize) -> Result<Self> {
        let elements = positions.saturating_mul(frequencies.len()).saturating_mul(2);
        let mut table = Vec::new();
        if table.try_reserve_exact(elements).is_err() {
            let wanted = Bytes((elements as u64).saturating_mul(size_of::<f32>() as u64));
            return Err(ExecutorError::OutOfMemory { wanted });
        }
        for position in 0..positions {
            let angles = frequencies.iter().map(|frequency| position as f64 * frequency);
            table.extend(angles.clone().map(|angle| angle.cos() as f32));
            table.extend(angles.map(|angle| angle.sin() as f32));
        }
        Ok(Self { pairs: frequencies.len(), positions, table })
    }

    /// Positions below this have an entry.
    pub const fn positions(&self) -> usize {
        self.positions
    }

    fn at(&self, position: usize) -> (&[f32], &[f32]) {
        self.table[2 * position * self.pairs..2 * (position + 1) * self.pairs].split_at(self.pairs)
    }
}

/// Rotates queries and keys by their positions; writes the queries to `queries`, and keys and
/// values of `layer` into the cache.
///
/// A row of `qkv[rows, (heads + 2 kv_heads) head_dim]` holds the query heads, the key heads, then
/// the value heads; `queries` is `[rows, heads head_dim]`. Element `i` of the first half of a head
/// is rotated with element `i` of the second half, as Llama's checkpoints have it. All rows are
/// stored before [`attention`] reads any: rows of one sequence in one batch see each other.
///
/// [`attention`]: super::attention
///
/// # Errors
/// When a length does not fit, a position has no block or no entry in the table, or the cache has
/// another layout. Nothing is written then.
pub fn rotate_and_store(
    qkv: &[f32],
    rows: TokenRows<'_>,
    dims: AttentionDims,
    table: &RotaryTable,
    layer: usize,
    cache: &mut KvCache<'_>,
    queries: &mut [f32],
) -> Result<()> {
    const KERNEL: &str = "rotate_and_store";
    dims.validate(KERNEL, layer, cache)?;
    rows.validate(KERNEL, cache)?;
    check(KERNEL, "qkv", qkv.len(), rows.len().saturating_mul(dims.qkv_width()))?;
    check(KERNEL, "queries", queries.len(), rows.len().saturating_mul(dims.out_width()))?;
    if table.pairs * 2 != dims.head_dim {
        return Err(ExecutorError::Dimension {
            kernel: KERNEL,
            dimension: "head_dim",
            value: dims.head_dim,
            requirement: "twice the frequencies of the rotary table",
        });
    }
    super::check_indices(KERNEL, "positions", rows.positions, table.positions)?;
    let block_tokens = cache.layout().block_tokens;
    let batch = qkv.chunks_exact(dims.qkv_width()).zip(queries.chunks_exact_mut(dims.out_width()));
    for (row, (qkv, queries)) in batch.enumerate() {
        let position = rows.positions[row] as usize;
        let (cosines, sines) = table.at(position);
        let (heads, keys_and_values) = qkv.split_at(dims.out_width());
        queries.copy_from_slice(heads);
        rotate(queries, cosines, sines);
        let (keys, values) = keys_and_values.split_at(dims.kv_heads * dims.head_dim);
        let (block, slot) = (rows.table(row)[position / block_tokens], position % block_tokens);
        let heads = keys.chunks_exact(dims.head_dim).zip(values.chunks_exact(dims.head_dim));
        for (head, (key, value)) in heads.enumerate() {
            cache.store(layer, head, block, slot, rotated(key, cosines, sines), value);
        }
    }
    Ok(())
}

versioned! {
    fn rotate(heads: &mut [f32], cosines: &[f32], sines: &[f32]) {
        for head in heads.chunks_exact_mut(2 * cosines.len()) {
            let (first, second) = head.split_at_mut(cosines.len());
            for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cosines).zip(sines) {
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
    }
}

/// The elements of one head, rotated.
fn rotated<'a>(head: &'a [f32], cosines: &'a [f32], sines: &'a [f32]) -> impl Iterator<Item = f32> + 'a {
    let (first, second) = head.split_at(cosines.len());
    let pairs = first.iter().zip(second).zip(cosines).zip(sines);
    let firsts = pairs.clone().map(|(((a, b), cos), sin)| a * cos - b * sin);
    firsts.chain(pairs.map(|(((a, b), cos), sin)| b * cos + a * sin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_no_memory_holds_is_refused() {
        let frequencies = rotary_frequencies(10_000.0, 64);
        // 8 bytes for each of 2^44 positions of 32 pairs are 2^52; the largest are more than can be counted.
        let refused = RotaryTable::new(&frequencies, 1 << 44).unwrap_err();
        assert!(matches!(refused, ExecutorError::OutOfMemory { wanted: Bytes(0x10_0000_0000_0000) }), "{refused}");
        assert!(matches!(RotaryTable::new(&frequencies, usize::MAX), Err(ExecutorError::OutOfMemory { .. })));
        assert_eq!(RotaryTable::new(&frequencies, 3).unwrap().positions(), 3);
    }
}
