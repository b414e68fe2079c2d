//! The figures of a replay as a table for the terminal.
//!
//! Plain text without colours, at most [`WIDTH`] columns: one block with the figures of the
//! policies, then one block per tenant. Where more policies ran than fit side by side, the blocks
//! are repeated for the rest; ratios are always to the first policy.

use std::fmt::Write as _;

use crate::report::figure::{self, Figure, NOTHING, OF_POLICY, OF_TENANT};
use crate::report::{PolicySummary, Summary, USEFUL_SCALING};

/// The most characters in a line.
pub const WIDTH: usize = 110;

const GAP: usize = 3;
const NAME_LIMIT: usize = 32;

/// The table of a summary. The first line says whether the figures are `simulated` or `measured`.
///
/// Numbers that are not finite, and figures that do not apply, are printed as `-`.
///
/// ```
/// use slicescheduler::report::{Summary, table};
///
/// let summary = Summary {
///     schema: 1,
///     measured: false,
///     scenario: "empty".into(),
///     seed: 7,
///     duration_s: 60.0,
///     rate_scale: 1.0,
///     core_scaling: None,
///     policies: Vec::new(),
/// };
/// assert!(table::render(&summary).starts_with("simulated: empty, seed 7, window 60 s"));
/// ```
pub fn render(summary: &Summary) -> String {
    let mut text = String::new();
    let scenario = figure::printable(&summary.scenario, NAME_LIMIT);
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{}: {scenario}, seed {}, window {} s, rate scale {}",
        figure::provenance(summary),
        summary.seed,
        figure::given(summary.duration_s),
        figure::given(summary.rate_scale),
    );
    if let Some(scaling) = summary.core_scaling {
        let void = if scaling < USEFUL_SCALING { ": too little, ratios between policies are void" } else { "" };
        let _ = writeln!(text, "two cores did {scaling:.2}x the work of one{void}");
    }
    let Some(first) = summary.policies.first() else {
        text.push_str("no policy ran\n");
        return text;
    };

    let blocks = blocks(summary, first);
    let labels = blocks.iter().map(Block::label_width).max().unwrap_or(0);
    let columns: Vec<Column> = (0..summary.policies.len()).map(|policy| Column::fit(&blocks, policy)).collect();
    let mut from = 0;
    while from < columns.len() {
        let mut to = from;
        let mut used = labels;
        while to < columns.len() && (to == from || used + GAP + columns[to].width() <= WIDTH) {
            used += GAP + columns[to].width();
            to += 1;
        }
        for block in &blocks {
            text.push('\n');
            block.print(&mut text, labels, &columns[from..to], from);
        }
        from = to;
    }
    text.push_str(
        "\nRatios are to the first policy. Decision, forecast and replay times are measured on this machine.\n",
    );
    text
}

/// Rows under one heading, a cell per policy.
struct Block {
    title: String,
    names: Vec<String>,
    rows: Vec<Row>,
}

struct Row {
    label: String,
    cells: Vec<Cell>,
}

struct Cell {
    text: String,
    ratio: String,
}

fn blocks(summary: &Summary, first: &PolicySummary) -> Vec<Block> {
    let names: Vec<String> =
        summary.policies.iter().map(|policy| figure::printable(&policy.name, NAME_LIMIT)).collect();
    let policies: Vec<Option<&PolicySummary>> = summary.policies.iter().map(Some).collect();
    let mut blocks =
        vec![Block { title: String::new(), names: names.clone(), rows: rows(OF_POLICY, &policies, Some(first)) }];
    for name in figure::tenant_names(summary) {
        let tenants: Vec<_> = summary.policies.iter().map(|policy| figure::tenant_of(policy, name)).collect();
        let class = tenants.iter().flatten().next().map_or("", |tenant| tenant.class.as_str());
        blocks.push(Block {
            title: format!("{} ({})", figure::printable(name, NAME_LIMIT), figure::printable(class, NAME_LIMIT)),
            names: names.clone(),
            rows: rows(OF_TENANT, &tenants, figure::tenant_of(first, name)),
        });
    }
    blocks
}

/// One row per figure, a cell per element of `of`, compared with `base`.
fn rows<T>(figures: &[Figure<T>], of: &[Option<&T>], base: Option<&T>) -> Vec<Row> {
    let mut rows = Vec::new();
    for figure in figures {
        let texts: Vec<Option<String>> = of.iter().map(|value| value.and_then(figure.text)).collect();
        if figure.optional && texts.iter().all(Option::is_none) {
            continue;
        }
        let cells = texts.into_iter().zip(of).enumerate().map(|(index, (text, value))| {
            let ratio = match (value, base) {
                (Some(value), Some(base)) if index > 0 && text.is_some() => figure.ratio(value, base),
                _ => None,
            };
            Cell { text: text.unwrap_or_else(|| NOTHING.to_owned()), ratio: ratio.unwrap_or_default() }
        });
        let indent = if figure.part { "  " } else { "" };
        rows.push(Row { label: format!("{indent}{}", figure.label), cells: cells.collect() });
    }
    rows
}

/// The widths of a policy's column: the numbers, and the ratios to their right.
#[derive(Clone, Copy)]
struct Column {
    text: usize,
    ratio: usize,
}

impl Column {
    fn fit(blocks: &[Block], policy: usize) -> Self {
        let mut column = Self { text: 0, ratio: 0 };
        for block in blocks {
            column.text = column.text.max(width(&block.names[policy]));
            for row in &block.rows {
                column.text = column.text.max(width(&row.cells[policy].text));
                column.ratio = column.ratio.max(width(&row.cells[policy].ratio));
            }
        }
        column
    }

    fn width(self) -> usize {
        if self.ratio == 0 { self.text } else { self.text + 1 + self.ratio }
    }
}

impl Block {
    fn label_width(&self) -> usize {
        self.rows.iter().map(|row| width(&row.label)).chain([width(&self.title)]).max().unwrap_or(0)
    }

    fn print(&self, text: &mut String, labels: usize, columns: &[Column], from: usize) {
        let names = self.names[from..].iter().map(|name| (name.as_str(), ""));
        print_line(text, labels, &self.title, columns, names);
        for row in &self.rows {
            let cells = row.cells[from..].iter().map(|cell| (cell.text.as_str(), cell.ratio.as_str()));
            print_line(text, labels, &row.label, columns, cells);
        }
    }
}

fn print_line<'a>(
    text: &mut String,
    labels: usize,
    label: &str,
    columns: &[Column],
    cells: impl Iterator<Item = (&'a str, &'a str)>,
) {
    let mut line = format!("{label:<labels$}");
    for (column, (cell, ratio)) in columns.iter().zip(cells) {
        let _ = write!(line, "{:GAP$}{cell:>1$}", "", column.text);
        if column.ratio > 0 {
            let _ = write!(line, " {ratio:>0$}", column.ratio);
        }
    }
    text.push_str(line.trim_end());
    text.push('\n');
}

fn width(text: &str) -> usize {
    text.chars().count()
}
