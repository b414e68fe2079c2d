//! Matrix products: oracle (double precision) and differential (the same row in batches of
//! different sizes).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

use proptest::prelude::*;
use slicescheduler_executor::ExecutorError;
use slicescheduler_executor::kernels::{Output, OwnedPanels, PanelMatrix, matmul, pack_panels};

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

fn product(x: &[f32], rows: usize, weights: &OwnedPanels, start: &[f32]) -> Vec<f32> {
    let mut y = start.to_vec();
    let output = if start.iter().any(|&v| v != 0.0) { Output::Accumulate } else { Output::Overwrite };
    matmul(x, rows, weights.view(), output, &mut y).unwrap();
    y
}

fn bits(y: &[f32]) -> Vec<u32> {
    y.iter().map(|v| v.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn agrees_with_double_precision(
        rows in 1usize..9, n in 1usize..150, k in 1usize..1100, residual: bool, seed: u64,
    ) {
        let (x, w) = (numbers(seed, rows * k), numbers(seed ^ 1, n * k));
        let start = if residual { numbers(seed ^ 2, rows * n) } else { vec![0.0; rows * n] };
        let weights = OwnedPanels::pack(&w, n, k).unwrap();
        let y = product(&x, rows, &weights, &start);
        for row in 0..rows {
            for column in 0..n {
                let terms = (0..k).map(|i| f64::from(x[row * k + i]) * f64::from(w[column * k + i]));
                let exact = terms.sum::<f64>() + f64::from(start[row * n + column]);
                let found = f64::from(y[row * n + column]);
                prop_assert!((found - exact).abs() <= 1e-6 * k as f64 + 1e-6, "{found} is not {exact}");
            }
        }
    }

    #[test]
    fn a_row_has_the_same_bits_in_any_batch(
        rows in 1usize..300, n in 1usize..150, k in 1usize..1100, residual: bool, seed: u64,
    ) {
        let x = numbers(seed, rows * k);
        let start = if residual { numbers(seed ^ 2, rows * n) } else { vec![0.0; rows * n] };
        let weights = OwnedPanels::pack(&numbers(seed ^ 1, n * k), n, k).unwrap();
        let together = bits(&product(&x, rows, &weights, &start));
        for row in [0, rows / 2, rows - 1] {
            let alone = product(&x[row * k..(row + 1) * k], 1, &weights, &start[row * n..(row + 1) * n]);
            prop_assert_eq!(&together[row * n..(row + 1) * n], &bits(&alone)[..]);
        }
    }
}

/// The layers of a tiny model, SmolLM2-135M (hidden 576, 9 + 3 + 3 heads of 64, feed-forward 1536)
/// and one wider; all batches up to 70 rows, against two rows.
#[test]
fn rows_of_real_layers_have_the_bits_of_a_batch_of_two() {
    for (n, k) in [(16, 16), (64, 64), (192, 64), (960, 576), (576, 576), (3072, 576), (576, 1536), (1000, 4096)] {
        let most = 70;
        let x = numbers(3, most * k);
        let weights = OwnedPanels::pack(&numbers(4, n * k), n, k).unwrap();
        let start = numbers(5, most * n);
        let mut expected = Vec::new();
        for pair in 0..most / 2 {
            let rows = 2 * pair..2 * pair + 2;
            let x = &x[rows.start * k..rows.end * k];
            expected.extend(bits(&product(x, 2, &weights, &start[rows.start * n..rows.end * n])));
        }
        let step = if n * k > 1 << 18 { 7 } else { 1 };
        for rows in (1..=most).step_by(step).chain([255, 256, 257, 258].into_iter().filter(|_| n <= 192)) {
            let x: Vec<f32> = x.iter().copied().cycle().take(rows * k).collect();
            let start: Vec<f32> = start.iter().copied().cycle().take(rows * n).collect();
            let found = bits(&product(&x, rows, &weights, &start));
            for (row, found) in found.chunks(n).enumerate() {
                let at = row % most * n;
                assert_eq!(found, &expected[at..at + n], "row {row} of {rows}, n {n}, k {k}");
            }
        }
    }
}

#[test]
fn a_new_thread_gives_the_same_bits() {
    let (rows, n, k) = (60, 200, 700);
    let x = numbers(6, rows * k);
    let weights = OwnedPanels::pack(&numbers(7, n * k), n, k).unwrap();
    let run = || bits(&product(&x, rows, &weights, &vec![0.0; rows * n]));
    let elsewhere = std::thread::scope(|scope| scope.spawn(run).join().unwrap());
    assert_eq!(run(), elsewhere);
}

#[test]
fn packing_puts_each_column_of_a_panel_beside_the_next() {
    let source: Vec<f32> = (0..130).map(|v| v as f32).collect();
    let mut packed = vec![9.0; PanelMatrix::packed_len(65, 2)];
    pack_panels(&source, 65, 2, &mut packed).unwrap();
    assert_eq!(packed.len(), 256);
    assert_eq!(packed[..3], [0.0, 2.0, 4.0]);
    assert_eq!(packed[64..67], [1.0, 3.0, 5.0]);
    assert_eq!((packed[128], packed[192], packed[129]), (128.0, 129.0, 0.0));
}

#[test]
fn operands_that_do_not_fit_are_refused_by_name() {
    let weights = OwnedPanels::pack(&[1.0; 6], 2, 3).unwrap();
    let error = matmul(&[0.0; 5], 2, weights.view(), Output::Overwrite, &mut [0.0; 4]).unwrap_err();
    assert_eq!(error.to_string(), "matmul: operand `x` has 5 elements, the shapes ask for 6");
    let error = matmul(&[0.0; 6], 2, weights.view(), Output::Overwrite, &mut [0.0; 3]).unwrap_err();
    assert!(matches!(error, ExecutorError::OperandLength { operand: "y", found: 3, expected: 4, .. }));
    assert!(OwnedPanels::pack(&[1.0; 5], 2, 3).is_err());
    assert!(PanelMatrix::new(&[1.0; 6], 2, 3).is_err());
}
