//! The feed-forward network of a mixture of experts: oracle (double precision) and differential (the same token
//! alone and beside others).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

use proptest::prelude::*;
use slicescheduler_executor::kernels::{
    ExpertMatrices, PanelMatrix, Parts, QuantFormat, QuantMatrix, combine_rows, dequantize, grouped_matmul,
    pack_panels, pack_quantized, permute_rows, quantize, swiglu, top_k,
};

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

/// The weights of a layer: per expert `[2 width, hidden]` and `[hidden, width]`.
struct Layer {
    experts: usize,
    top: usize,
    hidden: usize,
    width: usize,
    gate_up: Vec<f32>,
    down: Vec<f32>,
    quantized: Option<QuantFormat>,
}

impl Layer {
    fn new(seed: u64, [experts, top, hidden, width]: [usize; 4], quantized: Option<QuantFormat>) -> Self {
        let rounded = |values: Vec<f32>| match quantized {
            None => values,
            Some(format) => {
                let mut stored = vec![0; values.len() / 32 * format.block_bytes()];
                quantize(format, &values, &mut stored).unwrap();
                let mut again = vec![0.0; values.len()];
                dequantize(format, &stored, &mut again).unwrap();
                again
            }
        };
        let gate_up = rounded(numbers(seed, experts * 2 * width * hidden));
        let down = rounded(numbers(seed ^ 1, experts * hidden * width));
        Self { experts, top, hidden, width, gate_up, down, quantized }
    }

    /// All experts' rows of `x` times their matrices of `values`, `[experts, n, k]`.
    fn product(&self, x: &[f32], chosen: &[u32], values: &[f32], n: usize, k: usize) -> Vec<f32> {
        let mut y = vec![f32::NAN; chosen.len() * n];
        let dims = [self.experts, n, k];
        let (matrices, mut parts) = (values.chunks(n * k), Parts::all());
        match self.quantized {
            None => {
                let length = PanelMatrix::packed_len(n, k);
                let mut packed = vec![0.0; self.experts * length];
                matrices.zip(packed.chunks_mut(length)).for_each(|(w, packed)| pack_panels(w, n, k, packed).unwrap());
                grouped_matmul(x, chosen, ExpertMatrices::single(&packed, dims).unwrap(), &mut y, &mut parts).unwrap();
            }
            Some(format) => {
                let length = QuantMatrix::packed_len(n, k, format);
                let mut packed = vec![0; self.experts * length];
                for (w, packed) in matrices.zip(packed.chunks_mut(length)) {
                    let mut stored = vec![0; w.len() / 32 * format.block_bytes()];
                    quantize(format, w, &mut stored).unwrap();
                    pack_quantized(&stored, n, k, format, packed).unwrap();
                }
                let experts = ExpertMatrices::quantized(&packed, dims, format).unwrap();
                grouped_matmul(x, chosen, experts, &mut y, &mut parts).unwrap();
            }
        }
        y
    }

    /// `residual` plus what the experts make of `x`, by the kernels.
    fn forward(&self, x: &[f32], logits: &[f32], residual: &[f32]) -> Vec<f32> {
        let (hidden, width) = (self.hidden, self.width);
        let slots = logits.len() / self.experts * self.top;
        let (mut weights, mut chosen) = (vec![0.0; slots], vec![0; slots]);
        top_k(logits, self.experts, self.top, &mut weights, &mut chosen).unwrap();
        let mut routed = vec![0.0; slots * hidden];
        permute_rows(x, hidden, &chosen, &mut routed).unwrap();
        let gate_up = self.product(&routed, &chosen, &self.gate_up, 2 * width, hidden);
        let mut activated = vec![0.0; slots * width];
        swiglu(&gate_up, width, &mut activated).unwrap();
        let down = self.product(&activated, &chosen, &self.down, hidden, width);
        let mut y = residual.to_vec();
        combine_rows(&down, &chosen, &weights, hidden, &mut y).unwrap();
        y
    }

    /// The same of one token in double precision, expert by expert: softmax over all, the largest, scaled to one.
    fn reference(&self, x: &[f32], logits: &[f32], residual: &[f32]) -> Vec<f64> {
        let (hidden, width) = (self.hidden, self.width);
        let wide: Vec<f64> = logits.iter().map(|&logit| f64::from(logit)).collect();
        let all: f64 = wide.iter().map(|logit| logit.exp()).sum();
        let mut order: Vec<usize> = (0..self.experts).collect();
        order.sort_by(|&a, &b| wide[b].total_cmp(&wide[a]).then(a.cmp(&b)));
        order.truncate(self.top);
        let kept: f64 = order.iter().map(|&expert| wide[expert].exp() / all).sum();
        let mut y: Vec<f64> = residual.iter().map(|&value| f64::from(value)).collect();
        let dot = |w: &[f32], x: &[f64]| w.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum::<f64>();
        let x: Vec<f64> = x.iter().map(|&value| f64::from(value)).collect();
        for &expert in &order {
            let share = wide[expert].exp() / all / kept;
            let gate_up = &self.gate_up[expert * 2 * width * hidden..][..2 * width * hidden];
            let rows: Vec<f64> = gate_up.chunks(hidden).map(|w| dot(w, &x)).collect();
            let (gate, up) = rows.split_at(width);
            let activated: Vec<f64> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            let down = &self.down[expert * hidden * width..][..hidden * width];
            y.iter_mut().zip(down.chunks(width)).for_each(|(y, w)| *y += share * dot(w, &activated));
        }
        y
    }
}

fn formats() -> impl Strategy<Value = Option<QuantFormat>> {
    prop_oneof![Just(None), Just(Some(QuantFormat::Q8_0)), Just(Some(QuantFormat::Q4_1))]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn agrees_with_double_precision(
        seed: u64, tokens in 1usize..12, experts in 1usize..9, top in 1usize..4, wide: bool,
    ) {
        let (top, hidden, width) = (top.min(experts), if wide { 96 } else { 20 }, if wide { 64 } else { 12 });
        let layer = Layer::new(seed, [experts, top, hidden, width], None);
        let (x, residual) = (numbers(seed ^ 2, tokens * hidden), numbers(seed ^ 3, tokens * hidden));
        let logits: Vec<f32> = numbers(seed ^ 4, tokens * experts).iter().map(|logit| logit * 4.0).collect();
        let y = layer.forward(&x, &logits, &residual);
        for token in 0..tokens {
            let of = |values: &[f32], length: usize| values[token * length..][..length].to_vec();
            let exact = layer.reference(&of(&x, hidden), &of(&logits, experts), &of(&residual, hidden));
            let scale = exact.iter().fold(1.0f64, |most, value| most.max(value.abs()));
            for (found, exact) in of(&y, hidden).iter().zip(&exact) {
                prop_assert!((f64::from(*found) - exact).abs() <= 2e-5 * scale, "{found} is not {exact}");
            }
        }
    }

    /// Alone, among others, in a batch that is cut in two anywhere, and while all others want its experts.
    #[test]
    fn a_token_has_the_same_bits_whoever_is_beside_it(
        seed: u64, tokens in 2usize..40, experts in 1usize..9, top in 1usize..4, cut in 0usize..40, crowd: bool,
        format in formats(),
    ) {
        let (top, hidden, width) = (top.min(experts), 64, 32);
        let layer = Layer::new(seed, [experts, top, hidden, width], format);
        let (x, residual) = (numbers(seed ^ 2, tokens * hidden), numbers(seed ^ 3, tokens * hidden));
        let mut logits = numbers(seed ^ 4, tokens * experts);
        if crowd {
            let first = logits[..experts].to_vec();
            logits.chunks_mut(experts).for_each(|of| of.copy_from_slice(&first));
        }
        let bits = |y: &[f32]| y.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        let together = bits(&layer.forward(&x, &logits, &residual));
        let cut = cut % tokens;
        let part = |from: usize, to: usize| {
            let (rows, chosen) = (from * hidden..to * hidden, from * experts..to * experts);
            bits(&layer.forward(&x[rows.clone()], &logits[chosen], &residual[rows]))
        };
        prop_assert_eq!(&together[..], [part(0, cut), part(cut, tokens)].concat());
        prop_assert_eq!(&together[cut * hidden..][..hidden], part(cut, cut + 1));
    }
}

#[test]
fn experts_that_are_not_there_are_refused() {
    let packed = vec![0.0; 2 * PanelMatrix::packed_len(3, 4)];
    let experts = ExpertMatrices::single(&packed, [2, 3, 4]).unwrap();
    let refused = grouped_matmul(&[0.0; 8], &[1, 2], experts, &mut [0.0; 6], &mut Parts::all()).unwrap_err();
    assert_eq!(refused.to_string(), "grouped_matmul: `chosen[1]` is 2, but there are only 2");
    assert!(experts.get(2).is_err() && experts.get(1).is_ok());
    assert!(ExpertMatrices::single(&packed, [3, 3, 4]).is_err());
    assert!(ExpertMatrices::quantized(&[0; 8], [1, 16, 32], QuantFormat::Q4_0).is_err());
    assert!(grouped_matmul(&[0.0; 8], &[1], experts, &mut [0.0; 3], &mut Parts::all()).is_err());
}
