//! Bytes in use over time, with some changes that are not merged in yet.
//!
//! Whatever happens in one instant happens at once: a peak counts what is in use when the instant is
//! over. A question with `k` shifts costs `k` range maxima over what is known, never a walk over all
//! instants.

use std::ops::Range;

use slicescheduler_gmg::plan::Shortage;
use slicescheduler_gmg::units::{Bytes, Nanos};

/// Children of one node of the maximum tree.
const FAN: usize = 32;

/// Bytes that come or go at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shift {
    pub(super) account: u32,
    pub(super) at: u64,
    pub(super) bytes: i64,
}

/// One account over time.
#[derive(Clone, Debug)]
pub(super) struct Usage {
    used: i64,
    limit: i64,
    /// Instants at which something happens, ascending.
    at: Vec<u64>,
    /// Bytes in use after each instant.
    after: Vec<i64>,
    /// `levels[0]` holds the maxima of `FAN` neighbours in `after`, each further level those of the
    /// one before.
    levels: Vec<Vec<i64>>,
    /// Adopted, but not merged; sorted by time.
    pending: Vec<(u64, i64)>,
}

impl Usage {
    pub(super) fn new(used: Bytes, limit: Bytes) -> Self {
        let signed = |bytes: Bytes| i64::try_from(bytes.get()).unwrap_or(i64::MAX);
        Self {
            used: signed(used),
            limit: signed(limit),
            at: Vec::new(),
            after: Vec::new(),
            levels: Vec::new(),
            pending: Vec::new(),
        }
    }

    /// Takes in shifts. O(shifts) until there are too many of them to keep apart; then O(instants).
    pub(super) fn add_all(&mut self, shifts: &[Shift]) {
        self.pending.extend(shifts.iter().map(|shift| (shift.at, shift.bytes)));
        net(&mut self.pending);
        if self.pending.len() > 64 + self.at.len() / 64 {
            self.merge();
        }
    }

    fn merge(&mut self) {
        let mut all: Vec<(u64, i64)> = Vec::with_capacity(self.at.len() + self.pending.len());
        let mut before = self.used;
        for (&at, &after) in self.at.iter().zip(&self.after) {
            all.push((at, after.wrapping_sub(before)));
            before = after;
        }
        all.append(&mut self.pending);
        net(&mut all);
        self.at.clear();
        self.after.clear();
        let mut used = self.used;
        for (at, bytes) in all {
            used = used.wrapping_add(bytes);
            self.at.push(at);
            self.after.push(used);
        }
        self.levels.clear();
        let mut level = maxima(&self.after);
        while level.len() > 1 {
            let above = maxima(&level);
            self.levels.push(std::mem::replace(&mut level, above));
        }
        self.levels.push(level);
    }

    /// The peak when `shifts` happen as well. Sorts them.
    pub(super) fn peak(&self, shifts: &mut Vec<(u64, i64)>) -> Bytes {
        self.prepare(shifts);
        let mut peak = self.used;
        self.each_segment(shifts, |first, range, change| {
            peak = peak.max(first.saturating_add(change));
            if let Some(most) = self.maximum(range) {
                peak = peak.max(most.saturating_add(change));
            }
            false
        });
        Bytes(peak.max(0) as u64)
    }

    /// The first time at which more is in use than the limit when `shifts` happen as well.
    pub(super) fn shortage(&self, shifts: &mut Vec<(u64, i64)>) -> Option<Shortage> {
        self.prepare(shifts);
        let mut found = None;
        let mut times = std::iter::once(0).chain(shifts.iter().map(|(at, _)| *at));
        self.each_segment(shifts, |first, range, change| {
            let from = times.next().unwrap_or_default();
            let threshold = self.limit.saturating_sub(change);
            if first > threshold {
                found = Some((from, first.saturating_add(change)));
            } else if let Some(index) = self.first_above(range, threshold) {
                found = Some((self.at[index], self.after[index].saturating_add(change)));
            }
            found.is_some()
        });
        found.map(|(at, used)| Shortage { at: Nanos(at), bytes: Bytes(used.saturating_sub(self.limit).max(0) as u64) })
    }

    fn prepare(&self, shifts: &mut Vec<(u64, i64)>) {
        shifts.extend_from_slice(&self.pending);
        net(shifts);
    }

    /// Time falls into segments in which the shifts change what is in use by the same. Visits, in
    /// order: bytes known at the start of the segment, the instants inside it, the change; until
    /// told to stop.
    fn each_segment(&self, shifts: &[(u64, i64)], mut visit: impl FnMut(i64, Range<usize>, i64) -> bool) {
        let (mut change, mut from, mut known) = (0i64, 0, self.used);
        for &(at, bytes) in shifts {
            let to = from + self.at[from..].partition_point(|&instant| instant < at);
            if visit(known, from..to, change) {
                return;
            }
            from = to + usize::from(self.at.get(to) == Some(&at));
            known = if from > 0 { self.after[from - 1] } else { self.used };
            change = change.wrapping_add(bytes);
        }
        visit(known, from..self.at.len(), change);
    }

    fn maximum(&self, range: Range<usize>) -> Option<i64> {
        let Range { mut start, mut end } = range;
        let mut best = None;
        let mut take = |values: &[i64]| best = values.iter().copied().max().max(best);
        let mut level: &[i64] = &self.after;
        let mut above = self.levels.iter();
        while start < end {
            let (inner, outer) = (start.next_multiple_of(FAN), end / FAN * FAN);
            let next = above.next();
            let (Some(next), true) = (next, inner < outer) else {
                take(&level[start..end]);
                break;
            };
            take(&level[start..inner]);
            take(&level[outer..end]);
            (start, end, level) = (inner / FAN, outer / FAN, next);
        }
        best
    }

    fn first_above(&self, range: Range<usize>, threshold: i64) -> Option<usize> {
        let Range { mut start, end } = range;
        while start < end {
            let block = start / FAN;
            let whole = start.is_multiple_of(FAN) && start + FAN <= end;
            if whole && self.levels.first().is_some_and(|level| level[block] <= threshold) {
                // Whole blocks of blocks are passed over alike.
                let mut step = FAN;
                for (height, level) in self.levels.iter().enumerate().skip(1) {
                    let size = FAN.pow(height as u32 + 1);
                    if !start.is_multiple_of(size) || start + size > end || level[start / size] > threshold {
                        break;
                    }
                    step = size;
                }
                start += step;
                continue;
            }
            let stop = ((block + 1) * FAN).min(end);
            if let Some(found) = self.after[start..stop].iter().position(|&after| after > threshold) {
                return Some(start + found);
            }
            start = stop;
        }
        None
    }
}

fn maxima(values: &[i64]) -> Vec<i64> {
    values.chunks(FAN).map(|chunk| chunk.iter().copied().fold(i64::MIN, i64::max)).collect()
}

/// Sorts by time and adds up what happens in one instant.
fn net(shifts: &mut Vec<(u64, i64)>) {
    shifts.sort_unstable_by_key(|(at, _)| *at);
    shifts.dedup_by(|next, kept| {
        let same = next.0 == kept.0;
        if same {
            kept.1 = kept.1.wrapping_add(next.1);
        }
        same
    });
    shifts.retain(|(_, bytes)| *bytes != 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shifts(bytes: std::ops::Range<i64>) -> impl Strategy<Value = Vec<(u64, i64)>> {
        prop::collection::vec((0u64..300, bytes), 0..400)
    }

    /// Peak and first shortage by walking over every instant.
    fn walked(used: i64, limit: i64, shifts: &[(u64, i64)]) -> (i64, Option<(u64, i64)>) {
        let (mut now, mut peak, mut short) = (used, used, None);
        if used > limit {
            short = Some((0, used - limit));
        }
        for at in 0..300 {
            now += shifts.iter().filter(|shift| shift.0 == at).map(|shift| shift.1).sum::<i64>();
            peak = peak.max(now);
            if now > limit && short.is_none() {
                short = Some((at, now - limit));
            }
        }
        (peak, short)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn peak_and_shortage_are_those_of_a_walk_over_all_instants(
            known in shifts(-3..6), batches in prop::collection::vec(shifts(-3..6), 0..3), asked in shifts(-9..9),
            used in 0i64..9, limit in 0i64..90,
        ) {
            let mut usage = Usage::new(Bytes(used as u64), Bytes(limit as u64));
            let shift = |&(at, bytes): &(u64, i64)| Shift { account: 0, at, bytes };
            let mut all = Vec::new();
            for batch in std::iter::once(&known).chain(&batches) {
                usage.add_all(&batch.iter().map(shift).collect::<Vec<_>>());
                all.extend_from_slice(batch);
            }
            all.extend_from_slice(&asked);
            let (peak, short) = walked(used, limit, &all);
            prop_assert_eq!(usage.peak(&mut asked.clone()), Bytes(peak.max(0) as u64));
            let found = usage.shortage(&mut asked.clone()).map(|s| (s.at.get(), s.bytes.get() as i64));
            prop_assert_eq!(found, short);
        }
    }
}
