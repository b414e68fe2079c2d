//! Against a plain decoder in double precision that shares nothing with the kernels but the weights.

use std::collections::HashMap;

use slicescheduler_executor::model::{Shard, WeightSource};
use slicescheduler_gmg::templates::DenseSpec;

use crate::rig::{alone, prompt, weights};

struct Plain<'a> {
    spec: &'a DenseSpec,
    weights: HashMap<String, Vec<f64>>,
}

impl<'a> Plain<'a> {
    fn new(spec: &'a DenseSpec, source: &dyn WeightSource) -> Self {
        let (hidden, heads, kv_heads, head_dim) =
            (spec.hidden as usize, spec.heads as usize, spec.kv_heads as usize, spec.head_dim as usize);
        let (intermediate, vocab) = (spec.intermediate as usize, spec.vocab as usize);
        let mut shapes = vec![
            ("embed.weight".to_owned(), vec![vocab, hidden]),
            ("norm.weight".to_owned(), vec![hidden]),
            ("lm_head.weight".to_owned(), vec![vocab, hidden]),
        ];
        for layer in 0..spec.layers {
            let mut add = |name: &str, shape: &[usize]| {
                shapes.push((format!("layers.{layer}.{name}.weight"), shape.to_vec()));
            };
            add("attn.norm", &[hidden]);
            add("attn.qkv", &[(heads + 2 * kv_heads) * head_dim, hidden]);
            add("attn.o", &[hidden, heads * head_dim]);
            add("mlp.norm", &[hidden]);
            add("mlp.gate_up", &[2 * intermediate, hidden]);
            add("mlp.down", &[hidden, intermediate]);
        }
        let mut weights = HashMap::new();
        for (name, shape) in shapes {
            let mut elements = vec![0.0f32; shape.iter().product()];
            source.fill(Shard { name: &name, shape: &shape }, &mut elements).unwrap();
            weights.insert(name, elements.into_iter().map(f64::from).collect());
        }
        Self { spec, weights }
    }

    fn project(&self, name: &str, x: &[f64]) -> Vec<f64> {
        self.weights[name].chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean + f64::from(self.spec.norm_epsilon)).sqrt();
        x.iter().zip(&self.weights[name]).map(|(x, w)| x * scale * w).collect()
    }

    fn rotate(&self, head: &mut [f64], position: usize) {
        let half = head.len() / 2;
        for pair in 0..half {
            let frequency = f64::from(self.spec.rope_theta).powf(-2.0 * pair as f64 / head.len() as f64);
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            let (a, b) = (head[pair], head[pair + half]);
            (head[pair], head[pair + half]) = (a * cos - b * sin, a * sin + b * cos);
        }
    }

    /// The logits after the last of `tokens`, everything computed anew.
    fn logits(&self, tokens: &[u32]) -> Vec<f64> {
        let (heads, kv_heads, head_dim) =
            (self.spec.heads as usize, self.spec.kv_heads as usize, self.spec.head_dim as usize);
        let hidden = self.spec.hidden as usize;
        let embed = &self.weights["embed.weight"];
        let mut rows: Vec<Vec<f64>> =
            tokens.iter().map(|&token| embed[token as usize * hidden..][..hidden].to_vec()).collect();
        for layer in 0..self.spec.layers {
            let name = |part: &str| format!("layers.{layer}.{part}.weight");
            let mut fused: Vec<Vec<f64>> =
                rows.iter().map(|x| self.project(&name("attn.qkv"), &self.norm(&name("attn.norm"), x))).collect();
            for (position, row) in fused.iter_mut().enumerate() {
                for head in row[..(heads + kv_heads) * head_dim].chunks_mut(head_dim) {
                    self.rotate(head, position);
                }
            }
            for (position, x) in rows.iter_mut().enumerate() {
                let mut attended = Vec::new();
                for head in 0..heads {
                    let shared = head / (heads / kv_heads);
                    let part = |row: &[f64], index: usize| row[index * head_dim..][..head_dim].to_vec();
                    let query = part(&fused[position], head);
                    let scores: Vec<f64> = fused[..=position]
                        .iter()
                        .map(|row| {
                            let key = part(row, heads + shared);
                            let dot: f64 = query.iter().zip(&key).map(|(q, k)| q * k).sum();
                            (dot / (head_dim as f64).sqrt()).exp()
                        })
                        .collect();
                    let sum: f64 = scores.iter().sum();
                    for element in 0..head_dim {
                        let value = |row: &Vec<f64>| part(row, heads + kv_heads + shared)[element];
                        attended.push(fused.iter().zip(&scores).map(|(row, score)| score / sum * value(row)).sum());
                    }
                }
                for (x, y) in x.iter_mut().zip(self.project(&name("attn.o"), &attended)) {
                    *x += y;
                }
                let both = self.project(&name("mlp.gate_up"), &self.norm(&name("mlp.norm"), x));
                let (gate, up) = both.split_at(both.len() / 2);
                let activated: Vec<f64> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
                for (x, y) in x.iter_mut().zip(self.project(&name("mlp.down"), &activated)) {
                    *x += y;
                }
            }
        }
        self.project("lm_head.weight", &self.norm("norm.weight", rows.last().unwrap()))
    }
}

/// Where the two largest logits are so close that single precision may turn them round, the token
/// is not compared; the tokens so far are the world's in any case.
#[test]
fn tokens_are_those_of_a_plain_decoder() {
    let spec = DenseSpec::tiny();
    let (mut compared, mut close) = (0, 0);
    for tenant in 0..2 {
        let plain = Plain::new(&spec, &weights(tenant));
        for (seed, length) in [(0, 1), (1, 6), (2, 40)] {
            let mut tokens = prompt(seed, length);
            for token in alone(tenant, &tokens, 8) {
                let logits = plain.logits(&tokens);
                let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
                let rivals = logits.iter().enumerate().filter(|&(index, _)| index != best);
                let second = rivals.map(|(_, &logit)| logit).fold(f64::MIN, f64::max);
                if logits[best] - second > 1e-4 {
                    assert_eq!(token as usize, best, "after {tokens:?}");
                    compared += 1;
                } else {
                    close += 1;
                }
                tokens.push(token);
            }
        }
    }
    assert!(compared >= 46, "{compared} tokens compared, {close} too close");
}
