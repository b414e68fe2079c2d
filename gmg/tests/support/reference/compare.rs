//! What a graph says against what the rules say.

use std::collections::BTreeMap;

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::{DeviceId, JobId, LinkId, OpIndex, RequestId, TenantId};
use slicescheduler_gmg::job::{OpState, StoredState};
use slicescheduler_gmg::memory::{ByteKind, Residency, WeightState};
use slicescheduler_gmg::units::Bytes;

use super::{Device, Job, Op, Reference};

impl Reference {
    /// Panics where `view` says something else than the rules.
    pub fn assert_equals(&self, view: &impl GmgView) {
        assert_eq!(view.version().0, self.version);
        let mut ids = Vec::new();
        view.jobs(&mut ids);
        assert_eq!(ids, self.jobs.keys().copied().collect::<Vec<_>>());
        for (&id, job) in &self.jobs {
            self.assert_job(id, job, view);
        }
        for id in (0..self.next_request).map(RequestId) {
            let found = view.request(id).map(|one| (one.state, one.device, one.produced, one.slo));
            let expected = self.requests.get(&id).map(|one| (one.state, one.device, one.produced, one.slo));
            assert_eq!(found, expected, "{id}");
        }
        for (&id, request) in self.requests.iter().filter(|(_, request)| request.device.is_some()) {
            let home = request.device.and_then(|device| view.memory(device)).unwrap();
            assert_eq!(home.kv().parts(id), request.parts, "{id}");
        }
        for (&lane, expected) in &self.lanes {
            let queue = view.lane(lane).unwrap().queue();
            let ops = queue.iter().flat_map(|entry| entry.ops.clone().map(|op| (entry.job, op, entry.rank)));
            assert_eq!(ops.collect::<Vec<_>>(), *expected, "{lane}");
            assert!(queue.iter().all(|entry| !entry.ops.is_empty()), "{lane}");
        }
        for (link, &failed) in (0..).map(LinkId).zip(&self.failed_links) {
            assert_eq!(view.cluster().is_failed(link), failed, "{link}");
        }
        for (device, expected) in (0..).map(DeviceId).zip(&self.devices) {
            self.assert_device(device, expected, view);
        }
    }

    fn assert_job(&self, id: JobId, expected: &Job, view: &impl GmgView) {
        let job = view.job(id).unwrap();
        let mut next = 0;
        for segment in job.segments.iter() {
            assert!(segment.first == next && segment.end > segment.first, "{id}: {:?}", job.segments);
            next = segment.end;
        }
        assert_eq!(next as usize, expected.ops.len(), "{id}");
        for (index, &op) in expected.ops.iter().enumerate() {
            let index = OpIndex(index as u32);
            let segment = job.segments.at(index.0).unwrap();
            let found = (segment.state, segment.lane.filter(|_| segment.state.is_on_lane()));
            let done = |op: OpIndex| matches!(expected.ops[op.index()], Op::Done(_));
            let ready = || expected.waits.is_empty() && job.template.predecessors(index).all(done);
            let (state, shown) = match op {
                Op::Pending => (StoredState::Pending, if ready() { OpState::Ready } else { OpState::Blocked }),
                Op::Dispatched(_) => (StoredState::Dispatched, OpState::Dispatched),
                Op::Running(..) => (StoredState::Running, OpState::Running),
                Op::Done(_) => (StoredState::Done, OpState::Done),
                Op::Failed => (StoredState::Failed, OpState::Failed),
                Op::Cancelled => (StoredState::Cancelled, OpState::Cancelled),
                Op::Lost => (StoredState::Lost, OpState::Lost),
            };
            assert_eq!(found, (state, op.lane()), "{index} of {id}");
            assert_eq!(job.op_state(index), Some(shown), "{index} of {id}");
            if let Op::Running(_, start) | Op::Done(start) = op {
                assert_eq!(segment.start.0, start, "{index} of {id}");
            }
        }
        let arena = job.arena.map(|(on, region)| (on, region.offset.get(), region.bytes.get()));
        assert_eq!(arena, expected.arena, "{id}");
        assert_eq!(job.kv_on, expected.batch_on, "{id}");
        assert_eq!(job.waiting_for as usize, expected.waits.len(), "{id}");
        let gang = expected.gang.map(|gang| (&self.gangs[gang].jobs[..], self.gangs[gang].broken));
        assert_eq!(job.gang.as_ref().map(|gang| (gang.jobs(), gang.is_broken())), gang, "{id}");
    }

    fn assert_device(&self, id: DeviceId, expected: &Device, view: &impl GmgView) {
        let memory = view.memory(id).unwrap();
        assert_eq!(view.is_lost(id), expected.lost, "{id}");
        assert_eq!(view.owner(id), expected.owner, "{id}");
        assert_eq!(*memory.layout(), expected.layout, "{id}");
        let weights = memory.models().map(|(model, state)| {
            let region = memory.weight_region(model).unwrap();
            (model, (region.offset.get(), region.bytes.get(), state))
        });
        assert_eq!(weights.collect::<BTreeMap<_, _>>(), expected.weights, "{id}");

        let arenas = self.jobs.values().filter_map(|job| job.arena).filter(|&(on, _, _)| on == id);
        let arenas: Vec<_> =
            arenas.map(|(_, offset, length)| (offset, length)).filter(|&(_, length)| length > 0).collect();
        for (&model, &(_, length, state)) in expected.weights.iter().filter(|(_, (_, length, _))| *length > 0) {
            let loaded = Bytes(expected.loaded.get(&model).copied().unwrap_or(0));
            let residency = match state {
                WeightState::Loading => Residency::Loading { loaded, of: Bytes(length) },
                WeightState::Resident => Residency::Resident,
                WeightState::Evicting => Residency::Evicting,
            };
            assert_eq!(memory.residency(model, &(0..1)), residency, "{id}, {model}");
        }
        let parts = memory.weight_parts().iter().map(|part| {
            let region = (part.region.offset.get(), part.region.bytes.get());
            ((part.model, part.ops.start), (part.ops.end, region, part.state, part.loaded.get()))
        });
        assert_eq!(parts.collect::<BTreeMap<_, _>>(), expected.parts, "{id}");
        let whole = expected.weights.values().map(|&(offset, length, _)| (offset, length));
        let weights: Vec<_> = whole.chain(expected.parts.values().map(|&(_, place, _, _)| place)).collect();
        let staged: Vec<_> = expected.staging.values().copied().collect();
        for (&transfer, &(offset, length)) in &expected.staging {
            let region = memory.staging_region(transfer).map(|region| (region.offset.get(), region.bytes.get()));
            assert_eq!(region, Some((offset, length)), "{id}, {transfer}");
        }
        let mut regions: Vec<_> =
            arenas.iter().chain(&weights).chain(&staged).copied().filter(|&(_, length)| length > 0).collect();
        regions.sort_unstable();
        assert!(regions.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{id}: {regions:?}");
        let kv_from = expected.layout.kv_offset().get();
        assert!(regions.iter().all(|&(offset, length)| offset + length <= kv_from), "{id}: {regions:?}");

        assert_eq!(memory.kv().sequences(), expected.kv.tables.keys().copied().collect::<Vec<_>>(), "{id}");
        let (mut blocks, mut numbers) = (BTreeMap::new(), BTreeMap::new());
        for (&request, (_, held)) in &expected.kv.tables {
            let table = memory.kv().table(request);
            assert_eq!(table.len(), held.len(), "{id}, {request}");
            for (&block, &known) in table.iter().zip(held) {
                assert!(block < memory.kv().total(), "{id}, {request}");
                assert_eq!(*blocks.entry(known).or_insert(block), block, "{id}, {request}: {table:?} is {held:?}");
                assert_eq!(*numbers.entry(block).or_insert(known), known, "{id}, {request}: {table:?} is {held:?}");
            }
        }
        assert_eq!(memory.kv().free_blocks() as usize, expected.kv.queue.len(), "{id}");
        for tenant in (0..self.tenants.len() as u32).map(TenantId) {
            assert_eq!(memory.kv().cached_by(tenant), expected.kv.cached_by(tenant), "{id}, {tenant}");
            assert_eq!(memory.kv().displaced(tenant), expected.kv.displaced(tenant), "{id}, {tenant}");
        }

        let sum = |regions: &[(u64, u64)]| regions.iter().map(|&(_, length)| length).sum::<u64>();
        let kv = expected.layout.kv_block.get() * blocks.len() as u64;
        let by_kind = [
            (ByteKind::Weights, sum(&weights)),
            (ByteKind::Kv, kv),
            (ByteKind::Activations, sum(&arenas)),
            (ByteKind::Staging, sum(&staged)),
            (ByteKind::External, expected.external),
        ];
        for (kind, bytes) in by_kind {
            assert_eq!(memory.ledger().of(kind).get(), bytes, "{id}, {}", kind.name());
            assert!(memory.ledger().peak_of(kind).get() >= bytes, "{id}, {}", kind.name());
        }
        let total = by_kind.iter().fold(0, |total: u64, &(_, bytes)| total.saturating_add(bytes));
        assert_eq!(memory.ledger().total().get(), total, "{id}");
        assert_eq!(memory.weight_slots().used().get(), sum(&weights), "{id}");
        assert_eq!(memory.staging().used().get(), sum(&staged), "{id}");
        assert_eq!(memory.arena().used().get(), sum(&arenas), "{id}");
    }
}
