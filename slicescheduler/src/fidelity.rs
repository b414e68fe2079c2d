//! Predictions of real serving runs, against what was measured.
//!
//! A [`Run`] is what a real engine did: its settings, and when each request was queued and got its tokens.
//! [`predict`] replays the arrivals of a run through [`batching`](crate::scheduler::batching), the same code that
//! serves and that forecasts unroll, with durations from a profile of the device
//! ([`StepModel`]); [`compare`](fn@compare) sets the two beside each other.
//!
//! Nothing is fitted to a run. What the engine's metadata does not say is derived by the engine's own
//! rules, and the prediction says what was derived and how ([`Prediction::notes`]).
//!
//! | module | what it holds |
//! |---|---|
//! | [`run`], [`prefixes`] | readers of a run's files |
//! | [`shape`], [`device`] | published facts of models and devices |
//! | [`blocks`] | how many KV blocks an engine has |
//! | [`engine`] | the engine's loop: arrivals, iterations, tokens |
//! | [`compare`](mod@compare) | real against predicted |
//! | [`cases`] | the runs in a folder, each with its profile |

pub mod blocks;
pub mod cases;
pub mod compare;
pub mod device;
pub mod engine;
pub mod prefixes;
pub mod run;
pub mod shape;

use std::path::PathBuf;

use crate::gmg::job::Row;
use crate::gmg::units::Nanos;
use crate::scheduler::batching::{BatchOptions, CaptureSizes, OptionsError};
use crate::simulator::cost::Coverage;
use crate::simulator::profile::ProfileError;
use crate::simulator::profile::llmservingsim::{Block, Exchange, Profile, Step, StepModel, StepParts};

pub use cases::Case;
pub use compare::{Comparison, Metric, Statistics, compare};
pub use device::DeviceFacts;
pub use engine::{EngineLimits, EngineRequest, Outcome, Prediction};
pub use prefixes::PrefixBlocks;
pub use run::{Run, RunRequest};
pub use shape::ModelShape;

/// Why a run cannot be predicted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FidelityError {
    /// A file cannot be read.
    #[error("{file}: {source}", file = file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{file}, line {line}, column {column}: {what}", file = file.display(), column = source.column(), what = without_place(source))]
    Json {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: u64,
        /// Why.
        source: serde_json::Error,
    },
    /// Numbers of a file contradict each other or the format.
    #[error("{file}, line {line}: {what}", file = file.display())]
    Record {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong, and what would be right.
        what: String,
    },
    /// The profile cannot be used.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The engine's options make no sense.
    #[error("options of the engine: {0}")]
    Options(#[from] OptionsError),
    /// There is no profile of the run's device and model.
    #[error("no profile of {model} on {device} with tp {tp} below {folder}", folder = folder.display())]
    NoProfile {
        /// The model.
        model: String,
        /// The device.
        device: String,
        /// The tensor-parallel degree.
        tp: u32,
        /// Where profiles were looked for.
        folder: PathBuf,
    },
    /// The shape of a model is not known.
    #[error("the shape of model {model} is not known: give its Hugging Face config.json")]
    UnknownModel {
        /// The model.
        model: String,
    },
    /// A fact of the engine is neither in its metadata nor derivable.
    #[error("{what} of run {run} is not known: {remedy}", run = run.display())]
    Unknown {
        /// What is missing.
        what: &'static str,
        /// The run's folder.
        run: PathBuf,
        /// How to provide it.
        remedy: &'static str,
    },
    /// The engine was run in a way that is not modelled.
    #[error("{what} of run {run} is not modelled", run = run.display())]
    Unsupported {
        /// What.
        what: String,
        /// The run's folder.
        run: PathBuf,
    },
    /// A request can never run.
    #[error("request {request} needs {needed} KV blocks: the engine has {blocks}")]
    TooLong {
        /// The request's place in the run.
        request: usize,
        /// Blocks that it needs.
        needed: u32,
        /// Blocks that there are.
        blocks: u32,
    },
}

/// What is wrong with a text, without the place in it, which for a line of a file is not that in the file.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&place).map_or(text.clone(), str::to_owned)
}

/// From the tokens of an iteration to the next one being formed, as the timestamps of real runs show it.
const HOST: Nanos = Nanos::us(100);

/// Predicts `run` from `profile`.
///
/// # Errors
/// If the engine's settings are not understood, or a fact is missing that cannot be derived.
pub fn predict(run: &Run, profile: Profile, shape: &ModelShape) -> Result<Prediction, FidelityError> {
    let mut notes = Vec::new();
    let device = DeviceFacts::of(&profile.meta.gpu);
    if device.is_none() {
        notes.push(format!("peaks of {} are not known: no time was held against them", profile.meta.gpu));
    }
    let parallel = run.parallel();
    refuse_unmodelled(run, shape)?;
    let exchange = match parallel.tensor.max(parallel.data) {
        1 => None,
        ranks => {
            let device::ExchangeTimes { times, source } = device::exchange_times(device.as_ref(), run, ranks)?;
            notes.push(format!("exchange between {ranks} ranks from {source}"));
            let token_bytes = f64::from(shape.hidden) * 2.0;
            let reductions = if parallel.tensor > 1 { 2 } else { 0 };
            let gathers = if parallel.data > 1 { 2 } else { 0 };
            Some(Exchange { token_bytes, reductions, gathers, times })
        }
    };
    let block = Block {
        layers: shape.layers,
        experts: shape.experts.map(|experts| (experts.count, experts.per_token)),
        expert_ranks: parallel.expert_ranks(),
        kv_heads: (shape.kv_heads / parallel.tensor).max(1),
        multiprocessors: device.as_ref().map(|device| device.multiprocessors),
    };
    if !profile.meta.has_skew() {
        notes.push("the profile was made without costs of unequal lengths; none are charged".into());
    } else if profile.skew.is_none() {
        notes.push("there is no skew.csv; unequal lengths cost nothing".into());
    }
    if block.multiprocessors.is_none() && profile.skew.is_some() {
        notes.push(format!("multiprocessors of {} are not known: attention never splits sequences", profile.meta.gpu));
    }
    if shape.experts.is_some() {
        notes.push("tokens are taken to choose their experts at random".into());
    }
    let kv = blocks::derive(run, shape, device.as_ref())?;
    notes.push(format!("{} KV blocks of {} tokens: {}", kv.blocks, kv.block_tokens, kv.how));
    let options = options(run, kv.block_tokens);
    options.check()?;
    let capture = match run.capture_sizes() {
        Some(sizes) => CaptureSizes::new(sizes)?,
        None => CaptureSizes::vllm(options.max_sequences),
    };
    let model = StepModel::new(profile, block, exchange)?;
    let limits = EngineLimits {
        blocks: kv.usable(),
        has_prefix_cache: run.has_prefix_cache(),
        host: HOST,
        ranks: parallel.data,
    };
    let requests: Vec<_> = run.requests.iter().map(Into::into).collect();
    let mut clock = StepClock {
        model: &model,
        capture: &capture,
        step: Step::default(),
        total: StepParts::default(),
        coverage: Coverage::default(),
    };
    let mut prediction = engine::replay(&requests, &options, limits, |ranks| clock.time(ranks))?;
    (prediction.parts, prediction.coverage) = (clock.total, clock.coverage);
    prediction.notes = notes;
    prediction.kv = Some(kv);
    Ok(prediction)
}

/// Ranks with requests of their own go in step only where they exchange tokens between experts.
fn refuse_unmodelled(run: &Run, shape: &ModelShape) -> Result<(), FidelityError> {
    let parallel = run.parallel();
    let refuse = |what: String| Err(FidelityError::Unsupported { what, run: run.folder.clone() });
    if parallel.pipeline > 1 {
        return refuse(format!("a pipeline of {} stages", parallel.pipeline));
    }
    if parallel.data > 1 && (shape.experts.is_none() || !parallel.experts) {
        return refuse(format!("{} data-parallel ranks without expert parallelism", parallel.data));
    }
    Ok(())
}

/// The time of iterations by a step model.
struct StepClock<'a> {
    model: &'a StepModel,
    capture: &'a CaptureSizes,
    step: Step,
    total: StepParts,
    coverage: Coverage,
}

impl StepClock<'_> {
    /// The time of an iteration: that of its slowest rank. Ranks are padded to the largest of them, and an idle one
    /// computes a token for nobody, because all of them exchange.
    fn time(&mut self, ranks: &[&[Row]]) -> Nanos {
        let tokens = |rows: &&[Row]| rows.iter().map(|row| row.tokens).sum::<u32>();
        let padded = self.capture.padded(ranks.iter().map(tokens).max().unwrap_or(0).max(1));
        let mut slowest = (StepParts::default(), Coverage::default());
        for rows in ranks {
            self.describe(rows);
            self.step.tokens = padded;
            self.step.expert_tokens = padded * ranks.len() as u32;
            let covered = self.model.covered_parts(&mut self.step);
            if covered.0.total() > slowest.0.total() {
                slowest = covered;
            }
        }
        let (parts, coverage) = slowest;
        self.total.add(parts);
        self.coverage.merge(&coverage);
        parts.total()
    }

    /// A row of one token is a decode for the attention kernels, whatever it is for the request.
    fn describe(&mut self, rows: &[Row]) {
        let step = &mut self.step;
        step.chunks.clear();
        step.decodes.clear();
        for row in rows {
            match row.tokens {
                1 => step.decodes.push(row.position + 1),
                tokens => step.chunks.push((tokens, row.position)),
            }
        }
        step.sequences = rows.len() as u32;
    }
}

/// The engine's options, as far as the run says; vLLM's own values otherwise.
fn options(run: &Run, block_tokens: u32) -> BatchOptions {
    let vllm = BatchOptions::vllm();
    let settings = run.scheduler();
    BatchOptions {
        token_budget: settings.max_num_batched_tokens.unwrap_or(vllm.token_budget),
        max_sequences: settings.max_num_seqs.unwrap_or(vllm.max_sequences),
        long_prefill: settings.long_prefill_token_threshold.unwrap_or(0),
        reserve_prompt: settings.scheduler_reserve_full_isl.unwrap_or(true),
        ahead: u32::from(settings.async_scheduling.unwrap_or(true)),
        block_tokens,
        ..vllm
    }
}
