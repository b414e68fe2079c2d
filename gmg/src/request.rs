//! Requests: what users ask for.

use crate::id::{DeviceId, TenantId};
use crate::tenant::Slo;
use crate::units::Nanos;

/// Where a request is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum RequestState {
    /// Arrived, nothing computed yet (or preempted and to be recomputed).
    Waiting,
    /// Some of its tokens are computed; its KV sequence lies on a device.
    Running,
    /// All its tokens were produced.
    Done,
    /// Refused, with nothing produced.
    Rejected,
    /// Ended by a fault.
    Failed,
}

impl RequestState {
    /// True if nothing more will happen to the request.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Rejected | Self::Failed)
    }
}

/// A request as the graph knows it. How long its answer will be is not known before it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Request {
    /// Who asked.
    pub tenant: TenantId,
    /// When.
    pub arrival: Nanos,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// The most tokens that may be produced.
    pub max_output: u32,
    /// Where it is in its life.
    pub state: RequestState,
    /// Where its KV sequence lies.
    pub device: Option<DeviceId>,
    /// Tokens produced; exact once the request has ended.
    pub produced: u32,
    /// The service level it runs under.
    pub slo: Option<Slo>,
}

impl Request {
    /// When token `index` is due; [`Nanos::MAX`] without a service level.
    pub fn due(&self, index: u32) -> Nanos {
        self.slo.map_or(Nanos::MAX, |slo| slo.due(self.arrival, index))
    }
}
