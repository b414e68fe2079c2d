//! The form in which values are hashed: equal on every machine, and unlike for unlike values of one type.
//!
//! | value | bytes |
//! |---|---|
//! | number, id, quantity | 8, little-endian; a float as the number that its bits are |
//! | truth value | the number 0 or 1 |
//! | text | its length in bytes as a number, then the bytes |
//! | list, range | its length as a number, then the elements; first and end |
//! | what may be absent | the number 0; or the number 1, then the value |
//! | structure | its fields, in the order of their declaration |
//! | variant | its number as written below, then its fields |
//!
//! Every structure is taken apart field by field, so that a new field does not compile until it is here,
//! and every variant has a number of its own here, which it keeps for good: neither the order of a
//! declaration nor the text of `Debug` is part of the form. All bytes go through XXH3 (64 bits, seed 0).

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use crate::cluster::{DeviceSpec, Link, Vertex};
use crate::dtype::DType;
use crate::gang::Gang;
use crate::graph::Role;
use crate::id::{ContainerId, DeviceId, JobKey, LaneId, ModelId, NodeId, OpIndex, RequestId, TenantId, TensorId};
use crate::job::{KvGrowth, Row, Segment, StoredState};
use crate::memory::{DeviceLayout, WeightPart, WeightState};
use crate::plan::Rank;
use crate::request::{Request, RequestState};
use crate::semantics::{Collective, OpCost, OpKind};
use crate::shape::{Binding, Dim, Shape, Symbol};
use crate::tenant::{Class, Container, Layout, LendingMode, Slo, Tenant};
use crate::units::{Bandwidth, Bytes, FlopRate, Flops, Nanos};

/// Takes encoded values.
#[derive(Default)]
pub(super) struct Canon(Xxh3);

impl Canon {
    pub(super) fn put(&mut self, value: impl Canonical) -> &mut Self {
        value.encode(self);
        self
    }

    /// A list.
    pub(super) fn list<T: Canonical>(&mut self, values: impl IntoIterator<Item = T>) -> &mut Self {
        let values: Vec<T> = values.into_iter().collect();
        self.put(values.len() as u64);
        values.into_iter().fold(self, |canon, value| canon.put(value))
    }

    pub(super) fn finish(&self) -> u64 {
        self.0.digest()
    }
}

/// A value in the form above.
pub(super) trait Canonical {
    fn encode(&self, canon: &mut Canon);
}

impl<T: Canonical + ?Sized> Canonical for &T {
    fn encode(&self, canon: &mut Canon) {
        (**self).encode(canon);
    }
}

impl<T: Canonical + ?Sized> Canonical for Arc<T> {
    fn encode(&self, canon: &mut Canon) {
        (**self).encode(canon);
    }
}

impl Canonical for u64 {
    fn encode(&self, canon: &mut Canon) {
        canon.0.update(&self.to_le_bytes());
    }
}

impl Canonical for str {
    fn encode(&self, canon: &mut Canon) {
        canon.put(self.len() as u64);
        canon.0.update(self.as_bytes());
    }
}

impl<T: Canonical> Canonical for Option<T> {
    fn encode(&self, canon: &mut Canon) {
        match self {
            None => canon.put(0u64),
            Some(value) => canon.put(1u64).put(value),
        };
    }
}

impl<T: Canonical> Canonical for [T] {
    fn encode(&self, canon: &mut Canon) {
        self.iter().fold(canon.put(self.len() as u64), |canon, value| canon.put(value));
    }
}

impl<const N: usize> Canonical for [u64; N] {
    fn encode(&self, canon: &mut Canon) {
        self.iter().for_each(|value| value.encode(canon));
    }
}

/// Values that are a number.
macro_rules! numbers {
    ($($type:ty: $value:ident => $number:expr;)*) => {
        $(impl Canonical for $type {
            fn encode(&self, canon: &mut Canon) {
                let $value = *self;
                canon.put(u64::from($number));
            }
        })*
    };
}

numbers! {
    u16: value => value;
    u32: value => value;
    bool: value => value;
    f32: value => value.to_bits();
    TenantId: id => id.0;
    ModelId: id => id.0;
    ContainerId: id => id.0;
    NodeId: id => id.0;
    DeviceId: id => id.0;
    OpIndex: id => id.0;
    TensorId: id => id.0;
    RequestId: id => id.0;
    Nanos: time => time.get();
    Bytes: bytes => bytes.get();
    Flops: flops => flops.get();
    Bandwidth: bandwidth => bandwidth.get();
    FlopRate: rate => rate.get();
    Symbol: symbol => symbol.index() as u64;
    Rank: rank => match rank {
        Rank::GuestBestEffort => 0u8,
        Rank::OwnerBestEffort => 1,
        Rank::GuestLatency => 2,
        Rank::OwnerLatency => 3,
    };
    RequestState: state => match state {
        RequestState::Waiting => 0u8,
        RequestState::Running => 1,
        RequestState::Done => 2,
        RequestState::Rejected => 3,
        RequestState::Failed => 4,
    };
    StoredState: state => match state {
        StoredState::Pending => 0u8,
        StoredState::Dispatched => 1,
        StoredState::Running => 2,
        StoredState::Done => 3,
        StoredState::Failed => 4,
        StoredState::Cancelled => 5,
        StoredState::Lost => 6,
    };
    WeightState: state => match state {
        WeightState::Loading => 0u8,
        WeightState::Resident => 1,
        WeightState::Evicting => 2,
    };
    Class: class => match class {
        Class::LatencySensitive => 0u8,
        Class::BestEffort => 1,
    };
    LendingMode: mode => match mode {
        LendingMode::Strict => 0u8,
        LendingMode::SloSlack => 1,
    };
    Role: role => match role {
        Role::Input => 0u8,
        Role::Activation => 1,
        Role::Weight => 2,
        Role::KvCache => 3,
        Role::Output => 4,
    };
    DType: dtype => match dtype {
        DType::F32 => 0u8,
        DType::F16 => 1,
        DType::BF16 => 2,
        DType::F8 => 3,
        DType::I32 => 4,
        DType::U32 => 5,
        DType::I8 => 6,
        DType::U8 => 7,
        DType::F64 => 8,
        DType::I64 => 9,
        DType::I16 => 10,
        DType::Bool => 11,
        DType::Q8_0 => 12,
        DType::Q4_0 => 13,
        DType::Q4_1 => 14,
    };
}

/// Structures, field by field.
macro_rules! fields {
    ($($type:ident { $($field:ident),* })*) => {
        $(impl Canonical for $type {
            fn encode(&self, canon: &mut Canon) {
                let Self { $($field),* } = self;
                canon$(.put($field))*;
            }
        })*
    };
}

fields! {
    Slo { ttft, tpot }
    Tenant { name, class, slo, weight, lending }
    Request { tenant, arrival, prompt, max_output, state, device, produced, slo }
    JobKey { tenant, replica, iteration }
    Row { request, position, tokens, emits }
    KvGrowth { request, blocks }
    Gang { rank, size }
    LaneId { device, index }
    Segment { first, end, state, lane, start, finish }
    DeviceLayout { usable, weights, arena, staging, kv_block, kv_block_tokens }
    Dim { coefficient, symbol }
    OpCost { flops, weights, read, written }
    Link { from, to, both_ways, bandwidth, latency }
    DeviceSpec {
        name, memory, bandwidth, f32_rate, half_rate, f8_rate, sm_count, l2, host_link, host_latency, nvlink,
        nvlink_latency, lanes
    }
}

impl Canonical for Cow<'_, str> {
    fn encode(&self, canon: &mut Canon) {
        (**self).encode(canon);
    }
}

impl Canonical for Range<u32> {
    fn encode(&self, canon: &mut Canon) {
        canon.put(self.start).put(self.end);
    }
}

impl Canonical for Shape {
    fn encode(&self, canon: &mut Canon) {
        canon.put(self.dims());
    }
}

impl Canonical for Binding {
    fn encode(&self, canon: &mut Canon) {
        Symbol::all().fold(canon, |canon, symbol| canon.put(self.get(symbol)));
    }
}

impl Canonical for Container {
    fn encode(&self, canon: &mut Canon) {
        let Self { tenant, sharers, devices, layout } = self;
        canon.put(tenant).put(&sharers[..]).put(&devices[..]);
        match *layout {
            Layout::Replicas => canon.put(0u64),
            Layout::Tensor(ranks) => canon.put(1u64).put(ranks),
            Layout::Pipeline(stages) => canon.put(2u64).put(stages),
        };
    }
}

/// Without its place: that is history.
impl Canonical for WeightPart {
    fn encode(&self, canon: &mut Canon) {
        let Self { model, ops, region: _, state, loaded } = self;
        canon.put(model).put(ops).put(state).put(loaded);
    }
}

impl Canonical for Vertex {
    fn encode(&self, canon: &mut Canon) {
        match *self {
            Self::Device(device) => canon.put(0u64).put(device),
            Self::Host(node) => canon.put(1u64).put(node),
            Self::DeviceSwitch(node) => canon.put(2u64).put(node),
            Self::NetworkSwitch => canon.put(3u64),
        };
    }
}

impl Canonical for Collective {
    fn encode(&self, canon: &mut Canon) {
        match *self {
            Self::AllReduce { ranks } => canon.put([0, ranks.into()]),
            Self::AllGather { ranks } => canon.put([1, ranks.into()]),
            Self::ReduceScatter { ranks } => canon.put([2, ranks.into()]),
            Self::AllToAll { ranks } => canon.put([3, ranks.into()]),
            Self::Broadcast { ranks, root } => canon.put([4, ranks.into(), root.into()]),
            Self::Send { distance } => canon.put([5, distance.into()]),
            Self::Receive { distance } => canon.put([6, distance.into()]),
        };
    }
}

impl Canonical for OpKind {
    fn encode(&self, canon: &mut Canon) {
        match self {
            Self::Embedding => canon.put(0u64),
            Self::RmsNorm { epsilon } => canon.put(1u64).put(epsilon),
            Self::MatMul => canon.put(2u64),
            Self::Rotary { heads, kv_heads, head_dim, theta } => {
                canon.put(3u64).put(heads).put(kv_heads).put(head_dim).put(theta)
            }
            Self::Attention { heads, kv_heads, head_dim } => canon.put(4u64).put(heads).put(kv_heads).put(head_dim),
            Self::SwiGlu => canon.put(5u64),
            Self::Gather => canon.put(6u64),
            Self::Sample => canon.put(7u64),
            Self::Add => canon.put(8u64),
            Self::Softmax => canon.put(9u64),
            Self::LayerNorm { epsilon } => canon.put(10u64).put(epsilon),
            Self::Linear => canon.put(11u64),
            Self::Gelu => canon.put(12u64),
            Self::Tanh => canon.put(13u64),
            Self::Normalize => canon.put(14u64),
            Self::SelfAttention { heads, head_dim } => canon.put(15u64).put(heads).put(head_dim),
            Self::MeanPool => canon.put(16u64),
            Self::HeadNorm { heads, kv_heads, head_dim, epsilon } => {
                canon.put(17u64).put(heads).put(kv_heads).put(head_dim).put(epsilon)
            }
            Self::TopK { top } => canon.put(18u64).put(top),
            Self::Permute => canon.put(19u64),
            Self::GroupedMatMul { experts, top, ranks } => canon.put(20u64).put(experts).put(top).put(ranks),
            Self::Combine => canon.put(21u64),
            Self::Collective(collective) => canon.put(22u64).put(collective),
            Self::Custom(name) => canon.put(23u64).put(name),
        };
    }
}

#[cfg(test)]
mod tests {
    use xxhash_rust::xxh3::xxh3_64;

    use super::*;

    fn hash(value: impl Canonical) -> u64 {
        Canon::default().put(value).finish()
    }

    fn numbers(of: &[u64]) -> Vec<u8> {
        of.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    /// The bytes are put together by hand, from the table at the top of this file.
    #[test]
    fn values_are_hashed_in_the_form_that_is_written_down() {
        let tenant = Tenant::latency_sensitive("ab").ttft(Nanos(7)).tpot(Nanos(8)).weight(3);
        let bytes = [numbers(&[2]), b"ab".to_vec(), numbers(&[0, 1, 7, 8, 3, 1])].concat();
        assert_eq!(hash(&tenant), xxh3_64(&bytes));
        let container = Container::tensor([4, 5], 2);
        assert_eq!(hash(&container), xxh3_64(&numbers(&[0, 0, 2, 4, 5, 1, 2])));
        let kind = OpKind::Collective(Collective::Broadcast { ranks: 4, root: 1 });
        assert_eq!(hash(&kind), xxh3_64(&numbers(&[22, 4, 4, 1])));
        // The bits of 0.5.
        assert_eq!(hash(OpKind::RmsNorm { epsilon: 0.5 }), xxh3_64(&numbers(&[1, 0x3f00_0000])));
        let bound = Binding::new().bind(crate::shape::SEQUENCES, 9);
        assert_eq!(hash(bound), xxh3_64(&numbers(&[0, 1, 9, 0, 0, 0, 0, 0, 0])));
    }
}
