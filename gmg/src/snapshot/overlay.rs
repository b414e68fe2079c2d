//! What a branch changed of one table.

use std::fmt;
use std::hash::Hash;

use crate::id_map::IdMap;

/// Where the entries of an overlay are.
pub(super) trait Places<K>: Default {
    fn get(&self, key: K) -> Option<u32>;
    fn set(&mut self, key: K, place: u32);
    fn unset(&mut self, key: K);
}

/// Places of keys that are indices of a table: one word per row, none of which is written twice.
#[derive(Debug, Default)]
pub(super) struct Dense(Vec<u32>);

const NO_PLACE: u32 = u32::MAX;

impl Places<u32> for Dense {
    fn get(&self, key: u32) -> Option<u32> {
        self.0.get(key as usize).copied().filter(|&place| place != NO_PLACE)
    }
    fn set(&mut self, key: u32, place: u32) {
        if key as usize >= self.0.len() {
            self.0.resize(key as usize + 1, NO_PLACE);
        }
        self.0[key as usize] = place;
    }
    fn unset(&mut self, key: u32) {
        if let Some(place) = self.0.get_mut(key as usize) {
            *place = NO_PLACE;
        }
    }
}

impl<K: Hash + Eq> Places<K> for IdMap<K, u32> {
    fn get(&self, key: K) -> Option<u32> {
        self.get(&key).copied()
    }
    fn set(&mut self, key: K, place: u32) {
        self.insert(key, place);
    }
    fn unset(&mut self, key: K) {
        self.remove(&key);
    }
}

struct Entry<K, T> {
    key: K,
    /// The mark under which the value was kept last, or the entry made.
    kept: u64,
    value: T,
}

/// Rows that differ from a base, and what they were at the marks that can be gone back to.
///
/// A row is copied once when it is first written, and once under every mark under which it is written
/// again; further writes under the same mark are free. Entries lie in the order in which they were
/// made, so that going back is cutting off.
pub(super) struct Overlay<K, T, P> {
    places: P,
    entries: Vec<Entry<K, T>>,
    journal: Vec<(u32, u64, T)>,
}

/// How much an overlay held at a mark.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    entries: usize,
    journal: usize,
}

impl<K, T, P: Default> Default for Overlay<K, T, P> {
    fn default() -> Self {
        Self { places: P::default(), entries: Vec::new(), journal: Vec::new() }
    }
}

impl<K, T, P> fmt::Debug for Overlay<K, T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} changed, {} kept", self.entries.len(), self.journal.len())
    }
}

impl<K: Copy, T: Clone, P: Places<K>> Overlay<K, T, P> {
    pub(super) fn get(&self, key: K) -> Option<&T> {
        Some(&self.entries[self.places.get(key)? as usize].value)
    }

    /// The row to be written under `mark`; marks are numbered upwards, and zero is none. Rows come
    /// from `base` when they are first written.
    pub(super) fn write(&mut self, key: K, mark: u64, base: impl FnOnce() -> Option<T>) -> Option<&mut T> {
        let place = match self.places.get(key) {
            Some(place) => {
                let entry = &mut self.entries[place as usize];
                if entry.kept < mark {
                    self.journal.push((place, entry.kept, entry.value.clone()));
                    entry.kept = mark;
                }
                place
            }
            None => {
                let value = base()?;
                self.entries.push(Entry { key, kept: mark, value });
                let place = self.entries.len() as u32 - 1;
                self.places.set(key, place);
                place
            }
        };
        Some(&mut self.entries[place as usize].value)
    }

    /// The rows that were written, in the order in which they were first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (K, &T)> + '_ {
        self.entries.iter().map(|entry| (entry.key, &entry.value))
    }

    pub(super) fn extent(&self) -> Extent {
        Extent { entries: self.entries.len(), journal: self.journal.len() }
    }

    pub(super) fn go_back(&mut self, to: Extent) {
        for (place, kept, value) in self.journal.drain(to.journal..).rev() {
            let entry = &mut self.entries[place as usize];
            (entry.kept, entry.value) = (kept, value);
        }
        for entry in self.entries.drain(to.entries..) {
            self.places.unset(entry.key);
        }
    }

    pub(super) fn clear(&mut self) {
        self.go_back(Extent { entries: 0, journal: 0 });
    }
}
