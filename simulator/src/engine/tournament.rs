//! The next event among a fixed set of sources.

use std::hint::select_unpredictable;

/// A winner tree: one key per source, the smallest on top, ties to the lower source.
///
/// The set of sources is bounded by lanes, so an update costs the logarithm of the lanes whatever
/// the number of operators, and nothing is ever pushed or popped. The way up needs only the
/// siblings, whose places are known from the start: loads do not wait for comparisons.
///
/// ```
/// use slicescheduler_simulator::engine::Tournament;
///
/// let mut events = Tournament::default();
/// events.reset(3);
/// events.set(2, 40);
/// events.set(1, 40);
/// assert_eq!(events.first(), (1, 40));
/// events.set(1, Tournament::NEVER);
/// assert_eq!(events.first(), (2, 40));
/// ```
#[derive(Debug, Default)]
pub struct Tournament {
    /// A heap-shaped tree: the children of `i` are `2 i` and `2 i + 1`, the leaves begin at
    /// `width`. A place holds the smallest key of its leaves.
    keys: Vec<u64>,
    /// The leaf whose key that is.
    sources: Vec<u32>,
    width: usize,
}

impl Tournament {
    /// The key of a source that has no event.
    pub const NEVER: u64 = u64::MAX;

    /// Starts over with `sources` sources, none of which has an event. O(sources).
    pub fn reset(&mut self, sources: usize) {
        self.width = sources.max(1).next_power_of_two();
        self.keys.clear();
        self.keys.resize(2 * self.width, Self::NEVER);
        self.sources.clear();
        self.sources.resize(2 * self.width, 0);
        for leaf in 0..self.width {
            self.sources[self.width + leaf] = leaf as u32;
        }
        for place in (1..self.width).rev() {
            self.sources[place] = self.sources[2 * place];
        }
    }

    /// The next event of `source`, one of those of the last reset, is at `key`. O(log sources).
    ///
    /// # Panics
    /// If there is no such source.
    pub fn set(&mut self, source: u32, key: u64) {
        let mut place = self.width + source as usize;
        let (keys, sources) = (&mut self.keys[..2 * self.width], &mut self.sources[..2 * self.width]);
        if keys[place] == key {
            return;
        }
        let (mut key, mut source) = (key, source);
        keys[place] = key;
        while place > 1 {
            let sibling = place ^ 1;
            // A sibling of an odd place is to the left, where sources are lower, and wins ties.
            let left = (place & 1) as u64;
            let loses = keys[sibling] < key.saturating_add(left);
            // Who wins is a coin toss: branches would be predicted wrongly half of the time.
            key = select_unpredictable(loses, keys[sibling], key);
            source = select_unpredictable(loses, sources[sibling], source);
            place /= 2;
            keys[place] = key;
            sources[place] = source;
        }
    }

    /// The source with the smallest key, and the key. Which source is of no meaning if the key is
    /// [`NEVER`](Self::NEVER). O(1).
    pub fn first(&self) -> (u32, u64) {
        (self.sources[1], self.keys[1])
    }

    /// The smallest key of all sources but `source`. O(log sources), several times faster than to
    /// [`set`](Self::set) a key.
    ///
    /// # Panics
    /// If there is no such source.
    pub fn first_of_others(&self, source: u32) -> u64 {
        let keys = &self.keys[..2 * self.width];
        let mut place = self.width + source as usize;
        let mut first = Self::NEVER;
        while place > 1 {
            first = first.min(keys[place ^ 1]);
            place /= 2;
        }
        first
    }

    /// The key of `source`. O(1).
    ///
    /// # Panics
    /// If there is no such source.
    pub fn key(&self, source: u32) -> u64 {
        self.keys[self.width + source as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_first_is_the_smallest_key_of_the_lowest_source(
            sources in 1usize..40,
            updates in prop::collection::vec((0usize..40, prop_oneof![4 => 0u64..20, 1 => u64::MAX - 1..=u64::MAX]), 0..200),
        ) {
            let mut tree = Tournament::default();
            tree.reset(sources);
            let mut keys = vec![Tournament::NEVER; sources];
            for (source, key) in updates {
                let source = source % sources;
                tree.set(source as u32, key);
                keys[source] = key;
                let (first, &smallest) = keys.iter().enumerate().min_by_key(|&(source, key)| (*key, source)).unwrap();
                prop_assert_eq!(tree.first().1, smallest);
                let others = keys.iter().enumerate().filter(|(other, _)| *other != source).map(|(_, key)| *key).min();
                prop_assert_eq!(tree.first_of_others(source as u32), others.unwrap_or(Tournament::NEVER));
                if smallest != Tournament::NEVER {
                    prop_assert_eq!(tree.first().0, first as u32);
                }
            }
        }
    }
}
