//! What-if on a schedule of 1,000,000 operators on 64 lanes with a fixed order.
//!
//! Durations are uniform between 10 and 190 us. Before every operator its lane is idle for an
//! exponentially distributed time, set by the operator's release, so that lanes are busy for a
//! fraction of the time that is called the load. Every other operator waits for one that is among
//! the last 256 of all lanes and finishes before it starts. Changes are changed durations, uniform
//! between half and one and a half of what they were, at operators drawn over the whole schedule:
//! scattered, so that every one of them finds a cold cache.
//!
//! A question is: change, settle, read the finish of the changed operators, roll back.
//!
//! With memory, slack and tensor parallelism, every operator holds up to 64 MiB on the device of its
//! lane while it runs, every eighth is due 50 us after it was to finish, and one in 16 is sharded over
//! four lanes; a question also reads the peak and the first shortage of the changed operator's device
//! and the lateness. Interference between lanes of a device is not part of these schedules.

mod heap;

use std::hint::black_box;
use std::time::{Duration, Instant};

use slicescheduler_benches::{Better, Target};
use slicescheduler_gmg::units::{Bytes, Nanos};
use slicescheduler_simulator::incremental::{AccountRef, Hold, OpRef, ScenarioChange, Scenarios, Schedule, Scratch};

use crate::Outcome;
use crate::support::{Random, nanos_per, shortest};

pub(crate) const LANES: usize = 64;
pub(crate) const OPERATORS: usize = 1_000_000;

/// A schedule and what it was made from.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) schedule: Schedule,
    pub(crate) ops: Vec<Planned>,
    pub(crate) refs: Vec<OpRef>,
    accounts: Vec<AccountRef>,
}

/// What schedules have beside lanes and edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Features {
    None,
    /// Memory, due times, operators sharded over lanes.
    All,
}

/// One operator, in the order of starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    pub(crate) lane: usize,
    pub(crate) duration: u64,
    pub(crate) release: u64,
    pub(crate) pred: Option<usize>,
    /// Other operators that run as one with it.
    pub(crate) shards: usize,
}

impl Workload {
    pub(crate) fn new(load: f64, features: Features, seed: u64) -> Outcome<Self> {
        let ops = plan(load, features, seed);
        let mut by_lane: Vec<Vec<usize>> = vec![Vec::new(); LANES];
        ops.iter().enumerate().for_each(|(op, planned)| by_lane[planned.lane].push(op));
        let mut builder = Schedule::builder();
        let mut refs: Vec<Option<OpRef>> = vec![None; ops.len()];
        for lane in &by_lane {
            builder.lane(Nanos::ZERO);
            for &op in lane {
                refs[op] = Some(builder.push(Nanos(ops[op].duration), Nanos(ops[op].release)));
            }
        }
        let refs: Vec<_> = refs.into_iter().flatten().collect();
        for (op, planned) in ops.iter().enumerate() {
            if let Some(pred) = planned.pred {
                builder.edge(refs[pred], refs[op]);
            }
        }
        let mut accounts = Vec::new();
        if features == Features::All {
            accounts.extend((0..LANES).map(|_| builder.account(Bytes::ZERO, Bytes::mib(60))));
            let mut random = Random(seed + 1);
            for (op, planned) in ops.iter().enumerate() {
                let bytes = Bytes(random.below(Bytes::mib(64).get()));
                builder.hold(refs[op], Hold { account: accounts[planned.lane], taken: bytes, freed: bytes });
                if op % 8 == 0 {
                    builder.due(refs[op], Nanos(planned.release + planned.duration + 50_000));
                }
                if planned.shards > 0 {
                    builder.gang(&refs[op - planned.shards..=op]);
                }
            }
        }
        Ok(Self { schedule: builder.build()?, ops, refs, accounts })
    }

    /// Changes of durations: which operator, and its new duration.
    pub(crate) fn changes(&self, count: usize, seed: u64) -> Vec<(OpRef, Nanos)> {
        let mut random = Random(seed);
        let mut change = || {
            let op = random.below(self.ops.len() as u64) as usize;
            let duration = self.ops[op].duration;
            (self.refs[op], Nanos(duration / 2 + random.below(duration)))
        };
        (0..count).map(|_| change()).collect()
    }
}

fn plan(load: f64, features: Features, seed: u64) -> Vec<Planned> {
    let mut random = Random(seed);
    let mut free_at = [0u64; LANES];
    let mut finishes: Vec<u64> = Vec::with_capacity(OPERATORS);
    let mut ops: Vec<Planned> = Vec::with_capacity(OPERATORS);
    while ops.len() < OPERATORS {
        let duration = 10_000 + random.below(180_000);
        let uniform = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
        let gap = (-(1.0 - uniform).ln() * 100_000.0 * (1.0 / load - 1.0)) as u64;
        let shards = if features == Features::All && ops.len().is_multiple_of(16) { 3 } else { 0 };
        // The lanes that are free first get the next operator, so that operators come in about the
        // order of their starts.
        let mut lanes: [usize; LANES] = std::array::from_fn(|lane| lane);
        lanes.select_nth_unstable_by_key(shards, |&lane| free_at[lane]);
        let start = lanes[..=shards].iter().map(|&lane| free_at[lane] + gap).max().unwrap_or_default();
        for (shard, &lane) in lanes[..=shards].iter().enumerate() {
            let op = ops.len();
            let back = 4 + random.below(256) as usize;
            let pred = op.checked_sub(back).filter(|&pred| op % 2 == 1 && finishes[pred] <= start);
            let last = shard == shards;
            let release = free_at[lane] + gap;
            ops.push(Planned { lane, duration, release, pred, shards: if last { shards } else { 0 } });
            free_at[lane] = start + duration;
            finishes.push(start + duration);
        }
    }
    ops
}

/// Time of one question of `size` changes.
fn question(workload: &Workload, changes: &[(OpRef, Nanos)], size: usize) -> Outcome<Duration> {
    let questions = changes.len() / size;
    let mut scratch = Scratch::default();
    let mut trial = workload.schedule.trial(&mut scratch);
    let mark = trial.mark();
    let mut failed = None;
    let (mut evaluated, mut swept) = (0u64, 0);
    let time = shortest(
        7,
        || (),
        |()| {
            for of_one in changes.chunks(size) {
                for &(op, duration) in of_one {
                    failed = trial.set_duration(op, duration).err().or(failed);
                }
                match trial.settle() {
                    Ok(settled) => {
                        evaluated += u64::from(settled.evaluated);
                        swept += u32::from(settled.swept);
                    }
                    Err(error) => failed = Some(error),
                }
                for &(op, _) in of_one {
                    black_box(trial.finish(op));
                }
                if let Some(&account) = workload.accounts.get(of_one[0].1.get() as usize % LANES) {
                    black_box((trial.peak(account), trial.shortage(account), trial.lateness()));
                }
                trial.rollback(mark);
            }
        },
    );
    let mean = evaluated as f64 / 7.0 / questions as f64;
    println!("  {size} changes: {mean:.1} operators evaluated per question, {swept} sweeps");
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(time / questions as u32),
    }
}

/// Time of a sweep.
fn sweep(workload: &Workload) -> Outcome<Duration> {
    let mut finish = Vec::new();
    let mut failed = None;
    let time = shortest(
        9,
        || (),
        |()| {
            failed = workload.schedule.sweep_into(&mut finish).err().or(failed);
            black_box(finish.last());
        },
    );
    failed.map_or(Ok(time), |error| Err(error.into()))
}

/// Nanoseconds per operator and scenario of `N` candidates of 100 changes each.
fn scenarios<const N: usize>(workload: &Workload) -> Outcome<f64> {
    let change = |(number, (op, duration))| ScenarioChange { scenario: number % N, op, duration };
    let changes: Vec<_> = workload.changes(100 * N, 6).into_iter().enumerate().map(change).collect();
    let mut scenarios = Scenarios::<N>::default();
    let mut failed = None;
    let time = shortest(
        7,
        || (),
        |()| {
            failed = scenarios.sweep(&workload.schedule, &changes).err().or(failed);
        },
    );
    failed.map_or(Ok(nanos_per(time, OPERATORS as u64) / N as f64), |error| Err(error.into()))
}

/// A later finish of the first of 15,625 operators that follow one another without a gap or an edge,
/// on one of 64 such lanes.
fn long_lane() -> Outcome<Duration> {
    let mut builder = Schedule::builder();
    let (mut lane, mut first) = (builder.lane(Nanos::ZERO), builder.push(Nanos(100), Nanos::ZERO));
    for number in 0..LANES {
        if number > 0 {
            (lane, first) = (builder.lane(Nanos::ZERO), builder.push(Nanos(100), Nanos::ZERO));
        }
        (1..OPERATORS / LANES).for_each(|op| {
            builder.push(Nanos(100 + op as u64 % 7), Nanos::ZERO);
        });
    }
    let schedule = builder.build()?;
    let mut scratch = Scratch::default();
    let mut trial = schedule.trial(&mut scratch);
    let mark = trial.mark();
    let mut failed = None;
    let time = shortest(
        100,
        || (),
        |()| {
            failed = trial.set_duration(first, Nanos(150)).err().or(failed);
            failed = trial.settle().err().or(failed);
            black_box(trial.lane_end(lane));
            trial.rollback(mark);
        },
    );
    failed.map_or(Ok(time), |error| Err(error.into()))
}

/// Questions per second on two threads over those on one.
fn two_threads(workload: &Workload) -> f64 {
    let changes = workload.changes(40_000, 7);
    let ask = |changes: &[(OpRef, Nanos)]| {
        let mut scratch = Scratch::default();
        let mut trial = workload.schedule.trial(&mut scratch);
        let mark = trial.mark();
        for &(op, duration) in changes {
            black_box((trial.set_duration(op, duration).is_ok(), trial.settle().is_ok(), trial.finish(op)));
            trial.rollback(mark);
        }
    };
    let begun = Instant::now();
    ask(&changes);
    let alone = begun.elapsed();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| ask(&changes));
        ask(&changes);
    });
    2.0 * alone.as_secs_f64() / begun.elapsed().as_secs_f64()
}

pub(crate) fn rows() -> Outcome<Vec<Target>> {
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let per_op = |time| nanos_per(time, OPERATORS as u64);
    let calm = Workload::new(0.6, Features::None, 1)?;
    let full = sweep(&calm)?;
    let simulated = heap::simulate(&calm);
    let one = question(&calm, &calm.changes(20_000, 5), 1)?;
    let hundred = question(&calm, &calm.changes(40_000, 5), 100)?;
    let (eight, sixteen) = (scenarios::<8>(&calm)?, scenarios::<16>(&calm)?);
    println!("  two threads on one base: {:.2} times the questions of one", two_threads(&calm));
    println!("  a shift along 15,625 operators without edges: {:.2} us", us(long_lane()?));
    drop(calm);
    let busy = Workload::new(0.95, Features::None, 2)?;
    let hundred_busy = question(&busy, &busy.changes(40_000, 5), 100)?;
    let dirty: Vec<_> = busy.changes(400, 5).into_iter().map(|(op, duration)| (op, duration.times(200))).collect();
    let most = question(&busy, &dirty, 100)?.as_secs_f64() / sweep(&busy)?.as_secs_f64();
    drop(busy);
    let all = Workload::new(0.6, Features::All, 3)?;
    let one_of_all = question(&all, &all.changes(20_000, 5), 1)?;
    let ratio = |name, slow: Duration, bound| Target {
        better: Better::Higher,
        ..Target::at_most(name, slow.as_secs_f64() / one.as_secs_f64(), "x", bound)
    };
    let scenario = |name, value| Target {
        peer: Some(("one at a time", per_op(full))),
        ..Target::at_most(name, value, "ns per operator and scenario", 2.0)
    };
    Ok(vec![
        Target {
            peer: Some(("FlexFlow-style heap simulation", per_op(simulated))),
            ..Target::at_most("full simulation, order fixed (sweep)", per_op(full), "ns per operator", 12.0)
        },
        Target {
            peer: Some(("full sweep", us(full))),
            ..Target::at_most("what-if, one change, load 0.6", us(one), "us", 3.0)
        },
        ratio("what-if, one change, over a full sweep", full, 500.0),
        ratio("what-if, one change, over a heap simulation", simulated, 5000.0),
        Target::at_most("what-if, 100 changes, load 0.6", us(hundred), "us", 50.0),
        Target::at_most("what-if, 100 changes, load 0.95", us(hundred_busy), "us", 100.0),
        Target::at_most("what-if, 100 changes that reach everything, over a full sweep", most, "x", 1.2),
        Target::at_most("what-if, one change, memory + slack + tensor parallel, load 0.6", us(one_of_all), "us", 15.0),
        scenario("what-if, 8 scenarios that share the order", eight),
        scenario("what-if, 16 scenarios that share the order", sixteen),
    ])
}
