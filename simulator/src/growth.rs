//! How far KV caches will grow: output lengths nobody knows, bounded and expected.
//!
//! [`OutputLengths`] keeps the lengths of the last completions. For a request that has produced `p`
//! tokens only those longer than `p` say anything. Their quantile is a one-sided conformal bound: if
//! lengths are exchangeable, a request exceeds it with a probability of at most alpha (Vovk, Gammerman,
//! Shafer: Algorithmic Learning in a Random World, 2005; with alpha 0.1 over 500 completions as MAPS
//! does). [`KvForecast`] turns it into bytes over time.

use std::collections::VecDeque;

use slicescheduler_gmg::id::RequestId;
use slicescheduler_gmg::units::{Bytes, Nanos};

/// The output lengths of the last completions.
#[derive(Clone, Debug)]
pub struct OutputLengths {
    window: usize,
    recent: VecDeque<u32>,
    sorted: Vec<u32>,
}

impl Default for OutputLengths {
    /// The last 500.
    fn default() -> Self {
        Self::new(500)
    }
}

impl OutputLengths {
    /// Remembers the last `window` completions.
    pub fn new(window: usize) -> Self {
        Self { window: window.max(1), recent: VecDeque::new(), sorted: Vec::new() }
    }

    /// A request was completed with `tokens` output tokens. O(window).
    pub fn observe(&mut self, tokens: u32) {
        if self.recent.len() == self.window
            && let Some(oldest) = self.recent.pop_front()
        {
            let at = self.sorted.partition_point(|&other| other < oldest);
            self.sorted.remove(at);
        }
        self.recent.push_back(tokens);
        let at = self.sorted.partition_point(|&other| other < tokens);
        self.sorted.insert(at, tokens);
    }

    /// Completions with more than `produced` tokens, ascending.
    fn longer(&self, produced: u32) -> &[u32] {
        &self.sorted[self.sorted.partition_point(|&other| other <= produced)..]
    }

    /// A length that a request which has produced `produced` tokens exceeds with a probability of at
    /// most `alpha_percent`: the `ceil((k + 1) (1 - alpha))`-th of the `k` longer completions.
    /// [`None`] if there are too few to say. O(log window).
    ///
    /// ```
    /// use slicescheduler_simulator::growth::OutputLengths;
    ///
    /// let mut lengths = OutputLengths::new(500);
    /// (1..=99).for_each(|tokens| lengths.observe(tokens));
    /// assert_eq!(lengths.bound(0, 10), Some(90));
    /// assert_eq!(lengths.bound(79, 10), Some(98));
    /// assert_eq!(lengths.bound(95, 10), None);
    /// ```
    pub fn bound(&self, produced: u32, alpha_percent: u32) -> Option<u32> {
        let longer = self.longer(produced);
        let covered = (longer.len() as u64 + 1) * u64::from(100u32.saturating_sub(alpha_percent));
        let rank = covered.div_ceil(100) as usize;
        longer.get(rank.max(1) - 1).copied()
    }

    /// The part of the completions with more than `produced` tokens that have more than `later`:
    /// numerator and denominator. O(log window).
    pub fn survival(&self, produced: u32, later: u32) -> (u64, u64) {
        (self.longer(later.max(produced)).len() as u64, self.longer(produced).len() as u64)
    }
}

/// A request whose KV cache grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growing {
    /// Which.
    pub request: RequestId,
    /// Tokens in its cache.
    pub tokens: u32,
    /// Output tokens so far.
    pub produced: u32,
    /// Output tokens at most.
    pub max_output: u32,
    /// When its next token comes.
    pub next: Nanos,
    /// Time between two tokens.
    pub pace: Nanos,
}

/// What changes the bytes of a forecast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvStep {
    /// When.
    pub at: Nanos,
    /// Whose cache.
    pub request: RequestId,
    /// In use from then on, by all requests.
    pub used: Bytes,
}

/// The first time that a forecast exceeds what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvViolation {
    /// When.
    pub at: Nanos,
    /// Whose growth did it.
    pub request: RequestId,
    /// How much is missing.
    pub missing: Bytes,
}

/// KV bytes over time, in blocks, for requests that produce at a steady pace.
#[derive(Clone, Copy, Debug)]
pub struct KvForecast<'a> {
    /// What is known about lengths.
    pub lengths: &'a OutputLengths,
    /// Tokens in a block.
    pub block_tokens: u32,
    /// Bytes of a block.
    pub block: Bytes,
}

impl KvForecast<'_> {
    /// The bytes up to `horizon` if every request goes on to its conformal bound, or to its maximum where there is none, and
    /// ends there. A request takes more only if it goes on beyond its bound: with a probability of at most `alpha_percent`
    /// each. The first step of each request is what it has now. O(tokens + blocks * log blocks).
    pub fn upper(&self, requests: &[Growing], alpha_percent: u32, now: Nanos, horizon: Nanos) -> Vec<KvStep> {
        let bounded = requests.iter().map(|request| {
            let bound = self.lengths.bound(request.produced, alpha_percent).unwrap_or(request.max_output);
            (*request, bound)
        });
        self.until(&bounded.collect::<Vec<_>>(), now, horizon)
    }

    /// The bytes up to `horizon` if every request goes on until it has produced as many tokens as stand beside it, at most its
    /// maximum and at least one more than now, and ends there. The first step of each request is what it has now.
    /// O(tokens + blocks * log blocks).
    pub fn until(&self, requests: &[(Growing, u32)], now: Nanos, horizon: Nanos) -> Vec<KvStep> {
        let mut changes = Vec::new();
        for (request, bound) in requests {
            let last = (*bound).min(request.max_output).max(request.produced.saturating_add(1));
            self.changes(request, last, now, horizon, |_, blocks| i128::from(blocks), &mut changes);
        }
        self.sum(changes, 1)
    }

    /// The expected bytes up to `horizon`: what each request would hold, times the part of the longer
    /// completions that were still running then; rounded down. Without longer completions a request
    /// is expected to go on to its maximum. O(tokens * log window).
    pub fn expected(&self, requests: &[Growing], now: Nanos, horizon: Nanos) -> Vec<KvStep> {
        // A common denominator for all parts: a millionth of a block.
        const UNIT: i128 = 1_000_000;
        let mut changes = Vec::new();
        for request in requests {
            let weigh = |produced: u32, blocks: u64| match self.lengths.survival(request.produced, produced) {
                (_, 0) => i128::from(blocks) * UNIT,
                (alive, all) => i128::from(blocks) * UNIT * i128::from(alive) / i128::from(all),
            };
            self.changes(request, request.max_output.max(request.produced + 1), now, horizon, weigh, &mut changes);
        }
        self.sum(changes, UNIT)
    }

    /// The first step of a forecast at which more than `free` is in use.
    pub fn first_violation(steps: &[KvStep], free: Bytes) -> Option<KvViolation> {
        let step = steps.iter().find(|step| step.used > free)?;
        Some(KvViolation { at: step.at, request: step.request, missing: step.used - free })
    }

    /// Appends when `request` holds more or less, as long as it has produced less than `last` tokens:
    /// with its last token it ends.
    fn changes(
        &self,
        request: &Growing,
        last: u32,
        now: Nanos,
        horizon: Nanos,
        weigh: impl Fn(u32, u64) -> i128,
        changes: &mut Vec<(Nanos, RequestId, i128)>,
    ) {
        let blocks = |tokens: u32| u64::from(tokens.div_ceil(self.block_tokens.max(1)));
        let mut held = weigh(request.produced, blocks(request.tokens));
        changes.push((now, request.request, held));
        for produced in request.produced + 1..=last {
            let further = produced - request.produced;
            let at = request.next + request.pace.max(Nanos(1)).times(u64::from(further - 1));
            if at >= horizon {
                return;
            }
            let holds =
                if produced == last { 0 } else { weigh(produced, blocks(request.tokens.saturating_add(further))) };
            if holds != held {
                changes.push((at, request.request, holds - held));
                held = holds;
            }
        }
    }

    /// Adds changes up, in the order of time and requests.
    fn sum(&self, mut changes: Vec<(Nanos, RequestId, i128)>, unit: i128) -> Vec<KvStep> {
        // What ends frees before what grows takes.
        changes.sort_by_key(|&(at, request, change)| (at, change > 0, request));
        let mut used = 0;
        let steps = changes.into_iter().map(|(at, request, change)| {
            used += change;
            let bytes = i128::from(self.block.get()) * used / unit;
            KvStep { at, request, used: Bytes(u64::try_from(bytes).unwrap_or(u64::MAX)) }
        });
        steps.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request() -> impl Strategy<Value = (u32, u32, u32, u64, u64)> {
        (0u32..40, 0u32..20, 1u32..30, 1u64..30, 1u64..10)
    }

    fn growing(requests: Vec<(u32, u32, u32, u64, u64)>) -> Vec<Growing> {
        let growing = (0u64..).zip(requests).map(|(id, (prompt, produced, more, next, pace))| Growing {
            request: RequestId(id),
            tokens: prompt + produced,
            produced,
            max_output: produced + more,
            next: Nanos(next),
            pace: Nanos(pace),
        });
        growing.collect()
    }

    /// In use after everything of instant `at`.
    fn used_at(steps: &[KvStep], at: u64) -> Bytes {
        steps.iter().rfind(|step| step.at <= Nanos(at)).map_or(Bytes::ZERO, |step| step.used)
    }

    /// Heavy-tailed lengths from a fixed generator: over a long run the bound is exceeded by no more
    /// than a tenth, and not by much less.
    #[test]
    fn a_tenth_of_the_requests_exceed_a_bound_of_ten_percent() {
        let mut lengths = OutputLengths::default();
        let mut state = 1u64;
        let (mut exceeded, mut asked) = (0, 0);
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let uniform = (state >> 40) as u32 + 1;
            let length = ((1u64 << 30) / u64::from(uniform)).min(4_000) as u32;
            if let Some(bound) = lengths.bound(0, 10) {
                asked += 1;
                exceeded += u32::from(length > bound);
            }
            lengths.observe(length);
        }
        let rate = f64::from(exceeded) / f64::from(asked);
        assert!((0.08..=0.105).contains(&rate), "{rate}");
    }

    #[test]
    fn a_violation_says_when_who_and_by_how_much() {
        let lengths = OutputLengths::default();
        let forecast = KvForecast { lengths: &lengths, block_tokens: 4, block: Bytes(100) };
        let requests = growing(vec![(4, 0, 20, 5, 10), (7, 0, 20, 6, 10)]);
        let steps = forecast.upper(&requests, 10, Nanos::ZERO, Nanos(1000));
        // One and two blocks; the first needs another for its token at 5, the second for that at 16.
        let violation = KvForecast::first_violation(&steps, Bytes(450));
        let second = RequestId(1);
        assert_eq!(violation, Some(KvViolation { at: Nanos(16), request: second, missing: Bytes(50) }));
    }

    proptest! {
        #[test]
        fn the_window_holds_the_last_completions(tokens in prop::collection::vec(0u32..50, 0..80), window in 1usize..30) {
            let mut lengths = OutputLengths::new(window);
            tokens.iter().for_each(|&tokens| lengths.observe(tokens));
            let mut last = tokens[tokens.len().saturating_sub(window)..].to_vec();
            last.sort_unstable();
            prop_assert_eq!(lengths.sorted, last);
        }

        /// Brute force: every nanosecond, what each request would hold.
        #[test]
        fn the_upper_bound_is_the_sum_of_what_all_hold_at_their_bounds(
            completions in prop::collection::vec(1u32..40, 0..60),
            requests in prop::collection::vec(request(), 1..6),
            block_tokens in 1u32..9,
        ) {
            let mut lengths = OutputLengths::default();
            completions.iter().for_each(|&tokens| lengths.observe(tokens));
            let forecast = KvForecast { lengths: &lengths, block_tokens, block: Bytes(10) };
            let requests = growing(requests);
            let steps = forecast.upper(&requests, 10, Nanos::ZERO, Nanos(400));
            let expected = forecast.expected(&requests, Nanos::ZERO, Nanos(400));
            for at in 0..400 {
                let holds = |request: &Growing| {
                    let bound = lengths.bound(request.produced, 10).unwrap_or(u32::MAX).min(request.max_output);
                    let came = if at < request.next.get() { 0 } else { 1 + (at - request.next.get()) / request.pace.get() };
                    let ended = u64::from(request.produced) + came >= u64::from(bound.max(request.produced + 1));
                    if ended { 0 } else { (u64::from(request.tokens) + came).div_ceil(u64::from(block_tokens)) * 10 }
                };
                prop_assert_eq!(used_at(&steps, at).get(), requests.iter().map(holds).sum::<u64>(), "at {}", at);
                let all: u64 = requests.iter().map(|r| {
                    let came = if at < r.next.get() { 0 } else { 1 + (at - r.next.get()) / r.pace.get() };
                    (u64::from(r.tokens) + came).div_ceil(u64::from(block_tokens)) * 10
                }).sum();
                prop_assert!(used_at(&expected, at).get() <= all);
            }
        }
    }
}
