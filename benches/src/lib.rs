//! What the benchmarks and side-by-side programs have in common: how a figure is compared with its
//! target and written down.
//!
//! A figure is one [`Target`]. [`print_and_write`] prints a table of them and writes
//! `target/targets/<area>.json`, from which reports are made.

#![forbid(unsafe_code)]

pub mod graphs;

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
        match self.better {
            Better::Lower => self.value <= self.bound,
            Better::Higher => self.value >= self.bound,
        }
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
        let Self { name, value, unit, bound, better, threads, .. } = self;
        let sign = if *better == Better::Lower { "<=" } else { ">=" };
        let how = if self.measured { "measured" } else { "simulated" };
        let met = if self.is_met() { "met" } else { "missed" };
        write!(f, "{name:<60} {value:>12.1} {unit} ({sign} {bound} {unit}: {met}; {how}, {threads} thread")?;
        f.write_str(if *threads == 1 { ")" } else { "s)" })?;
        match self.peer {
            Some((peer, theirs)) => {
                let ratio = if *better == Better::Lower { theirs / value } else { value / theirs };
                write!(f, "; {peer} {theirs:.1} {unit}, ratio {ratio:.2}")
            }
            None => Ok(()),
        }
    }
}

/// Prints the figures and writes them to `target/targets/<area>.json`.
///
/// # Errors
/// If the file cannot be written.
pub fn print_and_write(area: &str, targets: &[Target]) -> io::Result<()> {
    for target in targets {
        println!("{target}");
    }
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
        print_and_write(area, &targets)?;
    } else {
        targets.iter().for_each(|target| println!("{target}"));
    }
    Ok(())
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
}
