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

mod heap;

use std::hint::black_box;
use std::time::Duration;

use slicescheduler_benches::{Better, Target};
use slicescheduler_gmg::units::Nanos;
use slicescheduler_simulator::incremental::{OpRef, Schedule, Scratch};

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
}

/// One operator, in the order of starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    pub(crate) lane: usize,
    pub(crate) duration: u64,
    pub(crate) release: u64,
    pub(crate) pred: Option<usize>,
}

impl Workload {
    pub(crate) fn new(load: f64, seed: u64) -> Outcome<Self> {
        let ops = plan(load, seed);
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
        Ok(Self { schedule: builder.build()?, ops, refs })
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

fn plan(load: f64, seed: u64) -> Vec<Planned> {
    let mut random = Random(seed);
    let mut free_at = [0u64; LANES];
    let mut finishes: Vec<u64> = Vec::with_capacity(OPERATORS);
    let mut ops: Vec<Planned> = Vec::with_capacity(OPERATORS);
    for op in 0..OPERATORS {
        // The lane that is free first gets the next operator, so that operators come in about the
        // order of their starts.
        let lane = (0..LANES).min_by_key(|&lane| free_at[lane]).unwrap_or_default();
        let duration = 10_000 + random.below(180_000);
        let uniform = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
        let gap = -(1.0 - uniform).ln() * 100_000.0 * (1.0 / load - 1.0);
        let release = free_at[lane] + gap as u64;
        let back = 1 + random.below(256) as usize;
        let pred = op.checked_sub(back).filter(|&pred| op % 2 == 1 && finishes[pred] <= release);
        ops.push(Planned { lane, duration, release, pred });
        free_at[lane] = release + duration;
        finishes.push(release + duration);
    }
    ops
}

/// Time of one question of `size` changes.
fn question(workload: &Workload, size: usize, questions: usize) -> Outcome<Duration> {
    let changes = workload.changes(size * questions, 5);
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

pub(crate) fn rows() -> Outcome<Vec<Target>> {
    let calm = Workload::new(0.6, 1)?;
    let mut finish = Vec::new();
    let mut failed = None;
    let sweep = shortest(
        9,
        || (),
        |()| {
            failed = calm.schedule.sweep_into(&mut finish).err().or(failed);
            black_box(finish.last());
        },
    );
    if let Some(error) = failed {
        return Err(error.into());
    }
    let simulated = heap::simulate(&calm);
    let one = question(&calm, 1, 20_000)?;
    let hundred = question(&calm, 100, 400)?;
    let dense = Workload::new(0.95, 2)?;
    let hundred_dense = question(&dense, 100, 400)?;
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let per_op = |time| nanos_per(time, OPERATORS as u64);
    let ratio = |name, slow: Duration, bound| Target {
        better: Better::Higher,
        ..Target::at_most(name, slow.as_secs_f64() / one.as_secs_f64(), "x", bound)
    };
    Ok(vec![
        Target {
            peer: Some(("FlexFlow-style heap simulation", per_op(simulated))),
            ..Target::at_most("full simulation, order fixed (sweep)", per_op(sweep), "ns per operator", 12.0)
        },
        Target {
            peer: Some(("full sweep", us(sweep))),
            ..Target::at_most("what-if, one change, load 0.6", us(one), "us", 3.0)
        },
        ratio("what-if, one change, over a full sweep", sweep, 500.0),
        ratio("what-if, one change, over a heap simulation", simulated, 5000.0),
        Target::at_most("what-if, 100 changes, load 0.6", us(hundred), "us", 50.0),
        Target::at_most("what-if, 100 changes, load 0.95", us(hundred_dense), "us", 100.0),
    ])
}
