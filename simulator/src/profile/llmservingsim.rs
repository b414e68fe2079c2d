//! Profiles of LLMServingSim: kernel times of one layer of a model under vLLM.
//!
//! A profile is a folder with `meta.yaml` and one folder `tp<n>` per degree of tensor parallelism,
//! with the times in microseconds, of one rank and one call:
//!
//! | file | columns | what it is |
//! |---|---|---|
//! | `dense.csv` | `layer,tokens` | operators whose work follows the tokens of the iteration |
//! | `per_sequence.csv` | `layer,sequences` | operators on one row per sequence: `lm_head`, `sampler` |
//! | `attention.csv` | `prefill_chunk,kv_prefill,n_decode,kv_decode` | attention of a chunk behind `kv_prefill` tokens beside `n_decode` decodes of `kv_decode` tokens each |
//! | `moe.csv` | `tokens,activated_experts`, maybe `ep` | a block of experts; only for mixtures of experts |
//! | `skew.csv` | `n,nb,pc,kp,kvs,kv_big,kv_mean` | attention of `n` decodes of which `nb` have `kv_big` tokens and the others `kvs`, and of as many with the mean length |
//!
//! All but the last have the time in `time_us`; `skew.csv` has `t_mean_us` and `t_skew_us`, summed over the
//! iterations of the measurement. Other columns are ignored. A time that is not above zero, a number that
//! is none, or a column that is missing is an error that names file, line and column; so is a time that the
//! device cannot have, of a model and a device that are known ([`Yardstick`]). Files for
//! kernels that this reader does not know (`linear_attention.csv`, `mtp.csv`) are refused rather than left out of
//! the sum.
//!
//! [`StepModel`] turns a profile into the time of an iteration.

mod attention;
mod experts;
mod judge;
mod skew;
mod step;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use super::columns::{self, ColumnView};
use super::{Axis, Columns, ProfileError, Table, TableError};
pub use attention::{AttentionTables, Load};
pub use experts::ExpertTable;
use judge::Judge;
pub use judge::{LayerShape, Yardstick};
pub use skew::{Lag, SkewTable};
pub use step::{Block, Exchange, Step, StepModel, StepParts};

/// The largest number that a coordinate of a profile may be.
const LARGEST: f64 = (1u64 << 32) as f64;
/// Files for kernels that the sum of an iteration would miss.
const UNKNOWN_KERNELS: [&str; 2] = ["linear_attention.csv", "mtp.csv"];

/// What `meta.yaml` says.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct ProfileMeta {
    /// The device, as its driver calls it.
    pub gpu: String,
    /// The device, as the folder is called.
    #[serde(default)]
    pub hardware: String,
    /// The model.
    pub model: String,
    /// The engine that was measured.
    #[serde(default)]
    pub vllm_version: String,
    /// The types of its weights and its KV cache, such as `bf16`.
    #[serde(default)]
    pub variant: String,
    /// The degrees of tensor parallelism that were measured.
    pub tp_degrees: Vec<u32>,
    skew_profile: Switch,
    skew_fit: Switch,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Switch {
    enabled: bool,
}

impl ProfileMeta {
    /// Reads `meta.yaml` of a profile's folder.
    ///
    /// # Errors
    /// If it cannot be read or describes no profile: `gpu`, `model`, `tp_degrees`, `skew_profile` and `skew_fit` must be
    /// there, the last two with `enabled`.
    pub fn read(folder: &Path) -> Result<Self, ProfileError> {
        let (file, bytes) = columns::read(&folder.join("meta.yaml"))?;
        serde_norway::from_slice(&bytes).map_err(|error| {
            let (row, column) = error.location().map_or((0, 0), |place| (place.line(), place.column()));
            let what = error.to_string().replacen(&format!(" at line {row} column {column}"), "", 1);
            ProfileError::Malformed {
                file,
                row,
                what: format!(
                    "{what}; expected the whole meta.yaml of a profile, with gpu, model, tp_degrees, skew_profile.enabled \
                     and skew_fit.enabled"
                ),
            }
        })
    }

    /// True unless the profile says that it was made without the costs of unequal lengths. Files of
    /// them may lie beside it all the same, from another session or another version; the format's own rule
    /// is that they do not count then.
    pub fn has_skew(&self) -> bool {
        self.skew_profile.enabled || self.skew_fit.enabled
    }
}

/// A profile at one degree of tensor parallelism.
#[derive(Clone, Debug)]
pub struct Profile {
    /// What it says about itself.
    pub meta: ProfileMeta,
    /// The degree of tensor parallelism: ranks of which each computes a part of every operator.
    pub tp: u32,
    /// By operator and tokens, in nanoseconds.
    pub dense: BTreeMap<String, Table>,
    /// By operator and sequences, in nanoseconds.
    pub per_sequence: BTreeMap<String, Table>,
    /// Attention.
    pub attention: AttentionTables,
    /// Blocks of experts, if the model has them.
    pub experts: Option<ExpertTable>,
    /// What unequal lengths cost, if that was measured.
    pub skew: Option<SkewTable>,
    folder: PathBuf,
}

impl Profile {
    /// Reads the profile in `folder` at degree `tp`, of a device or a model that is not known.
    ///
    /// # Errors
    /// If a file is missing or not as described, or there are kernels of a kind that is not known.
    pub fn read(folder: &Path, tp: u32) -> Result<Self, ProfileError> {
        Self::read_judged(folder, tp, None)
    }

    /// As [`read`](Self::read), with every time held against what the device can do.
    ///
    /// # Errors
    /// As [`read`](Self::read); also if a time is faster than the device's peaks, or slower by far.
    pub fn read_judged(folder: &Path, tp: u32, yardstick: Option<&Yardstick>) -> Result<Self, ProfileError> {
        let meta = ProfileMeta::read(folder)?;
        if !meta.tp_degrees.contains(&tp) {
            let file = folder.join("meta.yaml").display().to_string().into();
            let what = format!("tp_degrees {:?}: expected {tp} among them", meta.tp_degrees);
            return Err(ProfileError::Malformed { file, row: 0, what });
        }
        let judge = &Judge::new(yardstick, tp, &meta.variant);
        let folder = folder.join(format!("tp{tp}"));
        if let Some(file) = UNKNOWN_KERNELS.iter().map(|name| folder.join(name)).find(|file| file.exists()) {
            return Err(ProfileError::Unsupported { file: file.display().to_string().into() });
        }
        let attention = AttentionTables::read(&folder.join("attention.csv"), judge)?;
        let skew_file = folder.join("skew.csv");
        let skew = match meta.has_skew() && skew_file.exists() {
            true => Some(SkewTable::read(&skew_file, &attention, judge)?),
            false => None,
        };
        let moe_file = folder.join("moe.csv");
        let experts = if moe_file.exists() { Some(ExpertTable::read(&moe_file, judge)?) } else { None };
        Ok(Self {
            meta,
            tp,
            dense: by_layer(&folder.join("dense.csv"), "tokens", judge)?,
            per_sequence: by_layer(&folder.join("per_sequence.csv"), "sequences", judge)?,
            attention,
            experts,
            skew,
            folder,
        })
    }

    /// The folder of its tables.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// One table per value of the column `layer`, over the column `axis`.
fn by_layer(file: &Path, axis: &'static str, judge: &Judge<'_>) -> Result<BTreeMap<String, Table>, ProfileError> {
    let columns = Columns::read_csv(file)?;
    let (layer, at, time) = (columns.column("layer")?, columns.column(axis)?, columns.column("time_us")?);
    let mut builders = BTreeMap::new();
    for row in 0..columns.rows() {
        let (point, nanos) = (number(at, row)?, nanos(time, row)?);
        let name = layer.text(row)?.to_owned();
        judge.operator(&name, point, nanos, &time.place(row))?;
        let builder = builders.entry(name).or_insert_with(|| Table::builder([Axis::linear(axis)]));
        builder.sample(&[point], nanos).map_err(|source| refuse(&columns, "a row", source))?;
    }
    if builders.is_empty() {
        return Err(refuse(&columns, "its rows", TableError::Empty));
    }
    let build = |(name, builder): (String, super::TableBuilder)| {
        let table = builder.build().map_err(|source| refuse(&columns, &name, source))?;
        Ok((name, table))
    };
    builders.into_iter().map(build).collect()
}

/// A number from 0 to [`LARGEST`].
fn number(column: ColumnView<'_>, row: usize) -> Result<f64, ProfileError> {
    let number = column.number(row).ok().filter(|number| (0.0..=LARGEST).contains(number));
    number.ok_or_else(|| column.refuse(row, "a number from 0 to 2^32"))
}

/// A time of microseconds above zero, in nanoseconds.
fn nanos(column: ColumnView<'_>, row: usize) -> Result<f64, ProfileError> {
    column.nanos(row, 1e3)
}

fn refuse(columns: &Columns, table: &str, source: TableError) -> ProfileError {
    ProfileError::Table { file: Arc::clone(columns.file()), table: table.into(), source }
}
