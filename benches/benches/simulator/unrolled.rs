//! A future of 2 s over 64 devices, unrolled by batching: every device is a replica of Llama 3 8B with 16
//! sequences of 200 prompt tokens that decode until the horizon. A question adds a seventeenth sequence
//! to the batch of one replica; the other devices are kept.

use std::hint::black_box;
use std::time::Duration;

use slicescheduler_benches::Target;
use slicescheduler_gmg::cluster::{Cluster, DeviceSpec};
use slicescheduler_gmg::delta::NewRequest;
use slicescheduler_gmg::id::{DeviceId, LaneId};
use slicescheduler_gmg::memory::DeviceLayout;
use slicescheduler_gmg::plan::{Action, BatchLimits, Continuation, Plan, Rank};
use slicescheduler_gmg::templates::{DenseSpec, dense};
use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};
use slicescheduler_gmg::{Container, Gmg, Model, Tenant};
use slicescheduler_scheduler::batching::{BatchOptions, Batcher, Sequence};
use slicescheduler_simulator::timeline::Continuations;
use slicescheduler_simulator::{Horizon, Roofline, Timeline};

use crate::Outcome;
use crate::support::shortest;

const DEVICES: u32 = 64;
const PROMPT: u32 = 200;
const OUTPUT: u32 = 4_000;

pub(crate) fn rows() -> Outcome<Vec<Target>> {
    let mut cluster = Cluster::builder().network(Bandwidth::gb_per_s(50), Nanos::us(8));
    for node in 0..DEVICES / 8 {
        cluster = cluster.node(format!("n{node}"), |node| node.devices(8, DeviceSpec::h100_sxm()));
    }
    let mut gmg = Gmg::new(cluster.build()?);
    for device in (0..DEVICES).map(DeviceId) {
        gmg.lay_out(device, DeviceLayout { kv_block: Bytes::mib(2), ..DeviceLayout::of(Bytes::gb(80)) })?;
    }
    let tenant = gmg.add_tenant(Tenant::latency_sensitive("chat"))?;
    let model = Model::new("llama3-8b", dense(&DenseSpec::llama3_8b())?.into()).kv_bytes_per_token(Bytes::kib(128));
    let model = gmg.add_model(tenant, model, Container::replicas(0..DEVICES))?;
    let mut batcher = Batcher::new(tenant, BatchOptions { token_budget: 8192, ..BatchOptions::default() });
    let limits =
        BatchLimits { tokens: 8192, sequences: 64, new_blocks: 20_000, keep_free: 0, not_due_before: Nanos::ZERO };
    let enter = |gmg: &mut Gmg, batcher: &mut Batcher| -> Outcome<()> {
        let new = NewRequest { tenant, arrival: Nanos::ZERO, prompt: PROMPT, max_output: OUTPUT };
        let request = gmg.submit_request(new)?;
        batcher.enter(Sequence::new(request, Nanos::ZERO, None, PROMPT, OUTPUT));
        Ok(())
    };
    for device in 0..DEVICES {
        batcher.add_replica(model, DeviceId(device));
        (0..16).try_for_each(|_| enter(&mut gmg, &mut batcher))?;
        let job = batcher.form(device, limits, &mut Vec::new()).ok_or("no batch was formed")?;
        let run = Action::run_new(job, LaneId::new(DeviceId(device), 0)).with_rank(Rank::OwnerLatency);
        let accepted = gmg.accept(Plan { actions: [run].into_iter().collect(), ..Plan::default() });
        if let Some(dropped) = accepted.dropped.into_iter().next() {
            return Err(dropped.reason.into());
        }
    }
    let mut timeline = Timeline::new(gmg.publish(), Roofline::default(), Horizon::secs(2));
    let kept = |device: u32| -> Option<(LaneId, Box<dyn Continuation>)> {
        let forecast = batcher.forecast(device, limits, 0)?;
        Some((LaneId::new(DeviceId(device), 0), Box::new(forecast)))
    };
    let continuations: Continuations = (0..DEVICES).filter_map(kept).collect();
    let base = timeline.unroll(Nanos::ZERO, continuations, Nanos::secs(2));
    let mut more = batcher.clone();
    enter(&mut gmg, &mut more)?;
    let on = DeviceId(17);
    let changed = more.forecast(17, limits, 1).ok_or("no such replica")?;
    let (mut failed, mut computed) = (None, 0);
    let time = shortest(
        200,
        || (),
        |()| {
            let continuation = vec![(LaneId::new(on, 0), changed.fork())];
            match timeline.what_if_unrolled(&base, &[], continuation) {
                Ok(answer) => {
                    computed = black_box(answer.runs_on(on).len());
                }
                Err(error) => failed = Some(error),
            }
        },
    );
    if let Some(error) = failed {
        return Err(error.into());
    }
    let (iterations, all) = (computed, base.runs().count());
    println!("  {all} iterations in the future of all devices, {iterations} computed again");
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let name = "what-if that changes a batch's membership, 2-s horizon unrolled, 64 devices";
    Ok(vec![Target::at_most(name, us(time), "us", 200.0)])
}
