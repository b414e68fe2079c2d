//! Replays the Azure conversation trace at 1, 8 and 64 workers, here and with AISimulate core, and compares requests
//! per CPU second.
//!
//! ```text
//! cargo run --release --manifest-path benches/aisimulate/Cargo.toml -- --trace AzureLLMInferenceTrace_conv.csv
//! ```
//!
//! Both sides get the same arrivals, lengths, limits of batches, KV blocks and latencies, place requests in turn, and
//! keep no prefix cache, because the trace has no prompts. Both run in one thread. What is timed is the replay, not the
//! reading of the trace, and the fastest of several runs counts. Here it is the batching that serves for real and its
//! engine loop; no policy and no graph take part, as they do not on the other side.
//!
//! That both did the same work is checked, not assumed: requests that ended, tokens of prompts and answers, and the
//! makespan, the mean times to first token and from end to end, which may differ by what the clocks round (theirs counts
//! milliseconds in floating point). A difference of more than one part in a thousand is an error.

#![forbid(unsafe_code)]

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use aisimulate_core::TimingModel;
use aisimulate_core::engine::{Backend, EngineConfig as Rank};
use aisimulate_core::replay::{
    CURRENT_REPLAY_SPEC_VERSION, ReplayEngineConfig, ReplayRequest, ReplaySpec, ReplayTopology,
    run_engine_replay_with_timing,
};
use clap::Parser;
use cpu_time::ProcessTime;
use slicescheduler::fidelity::{EngineLimits, EngineRequest, engine};
use slicescheduler::gmg::job::Row;
use slicescheduler::gmg::units::Nanos;
use slicescheduler::scheduler::batching::BatchOptions;
use slicescheduler::workload::{TraceFile, TraceFormat};
use slicescheduler_benches::{Better, Target, print_and_write};

type Failure = Box<dyn std::error::Error>;

const BLOCKS: u32 = 16_384;
const BLOCK_TOKENS: u32 = 16;
const SEQUENCES: u32 = 256;
const TOKENS: u32 = 2048;

/// The latencies of both sides: of a prompt's part and of the decodes of an iteration, in milliseconds; about those of
/// a model of 8 billion parameters on an H100.
fn prefill_ms(tokens: f64, context: f64) -> f64 {
    4.0 + 0.018 * tokens + 1e-6 * tokens * context
}

fn decode_ms(batch: f64, context: f64) -> f64 {
    5.0 + 0.01 * batch + 4e-5 * context
}

#[derive(Parser)]
struct Arguments {
    /// AzureLLMInferenceTrace_conv.csv
    #[arg(long)]
    trace: PathBuf,
    /// Runs of each side, of which the fastest counts
    #[arg(long, default_value_t = 3)]
    runs: u32,
}

struct Latencies;

impl TimingModel for Latencies {
    fn prefill_batch_validation_can_fail(&self) -> bool {
        false
    }

    fn prefill_prediction_can_fail(&self) -> bool {
        false
    }

    fn predict_prefill_ms(&self, batch: usize, length: usize, before: usize) -> anyhow::Result<f64> {
        let tokens = batch as f64 * length.saturating_sub(before) as f64;
        Ok(prefill_ms(tokens, before as f64))
    }

    fn predict_decode_ms(&self, batch: usize, context: usize, _: usize, _: usize) -> anyhow::Result<f64> {
        Ok(decode_ms(batch as f64, context as f64))
    }
}

/// What both sides say about a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Figures {
    completed: usize,
    /// Tokens of prompts that were computed.
    prompt_tokens: u64,
    output_tokens: u64,
    /// From the first arrival to the last token.
    makespan_ms: f64,
    ttft_ms: f64,
    e2e_ms: f64,
}

impl Figures {
    /// Where the two differ by more than a thousandth, if they do.
    fn differs_from(&self, other: &Self) -> Option<&'static str> {
        let far = |one: f64, other: f64| (one - other).abs() > 1e-3 * other.abs();
        let pairs = [
            ("requests that ended", self.completed as f64, other.completed as f64, true),
            ("tokens of prompts", self.prompt_tokens as f64, other.prompt_tokens as f64, true),
            ("tokens of answers", self.output_tokens as f64, other.output_tokens as f64, true),
            ("makespan", self.makespan_ms, other.makespan_ms, false),
            ("mean time to first token", self.ttft_ms, other.ttft_ms, false),
            ("mean time from end to end", self.e2e_ms, other.e2e_ms, false),
        ];
        pairs
            .into_iter()
            .find(|(_, one, other, exact)| if *exact { one != other } else { far(*one, *other) })
            .map(|p| p.0)
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { completed, prompt_tokens, output_tokens, makespan_ms, ttft_ms, e2e_ms } = self;
        write!(
            f,
            "{completed} requests, {prompt_tokens} + {output_tokens} tokens, makespan {:.3} s, mean TTFT {ttft_ms:.3} ms, \
             E2E {e2e_ms:.3} ms",
            makespan_ms / 1e3
        )
    }
}

fn theirs(requests: &[EngineRequest], workers: usize) -> Result<(Duration, Figures), Failure> {
    let config = ReplayEngineConfig {
        rank: Rank {
            block_size: BLOCK_TOKENS as usize,
            num_gpu_blocks: BLOCKS as usize,
            max_num_seqs: SEQUENCES as usize,
            max_num_batched_tokens: TOKENS as usize,
            enable_prefix_caching: false,
            ..Rank::for_backend(Backend::Vllm)
        },
        ..Default::default()
    };
    let request = |(index, request): (usize, &EngineRequest)| ReplayRequest {
        id: format!("r{index}"),
        arrival_time_ms: request.arrival.as_ms_f64(),
        input_tokens: request.prompt as usize,
        input_token_ids: None,
        output_tokens: request.output as usize,
        output_token_ids: None,
        dp_rank: None,
        prefill_dp_rank: None,
        session_id: None,
        turn_index: None,
        metadata: serde_json::Value::Null,
    };
    let spec = ReplaySpec {
        version: CURRENT_REPLAY_SPEC_VERSION,
        topology: ReplayTopology::aggregated(workers),
        engine: serde_json::to_value(config)?,
        adapters: Default::default(),
        max_sim_time_ms: None,
        max_in_flight: None,
        record_per_request: false,
        sla: Default::default(),
        requests: requests.iter().enumerate().map(request).collect(),
    };
    let start = ProcessTime::now();
    let report = run_engine_replay_with_timing(spec, Arc::new(Latencies))?;
    let took = start.elapsed();
    let (counts, latency) = (&report.request_counts, &report.latency);
    let figures = Figures {
        completed: counts.completed_requests,
        prompt_tokens: report.committed_prefill_tokens,
        output_tokens: counts.total_output_tokens as u64,
        makespan_ms: report.throughput.duration_ms,
        ttft_ms: latency.ttft.mean_ms,
        e2e_ms: latency.e2e.mean_ms,
    };
    Ok((took, figures))
}

fn ours(requests: &[EngineRequest], workers: usize) -> Result<(Duration, Figures), Failure> {
    let options = BatchOptions {
        token_budget: TOKENS,
        max_sequences: SEQUENCES,
        block_tokens: BLOCK_TOKENS,
        ahead: 0,
        ..BatchOptions::vllm()
    };
    let limits = EngineLimits { blocks: BLOCKS, has_prefix_cache: false, host: Nanos::ZERO, ranks: 1 };
    let start = ProcessTime::now();
    let mut figures = Figures::default();
    let (mut ttft, mut e2e, mut last) = (0.0, 0.0, Nanos::ZERO);
    for worker in 0..workers {
        let own: Vec<_> = requests.iter().skip(worker).step_by(workers).cloned().collect();
        let mut iteration = Iteration::default();
        let served = engine::replay(&own, &options, limits, |ranks| iteration.time(ranks, &own))?;
        figures.prompt_tokens += iteration.prompt_tokens;
        figures.output_tokens += iteration.output_tokens;
        for (request, outcome) in own.iter().zip(&served.outcomes) {
            ttft += (outcome.first_token - request.arrival).as_ms_f64();
            e2e += (outcome.last_token - request.arrival).as_ms_f64();
            figures.completed += usize::from(!outcome.last_token.is_zero());
            last = last.max(outcome.last_token);
        }
    }
    let took = start.elapsed();
    let first = requests.first().map_or(Nanos::ZERO, |request| request.arrival);
    let mean = |sum: f64| sum / figures.completed.max(1) as f64;
    (figures.ttft_ms, figures.e2e_ms, figures.makespan_ms) = (mean(ttft), mean(e2e), (last - first).as_ms_f64());
    Ok((took, figures))
}

/// The times of iterations, and the tokens in them.
#[derive(Default)]
struct Iteration {
    prompt_tokens: u64,
    output_tokens: u64,
}

impl Iteration {
    /// The time of an iteration: its part of prompts, from the means of their lengths in whole tokens as the other side
    /// has them, and its decodes. A first token costs no more than the prompt that gives it.
    fn time(&mut self, ranks: &[&[Row]], requests: &[EngineRequest]) -> Nanos {
        let (mut ends, mut before, mut prompts, mut batch, mut context) = (0, 0, 0, 0, 0);
        for row in ranks.iter().flat_map(|rows| rows.iter()) {
            let prompt = requests.get(row.request.0 as usize).map_or(0, |request| request.prompt);
            if row.position < prompt {
                ends += row.position + row.tokens;
                before += row.position;
                prompts += 1;
                self.prompt_tokens += u64::from(row.tokens);
            } else {
                batch += 1;
                context += row.position + row.tokens;
            }
            self.output_tokens += u64::from(row.emits);
        }
        let mut time = Nanos::ZERO;
        if prompts > 0 {
            let (end, before) = (ends / prompts, before / prompts);
            time += millis(prefill_ms(f64::from(prompts * (end - before)), f64::from(before)));
        }
        if batch > 0 {
            time += millis(decode_ms(f64::from(batch), f64::from(context)));
        }
        time
    }
}

fn millis(millis: f64) -> Nanos {
    Nanos((millis * 1e6).round() as u64)
}

fn fastest(
    runs: u32,
    mut replay: impl FnMut() -> Result<(Duration, Figures), Failure>,
) -> Result<(Duration, Figures), Failure> {
    let mut best = replay()?;
    for _ in 1..runs {
        let again = replay()?;
        if again.0 < best.0 {
            best = again;
        }
    }
    Ok(best)
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    let trace = TraceFile { path: arguments.trace.clone(), format: TraceFormat::Azure };
    let records = trace.records()?.collect::<Result<Vec<_>, _>>()?;
    let requests: Vec<_> = records
        .iter()
        .map(|record| EngineRequest { arrival: record.at, prompt: record.prompt, output: record.output, hashes: None })
        .collect();
    let mut targets = Vec::new();
    let names =
        ["replay of Azure conv, 1 worker", "replay of Azure conv, 8 workers", "replay of Azure conv, 64 workers"];
    for (workers, name) in [1, 8, 64].into_iter().zip(names) {
        let (our_time, our) = fastest(arguments.runs, || ours(&requests, workers))?;
        let (their_time, their) = fastest(arguments.runs, || theirs(&requests, workers))?;
        println!("{workers} workers: here {our}; {:.3} CPU s", our_time.as_secs_f64());
        println!("{workers} workers: AISimulate {their}; {:.3} CPU s", their_time.as_secs_f64());
        if let Some(what) = our.differs_from(&their) {
            return Err(format!("the sides did not do the same work with {workers} workers: {what} differ").into());
        }
        let apart = (our.makespan_ms - their.makespan_ms).abs() / their.makespan_ms.max(1.0);
        let times = their_time.as_secs_f64() / our_time.as_secs_f64();
        println!("{workers} workers: {times:.1} times as fast; makespans differ by a share of {apart:.1e}");
        let rate = |figures: Figures, took: Duration| figures.completed as f64 / took.as_secs_f64();
        let (value, peer) = (rate(our, our_time), rate(their, their_time));
        targets.push(Target {
            name,
            value,
            unit: "requests per CPU second",
            bound: (10.0 * peer).ceil(),
            better: Better::Higher,
            peer: Some(("aisimulate-core 0.13", peer)),
            measured: true,
            threads: 1,
        });
    }
    print_and_write("replay-speed", &targets)?;
    Ok(())
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
