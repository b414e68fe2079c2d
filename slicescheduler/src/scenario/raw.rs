//! The scenario file as written: keys and types, no relations between values.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::tenant::{Class, LendingMode};
use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};
use toml::Spanned;

use super::{DeviceKind, OptionValue, text};
use crate::workload::{Preset, Shift, TraceFormat};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawScenario {
    pub(super) seed: Option<u64>,
    pub(super) duration: Spanned<Text<Nanos>>,
    pub(super) warm_up: Option<Spanned<Text<Nanos>>>,
    pub(super) rate_scale: Option<Factor>,
    pub(super) cluster: RawCluster,
    pub(super) tenants: Spanned<Vec<Spanned<RawTenant>>>,
    pub(super) policies: Spanned<Vec<Spanned<NameOr<RawPolicy>>>>,
    #[serde(default)]
    pub(super) engine: RawEngine,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCluster {
    pub(super) usable: Option<Spanned<f64>>,
    #[serde(default)]
    pub(super) network: RawLink,
    pub(super) nodes: Spanned<Vec<Spanned<RawNode>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawNode {
    pub(super) count: Option<Spanned<u32>>,
    pub(super) devices: Spanned<u32>,
    pub(super) kind: Text<DeviceKind>,
    #[serde(default)]
    pub(super) nvlink: RawLink,
    #[serde(default)]
    pub(super) pcie: RawLink,
    pub(super) host_memory: Option<Text<Bytes>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLink {
    pub(super) bandwidth: Option<Spanned<Text<Bandwidth>>>,
    pub(super) latency: Option<Spanned<Text<Nanos>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTenant {
    pub(super) name: Spanned<String>,
    pub(super) class: Text<Class>,
    pub(super) model: Spanned<NameOr<RawModel>>,
    pub(super) slo: Option<Spanned<RawSlo>>,
    pub(super) relative_slo: Option<Spanned<f64>>,
    pub(super) weight: Option<Spanned<u32>>,
    pub(super) lending: Option<Text<LendingMode>>,
    pub(super) prefix_caching: Option<Spanned<bool>>,
    pub(super) container: RawContainer,
    pub(super) workload: Spanned<RawWorkload>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSlo {
    pub(super) ttft: Spanned<Text<Nanos>>,
    pub(super) tpot: Spanned<Text<Nanos>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawContainer {
    pub(super) devices: Spanned<Vec<Spanned<u32>>>,
    pub(super) layout: Option<Text<RawLayout>>,
    pub(super) ranks: Option<Spanned<u32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawModel {
    pub(super) name: Option<String>,
    pub(super) layers: Spanned<u32>,
    pub(super) hidden: Spanned<u32>,
    pub(super) heads: Spanned<u32>,
    pub(super) kv_heads: Option<Spanned<u32>>,
    pub(super) head_dim: Option<Spanned<u32>>,
    pub(super) intermediate: Spanned<u32>,
    pub(super) vocab: Spanned<u32>,
    pub(super) max_context: Option<Spanned<u32>>,
    #[serde(default)]
    pub(super) tied_embeddings: bool,
    pub(super) dtype: Option<Text<DType>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawWorkload {
    pub(super) trace: Option<Spanned<String>>,
    pub(super) format: Option<Spanned<Text<TraceFormat>>>,
    pub(super) shift: Option<Spanned<Text<Shift>>>,
    pub(super) stand_in: Option<Spanned<Text<Preset>>>,
    pub(super) clients: Option<Spanned<String>>,
    pub(super) client: Option<Spanned<u32>>,
    pub(super) like: Option<Spanned<Text<Preset>>>,
    pub(super) window_time: Option<Spanned<Text<Nanos>>>,
    pub(super) generator: Option<Spanned<Text<Preset>>>,
    pub(super) backlog: Option<Spanned<Text<Preset>>>,
    pub(super) window: Option<Spanned<u32>>,
    pub(super) rate_scale: Option<Spanned<Factor>>,
    pub(super) seed: Option<Spanned<u64>>,
    pub(super) prompt_scale: Option<Factor>,
    pub(super) output_scale: Option<Factor>,
    pub(super) max_prompt: Option<Spanned<u32>>,
    pub(super) max_output: Option<Spanned<u32>>,
    pub(super) drift: Option<Spanned<RawDrift>>,
}

impl RawWorkload {
    /// True if prompts can have a beginning in common: only some traces know.
    pub(super) fn says_what_prompts_begin_with(&self) -> bool {
        let is_mooncake = |format: &Spanned<Text<TraceFormat>>| format.get_ref().0 == TraceFormat::Mooncake;
        self.trace.is_some() && self.format.as_ref().is_some_and(is_mooncake)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawDrift {
    pub(super) prompts: Option<Spanned<f64>>,
    pub(super) answers: Option<Spanned<f64>>,
    pub(super) from: Option<Spanned<Text<Nanos>>>,
    pub(super) until: Option<Spanned<Text<Nanos>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPolicy {
    pub(super) name: String,
    #[serde(default)]
    pub(super) options: BTreeMap<String, OptionValue>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawEngine {
    pub(super) token_budget: Option<Spanned<u32>>,
    pub(super) max_sequences: Option<Spanned<u32>>,
    pub(super) block_tokens: Option<Spanned<u32>>,
}

/// A value that is written as text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text<T>(pub(super) T);

/// What can be written as text.
pub(super) trait FromText: Sized {
    /// What is expected, for messages.
    const EXPECTED: &'static str;

    fn from_text(text: &str) -> Option<Self>;
}

impl<'de, T: FromText> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FromStr<T>(PhantomData<T>);
        impl<T: FromText> Visitor<'_> for FromStr<T> {
            type Value = Text<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(T::EXPECTED)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                T::from_text(text).map(Text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(FromStr(PhantomData))
    }
}

impl FromText for Nanos {
    const EXPECTED: &'static str = text::TIME;

    fn from_text(text: &str) -> Option<Self> {
        text::time(text)
    }
}

impl FromText for Bytes {
    const EXPECTED: &'static str = text::MEMORY;

    fn from_text(text: &str) -> Option<Self> {
        text::memory(text)
    }
}

impl FromText for Bandwidth {
    const EXPECTED: &'static str = text::RATE;

    fn from_text(text: &str) -> Option<Self> {
        text::bandwidth(text)
    }
}

impl FromText for Shift {
    const EXPECTED: &'static str = "a share below 100% such as \"50%\", or a time such as \"12s\"";

    fn from_text(text: &str) -> Option<Self> {
        match text::percent(text) {
            Some(share) => (share < 1.0).then_some(Self::Fraction(share)),
            None => text::time(text).map(Self::Span),
        }
    }
}

macro_rules! names {
    ($type:ty, $expected:literal, { $($name:literal => $value:expr),+ $(,)? }) => {
        impl FromText for $type {
            const EXPECTED: &'static str = $expected;

            fn from_text(text: &str) -> Option<Self> {
                match text {
                    $($name => Some($value),)+
                    _ => None,
                }
            }
        }
    };
}

names!(DeviceKind, "a device: h100-sxm, a100-sxm-80, h200-sxm, l4, rtx-4090 or cpu", {
    "h100-sxm" => Self::H100Sxm,
    "a100-sxm-80" => Self::A100Sxm80,
    "h200-sxm" => Self::H200Sxm,
    "l4" => Self::L4,
    "rtx-4090" => Self::Rtx4090,
    "cpu" => Self::Cpu,
});
names!(Class, "latency-sensitive or best-effort", {
    "latency-sensitive" => Self::LatencySensitive,
    "best-effort" => Self::BestEffort,
});
names!(LendingMode, "strict or slo_slack", {
    "strict" => Self::Strict,
    "slo_slack" => Self::SloSlack,
});
/// A layout without its number of ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RawLayout {
    #[default]
    Replicas,
    TensorParallel,
}

names!(RawLayout, "replicas or tensor-parallel", {
    "replicas" => Self::Replicas,
    "tensor-parallel" => Self::TensorParallel,
});
names!(TraceFormat, "azure or mooncake", {
    "azure" => Self::Azure,
    "mooncake" => Self::Mooncake,
});
names!(Preset, "azure-code, azure-conv or mooncake", {
    "azure-code" => Self::AzureCode,
    "azure-conv" => Self::AzureConv,
    "mooncake" => Self::Mooncake,
});
names!(DType, "f32, f16, bf16 or f8", {
    "f32" => Self::F32,
    "f16" => Self::F16,
    "bf16" => Self::BF16,
    "f8" => Self::F8,
});

/// Factors that can be multiplied and divided by without overflow.
pub(super) const FACTORS: std::ops::RangeInclusive<f64> = 1e-4..=1e4;

/// What is expected of them, for messages.
pub(super) const FACTOR: &str = "a number from 0.0001 to 10000";

/// One of [`FACTORS`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Factor(pub(super) f64);

impl<'de> Deserialize<'de> for Factor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = Factor;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(FACTOR)
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Factor, E> {
                if FACTORS.contains(&number) {
                    Ok(Factor(number))
                } else {
                    Err(E::invalid_value(Unexpected::Float(number), &self))
                }
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Factor, E> {
                self.visit_f64(number as f64)
            }
        }
        deserializer.deserialize_any(Number)
    }
}

/// A name, or a table that spells the thing out.
pub(super) enum NameOr<T> {
    Name(String),
    Table(T),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for NameOr<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
            type Value = NameOr<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name or a table")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
                Ok(NameOr::Name(name.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(NameOr::Table)
            }
        }
        deserializer.deserialize_any(Either(PhantomData))
    }
}
