//! The runs in a folder, each with its profile.

use std::path::{Path, PathBuf};

use super::{DeviceFacts, FidelityError, ModelShape, Run};
use crate::simulator::profile::ProfileError;
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

/// The folders of the runs below `folder`: those with `meta.json` and `requests.jsonl`, in order of their names.
///
/// # Errors
/// If a folder cannot be read.
pub fn runs(folder: &Path) -> Result<Vec<PathBuf>, FidelityError> {
    let is_run = |folder: &Path| folder.join("meta.json").exists() && folder.join("requests.jsonl").exists();
    let mut found = Vec::new();
    folders(folder, DEPTH, &mut |folder| {
        if is_run(folder) {
            found.push(folder.into());
        }
    })?;
    found.sort();
    Ok(found)
}

/// The profiles below `folder`: those with `meta.yaml` and a folder `tp<n>`, with what they say about themselves, in
/// order of their names.
///
/// # Errors
/// If a folder cannot be read, or a profile does not describe itself.
pub fn profiles(folder: &Path) -> Result<Vec<(PathBuf, ProfileMeta)>, FidelityError> {
    let mut found = Vec::new();
    folders(folder, DEPTH, &mut |folder| {
        let has_tables = (0..4).any(|power| folder.join(format!("tp{}", 1u32 << power)).is_dir());
        if folder.join("meta.yaml").exists() && has_tables {
            found.push(folder.to_path_buf());
        }
    })?;
    found.sort();
    let read = |folder: PathBuf| -> Result<_, ProfileError> { ProfileMeta::read(&folder).map(|meta| (folder, meta)) };
    Ok(found.into_iter().map(read).collect::<Result<_, _>>()?)
}

/// The profile for `run` among `profiles`: of the same model and device, with its tensor-parallel degree.
///
/// # Errors
/// If there is none.
pub fn profile_of(run: &Run, profiles: &[(PathBuf, ProfileMeta)], below: &Path) -> Result<PathBuf, FidelityError> {
    let device = run.device.clone().unwrap_or_default();
    let tp = run.parallel().tensor;
    let last = |name: &str| name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
    let fits = |(folder, meta): &&(PathBuf, ProfileMeta)| {
        let same_device = meta.gpu == device || meta.hardware.eq_ignore_ascii_case(&device);
        same_device && last(&meta.model) == last(&run.model) && folder.join(format!("tp{tp}")).is_dir()
    };
    let found = profiles.iter().find(fits).map(|(folder, _)| folder.clone());
    found.ok_or_else(|| FidelityError::NoProfile { model: run.model.clone(), device, tp, folder: below.into() })
}

/// The files of prefix blocks below `folder`: `*.prefix-blocks.jsonl`, gzipped or not.
///
/// # Errors
/// If a folder cannot be read.
pub fn prefix_files(folder: &Path) -> Result<Vec<PathBuf>, FidelityError> {
    let mut found = Vec::new();
    let mut error = None;
    folders(folder, DEPTH, &mut |folder| match entries(folder) {
        Ok(entries) => found.extend(entries.into_iter().filter(|file| {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            name.ends_with(".prefix-blocks.jsonl") || name.ends_with(".prefix-blocks.jsonl.gz")
        })),
        Err(failed) => error = Some(failed),
    })?;
    found.sort();
    error.map_or(Ok(found), Err)
}

/// Calls `each` with `folder` and all folders below it down to `depth`.
fn folders(folder: &Path, depth: u32, each: &mut dyn FnMut(&Path)) -> Result<(), FidelityError> {
    each(folder);
    if depth == 0 {
        return Ok(());
    }
    for entry in entries(folder)?.into_iter().filter(|entry| entry.is_dir() && !entry.is_symlink()) {
        folders(&entry, depth - 1, each)?;
    }
    Ok(())
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, FidelityError> {
    let io = |source| FidelityError::Io { file: folder.into(), source };
    std::fs::read_dir(folder).map_err(io)?.map(|entry| Ok(entry.map_err(io)?.path())).collect()
}
