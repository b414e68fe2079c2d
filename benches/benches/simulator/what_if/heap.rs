//! The peer: a full simulation of a task graph over a heap of ready tasks, as FlexFlow's simulator
//! does it (Jia, Zaharia, Aiken: Beyond Data and Model Parallelism for Deep Neural Networks, MLSys
//! 2019, algorithm 1): the ready task that is ready first is taken, starts when its device is free, and
//! makes its successors ready.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;
use std::time::Duration;

use super::{LANES, Workload};
use crate::support::shortest;

struct Task {
    lane: usize,
    duration: u64,
    ready: u64,
    waits: u32,
    successors: Vec<u32>,
}

/// The shortest time of a simulation; building the graph does not count.
pub(super) fn simulate(workload: &Workload) -> Duration {
    let tasks = || -> Vec<Task> {
        let mut tasks: Vec<Task> = Vec::with_capacity(workload.ops.len());
        let mut last = [None; LANES];
        for (number, op) in workload.ops.iter().enumerate() {
            let preds = op.pred.into_iter().chain(last[op.lane].replace(number));
            let mut waits = 0;
            for pred in preds {
                tasks[pred].successors.push(number as u32);
                waits += 1;
            }
            let successors = Vec::new();
            tasks.push(Task { lane: op.lane, duration: op.duration, ready: op.release, waits, successors });
        }
        tasks
    };
    shortest(3, tasks, |tasks| {
        let mut free_at = [0u64; LANES];
        let mut ready: BinaryHeap<Reverse<(u64, u32)>> = BinaryHeap::new();
        for (number, task) in tasks.iter().enumerate().filter(|(_, task)| task.waits == 0) {
            ready.push(Reverse((task.ready, number as u32)));
        }
        while let Some(Reverse((at, number))) = ready.pop() {
            let task = &tasks[number as usize];
            let finish = at.max(free_at[task.lane]) + task.duration;
            free_at[task.lane] = finish;
            for place in 0..task.successors.len() {
                let successor = tasks[number as usize].successors[place];
                let next = &mut tasks[successor as usize];
                next.ready = next.ready.max(finish);
                next.waits -= 1;
                if next.waits == 0 {
                    ready.push(Reverse((next.ready, successor)));
                }
            }
        }
        black_box(free_at);
    })
}
