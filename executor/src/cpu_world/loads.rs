//! Weights on their way into slots.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crossbeam::channel::{Receiver, Select, TryRecvError};
use slicescheduler_gmg::id::{DeviceId, ModelId, TransferId};
use slicescheduler_gmg::plan::Source;
use slicescheduler_gmg::units::{Bytes, Nanos};

use super::claims::{Access, Claim, Holder};
use super::device::Device;
use crate::arena::{Arena, Region};
use crate::error::{ExecutorError, Result};
use crate::fault::{Fault, Faults, Point};
use crate::registry::BoundModel;
use crate::transport::{Place, Refusal, Transfer, TransferEvent, Transport};

/// Weights that are to be in a slot.
#[derive(Clone, Debug)]
pub(super) struct Load {
    pub(super) model: ModelId,
    pub(super) device: DeviceId,
    pub(super) source: Source,
    /// The slot, at least as long as the model's image.
    pub(super) slot: Region,
    /// How often it was tried in vain.
    pub(super) failures: u32,
}

/// Tries to copy weights before their device counts as lost.
const TRIES: u32 = 3;

/// What became of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadEnd {
    Loaded {
        model: ModelId,
        device: DeviceId,
        at: Nanos,
    },
    /// It could not be done on this device.
    Lost(DeviceId),
    /// It is tried again, or nobody wants it any more.
    Passed,
}

#[derive(Debug)]
struct Active {
    load: Load,
    claims: Vec<(DeviceId, Claim)>,
}

/// Loads in order of arrival. One waits while its slot, or the slot that it copies, is in somebody's
/// way, or while the transport is full; others overtake it.
#[derive(Debug)]
pub(super) struct Loads {
    transport: Box<dyn Transport>,
    pub(super) events: Receiver<TransferEvent>,
    waiting: VecDeque<Load>,
    active: BTreeMap<u64, Active>,
    started: u64,
    faults: Option<Arc<dyn Faults>>,
}

impl Loads {
    pub(super) fn new(
        transport: Box<dyn Transport>,
        events: Receiver<TransferEvent>,
        faults: Option<Arc<dyn Faults>>,
    ) -> Self {
        Self { transport, events, waiting: VecDeque::new(), active: BTreeMap::new(), started: 0, faults }
    }

    /// Forgets what waits to be loaded onto a device.
    pub(super) fn pass_over(&mut self, device: DeviceId) {
        self.waiting.retain(|load| load.device != device);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.active.is_empty()
    }

    /// Waits until a transfer has ended, or will never do.
    pub(super) fn wait(&self) {
        let mut select = Select::new();
        select.recv(&self.events);
        select.ready();
    }

    pub(super) fn push(&mut self, load: Load) {
        self.waiting.push_back(load);
    }

    /// Starts what can start.
    pub(super) fn start(&mut self, devices: &mut [Device], models: &[Option<Arc<BoundModel>>]) -> Result<()> {
        for _ in 0..self.waiting.len() {
            let Some(load) = self.waiting.pop_front() else { break };
            let Some(model) = models.get(load.model.index()).and_then(Option::as_deref) else { continue };
            if let Err(load) = self.try_start(load, devices, model)? {
                self.waiting.push_back(load);
            }
        }
        Ok(())
    }

    /// Starts a load, or gives it back if it has to wait.
    fn try_start(&mut self, load: Load, devices: &mut [Device], model: &BoundModel) -> Result<Result<(), Load>> {
        let (size, number) = (model.model.slot_bytes(), self.started);
        let holder = Holder::Transfer(number);
        let to = Region::new(load.slot.offset, size);
        let (memory, from, from_device) = origin(&load, devices, model);
        let mut claims = vec![(load.device, Claim { region: to, access: Access::Write, holder })];
        claims.extend(from_device.map(|device| (device, Claim { region: from, access: Access::Read, holder })));
        let device = |id: DeviceId| devices.get(id.index());
        let free = claims.iter().all(|(id, claim)| device(*id).is_some_and(|device| device.claims.is_free(claim)));
        let Some(target) = device(load.device).filter(|_| free) else { return Ok(Err(load)) };
        let from = Place { memory, region: from };
        let to = Place { memory: target.arena.clone(), region: to };
        // SAFETY: both regions are free, are claimed below before anything else can be, and are
        // given back when the transfer is reported. They are of different memories: `origin` gives
        // another device, or the host's image, which is never written.
        let transfer = unsafe { Transfer::new(TransferId(number), from, to)? };
        if let Err(refused) = self.transport.submit(transfer) {
            return match refused.reason {
                // There is room after the next event, and there will be none.
                Refusal::Full if self.active.is_empty() => Err(ExecutorError::NoRoomForTransfers { size }),
                Refusal::Full => Ok(Err(load)),
                Refusal::Ended | Refusal::OtherEnds => Err(ExecutorError::TransportEnded { left: size, size }),
            };
        }
        for (id, claim) in &claims {
            if let Some(device) = devices.get_mut(id.index()) {
                device.claims.take(*claim)?;
            }
        }
        self.started += 1;
        if let Some(target) = devices.get_mut(load.device.index()) {
            target.loaded.retain(|_, slot| !slot.overlaps(&load.slot));
        }
        self.active.insert(number, Active { load, claims });
        Ok(Ok(()))
    }

    /// The next load that has ended, if one has; if it was done, its slot counts as loaded.
    pub(super) fn finished(&mut self, devices: &mut [Device]) -> Result<Option<LoadEnd>> {
        let event = match self.events.try_recv() {
            Ok(event) => event,
            Err(TryRecvError::Disconnected) if !self.active.is_empty() => {
                return Err(ExecutorError::TransportEnded { left: Bytes::MAX, size: Bytes::MAX });
            }
            Err(_) => return Ok(None),
        };
        let Some(Active { load, claims }) = self.active.remove(&event.of().0) else { return Ok(Some(LoadEnd::Passed)) };
        for (id, claim) in &claims {
            if let Some(device) = devices.get_mut(id.index()) {
                device.claims.give_back(claim);
            }
        }
        let Some(target) = devices.get_mut(load.device.index()).filter(|device| !device.lost) else {
            return Ok(Some(LoadEnd::Passed));
        };
        let (model, device, at) = (load.model, load.device, event.finished);
        let point = Point::Load { model, device };
        let fault = self.faults.as_ref().and_then(|faults| faults.at(point));
        if fault == Some(Fault::LosesDevice) {
            return Ok(Some(LoadEnd::Lost(device)));
        }
        if event.outcome.is_ok() && fault.is_none() {
            target.loaded.insert(model, load.slot);
            return Ok(Some(LoadEnd::Loaded { model, device, at }));
        }
        if load.failures + 1 == TRIES {
            return Ok(Some(LoadEnd::Lost(device)));
        }
        // From the host, in case it is the source that fails.
        self.waiting.push_front(Load { source: Source::Host, failures: load.failures + 1, ..load });
        Ok(Some(LoadEnd::Passed))
    }
}

/// Where a load's bytes come from: another device's slot, or the host's image if that is what is
/// asked for or the slot has been evicted meanwhile.
fn origin(load: &Load, devices: &[Device], model: &BoundModel) -> (Arc<Arena>, Region, Option<DeviceId>) {
    let size = model.model.slot_bytes();
    if let Source::Device(id) = load.source
        && id != load.device
        && let Some(device) = devices.get(id.index())
        && let Some(slot) = device.loaded.get(&load.model)
    {
        return (device.arena.clone(), Region::new(slot.offset, size), Some(id));
    }
    (model.model.image().clone(), Region::new(Bytes::ZERO, size), None)
}
