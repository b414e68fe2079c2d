//! When the tokens of a tenant's requests are due.

use slicescheduler_gmg::tenant::{Class, Slo};

use super::{Checked, Validator};
use crate::scenario::raw::{FACTOR, FACTORS, RawSlo, RawTenant};

impl Validator<'_> {
    /// The service level of a tenant, or how many times alone each of its requests may take: one of them for a
    /// latency-sensitive tenant, none for a best-effort one.
    pub(super) fn slo(&self, tenant: &str, class: Class, raw: &RawTenant) -> Checked<(Option<Slo>, Option<f64>)> {
        let (key, relative_key) = (format!("{tenant}.slo"), format!("{tenant}.relative_slo"));
        match (class, &raw.slo, &raw.relative_slo) {
            (Class::LatencySensitive, Some(slo), None) => {
                let RawSlo { ttft, tpot } = slo.get_ref();
                let slo = Slo {
                    ttft: self.positive(&format!("{key}.ttft"), ttft)?,
                    tpot: self.positive(&format!("{key}.tpot"), tpot)?,
                };
                Ok((Some(slo), None))
            }
            (Class::LatencySensitive, None, Some(factor)) if FACTORS.contains(factor.get_ref()) => {
                Ok((None, Some(*factor.get_ref())))
            }
            (Class::LatencySensitive, None, Some(factor)) => {
                Err(self.error(factor.span(), &relative_key, factor.get_ref(), FACTOR))
            }
            (Class::LatencySensitive, Some(_), Some(factor)) => {
                Err(self.error(factor.span(), &relative_key, "set", "none beside slo"))
            }
            (Class::LatencySensitive, None, None) => {
                let expected =
                    "{ ttft = \"400ms\", tpot = \"40ms\" } or the like for a latency-sensitive tenant, or relative_slo";
                Err(self.error(raw.name.span(), &key, "missing", expected))
            }
            (Class::BestEffort, None, None) => Ok((None, None)),
            (Class::BestEffort, Some(slo), _) => {
                Err(self.error(slo.span(), &key, "set", "none for a best-effort tenant"))
            }
            (Class::BestEffort, None, Some(factor)) => {
                Err(self.error(factor.span(), &relative_key, "set", "none for a best-effort tenant"))
            }
        }
    }
}
