//! The queue of one tenant, and its replicas.

use std::collections::VecDeque;

use slicescheduler_gmg::id::{DeviceId, JobKey, ModelId, ReplicaId, RequestId, TenantId};
use slicescheduler_gmg::job::JobSpec;
use slicescheduler_gmg::memory::KvPool;
use slicescheduler_gmg::plan::{BatchLimits, Ended};
use slicescheduler_gmg::units::Nanos;

use crate::batching::{
    BatchOptions, Completed, Iteration, PrefixCache, Prefixes, ReplicaForecast, ReplicaState, Sequence, plan_iteration,
};

/// Continuous batching for one tenant: one queue of waiting requests in the order of arrival, from
/// which every replica takes what its next iteration has room for.
#[derive(Clone, Debug)]
pub struct Batcher {
    tenant: TenantId,
    options: BatchOptions,
    waiting: VecDeque<Sequence>,
    waiting_tokens: u64,
    replicas: Vec<ReplicaState>,
    /// By device: the first replica there.
    by_device: Vec<Option<u32>>,
    cached_tokens: u64,
    scratch: Iteration,
}

impl Batcher {
    /// A tenant without replicas or requests.
    pub fn new(tenant: TenantId, options: BatchOptions) -> Self {
        Self {
            tenant,
            options,
            waiting: VecDeque::new(),
            waiting_tokens: 0,
            replicas: Vec::new(),
            by_device: Vec::new(),
            cached_tokens: 0,
            scratch: Iteration::default(),
        }
    }

    /// The tenant.
    pub fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// How it batches.
    pub fn options(&self) -> &BatchOptions {
        &self.options
    }

    /// Adds a replica of `model` on `device`.
    pub fn add_replica(&mut self, model: ModelId, device: DeviceId) -> ReplicaId {
        let index = self.replicas.len() as u32;
        self.replicas.push(ReplicaState::new(model, device, None));
        self.note_place(device, index);
        ReplicaId { tenant: self.tenant, index }
    }

    /// Adds a replica of `model` on `device` whose KV blocks are those of `cache`: sequences with
    /// equal beginnings share them.
    pub fn add_cached_replica(&mut self, model: ModelId, device: DeviceId, cache: PrefixCache) -> ReplicaId {
        let index = self.replicas.len() as u32;
        self.replicas.push(ReplicaState::new(model, device, Some(cache)));
        self.note_place(device, index);
        ReplicaId { tenant: self.tenant, index }
    }

    /// Its replicas; [`ReplicaId::index`] is an index into them.
    pub fn replicas(&self) -> &[ReplicaState] {
        &self.replicas
    }

    pub(super) fn replica_mut(&mut self, index: u32) -> Option<&mut ReplicaState> {
        self.replicas.get_mut(index as usize)
    }

    /// The replica on `device`.
    pub fn replica_on(&self, device: DeviceId) -> Option<ReplicaId> {
        let index = self.by_device.get(device.index()).copied().flatten()?;
        Some(ReplicaId { tenant: self.tenant, index })
    }

    fn note_place(&mut self, device: DeviceId, index: u32) {
        if self.by_device.len() <= device.index() {
            self.by_device.resize(device.index() + 1, None);
        }
        self.by_device[device.index()].get_or_insert(index);
    }

    /// Requests that no replica has taken, oldest first.
    pub fn waiting(&self) -> &VecDeque<Sequence> {
        &self.waiting
    }

    /// Tokens that have to be computed before every waiting request has its next output token.
    pub fn waiting_tokens(&self) -> u64 {
        self.waiting_tokens
    }

    /// Tokens of prompts that were not computed, because a prefix cache had them when their request was first admitted.
    pub fn cached_tokens(&self) -> u64 {
        self.cached_tokens
    }

    /// True if a request more may be entered under [`BatchOptions::window`].
    pub fn has_room(&self) -> bool {
        (self.waiting.len() as u64) < u64::from(self.options.window)
    }

    /// Takes in a request.
    pub fn enter(&mut self, sequence: Sequence) {
        self.waiting_tokens += u64::from(sequence.remaining());
        self.waiting.push_back(sequence);
    }

    /// Takes out a waiting request, for instance because it is rejected.
    pub fn withdraw(&mut self, request: RequestId) -> Option<Sequence> {
        let index = self.waiting.iter().position(|sequence| sequence.request == request)?;
        let sequence = self.waiting.remove(index)?;
        self.waiting_tokens -= u64::from(sequence.remaining());
        Some(sequence)
    }

    /// What the next iteration of a replica would be, into `iteration`; empty if the replica does
    /// not exist or has one more in flight than [`BatchOptions::ahead`]. Changes nothing.
    pub fn peek(&self, replica: u32, limits: BatchLimits, iteration: &mut Iteration) {
        self.peek_in(replica, None, limits, iteration);
    }

    /// As [`peek`](Self::peek), for a replica whose blocks are those of `pool`, which somebody else keeps.
    /// With [`BatchOptions::prefix_caching`] sequences find blocks there.
    pub fn peek_in(&self, replica: u32, pool: Option<&KvPool>, limits: BatchLimits, iteration: &mut Iteration) {
        static NOBODY: VecDeque<Sequence> = VecDeque::new();
        match self.replicas.get(replica as usize).filter(|replica| replica.in_flight <= self.options.ahead) {
            Some(replica) => {
                let (running, limits) = (&replica.running, self.capped(limits));
                let prefixes = self.prefixes(replica, pool);
                plan_iteration(running, &self.waiting, prefixes, &self.options, limits, iteration);
            }
            None => plan_iteration(&[], &NOBODY, None, &self.options, limits, iteration),
        }
    }

    /// True if its sequences share blocks of pools that somebody else keeps. Not with iterations formed ahead: what
    /// one of them computes would be published by its rows alone, and a sequence that has lost its blocks since and
    /// got others has the same rows.
    pub fn shares_blocks(&self) -> bool {
        self.options.prefix_caching && !self.options.whole_prompts && self.options.ahead == 0
    }

    /// What sequences of a replica find.
    fn prefixes<'p>(&self, replica: &'p ReplicaState, pool: Option<&'p KvPool>) -> Option<Prefixes<'p>> {
        let own = replica.cache.as_ref().map(PrefixCache::prefixes);
        own.or_else(|| pool.filter(|_| self.shares_blocks()).map(|pool| Prefixes::of(pool, self.tenant)))
    }

    pub(super) fn capped(&self, limits: BatchLimits) -> BatchLimits {
        BatchLimits {
            tokens: limits.tokens.min(self.options.token_budget),
            sequences: limits.sequences.min(self.options.max_sequences),
            ..limits
        }
    }

    /// Forms the next iteration of a replica. Requests that lose their blocks for it are appended
    /// to `preempted` with their device; the caller frees their KV sequences before the job is
    /// accepted. [`None`] if there is nothing to compute.
    pub fn form(
        &mut self,
        replica: u32,
        limits: BatchLimits,
        preempted: &mut Vec<(RequestId, DeviceId)>,
    ) -> Option<JobSpec> {
        self.form_in(replica, None, limits, preempted)
    }

    /// As [`form`](Self::form), for a replica whose blocks are those of `pool`, which somebody else keeps. The
    /// caller frees what preempted requests held, then lets each of the [admitted](Self::admitted) share what
    /// it found, before the job is accepted; and publishes the full blocks of a job's rows when it is done, before
    /// it [completes](Self::complete).
    pub fn form_in(
        &mut self,
        replica: u32,
        pool: Option<&KvPool>,
        limits: BatchLimits,
        preempted: &mut Vec<(RequestId, DeviceId)>,
    ) -> Option<JobSpec> {
        let mut iteration = std::mem::take(&mut self.scratch);
        self.peek_in(replica, pool, limits, &mut iteration);
        let formed = self.commit(replica, &iteration, preempted);
        self.scratch = iteration;
        formed
    }

    fn commit(&mut self, index: u32, plan: &Iteration, preempted: &mut Vec<(RequestId, DeviceId)>) -> Option<JobSpec> {
        let id = ReplicaId { tenant: self.tenant, index };
        let replica = self.replicas.get_mut(index as usize)?;
        let admitted = self.waiting.iter().skip(plan.passed_over as usize).take(plan.admitted as usize);
        self.waiting_tokens -= admitted.map(|sequence| u64::from(sequence.remaining())).sum::<u64>();
        let block_tokens = self.options.block_tokens;
        let formed = replica.commit(id, plan, &mut self.waiting, block_tokens, |lost| {
            if lost.held > 0 {
                preempted.push((lost.request, lost.device));
            }
        });
        let new = replica.running.iter().rev().take(if formed.is_some() { plan.admitted as usize } else { 0 });
        let new = new.filter(|sequence| sequence.preemptions == 0);
        self.cached_tokens += new.map(|sequence| u64::from(sequence.cached)).sum::<u64>();
        let preempted = self.waiting.iter().take(plan.preempted as usize);
        self.waiting_tokens += preempted.map(|sequence| u64::from(sequence.remaining())).sum::<u64>();
        formed
    }

    fn count_waiting(&mut self) {
        self.waiting_tokens = self.waiting.iter().map(|sequence| u64::from(sequence.remaining())).sum();
    }

    /// An iteration ended at `at`: its rows are computed, and `ended` requests got their last
    /// token. They are appended to `completed`.
    pub fn complete(&mut self, spec: &JobSpec, ended: &[Ended], at: Nanos, completed: &mut Vec<Completed>) {
        let tenant = self.tenant;
        let Some(replica) = self.replicas.get_mut(spec.key.replica as usize) else { return };
        self.waiting_tokens += replica.absorb(spec, &mut self.waiting, at, self.options.block_tokens);
        if ended.is_empty() {
            return;
        }
        let is_ended = |request| ended.iter().any(|ended| ended.request == request);
        let before = completed.len();
        replica.end(|sequence| is_ended(sequence.request), |sequence, _| completed.push(sequence.completed(tenant)));
        // A sequence that was preempted while its last token was in flight ends where it waits.
        if completed.len() - before < ended.len() {
            self.waiting.retain(|sequence| {
                let ends = is_ended(sequence.request);
                if ends {
                    completed.push(sequence.completed(tenant));
                }
                !ends
            });
            self.count_waiting();
        }
    }

    /// The sequences that the latest iteration of a replica admitted, with the blocks that each found, in the order
    /// in which they share them. To be asked right after [`form`](Self::form).
    pub fn admitted(&self, replica: u32) -> impl Iterator<Item = (&Sequence, u32)> {
        let running = self.replicas.get(replica as usize).map_or(&[][..], |replica| &replica.running);
        let first = running.len().saturating_sub(self.scratch.admitted as usize);
        running[first..].iter().zip(self.scratch.found.iter().copied())
    }

    /// The latest plan of [`form`](Self::form).
    pub fn latest_plan(&self) -> &Iteration {
        &self.scratch
    }

    /// No iteration in flight will be completed; their sequences are as before they were formed,
    /// except for the blocks they got.
    pub fn abandon(&mut self, replica: u32) {
        if let Some(replica) = self.replicas.get_mut(replica as usize) {
            replica.ground();
            self.waiting.iter_mut().for_each(|sequence| sequence.pending = 0);
        }
    }

    /// As [`abandon`](Self::abandon), if `key` is the latest iteration in flight.
    pub fn abandon_iteration(&mut self, key: JobKey) {
        let in_flight = |replica: &ReplicaState| replica.is_in_flight() && replica.iteration == key.iteration + 1;
        if self.tenant.0 == key.tenant && self.replicas.get(key.replica as usize).is_some_and(in_flight) {
            self.abandon(key.replica);
        }
    }

    /// The iteration that was formed last could not be placed: its blocks were not reserved.
    pub fn withdraw_iteration(&mut self, spec: &JobSpec) {
        if let Some(replica) = self.replicas.get_mut(spec.key.replica as usize) {
            replica.withdraw(spec);
        }
    }

    /// Preempts sequences of a replica, the youngest first, until `blocks` blocks are free. Nothing
    /// happens while an iteration is in flight. Returns the blocks that became free.
    pub fn evict(&mut self, replica: u32, blocks: u32, preempted: &mut Vec<(RequestId, DeviceId)>) -> u32 {
        self.evict_in(replica, None, blocks, preempted)
    }

    /// As [`evict`](Self::evict), for a replica whose blocks are those of `pool`, which somebody else keeps: of
    /// blocks that several sequences share, the last one to go frees them.
    pub fn evict_in(
        &mut self,
        replica: u32,
        pool: Option<&KvPool>,
        blocks: u32,
        preempted: &mut Vec<(RequestId, DeviceId)>,
    ) -> u32 {
        let pool = pool.filter(|_| self.shares_blocks()).map(|pool| Prefixes::of(pool, self.tenant));
        let Some(state) = self.replicas.get_mut(replica as usize).filter(|state| !state.is_in_flight()) else {
            return 0;
        };
        let (mut freed, mut gone) = (0, 0);
        while freed < blocks {
            let Some(lost) = state.preempt_youngest(&mut self.waiting) else { break };
            if lost.held > 0 {
                preempted.push((lost.request, lost.device));
            }
            freed += match pool {
                Some(pool) => pool.released_by(lost.request, self.waiting.iter().skip(1).take(gone)),
                None => lost.freed,
            };
            gone += 1;
            self.waiting_tokens += self.waiting.front().map_or(0, |sequence| u64::from(sequence.remaining()));
        }
        freed
    }

    /// True if sequences hold blocks on a replica.
    pub fn holds_sequences(&self, replica: u32) -> bool {
        self.replicas.get(replica as usize).is_some_and(|replica| !replica.running.is_empty())
    }

    /// Takes `requests` off a replica; they are not computed any further.
    pub fn drop_running(&mut self, replica: u32, requests: &[RequestId]) {
        if let Some(replica) = self.replicas.get_mut(replica as usize) {
            replica.end(|sequence| requests.contains(&sequence.request), |_, _| {});
        }
    }

    /// Every sequence of a replica lost its blocks, for instance with its device.
    pub fn lose(&mut self, replica: u32) {
        self.abandon(replica);
        let mut lost = Vec::new();
        self.evict(replica, u32::MAX, &mut lost);
    }

    /// A forecast of what a replica submits, iteration after iteration, on its own: it takes the
    /// tenant's waiting requests, the oldest `depth` of them, as if no other replica did.
    pub fn forecast(&self, replica: u32, limits: BatchLimits, depth: usize) -> Option<ReplicaForecast> {
        self.forecast_in(replica, None, limits, depth)
    }

    /// As [`forecast`](Self::forecast), for a replica whose blocks are those of `pool`, which somebody else keeps: as
    /// if nobody else used it. O(blocks) more where sequences share them.
    pub fn forecast_in(
        &self,
        replica: u32,
        pool: Option<&KvPool>,
        limits: BatchLimits,
        depth: usize,
    ) -> Option<ReplicaForecast> {
        let mut state = self.replicas.get(replica as usize)?.clone();
        if state.cache.is_none() {
            state.cache = self.prefixes(&state, pool).map(PrefixCache::copied);
        }
        Some(ReplicaForecast::new(
            ReplicaId { tenant: self.tenant, index: replica },
            state,
            self.waiting.iter().take(depth).cloned().collect(),
            self.options,
            self.capped(limits),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    const LIMITS: BatchLimits =
        BatchLimits { tokens: 64, sequences: 8, new_blocks: 1000, keep_free: 0, not_due_before: Nanos::ZERO };

    fn batcher(replicas: u32) -> Batcher {
        let options = BatchOptions { block_tokens: 4, growth_reserve: 0, ..BatchOptions::default() };
        let mut batcher = Batcher::new(TenantId(0), options);
        for device in 0..replicas {
            batcher.add_replica(ModelId(0), DeviceId(device));
        }
        batcher
    }

    fn request(id: u64, prompt: u32) -> Sequence {
        Sequence::new(RequestId(id), Nanos(id), None, prompt, 1000)
    }

    #[test]
    fn a_replica_in_flight_offers_nothing() {
        let mut batcher = batcher(1);
        batcher.enter(request(0, 100));
        let spec = batcher.form(0, LIMITS, &mut Vec::new()).unwrap();
        assert!(batcher.form(0, LIMITS, &mut Vec::new()).is_none());
        batcher.complete(&spec, &[], Nanos(5), &mut Vec::new());
        let next = batcher.form(0, LIMITS, &mut Vec::new()).unwrap();
        assert_eq!((next.rows[0].position, next.rows[0].tokens, next.rows[0].emits), (64, 36, true));
        assert_eq!(next.key.iteration, spec.key.iteration + 1);
    }

    #[test]
    fn two_replicas_never_take_the_same_request() {
        let mut batcher = batcher(2);
        (0..4).for_each(|id| batcher.enter(request(id, 32)));
        let first = batcher.form(0, LIMITS, &mut Vec::new()).unwrap();
        let second = batcher.form(1, LIMITS, &mut Vec::new()).unwrap();
        let ids = |spec: &JobSpec| spec.rows.iter().map(|row| row.request.0).collect::<Vec<_>>();
        assert_eq!((ids(&first), ids(&second)), (vec![0, 1], vec![2, 3]));
    }

    #[test]
    fn an_evicted_sequence_keeps_its_answer_and_goes_first_again() {
        let mut batcher = batcher(1);
        batcher.enter(request(0, 10));
        batcher.enter(request(1, 10));
        let spec = batcher.form(0, LIMITS, &mut Vec::new()).unwrap();
        let mut preempted = Vec::new();
        assert_eq!(batcher.evict(0, 1, &mut preempted), 0, "not while its iteration is in flight");
        batcher.complete(&spec, &[], Nanos(5), &mut Vec::new());
        assert_eq!(batcher.evict(0, 1, &mut preempted), 3);
        assert_eq!(preempted, [(RequestId(1), DeviceId(0))]);
        let front = batcher.waiting().front().unwrap();
        assert_eq!((front.request, front.produced, front.remaining()), (RequestId(1), 1, 11));
    }

    proptest! {
        /// Whatever is formed, completed, evicted and lost: every request ends with exactly the
        /// tokens it wants, and blocks always hold what was computed.
        #[test]
        fn every_request_ends_exactly_once(
            wants in prop::collection::vec((1u32..50, 1u32..20), 1..12),
            steps in prop::collection::vec((0u32..2, 0u8..8, 0u32..12), 0..120),
        ) {
            let mut batcher = batcher(2);
            for (id, &(prompt, _)) in wants.iter().enumerate() {
                batcher.enter(request(id as u64, prompt));
            }
            let mut flying: HashMap<u32, JobSpec> = HashMap::new();
            let mut completed = Vec::new();
            let drain = (0..4000).map(|step| (step % 2, 0u8, 1000u32));
            for (replica, what, blocks) in steps.into_iter().chain(drain) {
                match what {
                    6 if !flying.contains_key(&replica) => { batcher.evict(replica, blocks, &mut Vec::new()); }
                    7 => { flying.remove(&replica); batcher.lose(replica); }
                    _ => {
                        if let Some(spec) = flying.remove(&replica) {
                            let ended: Vec<_> = spec.rows.iter().filter(|row| row.emits).filter_map(|row| {
                                let sequence = batcher.replicas()[replica as usize].running().iter().find(|s| s.request == row.request)?;
                                let produced = sequence.produced + 1;
                                (produced == wants[row.request.0 as usize].1).then_some(Ended { request: row.request, produced })
                            }).collect();
                            batcher.complete(&spec, &ended, Nanos(1), &mut completed);
                        }
                        let limits = BatchLimits { new_blocks: blocks, ..LIMITS };
                        if let Some(spec) = batcher.form(replica, limits, &mut Vec::new()) {
                            flying.insert(replica, spec);
                        }
                    }
                }
                for sequence in batcher.replicas().iter().flat_map(ReplicaState::running) {
                    prop_assert!(sequence.blocks * 4 >= sequence.computed);
                }
                let queued: u64 = batcher.waiting().iter().map(|s| u64::from(s.remaining())).sum();
                prop_assert_eq!(batcher.waiting_tokens(), queued);
            }
            let mut ended: Vec<_> = completed.iter().map(|done| (done.request.0, done.produced)).collect();
            ended.sort_unstable();
            let expected: Vec<_> = wants.iter().enumerate().map(|(id, &(_, output))| (id as u64, output)).collect();
            prop_assert_eq!(ended, expected);
        }
    }
}
