//! Weights of runs of operators: replicas of parts of a model.
//!
//! The weights of a run are the shards that its operators read. A part has a region and a state of its
//! own; what it shares with another part lies there twice. A whole model and parts of it are not on
//! one device at the same time.

use std::ops::Range;

use crate::id::ModelId;
use crate::memory::{DeviceMemory, Region, WeightState};
use crate::units::Bytes;

/// The weights of consecutive operators of a model on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct WeightPart {
    /// Whose operators.
    pub model: ModelId,
    /// Which.
    pub ops: Range<u32>,
    /// Where their weights lie.
    pub region: Region,
    /// Whether they are there.
    pub state: WeightState,
    /// How much has arrived, while they are loading.
    pub loaded: Bytes,
}

/// Whether operators find their weights on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Residency {
    /// Nothing is there, or not enough.
    Absent,
    /// All of it is there or on its way.
    Loading {
        /// What has arrived of what is on its way.
        loaded: Bytes,
        /// What is on its way, in all.
        of: Bytes,
    },
    /// All of it is there, usable.
    Resident,
    /// Some of it is about to go; no new work may use it.
    Evicting,
}

/// What covers a run of operators, piece by piece.
#[derive(Default)]
struct Cover {
    loading: bool,
    evicting: bool,
    loaded: Bytes,
    of: Bytes,
}

impl Cover {
    fn add(&mut self, state: WeightState, loaded: Bytes, region: Region) {
        match state {
            WeightState::Resident => {}
            WeightState::Evicting => self.evicting = true,
            WeightState::Loading => {
                self.loading = true;
                self.loaded += loaded;
                self.of += region.bytes;
            }
        }
    }

    fn residency(self) -> Residency {
        match self {
            Self { evicting: true, .. } => Residency::Evicting,
            Self { loading: true, loaded, of, .. } => Residency::Loading { loaded, of },
            _ => Residency::Resident,
        }
    }
}

impl DeviceMemory {
    /// The parts of models that are here, by model, then by first operator.
    pub fn weight_parts(&self) -> &[WeightPart] {
        self.parts()
    }

    /// Whether the operators `ops` of `model` find their weights here: in the whole model, or in parts
    /// that cover them together. O(parts).
    pub fn residency(&self, model: ModelId, ops: &Range<u32>) -> Residency {
        let mut cover = Cover::default();
        if let (Some(state), Some(region)) = (self.weight_state(model), self.weight_region(model)) {
            cover.add(state, self.loaded(model), region);
            return cover.residency();
        }
        let mut next = ops.start;
        for part in self.parts().iter().filter(|part| part.model == model) {
            if next < ops.end && part.ops.start <= next && next < part.ops.end {
                cover.add(part.state, part.loaded, part.region);
                next = part.ops.end;
            }
        }
        if next < ops.end { Residency::Absent } else { cover.residency() }
    }

    /// True if the whole model, or a part that has one of `ops`, has a region here.
    pub fn has_any_of(&self, model: ModelId, ops: &Range<u32>) -> bool {
        let overlaps = |part: &WeightPart| part.model == model && part.ops.start < ops.end && ops.start < part.ops.end;
        self.weight_state(model).is_some() || self.parts().iter().any(overlaps)
    }

    /// The part that has exactly these operators.
    pub fn weight_part(&self, model: ModelId, ops: &Range<u32>) -> Option<&WeightPart> {
        self.parts().iter().find(|part| part.model == model && part.ops == *ops)
    }
}
