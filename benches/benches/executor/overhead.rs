//! What the executor adds to the kernels: an iteration through the graph, the world and a lane, beside the
//! same operators called in a row on one thread. Decoding steps with 128 to 256 tokens of context, and
//! prompts of 64 tokens.
//!
//! Pairs, one of each in turn, the order within a pair alternating; their tokens must be equal. The mean of
//! the differences over the mean of the direct times, and the upper end of its one-sided 95 % interval
//! (normal, n >= 30). Once by the clock, and once by processor time of the process, to which what else runs
//! on the machine adds less; the latter has no waiting in it. And the least time of the one over the least of
//! the other, which is what is left where nothing else ran.

use std::time::{Duration, Instant};

use cpu_time::ProcessTime;
use slicescheduler_benches::Target;
use slicescheduler_executor::cpu_world::Direct;
use slicescheduler_executor::registry::KernelRegistry;

use crate::Outcome;
use crate::decoder::decoder;
use crate::rig::Rig;

const CONTEXT: u32 = 128;
const DECODES: u32 = 120;
const PREFILL: u32 = 64;
const PREFILLS: u32 = 30;

/// Seconds by the clock, and of processor time.
type Times = (f64, f64);

pub(crate) fn rows() -> Outcome<Vec<Target>> {
    let (spec, model) = decoder()?;
    let mut direct = Direct::new(model.clone(), &KernelRegistry::cpu(), 512, 256)?;
    let mut rig = Rig::new(&spec, &model, 1)?;
    let prompt =
        |seed: u32, length: u32| -> Vec<u32> { (0..length).map(|i| 300 + (seed * 31 + i * 7) % 1000).collect() };

    let mut decode = Vec::new();
    let tokens = prompt(0, CONTEXT);
    let mut sequence = rig.enter(0, &tokens, DECODES + 8)?;
    let mut next = same(rig.iterate(&mut sequence)?, direct.step(&tokens)?)?;
    for pair in 0..DECODES + 2 {
        let (executor, direct_times) =
            in_turn(pair, &mut || rig.iterate(&mut sequence), &mut || Ok(direct.step(&[next])?))?;
        next = same(executor.0, direct_times.0)?;
        decode.push((executor.1, direct_times.1));
    }
    rig.leave(&sequence)?;

    let mut prefill = Vec::new();
    for pair in 0..PREFILLS + 2 {
        let tokens = prompt(pair + 1, PREFILL);
        let mut sequence = rig.enter(0, &tokens, 2)?;
        direct.restart();
        let (executor, direct_times) =
            in_turn(pair, &mut || rig.iterate(&mut sequence), &mut || Ok(direct.step(&tokens)?))?;
        same(executor.0, direct_times.0)?;
        prefill.push((executor.1, direct_times.1));
        rig.leave(&sequence)?;
    }
    // The first pairs fill caches.
    let mut rows = targets(&decode[2..], DECODE);
    rows.extend(targets(&prefill[2..], PROMPT));
    Ok(rows)
}

/// Names: mean and upper bound by the clock, then of processor time; of the least times.
const DECODE: [&str; 5] = [
    "executor over direct execution, decode, mean",
    "executor over direct execution, decode, upper 95 %",
    "executor over direct execution, decode, mean of CPU time",
    "executor over direct execution, decode, upper 95 % of CPU time",
    "executor over direct execution, decode, least times",
];
const PROMPT: [&str; 5] = [
    "executor over direct execution, prefill, mean",
    "executor over direct execution, prefill, upper 95 %",
    "executor over direct execution, prefill, mean of CPU time",
    "executor over direct execution, prefill, upper 95 % of CPU time",
    "executor over direct execution, prefill, least times",
];

fn same(executor: u32, direct: u32) -> Outcome<u32> {
    if executor == direct { Ok(executor) } else { Err(format!("token {executor}, directly {direct}").into()) }
}

fn timed(run: &mut dyn FnMut() -> Outcome<u32>) -> Outcome<(u32, Times)> {
    let (clock, processor) = (Instant::now(), ProcessTime::now());
    let token = run()?;
    let seconds = |time: Duration| time.as_secs_f64();
    Ok((token, (seconds(clock.elapsed()), seconds(processor.elapsed()))))
}

type Timed = (u32, Times);

fn in_turn(
    pair: u32,
    executor: &mut dyn FnMut() -> Outcome<u32>,
    direct: &mut dyn FnMut() -> Outcome<u32>,
) -> Outcome<(Timed, Timed)> {
    if pair.is_multiple_of(2) {
        let executor = timed(executor)?;
        return Ok((executor, timed(direct)?));
    }
    let direct = timed(direct)?;
    Ok((timed(executor)?, direct))
}

fn targets(pairs: &[(Times, Times)], names: [&'static str; 5]) -> Vec<Target> {
    let clock = overhead(pairs.iter().map(|pair| (pair.0.0, pair.1.0)));
    let processor = overhead(pairs.iter().map(|pair| (pair.0.1, pair.1.1)));
    let [mean, upper, cpu_mean, cpu_upper, least] = names;
    let least_of = |time: fn(&(Times, Times)) -> f64| pairs.iter().map(time).fold(f64::INFINITY, f64::min);
    let (executor, direct) = (least_of(|pair| pair.0.0), least_of(|pair| pair.1.0));
    println!("least times: {:.3} ms through the executor, {:.3} ms directly", 1e3 * executor, 1e3 * direct);
    let row = |name, value, bound| Target { threads: 2, ..Target::at_most(name, value, "%", bound) };
    vec![
        row(mean, clock.0, 0.3),
        row(upper, clock.1, 1.0),
        row(cpu_mean, processor.0, 0.3),
        row(cpu_upper, processor.1, 1.0),
        row(least, 100.0 * (executor / direct - 1.0), 0.3),
    ]
}

/// Per cent: the mean, and the upper end of its one-sided 95 % interval.
fn overhead(pairs: impl Iterator<Item = (f64, f64)> + Clone) -> (f64, f64) {
    let count = pairs.clone().count() as f64;
    let direct = pairs.clone().map(|pair| pair.1).sum::<f64>() / count;
    let differences = pairs.map(|(executor, direct)| executor - direct);
    let mean = differences.clone().sum::<f64>() / count;
    let variance = differences.map(|difference| (difference - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let upper = mean + 1.645 * (variance / count).sqrt();
    (100.0 * mean / direct, 100.0 * upper / direct)
}
