//! The next event among a fixed set of sources.

/// A winner tree: one key per source, the smallest on top, ties to the lower source. The set of
/// sources is bounded by lanes, so an update costs the logarithm of the lanes whatever the number
/// of operators, and nothing is ever pushed or popped.
#[derive(Debug, Default)]
pub(super) struct Tournament {
    keys: Vec<u64>,
    /// A heap-shaped tree of sources: the children of `i` are `2 i` and `2 i + 1`, the leaves
    /// begin at `width`.
    winners: Vec<u32>,
    width: usize,
}

/// The key of a source that has no event.
pub(super) const NEVER: u64 = u64::MAX;

impl Tournament {
    /// Starts over with `sources` sources, none of which has an event.
    pub(super) fn reset(&mut self, sources: usize) {
        self.width = sources.max(1).next_power_of_two();
        self.keys.clear();
        self.keys.resize(self.width, NEVER);
        self.winners.clear();
        self.winners.resize(2 * self.width, 0);
        for node in (1..2 * self.width).rev() {
            self.winners[node] = if node >= self.width { (node - self.width) as u32 } else { self.winners[2 * node] };
        }
    }

    /// The next event of `source` is at `key`.
    pub(super) fn set(&mut self, source: u32, key: u64) {
        if self.keys[source as usize] == key {
            return;
        }
        self.keys[source as usize] = key;
        let mut node = (self.width + source as usize) / 2;
        while node > 0 {
            let (left, right) = (self.winners[2 * node], self.winners[2 * node + 1]);
            self.winners[node] = if self.keys[right as usize] < self.keys[left as usize] { right } else { left };
            node /= 2;
        }
    }

    /// The source with the smallest key, and the key.
    pub(super) fn first(&self) -> (u32, u64) {
        let source = self.winners[1];
        (source, self.keys[source as usize])
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
            updates in prop::collection::vec((0usize..40, 0u64..20), 0..200),
        ) {
            let mut tree = Tournament::default();
            tree.reset(sources);
            let mut keys = vec![NEVER; sources];
            for (source, key) in updates {
                let source = source % sources;
                tree.set(source as u32, key);
                keys[source] = key;
                let (first, &smallest) = keys.iter().enumerate().min_by_key(|&(source, key)| (*key, source)).unwrap();
                prop_assert_eq!(tree.first(), (first as u32, smallest));
            }
        }
    }
}
