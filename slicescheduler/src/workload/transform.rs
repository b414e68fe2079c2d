//! What is done to records between their source and a replay.

use slicescheduler_gmg::units::Nanos;

use super::error::WorkloadError;
use super::{ArrivalRecord, MAX_TOKENS};

/// Scales token counts, then caps them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lengths {
    /// Multiplies prompt lengths.
    pub prompt_scale: f64,
    /// Multiplies output lengths.
    pub output_scale: f64,
    /// Multiplies both once more, by factors that change with time.
    pub drift: Option<Drift>,
    /// The longest prompt, in tokens; at least 1.
    pub max_prompt: u32,
    /// The longest output, in tokens; at least 1.
    pub max_output: u32,
}

impl Default for Lengths {
    /// As they are.
    fn default() -> Self {
        Self { prompt_scale: 1.0, output_scale: 1.0, drift: None, max_prompt: MAX_TOKENS, max_output: MAX_TOKENS }
    }
}

impl Lengths {
    /// `prompt` and `output` scaled, rounded to nearest, kept within 1 and the longest. Without a time there is no drift.
    pub fn apply(self, prompt: u32, output: u32) -> (u32, u32) {
        (scaled(prompt, self.prompt_scale, self.max_prompt), scaled(output, self.output_scale, self.max_output))
    }

    /// The same for a request that arrives at `at`, where the last ones arrive before `end`. Lengths are rounded
    /// once, after all factors.
    pub fn apply_at(self, at: Nanos, end: Nanos, prompt: u32, output: u32) -> (u32, u32) {
        let Some(drift) = self.drift else { return self.apply(prompt, output) };
        let (prompts, answers) = drift.factors(at, end);
        let drifted =
            Self { prompt_scale: self.prompt_scale * prompts, output_scale: self.output_scale * answers, ..self };
        drifted.apply(prompt, output)
    }
}

/// Lengths that change in the course of a replay: factors that are 1 at first and go linearly to what is stated here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drift {
    /// What prompt lengths are multiplied by in the end; above zero and finite.
    pub prompts: f64,
    /// What output lengths are multiplied by in the end; above zero and finite.
    pub answers: f64,
    /// Requests that arrive until then are as they are.
    pub from: Nanos,
    /// Requests that arrive from then on have the whole factors; the end of arrivals if absent.
    pub until: Option<Nanos>,
}

impl Drift {
    /// The factors of prompts and of answers that arrive at `at`, where the last requests arrive before `end`. A drift that
    /// does not begin before it ends is a step.
    pub fn factors(self, at: Nanos, end: Nanos) -> (f64, f64) {
        let until = self.until.unwrap_or(end);
        let share = match at {
            _ if at >= until => 1.0,
            _ if at <= self.from => 0.0,
            _ => (at - self.from).as_secs_f64() / (until - self.from).as_secs_f64(),
        };
        let factor = |last: f64| 1.0 + (last - 1.0) * share;
        (factor(self.prompts), factor(self.answers))
    }
}

fn scaled(tokens: u32, factor: f64, longest: u32) -> u32 {
    ((f64::from(tokens) * factor + 0.5) as u32).clamp(1, longest.clamp(1, MAX_TOKENS))
}

/// What is done to a stream of records, in this order: times divided by the rate scale, token
/// counts scaled, the end cut off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transform {
    /// Divides times, so that 2 doubles the rate; above zero and finite.
    pub rate_scale: f64,
    /// Scales and caps token counts, by the time after scaling. A record's prefix blocks are dropped when its prompt
    /// length changes, for they no longer cover it.
    pub lengths: Lengths,
    /// Records at or after this time (after scaling) end the stream.
    pub until: Nanos,
}

impl Default for Transform {
    /// Changes nothing.
    fn default() -> Self {
        Self { rate_scale: 1.0, lengths: Lengths::default(), until: Nanos::MAX }
    }
}

impl Transform {
    /// The records of `records`, transformed. Arrival order is kept.
    pub fn apply<I>(self, records: I) -> Transformed<I::IntoIter>
    where
        I: IntoIterator<Item = Result<ArrivalRecord, WorkloadError>>,
    {
        Transformed { transform: self, records: records.into_iter(), ended: false }
    }

    fn record(&self, mut record: ArrivalRecord) -> ArrivalRecord {
        if self.rate_scale != 1.0 {
            record.at = Nanos((record.at.0 as f64 / self.rate_scale + 0.5) as u64);
        }
        let (prompt, output) = self.lengths.apply_at(record.at, self.until, record.prompt, record.output);
        if prompt != record.prompt {
            record.prefix = None;
        }
        ArrivalRecord { prompt, output, ..record }
    }
}

/// The iterator of [`Transform::apply`].
#[derive(Clone, Debug)]
pub struct Transformed<I> {
    transform: Transform,
    records: I,
    ended: bool,
}

impl<I> Iterator for Transformed<I>
where
    I: Iterator<Item = Result<ArrivalRecord, WorkloadError>>,
{
    type Item = Result<ArrivalRecord, WorkloadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let record = self.records.next().map(|record| record.map(|record| self.transform.record(record)));
        self.ended = match &record {
            Some(Ok(record)) => record.at >= self.transform.until,
            Some(Err(_)) | None => true,
        };
        record.filter(|record| record.is_err() || !self.ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Result<ArrivalRecord, WorkloadError> {
        Ok(ArrivalRecord { at: Nanos::ms(ms), prompt: 100, output: 3, prefix: None })
    }

    #[test]
    fn a_rate_scale_of_two_halves_times() {
        let transform = Transform { rate_scale: 2.0, ..Transform::default() };
        let times: Vec<_> = transform.apply([at(0), at(5), at(1000)]).map(|r| r.unwrap().at).collect();
        assert_eq!(times, [Nanos::ZERO, Nanos::us(2_500), Nanos::ms(500)]);
    }

    #[test]
    fn the_cut_is_exclusive_and_final() {
        let transform = Transform { until: Nanos::ms(5), ..Transform::default() };
        let mut records = transform.apply([at(0), at(4), at(5), at(4)]);
        assert!(records.next().is_some() && records.next().is_some());
        assert!(records.next().is_none() && records.next().is_none());
    }

    #[test]
    fn lengths_round_to_nearest_and_stay_at_least_one() {
        let lengths = Lengths { prompt_scale: 0.25, output_scale: 0.01, ..Lengths::default() };
        assert_eq!(lengths.apply(10, 10), (3, 1));
        let huge = Lengths { prompt_scale: f64::INFINITY, output_scale: 1e300, ..Lengths::default() };
        assert_eq!(huge.apply(1, 1), (MAX_TOKENS, MAX_TOKENS));
        let capped = Lengths { max_prompt: 7, max_output: 0, ..Lengths::default() };
        assert_eq!(capped.apply(8, 8), (7, 1));
    }

    #[test]
    fn lengths_drift_from_the_beginning_to_the_end() {
        let drift = Drift { prompts: 0.5, answers: 3.0, from: Nanos::ZERO, until: None };
        let lengths = Lengths { drift: Some(drift), ..Lengths::default() };
        let transform = Transform { lengths, until: Nanos::ms(100), ..Transform::default() };
        let found: Vec<_> = transform.apply([0, 25, 50, 99].map(at)).map(|r| r.unwrap()).collect();
        // A quarter of the way answers are one and a half times as long: 4.5 tokens.
        let expected = [(100, 3), (88, 5), (75, 6), (51, 9)];
        assert_eq!(found.iter().map(|record| (record.prompt, record.output)).collect::<Vec<_>>(), expected);
        // Twice as fast, the same records are half as far.
        let faster = Transform { rate_scale: 2.0, ..transform };
        assert_eq!(faster.apply([at(50)]).next().unwrap().unwrap().output, 5);
    }

    #[test]
    fn a_drift_between_two_times_holds_its_factors_before_and_after() {
        let drift = Drift { prompts: 1.0, answers: 2.0, from: Nanos::ms(20), until: Some(Nanos::ms(40)) };
        let answers = |ms| drift.factors(Nanos::ms(ms), Nanos::ms(100)).1;
        assert_eq!([0, 20, 25, 40, 99].map(answers), [1.0, 1.0, 1.25, 2.0, 2.0]);
        let step = Drift { until: Some(Nanos::ms(20)), ..drift };
        assert_eq!([19, 20].map(|ms| step.factors(Nanos::ms(ms), Nanos::ms(100)).1), [1.0, 2.0]);
        let lengths = Lengths {
            drift: Some(Drift { prompts: 1e-4, answers: 1e4, ..drift }),
            max_output: 64,
            ..Lengths::default()
        };
        assert_eq!(lengths.apply_at(Nanos::ms(40), Nanos::ms(100), 100, 3), (1, 64), "within 1 and the longest");
        assert_eq!(lengths.apply(100, 3), (100, 3));
    }

    #[test]
    fn prefixes_outlive_a_drift_of_answers_alone() {
        let prefix = Some(crate::workload::PrefixBlocks { block_tokens: 100, blocks: [7].into() });
        let drifted = |drift: Drift| {
            let lengths = Lengths { drift: Some(drift), ..Lengths::default() };
            let record = ArrivalRecord { prefix: prefix.clone(), ..at(9).unwrap() };
            let transform = Transform { lengths, until: Nanos::ms(10), ..Transform::default() };
            transform.apply([Ok(record)]).next().unwrap().unwrap().prefix
        };
        let answers = Drift { prompts: 1.0, answers: 3.0, from: Nanos::ZERO, until: None };
        assert_eq!(drifted(answers), prefix);
        assert_eq!(drifted(Drift { prompts: 1.5, ..answers }), None);
    }
}
