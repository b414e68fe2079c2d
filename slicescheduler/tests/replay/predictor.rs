//! The policy asks any predictor, and a wrong one does bounded harm.

use slicescheduler::scenario::{Class, Scenario};
use slicescheduler_gmg::View;
use slicescheduler_gmg::delta::Applied;
use slicescheduler_gmg::id::Version;
use slicescheduler_gmg::plan::{Forecast, Question, WhatIf, WhatIfError};
use slicescheduler_gmg::units::Nanos;
use slicescheduler_scheduler::explain::{Step, Verdict, What};

use crate::rig::{ROOMY, TIGHT, driven, predicted, simulated, small};

const LENGTH: Nanos = Nanos::secs(8);

/// By how many points of all latency-sensitive requests a wrong predictor may raise SLA violations, unless static
/// containers, which ask no predictor, have as many: durations enter where slack is lent and where requests overflow, and
/// slack is lent behind a reserve of a quarter of the time to first token. In a burst that the devices of its tenants
/// cannot serve, all that overflow saves hangs on the forecast.
const BOUND: f64 = 0.05;

/// Answers of another predictor, of which every duration is wrong: by a fixed part, and by one that looks random.
/// Every so many questions are not answered at all.
struct Wrong<W> {
    inner: W,
    percent: u64,
    noise_percent: u64,
    refuses: u64,
    asked: u64,
}

impl<W: WhatIf> WhatIf for Wrong<W> {
    fn version(&self) -> Version {
        self.inner.version()
    }

    fn observe(&mut self, applied: &Applied, view: View<'_>) -> Result<(), WhatIfError> {
        self.inner.observe(applied, view)
    }

    fn what_if(&mut self, now: Nanos, question: Question<'_>, answer: &mut Forecast) -> Result<(), WhatIfError> {
        self.asked += 1;
        if self.refuses > 0 && self.asked.is_multiple_of(self.refuses) {
            return Err(WhatIfError::Action { index: 0, reason: "no idea".to_owned() });
        }
        self.inner.what_if(now, question, answer)?;
        for (index, run) in (0u64..).zip(&mut answer.runs) {
            // SplitMix64 of the question and the run.
            let mut bits = (self.asked << 8 | index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let noise = (bits >> 33) % (2 * self.noise_percent + 1);
            let percent = (self.percent + noise).saturating_sub(self.noise_percent);
            let stretch = |at: Nanos| now + (at - now).scale(percent, 100);
            (run.start, run.finish) = (stretch(run.start), stretch(run.finish));
        }
        Ok(())
    }
}

/// The share of latency-sensitive requests that violate.
fn harm(scenario: &Scenario, policy: &str, wrong: Option<(u64, u64, u64)>) -> f64 {
    let world = |setup: &_| simulated(scenario, setup);
    let rest = Nanos::secs(8);
    let run = match wrong {
        None => driven(scenario, policy, world, rest, |_| {}),
        Some((percent, noise_percent, refuses)) => {
            let wrong = |inner| Box::new(Wrong { inner, percent, noise_percent, refuses, asked: 0 }) as Box<_>;
            predicted(scenario, policy, world, wrong, rest, |_| {})
        }
    };
    let sensitive = |index: usize| scenario.tenants[index].class == Class::LatencySensitive;
    let done: Vec<_> = run.completed.iter().filter(|done| sensitive(done.tenant.index())).collect();
    let slo = |index: usize| scenario.tenants[index].slo.unwrap();
    let violates = |done: &&&slicescheduler_scheduler::batching::Completed| {
        done.first_token > done.arrival + slo(done.tenant.index()).ttft || done.late * 20 > done.produced
    };
    assert!(done.len() > 50, "{} requests", done.len());
    let violating = done.iter().filter(violates).count();
    assert_eq!(run.driver.counters().memory_violations, 0, "{policy}: {wrong:?}");
    violating as f64 / done.len() as f64
}

#[test]
fn a_wrong_predictor_costs_no_memory_violation_and_few_due_times() {
    for (usable, seed) in [ROOMY, TIGHT].into_iter().flat_map(|usable| (1..=4).map(move |seed| (usable, seed))) {
        let scenario = small(usable, LENGTH, seed);
        let (apart, right) = (harm(&scenario, "static", None), harm(&scenario, "slice-fill", None));
        for wrong in [(100, 50, 0), (50, 0, 0), (150, 25, 0), (100, 0, 3)] {
            let late = harm(&scenario, "slice-fill", Some(wrong));
            let most = apart.max(right + BOUND);
            assert!(late <= most, "{usable}, {seed}, {wrong:?}: {late} of the requests violate, at most {most} should");
        }
    }
}

#[test]
fn every_wait_of_a_request_can_be_explained() {
    let scenario = small(TIGHT, Nanos::secs(5), 1);
    let run = driven(&scenario, "slice-fill", |setup| simulated(&scenario, setup), Nanos::secs(2), |_| {});
    let log = run.driver.log().unwrap();
    let iterations = |verdict: fn(&Verdict) -> bool| {
        log.decisions().filter(|one| matches!(one.what, What::Iteration { .. }) && verdict(&one.verdict)).count()
    };
    assert!(iterations(|verdict| *verdict == Verdict::Accepted) > 100);
    assert!(iterations(|verdict| *verdict != Verdict::Accepted) > 0);
    let latest = run.completed.iter().max_by_key(|done| done.last_token).unwrap();
    let explained = run.driver.explain(latest.request).unwrap();
    let mut now = latest.arrival;
    for step in &explained.steps {
        let (Step::Waited { from, until, .. } | Step::Ran { from, until, .. }) = step;
        assert_eq!(*from, now, "no gap: {explained}");
        now = *until;
    }
    assert_eq!(now, latest.last_token, "{explained}");
}
