//! What a replay keeps for its pictures. Bounded: memory does not grow with the trace.

use slicescheduler_gmg::tenant::Class;
use slicescheduler_gmg::units::Nanos;

use crate::report::{LateRequest, PolicySummary};

/// A tenant in a picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantLabel {
    /// Its name.
    pub name: String,
    /// Its class.
    pub class: Class,
}

/// A device in a picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLabel {
    /// Its name.
    pub name: String,
    /// The tenant it is reserved for: an index into [`RunRecord::tenants`].
    pub owner: Option<usize>,
    /// Bytes that may be used on it.
    pub usable: u64,
}

/// What ran on a device in one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SecondUse {
    /// Time of the owner's work, in microseconds.
    pub owner_us: u32,
    /// Time of guests' work, in microseconds.
    pub guest_us: u32,
}

/// The idle slices of one length: gaps between the work of owners on their devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SliceBucket {
    /// The longest slice that counts here; the bucket before this one has the shorter ones.
    pub longest: Nanos,
    /// How many there were.
    pub slices: u64,
    /// Their time.
    pub idle: Nanos,
    /// The part of that time in which guests ran.
    pub recovered: Nanos,
}

/// The bytes in use on a device at one moment, by kind as in
/// [`ByteKind::ALL`](slicescheduler_gmg::memory::ByteKind::ALL).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySample {
    /// When.
    pub at: Nanos,
    /// The device: an index into [`RunRecord::devices`].
    pub device: u32,
    /// Bytes by kind.
    pub bytes: [u64; 5],
}

/// What an iteration computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// Parts of prompts, and possibly tokens of answers.
    Prefill,
    /// Tokens of answers only.
    Decode,
}

/// Operators of one job that ran without a break on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The device: an index into [`RunRecord::devices`].
    pub device: u32,
    /// The tenant: an index into [`RunRecord::tenants`].
    pub tenant: u32,
    /// When they started.
    pub start: Nanos,
    /// When they finished.
    pub finish: Nanos,
    /// What the iteration computes.
    pub kind: SpanKind,
    /// True if the device is somebody else's.
    pub guest: bool,
    /// True if the job was recalled at the end of the span.
    pub recalled: bool,
    /// Operators that ran.
    pub operators: u32,
    /// Tokens of the iteration.
    pub tokens: u32,
}

/// One policy's run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunRecord {
    /// The tenants.
    pub tenants: Vec<TenantLabel>,
    /// The devices.
    pub devices: Vec<DeviceLabel>,
    /// Per device, what ran in each second of the run.
    pub seconds: Vec<Vec<SecondUse>>,
    /// The idle slices of all devices by length, ascending.
    pub slices: Vec<SliceBucket>,
    /// Memory over the run, ascending in time; a few thousand samples at most.
    pub memory: Vec<MemorySample>,
    /// Every span that overlaps [`detail`](Self::detail), in the order in which they ended.
    pub spans: Vec<Span>,
    /// The part of the run that is kept span by span.
    pub detail: (Nanos, Nanos),
    /// Requests that violated their service level and were to be explained, the worst first.
    pub late: Vec<LateRequest>,
    /// The figures.
    pub summary: PolicySummary,
}
