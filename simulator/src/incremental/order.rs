//! An order in which every operator comes behind its inputs.

use std::collections::VecDeque;

use super::record::{GANG, Record};
use super::{OpRef, ScheduleError};

/// Operators with their inputs and outputs, as a schedule or a trial has them.
pub(super) trait Network {
    /// Records, numbered from 0.
    fn count(&self) -> usize;
    fn record(&self, op: u32) -> &Record;
    /// The predecessors of `op` on other lanes; its group, if any, among them with the flag [`GANG`].
    fn each_pred(&self, op: u32, visit: impl FnMut(u32));
    fn each_succ(&self, op: u32, visit: impl FnMut(u32));
    fn members(&self, gang: u32) -> &[u32];

    fn gang_of(&self, op: u32) -> Option<u32> {
        let mut gang = None;
        self.each_pred(op, |pred| {
            if pred & GANG != 0 {
                gang = Some(pred & !GANG);
            }
        });
        gang
    }

    /// The operator that stands for the group of `op`: the first member that is left.
    fn leader(&self, op: u32) -> u32 {
        let Some(gang) = self.gang_of(op) else { return op };
        self.members(gang).iter().copied().find(|&member| self.record(member).is_operator()).unwrap_or(op)
    }
}

/// Every operator behind its inputs; of a group, its leader only.
///
/// # Errors
/// [`ScheduleError::Cycle`].
pub(super) fn discover(network: &impl Network) -> Result<Vec<u32>, ScheduleError> {
    let count = network.count();
    let mut waits = vec![0u32; count];
    let mut units = 0;
    let is_operator = |op: u32| network.record(op).is_operator();
    for op in (0..count as u32).filter(|&op| is_operator(op)) {
        let leader = network.leader(op);
        units += usize::from(leader == op);
        let mut inputs = u32::from(is_operator(network.record(op).prev()));
        network.each_pred(op, |pred| inputs += u32::from(pred & GANG == 0 && is_operator(pred)));
        waits[leader as usize] += inputs;
    }
    let free = |op: &u32| is_operator(*op) && waits[*op as usize] == 0 && network.leader(*op) == *op;
    let mut queue: VecDeque<u32> = (0..count as u32).filter(free).collect();
    let mut order = Vec::with_capacity(units);
    while let Some(op) = queue.pop_front() {
        order.push(op);
        let mut reached = |to: u32| {
            if is_operator(to) {
                let leader = network.leader(to);
                waits[leader as usize] -= 1;
                if waits[leader as usize] == 0 {
                    queue.push_back(leader);
                }
            }
        };
        let mut outputs = |op: u32| {
            reached(network.record(op).next());
            network.each_succ(op, &mut reached);
        };
        match network.gang_of(op) {
            None => outputs(op),
            Some(gang) => network.members(gang).iter().filter(|&&member| is_operator(member)).for_each(|&m| outputs(m)),
        }
    }
    if order.len() == units {
        return Ok(order);
    }
    let stuck = (0..count as u32).find(|&op| waits[op as usize] > 0).unwrap_or_default();
    Err(ScheduleError::Cycle { op: OpRef(stuck) })
}

/// Finishes of the operators of `order` by the rule, one after the other; `finish` holds those of
/// the records that are no operators.
pub(super) fn sweep(network: &impl Network, order: &[u32], finish: &mut [u64]) {
    for &op in order {
        let record = network.record(op);
        if !record.is_operator() {
            continue;
        }
        let mut ready = record.release.max(finish[record.prev() as usize]);
        let mut gang = None;
        network.each_pred(op, |pred| match pred & GANG {
            0 => ready = ready.max(finish[pred as usize]),
            _ => gang = Some(pred & !GANG),
        });
        let Some(gang) = gang else {
            finish[op as usize] = ready.saturating_add(record.duration);
            continue;
        };
        for &member in network.members(gang) {
            let record = network.record(member);
            if !record.is_operator() {
                continue;
            }
            ready = ready.max(record.release).max(finish[record.prev() as usize]);
            network.each_pred(member, |pred| {
                if pred & GANG == 0 {
                    ready = ready.max(finish[pred as usize]);
                }
            });
        }
        let end = ready.saturating_add(record.duration);
        for &member in network.members(gang) {
            if network.record(member).is_operator() {
                finish[member as usize] = end;
            }
        }
    }
}
