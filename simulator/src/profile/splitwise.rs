//! The CSV file of splitwise-sim (Patel et al. 2024): whole iterations of a model.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use slicescheduler_gmg::cluster::DeviceSpec;

use super::columns::Columns;
use super::device::{DeviceProfile, Measure, Samples};
use super::error::ProfileError;

/// Nanoseconds of a millisecond.
const MS: f64 = 1e6;

/// Reads all measurements of `path`, by the name that the file has for the hardware, such as
/// `h100-80gb`. `device` says what that hardware is; names for which it has no answer are left
/// out.
///
/// Prompts are measured by batch and prompt length; the time per token by batch and the mean
/// context while `token_size` tokens are generated, `prompt_size + token_size / 2`.
///
/// # Errors
/// As [`ProfileError`] says.
pub fn read(
    path: &Path,
    device: impl Fn(&str) -> Option<DeviceSpec>,
) -> Result<BTreeMap<String, DeviceProfile>, ProfileError> {
    profiles(&Columns::read_csv(path)?, device)
}

/// [`read`] of columns in memory.
///
/// # Errors
/// As [`ProfileError`] says.
pub fn profiles(
    columns: &Columns,
    device: impl Fn(&str) -> Option<DeviceSpec>,
) -> Result<BTreeMap<String, DeviceProfile>, ProfileError> {
    let (hardware, model) = (columns.column("hardware")?, columns.column("model")?);
    let (prompt_size, batch) = (columns.column("prompt_size")?, columns.column("batch_size")?);
    let (token_size, parallel) = (columns.column("token_size")?, columns.column("tensor_parallel")?);
    let (prompt_time, token_time) = (columns.column("prompt_time")?, columns.column("token_time")?);
    let mut names: BTreeMap<&str, Option<DeviceSpec>> = BTreeMap::new();
    for row in 0..columns.rows() {
        let name = hardware.text(row)?;
        names.entry(name).or_insert_with(|| device(name));
    }
    let mut all: BTreeMap<&str, Samples<'_>> =
        names.iter().filter_map(|(name, spec)| Some((*name, Samples::new(spec.as_ref()?)))).collect();
    for row in 0..columns.rows() {
        let Some(samples) = all.get_mut(hardware.text(row)?) else { continue };
        let model: Arc<str> = model.text(row)?.into();
        let tensor_parallel = parallel.count(row)?;
        let (batch, prompt) = (f64::from(batch.count(row)?), f64::from(prompt_size.count(row)?));
        let context = prompt + f64::from(token_size.count(row)?) * 0.5;
        for (time, prompt, length) in [(&prompt_time, true, prompt), (&token_time, false, context)] {
            let measure = Measure::Iteration { model: Arc::clone(&model), tensor_parallel, prompt };
            samples.add(measure, &[batch, length], time.nanos(row, MS)?, time.place(row))?;
        }
    }
    let build = |(name, samples): (&str, Samples<'_>)| {
        Ok((name.to_owned(), samples.build(columns.file(), "rows of iterations")?))
    };
    all.into_iter().map(build).collect()
}

/// The devices that the file's names for hardware stand for. Power-capped ones have no
/// specification of their own and are left out.
pub fn known_device(hardware: &str) -> Option<DeviceSpec> {
    match hardware {
        "a100-80gb" => Some(DeviceSpec::a100_sxm_80()),
        "h100-80gb" => Some(DeviceSpec::h100_sxm()),
        _ => None,
    }
}
