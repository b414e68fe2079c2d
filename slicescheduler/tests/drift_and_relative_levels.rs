//! Scenarios whose lengths drift, and whose service levels are relative to each request alone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};

use slicescheduler::scenario::{Scenario, ScenarioError, Source, Workload};
use slicescheduler::workload::{ArrivalRecord, Drift};
use slicescheduler_gmg::units::Nanos;

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
