//! Maps keyed by ids that are counted up, such as [`RequestId`](crate::id::RequestId).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A hasher for ids that are counted up: they need spreading, not protection. Do not use it for keys
/// that somebody else chooses.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }
    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }
    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }
}

/// A map keyed by ids. Its order is not that of the ids, and means nothing.
pub type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;
