//! Grouped-query attention over the paged cache, and attention without one.
//!
//! **Bits.** A row walks its sequence's positions in tiles of [`TILE`], counted from position 0
//! whatever the blocks are, and carries a running maximum and sum from tile to tile (Milakov and
//! Gimelshein 2018). A score is a chain of additions over the head's elements, the sum of a tile
//! runs over fixed lanes with zeros for what the row may not see, and values are added in order of
//! position. So a row's bits depend on its query and on the keys and values before it, only.

use std::cell::RefCell;

use super::simd::{LANES, exp, reduce};
use super::vector::{self, Kernel, Vector};
use super::{KvCache, KvLayout, Parts, TokenRows, check, nonzero};
use crate::error::{ExecutorError, Result};

/// Positions per step of the running softmax. Part of the definition of the result's bits.
const TILE: usize = 64;
/// Query heads that share one walk over the keys and values.
const GROUP: usize = 8;
/// Partial sums of a score: element `d` of a head goes to sum `d % CHAINS`.
const CHAINS: usize = 4;
/// Positions side by side that are not worth a register.
const FEW: usize = 2;

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

/// At most [`GROUP`] query heads over the whole context.
fn walk_heads(walk: &Walk<'_>, queries: &[f32], out: &mut [f32]) {
    vector::run(WalkHeads { walk, queries, out });
}

struct WalkHeads<'a> {
    walk: &'a Walk<'a>,
    queries: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for WalkHeads<'_> {
    #[inline(always)]
    fn run<V: Vector>(self, vector: V) {
        let Self { walk, queries, out } = self;
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
                    score(vector, query, keys, block_tokens, walk.scale, weights);
                }
            }
            let state = maxima.iter_mut().zip(&mut sums).zip(&mut weights);
            for (out, ((maximum, sum), weights)) in out.chunks_exact_mut(head_dim).zip(state) {
                let correction = soften(vector, weights, maximum, sum);
                for value in out.iter_mut() {
                    *value *= correction;
                }
            }
            for segment in walk.segments(first) {
                let values = &walk.cache.values(walk.layer, walk.head, segment.block)[segment.slot * head_dim..];
                for (out, weights) in out.chunks_exact_mut(head_dim).zip(&weights) {
                    add_values(vector, &weights[segment.tile..segment.tile + segment.len], values, out);
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
fn score<V: Vector>(vector: V, query: &[f32], keys: &[f32], stride: usize, scale: f32, scores: &mut [f32]) {
    for (chunk, scores) in scores.chunks_mut(LANES).enumerate() {
        let keys = &keys[chunk * LANES..];
        if scores.len() <= FEW {
            for (position, score) in scores.iter_mut().enumerate() {
                *score = score_position(query, &keys[position..], stride) * scale;
            }
            continue;
        }
        let products = score_positions(vector, query, keys, stride);
        let mut all = [0.0; LANES];
        vector.store(vector.multiply(products, vector.splat(scale)), &mut all);
        scores.copy_from_slice(&all[..scores.len()]);
    }
}

/// `sum_d query[d] keys[d, 0]`
#[inline(always)]
fn score_position(query: &[f32], keys: &[f32], stride: usize) -> f32 {
    let mut keys = keys.iter().step_by(stride);
    let (mut a, mut b, mut c, mut d) = (0.0, 0.0, 0.0, 0.0);
    let (quads, rest) = query.as_chunks::<CHAINS>();
    for [qa, qb, qc, qd] in quads {
        for (sum, factor) in [(&mut a, qa), (&mut b, qb), (&mut c, qc), (&mut d, qd)] {
            *sum += factor * keys.next().copied().unwrap_or_default();
        }
    }
    for ((sum, factor), key) in [&mut a, &mut b, &mut c].into_iter().zip(rest).zip(keys) {
        *sum += factor * key;
    }
    (a + b) + (c + d)
}

/// `sum_d query[d] keys[d, t]` of the first [`LANES`] positions. Those that are no position of the block are of
/// something that lies behind it, or zero.
#[inline(always)]
fn score_positions<V: Vector>(vector: V, query: &[f32], keys: &[f32], stride: usize) -> V::Floats {
    let zero = vector.splat(0.0);
    // Four variables, so that each stays in a register.
    let (mut a, mut b, mut c, mut d) = (zero, zero, zero, zero);
    let (mut query, mut at) = (query, 0);
    while let [qa, qb, qc, qd, rest @ ..] = query {
        let rows =
            (whole(keys, at), whole(keys, at + stride), whole(keys, at + 2 * stride), whole(keys, at + 3 * stride));
        let (Some(ka), Some(kb), Some(kc), Some(kd)) = rows else { break };
        a = add_product(vector, a, *qa, vector.load(ka));
        b = add_product(vector, b, *qb, vector.load(kb));
        c = add_product(vector, c, *qc, vector.load(kc));
        d = add_product(vector, d, *qd, vector.load(kd));
        (query, at) = (rest, at + CHAINS * stride);
    }
    // What is left of a head that is no multiple of four, and rows that end before a register does.
    for (element, factor) in query.iter().enumerate() {
        let key = vector.load(&padded(&keys[at..]));
        match element % CHAINS {
            0 => a = add_product(vector, a, *factor, key),
            1 => b = add_product(vector, b, *factor, key),
            2 => c = add_product(vector, c, *factor, key),
            _ => d = add_product(vector, d, *factor, key),
        }
        at += stride;
    }
    vector.add(vector.add(a, b), vector.add(c, d))
}

/// `sums + factor * row`
#[inline(always)]
fn add_product<V: Vector>(vector: V, sums: V::Floats, factor: f32, row: V::Floats) -> V::Floats {
    vector.add(sums, vector.multiply(vector.splat(factor), row))
}

/// The floats from `at` on that fill a register, if there are as many.
#[inline(always)]
fn whole(floats: &[f32], at: usize) -> Option<&[f32; LANES]> {
    floats.get(at..)?.first_chunk()
}

/// The first floats, with zeros behind the last.
#[inline(always)]
fn padded(floats: &[f32]) -> [f32; LANES] {
    let mut padded = [0.0; LANES];
    for (padded, float) in padded.iter_mut().zip(floats) {
        *padded = *float;
    }
    padded
}

/// Turns a tile's scores into weights relative to the new maximum, adds them to the running sum
/// and returns what everything before the tile must be multiplied by. Scores that the row may not
/// see are negative infinity and become zero.
#[inline(always)]
fn soften<V: Vector>(vector: V, scores: &mut [f32; TILE], maximum: &mut f32, sum: &mut f32) -> f32 {
    let (chunks, _) = scores.as_chunks_mut::<LANES>();
    let mut greatest = vector.splat(*maximum);
    for chunk in &*chunks {
        greatest = vector.greater(vector.load(chunk), greatest);
    }
    let mut lanes = [0.0; LANES];
    vector.store(greatest, &mut lanes);
    let new = lanes.into_iter().fold(*maximum, |a, b| if b > a { b } else { a });
    let mut total = vector.splat(0.0);
    for chunk in chunks {
        let weights = vector.exp(vector.subtract(vector.load(chunk), vector.splat(new)));
        vector.store(weights, chunk);
        total = vector.add(total, weights);
    }
    vector.store(total, &mut lanes);
    let correction = exp(*maximum - new);
    *sum = *sum * correction + reduce(lanes);
    *maximum = new;
    correction
}

/// `out[d] += sum_t weights[t] values[t, d]`, in ascending `t`.
#[inline(always)]
fn add_values<V: Vector>(vector: V, weights: &[f32], values: &[f32], out: &mut [f32]) {
    let head_dim = out.len();
    let (wide, rest) = out.as_chunks_mut::<{ 4 * LANES }>();
    let mut first = 0;
    for out in wide {
        let [a, b, c, d] = out.as_chunks_mut::<LANES>().0 else { break };
        // Four variables, so that each stays in a register.
        let (mut sa, mut sb, mut sc, mut sd) = (vector.load(a), vector.load(b), vector.load(c), vector.load(d));
        let mut at = first;
        for weight in weights {
            let Some(values) = values.get(at..at + 4 * LANES) else { break };
            let [va, vb, vc, vd] = values.as_chunks::<LANES>().0 else { break };
            sa = add_product(vector, sa, *weight, vector.load(va));
            sb = add_product(vector, sb, *weight, vector.load(vb));
            sc = add_product(vector, sc, *weight, vector.load(vc));
            sd = add_product(vector, sd, *weight, vector.load(vd));
            at += head_dim;
        }
        vector.store(sa, a);
        vector.store(sb, b);
        vector.store(sc, c);
        vector.store(sd, d);
        first += 4 * LANES;
    }
    for out in rest.chunks_mut(LANES) {
        let mut sums = vector.load(&padded(out));
        let mut at = first;
        for weight in weights {
            let row = vector.load(&whole(values, at).copied().unwrap_or_else(|| padded(&values[at..])));
            sums = add_product(vector, sums, *weight, row);
            at += head_dim;
        }
        let mut all = [0.0; LANES];
        vector.store(sums, &mut all);
        out.copy_from_slice(&all[..out.len()]);
        first += LANES;
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
            seed: u64, lengths in prop::collection::vec(0u32..90, 1..4), heads in 1usize..4,
            head_dim in prop_oneof![1usize..40, 60usize..140],
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
