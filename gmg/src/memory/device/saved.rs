//! A device's memory as plain lists, for snapshots that are kept.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::{ModelId, TransferId};
use crate::memory::{ByteKind, DeviceLayout, DeviceMemory, KvPool, Ledger, Region, SavedPool, WeightPart, WeightState};
use crate::units::Bytes;

/// Everything about a device's memory that the jobs with activations there do not say.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedDevice {
    pub(crate) layout: DeviceLayout,
    /// KV blocks in the part for weights.
    borrowed: u32,
    departures: u32,
    /// Whole models: where they lie, and what has arrived of those that are loading.
    models: Vec<(ModelId, Region, WeightState, Option<Bytes>)>,
    parts: Vec<WeightPart>,
    staging: Vec<(TransferId, Region)>,
    external: Bytes,
    peaks: ([u64; 5], u64),
    kv: SavedPool,
}

impl DeviceMemory {
    pub(crate) fn save(&self) -> SavedDevice {
        let loaded = |model| self.weights.loaded.get(&model).copied();
        let model =
            |(&model, &(region, state)): (&ModelId, &(Region, WeightState))| (model, region, state, loaded(model));
        SavedDevice {
            layout: self.layout,
            borrowed: self.borrowed_blocks(),
            departures: self.departures,
            models: self.weights.models.iter().map(model).collect(),
            parts: self.weights.parts.clone(),
            staging: self.staging.transfers.iter().map(|(&transfer, &region)| (transfer, region)).collect(),
            external: self.ledger.of(ByteKind::External),
            peaks: self.ledger.peaks(),
            kv: self.kv.save(),
        }
    }

    /// The memory that was saved, in a graph with so many models and tenants, where `arenas` are the
    /// activations of jobs. Regions take their places one by one, so that none can overlap another.
    ///
    /// # Errors
    /// What a device's memory could not be.
    pub(crate) fn restored(
        saved: SavedDevice,
        arenas: impl Iterator<Item = Region>,
        (models, tenants): (usize, usize),
    ) -> Result<Self, &'static str> {
        let mut memory = Self::new(saved.layout);
        let mut ledger = Ledger::default();
        if memory.borrow_slots(saved.borrowed).is_none() {
            return Err("more KV blocks among the weights than there is room for");
        }
        let weights = Arc::make_mut(&mut memory.weights);
        let mut before = None;
        for (model, region, state, loaded) in saved.models {
            if model.index() >= models || before.replace(model).is_some_and(|before| before >= model) {
                return Err("weights of a model that there is not, or not in order");
            }
            if !weights.slots.occupy(region) {
                return Err("weights where there is no room");
            }
            ledger.add(ByteKind::Weights, region.bytes);
            weights.models.insert(model, (region, state));
            if let Some(loaded) = loaded {
                if state != WeightState::Loading || loaded > region.bytes {
                    return Err("progress of weights that are not loading, or more than they are");
                }
                weights.loaded.insert(model, loaded);
            }
        }
        for part in saved.parts {
            let first = (part.model, part.ops.start);
            let ascends = weights.parts.last().is_none_or(|before| (before.model, before.ops.start) < first);
            let whole = weights.models.contains_key(&part.model);
            if !ascends || whole || part.model.index() >= models || part.ops.is_empty() {
                return Err("weights of operators that there are not, that are there twice, or not in order");
            }
            if part.loaded > part.region.bytes || !weights.slots.occupy(part.region) {
                return Err("weights of operators where there is no room");
            }
            ledger.add(ByteKind::Weights, part.region.bytes);
            weights.parts.push(part);
        }
        let staging = Arc::make_mut(&mut memory.staging);
        for (transfer, region) in saved.staging {
            if !staging.slots.occupy(region) || staging.transfers.insert(transfer, region).is_some() {
                return Err("a buffer of a transfer where there is no room, or a second one");
            }
            ledger.add(ByteKind::Staging, region.bytes);
        }
        for region in arenas {
            if !memory.arena.occupy(region) {
                return Err("activations where there is no room");
            }
            ledger.add(ByteKind::Activations, region.bytes);
        }
        memory.kv = Arc::new(KvPool::restored(memory.kv.total(), saved.kv, tenants)?);
        ledger.add(ByteKind::Kv, saved.layout.kv_block.times(u64::from(memory.kv.used_blocks())));
        ledger.add(ByteKind::External, saved.external);
        memory.ledger = ledger.with_peaks(saved.peaks).ok_or("high-water marks below what is in use")?;
        memory.departures = saved.departures;
        Ok(memory)
    }
}
