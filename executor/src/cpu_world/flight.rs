//! What is on lanes, and how its end becomes events of the graph.

use std::ops::Range;
use std::sync::Arc;

use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, RequestId, TenantId};
use slicescheduler_gmg::plan::{Ended, Event, Failure, Fate};
use slicescheduler_gmg::units::Nanos;

use super::CpuWorld;
use super::claims::Claim;
use super::loads::LoadEnd;
use super::program::{Progress, Results};
use crate::error::{ExecutorError, Result};
use crate::lane::{LaneEvent, Outcome, Ticket};

/// What a launch was given for as long as it is on its lane.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) lane: LaneId,
    /// Whose tokens its blocks will hold.
    pub(super) tenant: TenantId,
    pub(super) claims: Vec<Claim>,
    pub(super) blocks: Arc<[u32]>,
}

impl Grant {
    /// Nothing yet.
    pub(super) fn new(lane: LaneId, tenant: TenantId, blocks: Arc<[u32]>) -> Self {
        Self { lane, tenant, claims: Vec::with_capacity(2), blocks }
    }
}

/// Where a job was stopped within an operator. Its activations are as they were left, and nowhere else.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stopped {
    pub(super) device: DeviceId,
    pub(super) op: u32,
    pub(super) part: usize,
}

/// A launch that has not been reported.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) job: JobId,
    pub(super) ops: Range<u32>,
    pub(super) ticket: Ticket,
    /// What becomes of its activations if it is cut; those of one that yields stay.
    pub(super) fate: Fate,
    /// Its job has failed, and that has been reported.
    pub(super) muted: bool,
    pub(super) progress: Arc<Progress>,
    /// Whose tokens its last operator samples, in order.
    pub(super) emits: Vec<RequestId>,
    /// The operator that it was seen at last, and since when it is there.
    pub(super) seen: (u32, Nanos),
    /// Whose blocks it fills from copies, before its first operator.
    pub(super) restored: Vec<RequestId>,
    pub(super) grant: Grant,
}

impl CpuWorld {
    /// Appends everything that was reported, and starts what waited for it.
    pub(super) fn drain(&mut self, events: &mut Vec<Event>) -> Result<()> {
        while let Ok(event) = self.events.try_recv() {
            self.ended(event, events);
        }
        if !self.loads.is_idle() {
            while let Some(end) = self.loads.finished(&mut self.devices)? {
                match end {
                    LoadEnd::Loaded { model, device, at } => events.push(Event::WeightsLoaded { model, device, at }),
                    LoadEnd::Lost(device) => self.losses.push(device),
                    LoadEnd::Passed => {}
                }
            }
            self.loads.start(&mut self.devices, &self.models)?;
        }
        self.find_stalled();
        while let Some(device) = self.losses.pop() {
            self.lose(device, events);
        }
        Ok(())
    }

    /// Finds devices that have been at one operator for longer than is waited for. Each operator is looked at from the
    /// first time on that the world comes by, so one is never given less than its time.
    fn find_stalled(&mut self) {
        let Some(patience) = self.patience else { return };
        let now = self.clock.now();
        for flight in self.flights.values_mut() {
            let (next, (seen, since)) = (flight.ticket.next_op(), flight.seen);
            if next != seen {
                flight.seen = (next, now);
            } else if next > flight.ops.start && now - since > patience {
                self.losses.push(flight.grant.lane.device);
            }
        }
    }

    /// Says that a device is gone, once. What is on its lanes may still run; nobody is told of it any more, and
    /// nobody gets its memory.
    fn lose(&mut self, id: DeviceId, events: &mut Vec<Event>) {
        let Some(device) = self.devices.get_mut(id.index()).filter(|device| !device.lost) else { return };
        device.lost = true;
        device.loaded.clear();
        self.loads.pass_over(id);
        self.flights.retain(|_, flight| {
            let lane = flight.grant.lane;
            if lane.device != id {
                return true;
            }
            if let Some(lane) = device.lanes.get(usize::from(lane.index)) {
                lane.recall(&flight.ticket);
            }
            false
        });
        events.push(Event::DeviceLost { device: id, at: self.clock.now() });
    }

    /// An entry left its lane.
    fn ended(&mut self, event: LaneEvent, events: &mut Vec<Event>) {
        let LaneEvent { tag, next_op, started, finished: at, outcome, .. } = event;
        let Some(flight) = self.flights.remove(&tag) else { return };
        self.operators += u64::from(next_op - flight.ops.start);
        // The job, by this entry or by one before it.
        let stopped = flight.progress.place().1 > 0;
        // The first operator that starts in its turn has the blocks cleared and filled before it, even if it fails or is
        // stopped. One that was recalled before, or out of its turn, has not touched them.
        let reached = !matches!(&outcome, Outcome::Failed(ExecutorError::NotReached { .. }));
        let used = reached && flight.ticket.next_op() > flight.ops.start;
        self.give_back(&flight.grant, used);
        if used {
            flight.restored.iter().for_each(|&request| {
                // One that was forgotten has no copy.
                let _ = self.sequences.restore(request, false);
            });
        }
        if flight.muted {
            return;
        }
        let (job, lane, ops) = (flight.job, flight.grant.lane, flight.ops.clone());
        match outcome {
            Outcome::Finished => {
                let (tokens, ended) = self.produce(flight.emits, flight.progress.take_results());
                events.push(Event::Finished { job, ops, lane, started, at, tokens, ended });
            }
            Outcome::Failed(ExecutorError::DeviceLost(device)) => self.losses.push(device),
            Outcome::Failed(ExecutorError::LanePoisoned) => self.losses.push(lane.device),
            Outcome::Failed(error) if reached => {
                events.push(failure(job, lane, at, next_op, error.to_string()));
                self.mute(job);
            }
            // The lane has ended, and its device with it.
            Outcome::Cancelled => self.losses.push(lane.device),
            Outcome::Recalled | Outcome::Failed(_) => {
                let (done, end, fate) = (ops.start..next_op, ops.end, flight.fate);
                if stopped && fate == Fate::Keep {
                    self.keep_place(job, lane.device, &flight.progress);
                }
                events.push(Event::Recalled { job, lane, done, end, fate, started, at });
            }
        }
    }

    /// Remembers where a job was stopped, until it goes on or is no more.
    fn keep_place(&mut self, job: JobId, device: DeviceId, progress: &Progress) {
        let (op, part) = progress.place();
        self.stopped.insert(job, Stopped { device, op, part });
    }

    /// An embedding counts as a token, the only one, so that batching and the graph need not know.
    fn produce(&mut self, emits: Vec<RequestId>, results: Results) -> (Vec<(RequestId, u32)>, Vec<Ended>) {
        let sequences = &mut self.sequences;
        match results {
            Results::Tokens(tokens) => {
                let tokens: Vec<_> = emits.into_iter().zip(tokens).collect();
                let ended = tokens.iter().filter_map(|&(request, token)| sequences.produce(request, token)).collect();
                (tokens, ended)
            }
            Results::Embeddings(embeddings) => {
                let tokens = emits.iter().map(|&request| (request, 0)).collect();
                let vectors = emits.into_iter().zip(embeddings);
                let ended = vectors.filter_map(|(request, vector)| sequences.embed(request, vector)).collect();
                (tokens, ended)
            }
        }
    }

    pub(super) fn give_back(&mut self, grant: &Grant, used: bool) {
        if let Some(device) = self.devices.get_mut(grant.lane.device.index()) {
            grant.claims.iter().for_each(|claim| device.claims.give_back(claim));
            device.claims.give_back_blocks(&grant.blocks, used.then_some(grant.tenant));
        }
    }

    /// A job has failed: what else of it is on lanes is taken back and not reported.
    fn mute(&mut self, job: JobId) {
        for flight in self.flights.values_mut().filter(|flight| flight.job == job) {
            flight.muted = true;
            let lane = flight.grant.lane;
            let lane =
                self.devices.get(lane.device.index()).and_then(|device| device.lanes.get(usize::from(lane.index)));
            if let Some(lane) = lane {
                lane.recall(&flight.ticket);
            }
        }
    }
}

fn failure(job: JobId, lane: LaneId, at: Nanos, op: u32, message: String) -> Event {
    Event::Failed { job, lane, at, failure: Failure::Kernel { op, message } }
}
