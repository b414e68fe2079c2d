//! Scenarios whose lengths drift, and whose service levels are relative to each request alone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};

use std::sync::Arc;

use slicescheduler::driver::{Arrival, Driver, DriverError, DriverOptions};
use slicescheduler::replay::{ReplayOptions, Silent, policy, simulate};
use slicescheduler::report::PolicySummary;
use slicescheduler::scenario::{Scenario, ScenarioError, Slo, Source, Workload};
use slicescheduler::setup::Setup;
use slicescheduler::workload::{ArrivalRecord, Drift};
use slicescheduler_gmg::delta::NewRequest;
use slicescheduler_gmg::id::TenantId;
use slicescheduler_gmg::plan::{Command, Event, Observer};
use slicescheduler_gmg::units::Nanos;
use slicescheduler_gmg::{GmgError, GmgView, View};
use slicescheduler_simulator::cost::Roofline;
use slicescheduler_simulator::timeline::{Horizon, Timeline};
use slicescheduler_simulator::world::{SimWorld, WorldCost, WorldOptions};

const TWO: &str = r#"seed = 3
duration = "100s"
policies = ["static"]

[cluster]
nodes = [{ devices = 2, kind = "h100-sxm" }]

[[tenants]]
name = "chat"
class = "latency-sensitive"
model = "llama3-8b"
slo = { ttft = "400ms", tpot = "40ms" }
container = { devices = [0] }
workload = { generator = "azure-conv", rate_scale = 0.25 }

[[tenants]]
name = "batch"
class = "best-effort"
model = "llama3-8b"
container = { devices = [1] }
workload = { backlog = "azure-conv", window = 8 }
"#;

const CHAT: &str = "generator = \"azure-conv\", rate_scale = 0.25";

fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    Scenario::parse(text, Path::new("two.toml"), None)
}

/// The scenario with `old` replaced by `new`.
fn changed(old: &str, new: &str) -> Result<Scenario, ScenarioError> {
    assert!(TWO.contains(old), "{old} is not in the scenario");
    parse(&TWO.replacen(old, new, 1))
}

/// The scenario whose latency-sensitive tenant drifts.
fn drifting(drift: &str) -> Result<Scenario, ScenarioError> {
    changed(CHAT, &format!("{CHAT}, drift = {drift}"))
}

fn arrivals(scenario: &Scenario) -> Vec<ArrivalRecord> {
    match scenario.requests(0).unwrap().unwrap() {
        Source::Arrivals(records) => records.map(Result::unwrap).collect(),
        Source::Backlog { .. } => panic!("a backlog"),
    }
}

#[test]
fn a_drift_is_read_with_its_defaults() {
    let of = |text: &str| drifting(text).unwrap().tenants[0].workload.lengths_mut().drift;
    let whole = Drift { prompts: 1.0, answers: 3.0, from: Nanos::ZERO, until: None };
    assert_eq!(of("{ answers = 3 }"), Some(whole));
    let part = Drift { prompts: 0.5, answers: 1.0, from: Nanos::secs(20), until: Some(Nanos::secs(30)) };
    assert_eq!(of("{ prompts = 0.5, from = \"20s\", until = \"30s\" }"), Some(part));
    assert_eq!(parse(TWO).unwrap().tenants[0].workload.lengths_mut().drift, None);
}

#[test]
fn a_drift_that_cannot_be_is_refused_with_its_tenant() {
    for (drift, message) in [
        ("{ answers = 0.0 }", "workload.drift.answers is 0: expected a number from 0.0001 to 10000"),
        ("{ answers = inf }", "workload.drift.answers is inf: expected a number from 0.0001 to 10000"),
        ("{ prompts = -2.0 }", "workload.drift.prompts is -2: expected a number from 0.0001 to 10000"),
        ("{ prompts = nan }", "workload.drift.prompts is NaN: expected a number from 0.0001 to 10000"),
        (
            "{ from = \"3s\", until = \"2s\" }",
            "workload.drift.from is 3.000 s: expected a time before its end (2.000 s)",
        ),
        ("{ from = \"100s\" }", "workload.drift.from is 100.000 s: expected a time before its end (100.000 s)"),
        ("{ until = \"0s\" }", "workload.drift.until is zero: expected a time above zero"),
    ] {
        let refusal = drifting(drift).unwrap_err().to_string();
        assert!(
            refusal.starts_with("two.toml:14:") && refusal.ends_with(&format!(": tenants[0].{message}")),
            "{refusal}"
        );
    }
    let refusal = changed("window = 8", "window = 8, drift = { answers = 2.0 }").unwrap_err().to_string();
    assert!(refusal.ends_with("tenants[1].workload.drift is set: expected none beside backlog"), "{refusal}");
    assert!(drifting("{ outputs = 2.0 }").unwrap_err().to_string().contains("unknown field `outputs`"));
}

#[test]
fn requests_that_drift_arrive_as_before_and_grow_by_their_time() {
    let (plain, drifted) =
        (arrivals(&parse(TWO).unwrap()), arrivals(&drifting("{ prompts = 0.5, answers = 3 }").unwrap()));
    assert!(plain.len() > 50, "{} requests", plain.len());
    assert_eq!(plain.len(), drifted.len());
    for (one, other) in plain.iter().zip(&drifted) {
        assert_eq!(one.at, other.at);
        // The replay lasts a hundred seconds: a share of the time for each.
        let share = one.at.as_secs_f64() / 100.0;
        let near = |found: u32, tokens: u32, factor: f64| (f64::from(found) - f64::from(tokens) * factor).abs() <= 0.5;
        assert!(near(other.prompt, one.prompt, 1.0 - 0.5 * share), "{one:?} {other:?}");
        assert!(near(other.output, one.output, 1.0 + 2.0 * share), "{one:?} {other:?}");
    }
    assert!(drifted.iter().any(|record| record.at > Nanos::secs(90)));
}

#[test]
fn a_drift_follows_the_duration_and_the_rate() {
    let mut scenario = drifting("{ answers = 3.0 }").unwrap();
    let whole = arrivals(&scenario);
    scenario.set_duration("50s").unwrap();
    let half = arrivals(&scenario);
    // What is in the middle of the longer one is at the end of the shorter.
    assert_eq!(half.len(), whole.iter().filter(|record| record.at < Nanos::secs(50)).count());
    assert!(half.iter().zip(&whole).all(|(one, other)| one.output >= other.output));
    assert!(half.last().unwrap().output > whole[half.len() - 1].output);

    let trace = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("drift-{}.csv", std::process::id()));
    let lines: String =
        (0..60).map(|second| format!("2023-11-16 18:17:{second:02}.0000000,{},30\n", 10 + second)).collect();
    fs::write(&trace, format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{lines}")).unwrap();
    let drift = "drift = { answers = 3, from = \"10s\", until = \"50s\" }";
    let source = format!("trace = {trace:?}, format = \"azure\", {drift}");
    let mut scenario = Scenario { seed: 0, ..changed(CHAT, &source).unwrap() };
    let lengths = |scenario: &Scenario| -> Vec<_> { arrivals(scenario).iter().map(|r| (r.prompt, r.output)).collect() };
    let slow = lengths(&scenario);
    scenario.scale_rate(2.0).unwrap();
    assert_eq!(lengths(&scenario), slow, "the same requests at every rate");
    assert_eq!((slow[10], slow[30], slow[59]), ((20, 30), (40, 60), (69, 90)));
    assert!(matches!(scenario.tenants[0].workload, Workload::Trace { .. }));
    fs::remove_file(trace).unwrap();
}

const SLO: &str = "slo = { ttft = \"400ms\", tpot = \"40ms\" }";

#[test]
fn a_relative_level_is_in_place_of_one_for_all_requests() {
    let tenant = changed(SLO, "relative_slo = 2").unwrap().tenants.swap_remove(0);
    assert_eq!((tenant.slo, tenant.relative_slo), (None, Some(2.0)));
    for (old, new, message) in [
        (SLO, "relative_slo = 0.0", "tenants[0].relative_slo is 0: expected a number from 0.0001 to 10000"),
        (SLO, "relative_slo = nan", "tenants[0].relative_slo is NaN: expected a number from 0.0001 to 10000"),
        (SLO, &format!("{SLO}\nrelative_slo = 2.0"), "tenants[0].relative_slo is set: expected none beside slo"),
        (
            "class = \"best-effort\"",
            "class = \"best-effort\"\nrelative_slo = 2.0",
            "tenants[1].relative_slo is set: expected none for a best-effort tenant",
        ),
    ] {
        let refusal = changed(old, new).unwrap_err().to_string();
        assert!(refusal.ends_with(message), "{refusal}");
    }
}

/// Twenty requests with prompts from 100 to 5,800 tokens and answers of 64, so far apart that each is alone.
fn far_apart(name: &str, level: &str) -> Scenario {
    let trace = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("alone-{name}-{}.csv", std::process::id()));
    let lines: String =
        (0..20).map(|i| format!("2023-11-16 18:17:{:02}.0000000,{},64\n", 2 * i, 100 + 300 * i)).collect();
    fs::write(&trace, format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{lines}")).unwrap();
    let text = TWO.replacen(CHAT, &format!("trace = {trace:?}, format = \"azure\""), 1).replacen(SLO, level, 1);
    Scenario { seed: 0, ..parse(&text).unwrap() }
}

fn still() -> WorldOptions {
    WorldOptions { operator_noise: 0, iteration_noise: 0, ..WorldOptions::default() }
}

fn run(scenario: &Scenario) -> PolicySummary {
    let options = ReplayOptions { world: still(), ..ReplayOptions::default() };
    simulate(scenario, policy(&scenario.policies[0]).unwrap(), &options, &mut Silent).unwrap().summary
}

/// Oracle: the simulated world itself, with one request at a time and without noise.
#[test]
fn what_a_request_takes_alone_is_what_the_world_takes_for_it() {
    for (factor, violations) in [("1.001", 0.0), ("0.999", 1.0)] {
        let summary = run(&far_apart(factor, &format!("relative_slo = {factor}")));
        let chat = &summary.tenants[0];
        assert_eq!((chat.arrived, chat.completed), (20, 20));
        assert_eq!(chat.sla_violation_rate, violations, "{factor} times alone");
    }
}

#[test]
fn violations_count_by_the_level_of_each_request() {
    let relative = far_apart("each", "relative_slo = 1.5");
    let setup = Setup::new(&relative, &*policy(&relative.policies[0]).unwrap()).unwrap();
    let of_median = setup.gmg.view().tenant(TenantId(0)).and_then(|tenant| tenant.slo).unwrap();
    // Of twenty prompts the tenth by length is of 2,800 tokens.
    assert_eq!(setup.levels.of(TenantId(0), 2800), Some(of_median));
    assert_eq!(setup.levels.of(TenantId(1), 2800), None);
    assert_eq!(run(&relative).tenants[0].sla_violation_rate, 0.0);
    // The same level for all: half as long again as the median is beyond it.
    let Slo { ttft, tpot } = of_median;
    let fixed = far_apart("all", &format!("slo = {{ ttft = \"{}ns\", tpot = \"{}ns\" }}", ttft.get(), tpot.get()));
    let late = run(&fixed).tenants[0].sla_violation_rate;
    assert!((0.2..0.5).contains(&late), "{late}");
}

struct Nobody;

impl Observer for Nobody {
    fn on_event(&mut self, _: &Event, _: View<'_>) {}
    fn on_command(&mut self, _: Nanos, _: &Command, _: View<'_>) {}
}

#[test]
fn a_driver_enters_requests_with_levels_of_their_own() {
    let scenario = parse(TWO).unwrap();
    let policy = policy(&scenario.policies[0]).unwrap();
    let setup = Setup::new(&scenario, &*policy).unwrap();
    let cluster = Arc::new(setup.gmg.view().cluster().clone());
    let world = SimWorld::new(cluster, Box::new(WorldCost::default()), still());
    let what_if = Timeline::of(setup.gmg.view(), Arc::new(Roofline::default()), Horizon::secs(2));
    let options = DriverOptions::default();
    let mut driver = Driver::new(setup.gmg, setup.batching, policy, Box::new(what_if), world, options).unwrap();
    let request = |tenant| NewRequest { tenant: TenantId(tenant), arrival: Nanos::ZERO, prompt: 100, max_output: 9 };
    let own = Slo { ttft: Nanos::ms(7), tpot: Nanos::ms(1) };
    let id = driver.submit(Arrival::from(request(0)).slo(own), &mut Nobody).unwrap();
    assert_eq!(driver.gmg().view().request(id).unwrap().slo, Some(own));
    assert_eq!(driver.gmg().view().request(id).unwrap().due(2), Nanos::ms(9));
    let of_sequence = |driver: &Driver<SimWorld>, id| {
        let batcher = &driver.batching()[0];
        let running = batcher.replicas().iter().flat_map(|replica| replica.running());
        running.chain(batcher.waiting()).find(|sequence| sequence.request == id).and_then(|sequence| sequence.slo)
    };
    assert_eq!(of_sequence(&driver, id), Some(own));
    let other = driver.submit(request(0), &mut Nobody).unwrap();
    assert_eq!(of_sequence(&driver, other), scenario.tenants[0].slo);
    let version = driver.gmg().version();
    let refused = driver.submit(Arrival::from(request(1)).slo(own), &mut Nobody).unwrap_err();
    assert!(matches!(refused, DriverError::Gmg(GmgError::NoDueTimes(TenantId(1)))), "{refused}");
    let unknown = driver.submit(request(9), &mut Nobody).unwrap_err();
    assert!(matches!(unknown, DriverError::Gmg(GmgError::NoSuchTenant(TenantId(9)))), "{unknown}");
    assert_eq!(driver.gmg().version(), version, "neither was entered");
}
