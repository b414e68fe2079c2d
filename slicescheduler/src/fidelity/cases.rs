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
    /// Why folders, profiles and files of prefix blocks cannot be read.
    pub unreadable: Vec<FidelityError>,
}

/// Every run below `folder`, with the profile of its model, device and tensor-parallel degree, and the hashes of its
/// prompts' blocks. One that cannot be read keeps no other from being found, and neither does a folder.
///
/// A run is a folder with `meta.json` and `requests.jsonl`, a profile one with `meta.yaml` and a folder `tp<n>`;
/// prefix blocks are in `*.prefix-blocks.jsonl`, gzipped or not.
///
/// # Errors
/// If `folder` itself cannot be read.
pub fn find(folder: &Path) -> Result<Found, FidelityError> {
    let (mut runs, mut profiles, mut prefixes) = (Vec::new(), Vec::new(), Vec::new());
    let mut unreadable = Vec::new();
    let mut each = |folder: &Path, files: &[PathBuf]| {
        let has = |name: &str| folder.join(name).exists();
        if has("meta.json") && has("requests.jsonl") {
            runs.push(folder.to_path_buf());
        }
        if has("meta.yaml") && (0..4).any(|power| folder.join(format!("tp{}", 1u32 << power)).is_dir()) {
            profiles.push(folder.to_path_buf());
        }
        prefixes.extend(files.iter().filter(|file| has_prefixes(file)).cloned());
    };
    search(folder, entries(folder)?, DEPTH, &mut each, &mut unreadable);
    [&mut runs, &mut profiles, &mut prefixes].into_iter().for_each(|found| found.sort());
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

/// What is in a folder.
#[derive(Default)]
struct Entries {
    folders: Vec<PathBuf>,
    /// What is no folder, links to folders among it.
    files: Vec<PathBuf>,
}

/// Calls `each` with `folder` and all folders below it down to `depth`, and with the files in each. Why folders below
/// it cannot be read is noted.
fn search(
    folder: &Path,
    entries: Entries,
    depth: u32,
    each: &mut dyn FnMut(&Path, &[PathBuf]),
    unreadable: &mut Vec<FidelityError>,
) {
    each(folder, &entries.files);
    for below in entries.folders.iter().filter(|_| depth > 0) {
        if let Some(entries) = or_note(self::entries(below), unreadable) {
            search(below, entries, depth - 1, each, unreadable);
        }
    }
}

fn entries(folder: &Path) -> Result<Entries, FidelityError> {
    let io = |source| FidelityError::Io { file: folder.into(), source };
    let mut entries = Entries::default();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let entry = entry.map_err(io)?;
        let is_folder = entry.file_type().map_err(io)?.is_dir();
        let place = if is_folder { &mut entries.folders } else { &mut entries.files };
        place.push(entry.path());
    }
    Ok(entries)
}
