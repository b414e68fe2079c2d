//! An evaluation as one HTML page that refers to nothing outside itself.

use std::io::{self, Write};

use crate::evaluate::outcome::SliceFigures;
use crate::evaluate::plots::{Line, lines, nested_bars};
use crate::evaluate::results::{Evaluation, Measured, OURS, Point};
use crate::evaluate::suite::Group;
use crate::evaluate::table;
use crate::report::html::{Escaped, STYLE};

/// Writes the page.
///
/// # Errors
/// Those of `out`.
pub fn write(evaluation: &Evaluation, measured: &Measured, out: &mut impl Write) -> io::Result<()> {
    let title = format!("Evaluation: {}", evaluation.suite);
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n\
         <style>\n{STYLE}svg {{ max-width: 100%; height: auto; margin: 6px 12px 6px 0; }}\n</style>\n</head>\n\
         <body>\n<main>\n<header>\n<p class=\"badge simulated\"><strong>simulated</strong> No kernel ran. Times of \
         decisions and runs are measured.</p>\n<h1>{}</h1>\n",
        Escaped(&title),
        Escaped(&title)
    )?;
    if !evaluation.stand_ins.is_empty() {
        writeln!(
            out,
            "<p class=\"note\">Without the recorded traces {}: generators of the same shapes stand in for them.</p>",
            Escaped(&evaluation.stand_ins.join(", "))
        )?;
    }
    writeln!(out, "</header>")?;
    over_rates(evaluation, out)?;
    by_length(evaluation, out)?;
    writeln!(out, "<section>\n<h2>Figures</h2>\n<div class=\"wide\"><pre>")?;
    write!(out, "{}", Escaped(&table::render(evaluation, measured, false)))?;
    writeln!(out, "</pre></div>\n</section>\n</main>\n</body>\n</html>")
}

/// Throughput and attainment over the rate, where an experiment has several.
fn over_rates(evaluation: &Evaluation, out: &mut impl Write) -> io::Result<()> {
    let mut points = evaluation.points.as_slice();
    while let Some(first) = points.first() {
        let same = |point: &Point| point.experiment == first.experiment && point.variant == first.variant;
        let count = points.iter().take_while(|point| same(point)).count();
        let (rates, rest) = points.split_at(count);
        points = rest;
        if rates.len() < 2 {
            continue;
        }
        let curve = |of: fn(&crate::evaluate::Policy) -> f64| -> Vec<Line<'_>> {
            names(first)
                .into_iter()
                .map(|name| Line {
                    name,
                    points: rates.iter().filter_map(|point| Some((point.rate, of(point.of(name)?)))).collect(),
                })
                .collect()
        };
        writeln!(out, "<section>\n<h2>{}</h2>", Escaped(&first.title()))?;
        out.write_all(
            lines("rate, times the workload's own", "tokens/s", &curve(|policy| policy.tokens.mean))?.as_bytes(),
        )?;
        let attained = curve(|policy| 100.0 * (1.0 - policy.violations));
        out.write_all(
            lines("rate, times the workload's own", "requests in time, worst tenant, %", &attained)?.as_bytes(),
        )?;
        writeln!(out, "</section>")?;
    }
    Ok(())
}

/// The policies of a point, ours first.
fn names(point: &Point) -> Vec<&str> {
    let ours = point.policies.iter().filter(|policy| policy.policy == OURS);
    let others = point.policies.iter().filter(|policy| policy.policy != OURS);
    ours.chain(others).map(|policy| policy.policy.as_str()).collect()
}

/// Idle slices by length, and what guests made of them, at the own rate of every workload.
fn by_length(evaluation: &Evaluation, out: &mut impl Write) -> io::Result<()> {
    let own = evaluation.points.iter().filter(|point| point.group == Group::Workload && point.rate == 1.0);
    writeln!(
        out,
        "<section>\n<h2>Idle slices by length</h2>\n<p class=\"note\">Left: slices between the work of owners, counted. \
         Right: their time (grey), and the part of it in which guests ran (red). All under {OURS}.</p>"
    )?;
    for point in own {
        let Some(ours) = point.of(OURS) else { continue };
        let used: Vec<&SliceFigures> = ours.slices.iter().filter(|slice| slice.slices > 0).collect();
        let class = |slice: &SliceFigures, whole: f64, part: f64| (length(slice), whole, part);
        let counts: Vec<_> = used.iter().map(|slice| class(slice, slice.slices as f64, 0.0)).collect();
        let times: Vec<_> = used.iter().map(|slice| class(slice, slice.idle_s, slice.recovered_s)).collect();
        writeln!(out, "<h3>{}: {:.1} % of idle time recovered</h3>", Escaped(&point.title()), 100.0 * ours.recovered)?;
        out.write_all(nested_bars("longest slice of the class", "slices", &counts)?.as_bytes())?;
        out.write_all(nested_bars("longest slice of the class", "device seconds", &times)?.as_bytes())?;
    }
    writeln!(out, "</section>")
}

fn length(slice: &SliceFigures) -> String {
    match slice.longest_ms {
        None => "more".to_owned(),
        Some(ms) if ms < 1.0 => format!("{ms:.2}ms"),
        Some(ms) if ms < 1000.0 => format!("{ms:.0}ms"),
        Some(ms) => format!("{:.0}s", ms / 1000.0),
    }
}
