//! Grouped-query attention over the paged cache, and attention without one.
//!
//! **Bits.** A row walks its sequence's positions in tiles of [`TILE`], counted from position 0
//! whatever the blocks are, and carries a running maximum and sum from tile to tile (Milakov and
//! Gimelshein 2018). A score is a chain of additions over the head's elements, the sum of a tile
//! runs over fixed lanes with zeros for what the row may not see, and values are added in order of
//! position. So a row's bits depend on its query and on the keys and values before it, only.

use std::cell::RefCell;

use super::simd::{LANES, exp, reduce, versioned};
use super::{KvCache, KvLayout, Parts, TokenRows, check, nonzero};
use crate::error::{ExecutorError, Result};

/// Positions per step of the running softmax. Part of the definition of the result's bits.
const TILE: usize = 64;
/// Query heads that share one walk over the keys and values.
const GROUP: usize = 8;
/// Partial sums of a score: element `d` of a head goes to sum `d % CHAINS`.
const CHAINS: usize = 4;
/// Positions whose scores are computed together.
const WIDTH: usize = 16;

/// The heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionDims {
    /// Query heads.
    pub heads: usize,
    /// Heads of keys and values; a divisor of `heads`.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// What a score is multiplied by before the softmax.
    pub scale: f32,
}

impl AttentionDims {
    /// Heads with the usual scale, `1 / sqrt(head_dim)`.
    pub fn new(heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        Self { heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt() }
    }

    /// Elements of a row of queries, keys and values side by side.
    pub const fn qkv_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Elements of a row of the result.
    pub const fn out_width(&self) -> usize {
        self.heads * self.head_dim
    }

    pub(super) fn validate(&self, kernel: &'static str, layer: usize, cache: &KvCache<'_>) -> Result<()> {
        let layout = cache.layout();
        nonzero(kernel, "heads", self.heads)?;
        let wrong =
            |dimension, value, requirement| Err(ExecutorError::Dimension { kernel, dimension, value, requirement });
        if self.kv_heads != layout.kv_heads {
            return wrong("kv_heads", self.kv_heads, "that of the cache");
        }
        if self.head_dim != layout.head_dim {
            return wrong("head_dim", self.head_dim, "that of the cache");
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return wrong("heads", self.heads, "a multiple of kv_heads");
        }
        if layer >= layout.layers {
            return wrong("layer", layer, "a layer of the cache");
        }
        Ok(())
    }
}

/// Causal attention of each row over its sequence in the cache, positions `0..=position`:
/// `out = softmax(scale q K^T) V` per head (Vaswani et al. 2017; query heads share key heads as in
/// Ainslie et al. 2023). The cache must hold the row's own key and value already.
///
/// `queries` as [`rotate_and_store`](super::rotate_and_store) gives them and `out` are
/// `[rows, heads head_dim]`.
/// About `4 heads head_dim` operations per row and position.
///
/// # Errors
/// When a length does not fit, a position has no block, or the cache has another layout.
pub fn attention(
    queries: &[f32],
    rows: TokenRows<'_>,
    dims: AttentionDims,
    layer: usize,
    cache: &KvCache<'_>,
    out: &mut [f32],
) -> Result<()> {
    attention_in_parts(queries, rows, dims, layer, cache, out, &mut Parts::all())
}

/// As [`attention`], of which `parts` says what is to be done now: a row and one of its heads of keys and values, with
/// the query heads that share it, is a part.
///
/// # Errors
/// As [`attention`].
pub fn attention_in_parts(
    queries: &[f32],
    rows: TokenRows<'_>,
    dims: AttentionDims,
    layer: usize,
    cache: &KvCache<'_>,
    out: &mut [f32],
    parts: &mut Parts<'_>,
) -> Result<()> {
    dims.validate("attention", layer, cache)?;
    rows.validate("attention", cache)?;
    check("attention", "queries", queries.len(), rows.len().saturating_mul(dims.out_width()))?;
    check("attention", "out", out.len(), rows.len().saturating_mul(dims.out_width()))?;
    let group = dims.heads / dims.kv_heads * dims.head_dim;
    let shared = GROUP * dims.head_dim;
    let batch = queries.chunks_exact(dims.out_width()).zip(out.chunks_exact_mut(dims.out_width()));
    for (row, (queries, out)) in batch.enumerate().skip(parts.first() / dims.kv_heads) {
        let context = rows.positions[row] as usize + 1;
        let heads = queries.chunks_exact(group).zip(out.chunks_exact_mut(group));
        for (head, (queries, out)) in heads.enumerate() {
            let part = row * dims.kv_heads + head;
            if part < parts.first() {
                continue;
            }
            if parts.stop_before(part) {
                return Ok(());
            }
            let walk = Walk { cache, layer, head, table: rows.table(row), context, scale: dims.scale };
            for (queries, out) in queries.chunks(shared).zip(out.chunks_mut(shared)) {
                walk_heads(&walk, queries, out);
            }
        }
    }
    Ok(())
}

thread_local! {
    /// The keys and values of a sequence that is attended to without a cache, kept for the next one.
    static KEYS_AND_VALUES: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Attention of every row to all rows of its sequence, before and after it, as encoders have it.
///
/// A row of `qkv[rows, 3 heads head_dim]` holds the query heads, the key heads, then the value heads;
/// `out` is `[rows, heads head_dim]`. The rows of a sequence lie together, and `lengths` says how many
/// each has. The same operations in the same order as [`attention`] over a context of that length.
///
/// # Errors
/// When a length does not fit, or the lengths do not sum to the rows.
pub fn self_attention(qkv: &[f32], lengths: &[u32], heads: usize, head_dim: usize, out: &mut [f32]) -> Result<()> {
    self_attention_in_parts(qkv, lengths, heads, head_dim, out, &mut Parts::all())
}

/// As [`self_attention`], of which `parts` says what is to be done now: each row is a part. Whoever goes on in a sequence
/// lays out its keys and values again, which costs about as much as a row.
///
/// # Errors
/// As [`self_attention`].
pub fn self_attention_in_parts(
    qkv: &[f32],
    lengths: &[u32],
    heads: usize,
    head_dim: usize,
    out: &mut [f32],
    parts: &mut Parts<'_>,
) -> Result<()> {
    const KERNEL: &str = "self_attention";
    nonzero(KERNEL, "heads", heads)?;
    nonzero(KERNEL, "head_dim", head_dim)?;
    let dims = AttentionDims::new(heads, heads, head_dim);
    let rows: usize = lengths.iter().map(|&length| length as usize).sum();
    check(KERNEL, "qkv", qkv.len(), rows.saturating_mul(dims.qkv_width()))?;
    check(KERNEL, "out", out.len(), rows.saturating_mul(dims.out_width()))?;
    let (mut qkv, mut out, mut base) = (qkv, out, 0);
    for &length in lengths.iter().filter(|&&length| length > 0) {
        let length = length as usize;
        let (of_sequence, qkv_rest) = qkv.split_at(length * dims.qkv_width());
        let (results, out_rest) = out.split_at_mut(length * dims.out_width());
        if parts.first() < base + length {
            if parts.stop_before(base) {
                return Ok(());
            }
            let attend = |parts: &mut Parts<'_>| {
                KEYS_AND_VALUES.with_borrow_mut(|room| attend(of_sequence, length, dims, room, results, parts))
            };
            parts.within(base, attend)?;
            if parts.left().is_some() {
                return Ok(());
            }
        }
        (qkv, out, base) = (qkv_rest, out_rest, base + length);
    }
    Ok(())
}

/// One sequence of [`self_attention`]: its keys and values go into one block, which all rows see.
fn attend(
    qkv: &[f32],
    length: usize,
    dims: AttentionDims,
    room: &mut Vec<f32>,
    out: &mut [f32],
    parts: &mut Parts<'_>,
) -> Result<()> {
    let AttentionDims { heads, head_dim, scale, .. } = dims;
    let layout = KvLayout { layers: 1, kv_heads: heads, head_dim, block_tokens: length };
    if room.len() < layout.block_elements() {
        room.resize(layout.block_elements(), 0.0);
    }
    let mut cache = KvCache::new(&mut room[..layout.block_elements()], layout)?;
    for (slot, row) in qkv.chunks_exact(dims.qkv_width()).enumerate() {
        let keys_and_values = &row[dims.out_width()..];
        let (keys, values) = keys_and_values.split_at(dims.out_width());
        for (head, (key, value)) in keys.chunks_exact(head_dim).zip(values.chunks_exact(head_dim)).enumerate() {
            cache.store(0, head, 0, slot, key.iter().copied(), value);
        }
    }
    let rows = qkv.chunks_exact(dims.qkv_width()).zip(out.chunks_exact_mut(dims.out_width()));
    for (part, (row, out)) in rows.enumerate().skip(parts.first()) {
        if parts.stop_before(part) {
            return Ok(());
        }
        let queries = row[..dims.out_width()].chunks_exact(head_dim);
        for (head, (query, out)) in queries.zip(out.chunks_exact_mut(head_dim)).enumerate() {
            let walk = Walk { cache: &cache, layer: 0, head, table: &[0], context: length, scale };
            walk_heads(&walk, query, out);
        }
    }
    Ok(())
}

/// The part of a sequence that a row may see, for one head of keys and values.
struct Walk<'a> {
    cache: &'a KvCache<'a>,
    layer: usize,
    head: usize,
    table: &'a [u32],
    context: usize,
    scale: f32,
}

/// Positions of a tile that lie side by side in one block.
struct Segment {
    /// First position, counted from the tile's.
    tile: usize,
    block: u32,
    /// First position, counted from the block's.
    slot: usize,
    len: usize,
}

impl Walk<'_> {
    /// The segments of the tile that begins at `first`.
    #[inline(always)]
    fn segments(&self, first: usize) -> impl Iterator<Item = Segment> {
        let block_tokens = self.cache.layout().block_tokens;
        let end = self.context.min(first + TILE);
        let mut position = first;
        std::iter::from_fn(move || {
            if position == end {
                return None;
            }
            let slot = position % block_tokens;
            let len = (block_tokens - slot).min(end - position);
            let segment = Segment { tile: position - first, block: self.table[position / block_tokens], slot, len };
            position += len;
            Some(segment)
        })
    }
}

versioned! {
    /// At most [`GROUP`] query heads over the whole context.
    fn walk_heads(walk: &Walk<'_>, queries: &[f32], out: &mut [f32]) {
        let KvLayout { head_dim, block_tokens, .. } = walk.cache.layout();
        let mut maxima = [f32::NEG_INFINITY; GROUP];
        let mut sums = [0.0f32; GROUP];
        out.fill(0.0);
        for first in (0..walk.context).step_by(TILE) {
            let mut weights = [[f32::NEG_INFINITY; TILE]; GROUP];
            for segment in walk.segments(first) {
                let keys = &walk.cache.keys(walk.layer, walk.head, segment.block)[segment.slot..];
                for (query, weights) in queries.chunks_exact(head_dim).zip(&mut weights) {
                    let weights = &mut weights[segment.tile..segment.tile + segment.len];
                    score(query, keys, block_tokens, walk.scale, weights);
                }
            }
            let state = maxima.iter_mut().zip(&mut sums).zip(&mut weights);
            for (out, ((maximum, sum), weights)) in out.chunks_exact_mut(head_dim).zip(state) {
                let correction = soften(weights, maximum, sum);
                for value in out.iter_mut() {
                    *value *= correction;
                }
            }
            for segment in walk.segments(first) {
                let values = &walk.cache.values(walk.layer, walk.head, segment.block)[segment.slot * head_dim..];
                for (out, weights) in out.chunks_exact_mut(head_dim).zip(&weights) {
                    add_values(&weights[segment.tile..segment.tile + segment.len], values, out);
                }
            }
        }
        for (out, sum) in out.chunks_exact_mut(head_dim).zip(sums) {
            for value in out.iter_mut() {
                *value /= sum;
            }
        }
    }
}

/// `scores[t] = scale * sum_d query[d] keys[d, t]`.
#[inline(always)]
fn score(query: &[f32], keys: &[f32], stride: usize, scale: f32, scores: &mut [f32]) {
    let (chunks, tail) = scores.as_chunks_mut::<WIDTH>();
    let full = chunks.len() * WIDTH;
    for (chunk, scores) in chunks.iter_mut().enumerate() {
        *scores = score_chunk(query, &keys[chunk * WIDTH..], stride, scale);
    }
    for (offset, score) in tail.iter_mut().enumerate() {
        let [value] = score_chunk(query, &keys[full + offset..], stride, scale);
        *score = value;
    }
}

/// The scores of `N` positions. The same chain of operations for each, whatever `N` is.
#[inline(always)]
fn score_chunk<const N: usize>(query: &[f32], keys: &[f32], stride: usize, scale: f32) -> [f32; N] {
    // Four variables, so that each stays in registers.
    let (mut a, mut b, mut c, mut d) = ([0.0; N], [0.0; N], [0.0; N], [0.0; N]);
    let (quads, rest) = query.as_chunks::<CHAINS>();
    let mut at = 0;
    for quad in quads {
        add_product(&mut a, quad[0], &keys[at..at + N]);
        add_product(&mut b, quad[1], &keys[at + stride..at + stride + N]);
        add_product(&mut c, quad[2], &keys[at + 2 * stride..at + 2 * stride + N]);
        add_product(&mut d, quad[3], &keys[at + 3 * stride..at + 3 * stride + N]);
        at += CHAINS * stride;
    }
    for (sum, element) in [&mut a, &mut b, &mut c].into_iter().zip(rest) {
        add_product(sum, *element, &keys[at..at + N]);
        at += stride;
    }
    std::array::from_fn(|t| ((a[t] + b[t]) + (c[t] + d[t])) * scale)
}

/// `sums[t] += factor * row[t]`.
#[inline(always)]
fn add_product<const N: usize>(sums: &mut [f32; N], factor: f32, row: &[f32]) {
    for (sum, value) in sums.iter_mut().zip(row) {
        *sum += factor * value;
    }
}

/// Turns a tile's scores into weights relative to the new maximum, adds them to the running sum
/// and returns what everything before the tile must be multiplied by. Scores that the row may not
/// see are negative infinity and become zero.
#[inline(always)]
fn soften(scores: &mut [f32; TILE], maximum: &mut f32, sum: &mut f32) -> f32 {
    let (chunks, _) = scores.as_chunks_mut::<LANES>();
    let mut lanes = [*maximum; LANES];
    for chunk in &*chunks {
        for (lane, &score) in lanes.iter_mut().zip(chunk) {
            *lane = if score > *lane { score } else { *lane };
        }
    }
    let new = lanes.into_iter().fold(*maximum, |a, b| if b > a { b } else { a });
    let mut lanes = [0.0; LANES];
    for chunk in chunks {
        for (lane, score) in lanes.iter_mut().zip(chunk) {
            *score = exp(*score - new);
            *lane += *score;
        }
    }
    let correction = exp(*maximum - new);
    *sum = *sum * correction + reduce(lanes);
    *maximum = new;
    correction
}

/// `out[d] += sum_t weights[t] values[t, d]`, in ascending `t`.
#[inline(always)]
fn add_values(weights: &[f32], values: &[f32], out: &mut [f32]) {
    let head_dim = out.len();
    let (chunks, tail) = out.as_chunks_mut::<{ 2 * LANES }>();
    let full = chunks.len() * 2 * LANES;
    for (chunk, out) in chunks.iter_mut().enumerate() {
        let mut sums = *out;
        for (weight, row) in weights.iter().zip(values[chunk * 2 * LANES..].chunks(head_dim)) {
            add_product(&mut sums, *weight, &row[..2 * LANES]);
        }
        *out = sums;
    }
    for (offset, out) in tail.iter_mut().enumerate() {
        for (weight, value) in weights.iter().zip(values[full + offset..].iter().step_by(head_dim)) {
            *out += weight * value;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn number(seed: u64, at: usize) -> f32 {
        let mut x = seed ^ (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (x >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn every_row_sees_all_of_its_sequence_and_nothing_else(
            seed: u64, lengths in prop::collection::vec(0u32..90, 1..4), heads in 1usize..4, head_dim in 1usize..40,
        ) {
            let width = 3 * heads * head_dim;
            let rows: usize = lengths.iter().map(|&length| length as usize).sum();
            let qkv: Vec<f32> = (0..rows * width).map(|at| number(seed, at)).collect();
            let mut out = vec![f32::NAN; rows * heads * head_dim];
            self_attention(&qkv, &lengths, heads, head_dim, &mut out).unwrap();
            let (mut first, part) = (0, heads * head_dim);
            for length in lengths.iter().map(|&length| length as usize) {
                let sequence = &qkv[first * width..(first + length) * width];
                let mut alone = vec![f32::NAN; length * part];
                self_attention(sequence, &[length as u32], heads, head_dim, &mut alone).unwrap();
                let together = &out[first * part..(first + length) * part];
                prop_assert!(alone.iter().zip(together).all(|(a, b)| a.to_bits() == b.to_bits()));
                for (row, of_row) in together.chunks(part).enumerate() {
                    let element = |row: usize, at: usize| f64::from(sequence[row * width + at]);
                    for head in 0..heads {
                        let dot = |other: usize| -> f64 {
                            let at = |i| (element(row, head * head_dim + i), element(other, part + head * head_dim + i));
                            (0..head_dim).map(at).map(|(q, k)| q * k).sum::<f64>() / (head_dim as f64).sqrt()
                        };
                        let weights: Vec<f64> = (0..length).map(|other| dot(other).exp()).collect();
                        let total: f64 = weights.iter().sum();
                        for i in 0..head_dim {
                            let value = |other| weights[other] * element(other, 2 * part + head * head_dim + i);
                            let exact = (0..length).map(value).sum::<f64>() / total;
                            prop_assert!((f64::from(of_row[head * head_dim + i]) - exact).abs() <= 1e-5);
                        }
                    }
                }
                first += length;
            }
        }
    }

    #[test]
    fn lengths_that_are_not_those_of_the_rows_are_refused() {
        assert!(self_attention(&[0.0; 6], &[2], 1, 2, &mut [0.0; 2]).is_err());
        assert!(self_attention(&[0.0; 6], &[1], 0, 2, &mut [0.0; 2]).is_err());
    }
}
