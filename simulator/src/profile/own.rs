//! The project's own format: a folder of CSV files, one per kind of operator.
//!
//! | file | columns before the time |
//! |---|---|
//! | `matmul.csv` | `weight` (element type), `scaling` (`whole` or `blocks`), `m`, `n`, `k` |
//! | `prefill.csv` | `head_dim`, `kv` (element type), `window` (0 for none), `batch`, `length`, `heads`, `kv_heads` |
//! | `chunk.csv` | `head_dim`, `kv`, `window`, `length`, `cached`, `heads`, `kv_heads` |
//! | `decode.csv` | `head_dim`, `kv`, `window`, `batch`, `context`, `heads`, `kv_heads` |
//! | `collective.csv` | `collective` (such as `all_reduce`), `ranks`, `across_nodes` (`true` or `false`), `bytes` |
//! | `elementwise.csv` | `kind` (such as `rms_norm`), `bytes` |
//! | `iteration.csv` | `model`, `tensor_parallel`, `phase` (`prompt` or `token`), `batch`, `length` |
//!
//! Every file also has the column `device`, the name of the device's specification, and exactly
//! one of `time_ns`, `time_us`, `time_ms` and `time_s`: the unit is part of the name. Columns may
//! come in any order; unknown ones and lines that start with `#` are ignored. A point may be
//! measured more than once: the median counts. What the coordinates mean is said at [`Measure`].
//!
//! ```
//! use slicescheduler_gmg::cluster::DeviceSpec;
//! use slicescheduler_simulator::profile::{Columns, own};
//!
//! let text = "device,weight,scaling,m,n,k,time_us\n\
//!             L4,bf16,whole,1,4096,4096,130.5\n\
//!             L4,bf16,whole,256,4096,4096,161.0\n";
//! let profile = own::matmul(&Columns::from_csv("matmul.csv", text.as_bytes())?, &DeviceSpec::l4())?;
//! let (_, table) = profile.tables().next().expect("one table");
//! assert_eq!(table.read(&[1.0, 4096.0, 4096.0]).nanos, 130_500.0);
//! # Ok::<(), slicescheduler_simulator::profile::ProfileError>(())
//! ```

use std::path::Path;
use std::sync::Arc;

use slicescheduler_gmg::cluster::DeviceSpec;
use slicescheduler_gmg::dtype::DType;

use super::columns::{ColumnView, Columns};
use super::device::{AttentionShape, Collective, DeviceProfile, Measure, Samples, Scaling};
use super::error::ProfileError;

type Reader = fn(&Columns, &DeviceSpec) -> Result<DeviceProfile, ProfileError>;

/// The files of a folder, and how each is read.
const FILES: [(&str, Reader); 7] = [
    ("matmul.csv", matmul),
    ("prefill.csv", prefill),
    ("chunk.csv", chunk),
    ("decode.csv", decode),
    ("collective.csv", collective),
    ("elementwise.csv", elementwise),
    ("iteration.csv", iteration),
];

/// The units of time, by column.
const TIMES: [(&str, f64); 4] = [("time_ns", 1.0), ("time_us", 1e3), ("time_ms", 1e6), ("time_s", 1e9)];

/// The element types by name.
const DTYPES: [DType; 7] = [DType::F32, DType::F16, DType::BF16, DType::F8, DType::Q8_0, DType::Q4_0, DType::Q4_1];

/// Reads the files that `folder` has of those above.
///
/// # Errors
/// As [`ProfileError`] says; also if there is none of these files.
pub fn read_folder(folder: &Path, device: &DeviceSpec) -> Result<DeviceProfile, ProfileError> {
    let mut profile = DeviceProfile::new(device.clone());
    for (name, reader) in FILES {
        let path = folder.join(name);
        if path.exists() {
            profile = profile.with_all(reader(&Columns::read_csv(&path)?, device)?);
        }
    }
    if profile.tables().len() == 0 {
        let expected = FILES.map(|(name, _)| name).join(" or ");
        return Err(ProfileError::Empty { file: folder.display().to_string().into(), expected });
    }
    Ok(profile)
}

/// Writes the samples of `profile` into files of `folder`, which is created if it is not there.
/// Reading them gives an equal profile.
///
/// # Errors
/// If a file cannot be written.
pub fn write_folder(folder: &Path, profile: &DeviceProfile) -> Result<(), ProfileError> {
    let io = |source: std::io::Error| ProfileError::Io { file: folder.display().to_string().into(), source };
    std::fs::create_dir_all(folder).map_err(io)?;
    for (file, _) in FILES {
        let tables = profile.tables().filter(|(measure, _)| keys(measure).0 == file);
        let mut writer: Option<csv::Writer<std::fs::File>> = None;
        for (measure, table) in tables {
            let (_, keys) = keys(measure);
            let writer = match &mut writer {
                Some(writer) => writer,
                none => {
                    let mut fresh = csv::Writer::from_path(folder.join(file)).map_err(|error| io(error.into()))?;
                    let names = keys.iter().map(|(name, _)| *name);
                    let axes = table.axes().iter().map(super::Axis::name);
                    let header = std::iter::once("device").chain(names).chain(axes).chain(["time_ns"]);
                    fresh.write_record(header).map_err(|error| io(error.into()))?;
                    none.insert(fresh)
                }
            };
            for (point, nanos) in table.measured_points() {
                let mut record = vec![profile.device().name.to_string()];
                record.extend(keys.iter().map(|(_, value)| value.clone()));
                record.extend(point.iter().chain([&nanos]).map(f64::to_string));
                writer.write_record(&record).map_err(|error| io(error.into()))?;
            }
        }
        if let Some(mut writer) = writer {
            writer.flush().map_err(io)?;
        }
    }
    Ok(())
}

/// The file of a measure, and the columns that tell it from others of the same file.
fn keys(measure: &Measure) -> (&'static str, Vec<(&'static str, String)>) {
    let attention = |shape: &AttentionShape| {
        vec![
            ("head_dim", shape.head_dim.to_string()),
            ("kv", shape.kv.to_string()),
            ("window", shape.window.to_string()),
        ]
    };
    match measure {
        Measure::MatMul { weight, scaling } => {
            let scaling = if *scaling == Scaling::Blocks { "blocks" } else { "whole" };
            ("matmul.csv", vec![("weight", weight.to_string()), ("scaling", scaling.into())])
        }
        Measure::Prefill(shape) => ("prefill.csv", attention(shape)),
        Measure::Chunk(shape) => ("chunk.csv", attention(shape)),
        Measure::Decode(shape) => ("decode.csv", attention(shape)),
        Measure::Collective { kind, ranks, across_nodes } => {
            let keys = vec![
                ("collective", kind.name().into()),
                ("ranks", ranks.to_string()),
                ("across_nodes", across_nodes.to_string()),
            ];
            ("collective.csv", keys)
        }
        Measure::Elementwise(kind) => ("elementwise.csv", vec![("kind", kind.to_string())]),
        Measure::Iteration { model, tensor_parallel, prompt } => {
            let phase = if *prompt { "prompt" } else { "token" };
            let keys = vec![
                ("model", model.to_string()),
                ("tensor_parallel", tensor_parallel.to_string()),
                ("phase", phase.into()),
            ];
            ("iteration.csv", keys)
        }
    }
}

/// Reads `matmul.csv`.
///
/// # Errors
/// As [`ProfileError`] says.
pub fn matmul(columns: &Columns, device: &DeviceSpec) -> Result<DeviceProfile, ProfileError> {
    let (weight, scaling) = (columns.column("weight")?, columns.column("scaling")?);
    collect(columns, device, &["m", "n", "k"], |row| {
        let blocks = choice(&scaling, row, &[("whole", Scaling::Whole), ("blocks", Scaling::Blocks)])?;
        Ok(Measure::MatMul { weight: dtype(&weight, row)?, scaling: blocks })
    })
}

/// Reads `prefill.csv`.
///
/// # Errors
/// As [`ProfileError`] says.
pub fn prefill(columns: &Columns, device: &DeviceSpec) -> Result<DeviceProfile, ProfileError> {
    attention(columns, device, ["batch", "length"], Measure::Prefill)
}

/// Reads `chunk.csv`.
///
/// # Errors
/// As [`ProfileError`] says.
pub fn chunk(columns: &Columns, device: &DeviceSpec) -> Result<DeviceProfile, ProfileError> {
    attention(columns, device, ["length", "cached"], Measure::Chunk)
}

/// Reads `decode.csv`.
///
/// # Errors
/// As [`ProfileError`] says.
pub fn decode(columns: &Columns, device: &DeviceSpec) -> Result<DeviceProfile, ProfileError> {
    attention(columns, device, ["batch", "context"], Measure::Decode)
}

fn attention(
    columns: &Columns,
    device: &DeviceSpec,
    axes: [&str; 2],
    measure: fn(AttentionShape) -> Measure,
) -> Result<DeviceProfile, ProfileError> {
    let (head_dim, kv, window) = (columns.column("head_dim")?, columns.column("kv")?, columns.column("window")?);
    collect(columns, device, &[axes[0], axes[1], "heads", "kv_heads"], |row| {
        let whole = window.whole(row, 0)?;
        let window = u32::try_from(whole).map_err(|_| window.refuse(row, "a number of tokens below 2^32"))?;
        Ok(measure(AttentionShape { head_dim: head_dim.count(row)?, kv: dtype(&kv, row)?, window }))
    })
}

/// Reads `collective.csv`.
///
/// # Errors
/// As [`ProfileError`] says.
pub fn collective(columns: &Columns, device: &DeviceSpec) -> Result<DeviceProfile, ProfileError> {
    let (kind, ranks) = (columns.column("collective")?, columns.column("ranks")?);
    let across = columns.column("across_nodes")?;
    collect(columns, device, &["bytes"], |row| {
        let kind = choice(&kind, row, &Collective::ALL.map(|kind| (kind.name(), kind)))?;
        let across_nodes = choice(&across, row, &[("true", true), ("false", false)])?;
        match ranks.count(row)? {
            1 => Err(ranks.refuse(row, "at least 2 devices")),
            ranks => Ok(Measure::Collective { kind, ranks, across_nodes }),
        }
    })
}

/// Reads `elementwise.csv`.
///
/// # Errors
/// As [`ProfileError`] says.
pub fn elementwise(columns: &Columns, device: &DeviceSpec) -> Result<DeviceProfile, ProfileError> {
    let kind = columns.column("kind")?;
    collect(columns, device, &["bytes"], |row| Ok(Measure::Elementwise(name(&kind, row)?)))
}

/// Reads `iteration.csv`.
///
/// # Errors
/// As [`ProfileError`] says.
pub fn iteration(columns: &Columns, device: &DeviceSpec) -> Result<DeviceProfile, ProfileError> {
    let (model, parallel) = (columns.column("model")?, columns.column("tensor_parallel")?);
    let phase = columns.column("phase")?;
    collect(columns, device, &["batch", "length"], |row| {
        let prompt = choice(&phase, row, &[("prompt", true), ("token", false)])?;
        Ok(Measure::Iteration { model: name(&model, row)?, tensor_parallel: parallel.count(row)?, prompt })
    })
}

/// Collects the rows of a file whose coordinates are in the columns `axes`.
fn collect(
    columns: &Columns,
    device: &DeviceSpec,
    axes: &[&str],
    measure: impl Fn(usize) -> Result<Measure, ProfileError>,
) -> Result<DeviceProfile, ProfileError> {
    let name = columns.column("device")?;
    let (time, unit) = time(columns)?;
    let mut coordinates = Vec::with_capacity(axes.len());
    for axis in axes {
        coordinates.push(columns.column(axis)?);
    }
    let mut samples = Samples::of_any(device);
    let mut point = vec![0.0; axes.len()];
    for row in 0..columns.rows() {
        if name.text(row)? != device.name {
            return Err(name.refuse(row, format!("\"{}\"", device.name)));
        }
        for (value, column) in point.iter_mut().zip(&coordinates) {
            *value = column.number(row)?;
            if *value < 0.0 {
                return Err(column.refuse(row, "a number that is not negative"));
            }
        }
        let nanos = time.nanos(row, unit)?;
        samples.add(measure(row)?, &point, nanos, time.place(row))?;
    }
    samples.build(columns.file(), "measured operators")
}

/// The column of durations, and the nanoseconds of its unit.
fn time(columns: &Columns) -> Result<(ColumnView<'_>, f64), ProfileError> {
    let mut found = TIMES.iter().filter(|(name, _)| columns.has(name));
    match (found.next(), found.next()) {
        (Some((name, unit)), None) => Ok((columns.column(name)?, *unit)),
        (None, _) => Err(ProfileError::MissingColumn {
            file: Arc::clone(columns.file()),
            column: TIMES.map(|(name, _)| name).join("\" or \""),
            found: columns.names().collect::<Vec<_>>().join(", "),
        }),
        (Some((one, _)), Some((other, _))) => Err(ProfileError::Malformed {
            file: Arc::clone(columns.file()),
            row: 1,
            what: format!("columns \"{one}\" and \"{other}\": expected one unit of time"),
        }),
    }
}

fn dtype(column: &ColumnView<'_>, row: usize) -> Result<DType, ProfileError> {
    let text = column.text(row)?;
    let known = DTYPES.into_iter().find(|dtype| dtype.to_string() == text);
    known.ok_or_else(|| column.refuse(row, DTYPES.map(|dtype| dtype.to_string()).join(", ")))
}

fn name(column: &ColumnView<'_>, row: usize) -> Result<Arc<str>, ProfileError> {
    match column.text(row)? {
        "" => Err(column.refuse(row, "a name")),
        name => Ok(name.into()),
    }
}

fn choice<T: Copy>(column: &ColumnView<'_>, row: usize, choices: &[(&str, T)]) -> Result<T, ProfileError> {
    let text = column.text(row)?;
    let chosen = choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    let names = || choices.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    chosen.ok_or_else(|| column.refuse(row, names()))
}
