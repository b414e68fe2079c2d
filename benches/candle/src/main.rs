//! Tokens per second of one tenant beside candle-transformers: the same file, the same prompt, one
//! thread each, rounds of the one and the other in turn.
//!
//! Ours goes the whole way: submitted to a `SliceScheduler`, batched, planned, run on a lane,
//! delivered. Candle's model is called directly; its sampling (a greedy choice) is not timed. The best
//! of the rounds counts, since other programs disturb a round and only ever make it longer. With
//! `CANDLE_DEQUANTIZE_ALL=1`, candle widens all weights to F32, and so do we.
//!
//! `benches/candle/run [MODELS]`

use std::error::Error;
use std::fs::File;
use std::path::Path;
use std::time::Instant;

use candle_core::quantized::gguf_file::Content;
use candle_core::{D, Device, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use slicescheduler::gmg::dtype::DType;
use slicescheduler::gmg::units::Bytes;
use slicescheduler::scheduler::batching::BatchOptions;
use slicescheduler::{Llama, Request, SliceScheduler, Tenant};
use slicescheduler_benches::{Better, Target, print_and_write};

const PROMPT: u32 = 256;
const OUTPUT: u32 = 64;
const ROUNDS: u32 = 5;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Seconds of the prompt, and of the tokens after the first.
#[derive(Clone, Copy)]
struct Times {
    prefill: f64,
    decode: f64,
}

impl Times {
    const NONE: Self = Self { prefill: f64::INFINITY, decode: f64::INFINITY };

    fn best(self, other: Self) -> Self {
        Self { prefill: self.prefill.min(other.prefill), decode: self.decode.min(other.decode) }
    }
}

fn main() -> Outcome<()> {
    let path = std::env::args_os().nth(1).ok_or("say which GGUF file: slicescheduler-candle FILE")?;
    if std::env::var("RAYON_NUM_THREADS").as_deref() != Ok("1") {
        return Err("candle takes all cores; set RAYON_NUM_THREADS=1, as benches/candle/run does".into());
    }
    let widened = std::env::var("CANDLE_DEQUANTIZE_ALL").is_ok_and(|value| !value.is_empty() && value != "0");
    // Token numbers that every vocabulary has; what they mean does not matter for time.
    let prompt: Vec<u32> = (0..PROMPT).map(|i| 300 + i * 7 % 1000).collect();
    let mut candle = Candle::load(path.as_ref())?;
    let ours = ours(path.as_ref(), widened)?;
    let (mut theirs_best, mut ours_best) = (Times::NONE, Times::NONE);
    for _ in 0..ROUNDS {
        theirs_best = theirs_best.best(candle.round(&prompt)?);
        ours_best = ours_best.best(round(&ours, &prompt)?);
    }
    let rate = |tokens: u32, seconds: f64| f64::from(tokens) / seconds;
    let row = |name, tokens, ours, theirs| Target {
        better: Better::Higher,
        peer: Some(("candle", rate(tokens, theirs))),
        ..Target::at_most(name, rate(tokens, ours), "tokens/s", rate(tokens, theirs))
    };
    let (prefill, decode, area) = if widened {
        ("single-tenant serving, prefill of 256, f32", "single-tenant serving, decode, f32", "executor-candle-f32")
    } else {
        ("single-tenant serving, prefill of 256, q4_1", "single-tenant serving, decode, q4_1", "executor-candle-q4_1")
    };
    let rows = [
        row(prefill, PROMPT, ours_best.prefill, theirs_best.prefill),
        row(decode, OUTPUT - 1, ours_best.decode, theirs_best.decode),
    ];
    print_and_write(area, &rows)?;
    for (what, ours, theirs) in
        [("prefill", ours_best.prefill, theirs_best.prefill), ("decode", ours_best.decode, theirs_best.decode)]
    {
        println!("{what}: {:.2}x candle (>= 1.0, then 1.5)", theirs / ours);
    }
    Ok(())
}

struct Candle(ModelWeights);

impl Candle {
    fn load(path: &Path) -> Outcome<Self> {
        let mut file = File::open(path)?;
        let content = Content::read(&mut file)?;
        Ok(Self(ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?))
    }

    fn step(&mut self, tokens: &[u32], position: usize) -> Outcome<(u32, f64)> {
        let input = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
        let start = Instant::now();
        let logits = self.0.forward(&input, position)?;
        let time = start.elapsed().as_secs_f64();
        Ok((logits.flatten_all()?.argmax(D::Minus1)?.to_scalar()?, time))
    }

    fn round(&mut self, prompt: &[u32]) -> Outcome<Times> {
        // At position 0 the model forgets its cache.
        let (mut token, prefill) = self.step(prompt, 0)?;
        let mut decode = 0.0;
        for done in 0..OUTPUT as usize - 1 {
            let (next, time) = self.step(&[token], prompt.len() + done)?;
            (token, decode) = (next, decode + time);
        }
        Ok(Times { prefill, decode })
    }
}

fn ours(path: &Path, widened: bool) -> Outcome<SliceScheduler> {
    let model = Llama::from_gguf(path)?;
    let model = if widened { model.weights_as(DType::F32) } else { model };
    let batching = BatchOptions { token_budget: PROMPT, max_sequences: 4, ..BatchOptions::default() };
    let builder = SliceScheduler::builder().devices(1).device_memory(Bytes::mib(768)).batching(batching);
    Ok(builder.tenant(Tenant::best_effort("alone"), model).build()?)
}

fn round(slices: &SliceScheduler, prompt: &[u32]) -> Outcome<Times> {
    let asked = slices.now();
    // No token ends the answer early.
    let request = Request::prompt_tokens(prompt).max_tokens(OUTPUT).stop_at(u32::MAX);
    let times: Vec<_> = slices.submit("alone", request)?.map(|token| Ok(token?.at)).collect::<Outcome<_>>()?;
    let (Some(&first), Some(&last)) = (times.first(), times.last()) else { return Err("no answer".into()) };
    Ok(Times { prefill: (first - asked).as_secs_f64(), decode: (last - first).as_secs_f64() })
}
