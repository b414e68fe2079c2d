//! Reading scenario files, and finding the traces that they name.

use std::cell::RefCell;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::raw::RawScenario;
use super::validate::Validator;
use super::{Location, Scenario, ScenarioError};

const DEFAULT: &str = include_str!("default.toml");
const CPU: &str = include_str!("cpu.toml");

/// The largest scenario file that is read.
const LARGEST_FILE: u64 = 4 << 20;

impl Scenario {
    /// Reads and validates the scenario in `file`. A relative trace path is looked for in
    /// `data_dir`, where given (with its folders, then without), then beside the scenario file.
    ///
    /// # Errors
    /// [`ScenarioError`], for the first thing that is wrong.
    pub fn load(file: &Path, data_dir: Option<&Path>) -> Result<Self, ScenarioError> {
        let read_error = |source| ScenarioError::Read { file: file.into(), source };
        let mut text = String::new();
        let opened = std::fs::File::open(file).map_err(read_error)?;
        opened.take(LARGEST_FILE + 1).read_to_string(&mut text).map_err(read_error)?;
        if text.len() as u64 > LARGEST_FILE {
            let message = format!("longer than {LARGEST_FILE} bytes: expected a scenario of at most that");
            return Err(ScenarioError::Syntax { at: Location::file(file), message });
        }
        Self::parse(&text, file, data_dir)
    }

    /// Validates the scenario in `text` as [`load`](Self::load) does. `file` is its name in
    /// messages, and its folder is where relative trace paths start.
    ///
    /// # Errors
    /// [`ScenarioError`], for the first thing that is wrong.
    pub fn parse(text: &str, file: &Path, data_dir: Option<&Path>) -> Result<Self, ScenarioError> {
        let raw: RawScenario = toml::from_str(text).map_err(|error| syntax_error(&error, text, file))?;
        Validator { file, text, data_dir, stand_ins: None }.scenario(raw)
    }

    /// As [`parse`](Self::parse), but a trace that is not there is replaced by the generator that the
    /// workload names as its `stand_in`. Tenants with equal shifts of one trace then have equal
    /// arrivals, as with the trace. Gives the traces that were replaced.
    ///
    /// # Errors
    /// [`ScenarioError`], for the first thing that is wrong; a missing trace without stand-in is.
    pub fn parse_or_generate(
        text: &str,
        file: &Path,
        data_dir: Option<&Path>,
    ) -> Result<(Self, Vec<String>), ScenarioError> {
        let raw: RawScenario = toml::from_str(text).map_err(|error| syntax_error(&error, text, file))?;
        let replaced = RefCell::new(Vec::new());
        let scenario = Validator { file, text, data_dir, stand_ins: Some(&replaced) }.scenario(raw)?;
        Ok((scenario, replaced.into_inner()))
    }

    /// The default workload: generated, on 8 H100. Three latency-sensitive tenants with two
    /// replicas each, two arriving like the Azure code trace and one like the conversation trace,
    /// and a best-effort tenant with a backlog on the other two devices.
    ///
    /// # Errors
    /// None while the embedded text is the one that the crate was released with.
    pub fn embedded() -> Result<Self, ScenarioError> {
        Self::parse(DEFAULT, Path::new("default.toml"), None)
    }

    /// The default workload of the CPU backend: a bursty latency-sensitive tenant and a
    /// best-effort tenant with the tiny decoder, 20 s on two CPU lanes.
    ///
    /// # Errors
    /// None while the embedded text is the one that the crate was released with.
    pub fn embedded_cpu() -> Result<Self, ScenarioError> {
        Self::parse(CPU, Path::new("cpu.toml"), None)
    }
}

fn syntax_error(error: &toml::de::Error, text: &str, file: &Path) -> ScenarioError {
    let at = match error.span() {
        Some(span) => Location::at(file, text, span.start),
        None => Location::file(file),
    };
    let line = at.position.and_then(|(line, _)| text.lines().nth(line as usize - 1)).map(str::trim).unwrap_or_default();
    let shown: String = line.chars().take(80).collect();
    let message = if shown.is_empty() { error.message().into() } else { format!("{} (in: {shown})", error.message()) };
    ScenarioError::Syntax { at, message }
}

/// Where the trace `named` is looked for, in this order.
pub(super) fn candidates(named: &Path, scenario: &Path, data_dir: Option<&Path>) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    if let Some(data_dir) = data_dir {
        paths.push(data_dir.join(named));
        paths.extend(named.file_name().map(|name| data_dir.join(name)));
    }
    paths.push(scenario.parent().unwrap_or(Path::new("")).join(named));
    paths.dedup();
    paths
}
