//! The figures of a summary in the words and digits that people read, for the terminal and the page
//! alike.

use crate::report::{PolicySummary, Summary, TenantSummary};

/// What stands where there is no number.
pub(super) const NOTHING: &str = "-";

/// One row of a table: a figure of a `T`.
pub(super) struct Figure<T> {
    /// Its name, with the unit.
    pub(super) label: &'static str,
    /// True if it is a part of the figure above it.
    pub(super) part: bool,
    /// True if the row is left out where the figure applies to nobody.
    pub(super) optional: bool,
    /// The number in digits; [`None`] where the figure does not apply.
    pub(super) text: fn(&T) -> Option<String>,
    /// The number that is compared with the first policy's, for figures that are.
    pub(super) compared: Option<fn(&T) -> f64>,
}

impl<T> Figure<T> {
    const fn plain(label: &'static str, text: fn(&T) -> Option<String>) -> Self {
        Self { label, part: false, optional: false, text, compared: None }
    }

    const fn compared(label: &'static str, text: fn(&T) -> Option<String>, value: fn(&T) -> f64) -> Self {
        Self { label, part: false, optional: false, text, compared: Some(value) }
    }

    const fn part(label: &'static str, text: fn(&T) -> Option<String>, value: fn(&T) -> f64) -> Self {
        Self { part: true, ..Self::compared(label, text, value) }
    }

    const fn optional(label: &'static str, text: fn(&T) -> Option<String>) -> Self {
        Self { optional: true, ..Self::plain(label, text) }
    }

    /// How many times the figure of `base` this is; [`None`] where that says nothing.
    pub(super) fn ratio(&self, of: &T, base: &T) -> Option<String> {
        let value = self.compared?;
        let ratio = value(of) / value(base);
        ratio.is_finite().then(|| format!("{ratio:.2}x"))
    }
}

/// Every figure of a policy, in the order of tables.
pub(super) const OF_POLICY: &[Figure<PolicySummary>] = &[
    Figure::compared("token throughput, tokens/s", |p| count(p.token_throughput), |p| p.token_throughput),
    Figure::part("input", |p| count(p.input_token_throughput), |p| p.input_token_throughput),
    Figure::part("output", |p| count(p.output_token_throughput), |p| p.output_token_throughput),
    Figure::part("FLOP-weighted, TFLOP/s", |p| count(p.flop_weighted_throughput), |p| p.flop_weighted_throughput),
    Figure::compared("goodput, tokens/s", |p| count(p.goodput), |p| p.goodput),
    Figure::plain("SLA violations, worst tenant", |p| share(p.sla_violation_rate)),
    Figure::plain("device busy share", |p| share(p.busy_share)),
    Figure::plain("idle-slice recovery", |p| share(p.idle_slice_recovery)),
    Figure::plain("peak memory, GiB", |p| count(p.peak_memory_gib)),
    Figure::optional("forecast of it, GiB", |p| p.forecast_peak_memory_gib.and_then(count)),
    Figure::plain("memory violations", |p| whole(p.memory_violations)),
    Figure::plain("recalls", |p| whole(p.recalls)),
    Figure::plain("decisions", |p| whole(p.decisions)),
    Figure::plain("decision p50 / p99, us", |p| pair(p.decision_us.p50, p.decision_us.p99)),
    Figure::plain("what-if questions", |p| whole(p.what_ifs)),
    Figure::plain("simulated operators per ms", |p| count(p.sim_ops_per_ms)),
    Figure::plain("simulated entries per ms", |p| count(p.sim_entries_per_ms)),
    Figure::plain("replay time, s", |p| count(p.wall_s)),
    Figure::optional("predicted makespan off by", |p| p.predictions.and_then(|p| share(p.makespan_error))),
    Figure::optional("predicted stretches off by", |p| p.predictions.and_then(|p| share(p.mean_error))),
    Figure::optional("rank correlation of predictions", |p| {
        p.predictions.and_then(|p| p.rank_correlation).map(|correlation| format!("{correlation:.3}"))
    }),
    Figure::optional("forecast time beyond samples", |p| p.forecast_coverage.and_then(|c| share(c.extrapolated))),
    Figure::optional("forecast time without samples", |p| p.forecast_coverage.and_then(|c| share(c.modelled))),
    Figure::optional("output tokens (hash)", |p| p.tokens_hash.as_deref().map(|hash| printable(hash, 16))),
];

/// Every figure of a tenant, in the order of tables.
pub(super) const OF_TENANT: &[Figure<TenantSummary>] = &[
    Figure::plain("SLA violations", |t| if has_sla(t) { share(t.sla_violation_rate) } else { None }),
    Figure::plain("TTFT p50 / p99, ms", |t| pair(t.ttft_ms.p50, t.ttft_ms.p99)),
    Figure::plain("TPOT p50 / p99, ms", |t| pair(t.tpot_ms.p50, t.tpot_ms.p99)),
    Figure::compared("token throughput, tokens/s", |t| count(t.token_throughput), |t| t.token_throughput),
    Figure::plain("completed / arrived", |t| Some(format!("{} / {}", grouped(t.completed), grouped(t.arrived)))),
    Figure::plain("preemptions", |t| whole(t.preemptions)),
    Figure::optional("from prefix cache, tokens/s", |t| t.prefix_cache.and_then(|of| count(of.token_throughput))),
    Figure::optional("of prompts' tokens", |t| t.prefix_cache.and_then(|of| share(of.hit_rate))),
    Figure::optional("prefix blocks displaced", |t| t.prefix_cache.and_then(|of| whole(of.displaced_blocks))),
];

/// True if the tenant was promised a service level.
pub(super) fn has_sla(tenant: &TenantSummary) -> bool {
    tenant.class != "best-effort"
}

/// `simulated` or `measured`.
pub(super) fn provenance(summary: &Summary) -> &'static str {
    if summary.measured { "measured" } else { "simulated" }
}

/// The names of all tenants, in the order in which the policies list them first.
pub(super) fn tenant_names(summary: &Summary) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for tenant in summary.policies.iter().flat_map(|policy| &policy.tenants) {
        if !names.contains(&tenant.name.as_str()) {
            names.push(&tenant.name);
        }
    }
    names
}

/// The figures of a tenant under a policy.
pub(super) fn tenant_of<'a>(policy: &'a PolicySummary, name: &str) -> Option<&'a TenantSummary> {
    policy.tenants.iter().find(|tenant| tenant.name == name)
}

/// A quantity with about three significant digits, thousands separated; [`None`] unless finite.
pub(super) fn count(value: f64) -> Option<String> {
    if !value.is_finite() {
        return None;
    }
    let size = value.abs();
    Some(if size >= 99.95 {
        let sign = if value < 0.0 { "-" } else { "" };
        format!("{sign}{}", grouped(size.round() as u64))
    } else if size >= 9.995 {
        format!("{value:.1}")
    } else if size == 0.0 {
        "0".to_owned()
    } else {
        format!("{value:.2}")
    })
}

/// A given value in as many digits as it was given in; [`NOTHING`] unless finite.
pub(super) fn given(value: f64) -> String {
    if value.is_finite() { value.to_string() } else { NOTHING.to_owned() }
}

/// A share of one as a percentage; [`None`] unless finite.
pub(super) fn share(value: f64) -> Option<String> {
    let percent = value * 100.0;
    if !percent.is_finite() {
        None
    } else if percent == 0.0 {
        Some("0 %".to_owned())
    } else if percent.abs() >= 9.995 {
        Some(format!("{percent:.1} %"))
    } else {
        Some(format!("{percent:.2} %"))
    }
}

/// A whole number with its thousands separated.
pub(super) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `text` in at most `limit` characters, control characters replaced.
pub(super) fn printable(text: &str, limit: usize) -> String {
    let mut kept: String = text.chars().take(limit).map(|c| if c.is_control() { '?' } else { c }).collect();
    if text.chars().nth(limit).is_some() {
        kept.truncate(kept.char_indices().nth(limit.saturating_sub(2)).map_or(0, |(at, _)| at));
        kept.push_str("..");
    }
    kept
}

fn whole(value: u64) -> Option<String> {
    Some(grouped(value))
}

fn pair(first: f64, second: f64) -> Option<String> {
    match (count(first), count(second)) {
        (None, None) => None,
        (first, second) => {
            Some(format!("{} / {}", first.as_deref().unwrap_or(NOTHING), second.as_deref().unwrap_or(NOTHING)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_about_three_digits() {
        let written = |value| count(value).unwrap();
        assert_eq!(written(0.0), "0");
        assert_eq!(written(0.054), "0.05");
        assert_eq!(written(9.994), "9.99");
        assert_eq!(written(9.996), "10.0");
        assert_eq!(written(99.96), "100");
        assert_eq!(written(1_234_567.8), "1,234,568");
        assert_eq!(written(-1_234.0), "-1,234");
        assert_eq!(given(1.5), "1.5");
        assert_eq!(given(600.0), "600");
        assert_eq!(share(0.0912).unwrap(), "9.12 %");
        assert_eq!(share(1.0).unwrap(), "100.0 %");
        assert_eq!(grouped(u64::MAX), "18,446,744,073,709,551,615");
    }

    #[test]
    fn what_is_not_a_number_is_not_printed() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(count(value), None);
            assert_eq!(share(value), None);
            assert_eq!(given(value), NOTHING);
        }
        assert_eq!(pair(f64::NAN, 2.0).unwrap(), "- / 2.00");
        assert_eq!(pair(f64::NAN, f64::NAN), None);
    }

    #[test]
    fn long_and_unprintable_names_are_cut() {
        assert_eq!(printable("chat", 4), "chat");
        assert_eq!(printable("chatty", 4), "ch..");
        assert_eq!(printable("a\nb\u{1b}", 8), "a?b?");
        assert_eq!(printable("ÄÖÜäöü", 5), "ÄÖÜ..");
    }
}
