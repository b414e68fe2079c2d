//! States of operators.

/// The state of an operator.
///
/// `Blocked` and `Ready` are not stored: both are [`Pending`](StoredState::Pending), and which of
/// them holds follows from the predecessors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpState {
    /// Waits for a predecessor, a job it comes after, or its release.
    Blocked,
    /// Could start.
    Ready,
    /// Handed to a lane.
    Dispatched,
    /// Running.
    Running,
    /// Finished; its results are usable.
    Done,
    /// Its kernel failed.
    Failed,
    /// Will never run.
    Cancelled,
    /// Gone with its device: it was on a lane there, or done with results there, or its job had
    /// memory there.
    Lost,
}

/// The state of an operator as it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum StoredState {
    /// Blocked or ready.
    Pending,
    /// Handed to a lane.
    Dispatched,
    /// Running.
    Running,
    /// Finished.
    Done,
    /// Its kernel failed.
    Failed,
    /// Will never run.
    Cancelled,
    /// Gone with its device.
    Lost,
}

impl StoredState {
    /// True if the operator is on a lane.
    pub fn is_on_lane(self) -> bool {
        matches!(self, Self::Dispatched | Self::Running)
    }

    /// True if `self -> next` is a transition that can happen to an operator.
    ///
    /// A recall takes back operators that had not begun although their run had; one that drops the
    /// activations takes back finished ones as well.
    pub fn may_become(self, next: Self) -> bool {
        use StoredState::{Cancelled, Dispatched, Done, Failed, Lost, Pending, Running};
        matches!(
            (self, next),
            (Pending, Dispatched | Cancelled | Lost)
                | (Dispatched, Running | Done | Pending | Failed | Lost)
                | (Running, Done | Pending | Failed | Lost)
                | (Done, Pending | Lost)
                | (Lost, Pending | Cancelled)
        )
    }
}
