//! What persistent vectors and a plain copy take for the same work.
//!
//! They keep what the graph keeps, in three tables: a record of 24 bytes for each operator (state, lane, start,
//! finish), a row for each iteration (state, lane, operators that are done), a row for each lane (what is
//! queued). In the what-if both sides change all of it: an iteration that is recalled or dispatched again is a
//! row of iterations and a row of lanes; a finished operator is a record, and with the last of its run the rows
//! of its iteration and lane. Then both read the same 1,000 operators.
//!
//! What differs: the graph checks every change (states, order on the lane, weights, memory) and the peers check
//! none. The graph keeps a run of operators that finished together as one record, since a what-if makes runs;
//! the peers write a record for each operator, but have rows of iterations beside them, or a recall would be 293
//! records.

use std::hint::black_box;
use std::process::Command;

use criterion::Criterion;

use crate::loaded::Loaded;
use crate::versions::Reach;
use crate::{lowest, timed};

/// One operator: what a segment of the graph says about those that it holds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Operator {
    state: u32,
    lane: u32,
    start: u64,
    finish: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Iteration {
    state: u32,
    lane: u32,
    done: u32,
}

/// What is queued on a lane: the iteration, its operators, its right of way.
#[derive(Clone, Copy, Debug, Default)]
struct Queued {
    iteration: Option<u32>,
    first: u32,
    end: u32,
    rank: u32,
}

/// A vector of which a copy can be changed apart from the original.
pub(crate) trait Forked<T>: Clone {
    fn of(count: usize) -> Self;
    fn read(&self, index: usize) -> Option<&T>;
    fn write(&mut self, index: usize, value: T);
}

/// The vectors of one crate.
pub(crate) trait Family {
    const NAME: &'static str;
    type Of<T: Clone + Copy + Default>: Forked<T>;
}

macro_rules! family {
    ($family:ident, $name:literal, $vector:ident :: $type:ident, $write:ident) => {
        pub(crate) struct $family;

        impl Family for $family {
            const NAME: &'static str = $name;
            type Of<T: Clone + Copy + Default> = $vector::$type<T>;
        }

        impl<T: Clone + Copy + Default> Forked<T> for $vector::$type<T> {
            fn of(count: usize) -> Self {
                (0..count).map(|_| T::default()).collect()
            }
            fn read(&self, index: usize) -> Option<&T> {
                self.get(index)
            }
            fn write(&mut self, index: usize, value: T) {
                self.$write(index, value);
            }
        }
    };
}

family!(Im, "im", im::Vector, set);
family!(Imbl, "imbl", imbl::Vector, set);
family!(Rpds, "rpds", rpds::VectorSync, set_mut);

/// A copy of everything.
pub(crate) struct Plain;

impl Family for Plain {
    const NAME: &'static str = "clone of a Vec";
    type Of<T: Clone + Copy + Default> = Vec<T>;
}

impl<T: Clone + Copy + Default> Forked<T> for Vec<T> {
    fn of(count: usize) -> Self {
        vec![T::default(); count]
    }
    fn read(&self, index: usize) -> Option<&T> {
        self.get(index)
    }
    fn write(&mut self, index: usize, value: T) {
        self[index] = value;
    }
}

/// The tables of one family.
struct Tables<F: Family> {
    operators: F::Of<Operator>,
    iterations: F::Of<Iteration>,
    lanes: F::Of<Queued>,
}

impl<F: Family> Clone for Tables<F> {
    fn clone(&self) -> Self {
        let Self { operators, iterations, lanes } = self;
        Self { operators: operators.clone(), iterations: iterations.clone(), lanes: lanes.clone() }
    }
}

impl<F: Family> Tables<F> {
    fn of(loaded: &Loaded) -> Self {
        let each = loaded.template.op_count() as usize;
        let mut this = Self {
            operators: Forked::of(loaded.jobs.len() * each),
            iterations: Forked::of(loaded.jobs.len()),
            lanes: Forked::of(loaded.devices as usize),
        };
        (0..loaded.devices).for_each(|lane| this.dispatch(lane, loaded.template.op_count()));
        this
    }

    /// The iteration of a lane goes back to where it waited.
    fn recall(&mut self, lane: u32) {
        self.iterations.write(lane as usize, Iteration::default());
        self.lanes.write(lane as usize, Queued::default());
    }

    fn dispatch(&mut self, lane: u32, end: u32) {
        self.iterations.write(lane as usize, Iteration { state: 1, lane, done: 0 });
        self.lanes.write(lane as usize, Queued { iteration: Some(lane), first: 0, end, rank: 3 });
    }

    /// The first `count` operators of the iteration of a lane finish.
    fn finish(&mut self, lane: u32, count: u32, end: u32) {
        let first = (lane * end) as usize;
        for index in first..first + count as usize {
            self.operators.write(index, Operator { state: 5, lane, start: 1, finish: 2 });
        }
        self.iterations.write(lane as usize, Iteration { state: 1, lane, done: count });
        self.lanes.write(lane as usize, Queued { iteration: Some(lane), first: count, end, rank: 3 });
    }

    fn read(&self, lane: u32, count: u32, end: u32) -> u64 {
        let first = (lane * end) as usize;
        let mix = |operator: &Operator| operator.start ^ u64::from(operator.state);
        (first..first + count as usize).filter_map(|index| self.operators.read(index)).map(mix).sum()
    }
}

/// A peer's figures, in ns.
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    pub(crate) is_persistent: bool,
    /// A copy, dropped.
    pub(crate) fork: f64,
    pub(crate) local: f64,
    pub(crate) scattered: f64,
    /// The rows of 100 deltas written while a reader holds the version before, and the new version taken.
    pub(crate) publish: f64,
    /// One record written while nobody holds a copy.
    pub(crate) write: f64,
}

pub(crate) fn all(criterion: &mut Criterion, loaded: &Loaded) -> Vec<Peer> {
    vec![
        peer::<Im>(criterion, loaded, true),
        peer::<Imbl>(criterion, loaded, true),
        peer::<Rpds>(criterion, loaded, true),
        peer::<Plain>(criterion, loaded, false),
    ]
}

fn peer<F: Family>(criterion: &mut Criterion, loaded: &Loaded, is_persistent: bool) -> Peer {
    let (name, each, devices) = (F::NAME, loaded.template.op_count(), loaded.devices);
    let base = Tables::<F>::of(loaded);
    let mut what_if = |reach: Reach| {
        let changed: Vec<u32> = (0..50).map(|nth| reach.job(nth, devices) as u32).collect();
        let operators = reach.operators(devices);
        let runs: Vec<(u32, u32)> = operators
            .chunk_by(|(one, _), (other, _)| one == other)
            .map(|run| (run[0].0 as u32, run.len() as u32))
            .collect();
        lowest(criterion, &format!("{name}: copy, 100 changes, 1,000 operators, drop ({reach:?})"), |iterations| {
            timed(iterations, || {
                let mut copy = base.clone();
                for &lane in &changed {
                    copy.recall(lane);
                    copy.dispatch(lane, each);
                }
                for &(lane, count) in &runs {
                    copy.finish(lane, count, each);
                }
                black_box(runs.iter().map(|&(lane, count)| copy.read(lane, count, each)).sum::<u64>());
            })
        })
    };
    let (local, scattered) = (what_if(Reach::Local), what_if(Reach::Scattered));
    let fork = lowest(criterion, &format!("{name}: copy, drop"), |iterations| {
        timed(iterations, || drop(black_box(base.clone())))
    });
    let (mut live, mut number) = (base.clone(), 0);
    let mut held = live.clone();
    let publish = lowest(criterion, &format!("{name}: 100 deltas, a copy"), |iterations| {
        timed(iterations, || {
            number += 1;
            for nth in 0..25 {
                let lane = ((number * 25 + nth) * 401 % devices as usize) as u32;
                live.recall(lane);
                live.dispatch(lane, each);
            }
            held = live.clone();
        })
    });
    drop((live, held));
    let (mut alone, mut lane) = (base.operators, 0);
    let write = lowest(criterion, &format!("{name}: one record"), |iterations| {
        timed(iterations, || {
            lane = (lane + 401) % devices;
            alone.write((lane * each) as usize, Operator { state: 1, lane, start: 1, finish: 2 });
        })
    });
    black_box(alone.read(0).map(|operator| (operator.lane, operator.finish)));
    black_box(base.iterations.read(0).map(|iteration| (iteration.state, iteration.lane, iteration.done)));
    black_box(base.lanes.read(0).map(|lane| (lane.iteration, lane.first, lane.end, lane.rank)));
    Peer { name, is_persistent, fork, local, scattered, publish, write }
}

/// Set in the process that measures what the vectors take: nothing else may have used its heap, and its heap is not the
/// one that the graph lies in.
const MEASURES: &str = "GMG_BENCH_MEASURES_RECORDS";

/// Bytes per operator that a vector of a million records takes of a process, by family; [`None`] where the system does
/// not say what a process takes.
pub(crate) fn bytes_per_operator() -> Option<[(&'static str, f64); 3]> {
    let this = std::env::current_exe().ok()?;
    let said = Command::new(this).env(MEASURES, "1").output().ok()?;
    let said = String::from_utf8(said.stdout).ok()?;
    let mut figures = said.split_whitespace().map(|figure| figure.parse().ok());
    let mut next = || figures.next().flatten();
    Some([(Im::NAME, next()?), (Imbl::NAME, next()?), (Rpds::NAME, next()?)])
}

/// Prints what [`bytes_per_operator`] wants to know, if this is the process that does. True if it is.
pub(crate) fn measured_records() -> bool {
    if std::env::var_os(MEASURES).is_none() {
        return false;
    }
    if let (Some((_im, im)), Some((_imbl, imbl)), Some((_rpds, rpds))) =
        (taken::<Im>(), taken::<Imbl>(), taken::<Rpds>())
    {
        // All of them stay until the last is there.
        println!("{im} {imbl} {rpds}");
    }
    true
}

/// A vector of a million records, and the bytes that it takes for each.
fn taken<F: Family>() -> Option<(F::Of<Operator>, f64)> {
    const COUNT: usize = 1_000_000;
    let before = resident_bytes()?;
    let vector = <F::Of<Operator> as Forked<Operator>>::of(COUNT);
    let taken = resident_bytes()?.saturating_sub(before);
    Some((vector, taken as f64 / COUNT as f64))
}

/// Bytes of the process that are in memory, where `/proc` says so.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}
