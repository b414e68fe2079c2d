//! One seed, one result, on every machine and however the run is measured.

use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use slicescheduler::replay::{ForecastOptions, ReplayOptions, Silent, replay};
use slicescheduler::report::RunRecord;
use slicescheduler_gmg::plan::Clock;
use slicescheduler_gmg::units::Nanos;

use crate::rig::{ROOMY, small};

/// Fields of a policy's summary that say how long something took on this machine.
const MEASURED: [&str; 4] = ["decision_us", "sim_ops_per_ms", "sim_entries_per_ms", "wall_s"];

#[derive(Debug)]
struct Stopwatch(Instant);

impl Clock for Stopwatch {
    fn now(&self) -> Nanos {
        self.0.elapsed().into()
    }
}

fn run(seed: u64, stopwatch: Option<Arc<dyn Clock>>) -> (String, Vec<RunRecord>) {
    let options = ReplayOptions { stopwatch, ..ReplayOptions::default() };
    let (summary, runs) = replay(&small(ROOMY, Nanos::secs(10), seed), "small", &options, &mut Silent).unwrap();
    (serde_json::to_string(&summary).unwrap(), runs)
}

/// The summary without what was measured.
fn without_times(summary: &str) -> Value {
    let mut summary: Value = serde_json::from_str(summary).unwrap();
    for policy in summary["policies"].as_array_mut().unwrap() {
        let policy = policy.as_object_mut().unwrap();
        MEASURED.iter().for_each(|field| assert!(policy.remove(*field).is_some(), "no {field}"));
    }
    summary
}

#[test]
fn one_seed_gives_one_summary_byte_for_byte() {
    let (first, runs) = run(5, None);
    let (second, again) = run(5, None);
    assert_eq!(first, second);
    assert_eq!(runs, again, "spans, memory and seconds too");
}

#[test]
fn a_stopwatch_changes_nothing_but_the_times() {
    let (plain, runs) = run(6, None);
    let (timed, timed_runs) = run(6, Some(Arc::new(Stopwatch(Instant::now()))));
    assert_ne!(plain, timed);
    assert_eq!(without_times(&plain), without_times(&timed));
    for (one, other) in runs.iter().zip(&timed_runs) {
        assert_eq!((&one.spans, &one.memory, &one.seconds), (&other.spans, &other.memory, &other.seconds));
    }
}

#[test]
fn another_seed_gives_another_result() {
    assert_ne!(without_times(&run(7, None).0)["policies"], without_times(&run(8, None).0)["policies"]);
}

#[test]
fn forecasts_of_the_whole_cluster_lead_to_the_same_run() {
    let whole = |whole_cluster| {
        let forecast = ForecastOptions { whole_cluster, ..ForecastOptions::default() };
        let options = ReplayOptions { forecast, ..ReplayOptions::default() };
        let (summary, runs) = replay(&small(ROOMY, Nanos::secs(10), 7), "small", &options, &mut Silent).unwrap();
        (without_times(&serde_json::to_string(&summary).unwrap()), runs)
    };
    let ((touched, touched_runs), (all, all_runs)) = (whole(false), whole(true));
    assert_eq!(touched, all);
    for (one, other) in touched_runs.iter().zip(&all_runs) {
        assert_eq!((&one.spans, &one.memory, &one.seconds), (&other.spans, &other.memory, &other.seconds));
    }
}
