//! Commands: what they claim, and how they get under way.

use std::ops::Range;
use std::sync::Arc;

use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, ModelId};
use slicescheduler_gmg::memory::Region as Reserved;
use slicescheduler_gmg::plan::{Fate, Launch, Rank, Source, WorldError};
use slicescheduler_gmg::{GmgView, View};

use super::CpuWorld;
use super::claims::{Access, Claim, Holder};
use super::flight::{Flight, Grant};
use super::kept_kv::Blocks;
use super::loads::Load;
use super::program::{Launched, Progress};
use crate::arena::Region;
use crate::error::{ExecutorError, Result};
use crate::lane::{self, Entry};
use crate::model::ModelKind;
use crate::registry::Space;

/// Places of stopped jobs that are kept before it is asked whose they are.
const STOPPED: usize = 64;

impl CpuWorld {
    pub(super) fn launch(&mut self, launch: &Launch, view: View<'_>) -> Result<(), WorldError> {
        let (id, spec) = (launch.lane, &launch.spec);
        let device = self.devices.get(id.device.index()).ok_or(WorldError::NoSuchLane(id))?;
        if usize::from(id.index) >= device.lanes.len() {
            return Err(WorldError::NoSuchLane(id));
        }
        if device.lost {
            return Ok(());
        }
        let model = self.bound(spec.model).ok_or(WorldError::NoSuchModel(spec.model))?.clone();
        if !Arc::ptr_eq(&launch.template, model.model.template()) {
            return Err(ExecutorError::OtherTemplate(spec.model).into());
        }
        let memory = view.memory(id.device).ok_or(WorldError::NoSuchDevice(id.device))?;
        let tenant = view.model(spec.model).ok_or(WorldError::NoSuchModel(spec.model))?.tenant();
        let not_loaded = ExecutorError::NotLoaded { model: spec.model, device: id.device };
        let slot = *device.loaded.get(&spec.model).ok_or(not_loaded)?;
        let whole = model.model.kind() == ModelKind::Encoder;
        let batch = self.sequences.batch(spec, memory.kv(), whole)?;
        let blocks = Blocks::of(&model.model, device.layout.kv_block_tokens, 0);
        let keepings = self.sequences.keepings(spec, &batch, id.device, blocks)?;
        let restored: Vec<_> = keepings.iter().filter(|keeping| keeping.restores).map(|of| of.request).collect();
        let activations = device.granted("activations", launch.arena, device.activations())?;
        let space = Space {
            arena: device.arena.clone(),
            activations,
            layout: launch.template.activation_layout(&spec.binding),
            slot,
            pool: device.pool(),
            kv_layout: model.model.kv_layout(device.layout.kv_block_tokens),
            model,
            batch,
        };
        let last = launch.ops.end == launch.template.op_count();
        let emits = spec.rows.iter().filter(|row| last && row.emits).map(|row| row.request).collect();
        let (mut grant, mut clear) = (Grant::new(id, tenant, space.batch.own.clone()), Vec::new());
        let claims = [(activations, Access::Write), (slot, Access::Read)];
        self.take(&mut grant, claims, &mut clear)?;

        let progress = self.progress(launch.job, id.device, launch.ops.start, view);
        let program = Launched::new(space, clear, progress.clone());
        let program = program.with_faults(id, self.faults.clone()).keeping(keepings);
        let program = Box::new(program);
        let (tag, rank) = (self.launched, lane::Rank(rank_number(launch.rank)));
        let entry = Entry { program, ops: Some(launch.ops.clone()), rank, tag };
        let lane = &self.devices[id.device.index()].lanes[usize::from(id.index)];
        match lane.enqueue(entry) {
            Ok(ticket) => {
                let (job, ops) = (launch.job, launch.ops.clone());
                let (seen, fate) = ((ops.start, self.clock.now()), Fate::Keep);
                let flight = Flight { job, ops, ticket, fate, muted: false, progress, emits, seen, restored, grant };
                self.flights.insert(tag, flight);
                self.launched += 1;
                Ok(())
            }
            Err(ExecutorError::LaneEnded) => {
                self.give_back(&grant, false);
                self.losses.push(id.device);
                Ok(())
            }
            Err(error) => {
                self.give_back(&grant, false);
                Err(error.into())
            }
        }
    }

    /// Takes all that a launch uses, or nothing.
    fn take(&mut self, grant: &mut Grant, claims: [(Region, Access); 2], clear: &mut Vec<u32>) -> Result<()> {
        let holder = Holder::Lane(grant.lane.index);
        let taken = claims.into_iter().try_for_each(|(region, access)| {
            let claim = Claim { region, access, holder };
            self.devices[grant.lane.device.index()].claims.take(claim)?;
            grant.claims.push(claim);
            Ok(())
        });
        let device = &mut self.devices[grant.lane.device.index()];
        let taken = taken.and_then(|()| {
            let blocks = &grant.blocks;
            device.claims.take_blocks(grant.lane.index, blocks, grant.tenant, clear)
        });
        if taken.is_err() {
            grant.claims.drain(..).for_each(|claim| device.claims.give_back(&claim));
        }
        taken
    }

    /// How far a job has come: as its entries on lanes say, or to its operator `first`, in which it may have been
    /// stopped.
    fn progress(&mut self, job: JobId, device: DeviceId, first: u32, view: View<'_>) -> Arc<Progress> {
        let mut others = self.flights.values().filter(|flight| flight.job == job);
        if let Some(flight) = others.next() {
            return flight.progress.clone();
        }
        let stopped = self.stopped.remove(&job).filter(|stopped| (stopped.device, stopped.op) == (device, first));
        // Jobs that were given up do not come back for their place.
        if self.stopped.len() >= STOPPED {
            self.stopped.retain(|&job, _| view.job(job).is_some());
        }
        Arc::new(Progress::new(first, stopped.map_or(0, |stopped| stopped.part)))
    }

    pub(super) fn recall(&mut self, job: JobId, lane: LaneId, fate: Fate) -> Result<(), WorldError> {
        let device = self.devices.get(lane.device.index()).ok_or(WorldError::NoSuchLane(lane))?;
        let queue = device.lanes.get(usize::from(lane.index)).ok_or(WorldError::NoSuchLane(lane))?;
        for flight in self.flights.values_mut().filter(|flight| flight.job == job && flight.grant.lane == lane) {
            // If it is too late, the last operator runs and may still be stopped: then its fate counts, too.
            queue.recall(&flight.ticket);
            flight.fate = fate;
        }
        Ok(())
    }

    pub(super) fn prefetch(
        &mut self,
        model: ModelId,
        device: DeviceId,
        source: Source,
        slot: Reserved,
    ) -> Result<(), WorldError> {
        if self.devices.get(device.index()).ok_or(WorldError::NoSuchDevice(device))?.lost {
            return Ok(());
        }
        if self.bound(model).is_none() {
            return Err(WorldError::NoSuchModel(model));
        }
        let load = self.load(model, device, source, slot)?;
        self.loads.push(load);
        self.loads.start(&mut self.devices, &self.models)?;
        Ok(())
    }

    pub(super) fn evict(&mut self, model: ModelId, device: DeviceId) -> Result<(), WorldError> {
        let device = self.devices.get_mut(device.index()).ok_or(WorldError::NoSuchDevice(device))?;
        device.loaded.remove(&model);
        Ok(())
    }

    /// Weights of whole models come and go, and no parts of them.
    pub(super) fn refuse_part(&self, model: ModelId, ops: &Range<u32>, device: DeviceId) -> Result<(), WorldError> {
        self.devices.get(device.index()).ok_or(WorldError::NoSuchDevice(device))?;
        self.bound(model).ok_or(WorldError::NoSuchModel(model))?;
        Err(ExecutorError::PartOfWeights { model, device, start: ops.start, end: ops.end }.into())
    }

    /// Blocks move when a pool gives borrowed ones back, which lanes here never had.
    pub(super) fn refuse_moves(&self, device: DeviceId, moves: &[(u32, u32)]) -> Result<(), WorldError> {
        let target = self.devices.get(device.index()).ok_or(WorldError::NoSuchDevice(device))?;
        let blocks = target.layout.kv_blocks();
        match moves.iter().map(|&(from, to)| from.max(to)).max() {
            None => Ok(()),
            Some(block) => Err(ExecutorError::NoBlock { device, block, blocks }.into()),
        }
    }

    /// A load into a slot that can take it.
    pub(super) fn load(&self, model: ModelId, device: DeviceId, source: Source, slot: Reserved) -> Result<Load> {
        let (Some(bound), Some(target)) = (self.bound(model), self.devices.get(device.index())) else {
            return Err(ExecutorError::NotLoaded { model, device });
        };
        let slot = target.granted("weights", slot, target.weights())?;
        let needed = bound.model.slot_bytes();
        if slot.size < needed {
            return Err(ExecutorError::SlotTooSmall { model, device, slot: slot.size, needed });
        }
        let (tokens, block) = (target.layout.kv_block_tokens, target.layout.kv_block);
        let needed = bound.model.kv_block_bytes(tokens);
        if block < needed {
            return Err(ExecutorError::KvBlockTooSmall { model, device, tokens, block, needed });
        }
        Ok(Load { model, device, source, slot, failures: 0 })
    }
}

const fn rank_number(rank: Rank) -> u8 {
    match rank {
        Rank::GuestBestEffort => 0,
        Rank::OwnerBestEffort => 1,
        Rank::GuestLatency => 2,
        Rank::OwnerLatency => 3,
    }
}
