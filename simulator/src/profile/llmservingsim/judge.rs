//! What a rank's operators compute, to judge the times of a profile by.
//!
//! A time is refused with its row if the device cannot do the work so fast, or if it is a thousand times what the work
//! takes at the device's peaks. Work is counted from below: every byte moves once, and what is not known counts nothing.
//! Where the device, the model or the operator is not known, a kernel takes at least 100 ns and at most ten seconds.

use slicescheduler_gmg::cluster::DeviceSpec;
use slicescheduler_gmg::dtype::DType;

use crate::profile::error::{Place, ProfileError};
use crate::profile::plausible::{self, Work, attended};

/// The sizes of one layer of a model, before it is split over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerShape {
    /// Width.
    pub hidden: u32,
    /// Attention heads.
    pub heads: u32,
    /// Key-value heads.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Width of the feed-forward part, or of one expert.
    pub intermediate: u32,
    /// True if the feed-forward part consists of experts.
    pub has_experts: bool,
    /// Tokens of the vocabulary.
    pub vocabulary: u32,
}

/// The device and the model that a profile is said to be of.
#[derive(Clone, Debug, PartialEq)]
pub struct Yardstick {
    /// The device.
    pub device: DeviceSpec,
    /// The model.
    pub layer: LayerShape,
}

/// Judges the times of one profile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judge<'a> {
    yardstick: Option<&'a Yardstick>,
    tp: f64,
    /// The type whose peak matrix products run at, bytes of a weight, and bytes of a number in the KV cache.
    unit: DType,
    weight: f64,
    kv: f64,
}

impl<'a> Judge<'a> {
    /// Of a profile at degree `tp` of the `variant` that its `meta.yaml` states. One of other than half precision may
    /// have weights of four bits and a cache of eight.
    pub(super) fn new(yardstick: Option<&'a Yardstick>, tp: u32, variant: &str) -> Self {
        let is_half = ["bf16", "fp16", "bfloat16", "float16"].contains(&variant);
        let (unit, weight, kv) = if is_half { (DType::BF16, 2.0, 2.0) } else { (DType::F8, 0.5, 1.0) };
        Self { yardstick, tp: f64::from(tp.max(1)), unit, weight, kv }
    }

    /// Judges `nanos`, the time of operator `name` on `rows` tokens or sequences.
    pub(super) fn operator(&self, name: &str, rows: f64, nanos: f64, place: &Place) -> Result<(), ProfileError> {
        self.check(|layer| self.operator_work(layer, name, rows), nanos, place)
    }

    /// Judges `nanos`, the time of attention of `chunk` tokens behind `behind` ones beside `decodes` of `length` tokens.
    pub(super) fn attention(
        &self,
        [chunk, behind, decodes, length]: [f64; 4],
        nanos: f64,
        place: &Place,
    ) -> Result<(), ProfileError> {
        let work = |layer: &LayerShape| {
            let (heads, kv_heads) = self.heads(layer);
            let head_dim = f64::from(layer.head_dim);
            let pairs = attended(chunk, behind, 0) + decodes * length;
            let cached = if chunk > 0.0 { chunk + behind } else { 0.0 } + decodes * length;
            let bytes = head_dim * (2.0 * heads * (chunk + decodes) * 2.0 + 2.0 * kv_heads * cached * self.kv);
            Some(Work { flops: 4.0 * heads * head_dim * pairs, unit: DType::BF16, bytes, link: 0.0 })
        };
        self.check(work, nanos, place)
    }

    /// Judges `nanos`, the time of a block of experts of which `activated` are read on this rank.
    pub(super) fn experts(&self, activated: f64, nanos: f64, place: &Place) -> Result<(), ProfileError> {
        let work = |layer: &LayerShape| {
            let weights = 3.0 * f64::from(layer.hidden) * f64::from(layer.intermediate) / self.tp;
            Some(Work { flops: 0.0, unit: self.unit, bytes: activated * weights * self.weight, link: 0.0 })
        };
        self.check(work, nanos, place)
    }

    fn check(
        &self,
        work: impl FnOnce(&LayerShape) -> Option<Work>,
        nanos: f64,
        place: &Place,
    ) -> Result<(), ProfileError> {
        plausible::check_shortest(nanos, plausible::KERNEL_NANOS, place)?;
        let known = self.yardstick.and_then(|yardstick| Some((work(&yardstick.layer)?, &yardstick.device)));
        let Some((work, device)) = known else { return plausible::check_unknown(nanos, place) };
        let ideal = plausible::check_fastest(&work, nanos, device, place)?;
        plausible::check_slowest(&work, nanos, ideal, place)
    }

    /// Heads and key-value heads of a rank.
    fn heads(&self, layer: &LayerShape) -> (f64, f64) {
        (f64::from(layer.heads) / self.tp, (f64::from(layer.kv_heads) / self.tp).max(1.0))
    }

    fn operator_work(&self, layer: &LayerShape, name: &str, rows: f64) -> Option<Work> {
        let (heads, kv_heads) = self.heads(layer);
        let [hidden, head_dim, vocabulary] = [layer.hidden, layer.head_dim, layer.vocabulary].map(f64::from);
        let inner = f64::from(layer.intermediate) / self.tp;
        let product = |n: f64, k: f64| {
            let bytes = n * k * self.weight + rows * (n * 2.0 + k * self.weight);
            Some(Work { flops: 2.0 * rows * n * k, unit: self.unit, bytes, link: 0.0 })
        };
        // Numbers of two bytes per row.
        let moved = |numbers: f64| Some(Work { flops: 0.0, unit: DType::F32, bytes: rows * numbers * 2.0, link: 0.0 });
        match name {
            "qkv_proj" => product((heads + 2.0 * kv_heads) * head_dim, hidden),
            "o_proj" => product(hidden, heads * head_dim),
            // Beside experts these are shared ones, of a width that is not known.
            "gate_up_proj" | "down_proj" | "act_fn" if layer.has_experts => None,
            "gate_up_proj" => product(2.0 * inner, hidden),
            "down_proj" => product(hidden, inner),
            "act_fn" => moved(3.0 * inner),
            "lm_head" => product(vocabulary / self.tp, hidden),
            "sampler" => moved(vocabulary / self.tp),
            "layernorm" | "final_layernorm" => moved(2.0 * hidden),
            "embedding" => moved(hidden),
            "rotary_emb" => moved(2.0 * (heads + kv_heads) * head_dim),
            _ => None,
        }
    }
}
