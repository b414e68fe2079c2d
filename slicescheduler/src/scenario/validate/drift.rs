//! Lengths that drift in the course of a replay.

use slicescheduler_gmg::units::Nanos;
use toml::Spanned;

use super::{Checked, Validator};
use crate::scenario::raw::{FACTOR, FACTORS, RawDrift};
use crate::workload::Drift;

impl Validator<'_> {
    /// The drift of a workload whose requests arrive for `duration`: factors in range, and a beginning before the end.
    pub(super) fn drift(&self, key: &str, duration: Nanos, raw: Option<&Spanned<RawDrift>>) -> Checked<Option<Drift>> {
        let Some(raw) = raw else { return Ok(None) };
        let RawDrift { prompts, answers, from, until } = raw.get_ref();
        let factor = |name: &str, value: &Option<Spanned<f64>>| match value {
            None => Ok(1.0),
            Some(value) if FACTORS.contains(value.get_ref()) => Ok(*value.get_ref()),
            Some(value) => Err(self.error(value.span(), &format!("{key}.drift.{name}"), value.get_ref(), FACTOR)),
        };
        let (prompts, answers) = (factor("prompts", prompts)?, factor("answers", answers)?);
        let until = until.as_ref().map(|until| until.get_ref().0);
        let end = until.unwrap_or(duration);
        let from = match from {
            None => Nanos::ZERO,
            Some(from) if from.get_ref().0 < end => from.get_ref().0,
            Some(from) => {
                let expected = format!("a time before its end ({end})");
                return Err(self.error(from.span(), &format!("{key}.drift.from"), from.get_ref().0, expected));
            }
        };
        match until {
            Some(Nanos::ZERO) => {
                Err(self.error(raw.span(), &format!("{key}.drift.until"), "zero", "a time above zero"))
            }
            _ => Ok(Some(Drift { prompts, answers, from, until })),
        }
    }
}
