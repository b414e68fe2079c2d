//! The growth of KV caches in a timeline: bounds that completions have taught, on the sequences of a graph.

#![allow(clippy::unwrap_used, clippy::panic)]

use slicescheduler_gmg::cluster::{Cluster, DeviceSpec};
use slicescheduler_gmg::delta::{Delta, Effect, Intent, NewRequest};
use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, ModelId, RequestId, TenantId};
use slicescheduler_gmg::job::{JobSpec, KvGrowth, Row};
use slicescheduler_gmg::memory::DeviceLayout;
use slicescheduler_gmg::plan::{Action, Ended, Event, Plan, Rank, WhatIf};
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::templates::{DenseSpec, dense};
use slicescheduler_gmg::units::{Bytes, Nanos};
use slicescheduler_gmg::{Container, Gmg, GmgView, Model, Tenant};
use slicescheduler_simulator::{Horizon, Roofline, Timeline};

const PROMPT: u32 = 512;
const DEVICE: DeviceId = DeviceId(0);
const BLOCK: Bytes = Bytes::mib(2);
const PACE: Nanos = Nanos::ms(1);

struct Server {
    gmg: Gmg,
    timeline: Timeline,
    chat: TenantId,
    model: ModelId,
    now: Nanos,
}

impl Server {
    fn new() -> Self {
        let cluster = Cluster::builder().node("a", |node| node.devices(1, DeviceSpec::h100_sxm())).build().unwrap();
        let mut gmg = Gmg::new(cluster);
        let layout = DeviceLayout { kv_block: BLOCK, kv_block_tokens: 16, ..DeviceLayout::of(Bytes::gb(80)) };
        gmg.lay_out(DEVICE, layout).unwrap();
        let chat = gmg.add_tenant(Tenant::latency_sensitive("chat")).unwrap();
        let model = Model::new("llama3-8b", dense(&DenseSpec::llama3_8b()).unwrap().into());
        let model = gmg.add_model(chat, model.kv_bytes_per_token(Bytes::kib(128)), Container::replicas([0])).unwrap();
        let timeline = Timeline::new(gmg.publish(), Roofline::default(), Horizon::secs(2));
        Self { gmg, timeline, chat, model, now: Nanos::ZERO }
    }

    fn apply(&mut self, delta: impl Into<Delta>) -> Effect {
        let applied = self.gmg.apply(delta).unwrap();
        self.timeline.observe(&applied, self.gmg.view()).unwrap();
        applied.effect
    }

    /// A request comes, and its prompt is dispatched.
    fn begin(&mut self, max_output: u32) -> (RequestId, JobId) {
        let new = NewRequest { tenant: self.chat, arrival: self.now, prompt: PROMPT, max_output };
        let Effect::Request(request) = self.apply(Intent::Submit(new)) else { panic!("no request") };
        let prompt = u64::from(PROMPT);
        let binding = Binding::iteration(prompt, 1, prompt, prompt * (prompt + 1) / 2);
        let mut spec = JobSpec::of(self.model).bind(binding);
        spec.rows.push(Row { request, position: 0, tokens: PROMPT, emits: true });
        spec.growth.push(KvGrowth { request, blocks: PROMPT / 16 });
        let run = Action::run_new(spec, LaneId::new(DEVICE, 0)).with_rank(Rank::OwnerLatency);
        let accepted = self.gmg.accept(Plan { actions: [run].into_iter().collect(), ..Plan::default() });
        assert!(accepted.dropped.is_empty(), "{:?}", accepted.dropped);
        for applied in &accepted.applied {
            self.timeline.observe(applied, self.gmg.view()).unwrap();
        }
        (request, accepted.applied[0].effect.job().unwrap())
    }

    fn finish(&mut self, job: JobId, ended: Vec<Ended>) {
        let (started, at) = (self.now, self.now + Nanos::ms(40));
        let ops = 0..self.gmg.view().models()[0].template.op_count();
        self.now = at;
        self.apply(Event::Finished { job, ops, lane: LaneId::new(DEVICE, 0), started, at, tokens: vec![], ended });
    }

    /// A request that ends with `produced` tokens.
    fn complete(&mut self, produced: u32) {
        let (request, job) = self.begin(1000);
        self.finish(job, vec![Ended { request, produced }]);
    }

    fn used_at(&mut self, at: Nanos) -> Bytes {
        let growth = self.timeline.kv_growth(self.gmg.view(), DEVICE, 10, PACE);
        growth.steps.iter().take_while(|step| step.at <= at).last().unwrap().used
    }
}

/// Of 9 completions of 10 to 90 tokens the bound at 10 % is the ceil(10 * 0.9) = 9th. The prompt takes 32 blocks; token `e`
/// comes `e - 1` ms after the prompt, into a cache of 512 + e tokens. The 89th is the last before the end: 601 tokens are
/// 38 blocks of 16.
#[test]
fn a_sequence_grows_to_the_bound_of_its_tenant_and_ends_there() {
    let mut server = Server::new();
    (1..=9).for_each(|tens| server.complete(10 * tens));
    assert_eq!(server.timeline.output_bound(server.chat, 0, 10), Some(90));
    assert_eq!(server.timeline.output_lengths(server.chat).unwrap().bound(0, 10), Some(90));
    server.begin(1000);
    let first = server.timeline.forecast().runs[0].finish;
    let blocks = |count: u64| BLOCK.times(count);
    let now = server.now;
    assert_eq!(server.used_at(now), blocks(32));
    assert_eq!(server.used_at(first), blocks(33));
    assert_eq!(server.used_at(first + Nanos::ms(15)), blocks(33), "528 tokens");
    assert_eq!(server.used_at(first + Nanos::ms(16)), blocks(34));
    assert_eq!(server.used_at(first + Nanos::ms(88)), blocks(38));
    assert_eq!(server.used_at(first + Nanos::ms(89)), Bytes::ZERO);
}

/// Without completions nothing is known but the maximum: 512 + 199 tokens are 45 blocks.
#[test]
fn without_completions_a_sequence_grows_to_its_maximum() {
    let mut server = Server::new();
    assert_eq!(server.timeline.output_bound(server.chat, 0, 10), None);
    server.begin(200);
    let first = server.timeline.forecast().runs[0].finish;
    assert_eq!(server.used_at(first + Nanos::ms(198)), BLOCK.times(45));
    assert_eq!(server.used_at(first + Nanos::ms(199)), Bytes::ZERO);
}

/// Its prompt is done, and no work of the forecast feeds it: the next token comes after one pace.
#[test]
fn a_sequence_between_two_iterations_goes_on() {
    let mut server = Server::new();
    let (_, job) = server.begin(200);
    server.finish(job, vec![]);
    let now = server.now;
    assert_eq!(server.used_at(now), BLOCK.times(32));
    assert_eq!(server.used_at(now + PACE), BLOCK.times(33));
}

/// Prompts take all blocks but those of one to two more, and each may grow by 125.
#[test]
fn the_first_violation_names_who_grew() {
    let mut server = Server::new();
    let pool = server.gmg.view().memory(DEVICE).unwrap().kv().total();
    let many = pool / 32 - 1;
    let prompt = |_| {
        let (request, job) = server.begin(2000);
        server.finish(job, vec![]);
        request
    };
    let begun: Vec<_> = (0..many).map(prompt).collect();
    let growth = server.timeline.kv_growth(server.gmg.view(), DEVICE, 10, PACE);
    let violation = growth.violation.unwrap();
    assert!(begun.contains(&violation.request), "{violation:?}");
    let before = growth.steps.iter().take_while(|step| step.used <= BLOCK.times(u64::from(pool))).count();
    let step = growth.steps[before];
    assert_eq!((violation.at, violation.request), (step.at, step.request));
    assert_eq!(violation.missing, step.used - BLOCK.times(u64::from(pool)));
    assert_eq!(server.timeline.kv_growth(server.gmg.view(), DeviceId(7), 10, PACE), Default::default());
}
