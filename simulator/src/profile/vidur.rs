//! The CSV files of Vidur (Agrawal et al. 2024): one layer of a model, and collectives.
//!
//! Durations are medians over repetitions, in milliseconds, and rounded to a microsecond by the
//! profiler: the relative error of operators of a few microseconds is large by that alone.

use std::path::Path;

use slicescheduler_gmg::cluster::DeviceSpec;
use slicescheduler_gmg::dtype::DType;

use super::columns::{ColumnView, Columns};
use super::device::{AttentionShape, Collective, DeviceProfile, Measure, Samples, Scaling};
use super::error::ProfileError;

/// Nanoseconds of a millisecond.
const MS: f64 = 1e6;
/// What the profiler's clock rounds to, in nanoseconds.
const CLOCK: f64 = 1e3;

/// Reads a profile of the operators of one layer: `mlp.csv`.
///
/// The four products become [`Measure::MatMul`] in half precision; norms, activations and the
/// like become [`Measure::Elementwise`] by their memory traffic. A column that is missing is an
/// error; a row of zero milliseconds, too short for the profiler's clock, is left out, or refused if the
/// device cannot do it within a microsecond.
///
/// # Errors
/// As [`ProfileError`] says.
pub fn read_mlp(path: &Path, device: &DeviceSpec) -> Result<DeviceProfile, ProfileError> {
    mlp(&Columns::read_csv(path)?, device)
}

/// [`read_mlp`] of columns in memory.
///
/// # Errors
/// As [`ProfileError`] says.
pub fn mlp(columns: &Columns, device: &DeviceSpec) -> Result<DeviceProfile, ProfileError> {
    let median = |op: &str| columns.column(&format!("time_stats.{op}.median"));
    let products =
        [median("attn_pre_proj")?, median("attn_post_proj")?, median("mlp_up_proj")?, median("mlp_down_proj")?];
    let others = [
        ("rms_norm", median("input_layernorm")?),
        ("rms_norm", median("post_attention_layernorm")?),
        ("rotary", median("attn_rope")?),
        ("swiglu", median("mlp_act")?),
        ("add", median("add")?),
        ("embedding", median("emb")?),
    ];
    let dims = ["n_head", "n_kv_head", "n_embd", "n_expanded_embd", "num_tokens", "num_tensor_parallel_workers"];
    let mut views = Vec::with_capacity(dims.len());
    for name in dims {
        views.push(columns.column(name)?);
    }
    let gated = columns.column("use_gated_mlp")?;
    let mut samples = Samples::new(device);
    for row in 0..columns.rows() {
        let mut counts = [0.0; 6];
        for (count, view) in counts.iter_mut().zip(&views) {
            *count = f64::from(view.count(row)?);
        }
        let [heads, kv_heads, hidden, expanded, tokens, parallel] = counts;
        let ups = match gated.text(row)? {
            "True" => 2.0,
            "False" => 1.0,
            _ => return Err(gated.refuse(row, "True or False")),
        };
        let head_dim = hidden / heads;
        let queries = hidden / parallel;
        let keys_and_values = (2.0 * kv_heads * head_dim / parallel).max(2.0 * head_dim);
        let inner = expanded / parallel;
        if [head_dim, queries, inner].iter().any(|width| width.fract() != 0.0) {
            return Err(views[5].refuse(row, "a number that divides the width, the heads and the inner width"));
        }
        let shapes = [(queries + keys_and_values, hidden), (hidden, queries), (ups * inner, hidden), (hidden, inner)];
        for (view, (n, k)) in products.iter().zip(shapes) {
            let measure = Measure::MatMul { weight: DType::F16, scaling: Scaling::Whole };
            add(&mut samples, view, row, measure, &[tokens, n, k])?;
        }
        // Elements of two bytes that are read and written per token.
        let widths = [
            2.0 * hidden,
            2.0 * hidden,
            2.0 * (queries + keys_and_values * 0.5),
            (ups + 1.0) * inner,
            3.0 * hidden,
            2.0 * hidden,
        ];
        for ((kind, view), width) in others.iter().zip(widths) {
            add(&mut samples, view, row, Measure::Elementwise((*kind).into()), &[tokens * width * 2.0])?;
        }
    }
    samples.build(columns.file(), "rows of an MLP profile")
}

/// Reads a profile of attention: `attention.csv`, with rows of prompts and of decoding.
///
/// # Errors
/// As [`ProfileError`] says.
pub fn read_attention(path: &Path, device: &DeviceSpec) -> Result<DeviceProfile, ProfileError> {
    attention(&Columns::read_csv(path)?, device)
}

/// [`read_attention`] of columns in memory.
///
/// # Errors
/// As [`ProfileError`] says.
pub fn attention(columns: &Columns, device: &DeviceSpec) -> Result<DeviceProfile, ProfileError> {
    let (prefill, decode) =
        (columns.column("time_stats.attn_prefill.median")?, columns.column("time_stats.attn_decode.median")?);
    let is_prefill = columns.column("is_prefill")?;
    let (batch, chunk) = (columns.column("batch_size")?, columns.column("prefill_chunk_size")?);
    let cached = columns.column("kv_cache_size")?;
    let (width, parallel) = (columns.column("n_embd")?, columns.column("num_tensor_parallel_workers")?);
    let (heads, kv_heads) = (columns.column("n_q_head")?, columns.column("n_kv_head")?);
    let mut samples = Samples::new(device);
    for row in 0..columns.rows() {
        let (all, workers) = (heads.count(row)?, parallel.count(row)?);
        let of_kv = kv_heads.count(row)?;
        if !all.is_multiple_of(workers) {
            return Err(parallel.refuse(row, format!("a number that divides the {all} heads")));
        }
        let mine = [f64::from(all / workers), f64::from((of_kv / workers).max(1))];
        let width = width.count(row)?;
        if !width.is_multiple_of(all) {
            return Err(heads.refuse(row, format!("a number that divides the width {width}")));
        }
        let shape = AttentionShape { head_dim: width / all, kv: DType::F16, window: 0 };
        let held = cached.whole(row, 0)? as f64;
        match is_prefill.text(row)? {
            "True" => {
                let point = [f64::from(chunk.count(row)?), held, mine[0], mine[1]];
                add(&mut samples, &prefill, row, Measure::Chunk(shape), &point)?;
            }
            "False" => {
                let point = [f64::from(batch.count(row)?), held + 1.0, mine[0], mine[1]];
                add(&mut samples, &decode, row, Measure::Decode(shape), &point)?;
            }
            _ => return Err(is_prefill.refuse(row, "True or False")),
        }
    }
    samples.build(columns.file(), "rows of an attention profile")
}

/// Reads a profile of a collective: `all_reduce.csv` or `send_recv.csv`. A group whose devices
/// share no node counts as one across nodes.
///
/// # Errors
/// As [`ProfileError`] says.
pub fn read_network(path: &Path, device: &DeviceSpec) -> Result<DeviceProfile, ProfileError> {
    network(&Columns::read_csv(path)?, device)
}

/// [`read_network`] of columns in memory.
///
/// # Errors
/// As [`ProfileError`] says.
pub fn network(columns: &Columns, device: &DeviceSpec) -> Result<DeviceProfile, ProfileError> {
    let collective = columns.column("collective")?;
    let (workers, per_node) = (columns.column("num_workers")?, columns.column("devices_per_node")?);
    let size = columns.column("size")?;
    let mut samples = Samples::new(device);
    for row in 0..columns.rows() {
        let name = collective.text(row)?;
        let kind = match name {
            "all_reduce" => Collective::AllReduce,
            "send_recv" => Collective::SendRecv,
            _ => return Err(collective.refuse(row, "all_reduce or send_recv")),
        };
        let (ranks, per_node) = (workers.count(row)?, per_node.count(row)?);
        if ranks < 2 {
            return Err(workers.refuse(row, "at least 2 devices"));
        }
        let measure = Measure::Collective { kind, ranks, across_nodes: per_node == 1 };
        let time = columns.column(&format!("time_stats.{name}.median"))?;
        add(&mut samples, &time, row, measure, &[size.whole(row, 1)? as f64])?;
    }
    samples.build(columns.file(), "rows of a profile of collectives")
}

fn add(
    samples: &mut Samples<'_>,
    time: &ColumnView<'_>,
    row: usize,
    measure: Measure,
    point: &[f64],
) -> Result<(), ProfileError> {
    match time.number(row) {
        Ok(0.0) => samples.leave_out(&measure, point, CLOCK, &time.place(row)),
        _ => samples.add(measure, point, time.nanos(row, MS)?, time.place(row)),
    }
}
