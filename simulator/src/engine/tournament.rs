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
    /// A heap-shaped tree: at `i` the children of `i`, the left one first; the leaves are the children of `width / 2` and
    /// of those behind it. A place holds the smallest key of its leaves, and the leaf whose key that is.
    children: Vec<[Entry; 2]>,
    first: Entry,
    /// A power of two, at least two.
    width: usize,
}

/// The smallest key of some leaves.
#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u64,
    source: u32,
}

impl Default for Entry {
    fn default() -> Self {
        Self { key: Tournament::NEVER, source: 0 }
    }
}

impl Tournament {
    /// The key of a source that has no event.
    pub const NEVER: u64 = u64::MAX;

    /// Starts over with `sources` sources, none of which has an event. O(sources).
    pub fn reset(&mut self, sources: usize) {
        self.width = sources.max(2).next_power_of_two();
        self.first = Entry::default();
        self.children.clear();
        self.children.resize(self.width, [Entry::default(); 2]);
    }

    /// The next event of `source`, one of those of the last reset, is at `key`. O(log sources).
    ///
    /// # Panics
    /// If there is no such source.
    pub fn set(&mut self, source: u32, key: u64) {
        let leaf = self.width + source as usize;
        let (mut parent, mut right) = (leaf / 2, leaf % 2);
        let mut entry = Entry { key, source };
        if self.children[parent][right].key == key {
            return;
        }
        while parent > 0 {
            let pair = &mut self.children[parent];
            pair[right] = entry;
            let sibling = pair[1 - right];
            // A sibling of a right child is to the left, where sources are lower, and wins ties.
            let loses = sibling.key < entry.key.saturating_add(right as u64);
            // Who wins is a coin toss: branches would be predicted wrongly half of the time.
            entry.key = select_unpredictable(loses, sibling.key, entry.key);
            entry.source = select_unpredictable(loses, sibling.source, entry.source);
            (parent, right) = (parent / 2, parent % 2);
        }
        self.first = entry;
    }

    /// The source with the smallest key, and the key. Which source is of no meaning if the key is
    /// [`NEVER`](Self::NEVER). O(1).
    pub fn first(&self) -> (u32, u64) {
        (self.first.source, self.first.key)
    }

    /// The smallest key of all sources but `source`. O(log sources), several times faster than to
    /// [`set`](Self::set) a key.
    ///
    /// # Panics
    /// If there is no such source.
    pub fn first_of_others(&self, source: u32) -> u64 {
        let mut place = self.width + source as usize;
        let mut first = Self::NEVER;
        while place > 1 {
            first = first.min(self.children[place / 2][1 - place % 2].key);
            place /= 2;
        }
        first
    }

    /// The key of `source`. O(1).
    ///
    /// # Panics
    /// If there is no such source.
    pub fn key(&self, source: u32) -> u64 {
        let leaf = self.width + source as usize;
        self.children[leaf / 2][leaf % 2].key
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
