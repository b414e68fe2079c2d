//! The figures and pictures of a replay as one HTML page.
//!
//! The page is a single file that refers to nothing outside itself, so it can be opened from disk,
//! mailed or archived. Tables and bars are plain markup and need no script; timelines, utilisation
//! and memory are drawn by a short script from data in the page. Runs of any length fit: what is
//! drawn is cut or binned to at most a few megabytes (see [`write()`]).

mod data;
mod figures;
mod text;

use std::io::{self, Write};

use crate::report::{RunRecord, Summary, figure};
use data::Extent;
pub(crate) use text::Escaped;
use text::Tenants;

/// How pages look.
pub(crate) const STYLE: &str = include_str!("html/page.css");
const SCRIPT: &str = include_str!("html/page.js");

/// Writes the page for `summary`, with the pictures of `runs`.
///
/// Every string of the arguments is escaped: names are whatever the user wrote. Numbers that are
/// not finite are printed as `-`.
///
/// The pictures hold at most 100,000 spans over all runs (the common detail window ends earlier
/// where there are more, and the page says so), the first 64 devices of a run, and about 600 bins
/// of utilisation and memory per device. A bin of memory keeps the moment with the most bytes in
/// use, so a peak is never lost.
///
/// # Errors
/// Those of `out`.
pub fn write(summary: &Summary, runs: &[RunRecord], out: &mut impl Write) -> io::Result<()> {
    let mut out = io::BufWriter::new(out);
    let tenants = Tenants::of(summary, runs);
    let extent = Extent::of(runs);
    let title = format!("{} replay of {}", figure::provenance(summary), summary.scenario);
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n",
        Escaped(&title)
    )?;
    figures::header(&mut out, summary, runs)?;
    figures::policies(&mut out, summary)?;
    figures::throughput(&mut out, summary, &tenants)?;
    figures::service_levels(&mut out, summary, &tenants)?;
    pictures(&mut out, runs, &tenants, &extent)?;
    figures::definitions(&mut out, summary)?;
    out.write_all(
        b"</main>\n<div id=\"tip\" role=\"status\" hidden></div>\n<script type=\"application/json\" id=\"data\">",
    )?;
    data::write(&mut out, runs, &tenants, &extent)?;
    write!(out, "</script>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n")?;
    out.flush()
}

/// The headings and legends of the pictures; the script draws into the figures.
fn pictures(out: &mut impl Write, runs: &[RunRecord], tenants: &Tenants<'_>, extent: &Extent) -> io::Result<()> {
    if runs.is_empty() {
        return Ok(());
    }
    section(
        out,
        runs,
        "timeline",
        "Device timeline",
        "What ran on each device in the detail window: the owner's work in the upper track of a row, guests' work in \
         the lower one. Solid is prefill, pale is decode; a mark below a guest is a recall. Zoomed out, a column is \
         as high as the share of its time. Drag to zoom, double-click for the whole window, Ctrl and wheel to zoom \
         around the pointer; with the focus on a chart, arrows move and + and - zoom. All policies show the same time.",
        |out| {
            if extent.cut {
                writeln!(
                    out,
                    "<p class=\"note\">The detail window ends early, where the page holds {} spans.</p>",
                    figure::grouped(data::MAX_SPANS as u64)
                )?;
            }
            figures::legend(out, tenants)
        },
    )?;
    section(
        out,
        runs,
        "use",
        "Utilisation",
        "Share of each device's time over the whole run: the owner's work in its colour, guests' work on top in grey. \
         The bar on the axis is the detail window.",
        |_| Ok(()),
    )?;
    section(
        out,
        runs,
        "memory",
        "Memory",
        "Bytes in use on each device over the whole run, by kind, with the peak in digits. The dashed line \
         is what may be used.",
        figures::memory_legend,
    )
}

fn section<W: Write>(
    out: &mut W,
    runs: &[RunRecord],
    kind: &str,
    title: &str,
    note: &str,
    legend: impl FnOnce(&mut W) -> io::Result<()>,
) -> io::Result<()> {
    writeln!(out, "<section>\n<h2>{title}</h2>\n<p class=\"note\">{note}</p>")?;
    legend(out)?;
    for (index, run) in runs.iter().enumerate() {
        writeln!(out, "<h3>{}</h3>", Escaped(&run.summary.name))?;
        if run.devices.is_empty() {
            writeln!(out, "<p class=\"note\">No device was recorded.</p>")?;
            continue;
        }
        writeln!(out, "<figure class=\"picture\" data-kind=\"{kind}\" data-run=\"{index}\"></figure>")?;
        if run.devices.len() > data::MAX_DEVICES {
            writeln!(
                out,
                "<p class=\"note\">The first {} of {} devices.</p>",
                data::MAX_DEVICES,
                figure::grouped(run.devices.len() as u64)
            )?;
        }
    }
    writeln!(out, "<noscript><p class=\"note\">This picture needs JavaScript.</p></noscript>\n</section>")
}
