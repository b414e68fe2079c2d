//! What persistent vectors and a plain copy take for the same what-if.
//!
//! They hold one record of 24 bytes for each operator. A change of the graph rewrites a whole iteration
//! of 293 operators; theirs rewrites the record of one, which is in their favour. The 1,000 operators
//! that the what-if finishes are written one by one, while the graph writes them as runs, which is in
//! its favour: it keeps runs because a what-if makes them.

use std::hint::black_box;

use criterion::Criterion;

use crate::loaded::Loaded;
use crate::versions::Reach;
use crate::{lowest, timed};

#[derive(Clone, Copy, Debug, Default)]
struct Operator {
    state: u32,
    lane: u32,
    start: u64,
    finish: u64,
}

/// A vector of which a copy can be changed apart from the original.
trait Forked: Clone {
    fn of(count: usize) -> Self;
    fn read(&self, index: usize) -> Option<&Operator>;
    fn write(&mut self, index: usize, operator: Operator);
}

macro_rules! forked {
    ($vector:ty, $write:ident) => {
        impl Forked for $vector {
            fn of(count: usize) -> Self {
                (0..count).map(|_| Operator::default()).collect()
            }
            fn read(&self, index: usize) -> Option<&Operator> {
                self.get(index)
            }
            fn write(&mut self, index: usize, operator: Operator) {
                self.$write(index, operator);
            }
        }
    };
}

forked!(im::Vector<Operator>, set);
forked!(imbl::Vector<Operator>, set);
forked!(rpds::VectorSync<Operator>, set_mut);

impl Forked for Vec<Operator> {
    fn of(count: usize) -> Self {
        vec![Operator::default(); count]
    }
    fn read(&self, index: usize) -> Option<&Operator> {
        self.get(index)
    }
    fn write(&mut self, index: usize, operator: Operator) {
        self[index] = operator;
    }
}

/// A peer's figures, in ns.
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    pub(crate) fork: f64,
    pub(crate) local: f64,
    pub(crate) scattered: f64,
}

pub(crate) fn all(criterion: &mut Criterion, loaded: &Loaded) -> Vec<Peer> {
    vec![
        peer::<im::Vector<Operator>>(criterion, loaded, "im"),
        peer::<imbl::Vector<Operator>>(criterion, loaded, "imbl"),
        peer::<rpds::VectorSync<Operator>>(criterion, loaded, "rpds"),
        peer::<Vec<Operator>>(criterion, loaded, "clone of a Vec"),
    ]
}

fn peer<V: Forked>(criterion: &mut Criterion, loaded: &Loaded, name: &'static str) -> Peer {
    let each = loaded.template.op_count() as usize;
    let base = V::of(loaded.jobs.len() * each);
    let mut run = |reach: Reach| {
        let place = |(job, op): (usize, u32)| job * each + op as usize;
        let changed: Vec<_> =
            (0..100u32).map(|nth| place((reach.job(nth as usize / 2, loaded.devices), nth))).collect();
        let read: Vec<_> = reach.operators(loaded.devices).into_iter().map(place).collect();
        lowest(criterion, &format!("{name}: copy, 100 changes, 1,000 operators, drop ({reach:?})"), |iterations| {
            timed(iterations, || {
                let mut copy = base.clone();
                for &index in &changed {
                    copy.write(index, Operator { state: 1, lane: 2, start: 3, finish: 4 });
                }
                for &index in &read {
                    copy.write(index, Operator { state: 5, lane: 2, start: 3, finish: 4 });
                }
                let mix = |operator: &Operator| operator.start ^ u64::from(operator.state);
                black_box(read.iter().filter_map(|&index| copy.read(index)).map(mix).sum::<u64>());
            })
        })
    };
    let (local, scattered) = (run(Reach::Local), run(Reach::Scattered));
    let fork = lowest(criterion, &format!("{name}: copy, drop"), |iterations| {
        timed(iterations, || drop(black_box(base.clone())))
    });
    black_box(base.read(0).map(|operator| (operator.lane, operator.finish)));
    Peer { name, fork, local, scattered }
}
