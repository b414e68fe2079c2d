//! The roofline model.

use std::borrow::Cow;

use smallvec::SmallVec;

use slicescheduler_gmg::cluster::DeviceSpec;
use slicescheduler_gmg::semantics::{Collective, OpKind};
use slicescheduler_gmg::units::Nanos;

use crate::collective::GroupLinks;

use super::exchange::{Exchange, payload};
use super::{Ceilings, Compiled, Confidence, CostModel, Estimate, Operation};

/// Which part of a device's peaks an operator reaches, each above 0 and at most 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Efficiency {
    /// Of the peak arithmetic.
    pub compute: f64,
    /// Of the peak memory bandwidth.
    pub bandwidth: f64,
    /// Time per operator beyond the overhead of the profile, such as that of a reduction over
    /// parts of the context.
    pub latency: Nanos,
}

/// What kernels reach on a kind of device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// Time per operator that no work explains: launch, ramp-up, ramp-down.
    pub overhead: Nanos,
    /// Products with a weight.
    pub matmul: Efficiency,
    /// Attention.
    pub attention: Efficiency,
    /// Everything else: elementwise work and copies.
    pub other: Efficiency,
}

impl Profile {
    /// GPUs with whole iterations captured as graphs.
    ///
    /// Products reach 0.75-0.80 of the peak (788 of 989 TFLOP/s in bf16 on an H200) and kernels
    /// 0.85-0.92 of the bandwidth; the figures are from the middle of these ranges. Attention
    /// reaches 0.35 (FlashAttention-2) to 0.75 (FlashAttention-3) of the peak on an H100 (Shah et
    /// al. 2024). A launch inside a graph costs about 1 us of GPU time.
    pub const GPU: Self = Self {
        overhead: Nanos::us(1),
        matmul: Efficiency { compute: 0.78, bandwidth: 0.88, latency: Nanos::ZERO },
        attention: Efficiency { compute: 0.55, bandwidth: 0.85, latency: Nanos::ZERO },
        other: Efficiency { compute: 0.85, bandwidth: 0.85, latency: Nanos::ZERO },
    };

    /// CPU lanes, relative to rates that were measured with large products on the same machine: a
    /// call costs a fraction of a microsecond, and what is left of the peaks is lost to short rows
    /// and scalar remainders.
    pub const CPU: Self = Self {
        overhead: Nanos(300),
        matmul: Efficiency { compute: 0.80, bandwidth: 0.70, latency: Nanos::ZERO },
        attention: Efficiency { compute: 0.25, bandwidth: 0.70, latency: Nanos::ZERO },
        other: Efficiency { compute: 0.10, bandwidth: 0.60, latency: Nanos::ZERO },
    };

    fn efficiency(&self, kind: &OpKind) -> Efficiency {
        match kind {
            OpKind::MatMul => self.matmul,
            OpKind::Attention { .. } => self.attention,
            _ => self.other,
        }
    }
}

/// The roofline model (Williams, Waterman, Patterson 2009):
///
/// `overhead + max(flops / (efficiency * peak), bytes / (efficiency * bandwidth))`
///
/// Peak and bandwidth are those of one lane: the device's, divided by its lanes. A product with few
/// rows is bound by reading its weight, so its time is flat up to some number of tokens and linear
/// beyond. Products run at the rate of their weight's type; everything else runs on the plain
/// single-precision units, except attention, which runs at the rate of its type. Collectives are
/// bound by links and take what [`Exchange`] says.
///
/// ```
/// use slicescheduler_gmg::units::Nanos;
/// use slicescheduler_simulator::cost::{Profile, Roofline};
///
/// let eager = Roofline::default().profile("H100 SXM", Profile { overhead: Nanos::us(5), ..Profile::GPU });
/// assert_ne!(eager, Roofline::default());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Roofline {
    others: Profile,
    named: SmallVec<[(Cow<'static, str>, Profile); 1]>,
}

impl Default for Roofline {
    /// [`Profile::CPU`] for devices called `CPU`, [`Profile::GPU`] for all others.
    fn default() -> Self {
        Self::new(Profile::GPU).profile("CPU", Profile::CPU)
    }
}

impl Roofline {
    /// The model with one profile for every device.
    pub fn new(profile: Profile) -> Self {
        Self { others: profile, named: SmallVec::new() }
    }

    /// Sets the profile of devices whose specification is called `device`.
    #[must_use]
    pub fn profile(mut self, device: impl Into<Cow<'static, str>>, profile: Profile) -> Self {
        let device = device.into();
        self.named.retain(|(name, _)| *name != device);
        self.named.push((device, profile));
        self
    }

    fn profile_of(&self, device: &DeviceSpec) -> &Profile {
        self.named.iter().find(|(name, _)| *name == device.name).map_or(&self.others, |(_, profile)| profile)
    }

    fn ceilings_of(&self, operation: &Operation<'_>) -> Ceilings {
        let device = operation.device;
        let profile = self.profile_of(device);
        let efficiency = profile.efficiency(operation.kind);
        let rate = match operation.kind {
            OpKind::MatMul | OpKind::Attention { .. } => device.rate(operation.dtype()),
            _ => device.f32_rate,
        };
        let lanes = f64::from(device.lanes.max(1));
        let nanos_per = |rate: u64, part: f64| lanes * 1e9 / (rate.max(1) as f64 * part);
        Ceilings {
            overhead: profile.overhead + efficiency.latency,
            nanos_per_flop: nanos_per(rate.get(), efficiency.compute),
            nanos_per_byte: nanos_per(device.bandwidth.get(), efficiency.bandwidth),
        }
    }
}

fn exchange(collective: Collective, device: &DeviceSpec) -> Exchange {
    Exchange { collective, links: GroupLinks::between_peers(device) }
}

impl CostModel for Roofline {
    fn name(&self) -> &str {
        "roofline"
    }

    fn estimate(&self, operation: &Operation<'_>) -> Estimate {
        if let OpKind::Collective(collective) = operation.kind {
            let duration = exchange(*collective, operation.device).duration(payload(operation.cost));
            return Estimate { duration, confidence: Confidence::Modelled };
        }
        let ceilings = self.ceilings_of(operation);
        let duration = ceilings.duration(operation.cost.flops, operation.cost.bytes());
        Estimate { duration, confidence: Confidence::Modelled }
    }

    fn compile(&self, operation: &Operation<'_>) -> Option<Compiled> {
        Some(match operation.kind {
            OpKind::Collective(collective) => Compiled::Exchange(exchange(*collective, operation.device)),
            _ => Compiled::Ceilings(self.ceilings_of(operation)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::JobCost;
    use slicescheduler_gmg::shape::Binding;
    use slicescheduler_gmg::templates::{DenseSpec, dense};

    fn iteration_ms(device: &DeviceSpec, tokens: u64, context: u64) -> f64 {
        let template = dense(&DenseSpec::llama3_8b()).unwrap();
        let binding = Binding::iteration(tokens, 1, context, tokens * context / 2);
        let cost = JobCost::bind(&Roofline::default(), &template, &binding, device);
        cost.total(0..template.op_count()).as_ms_f64()
    }

    /// 16 GB of weights at 0.88 of 3350 GB/s take 5.45 ms; 5.1 ms were measured for an 8B model
    /// with whole-iteration graphs, without counting the embedding table that is not read.
    #[test]
    fn decoding_is_bound_by_the_weights() {
        let one = iteration_ms(&DeviceSpec::h100_sxm(), 1, 500);
        assert!((4.8..6.2).contains(&one), "{one} ms");
        let many = iteration_ms(&DeviceSpec::h100_sxm(), 64, 500);
        assert!(many < 1.1 * one, "flat for few tokens: {many} ms after {one} ms");
    }

    /// 2 * 7.5e9 parameters outside the embedding * 2048 tokens are 3.07e13 operations, 39.9 ms at
    /// 0.78 of 989 TFLOP/s.
    #[test]
    fn a_prefill_is_bound_by_arithmetic() {
        let prefill = iteration_ms(&DeviceSpec::h100_sxm(), 2048, 2048);
        assert!((36.0..48.0).contains(&prefill), "{prefill} ms");
        let a100 = iteration_ms(&DeviceSpec::a100_sxm_80(), 2048, 2048);
        assert!((2.8..3.4).contains(&(a100 / prefill)), "{a100} ms against {prefill} ms");
    }

    #[test]
    fn lanes_share_a_device_evenly() {
        let whole = iteration_ms(&DeviceSpec::h100_sxm(), 512, 512);
        let half = iteration_ms(&DeviceSpec::h100_sxm().with_lanes(2), 512, 512);
        assert!((1.8..=2.0).contains(&(half / whole)), "{half} ms against {whole} ms");
    }

    #[test]
    fn an_empty_batch_costs_only_overhead_and_weights() {
        let empty = iteration_ms(&DeviceSpec::l4(), 0, 0);
        assert!(empty > 0.0 && empty < iteration_ms(&DeviceSpec::l4(), 1, 1) * 1.01);
    }
}
