//! A kernel that stops between two parts whenever it may, and goes on there, leaves the bits of one that does not; and
//! no part is larger than is promised. Differential.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

use std::cell::Cell;

use proptest::prelude::*;
use slicescheduler_executor::kernels::{
    AttentionDims, BLOCK, ExpertMatrices, HalfFormat, KvCache, KvLayout, Output, OwnedPanels, PanelMatrix, Parts,
    QuantFormat, QuantMatrix, TokenRows, attention_in_parts, grouped_matmul, matmul_in_parts, pack_panels,
    pack_quantized, quantize, self_attention_in_parts,
};

/// Multiply-adds that a part of a product has at most, at these sizes.
const WORK: usize = 4 << 20;

/// Numbers in -1..1, the same for the same seed.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// What came of a kernel that was stopped.
struct Turns {
    calls: usize,
    /// Most outputs that one call wrote.
    most: usize,
}

/// Runs `kernel` on outputs that begin as `start`: whole; stopped as soon as it may be, every time; and stopped by turns
/// that `pattern` gives. All must leave the same bits.
fn in_turns(start: &[f32], pattern: u64, mut kernel: impl FnMut(&mut [f32], &mut Parts<'_>)) -> Turns {
    let bits = |y: &[f32]| y.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    let mut whole = start.to_vec();
    let mut parts = Parts::all();
    kernel(&mut whole, &mut parts);
    assert_eq!(parts.left(), None);
    let mut turns = Turns { calls: 0, most: 0 };
    for always in [true, false] {
        let (mut y, mut first, asked) = (start.to_vec(), Some(0), Cell::new(0u32));
        while let Some(part) = first {
            let before = bits(&y);
            let wanted = || {
                asked.set(asked.get() + 1);
                always || pattern.rotate_right(asked.get()) & 1 == 1
            };
            let mut parts = Parts::from(part, &wanted);
            kernel(&mut y, &mut parts);
            first = parts.left();
            assert!(first.is_none_or(|next| next > part), "a call does a part at least");
            if always {
                assert!(first.is_none_or(|next| next == part + 1), "and no more if somebody waits");
                turns.calls += 1;
                turns.most = turns.most.max(bits(&y).iter().zip(&before).filter(|(a, b)| a != b).count());
            }
        }
        assert_eq!(bits(&y), bits(&whole));
    }
    turns
}

/// Packed weights of any type.
enum Packed {
    Single(Vec<f32>),
    Half(Vec<u16>, HalfFormat),
    Quantized(Vec<u8>, QuantFormat),
}

/// How weights are stored.
#[derive(Clone, Copy, Debug)]
enum Stored {
    Single,
    Half(HalfFormat),
    Quantized(QuantFormat),
}

impl Packed {
    fn new(stored: Stored, seed: u64, [experts, n, k]: [usize; 3]) -> Self {
        let values = numbers(seed, experts * n * k);
        let panels = PanelMatrix::packed_len(n, k);
        match stored {
            Stored::Single => {
                let mut packed = vec![0.0; experts * panels];
                let each = values.chunks(n * k).zip(packed.chunks_mut(panels));
                each.for_each(|(from, to)| pack_panels(from, n, k, to).unwrap());
                Self::Single(packed)
            }
            Stored::Half(format) => {
                // The upper bits of a number are bfloat16 ones; as binary16 they are others, and numbers too.
                let bits: Vec<u16> = values.iter().map(|v| (v.to_bits() >> 16) as u16 & 0xbfff).collect();
                let mut packed = vec![0; experts * panels];
                let each = bits.chunks(n * k).zip(packed.chunks_mut(panels));
                each.for_each(|(from, to)| pack_panels(from, n, k, to).unwrap());
                Self::Half(packed, format)
            }
            Stored::Quantized(format) => {
                let length = QuantMatrix::packed_len(n, k, format);
                let mut packed = vec![0; experts * length];
                for (from, to) in values.chunks(n * k).zip(packed.chunks_mut(length)) {
                    let mut bytes = vec![0; from.len() / BLOCK * format.block_bytes()];
                    quantize(format, from, &mut bytes).unwrap();
                    pack_quantized(&bytes, n, k, format, to).unwrap();
                }
                Self::Quantized(packed, format)
            }
        }
    }

    fn view(&self, dims: [usize; 3]) -> ExpertMatrices<'_> {
        match self {
            Self::Single(data) => ExpertMatrices::single(data, dims),
            Self::Half(data, format) => ExpertMatrices::half(data, dims, *format),
            Self::Quantized(data, format) => ExpertMatrices::quantized(data, dims, *format),
        }
        .unwrap()
    }
}

fn stored() -> impl Strategy<Value = Stored> {
    prop_oneof![
        Just(Stored::Single),
        Just(Stored::Half(HalfFormat::F16)),
        Just(Stored::Half(HalfFormat::BF16)),
        Just(Stored::Quantized(QuantFormat::Q8_0)),
        Just(Stored::Quantized(QuantFormat::Q4_0)),
        Just(Stored::Quantized(QuantFormat::Q4_1)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Also where an expert has more rows than are held at a time (256), and where one has none.
    #[test]
    fn products_and_experts(
        seed: u64, pattern: u64, rows in 1usize..330, n in 1usize..150, blocks in 1usize..5, experts in 1usize..6,
        crowd: bool, stored in stored(),
    ) {
        let (k, dims) = (blocks * BLOCK, [experts, n, blocks * BLOCK]);
        let packed = Packed::new(stored, seed, dims);
        let x = numbers(seed ^ 2, rows * k);
        let chosen: Vec<u32> = (0..rows as u32)
            .map(|row| if crowd { experts as u32 - 1 } else { row.wrapping_mul(0x9e37) % experts as u32 })
            .collect();
        let turns = in_turns(&vec![f32::NAN; rows * n], pattern, |y, parts| {
            grouped_matmul(&x, &chosen, packed.view(dims), y, parts).unwrap();
        });
        let mut alone = 0;
        for expert in 0..experts {
            let count = chosen.iter().filter(|&&other| other as usize == expert).count();
            if count == 0 {
                continue;
            }
            let of_expert = in_turns(&numbers(seed ^ 3, count * n), pattern, |y, parts| {
                let weights = packed.view(dims).get(expert).unwrap();
                matmul_in_parts(&x[..count * k], count, weights, Output::Accumulate, y, parts).unwrap();
            });
            alone += of_expert.calls;
        }
        prop_assert_eq!(turns.calls, alone, "as many parts as the products of the experts have");
    }

    #[test]
    fn attention_of_decoders_and_of_encoders(
        seed: u64, pattern: u64, kv_heads in 1usize..4, shared in 1usize..11, length in 1usize..90, first in 0u32..70,
    ) {
        let dims = AttentionDims::new(kv_heads * shared, kv_heads, 8);
        let layout = KvLayout { layers: 1, kv_heads, head_dim: 8, block_tokens: 16 };
        let blocks = (first as usize + length).div_ceil(16);
        let mut pool = numbers(seed, blocks * layout.block_elements());
        let cache = KvCache::new(&mut pool, layout).unwrap();
        let positions: Vec<u32> = (first..first + length as u32).collect();
        let table: Vec<u32> = (0..blocks as u32).collect();
        let rows = TokenRows {
            sequences: &vec![0; length], positions: &positions, blocks: &table, table_starts: &[0, blocks as u32],
        };
        let queries = numbers(seed ^ 1, length * dims.out_width());
        let turns = in_turns(&vec![f32::NAN; queries.len()], pattern, |out, parts| {
            attention_in_parts(&queries, rows, dims, 0, &cache, out, parts).unwrap();
        });
        prop_assert_eq!((turns.calls, turns.most), (length * kv_heads, shared * 8));

        let dims = AttentionDims::new(kv_heads, kv_heads, 8);
        let lengths = [length as u32, 0, 3];
        let qkv = numbers(seed ^ 2, (length + 3) * dims.qkv_width());
        let turns = in_turns(&vec![f32::NAN; (length + 3) * dims.out_width()], pattern, |out, parts| {
            self_attention_in_parts(&qkv, &lengths, kv_heads, 8, out, parts).unwrap();
        });
        prop_assert_eq!((turns.calls, turns.most), (length + 3, dims.out_width()));
    }
}

/// All tokens want one expert, whose product is 24 times what a part may be: who wants the lane waits for a part of it.
#[test]
fn an_expert_that_everybody_wants_is_done_in_parts_of_bounded_work() {
    let (rows, n, k) = (384, 512, 512);
    for stored in [Stored::Single, Stored::Half(HalfFormat::BF16), Stored::Quantized(QuantFormat::Q4_0)] {
        let dims = [2, n, k];
        let packed = Packed::new(stored, 5, dims);
        let (x, chosen) = (numbers(6, rows * k), vec![1; rows]);
        let turns = in_turns(&vec![f32::NAN; rows * n], 0, |y, parts| {
            grouped_matmul(&x, &chosen, packed.view(dims), y, parts).unwrap();
        });
        assert!(turns.most * k <= WORK, "{} multiply-adds in a part, {stored:?}", turns.most * k);
        assert!(turns.calls >= rows * n * k / WORK, "{stored:?}");
    }
}

#[test]
fn a_product_without_depth_is_one_part() {
    let weights = OwnedPanels::pack(&[], 5, 0).unwrap();
    let turns = in_turns(&[f32::NAN; 10], 0, |y, parts| {
        matmul_in_parts(&[], 2, weights.view(), Output::Overwrite, y, parts).unwrap();
    });
    assert_eq!((turns.calls, turns.most), (1, 10));
}
