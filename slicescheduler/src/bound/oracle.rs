//! The best schedule of a few requests that are known beforehand, found by branch and bound.
//!
//! The oracle knows all arrivals and the length of every answer. It decides iteration by iteration: a device that is
//! free runs an iteration of one of its tenants, in which every sequence that the tenant has on the device takes part
//! (continuous batching) and whatever arrived requests are chosen join with their whole prompts; or it waits for
//! the next arrival. A sequence stays on its device and keeps its cache until it ends. First come, first served
//! does not hold for the oracle.
//!
//! [`Case::best`] explores schedules depth first and leaves out what can not be better than the best one known:
//! the value that is still possible is at most that of a fractional knapsack of the requests that could end in time,
//! in the device time that is left, and equal states are explored once. It is exact unless the limit of states
//! stops it; then it says how much better the best schedule could be at most.

use std::collections::HashMap;

use slicescheduler_gmg::tenant::Slo;
use slicescheduler_gmg::units::Nanos;

use crate::bound::needs::{Needs, Sizes};

/// The most devices of a case.
pub const MOST_DEVICES: usize = 3;
/// The most requests of a case.
pub const MOST_REQUESTS: usize = 12;

/// A request that is known beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Whose it is; any number.
    pub tenant: usize,
    /// When it arrives.
    pub arrival: Nanos,
    /// Its prompt, and its answer of at least one token.
    pub sizes: Sizes,
    /// Counts only if its tokens are in time: the first, and all but 5 % of the others. [`None`]: counts whenever it
    /// ends before the horizon.
    pub slo: Option<Slo>,
}

/// The sums of an iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Tokens computed.
    pub tokens: u64,
    /// Rows, each of which gives an output token.
    pub sequences: u64,
    /// Tokens of KV cache read.
    pub context: u64,
    /// Query-key pairs.
    pub pairs: u64,
}

/// How long iterations take. Devices whose [`Place`]s are equal are taken for alike if they agree on every request alone.
pub trait Durations {
    /// The time of an iteration of a tenant on a device; above zero, and no less for a batch that is larger in every
    /// sum.
    fn iteration(&self, device: usize, tenant: usize, batch: &Batch) -> Nanos;

    /// Device time that the rows of a request take at least, whatever they share iterations with: over the rows of
    /// an iteration, these times add up to no more than [`iteration`](Self::iteration). Zero is always right, and
    /// lets the search leave out less.
    fn least(&self, device: usize, tenant: usize, needs: &Needs) -> Nanos;
}

/// A device of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The tenants whose weights it has.
    pub tenants: Vec<usize>,
    /// Tokens of KV cache that it holds.
    pub cache: u64,
    /// Most tokens of an iteration.
    pub token_budget: u64,
    /// Most sequences of an iteration.
    pub max_sequences: u64,
}

/// Requests, devices and the time that there is.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// At most [`MOST_REQUESTS`].
    pub requests: Vec<Known>,
    /// At most [`MOST_DEVICES`].
    pub devices: Vec<Place>,
    /// What ends later does not count.
    pub horizon: Nanos,
}

/// A case that the oracle does not take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CaseError {
    /// Too large to search.
    #[error("{requests} requests on {devices} devices: expected at most {MOST_REQUESTS} on {MOST_DEVICES}")]
    TooLarge {
        /// Requests.
        requests: usize,
        /// Devices.
        devices: usize,
    },
    /// An answer without tokens.
    #[error("request {request} has no output token: expected at least one")]
    NoOutput {
        /// Which request.
        request: usize,
    },
}

/// The best schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Best {
    /// Input and output tokens of the requests that count, under the best schedule found.
    pub tokens: u64,
    /// What no schedule exceeds; equal to [`tokens`](Self::tokens) if the search was complete.
    pub at_most: u64,
    /// States that were explored.
    pub states: u64,
}

impl Best {
    /// True if no schedule is better.
    pub fn is_proven(&self) -> bool {
        self.tokens == self.at_most
    }
}

impl Case {
    /// Searches for the best schedule, in at most `most_states` states.
    ///
    /// # Errors
    /// If the case is too large, or a request has no output.
    pub fn best(&self, durations: &dyn Durations, most_states: u64) -> Result<Best, CaseError> {
        let (requests, devices) = (self.requests.len(), self.devices.len());
        if requests > MOST_REQUESTS || devices > MOST_DEVICES {
            return Err(CaseError::TooLarge { requests, devices });
        }
        if let Some(request) = self.requests.iter().position(|request| request.sizes.output == 0) {
            return Err(CaseError::NoOutput { request });
        }
        let mut search = Search {
            case: self,
            durations,
            best: 0,
            left_out: 0,
            states: 0,
            most_states,
            seen: HashMap::new(),
            alike: self.devices.windows(2).all(|pair| pair[0] == pair[1]) && self.are_alike(durations),
        };
        search.explore(&State::new(requests, devices));
        Ok(Best { tokens: search.best, at_most: search.best.max(search.left_out), states: search.states })
    }

    /// True if the durations of the devices agree on what every request needs alone.
    fn are_alike(&self, durations: &dyn Durations) -> bool {
        self.requests.iter().all(|request| {
            let Sizes { prompt, output } = request.sizes;
            let batches = [prompt, prompt.saturating_add(output)].map(|end| row(0, end));
            let of = |device| batches.map(|batch| durations.iteration(device, request.tenant, &batch));
            (1..self.devices.len()).all(|device| of(device) == of(0))
        })
    }

    fn value(&self, request: usize) -> u64 {
        let Sizes { prompt, output } = self.requests[request].sizes;
        u64::from(prompt) + u64::from(output)
    }
}

/// A row that computes the tokens from `start` to `end` of a sequence.
fn row(start: u32, end: u32) -> Batch {
    let (start, end) = (u64::from(start), u64::from(end));
    let new = end - start;
    Batch { tokens: new, sequences: 1, context: end, pairs: new * start + new * (new + 1) / 2 }
}

impl Batch {
    fn add(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.sequences += other.sequences;
        self.context += other.context;
        self.pairs += other.pairs;
    }
}

/// Late tokens of a running request that can not count any more.
const HOPELESS: u32 = u32::MAX / 2;

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Progress {
    Waiting,
    Running {
        device: usize,
        produced: u32,
        late: u32,
    },
    /// Ended, or of no value any more.
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    free: Vec<Nanos>,
    requests: Vec<Progress>,
    tokens: u64,
}

impl State {
    fn new(requests: usize, devices: usize) -> Self {
        Self { free: vec![Nanos::ZERO; devices], requests: vec![Progress::Waiting; requests], tokens: 0 }
    }
}

/// What makes two states the same for what follows: times and requests, whatever the devices are called if they are
/// alike.
type Key = (Vec<Nanos>, Vec<Progress>);

struct Search<'a> {
    case: &'a Case,
    durations: &'a dyn Durations,
    best: u64,
    /// The most that a state could have had that was left out for want of states.
    left_out: u64,
    states: u64,
    most_states: u64,
    seen: HashMap<Key, u64>,
    alike: bool,
}

impl Search<'_> {
    fn explore(&mut self, state: &State) {
        self.best = self.best.max(state.tokens);
        let possible = state.tokens + self.still_possible(state);
        if possible <= self.best {
            return;
        }
        if self.states >= self.most_states {
            self.left_out = self.left_out.max(possible);
            return;
        }
        let key = self.key(state);
        if self.seen.get(&key).is_some_and(|&tokens| tokens >= state.tokens) {
            return;
        }
        self.seen.insert(key, state.tokens);
        self.states += 1;
        let Some(device) = (0..state.free.len()).min_by_key(|&device| state.free[device]) else { return };
        if state.free[device] >= self.case.horizon {
            return;
        }
        for next in self.iterations(state, device) {
            self.explore(&next);
        }
        let now = state.free[device];
        let arrivals = (0..state.requests.len()).filter(|&request| state.requests[request] == Progress::Waiting);
        let arrivals = arrivals.map(|request| self.case.requests[request].arrival).filter(|&arrival| arrival > now);
        let mut waits = state.clone();
        waits.free[device] = arrivals.min().unwrap_or(Nanos::MAX);
        self.explore(&waits);
    }

    /// Every iteration that the device could run now, those with most rows first.
    fn iterations(&self, state: &State, device: usize) -> Vec<State> {
        let (now, place) = (state.free[device], &self.case.devices[device]);
        let mut found: Vec<(u64, State)> = Vec::new();
        for &tenant in &place.tenants {
            let is_of = |request: &usize| self.case.requests[*request].tenant == tenant;
            let runs = |request: &usize| matches!(state.requests[*request], Progress::Running { device: on, .. } if on == device);
            let joins = |request: &usize| {
                state.requests[*request] == Progress::Waiting && self.case.requests[*request].arrival <= now
            };
            let all = || (0..state.requests.len()).filter(is_of);
            let (running, waiting): (Vec<usize>, Vec<usize>) =
                (all().filter(runs).collect(), all().filter(joins).collect());
            for chosen in 0..1u32 << waiting.len() {
                let joining = waiting.iter().enumerate().filter(|(bit, _)| chosen >> bit & 1 == 1).map(|(_, &one)| one);
                let rows: Vec<usize> = running.iter().copied().chain(joining).collect();
                if let Some(next) = self.run(state, device, tenant, &rows) {
                    found.push((rows.len() as u64, next));
                }
            }
        }
        found.sort_by_key(|(rows, _)| std::cmp::Reverse(*rows));
        found.into_iter().map(|(_, next)| next).collect()
    }

    /// The state after an iteration of these requests; [`None`] if it is empty or exceeds what the device can take.
    fn run(&self, state: &State, device: usize, tenant: usize, rows: &[usize]) -> Option<State> {
        let place = &self.case.devices[device];
        let mut batch = Batch::default();
        for &request in rows {
            let Known { sizes, .. } = self.case.requests[request];
            batch.add(match state.requests[request] {
                Progress::Running { produced, .. } => row(sizes.prompt + produced - 1, sizes.prompt + produced),
                _ => row(0, sizes.prompt),
            });
        }
        let is_there =
            |request: usize| matches!(state.requests[request], Progress::Running { device: on, .. } if on == device);
        let holders = (0..state.requests.len()).filter(|&request| is_there(request) || rows.contains(&request));
        let cache: u64 = holders.map(|request| self.case.value(request)).sum();
        if rows.is_empty()
            || batch.tokens > place.token_budget
            || batch.sequences > place.max_sequences
            || cache > place.cache
        {
            return None;
        }
        let end = state.free[device] + self.durations.iteration(device, tenant, &batch);
        let mut next = state.clone();
        next.free[device] = end;
        for &request in rows {
            let Known { arrival, sizes, slo, .. } = self.case.requests[request];
            let (produced, late) = match state.requests[request] {
                Progress::Running { produced, late, .. } => (produced, late),
                _ => (0, 0),
            };
            let is_late = slo.is_some_and(|slo| end > slo.due(arrival, produced));
            let (produced, late) = (produced + 1, late + u32::from(is_late));
            let in_time = end <= self.case.horizon && counts(slo, produced == 1 && is_late, late, sizes.output);
            next.requests[request] = if produced < sizes.output {
                // One that does not count any more still has to be computed to its end, or never begun.
                Progress::Running { device, produced, late: if in_time { late } else { HOPELESS } }
            } else {
                next.tokens += if in_time { self.case.value(request) } else { 0 };
                Progress::Over
            };
        }
        Some(next)
    }

    /// At most this much more value: a fractional knapsack of the requests that could still count.
    fn still_possible(&self, state: &State) -> u64 {
        let horizon = self.case.horizon;
        let mut left: u64 = state.free.iter().map(|&free| (horizon - free).get()).sum();
        let mut items: Vec<(u64, u64)> = Vec::new();
        for (request, &progress) in state.requests.iter().enumerate() {
            let Some(least) = self.least(state, request, progress) else { continue };
            items.push((self.case.value(request), least.get()));
        }
        items.sort_by(|one, other| {
            (u128::from(other.0) * u128::from(one.1)).cmp(&(u128::from(one.0) * u128::from(other.1)))
        });
        let mut possible = 0;
        for (value, time) in items {
            if time > left {
                return possible + (u128::from(value) * u128::from(left)).div_ceil(u128::from(time.max(1))) as u64;
            }
            left -= time;
            possible += value;
        }
        possible
    }

    /// Device time that a request still takes at least; [`None`] if it can not count any more.
    fn least(&self, state: &State, request: usize, progress: Progress) -> Option<Nanos> {
        let Known { tenant, arrival, sizes, slo } = self.case.requests[request];
        let (produced, late, on) = match progress {
            Progress::Over => return None,
            Progress::Waiting => (0, 0, None),
            Progress::Running { device, produced, late } => (produced, late, Some(device)),
        };
        if !counts(slo, false, late, sizes.output) {
            return None;
        }
        let all = Needs::of(sizes);
        let had = if produced == 0 { Needs::default() } else { Needs::of(Sizes { output: produced, ..sizes }) };
        let needs = Needs {
            tokens: all.tokens - had.tokens,
            outputs: all.outputs - had.outputs,
            context: all.context - had.context,
            pairs: all.pairs - had.pairs,
        };
        let devices = (0..self.case.devices.len()).filter(|device| match on {
            Some(on) => on == *device,
            None => self.case.devices[*device].tenants.contains(&tenant),
        });
        let in_time = |device: &usize| {
            let start = state.free[*device].max(arrival);
            if start == Nanos::MAX {
                return false;
            }
            let first = if produced == 0 { row(0, sizes.prompt) } else { row(sizes.prompt, sizes.prompt + 1) };
            let first = self.durations.iteration(*device, tenant, &first);
            let step = self.durations.iteration(*device, tenant, &row(sizes.prompt, sizes.prompt + 1));
            let steps = u64::from(sizes.output - produced - 1);
            let is_late = produced == 0 && slo.is_some_and(|slo| start + first > slo.due(arrival, 0));
            !is_late && start + first + step.times(steps) <= self.case.horizon
        };
        devices.filter(in_time).map(|device| self.durations.least(device, tenant, &needs)).min()
    }

    fn key(&self, state: &State) -> Key {
        let mut order: Vec<usize> = (0..state.free.len()).collect();
        if self.alike {
            let held = |device: usize| {
                let there = |(request, progress): (usize, &Progress)| match *progress {
                    Progress::Running { device: on, produced, late } if on == device => Some((request, produced, late)),
                    _ => None,
                };
                state.requests.iter().enumerate().filter_map(there).collect::<Vec<_>>()
            };
            order.sort_by_key(|&device| (state.free[device], held(device)));
        }
        let place = |device: usize| order.iter().position(|&other| other == device).unwrap_or(device);
        let renamed = |progress: &Progress| match *progress {
            Progress::Running { device, produced, late } => Progress::Running { device: place(device), produced, late },
            other => other,
        };
        (order.iter().map(|&device| state.free[device]).collect(), state.requests.iter().map(renamed).collect())
    }
}

/// True if a request with so many late tokens so far can still count.
fn counts(slo: Option<Slo>, first_is_late: bool, late: u32, output: u32) -> bool {
    match slo {
        None => late < HOPELESS,
        Some(_) => !first_is_late && u64::from(late) * 20 <= u64::from(output),
    }
}

#[cfg(test)]
mod tests;
