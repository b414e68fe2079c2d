//! What the benchmarks and side-by-side programs have in common: how a figure is compared with its
//! target and written down.
//!
//! A figure is one [`Target`]. [`print_and_write`] prints a table of them and writes
//! `target/targets/<area>.json`, from which reports are made.

#![forbid(unsafe_code)]

pub mod graphs;
pub mod output;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;

use serde_json::{Value, json};

/// Which way a figure should go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// At most the bound.
    Lower,
    /// At least the bound.
    Higher,
}

/// A figure beside what it should be.
#[derive(Clone, Debug)]
pub struct Target {
    /// Which row of the targets; stable.
    pub name: &'static str,
    /// The figure.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// What is to be reached.
    pub bound: f64,
    /// On which side of the bound.
    pub better: Better,
    /// The same figure of somebody else's program in the same run.
    pub peer: Option<(&'static str, f64)>,
    /// False if the figure comes from a simulation.
    pub measured: bool,
    /// Threads that were at work.
    pub threads: u32,
}

impl Target {
    /// A figure of one thread, measured, without a peer, that should be at most `bound`.
    pub fn at_most(name: &'static str, value: f64, unit: &'static str, bound: f64) -> Self {
        Self { name, value, unit, bound, better: Better::Lower, peer: None, measured: true, threads: 1 }
    }

    /// True if the bound is reached.
    pub fn is_met(&self) -> bool {
        self.is_met_by(self.value)
    }

    fn is_met_by(&self, value: f64) -> bool {
        match self.better {
            Better::Lower => value <= self.bound,
            Better::Higher => value >= self.bound,
        }
    }

    /// The figure with one decimal, and more where it would look to be on the other side of its bound.
    fn figure(&self) -> String {
        let mut shown = (1..17).map(|decimals| format!("{:.decimals$}", self.value));
        let agrees = |text: &String| text.parse().is_ok_and(|shown| self.is_met_by(shown) == self.is_met());
        shown.find(agrees).unwrap_or_else(|| self.value.to_string())
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "bound": self.bound,
            "better": match self.better { Better::Lower => "lower", Better::Higher => "higher" },
            "peer": self.peer.map(|(name, value)| json!({ "name": name, "value": value })),
            "met": self.is_met(),
            "measured": self.measured,
            "threads": self.threads,
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, unit, bound, better, threads, .. } = self;
        let sign = if *better == Better::Lower { "<=" } else { ">=" };
        let how = if self.measured { "measured" } else { "simulated" };
        let met = if self.is_met() { "met" } else { "missed" };
        let value = self.figure();
        write!(f, "{name:<60} {value:>12} {unit} ({sign} {bound} {unit}: {met}; {how}, {threads} thread")?;
        f.write_str(if *threads == 1 { ")" } else { "s)" })?;
        match self.peer {
            Some((peer, theirs)) => {
                let ratio = if *better == Better::Lower { theirs / self.value } else { self.value / theirs };
                write!(f, "; {peer} {theirs:.1} {unit}, ratio {ratio:.2}")
            }
            None => Ok(()),
        }
    }
}

/// Writes the figures to `target/targets/<area>.json` and prints them, if anybody reads.
///
/// # Errors
/// If the file or standard output cannot be written.
pub fn print_and_write(area: &str, targets: &[Target]) -> io::Result<()> {
    write(area, targets)?;
    output::unless_closed(output::print(lines(targets)))
}

/// The figures, one on a line.
pub fn lines(targets: &[Target]) -> String {
    targets.iter().map(|target| format!("{target}\n")).collect()
}

/// Writes the figures to `target/targets/<area>.json`.
///
/// # Errors
/// If the file cannot be written.
pub fn write(area: &str, targets: &[Target]) -> io::Result<()> {
    let folder = target_folder().join("targets");
    let file = folder.join(format!("{area}.json"));
    let rows: Vec<_> = targets.iter().map(Target::json).collect();
    let text = format!("{:#}\n", Value::from(rows));
    let written = fs::create_dir_all(&folder).and_then(|()| write_whole(&file, &text));
    written.map_err(|error| {
        io::Error::new(error.kind(), format!("the figures cannot be written to {}: {error}", file.display()))
    })
}

/// Writes a file beside its place and moves it there, so that it is whole or not there.
fn write_whole(file: &Path, text: &str) -> io::Result<()> {
    let unfinished = file.with_extension(format!("{}.unfinished", process::id()));
    let written = fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, file));
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    written
}

fn target_folder() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => folder.into(),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target"),
    }
}

/// Rows that are measured together, under the name by which a command line chooses them.
pub type Group = (&'static str, fn() -> Result<Vec<Target>, Box<dyn std::error::Error>>);

/// The rows of the groups that the command line names, printed; without names those of all, which are also written as
/// [`print_and_write`] does.
///
/// # Errors
/// If a group fails, or the file cannot be written.
pub fn run_groups(area: &str, groups: &[Group]) -> Result<(), Box<dyn std::error::Error>> {
    let chosen: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let mut targets = Vec::new();
    for (name, rows) in groups {
        if chosen.is_empty() || chosen.iter().any(|chosen| chosen == name) {
            targets.extend(rows()?);
        }
    }
    if chosen.is_empty() {
        return Ok(print_and_write(area, &targets)?);
    }
    Ok(output::unless_closed(output::print(lines(&targets)))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_met_on_its_side_of_the_bound() {
        let slow = Target::at_most("x", 3.0, "ns", 2.0);
        assert!(!slow.is_met());
        assert!(Target { better: Better::Higher, ..slow.clone() }.is_met());
        let fast = Target { better: Better::Higher, peer: Some(("theirs", 1.5)), ..slow.clone() };
        assert!(fast.to_string().ends_with("theirs 1.5 ns, ratio 2.00"), "{fast}");
        let peer = Target { peer: Some(("theirs", 6.0)), ..slow };
        assert_eq!(peer.json()["peer"]["value"], 6.0);
        assert!(peer.to_string().ends_with("(<= 2 ns: missed; measured, 1 thread); theirs 6.0 ns, ratio 2.00"));
    }

    #[test]
    fn a_figure_close_to_its_bound_is_shown_on_its_side_of_it() {
        let shown = |value, better| {
            let text = Target { better, ..Target::at_most("x", value, "x", 1.1) }.to_string();
            text.split_whitespace().nth(1).map(str::to_owned)
        };
        for (value, better, expected) in [
            (1.0987, Better::Higher, "1.099"),
            (1.1, Better::Higher, "1.1"),
            (1.1004, Better::Lower, "1.1004"),
            (1.1004, Better::Higher, "1.1"),
            (0.94, Better::Higher, "0.9"),
            (f64::NAN, Better::Higher, "NaN"),
        ] {
            assert_eq!(shown(value, better).as_deref(), Some(expected), "{value} {better:?}");
        }
    }
}
