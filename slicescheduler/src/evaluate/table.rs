//! An evaluation as tables for the terminal, and as Markdown.

use std::fmt::Write as _;

use crate::evaluate::results::{Evaluation, Measured, OURS, Point, Ratios, title};

/// The lines of a table, the heading first.
type Lines = Vec<Vec<String>>;

/// All tables, each under its title. `markdown` chooses between columns of equal width and Markdown.
pub fn render(evaluation: &Evaluation, measured: &Measured, markdown: bool) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "simulated: suite {}; times of decisions and runs are measured\n", evaluation.suite);
    if !evaluation.stand_ins.is_empty() {
        let _ = writeln!(
            text,
            "without the recorded traces {}: generators of the same shapes stand in for them\n",
            evaluation.stand_ins.join(", ")
        );
    }
    let mut put = |title: &str, lines: Lines| {
        if lines.len() > 1 {
            let _ = writeln!(text, "{}{title}\n", if markdown { "## " } else { "" });
            text.push_str(&if markdown { as_markdown(&lines) } else { in_columns(&lines) });
            text.push('\n');
        }
    };
    for points in evaluation.points.chunk_by(|one, next| one.experiment == next.experiment) {
        let title = points.first().map_or("", |point| point.experiment.as_str());
        put(title, of_experiment(points));
    }
    put("capacity: the greatest rate at which the worst tenant violates at most 9 % (1 %)", capacities(evaluation));
    put("small cases: tokens over those of the best schedule, which knows what comes", optima(evaluation));
    put("settings of baselines, found on other seeds", tuned(evaluation));
    put("where another policy is better than slice-fill", losses(evaluation));
    put("what decisions cost (measured)", costs(measured));
    put("targets", targets(evaluation));
    put("not shown, and why", unsupported(evaluation));
    text
}

fn heading<const N: usize>(of: [&str; N]) -> Lines {
    vec![of.map(str::to_owned).to_vec()]
}

fn of_experiment(points: &[Point]) -> Lines {
    let mut lines = heading([
        "way",
        "rate",
        "policy",
        "tokens/s",
        "over static",
        "95 %",
        "input",
        "output",
        "FLOP",
        "worst tenant late",
        "recovered",
        "of the bound",
        "memory violations",
    ]);
    for (point, policy) in points.iter().flat_map(|point| point.policies.iter().map(move |policy| (point, policy))) {
        let ratios = policy.over_static.as_ref();
        let ratio = |of: fn(&Ratios) -> f64| ratios.map_or_else(nothing, |it| format!("{:.3}", of(it)));
        let interval = ratios.filter(|it| it.tokens.samples > 1);
        lines.push(vec![
            if point.variant.is_empty() { nothing() } else { point.variant.clone() },
            point.rate.to_string(),
            policy.policy.clone(),
            format!("{:.0}", policy.tokens.mean),
            ratio(|it| it.tokens.mean),
            interval.map_or_else(nothing, |it| format!("{:.2} to {:.2}", it.tokens.low, it.tokens.high)),
            ratio(|it| it.input),
            ratio(|it| it.output),
            ratio(|it| it.flop_weighted),
            percent(policy.violations),
            percent(policy.recovered),
            point.bound.map_or_else(nothing, |bound| format!("{:.3}", policy.tokens.mean / bound)),
            policy.memory_violations.to_string(),
        ]);
    }
    lines
}

fn capacities(evaluation: &Evaluation) -> Lines {
    let mut lines = heading(["experiment", "policy", "at 9 %", "at 1 %"]);
    let rate = |rate: Option<f64>| rate.map_or_else(nothing, |rate| format!("{rate:.2}"));
    for all in &evaluation.capacities {
        for policy in &all.policies {
            let experiment = title(&all.experiment, &all.variant);
            lines.push(vec![experiment, policy.policy.clone(), rate(policy.at_9_percent), rate(policy.at_1_percent)]);
        }
    }
    lines
}

fn optima(evaluation: &Evaluation) -> Lines {
    let mut lines = heading(["case", "seed", "requests", "best tokens", "proven", "policy", "of the best"]);
    for optimum in &evaluation.optima {
        for (policy, tokens) in &optimum.policies {
            lines.push(vec![
                optimum.case.clone(),
                optimum.seed.to_string(),
                optimum.requests.to_string(),
                optimum.best.to_string(),
                match optimum.best == optimum.at_most {
                    true => "yes".to_owned(),
                    false => format!("at most {}", optimum.at_most),
                },
                policy.clone(),
                format!("{:.3}", *tokens as f64 / optimum.best as f64),
            ]);
        }
    }
    lines
}

fn tuned(evaluation: &Evaluation) -> Lines {
    let mut lines = heading(["policy", "setting", "tried", "tokens over static", "of the usual setting"]);
    for tuned in &evaluation.tuned {
        let options = tuned.options.iter().map(|(name, value)| {
            let value = serde_json::to_string(value).unwrap_or_default();
            format!("{name} = {value}")
        });
        let options: Vec<_> = options.collect();
        let setting = if options.is_empty() { "the usual one".to_owned() } else { options.join(", ") };
        lines.push(vec![
            tuned.policy.clone(),
            setting,
            tuned.tried.to_string(),
            format!("{:.3}", tuned.ratio),
            format!("{:.3}", tuned.usual_ratio),
        ]);
    }
    lines
}

fn losses(evaluation: &Evaluation) -> Lines {
    let mut lines = heading(["where", "rate", "policy", "slice-fill over it", "its worst tenant late", "ours", ""]);
    for loss in evaluation.losses() {
        lines.push(vec![
            loss.title,
            if loss.rate > 0.0 { loss.rate.to_string() } else { nothing() },
            loss.policy,
            format!("{:.3}", loss.ratio),
            percent(loss.violations.0),
            percent(loss.violations.1),
            if loss.keeps { "keeps the service level" } else { "breaks the service level" }.to_owned(),
        ]);
    }
    lines
}

fn costs(measured: &Measured) -> Lines {
    let mut lines = heading(["experiment", "rate", "decision, mean us", "p99 us", "share of a core", "wall, s"]);
    for cost in measured.policies.iter().filter(|cost| cost.policy == OURS) {
        lines.push(vec![
            title(&cost.experiment, &cost.variant),
            cost.rate.to_string(),
            format!("{:.2}", cost.mean_us),
            format!("{:.2}", cost.p99_us),
            format!("{:.3} %", 100.0 * cost.share_of_core),
            format!("{:.1}", cost.wall_s),
        ]);
    }
    lines
}

fn targets(evaluation: &Evaluation) -> Lines {
    let mut lines = heading(["target", "figure", "bound", "", "where"]);
    for row in &evaluation.targets {
        let sign = if row.more_is_better { ">=" } else { "<=" };
        lines.push(vec![
            row.name.clone(),
            format!("{} {}", row.figure(), row.unit),
            format!("{sign} {} {}", row.bound, row.unit),
            if row.is_met() { "met" } else { "missed" }.to_owned(),
            row.note.clone(),
        ]);
    }
    lines
}

fn unsupported(evaluation: &Evaluation) -> Lines {
    let mut lines = heading(["what", "why"]);
    lines.extend(evaluation.unsupported.iter().map(|one| vec![one.what.clone(), one.why.clone()]));
    lines
}

fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

fn nothing() -> String {
    "-".to_owned()
}

fn as_markdown(lines: &Lines) -> String {
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate() {
        let cells: Vec<String> = line.iter().map(|cell| cell.replace('|', "\\|")).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
        if index == 0 {
            let _ = writeln!(text, "|{}", "---|".repeat(line.len()));
        }
    }
    text
}

fn in_columns(lines: &Lines) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for line in lines {
        let mut row = String::new();
        for (index, (cell, &width)) in line.iter().zip(&widths).enumerate() {
            // Names to the left, figures to the right.
            let name = index == 0 || cell.starts_with(|first: char| first.is_alphabetic());
            let _ = if name { write!(row, "{cell:<width$}  ") } else { write!(row, "{cell:>width$}  ") };
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text
}
