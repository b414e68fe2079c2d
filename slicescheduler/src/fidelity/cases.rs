//! The runs in a folder, each with its profile.

use std::path::{Path, PathBuf};

use super::{DeviceFacts, FidelityError, ModelShape, PrefixBlocks, Run};
use crate::simulator::profile::llmservingsim::{Profile, ProfileMeta, Yardstick};

/// How deep folders are searched.
const DEPTH: u32 = 6;

/// A run and the profile to predict it from.
#[derive(Debug)]
pub struct Case {
    /// The run.
    pub run: Run,
    /// The profile.
    pub profile: Profile,
    /// The model's shape.
    pub shape: ModelShape,
}

impl Case {
    /// The run in `run` with the profile in `profile`, whose times are held against what its device can do, if that
    /// is known. The model's shape is that of `shape`, else that of a
    /// `model_config.json` in either folder, else the published one.
    ///
    /// # Errors
    /// If a file cannot be read or understood, a time contradicts the device, or the shape of the model is not known.
    pub fn read(run: Run, profile: &Path, shape: Option<&Path>) -> Result<Self, FidelityError> {
        let beside = [&run.folder, profile].map(|folder| folder.join("model_config.json"));
        let given = shape.map(Path::to_path_buf).or_else(|| beside.into_iter().find(|file| file.exists()));
        let shape = match given {
            Some(file) => ModelShape::read(&file)?,
            None => {
                ModelShape::of(&run.model).ok_or_else(|| FidelityError::UnknownModel { model: run.model.clone() })?
            }
        };
        let device = DeviceFacts::of(&ProfileMeta::read(profile)?.gpu).and_then(|facts| facts.peaks());
        let yardstick = device.map(|device| Yardstick { device, layer: shape.layer() });
        let profile = Profile::read_judged(profile, run.parallel().tensor, yardstick.as_ref())?;
        Ok(Self { run, profile, shape })
    }
}

/// What is below a folder.
#[derive(Debug, Default)]
pub struct Found {
    /// The folders of the runs, in the order of their names, each with what belongs to the run, or why it cannot be predicted.
    pub cases: Vec<(PathBuf, Result<Case, FidelityError>)>,
    /// Why profiles and files of prefix blocks cannot be read.
    pub unreadable: Vec<FidelityError>,
}

/// Every run below `folder`, with the profile of its model, device and tensor-parallel degree, and the hashes of its
/// prompts' blocks. One that cannot be read keeps no other from being found.
///
/// A run is a folder with `meta.json` and `requests.jsonl`, a profile one with `meta.yaml` and a folder `tp<n>`;
/// prefix blocks are in `*.prefix-blocks.jsonl`, gzipped or not.
///
/// # Errors
/// If a folder cannot be read.
pub fn find(folder: &Path) -> Result<Found, FidelityError> {
    let (mut runs, mut profiles, mut prefixes) = (Vec::new(), Vec::new(), Vec::new());
    folders(folder, DEPTH, &mut |folder, entries| {
        let has = |name: &str| folder.join(name).exists();
        if has("meta.json") && has("requests.jsonl") {
            runs.push(folder.to_path_buf());
        }
        if has("meta.yaml") && (0..4).any(|power| folder.join(format!("tp{}", 1u32 << power)).is_dir()) {
            profiles.push(folder.to_path_buf());
        }
        prefixes.extend(entries.iter().filter(|file| has_prefixes(file)).cloned());
    })?;
    [&mut runs, &mut profiles, &mut prefixes].into_iter().for_each(|found| found.sort());
    let mut unreadable = Vec::new();
    let profiles: Vec<_> = profiles
        .into_iter()
        .filter_map(|at| Some((or_note(ProfileMeta::read(&at).map_err(Into::into), &mut unreadable)?, at)))
        .collect();
    let prefixes: Vec<_> =
        prefixes.iter().filter_map(|file| or_note(PrefixBlocks::read(file), &mut unreadable)).collect();
    let case = |at: &Path| {
        let mut run = Run::read(at)?;
        // The first that are its own are taken.
        let _ = prefixes.iter().any(|blocks| blocks.describe(&mut run).is_ok());
        let profile = profile_of(&run, &profiles, folder)?;
        Case::read(run, profile, None)
    };
    let cases = runs.into_iter().map(|at| (at.clone(), case(&at))).collect();
    Ok(Found { cases, unreadable })
}

fn or_note<T>(read: Result<T, FidelityError>, unreadable: &mut Vec<FidelityError>) -> Option<T> {
    read.map_err(|error| unreadable.push(error)).ok()
}

/// The profile for `run` among `profiles`: of the same model and device, with its tensor-parallel degree.
fn profile_of<'a>(run: &Run, profiles: &'a [(ProfileMeta, PathBuf)], below: &Path) -> Result<&'a Path, FidelityError> {
    let device = run.device.clone().unwrap_or_default();
    let tp = run.parallel().tensor;
    let last = |name: &str| name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
    let fits = |(meta, folder): &&(ProfileMeta, PathBuf)| {
        let same_device = meta.gpu == device || meta.hardware.eq_ignore_ascii_case(&device);
        same_device && last(&meta.model) == last(&run.model) && folder.join(format!("tp{tp}")).is_dir()
    };
    let found = profiles.iter().find(fits).map(|(_, folder)| &**folder);
    found.ok_or_else(|| FidelityError::NoProfile { model: run.model.clone(), device, tp, folder: below.into() })
}

fn has_prefixes(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".prefix-blocks.jsonl") || name.ends_with(".prefix-blocks.jsonl.gz")
}

/// Calls `each` with `folder` and all folders below it down to `depth`, and with what is in each.
fn folders(folder: &Path, depth: u32, each: &mut dyn FnMut(&Path, &[PathBuf])) -> Result<(), FidelityError> {
    let entries = entries(folder)?;
    each(folder, &entries);
    if depth == 0 {
        return Ok(());
    }
    for entry in entries.iter().filter(|entry| entry.is_dir() && !entry.is_symlink()) {
        folders(entry, depth - 1, each)?;
    }
    Ok(())
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, FidelityError> {
    let io = |source| FidelityError::Io { file: folder.into(), source };
    std::fs::read_dir(folder).map_err(io)?.map(|entry| Ok(entry.map_err(io)?.path())).collect()
}
