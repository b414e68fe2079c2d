//! A load: latency-sensitive tenants are asked at random times, best-effort ones always have work.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use slicescheduler::gmg::units::Nanos;
use slicescheduler::{Answer, PendingEmbedding, Request, ServeError, SliceScheduler};

use super::arguments::Arguments;
use super::tenant::Served;
use crate::Failure;

/// How long a best-effort tenant waits when none of its requests is taken.
const BETWEEN_TRIES: Duration = Duration::from_millis(10);

/// What the tenants of real models are asked, in turn.
const QUESTIONS: [&str; 6] = [
    "What is the capital of France?",
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "Explain in two sentences why the sky is blue.",
    "List five things to pack for a hike in the mountains, and say why each matters.",
    "Translate into French: the cat sleeps on the warm stove.",
    "My bicycle chain slips when I go uphill. What should I look at first, and what tools do I need for it?",
];

/// How one tenant fared.
#[derive(Debug, Default)]
struct Fared {
    completed: u32,
    unfinished: u32,
    /// Turned away: too many were under way.
    refused: u32,
    prompt_tokens: u64,
    output_tokens: u64,
    first: Vec<Nanos>,
    pace: Vec<Nanos>,
    /// Tokens, in and out, of requests that completed while others arrived.
    in_window: u64,
    /// Of every request that completed, by its number, a hash of the answer; only where loads are compared.
    answers: Option<HashMap<usize, u64>>,
}

/// How all fared.
pub(crate) struct Outcome {
    tenants: Vec<(String, Fared)>,
    lasted: Duration,
    window: Duration,
}

impl Outcome {
    /// Tokens per second, in and out, of requests that completed while others arrived.
    pub(crate) fn throughput(&self) -> f64 {
        self.tenants.iter().map(|(_, fared)| fared.in_window).sum::<u64>() as f64 / self.window.as_secs_f64()
    }

    /// How many answers equal those of `other` to the same requests, and how many there are to both.
    pub(crate) fn same_answers(&self, other: &Self) -> (usize, usize) {
        let both = self.tenants.iter().zip(&other.tenants).flat_map(|((_, one), (_, other))| {
            let (one, other) = (one.answers.iter().flatten(), other.answers.as_ref());
            one.filter_map(move |(number, answer)| Some(answer == other?.get(number)?))
        });
        both.fold((0, 0), |(same, all), equal| (same + usize::from(equal), all + 1))
    }
}

struct Asked {
    at: Nanos,
    number: usize,
    prompt: usize,
    answer: Awaited,
}

enum Awaited {
    Tokens(Answer),
    Vector(PendingEmbedding),
}

/// Runs the load; returns when every answer of a latency-sensitive tenant is there.
pub(crate) fn run(slices: &SliceScheduler, served: &[Served], arguments: &Arguments) -> Result<Outcome, Failure> {
    let prompts = served.iter().map(prompts).collect::<Result<Vec<_>, _>>()?;
    let start = Instant::now();
    let end = start + arguments.duration;
    let window = slices.now() + Nanos::from(arguments.duration);
    let fared = thread::scope(|scope| {
        let threads: Vec<_> = served
            .iter()
            .zip(&prompts)
            .zip(0u64..)
            .map(|((tenant, prompts), index)| {
                let seed = arguments.seed.wrapping_mul(0x9e37_79b9).wrapping_add(index);
                let (max_tokens, compare) = (arguments.max_tokens, arguments.compare);
                let asker = Asker { slices, tenant, prompts, max_tokens, window, compare, random: seed, asked: 0 };
                scope.spawn(move || {
                    if tenant.best_effort {
                        asker.backlog(end, arguments.backlog as usize)
                    } else {
                        asker.arrivals(end, arguments.load, arguments.burst)
                    }
                })
            })
            .collect();
        let ended = |thread: thread::ScopedJoinHandle<'_, Result<Fared, String>>| {
            thread.join().unwrap_or_else(|_| Err("a thread of the load panicked".to_owned()))
        };
        threads.into_iter().map(ended).collect::<Result<Vec<_>, String>>()
    })?;
    let names = served.iter().map(|tenant| tenant.name.clone());
    Ok(Outcome { tenants: names.zip(fared).collect(), lasted: start.elapsed(), window: arguments.duration })
}

fn prompts(tenant: &Served) -> Result<Vec<Vec<u32>>, Failure> {
    if tenant.tokenizer.is_none() {
        return Ok((1..7).map(|length| (0..length * 8).collect()).collect());
    }
    QUESTIONS.iter().map(|question| tenant.prompt(question)).collect()
}

struct Asker<'a> {
    slices: &'a SliceScheduler,
    tenant: &'a Served,
    prompts: &'a [Vec<u32>],
    max_tokens: u32,
    /// When requests no longer arrive.
    window: Nanos,
    /// Whether answers are kept, to be compared.
    compare: bool,
    random: u64,
    asked: usize,
}

impl Asker<'_> {
    /// Submits the next request; [`None`] if too many are under way.
    fn ask(&mut self) -> Result<Option<Asked>, String> {
        let number = self.asked;
        let prompt = &self.prompts[number % self.prompts.len()];
        self.asked += 1;
        let (name, at) = (&self.tenant.name, self.slices.now());
        let answer = if self.tenant.is_encoder() {
            self.slices.embed(name, prompt).map(Awaited::Vector)
        } else {
            let request = Request::prompt_tokens(prompt).max_tokens(self.max_tokens);
            self.slices.submit(name, request).map(Awaited::Tokens)
        };
        match answer {
            Ok(answer) => Ok(Some(Asked { at, number, prompt: prompt.len(), answer })),
            Err(ServeError::Overloaded { .. }) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Asks bursts of requests with exponential times in between, whatever has been answered. Another thread takes the
    /// answers, so that no more of them are held than are under way.
    fn arrivals(mut self, end: Instant, rate: f64, burst: u32) -> Result<Fared, String> {
        let (mut fared, window) = (self.fared(), self.window);
        thread::scope(|scope| {
            let (sender, answers) = mpsc::channel();
            let taken = scope.spawn(move || {
                answers.into_iter().for_each(|asked| fared.take(asked, window));
                fared
            });
            let refused = self.ask_until(end, rate, burst, &sender);
            drop(sender);
            let fared = taken.join().map_err(|_| "a thread of the load panicked".to_owned())?;
            Ok(Fared { refused: refused?, ..fared })
        })
    }

    /// Sends what is asked to whoever takes the answers; returns how many requests were turned away.
    fn ask_until(&mut self, end: Instant, rate: f64, burst: u32, taker: &mpsc::Sender<Asked>) -> Result<u32, String> {
        let (mut next, mut refused) = (Instant::now(), 0);
        loop {
            let pause = Duration::try_from_secs_f64(-self.uniform().ln() * f64::from(burst) / rate);
            // One that is longer than any clock goes is beyond the end.
            let Some(then) = pause.ok().and_then(|pause| next.checked_add(pause)).filter(|then| *then < end) else {
                return Ok(refused);
            };
            next = then;
            thread::sleep(next.saturating_duration_since(Instant::now()));
            for _ in 0..burst {
                match self.ask()? {
                    Some(one) => taker.send(one).map_err(|_| "nobody takes the answers".to_owned())?,
                    None => refused += 1,
                }
            }
        }
    }

    fn fared(&self) -> Fared {
        Fared { answers: self.compare.then(HashMap::new), ..Fared::default() }
    }

    /// Keeps `depth` requests under way; those that are not answered at the end are cancelled.
    fn backlog(mut self, end: Instant, depth: usize) -> Result<Fared, String> {
        let (mut asked, mut fared) = (VecDeque::new(), self.fared());
        while Instant::now() < end {
            while asked.len() < depth {
                let Some(one) = self.ask()? else { break };
                asked.push_back(one);
            }
            if let Some(oldest) = asked.pop_front() {
                fared.take(oldest, self.window);
            } else {
                thread::sleep(BETWEEN_TRIES);
            }
        }
        fared.unfinished += asked.len() as u32;
        Ok(fared)
    }

    /// In (0, 1], by SplitMix64.
    fn uniform(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((z ^ (z >> 31)) >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

impl Fared {
    /// Waits for an answer and counts it.
    fn take(&mut self, asked: Asked, window: Nanos) {
        let (mut count, mut first, mut last) = (0u32, Nanos::ZERO, Nanos::ZERO);
        let mut hash = DefaultHasher::new();
        match asked.answer {
            Awaited::Tokens(answer) => {
                for token in answer {
                    let Ok(token) = token else {
                        self.unfinished += 1;
                        return;
                    };
                    first = if count == 0 { token.at } else { first };
                    last = token.at;
                    token.id.hash(&mut hash);
                    count += 1;
                }
            }
            Awaited::Vector(pending) => match pending.wait() {
                Ok(embedding) => {
                    (first, last) = (embedding.at, embedding.at);
                    embedding.vector.iter().for_each(|x| x.to_bits().hash(&mut hash));
                }
                Err(_) => {
                    self.unfinished += 1;
                    return;
                }
            },
        }
        self.completed += 1;
        self.prompt_tokens += asked.prompt as u64;
        self.output_tokens += u64::from(count);
        if last <= window {
            self.in_window += asked.prompt as u64 + u64::from(count);
        }
        if let Some(answers) = &mut self.answers {
            answers.insert(asked.number, hash.finish());
        }
        self.first.push(first - asked.at);
        if count > 1 {
            self.pace.push(Nanos((last - first).0 / u64::from(count - 1)));
        }
    }
}

/// Median and 99th percentile (nearest rank), or that there is nothing.
fn quantiles(values: &[Nanos], decimals: usize) -> String {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let rank = |share: f64| ((share * sorted.len() as f64).ceil() as usize).clamp(1, sorted.len().max(1)) - 1;
    match (sorted.get(rank(0.5)), sorted.get(rank(0.99))) {
        (Some(half), Some(most)) => format!("{:.decimals$} / {:.decimals$}", half.as_ms_f64(), most.as_ms_f64()),
        _ => "-".to_owned(),
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lasted = self.lasted.as_secs_f64();
        writeln!(f, "measured, {lasted:.1} s; times in ms, p50 / p99")?;
        writeln!(
            f,
            "{:<14} {:>8} {:>10} {:>8} {:>8} {:>8} {:>9} {:>19} {:>15}",
            "tenant", "answered", "unfinished", "refused", "tokens", "in", "tokens/s", "answer begins", "per token"
        )?;
        for (name, fared) in &self.tenants {
            let all = fared.prompt_tokens + fared.output_tokens;
            writeln!(
                f,
                "{name:<14} {:>8} {:>10} {:>8} {:>8} {:>8} {:>9.1} {:>19} {:>15}",
                fared.completed,
                fared.unfinished,
                fared.refused,
                fared.output_tokens,
                fared.prompt_tokens,
                all as f64 / lasted,
                quantiles(&fared.first, 0),
                quantiles(&fared.pace, 1),
            )?;
        }
        Ok(())
    }
}
