//! The result of one run, as it is kept in a file.

use serde::{Deserialize, Serialize};

use crate::report::{PolicySummary, RunRecord};

/// The version of this form.
pub(super) const SCHEMA: u32 = 1;

/// The longest result file that is read, in bytes.
pub(super) const LONGEST: u64 = 4 << 20;

/// What one run of one policy gave.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// The version of this form: 1.
    pub schema: u32,
    /// What it is the result of: a hash of everything that the run depends on, and of the program.
    pub key: String,
    /// The figures, those that were measured among them.
    pub summary: PolicySummary,
    /// Idle slices by length, over all devices.
    pub slices: Vec<SliceFigures>,
    /// The length of the measuring window, in seconds.
    pub window_s: f64,
    /// Devices.
    pub devices: u32,
}

/// The idle slices of one length.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct SliceFigures {
    /// The longest slice that counts here, in milliseconds; absent where there is no limit.
    pub longest_ms: Option<f64>,
    /// How many there were.
    pub slices: u64,
    /// Their time, in seconds.
    pub idle_s: f64,
    /// The part of that time in which guests ran, in seconds.
    pub recovered_s: f64,
}

/// Why a text is not the result of a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutcomeError {
    /// Not JSON, or not of this form.
    #[error("not a result: {0}")]
    Form(#[from] serde_json::Error),
    /// Another version of the form.
    #[error("of schema {found}: expected {SCHEMA}")]
    Schema {
        /// What it says.
        found: u32,
    },
    /// The result of something else.
    #[error("the result of {found:?}: expected that of {expected:?}")]
    Key {
        /// What it says.
        found: String,
        /// What was asked for.
        expected: String,
    },
    /// A figure that no run gives.
    #[error("{figure} is {value}: expected {expected}")]
    Figure {
        /// Which.
        figure: &'static str,
        /// Its value.
        value: f64,
        /// What would be right.
        expected: &'static str,
    },
}

impl Outcome {
    /// The result of a run with `key`, whose window was `window_s` seconds.
    pub(super) fn of(key: String, run: &RunRecord, window_s: f64) -> Self {
        let slices = run.slices.iter().map(|bucket| SliceFigures {
            longest_ms: (bucket.longest.get() < u64::MAX).then(|| bucket.longest.get() as f64 / 1e6),
            slices: bucket.slices,
            idle_s: bucket.idle.as_secs_f64(),
            recovered_s: bucket.recovered.as_secs_f64(),
        });
        Self {
            schema: SCHEMA,
            key,
            summary: run.summary.clone(),
            slices: slices.collect(),
            window_s,
            devices: run.devices.len() as u32,
        }
    }

    /// Reads the result of the run `key`.
    ///
    /// # Errors
    /// If the text is anything else.
    pub fn parse(text: &str, key: &str) -> Result<Self, OutcomeError> {
        let outcome: Self = serde_json::from_str(text)?;
        if outcome.schema != SCHEMA {
            return Err(OutcomeError::Schema { found: outcome.schema });
        }
        if outcome.key != key {
            return Err(OutcomeError::Key { found: outcome.key, expected: key.to_owned() });
        }
        outcome.check()?;
        Ok(outcome)
    }

    fn check(&self) -> Result<(), OutcomeError> {
        let within = |figure, value: f64, most: f64, expected| match (0.0..=most).contains(&value) {
            true => Ok(()),
            false => Err(OutcomeError::Figure { figure, value, expected }),
        };
        let summary = &self.summary;
        let rate = |figure, value| within(figure, value, 1e15, "a number from 0 to 1e15");
        let share = |figure, value| within(figure, value, 1.0 + 1e-6, "a share from 0 to 1");
        rate("token_throughput", summary.token_throughput)?;
        rate("input_token_throughput", summary.input_token_throughput)?;
        rate("output_token_throughput", summary.output_token_throughput)?;
        rate("flop_weighted_throughput", summary.flop_weighted_throughput)?;
        rate("goodput", summary.goodput)?;
        rate("decision_us", summary.decision_us.mean)?;
        rate("wall_s", summary.wall_s)?;
        share("sla_violation_rate", summary.sla_violation_rate)?;
        share("busy_share", summary.busy_share)?;
        share("idle_slice_recovery", summary.idle_slice_recovery)?;
        for tenant in &summary.tenants {
            share("sla_violation_rate of a tenant", tenant.sla_violation_rate)?;
            rate("token_throughput of a tenant", tenant.token_throughput)?;
            for latency in [tenant.ttft_ms, tenant.tpot_ms] {
                rate("a latency", latency.p50)?;
                rate("a latency", latency.p99)?;
            }
        }
        for slice in &self.slices {
            rate("idle_s of a slice", slice.idle_s)?;
            within("recovered_s of a slice", slice.recovered_s, slice.idle_s + 1e-6, "at most idle_s")?;
        }
        within("window_s", self.window_s, 1e9, "a number from 0 to 1e9")
    }

    /// Seconds of all devices in which their owners ran nothing.
    pub fn idle_s(&self) -> f64 {
        self.slices.iter().map(|slice| slice.idle_s).sum()
    }

    /// The share of one core that decisions took. Measured; zero if they were not.
    pub fn deciding_share(&self) -> f64 {
        let length = self.window_s.max(f64::MIN_POSITIVE);
        self.summary.decision_us.mean * self.summary.decisions as f64 / 1e6 / length
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEPT: &str = r#"{"schema":1,"key":"k","summary":{"name":"static","token_throughput":10.5,
        "input_token_throughput":8.0,"output_token_throughput":2.5,"flop_weighted_throughput":1.0,"goodput":10.0,
        "sla_violation_rate":0.25,"tenants":[{"name":"a","class":"latency-sensitive","sla_violation_rate":0.25,
        "ttft_ms":{"p50":1.0,"p99":2.0},"tpot_ms":{"p50":1.0,"p99":2.0},"token_throughput":10.5,"arrived":4,
        "completed":4,"preemptions":0}],"memory_violations":0,"busy_share":0.5,"idle_slice_recovery":0.25,
        "peak_memory_gib":3.5,"recalls":1,"decisions":9,"decision_us":{"p50":1.0,"p99":2.0,"mean":1.5},"what_ifs":3,
        "sim_ops_per_ms":4.0,"sim_entries_per_ms":2.0,"wall_s":0.125},
        "slices":[{"longest_ms":1.0,"slices":3,"idle_s":2.0,"recovered_s":1.0}],"window_s":60.0,"devices":2}"#;

    #[test]
    fn a_result_is_read_as_it_was_written() {
        let outcome = Outcome::parse(KEPT, "k").unwrap();
        let again = Outcome::parse(&serde_json::to_string(&outcome).unwrap(), "k").unwrap();
        assert_eq!(again, outcome);
        assert_eq!(outcome.idle_s(), 2.0);
    }

    #[test]
    fn other_results_and_impossible_figures_are_refused() {
        let refused = |old: &str, new: &str| {
            assert!(KEPT.contains(old), "{old}");
            Outcome::parse(&KEPT.replace(old, new), "k").unwrap_err().to_string()
        };
        assert_eq!(refused("\"schema\":1", "\"schema\":2"), "of schema 2: expected 1");
        assert_eq!(refused("\"k\"", "\"other\""), "the result of \"other\": expected that of \"k\"");
        let share = refused("\"busy_share\":0.5", "\"busy_share\":1.5");
        assert_eq!(share, "busy_share is 1.5: expected a share from 0 to 1");
        assert_eq!(
            refused("\"recovered_s\":1.0", "\"recovered_s\":3.0"),
            "recovered_s of a slice is 3: expected at most idle_s"
        );
        assert!(refused("\"devices\":2", "\"devices\":2,\"more\":1").starts_with("not a result"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// What is accepted has figures that can be computed with.
        #[test]
        fn no_damage_to_a_result_makes_its_reader_panic(
            changes in prop::collection::vec((any::<prop::sample::Index>(), 0..=3_u8, any::<u8>()), 1..6),
        ) {
            let mut bytes = KEPT.as_bytes().to_vec();
            for (place, kind, byte) in changes {
                let place = place.index(bytes.len());
                match kind {
                    0 => bytes[place] = byte,
                    1 => drop(bytes.remove(place)),
                    2 => bytes[place] = b'0' + byte % 10,
                    _ => bytes.insert(place, byte),
                }
            }
            if let Ok(outcome) = Outcome::parse(&String::from_utf8_lossy(&bytes), "k") {
                prop_assert!(outcome.summary.token_throughput.is_finite() && outcome.idle_s().is_finite());
                prop_assert!(outcome.deciding_share() >= 0.0);
            }
        }
    }
}
