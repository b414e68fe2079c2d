//! What requests need at least, whoever serves them.

/// The prompt and the answer of a request, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sizes {
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens of the answer.
    pub output: u32,
}

/// The sums over all rows of all iterations that a request takes part in, at least: its prompt in one chunk,
/// every token computed once. Whoever preempts it or cuts its prompt needs more.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Needs {
    /// Tokens computed: all of the prompt and of the answer but the last.
    pub tokens: f64,
    /// Output tokens, each of which is a row of an iteration.
    pub outputs: f64,
    /// Tokens of KV cache read: those up to the end of each row.
    pub context: f64,
    /// Query-key pairs: of each token with itself and all before it.
    pub pairs: f64,
}

impl Needs {
    /// Those of a request of these sizes.
    ///
    /// ```
    /// use slicescheduler::bound::needs::{Needs, Sizes};
    ///
    /// let needs = Needs::of(Sizes { prompt: 4, output: 3 });
    /// assert_eq!((needs.tokens, needs.outputs), (6.0, 3.0));
    /// assert_eq!(needs.context, 4.0 + 5.0 + 6.0, "the prompt, and two tokens of the answer");
    /// assert_eq!(needs.pairs, (1 + 2 + 3 + 4 + 5 + 6) as f64);
    /// ```
    pub fn of(Sizes { prompt, output }: Sizes) -> Self {
        let (prompt, output) = (f64::from(prompt), f64::from(output));
        let steps = (output - 1.0).max(0.0);
        let tokens = prompt + steps;
        Self {
            tokens,
            outputs: output,
            context: prompt + steps * prompt + steps * (steps + 1.0) / 2.0,
            pairs: tokens * (tokens + 1.0) / 2.0,
        }
    }
}

/// Requests that are counted together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bin {
    /// How many there are at most; infinite for a backlog.
    pub count: f64,
    /// Mean tokens of the prompt.
    pub prompt: f64,
    /// Mean tokens of the answer.
    pub output: f64,
    /// Mean needs.
    pub needs: Needs,
}

impl Bin {
    /// The mean of `requests`, `count` of which there are. [`None`] without requests.
    pub fn mean(requests: &[Sizes], count: f64) -> Option<Self> {
        if requests.is_empty() {
            return None;
        }
        let share = 1.0 / requests.len() as f64;
        let zero = Self { count, prompt: 0.0, output: 0.0, needs: Needs::default() };
        Some(requests.iter().fold(zero, |sum, &sizes| {
            let Needs { tokens, outputs, context, pairs } = Needs::of(sizes);
            Self {
                count,
                prompt: sum.prompt + share * f64::from(sizes.prompt),
                output: sum.output + share * f64::from(sizes.output),
                needs: Needs {
                    tokens: sum.needs.tokens + share * tokens,
                    outputs: sum.needs.outputs + share * outputs,
                    context: sum.needs.context + share * context,
                    pairs: sum.needs.pairs + share * pairs,
                },
            }
        }))
    }

    /// Requests of about the same sizes together, in at most `most` bins: by prompt, then by answer. With at
    /// least as many bins as requests, each has its own. O(n log n).
    pub fn group(mut requests: Vec<Sizes>, most: usize) -> Vec<Self> {
        let count = |part: &[Sizes]| Self::mean(part, part.len() as f64);
        if requests.len() <= most {
            return requests.chunks(1).filter_map(count).collect();
        }
        let side = most.max(1).isqrt();
        requests.sort_unstable();
        let length = requests.len().div_ceil(side);
        let mut bins = Vec::new();
        for part in requests.chunks_mut(length) {
            part.sort_unstable_by_key(|sizes| (sizes.output, sizes.prompt));
            bins.extend(part.chunks(part.len().div_ceil(side)).filter_map(count));
        }
        bins
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bins_lose_no_request_and_no_need(
            requests in prop::collection::vec((1u32..5000, 1u32..2000), 1..200),
            most in 1usize..100,
        ) {
            let requests: Vec<_> = requests.iter().map(|&(prompt, output)| Sizes { prompt, output }).collect();
            let bins = Bin::group(requests.clone(), most);
            prop_assert!(bins.len() <= most);
            let close = |one: f64, other: f64| (one - other).abs() <= 1e-9 * other.abs();
            let sum = |of: fn(&Bin) -> f64| bins.iter().map(|bin| bin.count * of(bin)).sum::<f64>();
            let all = |of: fn(&Needs) -> f64| requests.iter().map(|&sizes| of(&Needs::of(sizes))).sum::<f64>();
            prop_assert!(close(sum(|_| 1.0), requests.len() as f64));
            prop_assert!(close(sum(|bin| bin.needs.tokens), all(|needs| needs.tokens)));
            prop_assert!(close(sum(|bin| bin.needs.context), all(|needs| needs.context)));
            prop_assert!(close(sum(|bin| bin.needs.pairs), all(|needs| needs.pairs)));
        }
    }
}
