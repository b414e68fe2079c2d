//! A loaded cluster of a million operators.

use std::sync::Arc;

use slicescheduler_gmg::cluster::{Cluster, DeviceSpec};
use slicescheduler_gmg::delta::NewRequest;
use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, ModelId, TenantId};
use slicescheduler_gmg::job::{JobSpec, KvGrowth, Row};
use slicescheduler_gmg::plan::{Event, Fate, Rank};
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::units::{Bandwidth, Nanos};
use slicescheduler_gmg::{Container, Gmg, Intent, Model, Tenant, templates};

use crate::Outcome;

const DEVICES_PER_NODE: u32 = 8;
const ROWS: u64 = 16;
const BLOCKS: u32 = 32;

/// A loaded cluster. Job `n` is for lane `n % devices`; the first of each lane is dispatched.
pub(crate) struct Loaded {
    pub(crate) gmg: Gmg,
    pub(crate) template: Arc<OpGraph>,
    pub(crate) specs: Vec<Arc<JobSpec>>,
    pub(crate) jobs: Vec<JobId>,
    pub(crate) devices: u32,
}

impl Loaded {
    /// `operators` live operators, rounded up to whole iterations.
    pub(crate) fn new(nodes: u32, operators: u64) -> Outcome<Self> {
        let mut cluster = Cluster::builder().network(Bandwidth::gb_per_s(50), Nanos::us(8));
        for node in 0..nodes {
            cluster = cluster.node(format!("n{node}"), |node| node.devices(DEVICES_PER_NODE, DeviceSpec::h100_sxm()));
        }
        let mut gmg = Gmg::new(cluster.build()?);
        let devices = nodes * DEVICES_PER_NODE;
        let template = Arc::new(templates::dense(&templates::DenseSpec::llama3_8b())?);
        let tenant = gmg.add_tenant(Tenant::latency_sensitive("chat"))?;
        let model =
            gmg.add_model(tenant, Model::new("llama3-8b", template.clone()), Container::replicas(0..devices))?;
        let mut this = Self { gmg, template, specs: Vec::new(), jobs: Vec::new(), devices };
        for job in 0..operators.div_ceil(u64::from(this.template.op_count())) {
            let spec = Arc::new(this.batch(tenant, model, job < u64::from(devices))?);
            let effect = this.gmg.apply(Intent::SubmitJob(spec.clone()))?.effect;
            this.jobs.extend(effect.job());
            this.specs.push(spec);
        }
        for job in 0..this.jobs.len().min(devices as usize) {
            let dispatch = this.dispatch(job);
            this.gmg.apply(dispatch)?;
        }
        Ok(this)
    }

    /// A decoding iteration of requests of its own. One that is dispatched right away grows their
    /// sequences to their full length.
    pub(crate) fn batch(&mut self, tenant: TenantId, model: ModelId, grows: bool) -> Outcome<JobSpec> {
        let mut spec = JobSpec::of(model);
        let mut binding = Binding::new();
        for _ in 0..ROWS {
            let new = NewRequest { tenant, arrival: Nanos(0), prompt: 500, max_output: 500 };
            let request = self.gmg.submit_request(new)?;
            spec.rows.push(Row { request, position: 500, tokens: 1, emits: true });
            binding.add_chunk(1, 500, true);
            if grows {
                spec.growth.push(KvGrowth { request, blocks: BLOCKS });
            }
        }
        Ok(spec.bind(binding))
    }

    pub(crate) fn lane(&self, job: usize) -> LaneId {
        LaneId::new(DeviceId(job as u32 % self.devices), 0)
    }

    pub(crate) fn whole(&self) -> std::ops::Range<u32> {
        0..self.template.op_count()
    }

    pub(crate) fn dispatch(&self, job: usize) -> Intent {
        Intent::Dispatch { job: self.jobs[job], ops: self.whole(), lane: self.lane(job), rank: Rank::OwnerLatency }
    }

    pub(crate) fn recalled(&self, job: usize) -> Event {
        Event::Recalled {
            job: self.jobs[job],
            lane: self.lane(job),
            done: 0..0,
            end: self.template.op_count(),
            fate: Fate::Keep,
            started: Nanos(1),
            at: Nanos(2),
        }
    }

    pub(crate) fn finished(&self, job: usize, ops: std::ops::Range<u32>) -> Event {
        let (job, lane) = (self.jobs[job], self.lane(job));
        Event::Finished { job, ops, lane, started: Nanos(1), at: Nanos(2), tokens: Vec::new(), ended: Vec::new() }
    }

    /// An operator that finished at a time of its own.
    pub(crate) fn finished_alone(&self, job: usize, op: u32) -> Event {
        let (started, at) = (Nanos(u64::from(op)), Nanos(u64::from(op) + 1));
        let (job, lane) = (self.jobs[job], self.lane(job));
        Event::Finished { job, ops: op..op + 1, lane, started, at, tokens: Vec::new(), ended: Vec::new() }
    }

    /// 100 deltas on 25 lanes far from each other: an iteration finishes and goes, and the next one
    /// of the same sequences comes and is dispatched.
    pub(crate) fn pass(&mut self, number: usize) -> Outcome<()> {
        for nth in 0..25 {
            let job = (number * 25 + nth) * 401 % self.devices as usize;
            self.gmg.apply(self.finished(job, self.whole()))?;
            self.succeed(job)?;
        }
        Ok(())
    }

    /// The finished iteration goes, the next one of the same sequences comes and is dispatched.
    pub(crate) fn succeed(&mut self, job: usize) -> Outcome<()> {
        self.gmg.apply(Intent::Retire { job: self.jobs[job] })?;
        let mut next = JobSpec::clone(&self.specs[job]);
        next.growth.clear();
        let effect = self.gmg.apply(Intent::SubmitJob(Arc::new(next)))?.effect;
        self.jobs[job] = effect.job().ok_or("a job was submitted")?;
        self.gmg.apply(self.dispatch(job))?;
        Ok(())
    }
}
