//! What would happen.

use std::fmt;

use crate::id::{DeviceId, JobId, LaneId, Version};
use crate::units::{Bytes, Nanos};

/// When one piece of work would run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunForecast {
    /// The action of the question that asked for it; [`None`] for work that is there already or
    /// that a continuation submitted.
    pub action: Option<usize>,
    /// The job, if it exists already.
    pub job: Option<JobId>,
    /// Where.
    pub lane: LaneId,
    /// When its first operator would start.
    pub start: Nanos,
    /// When its last operator would finish.
    pub finish: Nanos,
    /// True if it would be recalled at least once in between.
    pub recalled: bool,
}

/// A device that would run out of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// When.
    pub at: Nanos,
    /// By how much.
    pub bytes: Bytes,
}

/// The memory of one device over the forecast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryForecast {
    /// The device.
    pub device: DeviceId,
    /// The most bytes in use at one time.
    pub peak: Bytes,
    /// The first time there would be too few.
    pub shortage: Option<Shortage>,
}

/// An idle interval of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The lane.
    pub lane: LaneId,
    /// When it begins.
    pub start: Nanos,
    /// When it ends: the start of the next work that is known, or the horizon.
    pub end: Nanos,
    /// Bytes of the device that are free through all of it.
    pub free: Bytes,
}

impl Slice {
    /// How long it is.
    pub fn length(&self) -> Nanos {
        self.end - self.start
    }
}

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: idle from {} for {}, {} free", self.lane, self.start, self.length(), self.free)
    }
}

/// The answer to a [`Question`](super::Question). Reused from one question to the next, so that a
/// policy's inner loop does not allocate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    /// The version of the graph it starts from.
    pub version: Version,
    /// The instant it starts from.
    pub now: Nanos,
    /// Work in the order of its start; ties by lane, then by order on the lane.
    pub runs: Vec<RunForecast>,
    /// Devices that hold anything, ascending.
    pub memory: Vec<MemoryForecast>,
    /// Operators that were simulated; a macro-operator counts as all of its operators.
    pub operators: u64,
}

impl Forecast {
    /// When the work of action `index` would finish, on all lanes that it is on; [`None`] if it would not
    /// inside the horizon.
    pub fn finish_of_action(&self, index: usize) -> Option<Nanos> {
        self.runs.iter().filter(|run| run.action == Some(index)).map(|run| run.finish).max()
    }

    /// When the last work of `job` would finish.
    pub fn finish_of_job(&self, job: JobId) -> Option<Nanos> {
        self.runs.iter().filter(|run| run.job == Some(job)).map(|run| run.finish).max()
    }

    /// The most bytes in use on `device` at one time; zero for a device with nothing on it.
    pub fn peak(&self, device: DeviceId) -> Bytes {
        self.memory.iter().find(|memory| memory.device == device).map_or(Bytes::ZERO, |memory| memory.peak)
    }

    /// The first shortage of memory anywhere.
    pub fn first_shortage(&self) -> Option<(DeviceId, Shortage)> {
        self.memory
            .iter()
            .filter_map(|memory| Some((memory.device, memory.shortage?)))
            .min_by_key(|&(device, shortage)| (shortage.at, device))
    }

    /// Empties it for the next question.
    pub fn reset(&mut self, version: Version, now: Nanos) {
        self.version = version;
        self.now = now;
        self.runs.clear();
        self.memory.clear();
        self.operators = 0;
    }
}
