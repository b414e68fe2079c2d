//! Rotary embedding and attention over the paged cache: oracle (double precision, no cache) and
//! differential (the same sequence in other chunks, blocks, batches).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

use proptest::prelude::*;
use slicescheduler_executor::ExecutorError;
use slicescheduler_executor::kernels::{
    AttentionDims, KvCache, KvLayout, RotaryTable, TokenRows, attention, rotary_frequencies, rotate_and_store,
};

const LAYERS: usize = 2;
const LAYER: usize = 1;
const THETA: f64 = 10_000.0;

fn number(seed: u64, at: usize) -> f32 {
    let mut x = seed ^ (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 40) as f32 / (1u64 << 22) as f32 - 2.0
}

/// Queries, keys and values of a sequence before the rotation, one row per position.
fn sequence(seed: u64, dims: AttentionDims, len: usize) -> Vec<f32> {
    (0..len * dims.qkv_width()).map(|at| number(seed, at)).collect()
}

/// How a run cuts and places its sequences.
#[derive(Clone, Debug)]
struct Placing {
    block_tokens: usize,
    /// Rows of each sequence per step, cycled.
    chunks: Vec<usize>,
    /// Where the pool's blocks are taken from.
    shuffle: u64,
}

/// Runs the sequences side by side, a chunk of each per step; the results per sequence.
fn run(sequences: &[Vec<f32>], dims: AttentionDims, placing: &Placing) -> Vec<Vec<f32>> {
    let width = dims.qkv_width();
    let layout = KvLayout {
        layers: LAYERS,
        kv_heads: dims.kv_heads,
        head_dim: dims.head_dim,
        block_tokens: placing.block_tokens,
    };
    let lens: Vec<usize> = sequences.iter().map(|s| s.len() / width).collect();
    let needed: Vec<usize> = lens.iter().map(|len| len.div_ceil(placing.block_tokens)).collect();
    let total = needed.iter().sum::<usize>() + 3;
    let mut free: Vec<u32> = (0..total as u32).collect();
    free.sort_by_key(|&block| number(placing.shuffle, block as usize).to_bits());
    let (mut blocks, mut table_starts) = (Vec::new(), vec![0]);
    for needed in needed {
        blocks.extend(free.drain(..needed));
        table_starts.push(blocks.len() as u32);
    }
    // What a block held before must not matter.
    let mut pool = vec![f32::NAN; total * layout.block_elements()];
    let mut cache = KvCache::new(&mut pool, layout).unwrap();
    let table =
        RotaryTable::new(&rotary_frequencies(THETA, dims.head_dim), lens.iter().copied().max().unwrap_or(0)).unwrap();
    let mut done = vec![0; sequences.len()];
    let mut results = vec![Vec::new(); sequences.len()];
    let mut step = 0;
    while done != lens {
        let (mut qkv, mut rows, mut positions) = (Vec::new(), Vec::new(), Vec::new());
        for (index, sequence) in sequences.iter().enumerate() {
            let chunk = placing.chunks[(step + index) % placing.chunks.len()].min(lens[index] - done[index]);
            for position in done[index]..done[index] + chunk {
                qkv.extend_from_slice(&sequence[position * width..(position + 1) * width]);
                rows.push(index as u32);
                positions.push(position as u32);
            }
            done[index] += chunk;
        }
        step += 1;
        let batch = TokenRows { sequences: &rows, positions: &positions, blocks: &blocks, table_starts: &table_starts };
        let mut queries = vec![0.0; rows.len() * dims.out_width()];
        rotate_and_store(&qkv, batch, dims, &table, LAYER, &mut cache, &mut queries).unwrap();
        let mut out = vec![0.0; rows.len() * dims.out_width()];
        attention(&queries, batch, dims, LAYER, &cache, &mut out).unwrap();
        for (row, out) in rows.iter().zip(out.chunks(dims.out_width())) {
            results[*row as usize].extend_from_slice(out);
        }
    }
    results
}

/// Rotates a head as complex numbers made of its two halves.
fn rotated(head: &[f32], position: usize) -> Vec<f64> {
    let half = head.len() / 2;
    let mut out = vec![0.0; head.len()];
    for i in 0..half {
        let (sin, cos) = (position as f64 * THETA.powf(-2.0 * i as f64 / head.len() as f64)).sin_cos();
        let (a, b) = (f64::from(head[i]), f64::from(head[i + half]));
        out[i] = a * cos - b * sin;
        out[i + half] = a * sin + b * cos;
    }
    out
}

fn oracle(sequence: &[f32], dims: AttentionDims) -> Vec<f64> {
    let (width, hd) = (dims.qkv_width(), dims.head_dim);
    let len = sequence.len() / width;
    let head = |position: usize, index: usize| &sequence[position * width + index * hd..][..hd];
    let mut out = Vec::new();
    for position in 0..len {
        for query_head in 0..dims.heads {
            let kv_head = query_head / (dims.heads / dims.kv_heads);
            let query = rotated(head(position, query_head), position);
            let scores: Vec<f64> = (0..=position)
                .map(|p| {
                    let key = rotated(head(p, dims.heads + kv_head), p);
                    query.iter().zip(&key).map(|(q, k)| q * k).sum::<f64>() / (hd as f64).sqrt()
                })
                .collect();
            let maximum = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - maximum).exp()).collect();
            let sum: f64 = weights.iter().sum();
            out.extend((0..hd).map(|d| {
                let value = |p: usize| f64::from(head(p, dims.heads + dims.kv_heads + kv_head)[d]);
                weights.iter().enumerate().map(|(p, w)| w * value(p)).sum::<f64>() / sum
            }));
        }
    }
    out
}

fn dims() -> impl Strategy<Value = AttentionDims> {
    (1usize..4, 1usize..12, prop::sample::select(vec![2usize, 6, 16, 34, 64]))
        .prop_map(|(kv_heads, group, head_dim)| AttentionDims::new(kv_heads * group, kv_heads, head_dim))
}

fn placing() -> impl Strategy<Value = Placing> {
    (prop::sample::select(vec![1usize, 3, 16, 32, 100]), prop::collection::vec(1usize..40, 1..4), any::<u64>())
        .prop_map(|(block_tokens, chunks, shuffle)| Placing { block_tokens, chunks, shuffle })
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn agrees_with_double_precision(dims in dims(), placing in placing(), len in 1usize..150, seed: u64) {
        let sequence = sequence(seed, dims, len);
        let found = run(std::slice::from_ref(&sequence), dims, &placing);
        for (found, exact) in found[0].iter().zip(oracle(&sequence, dims)) {
            prop_assert!((f64::from(*found) - exact).abs() <= 5e-5, "{found} is not {exact}");
        }
    }

    #[test]
    fn chunks_blocks_and_neighbours_change_no_bit(
        dims in dims(),
        placings in prop::collection::vec(placing(), 3),
        lens in prop::collection::vec(1usize..150, 1..4),
        seed: u64,
    ) {
        let sequences: Vec<_> =
            lens.iter().enumerate().map(|(i, len)| sequence(seed ^ i as u64, dims, *len)).collect();
        let alone = Placing { block_tokens: 16, chunks: vec![usize::MAX], shuffle: 0 };
        let expected: Vec<_> =
            sequences.iter().map(|s| bits(&run(std::slice::from_ref(s), dims, &alone)[0])).collect();
        for placing in placings {
            let found = run(&sequences, dims, &placing);
            for (found, expected) in found.iter().zip(&expected) {
                prop_assert_eq!(&bits(found), expected);
            }
        }
    }
}

/// By hand: one head of two elements, angles 0 and 1 radian. With equal keys the weights are equal,
/// so the second row is the mean of both values.
#[test]
fn a_row_sees_itself_and_what_is_before_it() {
    let dims = AttentionDims::new(1, 1, 2);
    let sequence = vec![1.0, 0.0, 0.0, 0.0, 3.0, 5.0, 1.0, 0.0, 0.0, 0.0, 7.0, 1.0];
    let placing = Placing { block_tokens: 1, chunks: vec![2], shuffle: 4 };
    assert_eq!(run(&[sequence], dims, &placing)[0], [3.0, 5.0, 5.0, 3.0]);
}

#[test]
fn the_rotation_turns_the_halves_of_a_head() {
    let layout = KvLayout { layers: 1, kv_heads: 1, head_dim: 2, block_tokens: 4 };
    let mut pool = vec![0.0; layout.block_elements()];
    let mut cache = KvCache::new(&mut pool, layout).unwrap();
    let rows = TokenRows { sequences: &[0], positions: &[1], blocks: &[0], table_starts: &[0, 1] };
    let qkv = [1.0, 0.0, 0.0, 1.0, 0.5, 0.25];
    let table = RotaryTable::new(&rotary_frequencies(THETA, 2), 4).unwrap();
    let mut queries = [0.0; 2];
    let dims = AttentionDims::new(1, 1, 2);
    rotate_and_store(&qkv, rows, dims, &table, 0, &mut cache, &mut queries).unwrap();
    let (sin, cos) = (1.0f64.sin() as f32, 1.0f64.cos() as f32);
    assert_eq!(queries, [cos, sin]);
    let keys_by_element = [0.0, -sin, 0.0, 0.0, 0.0, cos, 0.0, 0.0];
    let values_by_position = [0.0, 0.0, 0.5, 0.25, 0.0, 0.0, 0.0, 0.0];
    assert_eq!(pool, [keys_by_element, values_by_position].concat());
}

#[test]
fn a_copied_block_holds_the_same_context() {
    let dims = AttentionDims::new(2, 1, 4);
    let layout = KvLayout { layers: 1, kv_heads: 1, head_dim: 4, block_tokens: 8 };
    let mut pool = vec![0.0; 3 * layout.block_elements()];
    let mut cache = KvCache::new(&mut pool, layout).unwrap();
    let qkv = sequence(11, dims, 5);
    let positions = [0, 1, 2, 3, 4];
    let rows = TokenRows { sequences: &[0; 5], positions: &positions, blocks: &[2], table_starts: &[0, 1] };
    let table = RotaryTable::new(&rotary_frequencies(THETA, 4), 8).unwrap();
    let mut queries = vec![0.0; 5 * dims.out_width()];
    rotate_and_store(&qkv, rows, dims, &table, 0, &mut cache, &mut queries).unwrap();
    cache.copy_block(2, 0).unwrap();
    let mut results = [vec![0.0; 40], vec![0.0; 40]];
    for (block, out) in [2u32, 0].into_iter().zip(&mut results) {
        attention(&queries, TokenRows { blocks: &[block], ..rows }, dims, 0, &cache, out).unwrap();
    }
    assert_eq!(bits(&results[0]), bits(&results[1]));
    assert!(cache.copy_block(0, 3).is_err());
}

#[test]
fn what_the_tables_do_not_cover_is_refused() {
    let dims = AttentionDims::new(2, 1, 4);
    let layout = KvLayout { layers: 1, kv_heads: 1, head_dim: 4, block_tokens: 8 };
    let mut pool = vec![0.0; 2 * layout.block_elements()];
    let cache = KvCache::new(&mut pool, layout).unwrap();
    let good = TokenRows { sequences: &[0], positions: &[7], blocks: &[1], table_starts: &[0, 1] };
    let attend = |rows: TokenRows<'_>, dims, layer| {
        attention(&[0.0; 8], rows, dims, layer, &cache, &mut [0.0; 8]).map_err(|error| match error {
            ExecutorError::IndexOutOfRange { operand, .. } => operand,
            ExecutorError::Dimension { dimension, .. } => dimension,
            _ => "another error",
        })
    };
    assert_eq!(attend(good, dims, 0), Ok(()));
    assert_eq!(attend(TokenRows { positions: &[8], ..good }, dims, 0), Err("positions"));
    assert_eq!(attend(TokenRows { blocks: &[2], ..good }, dims, 0), Err("blocks"));
    assert_eq!(attend(TokenRows { sequences: &[1], ..good }, dims, 0), Err("sequences"));
    assert_eq!(attend(TokenRows { table_starts: &[0, 2], ..good }, dims, 0), Err("table_starts"));
    assert_eq!(attend(TokenRows { table_starts: &[1, 0], ..good }, dims, 0), Err("table_starts"));
    assert_eq!(attend(good, dims, 1), Err("layer"));
    assert_eq!(attend(good, AttentionDims { kv_heads: 2, ..dims }, 0), Err("kv_heads"));
    assert_eq!(attend(good, AttentionDims { heads: 0, ..dims }, 0), Err("heads"));
}
