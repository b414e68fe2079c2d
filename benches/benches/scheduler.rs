//! What a decision costs: sixteen latency-sensitive and four best-effort tenants on 64 and on 1,024 devices, every
//! device with the same load, forecasts of two seconds.
//!
//! Wall-clock time of whole decisions of `SliceFill`, on one thread, the forecasts that it asks for included;
//! batching, the graph and the simulated world are outside. Events per second of simulated time are printed beside it.

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use slicescheduler::driver::{DecisionTimes, Driver, DriverOptions};
use slicescheduler::scenario::{Scenario, Source};
use slicescheduler::setup::Setup;
use slicescheduler_benches::{Target, print_and_write};
use slicescheduler_gmg::delta::NewRequest;
use slicescheduler_gmg::id::TenantId;
use slicescheduler_gmg::plan::{Clock, Command, Event, Observer};
use slicescheduler_gmg::units::Nanos;
use slicescheduler_gmg::{GmgView, View};
use slicescheduler_scheduler::batching::Batcher;
use slicescheduler_scheduler::{SliceFill, SliceFillOptions};
use slicescheduler_simulator::cost::Roofline;
use slicescheduler_simulator::timeline::{Horizon, Timeline};
use slicescheduler_simulator::world::{SimWorld, WorldCost, WorldOptions};

/// Simulated time that is measured, after as much that is not.
const LENGTH: Nanos = Nanos::secs(2);

#[derive(Debug)]
struct Stopwatch(Instant);

impl Clock for Stopwatch {
    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

struct Nobody;

impl Observer for Nobody {
    fn on_event(&mut self, _: &Event, _: View<'_>) {}
    fn on_command(&mut self, _: Nanos, _: &Command, _: View<'_>) {}
}

/// Sixteen latency-sensitive tenants on three quarters of the devices, four best-effort ones on the rest.
fn scenario(devices: u32) -> Result<Scenario, Box<dyn Error>> {
    let mut text = format!(
        "seed = 1\nduration = \"4s\"\npolicies = [\"slice-fill\"]\n[cluster]\nusable = 0.9\n\
         [[cluster.nodes]]\ncount = {}\ndevices = 8\nkind = \"h100-sxm\"\n",
        devices / 8
    );
    let (own, rest) = (devices * 3 / 4 / 16, devices / 4 / 4);
    for tenant in 0..20u32 {
        let (first, count) = if tenant < 16 { (tenant * own, own) } else { (16 * own + (tenant - 16) * rest, rest) };
        let list: Vec<String> = (first..first + count).map(|device| device.to_string()).collect();
        let list = list.join(", ");
        let rate = f64::from(own) / 2.0;
        let rest = match tenant {
            16.. => {
                format!("class = \"best-effort\"\nworkload = {{ backlog = \"azure-conv\", window = {} }}", devices * 2)
            }
            _ => format!(
                "class = \"latency-sensitive\"\nslo = {{ ttft = \"400ms\", tpot = \"40ms\" }}\nlending = \"slo_slack\"\n\
                 workload = {{ generator = \"{}\", rate_scale = {rate} }}",
                if tenant % 2 == 0 { "azure-code" } else { "azure-conv" }
            ),
        };
        let _ = write!(
            text,
            "[[tenants]]\nname = \"t{tenant}\"\nmodel = \"llama3-8b\"\ncontainer = {{ devices = [{list}] }}\n{rest}\n"
        );
    }
    Ok(Scenario::parse(&text, Path::new("scheduler-speed.toml"), None)?)
}

struct Figures {
    decisions: DecisionTimes,
    searches: DecisionTimes,
}

fn run(devices: u32) -> Result<Figures, Box<dyn Error>> {
    let scenario = scenario(devices)?;
    let policy = SliceFill::new(SliceFillOptions::default());
    let setup = Setup::new(&scenario, &policy)?;
    let cluster = Arc::new(setup.gmg.view().cluster().clone());
    let world_options = WorldOptions { seed: scenario.seed, ..WorldOptions::default() };
    let world = SimWorld::new(cluster, Box::new(WorldCost::default()), world_options);
    let what_if = Timeline::of(setup.gmg.view(), Arc::new(Roofline::default()), Horizon::secs(2))
        .launched_window(world_options.launched_window);
    let stopwatch: Arc<dyn Clock> = Arc::new(Stopwatch(Instant::now()));
    let options = DriverOptions { stopwatch: Some(stopwatch), shares_slots: true, ..DriverOptions::default() };
    let mut driver = Driver::new(setup.gmg, setup.batching, Box::new(policy), Box::new(what_if), world, options)?;
    driver.prefetch(setup.prefetch, &mut Nobody)?;
    let (mut arrivals, mut backlogs) = (Vec::new(), Vec::new());
    for (index, tenant) in (0..scenario.tenants.len()).zip((0..).map(TenantId)) {
        match scenario.requests(index)? {
            Some(Source::Arrivals(stream)) => {
                arrivals.extend(stream.filter_map(Result::ok).map(|record| (record, tenant)))
            }
            Some(Source::Backlog { requests, .. }) => backlogs.push((requests, tenant)),
            None => {}
        }
    }
    arrivals.sort_by_key(|(record, tenant)| (record.at, *tenant));
    let mut arrivals = arrivals.into_iter().peekable();
    let submit = |driver: &mut Driver<SimWorld>, tenant, arrival, prompt, output| {
        let id = driver.gmg().next_request_id();
        driver.world_mut().reveal(id, output);
        let request = NewRequest { tenant, arrival, prompt, max_output: u32::MAX };
        driver.submit(request, &mut Nobody).map(drop)
    };
    let mut now = Nanos::ZERO;
    let mut forgotten = false;
    while now < LENGTH.times(2) {
        if !forgotten && now >= LENGTH {
            forgotten = true;
            driver.forget_times();
        }
        for (requests, tenant) in &mut backlogs {
            while driver.batching().get(tenant.index()).is_some_and(Batcher::has_room) {
                let Some((prompt, output)) = requests.next() else { break };
                submit(&mut driver, *tenant, now, prompt, output)?;
            }
        }
        let next = arrivals.peek().map_or(LENGTH.times(2), |(record, _)| record.at);
        now = driver.step(next, &mut Nobody)?;
        while let Some((record, tenant)) = arrivals.next_if(|(record, _)| record.at <= now) {
            submit(&mut driver, tenant, record.at, record.prompt, record.output)?;
        }
        driver.take_completed(&mut Vec::new());
    }
    Ok(Figures { decisions: driver.decisions().clone(), searches: driver.searches().clone() })
}

fn main() -> Result<(), Box<dyn Error>> {
    let us = |time: Nanos| time.get() as f64 / 1000.0;
    let few = run(64)?;
    let many = run(1024)?;
    println!(
        "1,024 devices: {} decisions and {} searches in {LENGTH}; all decisions: p50 {:.2} us, p99 {:.2} us",
        many.decisions.decisions(),
        many.searches.decisions(),
        us(many.decisions.quantile(0.5)),
        us(many.decisions.quantile(0.99)),
    );
    let (mean, before) = (us(many.decisions.mean()), us(few.decisions.mean()));
    let growth = Target {
        peer: Some(("mean at 64 devices, us", before)),
        ..Target::at_most("decision: mean at 1,024 devices over that at 64", mean / before, "x", 1.5)
    };
    let mut targets = vec![Target::at_most("decision: mean over all events, 1,024 devices", mean, "us", 5.0), growth];
    if many.searches.decisions() == 0 {
        println!("no event simulated two candidates or more: there is no figure for such events");
    } else {
        for (share, name, most) in [
            (0.5, "decision: events with searches, p50, 1,024 devices", 30.0),
            (0.99, "decision: events with searches, p99, 1,024 devices", 300.0),
        ] {
            targets.push(Target::at_most(name, us(many.searches.quantile(share)), "us", most));
        }
    }
    print_and_write("scheduler-speed", &targets)?;
    Ok(())
}
