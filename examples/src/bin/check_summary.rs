//! Checks a `summary.json` of `replay` against what the project promises of `slice-fill`.
//!
//! Simulated runs: at least 1.8 times the tokens of `static` (input, output and FLOP-weighted each
//! at least 0.98 times), not fewer than `idle-priority`, no memory violation; the worst tenant's
//! violation rate at most 0.09 and at most 0.01 above that of `static`, or at most half of it where
//! `static` itself is above 0.09. With `--saturated`: at least 0.98 times the tokens of `static`, no
//! memory violation. Runs with real kernels: the same answers under every policy, and no memory
//! violation.

use std::path::Path;
use std::process::ExitCode;

use slicescheduler::report::{PolicySummary, Summary};
use slicescheduler_examples::{conclude, output};

fn main() -> ExitCode {
    let mut arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let saturated = arguments.first().is_some_and(|first| first == "--saturated");
    if saturated {
        arguments.remove(0);
    }
    let [path] = &arguments[..] else {
        output::complain("usage: check-summary [--saturated] SUMMARY.json");
        return ExitCode::from(2);
    };
    match read(Path::new(path)) {
        Ok(summary) => {
            let checks = match (summary.measured, saturated) {
                (true, _) => measured(&summary),
                (false, true) => busy(&summary),
                (false, false) => simulated(&summary),
            };
            let line =
                |(what, holds): &(String, bool)| format!("{} {what}\n", if *holds { "ok    " } else { "FAILED" });
            let printed = output::unless_closed(output::print(checks.iter().map(line).collect::<String>()));
            match printed {
                Ok(()) if checks.iter().all(|(_, holds)| *holds) => ExitCode::SUCCESS,
                Ok(()) => ExitCode::FAILURE,
                Err(error) => conclude(Err(error.into())),
            }
        }
        Err(error) => {
            output::complain(format_args!("error: {}: {error}", Path::new(path).display()));
            ExitCode::FAILURE
        }
    }
}

fn read(path: &Path) -> Result<Summary, Box<dyn std::error::Error>> {
    Ok(serde_json::from_str(&std::fs::read_to_string(path)?)?)
}

type Checks = Vec<(String, bool)>;

fn find<'a>(summary: &'a Summary, name: &str) -> Option<&'a PolicySummary> {
    summary.policies.iter().find(|policy| policy.name == name)
}

fn simulated(summary: &Summary) -> Checks {
    let (Some(fixed), Some(idle), Some(fill)) =
        (find(summary, "static"), find(summary, "idle-priority"), find(summary, "slice-fill"))
    else {
        return vec![("static, idle-priority and slice-fill were run".to_owned(), false)];
    };
    let mut checks = Checks::new();
    let mut ratio = |what: &str, value: f64, base: f64, least: f64| {
        let ratio = value / base;
        checks.push((format!("{what}: {ratio:.3} of static, at least {least}"), ratio >= least));
    };
    ratio("tokens", fill.token_throughput, fixed.token_throughput, 1.8);
    ratio("input tokens", fill.input_token_throughput, fixed.input_token_throughput, 0.98);
    ratio("output tokens", fill.output_token_throughput, fixed.output_token_throughput, 0.98);
    ratio("FLOP-weighted tokens", fill.flop_weighted_throughput, fixed.flop_weighted_throughput, 0.98);
    let over_idle = fill.token_throughput / idle.token_throughput;
    checks.push((format!("tokens: {over_idle:.3} of idle-priority, at least 1"), over_idle >= 1.0));
    let (worst, base) = (fill.sla_violation_rate, fixed.sla_violation_rate);
    if base > 0.09 {
        checks.push((format!("worst tenant violates {worst:.4}, at most half of {base:.4}"), worst <= base / 2.0));
    } else {
        checks.push((format!("worst tenant violates {worst:.4}, at most 0.09"), worst <= 0.09));
        checks.push((format!("worst tenant violates {worst:.4}, at most 0.01 above {base:.4}"), worst <= base + 0.01));
    }
    checks.push((format!("memory violations {}", fill.memory_violations), fill.memory_violations == 0));
    checks
}

fn busy(summary: &Summary) -> Checks {
    let (Some(fixed), Some(fill)) = (find(summary, "static"), find(summary, "slice-fill")) else {
        return vec![("static and slice-fill were run".to_owned(), false)];
    };
    let ratio = fill.token_throughput / fixed.token_throughput;
    vec![
        (format!("tokens: {ratio:.3} of static, at least 0.98"), ratio >= 0.98),
        (format!("memory violations {}", fill.memory_violations), fill.memory_violations == 0),
    ]
}

fn measured(summary: &Summary) -> Checks {
    let mut checks = Checks::new();
    let hashes: Vec<_> = summary.policies.iter().map(|policy| policy.tokens_hash.as_deref()).collect();
    let equal = hashes.iter().all(|hash| hash.is_some() && *hash == hashes[0]);
    let compared = summary.policies.iter().filter_map(|policy| policy.answers_compared).min().unwrap_or(0);
    let completed = |policy: &PolicySummary| policy.tenants.iter().map(|tenant| tenant.completed).sum::<u64>();
    let fewest = summary.policies.iter().map(completed).min().unwrap_or(0);
    checks.push((format!("{compared} answers are equal under every policy"), equal));
    let enough = compared > 0 && compared * 10 >= fewest * 9;
    checks.push((format!("{compared} answers were compared, at least 90 % of {fewest}"), enough));
    for policy in &summary.policies {
        let violations = policy.memory_violations;
        checks.push((format!("{}: memory violations {violations}", policy.name), violations == 0));
        checks
            .push((format!("{}: tokens {:.0}/s", policy.name, policy.token_throughput), policy.token_throughput > 0.0));
    }
    checks
}
