//! No policy sees the future: two runs that differ after a moment only decide alike before it.
//!
//! What differs is in the traces on disk, so that nothing on the way from there to a policy can tell
//! either. A backlog has no trace: the world alone changes the lengths of its answers.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use slicescheduler::scenario::{Scenario, Source, Workload};
use slicescheduler::workload::{ArrivalRecord, Lengths as Scaling, Shift, TraceFile, TraceFormat};
use slicescheduler_gmg::id::{RequestId, TenantId};
use slicescheduler_gmg::units::Nanos;

use crate::rig::{Faults, Lengths, POLICIES, ROOMY, TIGHT, as_they_are, replayed, small};
use crate::witness::{Decided, Witness};

const LENGTH: Nanos = Nanos::secs(6);

/// The traces of the tenants that have one, by tenant.
type Traces = Vec<Vec<ArrivalRecord>>;

/// Traces like those that the generators of `scenario` would give, beginning with an arrival.
fn traces(scenario: &Scenario) -> Traces {
    let longer = Scenario { duration: Nanos::secs(300), ..scenario.clone() };
    let trace = |index| match longer.requests(index).unwrap() {
        Some(Source::Arrivals(stream)) => {
            let records: Vec<_> = stream.map(Result::unwrap).collect();
            let first = records[0].at;
            let from_first = records.into_iter().map(|record| ArrivalRecord { at: record.at - first, ..record });
            Some(from_first.take_while(|record| record.at < LENGTH).collect())
        }
        _ => None,
    };
    (0..scenario.tenants.len()).map_while(trace).collect()
}

/// The scenario, fed by `traces` as they are on disk.
fn fed(scenario: &Scenario, traces: &Traces, folder: &Path) -> Scenario {
    let mut scenario = Scenario { seed: 0, ..scenario.clone() };
    fs::create_dir_all(folder).unwrap();
    for (index, (trace, tenant)) in traces.iter().zip(&mut scenario.tenants).enumerate() {
        let path = folder.join(format!("{index}.csv"));
        let mut text = "TIMESTAMP,ContextTokens,GeneratedTokens\n".to_owned();
        for record in trace {
            let (seconds, nanos) = (record.at.get() / 1_000_000_000, record.at.get() % 1_000_000_000);
            writeln!(text, "2023-11-16 18:17:{seconds:02}.{nanos:09},{},{}", record.prompt, record.output).unwrap();
        }
        fs::write(&path, text).unwrap();
        let file = TraceFile { path, format: TraceFormat::Azure };
        tenant.workload = Workload::Trace { file, shift: Shift::NONE, rate_scale: 1.0, lengths: Scaling::default() };
    }
    scenario
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("replay_future").join(name)
}

fn run(scenario: &Scenario, policy: &str, lengths: Lengths) -> Witness {
    replayed(scenario, policy, &Faults::default(), lengths).1
}

fn cut(traces: &Traces, time: Nanos) -> Traces {
    let before = |trace: &Vec<ArrivalRecord>| trace.iter().filter(|record| record.at < time).cloned().collect();
    traces.iter().map(before).collect()
}

/// How long an answer is in a world that was like the one that `seen` saw until `time`: requests
/// that had ended keep theirs, all others produce at least one token more than they had.
fn another_length(seen: &Witness, time: Nanos, change: u64) -> impl Fn(RequestId, u32) -> u32 + use<> {
    let produced = seen.produced_before(time);
    move |request, output| {
        let other = (request.0.wrapping_add(change).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32 % 300;
        match produced.get(&request) {
            Some((_, true)) => output,
            Some((tokens, false)) => tokens + 1 + other,
            None => 1 + other,
        }
    }
}

/// The traces with [another length](another_length) for every answer.
fn another_future(traces: &Traces, seen: &Witness, length: &impl Fn(RequestId, u32) -> u32) -> Traces {
    let mut traces = traces.clone();
    for (trace, tenant) in traces.iter_mut().zip((0..).map(TenantId)) {
        let requests = seen.asked.iter().filter(|(of, _)| *of == tenant);
        trace
            .iter_mut()
            .zip(requests)
            .for_each(|(record, (_, request))| record.output = length(*request, record.output));
    }
    traces
}

/// The lengths as they are for tenants with a trace, and others for those without.
fn backlogs_too(traces: &Traces, seen: &Witness, length: impl Fn(RequestId, u32) -> u32 + 'static) -> Lengths {
    let traced = traces.len();
    let fed = seen.asked.iter().filter(|(tenant, _)| tenant.index() < traced).map(|&(_, request)| request);
    let fed: std::collections::HashSet<_> = fed.collect();
    Box::new(move |request, output| if fed.contains(&request) { output } else { length(request, output) })
}

type Decision = (Nanos, Decided);

/// Where two sequences of decisions part.
fn difference<'a>(one: &'a [Decision], other: &'a [Decision]) -> Option<(Option<&'a Decision>, Option<&'a Decision>)> {
    let at = (0..one.len().max(other.len())).find(|&at| one.get(at) != other.get(at))?;
    Some((one.get(at), other.get(at)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn arrivals_after_a_moment_change_no_decision_before_it(
        seed in 0u64..1000,
        millis in 1000u64..5000,
        usable in prop::sample::select(vec![TIGHT, ROOMY]),
    ) {
        let (scenario, time) = (small(usable, LENGTH, seed), Nanos::ms(millis));
        let traces = traces(&scenario);
        let whole = fed(&scenario, &traces, &folder("whole"));
        let shorter = fed(&scenario, &cut(&traces, time), &folder("shorter"));
        for policy in POLICIES {
            let (whole, shorter) = (run(&whole, policy, as_they_are()), run(&shorter, policy, as_they_are()));
            let apart = difference(whole.decided_before(time), shorter.decided_before(time));
            prop_assert!(apart.is_none(), "{policy}: {apart:?}");
        }
    }

    #[test]
    fn lengths_of_unfinished_answers_change_no_decision_before_the_moment(
        seed in 0u64..1000,
        millis in 1000u64..5000,
        change in any::<u64>(),
        usable in prop::sample::select(vec![TIGHT, ROOMY]),
    ) {
        let (scenario, time) = (small(usable, LENGTH, seed), Nanos::ms(millis));
        let traces = traces(&scenario);
        for policy in POLICIES {
            let first = run(&fed(&scenario, &traces, &folder("first")), policy, as_they_are());
            let length = another_length(&first, time, change);
            let second = fed(&scenario, &another_future(&traces, &first, &length), &folder("second"));
            let second = run(&second, policy, backlogs_too(&traces, &first, length));
            let apart = difference(first.decided_before(time), second.decided_before(time));
            prop_assert!(apart.is_none(), "{policy}: {apart:?}");
        }
    }
}

#[test]
fn what_is_changed_does_matter_afterwards() {
    let (scenario, time) = (small(ROOMY, LENGTH, 1), Nanos::secs(3));
    let traces = traces(&scenario);
    let shorter = fed(&scenario, &cut(&traces, time), &folder("matters-shorter"));
    for policy in POLICIES {
        let first = run(&fed(&scenario, &traces, &folder("matters")), policy, as_they_are());
        let cut = run(&shorter, policy, as_they_are());
        let length = another_length(&first, time, 7);
        let other = fed(&scenario, &another_future(&traces, &first, &length), &folder("matters-other"));
        let other = run(&other, policy, backlogs_too(&traces, &first, length));
        assert!(first.decided_before(time).len() > 500, "{policy}: {}", first.decided_before(time).len());
        assert_ne!(first.decided, other.decided, "{policy}");
        assert_ne!(first.decided, cut.decided, "{policy}");
    }
}
