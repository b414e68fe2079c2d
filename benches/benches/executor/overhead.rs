//! What the executor adds to the kernels: iterations through the graph, the world and a lane, beside the same
//! operators called in a row on one thread. Decoding steps with 33 to 131 tokens of context, and prompts of
//! 64 tokens.
//!
//! Two ways: two sequences by turns, so that the lane has its next iteration when it ends one, which is how a
//! driver feeds it; and one sequence, for which the lane and the thread that plans wait for each other in
//! every iteration. The latter is as much a figure of how long the operating system takes to wake a thread.
//!
//! The lane and the direct calls have one core, to which their threads are bound, since two cores of a shared
//! machine differ by more than what is sought; the thread that plans has another, if there is one. Pairs, one
//! of each in turn, the order within a pair alternating; their tokens must be equal. Every so many pairs both
//! begin with new memory, since where the weights lie is worth a per cent either way. By the clock: the mean
//! of the differences over the mean of the direct times, and the upper end of its one-sided 95 % interval
//! (normal, n >= 30); the median of the pairs' ratios, with the upper end of its one-sided 95 % interval by
//! order statistics, which a few pairs that something else on the machine ran into do not move.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use core_affinity::CoreId;
use slicescheduler_benches::Target;
use slicescheduler_executor::cpu_world::Direct;
use slicescheduler_executor::lane::{StdThreads, ThreadSpawner};
use slicescheduler_executor::model::CpuModel;
use slicescheduler_executor::registry::KernelRegistry;

use crate::Outcome;
use crate::decoder::decoder;
use crate::rig::Rig;

const CONTEXT: u32 = 32;
const PREFILL: u32 = 64;
/// Times that both begin anew, and pairs of each kind in between.
const SETUPS: u32 = 6;
const DECODES: u32 = 10;
const PREFILLS: u32 = 10;
/// Tokens of each of two sequences in a pair.
const STEPS: u32 = 8;

/// Threads that are bound to a core.
struct On(CoreId);

impl ThreadSpawner for On {
    fn spawn(&self, name: String, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        let core = self.0;
        let bound = move || {
            if !core_affinity::set_for_current(core) {
                println!("the operating system does not bind {core:?}: its neighbours are in the figures");
            }
            body();
        };
        StdThreads.spawn(name, Box::new(bound))
    }
}

/// Direct execution on a thread of its own.
struct Apart {
    /// Tokens of the next step, and whether a new sequence begins with them.
    orders: Sender<(Vec<u32>, bool)>,
    steps: Receiver<Result<(u32, f64), String>>,
}

impl Apart {
    fn new(model: CpuModel, threads: &dyn ThreadSpawner) -> Outcome<Self> {
        let ((orders, taken), (sender, steps)) = (channel::<(Vec<u32>, bool)>(), channel());
        let serve = move || {
            let mut direct = Direct::new(model, &KernelRegistry::cpu(), 512, 256);
            for (tokens, anew) in taken {
                let step = direct.as_mut().map_err(|error| error.to_string()).and_then(|direct| {
                    if anew {
                        direct.restart();
                    }
                    let clock = Instant::now();
                    let token = direct.step(&tokens).map_err(|error| error.to_string())?;
                    Ok((token, clock.elapsed().as_secs_f64()))
                });
                if sender.send(step).is_err() {
                    return;
                }
            }
        };
        threads.spawn("direct".into(), Box::new(serve))?;
        Ok(Self { orders, steps })
    }

    /// The next token, and the seconds that it took there.
    fn step(&self, tokens: &[u32], anew: bool) -> Outcome<(u32, f64)> {
        self.orders.send((tokens.to_vec(), anew))?;
        Ok(self.steps.recv()??)
    }
}

pub(crate) fn rows() -> Outcome<Vec<Target>> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let (&plans, &runs) = cores.first().zip(cores.last()).ok_or("no core is known")?;
    let (sender, rows) = channel();
    // The main thread stays as it is.
    let measure = move || sender.send(measure(&On(runs)).map_err(|error| error.to_string())).unwrap_or_default();
    On(plans).spawn("plans".into(), Box::new(measure))?;
    Ok(rows.recv()??)
}

fn measure(threads: &dyn ThreadSpawner) -> Outcome<Vec<Target>> {
    let (spec, model) = decoder()?;
    let (mut decode, mut prefill) = (Pairs::default(), Pairs::default());
    for setup in 0..SETUPS {
        let (direct, mut rig);
        if setup.is_multiple_of(2) {
            direct = Apart::new(model.clone(), threads)?;
            rig = Rig::new(&spec, &model, 1, threads)?;
        } else {
            rig = Rig::new(&spec, &model, 1, threads)?;
            direct = Apart::new(model.clone(), threads)?;
        }
        decode_pairs(&mut rig, &direct, &mut decode)?;
        prefill_pairs(&mut rig, &direct, &mut prefill)?;
    }
    let mut rows = targets(&decode, DECODE);
    rows.extend(targets(&prefill, PROMPT));
    Ok(rows)
}

fn prompt(seed: u32, length: u32) -> Vec<u32> {
    (0..length).map(|i| 300 + (seed * 31 + i * 7) % 1000).collect()
}

/// Seconds through the executor, and directly.
type Pair = (f64, f64);

#[derive(Default)]
struct Pairs {
    /// Per sequence of two by turns.
    fed: Vec<Pair>,
    alone: Vec<Pair>,
}

/// The pairs that fill caches are left out.
fn decode_pairs(rig: &mut Rig, direct: &Apart, pairs: &mut Pairs) -> Outcome<()> {
    let tokens = prompt(0, CONTEXT);
    let output = DECODES + (DECODES + 1) * STEPS + 1;
    let mut both = [rig.enter(0, &tokens, output)?, rig.enter(0, &tokens, output)?];
    let mut next = rig.iterate_both(&mut both, 1)?;
    // What follows goes on behind this token directly, too.
    direct.step(&tokens, true)?;
    for number in 0..DECODES + 1 {
        let mut last = next[next.len() - 1];
        let (tokens, pair) = in_turn(number, &mut || rig.iterate_both(&mut both, STEPS as usize), &mut || {
            let mut all = (Vec::new(), 0.0);
            for _ in 0..STEPS {
                let (token, seconds) = direct.step(&[last], false)?;
                (last, all.1) = (token, all.1 + seconds);
                all.0.push(token);
            }
            Ok(all)
        })?;
        next = tokens;
        if number > 0 {
            pairs.fed.push((pair.0 / 2.0, pair.1));
        }
    }
    let [mut sequence, other] = both;
    rig.leave(&other)?;
    for number in 0..DECODES {
        let last = next[next.len() - 1];
        let (tokens, pair) =
            in_turn(number, &mut || Ok(vec![rig.iterate(&mut sequence)?]), &mut || one(direct.step(&[last], false)))?;
        next = tokens;
        pairs.alone.push(pair);
    }
    rig.leave(&sequence)
}

/// As [`decode_pairs`].
fn prefill_pairs(rig: &mut Rig, direct: &Apart, pairs: &mut Pairs) -> Outcome<()> {
    for number in 0..PREFILLS + 1 {
        let tokens = prompt(number + 1, PREFILL);
        let mut both = [rig.enter(0, &tokens, 2)?, rig.enter(0, &tokens, 2)?];
        let (_, pair) =
            in_turn(number, &mut || rig.iterate_both(&mut both, 1), &mut || one(direct.step(&tokens, true)))?;
        both.iter().try_for_each(|sequence| rig.leave(sequence))?;
        let mut sequence = rig.enter(0, &tokens, 2)?;
        let (_, alone) =
            in_turn(number, &mut || Ok(vec![rig.iterate(&mut sequence)?]), &mut || one(direct.step(&tokens, true)))?;
        rig.leave(&sequence)?;
        if number > 0 {
            pairs.fed.push((pair.0 / 2.0, pair.1));
            pairs.alone.push(alone);
        }
    }
    Ok(())
}

/// Tokens, and the seconds of their operators.
type Timed = (Vec<u32>, f64);

fn one(step: Outcome<(u32, f64)>) -> Outcome<Timed> {
    step.map(|(token, seconds)| (vec![token], seconds))
}

/// The tokens of both, and the seconds.
fn in_turn(
    number: u32,
    executor: &mut dyn FnMut() -> Outcome<Vec<u32>>,
    direct: &mut dyn FnMut() -> Outcome<Timed>,
) -> Outcome<(Vec<u32>, Pair)> {
    let before = if number.is_multiple_of(2) { None } else { Some(direct()?) };
    let clock = Instant::now();
    let tokens = executor()?;
    let executor = clock.elapsed().as_secs_f64();
    let (directly, direct) = before.map_or_else(direct, Ok)?;
    if tokens != directly {
        return Err(format!("tokens {tokens:?}, directly {directly:?}").into());
    }
    Ok((tokens, (executor, direct)))
}

/// Names: mean and median with their upper ends, then the median of one sequence.
const DECODE: [&str; 6] = [
    "executor over direct execution, decode, mean",
    "executor over direct execution, decode, mean's upper 95 %",
    "executor over direct execution, decode, median",
    "executor over direct execution, decode, median's upper 95 %",
    "executor over direct execution, decode of one sequence, median",
    "executor over direct execution, decode of one sequence, median's upper 95 %",
];
const PROMPT: [&str; 6] = [
    "executor over direct execution, prefill, mean",
    "executor over direct execution, prefill, mean's upper 95 %",
    "executor over direct execution, prefill, median",
    "executor over direct execution, prefill, median's upper 95 %",
    "executor over direct execution, prefill of one sequence, median",
    "executor over direct execution, prefill of one sequence, median's upper 95 %",
];

fn targets(pairs: &Pairs, names: [&'static str; 6]) -> Vec<Target> {
    let figures = [of_means(&pairs.fed), of_medians(&pairs.fed), of_medians(&pairs.alone)];
    let bounded = figures.into_iter().flat_map(|(middle, upper)| [(middle, 0.3), (upper, 1.0)]);
    let row = |(name, (value, bound))| Target { threads: 2, ..Target::at_most(name, value, "%", bound) };
    names.into_iter().zip(bounded).map(row).collect()
}

/// Per cent: the mean, and the upper end of its one-sided 95 % interval.
fn of_means(pairs: &[Pair]) -> (f64, f64) {
    let count = pairs.len() as f64;
    let direct = pairs.iter().map(|pair| pair.1).sum::<f64>() / count;
    let differences = pairs.iter().map(|(executor, direct)| executor - direct);
    let mean = differences.clone().sum::<f64>() / count;
    let variance = differences.map(|difference| (difference - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let upper = mean + 1.645 * (variance / count).sqrt();
    (100.0 * mean / direct, 100.0 * upper / direct)
}

/// Per cent: the median of the ratios, and the upper end of its one-sided 95 % interval: as many ratios lie
/// below the true median as heads fall in as many throws of a coin.
fn of_medians(pairs: &[Pair]) -> (f64, f64) {
    let mut over: Vec<f64> = pairs.iter().map(|(executor, direct)| 100.0 * (executor / direct - 1.0)).collect();
    over.sort_by(f64::total_cmp);
    let (count, middle) = (over.len() as f64, over.len() / 2);
    let upper = (count / 2.0 + 1.645 * count.sqrt() / 2.0).ceil() as usize;
    (over[middle], over[upper.min(over.len() - 1)])
}
