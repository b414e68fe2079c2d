//! Differential: a product with weights of 16 bits has the bits of the same product with the weights
//! widened to single precision, whatever the shape and however many rows there are. What holds for the
//! one (see `matmul_rows_keep_their_bits`) so holds for the other.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

use half::{bf16, f16};
use proptest::prelude::*;
use slicescheduler_executor::kernels::{
    HalfFormat, Output, OwnedPanels, PanelMatrix, embed_panels, matmul, pack_panels,
};

fn number(seed: u64, at: usize) -> f32 {
    let mut x = seed ^ (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

/// The bits of the rounded numbers, and the numbers that they stand for.
fn rounded(format: HalfFormat, values: &[f32]) -> (Vec<u16>, Vec<f32>) {
    let round = |&value: &f32| match format {
        HalfFormat::F16 => (f16::from_f32(value).to_bits(), f16::from_f32(value).to_f32()),
        HalfFormat::BF16 => (bf16::from_f32(value).to_bits(), bf16::from_f32(value).to_f32()),
    };
    values.iter().map(round).unzip()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn products_and_rows_are_those_of_widened_weights(
        seed: u64,
        rows in 1usize..9,
        n in 1usize..140,
        k in prop_oneof![1usize..6, 60usize..70, 500usize..1100],
        bf: bool,
        add: bool,
    ) {
        let format = if bf { HalfFormat::BF16 } else { HalfFormat::F16 };
        let values: Vec<f32> = (0..n * k).map(|at| number(seed, at)).collect();
        let (bits, widened) = rounded(format, &values);
        let mut packed = vec![1; PanelMatrix::packed_len(n, k)];
        pack_panels(&bits, n, k, &mut packed).unwrap();
        let halves = PanelMatrix::half(&packed, n, k, format).unwrap();
        let singles = OwnedPanels::pack(&widened, n, k).unwrap();

        let x: Vec<f32> = (0..rows * k).map(|at| number(!seed, at)).collect();
        let output = if add { Output::Accumulate } else { Output::Overwrite };
        let (mut found, mut expected) = (vec![0.25; rows * n], vec![0.25; rows * n]);
        matmul(&x, rows, halves, output, &mut found).unwrap();
        matmul(&x, rows, singles.view(), output, &mut expected).unwrap();
        prop_assert!(found.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()));

        let last = [n as u32 - 1];
        let mut row = vec![0.0; k];
        embed_panels(&last, halves, &mut row).unwrap();
        prop_assert_eq!(&row[..], &widened[(n - 1) * k..]);
    }
}
