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
    /// The longest prompt, in tokens; at least 1.
    pub max_prompt: u32,
    /// The longest output, in tokens; at least 1.
    pub max_output: u32,
}

impl Default for Lengths {
    /// As they are.
    fn default() -> Self {
        Self { prompt_scale: 1.0, output_scale: 1.0, max_prompt: MAX_TOKENS, max_output: MAX_TOKENS }
    }
}

impl Lengths {
    /// `prompt` and `output` scaled, rounded to nearest, kept within 1 and the longest.
    pub fn apply(self, prompt: u32, output: u32) -> (u32, u32) {
        (scaled(prompt, self.prompt_scale, self.max_prompt), scaled(output, self.output_scale, self.max_output))
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
    /// Scales and caps token counts. A record's prefix blocks are dropped when its prompt length changes,
    /// for they no longer cover it.
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
        let (prompt, output) = self.lengths.apply(record.prompt, record.output);
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
}
