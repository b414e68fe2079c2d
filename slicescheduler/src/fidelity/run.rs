//! What a real engine did: the files that `bench run` of LLMServingSim writes.
//!
//! | file | what it holds |
//! |---|---|
//! | `meta.json` | the model, the engine's arguments; maybe its resolved configuration, KV blocks and hardware |
//! | `requests.jsonl` | per request: token counts, `arrival_time` (wall clock), `queued_ts`, `scheduled_ts`, `first_token_ts`, `last_token_ts` (the engine's clock), in seconds |
//! | `timeseries.csv` | once per second: running and waiting requests, KV share |
//! | `config.json` | maybe the device's name and memory, and its links |
//!
//! The prompts' blocks come from a file beside the runs: see [`PrefixBlocks`](super::PrefixBlocks).

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use super::FidelityError;
use crate::gmg::units::Nanos;

/// Tokens per hash in a file of prefix blocks.
pub(super) const HASHED_TOKENS: u32 = 16;
/// The longest line of a file that is read.
const LONGEST_LINE: u64 = 1 << 24;
/// The form of runs that is read.
const SCHEMA: u64 = 1;
/// How much longer than the first, in seconds, all other requests may wait to be taken in: an hour.
const LONGEST_WAIT: f64 = 3600.0;
/// The longest time that a run may take, in seconds: a year.
const LONGEST_RUN: f64 = 3.2e7;

/// A request of a run. Times are counted from the first arrival.
#[derive(Clone, Debug, PartialEq)]
pub struct RunRequest {
    /// Its name.
    pub id: String,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens of the answer.
    pub output: u32,
    /// When it reached the engine, which takes it in between two iterations.
    pub arrival: Nanos,
    /// When the engine took it in. Clocks of requests start here.
    pub queued: Nanos,
    /// When it was scheduled first.
    pub scheduled: Nanos,
    /// When its first token came.
    pub first_token: Nanos,
    /// When its last token came.
    pub last_token: Nanos,
    /// Chained hashes of the prompt's full blocks of 16 tokens, if known.
    pub hashes: Option<Arc<[u64]>>,
}

/// The state of an engine at an instant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Since the first arrival, in seconds.
    pub at: f64,
    /// Requests that run.
    pub running: f64,
    /// Requests that wait.
    pub waiting: f64,
    /// Share of the KV blocks that requests hold, in percent.
    pub kv: f64,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its folder.
    pub folder: PathBuf,
    /// The model.
    pub model: String,
    /// The device, as it is called in `meta.json` or else in `config.json`.
    pub device: Option<String>,
    /// Its requests, in the order of arrival.
    pub requests: Vec<RunRequest>,
    /// Its state over time.
    pub loads: Vec<Load>,
    meta: Meta,
    config: Option<Config>,
}

/// Degrees of parallelism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parallel {
    /// Ranks that share every operator.
    pub tensor: u32,
    /// Ranks with requests of their own.
    pub data: u32,
    /// Ranks one after another.
    pub pipeline: u32,
    /// True if experts are spread over ranks.
    pub experts: bool,
}

impl Parallel {
    /// Ranks over which experts are spread.
    pub fn expert_ranks(self) -> u32 {
        if self.experts { self.tensor * self.data } else { 1 }
    }
}

#[derive(Clone, Debug, Deserialize)]
struct Meta {
    #[serde(default)]
    schema_version: Option<serde_json::Number>,
    model: String,
    #[serde(default)]
    num_requests: Option<usize>,
    #[serde(default)]
    engine_kwargs: EngineArguments,
    #[serde(default)]
    kv_cache: Option<KvCache>,
    #[serde(default)]
    hardware: Option<Hardware>,
    #[serde(default)]
    resolved_config: Option<Resolved>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct EngineArguments {
    tensor_parallel_size: Option<u32>,
    data_parallel_size: Option<u32>,
    pipeline_parallel_size: Option<u32>,
    enable_expert_parallel: Option<bool>,
    max_num_seqs: Option<u32>,
    max_num_batched_tokens: Option<u32>,
    kv_cache_dtype: Option<String>,
    gpu_memory_utilization: Option<f64>,
    enforce_eager: Option<bool>,
    enable_prefix_caching: Option<bool>,
    block_size: Option<u32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct KvCache {
    num_gpu_blocks: Option<u32>,
    block_size: Option<u32>,
    gpu_memory_utilization: Option<f64>,
    enable_prefix_caching: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Hardware {
    device_name: Option<String>,
    device_total_memory_bytes: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Resolved {
    #[serde(default)]
    scheduler_config: SchedulerSettings,
    #[serde(default)]
    compilation_config: Compilation,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Compilation {
    cudagraph_capture_sizes: Option<Vec<u32>>,
}

/// Settings of the engine's scheduler; [`None`] where the run does not say.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct SchedulerSettings {
    /// Most tokens of an iteration.
    pub max_num_batched_tokens: Option<u32>,
    /// Most sequences that run at a time.
    pub max_num_seqs: Option<u32>,
    /// Most tokens of one prompt in an iteration.
    pub long_prefill_token_threshold: Option<u32>,
    /// Whether a prompt must fit as a whole.
    pub scheduler_reserve_full_isl: Option<bool>,
    /// Whether iterations are formed ahead.
    pub async_scheduling: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Config {
    #[serde(default)]
    link_bw: Option<f64>,
    #[serde(default)]
    link_latency: Option<f64>,
    #[serde(default)]
    nodes: Vec<ConfigNode>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct ConfigNode {
    #[serde(default)]
    instances: Vec<ConfigInstance>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct ConfigInstance {
    #[serde(default)]
    hardware: Option<String>,
}

#[derive(Deserialize)]
struct RequestLine {
    request_id: String,
    input_toks: u32,
    output_toks: u32,
    arrival_time: f64,
    queued_ts: f64,
    scheduled_ts: f64,
    first_token_ts: f64,
    last_token_ts: f64,
}

#[derive(Deserialize)]
struct LoadLine {
    t: f64,
    running: f64,
    waiting: f64,
    kv_cache_pct: f64,
}

impl Run {
    /// Reads the run in `folder`.
    ///
    /// # Errors
    /// If a file is missing or not as described or of another `schema_version`, a request's times are out of order or
    /// before the run's beginning, a request is there twice, or there are other than `num_requests` of them.
    pub fn read(folder: &Path) -> Result<Self, FidelityError> {
        let meta: Meta = whole(&folder.join("meta.json"))?;
        if let Some(version) = meta.schema_version.as_ref().filter(|version| version.as_u64() != Some(SCHEMA)) {
            let what = format!("schema_version {version} (expected {SCHEMA})");
            return Err(FidelityError::Unsupported { what, run: folder.into() });
        }
        let config_file = folder.join("config.json");
        let config: Option<Config> = if config_file.exists() { Some(whole(&config_file)?) } else { None };
        let named = meta.hardware.as_ref().and_then(|hardware| hardware.device_name.clone());
        let instances = || config.iter().flat_map(|config| &config.nodes).flat_map(|node| &node.instances);
        let device = named.or_else(|| instances().find_map(|instance| instance.hardware.clone()));
        let loads = folder.join("timeseries.csv");
        Ok(Self {
            folder: folder.into(),
            model: meta.model.clone(),
            device,
            requests: requests(&folder.join("requests.jsonl"), meta.num_requests)?,
            loads: if loads.exists() { load_lines(&loads)? } else { Vec::new() },
            meta,
            config,
        })
    }

    /// Degrees of parallelism.
    pub fn parallel(&self) -> Parallel {
        let arguments = &self.meta.engine_kwargs;
        Parallel {
            tensor: arguments.tensor_parallel_size.unwrap_or(1).max(1),
            data: arguments.data_parallel_size.unwrap_or(1).max(1),
            pipeline: arguments.pipeline_parallel_size.unwrap_or(1).max(1),
            experts: arguments.enable_expert_parallel.unwrap_or(false),
        }
    }

    /// Settings of the scheduler: the resolved ones, else the arguments.
    pub fn scheduler(&self) -> SchedulerSettings {
        let arguments = &self.meta.engine_kwargs;
        let resolved = self.meta.resolved_config.as_ref().map(|resolved| resolved.scheduler_config.clone());
        let resolved = resolved.unwrap_or_default();
        SchedulerSettings {
            max_num_batched_tokens: resolved.max_num_batched_tokens.or(arguments.max_num_batched_tokens),
            max_num_seqs: resolved.max_num_seqs.or(arguments.max_num_seqs),
            ..resolved
        }
    }

    /// The sizes that graphs were captured for; none with eager execution.
    pub fn capture_sizes(&self) -> Option<Vec<u32>> {
        if self.meta.engine_kwargs.enforce_eager == Some(true) {
            return Some(Vec::new());
        }
        self.meta.resolved_config.as_ref()?.compilation_config.cudagraph_capture_sizes.clone()
    }

    /// KV blocks, if the engine wrote them down.
    pub fn kv_blocks(&self) -> Option<u32> {
        self.meta.kv_cache.as_ref()?.num_gpu_blocks
    }

    /// Tokens of a KV block; vLLM's own choice otherwise.
    pub fn block_tokens(&self) -> u32 {
        let recorded = self.meta.kv_cache.as_ref().and_then(|cache| cache.block_size);
        recorded.or(self.meta.engine_kwargs.block_size).unwrap_or(16)
    }

    /// Whether prompts share blocks; on unless the run says otherwise.
    pub fn has_prefix_cache(&self) -> bool {
        let recorded = self.meta.kv_cache.as_ref().and_then(|cache| cache.enable_prefix_caching);
        recorded.or(self.meta.engine_kwargs.enable_prefix_caching).unwrap_or(true)
    }

    /// The share of the device's memory that the engine uses; vLLM's own choice otherwise.
    pub fn memory_share(&self) -> f64 {
        let recorded = self.meta.kv_cache.as_ref().and_then(|cache| cache.gpu_memory_utilization);
        recorded.or(self.meta.engine_kwargs.gpu_memory_utilization).unwrap_or(0.9)
    }

    /// The device's memory in bytes, if the engine wrote it down.
    pub fn device_memory(&self) -> Option<u64> {
        self.meta.hardware.as_ref()?.device_total_memory_bytes
    }

    /// Bytes of one number in the KV cache.
    pub fn kv_bytes(&self) -> u64 {
        match self.meta.engine_kwargs.kv_cache_dtype.as_deref() {
            Some(name) if name.starts_with("fp8") || name == "int8" => 1,
            _ => 2,
        }
    }

    /// Bandwidth (bytes per nanosecond) and latency (nanoseconds) of the links between devices, if the run says.
    pub fn link(&self) -> Option<(f64, f64)> {
        let config = self.config.as_ref()?;
        let (bandwidth, latency) = (config.link_bw?, config.link_latency?);
        (bandwidth > 0.0 && latency >= 0.0).then_some((bandwidth, latency))
    }
}

/// Hashes of blocks of `block_tokens` tokens from those of 16 tokens: hashes are chained, so the last one of a
/// block is its own. [`None`] if the sizes do not divide.
pub fn hashes_of_blocks(hashes: &Arc<[u64]>, block_tokens: u32) -> Option<Arc<[u64]>> {
    let whole = block_tokens.is_multiple_of(HASHED_TOKENS);
    let each = whole.then_some(block_tokens / HASHED_TOKENS).filter(|&each| each > 0)?;
    if each == 1 {
        return Some(Arc::clone(hashes));
    }
    Some(hashes.chunks_exact(each as usize).filter_map(|block| block.last().copied()).collect())
}

/// A request that is in a file more than once.
pub(super) fn again(file: &Path, line: u64, request: &str, first: u64) -> FidelityError {
    let what = format!("request_id {request} again, which is on line {first}: expected every request once");
    FidelityError::Record { file: file.into(), line, what }
}

/// The requests in `file`; `expected` is how many there should be, if the run says.
fn requests(file: &Path, expected: Option<usize>) -> Result<Vec<RunRequest>, FidelityError> {
    let mut lines: Vec<(u64, RequestLine)> = Vec::new();
    let opened = File::open(file).map_err(|source| FidelityError::Io { file: file.into(), source })?;
    for_each_line(file, opened, |line, bytes| {
        lines.push((line, json(file, line, bytes)?));
        Ok(())
    })?;
    let wrong = |line, what: String| FidelityError::Record { file: file.into(), line, what };
    if lines.is_empty() {
        return Err(wrong(1, "no requests: expected one JSON object per line".into()));
    }
    let mut first = HashMap::new();
    for (line, request) in &lines {
        if let Some(known) = first.insert(request.request_id.as_str(), *line) {
            return Err(again(file, *line, &request.request_id, known));
        }
        let RequestLine { arrival_time, queued_ts, scheduled_ts, first_token_ts, last_token_ts, .. } = *request;
        let ordered = queued_ts <= scheduled_ts && scheduled_ts <= first_token_ts && first_token_ts <= last_token_ts;
        if !(ordered && arrival_time.is_finite() && queued_ts.is_finite() && last_token_ts.is_finite()) {
            let what = format!("times of {}: expected queued <= scheduled <= first <= last", request.request_id);
            return Err(wrong(*line, what));
        }
        if queued_ts <= 0.0 {
            let what =
                format!("queued_ts {queued_ts} of {}: expected a time of the engine's clock", request.request_id);
            return Err(wrong(*line, what));
        }
        if request.input_toks == 0 || request.output_toks == 0 {
            return Err(wrong(*line, format!("{} has no tokens: expected at least 1 and 1", request.request_id)));
        }
    }
    if let Some(expected) = expected.filter(|expected| *expected != lines.len()) {
        let what = format!("{} requests end here: expected {expected}, num_requests of meta.json", lines.len());
        return Err(wrong(lines.last().map_or(1, |(line, _)| *line), what));
    }
    // The wall clock of arrivals and the engine's clock differ by an unknown constant. A request cannot be queued
    // before it arrives, and some are queued at once, so the least difference is the constant.
    let difference = |request: &RequestLine| request.queued_ts - request.arrival_time;
    let mut by_difference: Vec<_> = lines.iter().map(|(line, request)| (*line, difference(request))).collect();
    by_difference.sort_by(|(_, one), (_, other)| one.total_cmp(other));
    let offset = by_difference.first().map_or(0.0, |(_, least)| *least);
    if let [(line, least), (_, next), ..] = by_difference[..]
        && next - least > LONGEST_WAIT
    {
        let what = format!("queued_ts is {:.0} s before that of all others, by their arrivals", next - least);
        return Err(wrong(line, format!("{what}: expected at most {LONGEST_WAIT} s")));
    }
    let arrival = |request: &RequestLine| (request.arrival_time + offset).min(request.queued_ts);
    let start = lines.iter().map(|(_, request)| arrival(request)).fold(f64::INFINITY, f64::min);
    if let Some((line, _)) = lines.iter().find(|(_, request)| request.last_token_ts - start > LONGEST_RUN) {
        return Err(wrong(*line, "a time more than a year after the first arrival".into()));
    }
    let since = |time: f64| Nanos(((time - start).max(0.0) * 1e9) as u64);
    let mut requests: Vec<_> = lines
        .into_iter()
        .map(|(_, line)| RunRequest {
            arrival: since(arrival(&line)),
            queued: since(line.queued_ts),
            scheduled: since(line.scheduled_ts),
            first_token: since(line.first_token_ts),
            last_token: since(line.last_token_ts),
            prompt: line.input_toks,
            output: line.output_toks,
            id: line.request_id,
            hashes: None,
        })
        .collect();
    requests.sort_by_key(|request| (request.arrival, request.queued));
    Ok(requests)
}

fn load_lines(file: &Path) -> Result<Vec<Load>, FidelityError> {
    let record = |line, what: String| FidelityError::Record { file: file.into(), line, what };
    let opened = File::open(file).map_err(|source| FidelityError::Io { file: file.into(), source })?;
    let malformed = |error: csv::Error| {
        let line = error.position().map_or(1, csv::Position::line);
        let what = match error.into_kind() {
            csv::ErrorKind::Io(source) => return FidelityError::Io { file: file.into(), source },
            csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
                format!("{len} cells: expected {expected_len}, as in the first line")
            }
            csv::ErrorKind::Deserialize { err, .. } => match err.field() {
                Some(field) => format!("cell {}: {}", field + 1, err.kind()),
                None => err.to_string(),
            },
            csv::ErrorKind::Utf8 { .. } => "not UTF-8: expected text".into(),
            _ => "not CSV: expected t, running, waiting and kv_cache_pct".into(),
        };
        record(line, what)
    };
    let mut reader = csv::Reader::from_reader(opened);
    let headers = reader.headers().map_err(malformed)?.clone();
    let mut raw = csv::StringRecord::new();
    let mut loads: Vec<Load> = Vec::new();
    while reader.read_record(&mut raw).map_err(malformed)? {
        let row: LoadLine = raw.deserialize(Some(&headers)).map_err(malformed)?;
        let line = raw.position().map_or(1, csv::Position::line);
        let numbers = [row.t, row.running, row.waiting, row.kv_cache_pct];
        if !numbers.iter().all(|number| number.is_finite() && *number >= 0.0) {
            return Err(record(line, format!("{numbers:?}: expected numbers that are not negative")));
        }
        if let Some(before) = loads.last().filter(|before| before.at >= row.t) {
            return Err(record(line, format!("t = {} after {}: expected a later time", row.t, before.at)));
        }
        loads.push(Load { at: row.t, running: row.running, waiting: row.waiting, kv: row.kv_cache_pct });
    }
    Ok(loads)
}

fn whole<T: for<'a> Deserialize<'a>>(file: &Path) -> Result<T, FidelityError> {
    let text = std::fs::read(file).map_err(|source| FidelityError::Io { file: file.into(), source })?;
    serde_json::from_slice(&text).map_err(|source| FidelityError::Json {
        file: file.into(),
        line: source.line() as u64,
        source,
    })
}

pub(super) fn json<T: for<'a> Deserialize<'a>>(file: &Path, line: u64, bytes: &[u8]) -> Result<T, FidelityError> {
    serde_json::from_slice(bytes).map_err(|source| FidelityError::Json { file: file.into(), line, source })
}

pub(super) fn for_each_line(
    file: &Path,
    reader: impl Read,
    mut each: impl FnMut(u64, &[u8]) -> Result<(), FidelityError>,
) -> Result<(), FidelityError> {
    let mut reader = BufReader::new(reader);
    let mut bytes = Vec::new();
    for line in 1.. {
        bytes.clear();
        let read = reader.by_ref().take(LONGEST_LINE + 1).read_until(b'\n', &mut bytes);
        let read = read.map_err(|source| FidelityError::Io { file: file.into(), source })?;
        if read as u64 > LONGEST_LINE {
            let what = format!("longer than {LONGEST_LINE} bytes: expected one JSON object per line");
            return Err(FidelityError::Record { file: file.into(), line, what });
        }
        if read == 0 {
            return Ok(());
        }
        if !bytes.trim_ascii().is_empty() {
            each(line, &bytes)?;
        }
    }
    Ok(())
}
