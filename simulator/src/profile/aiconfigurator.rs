//! The Parquet files of AIConfigurator (NVIDIA): operators as they run inside a serving engine.
//!
//! Durations are in milliseconds. The message size of collectives counts elements, not bytes: at
//! equal counts, half precision takes twice as long as eight bits.

use std::path::Path;

use slicescheduler_gmg::cluster::DeviceSpec;
use slicescheduler_gmg::dtype::DType;

use super::columns::Columns;
use super::device::{AttentionShape, Collective, DeviceProfile, Measure, Samples, Scaling};
use super::error::ProfileError;
use super::parquet_file::read_parquet;

/// Nanoseconds of a millisecond.
const MS: f64 = 1e6;

/// The files of a folder, by name, and how each is read.
const FILES: [(&str, Reader); 4] = [
    ("gemm_perf.parquet", gemm),
    ("context_attention_perf.parquet", context_attention),
    ("generation_attention_perf.parquet", generation_attention),
    ("nccl_perf.parquet", nccl),
];

type Reader = fn(&Columns, &DeviceSpec) -> Result<DeviceProfile, ProfileError>;

/// Reads the files that folder `folder` has of `gemm_perf.parquet`,
/// `context_attention_perf.parquet`, `generation_attention_perf.parquet` and `nccl_perf.parquet`.
///
/// # Errors
/// As [`ProfileError`] says; also if there is none of these files.
pub fn read_folder(folder: &Path, device: &DeviceSpec) -> Result<DeviceProfile, ProfileError> {
    let mut profile = DeviceProfile::new(device.clone());
    for (name, reader) in FILES {
        let path = folder.join(name);
        if path.exists() {
            profile = profile.with_all(reader(&read_parquet(&path)?, device)?);
        }
    }
    if profile.tables().len() == 0 {
        let expected = FILES.map(|(name, _)| name).join(" or ");
        return Err(ProfileError::Empty { file: folder.display().to_string().into(), expected });
    }
    Ok(profile)
}

/// The matrix products of `gemm_perf.parquet`.
///
/// # Errors
/// As [`ProfileError`] says.
pub fn gemm(columns: &Columns, device: &DeviceSpec) -> Result<DeviceProfile, ProfileError> {
    labelled(columns, device, &["gemm"])?;
    let (dtype, latency) = (columns.column("gemm_dtype")?, columns.column("latency")?);
    let (m, n, k) = (columns.column("m")?, columns.column("n")?, columns.column("k")?);
    let mut samples = Samples::new(device);
    for row in 0..columns.rows() {
        let (weight, scaling) = match dtype.text(row)? {
            "bfloat16" => (DType::BF16, Scaling::Whole),
            "float16" => (DType::F16, Scaling::Whole),
            "fp8" => (DType::F8, Scaling::Whole),
            "fp8_block" => (DType::F8, Scaling::Blocks),
            _ => return Err(dtype.refuse(row, "bfloat16, float16, fp8 or fp8_block")),
        };
        let point = [f64::from(m.count(row)?), f64::from(n.count(row)?), f64::from(k.count(row)?)];
        let nanos = latency.nanos(row, MS)?;
        samples.add(Measure::MatMul { weight, scaling }, &point, nanos, latency.place(row))?;
    }
    samples.build(columns.file(), "matrix products")
}

/// The prefill attention of `context_attention_perf.parquet`, by batch and length of prompts.
///
/// # Errors
/// As [`ProfileError`] says.
pub fn context_attention(columns: &Columns, device: &DeviceSpec) -> Result<DeviceProfile, ProfileError> {
    labelled(columns, device, &["context_attention"])?;
    let (length, cached) = (columns.column("isl")?, columns.column("step")?);
    attention(columns, device, |row, shape| match cached.whole(row, 0)? {
        0 => Ok((Measure::Prefill(shape), f64::from(length.count(row)?))),
        _ => Err(cached.refuse(row, "0, a prompt without cached tokens")),
    })
}

/// The decode attention of `generation_attention_perf.parquet`, by batch and context.
///
/// # Errors
/// As [`ProfileError`] says.
pub fn generation_attention(columns: &Columns, device: &DeviceSpec) -> Result<DeviceProfile, ProfileError> {
    labelled(columns, device, &["generation_attention"])?;
    let (new, cached) = (columns.column("isl")?, columns.column("step")?);
    attention(columns, device, |row, shape| match new.whole(row, 1)? {
        1 => Ok((Measure::Decode(shape), cached.whole(row, 0)? as f64 + 1.0)),
        _ => Err(new.refuse(row, "1, one new token per sequence")),
    })
}

fn attention(
    columns: &Columns,
    device: &DeviceSpec,
    measure: impl Fn(usize, AttentionShape) -> Result<(Measure, f64), ProfileError>,
) -> Result<DeviceProfile, ProfileError> {
    let (batch, heads) = (columns.column("batch_size")?, columns.column("num_heads")?);
    let (kv_heads, head_dim) = (columns.column("num_key_value_heads")?, columns.column("head_dim")?);
    let (kv, window) = (columns.column("kv_cache_dtype")?, columns.column("window_size")?);
    let latency = columns.column("latency")?;
    let mut samples = Samples::new(device);
    for row in 0..columns.rows() {
        let kv = match kv.text(row)? {
            "bfloat16" => DType::BF16,
            "float16" => DType::F16,
            "fp8" => DType::F8,
            _ => return Err(kv.refuse(row, "bfloat16, float16 or fp8")),
        };
        let (all, of_kv) = (heads.count(row)?, kv_heads.count(row)?);
        if !all.is_multiple_of(of_kv) {
            return Err(kv_heads.refuse(row, format!("a number that divides the {all} heads")));
        }
        let whole = window.whole(row, 0)?;
        let window = u32::try_from(whole).map_err(|_| window.refuse(row, "a number of tokens below 2^32"))?;
        let shape = AttentionShape { head_dim: head_dim.count(row)?, kv, window };
        let (measure, length) = measure(row, shape)?;
        let point = [f64::from(batch.count(row)?), length, f64::from(all), f64::from(of_kv)];
        samples.add(measure, &point, latency.nanos(row, MS)?, latency.place(row))?;
    }
    samples.build(columns.file(), "attention")
}

/// The collectives of `nccl_perf.parquet`.
///
/// # Errors
/// As [`ProfileError`] says.
pub fn nccl(columns: &Columns, device: &DeviceSpec) -> Result<DeviceProfile, ProfileError> {
    labelled(columns, device, &["all_reduce", "all_gather", "reduce_scatter", "alltoall"])?;
    let (op, dtype) = (columns.column("op_name")?, columns.column("nccl_dtype")?);
    let (ranks, size) = (columns.column("num_gpus")?, columns.column("message_size")?);
    let latency = columns.column("latency")?;
    let mut samples = Samples::new(device);
    for row in 0..columns.rows() {
        let kind = match op.text(row)? {
            "all_reduce" => Collective::AllReduce,
            "all_gather" => Collective::AllGather,
            "reduce_scatter" => Collective::ReduceScatter,
            _ => Collective::AllToAll,
        };
        let element = match dtype.text(row)? {
            "half" => 2.0,
            "int8" => 1.0,
            _ => return Err(dtype.refuse(row, "half or int8")),
        };
        let among = ranks.count(row)?;
        if among < 2 {
            return Err(ranks.refuse(row, "at least 2 devices"));
        }
        let measure = Measure::Collective { kind, ranks: among, across_nodes: false };
        let bytes = size.whole(row, 1)? as f64 * element;
        samples.add(measure, &[bytes], latency.nanos(row, MS)?, latency.place(row))?;
    }
    samples.build(columns.file(), "collectives")
}

/// Refuses a file that says of itself that it holds other operators, or is of another device.
fn labelled(columns: &Columns, device: &DeviceSpec, operators: &[&str]) -> Result<(), ProfileError> {
    let (op, name) = (columns.column("op_name")?, columns.column("device")?);
    let family = device.name.split_whitespace().next().unwrap_or("");
    for row in 0..columns.rows() {
        if !operators.contains(&op.text(row)?) {
            return Err(op.refuse(row, operators.join(", ")));
        }
        if !name.text(row)?.contains(family) {
            return Err(name.refuse(row, format!("a name with \"{family}\" in it")));
        }
    }
    Ok(())
}
