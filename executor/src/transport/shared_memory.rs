//! Links over memory that two processes have mapped: a file, best in a file system of memory.
//!
//! The file has a page of words that both ends change atomically, then a ring of bytes in each direction. The word `mark`
//! tells it from any other file: one without it is left alone.
//! Word `state` counts connections: the end that created the file clears the rings and calls, the other one
//! answers. Each end looks at it before it touches a ring, so a connection that one end has given up is lost
//! for both. An end that looked just before may still spoil the next connection's first bytes: they have
//! no right checksum, and there is another connection after it.
//!
//! Both processes are trusted with the file: one that shortens it takes the other's memory away.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::MmapRaw;
use slicescheduler_gmg::units::Bytes;

use super::link::Carrier;
use crate::error::{ExecutorError, Result};

/// Bytes before the rings.
const PAGE: usize = 4096;
/// Where the words lie, each on a cache line of its own.
const STATE: usize = 0;
const READ: [usize; 2] = [64, 192];
const WRITTEN: [usize; 2] = [128, 256];
const MARK: usize = 320;

/// What the word `mark` of a pair of rings says, as the bytes of a text.
const RINGS: u64 = u64::from_ne_bytes(*b"SliRing1");
/// Bytes of a ring at most.
const MOST: u64 = 1 << 30;

/// The low bits of `state`; the rest counts connections.
const PHASE: u64 = 3;
const CLOSED: u64 = 0;
const CALLING: u64 = 1;
const OPEN: u64 = 2;

/// One end of a pair of rings in a file.
#[derive(Debug)]
pub struct SharedMemory {
    map: MmapRaw,
    /// Bytes of a ring, a power of two.
    capacity: usize,
    creator: bool,
    /// What `state` is as long as this end's connection lives.
    connection: Option<u64>,
}

impl SharedMemory {
    /// Creates the file, or takes over one of an earlier life, with rings of at least `capacity` bytes, 1 GiB at
    /// most. A file that is there keeps its length, since the other end may have it mapped.
    ///
    /// # Errors
    /// [`ExecutorError::NoLink`] when the file can not be made or mapped, or when there is a file that is no pair of
    /// rings, which is left as it is, or one whose rings are shorter.
    pub fn create(path: &Path, capacity: Bytes) -> Result<Self> {
        Self::map(path, Some(capacity)).map_err(|source| no_link(path, source))
    }

    /// The other end of a file that was [created](Self::create).
    ///
    /// # Errors
    /// [`ExecutorError::NoLink`] when there is no such file, or it is no pair of rings.
    pub fn open(path: &Path) -> Result<Self> {
        Self::map(path, None).map_err(|source| no_link(path, source))
    }

    fn map(path: &Path, create: Option<Bytes>) -> io::Result<Self> {
        let creator = create.is_some();
        let least = create.map_or(0, |capacity| capacity.get().clamp(PAGE as u64, MOST).next_power_of_two());
        let (file, made) = if creator { Self::file(path, least)? } else { (existing(path)?, false) };
        let length = file.metadata()?.len();
        let capacity = length.saturating_sub(PAGE as u64) / 2;
        let possible = (PAGE as u64..=MOST).contains(&capacity) && capacity.is_power_of_two();
        if !possible || length != PAGE as u64 + 2 * capacity {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its length is not that of a pair of rings"));
        }
        let map = MmapRaw::map_raw(&file)?;
        let rings = Self { map, capacity: capacity as usize, creator, connection: None };
        let mark = rings.word(MARK);
        if made {
            mark.store(RINGS, Ordering::Release);
        }
        if mark.load(Ordering::Acquire) != RINGS {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no pair of rings; give another path"));
        }
        if capacity < least {
            let reason =
                format!("its rings have {capacity} bytes each, {least} are wanted; remove it if nobody uses it");
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        if creator {
            // Whoever is on a connection with an earlier life has lost it.
            let state = rings.word(STATE).load(Ordering::Acquire);
            rings.word(STATE).store((state & !PHASE).wrapping_add(PHASE + 1), Ordering::Release);
        }
        Ok(rings)
    }

    /// A new file with rings of `capacity` bytes, or the one that is there, and whether it is new.
    fn file(path: &Path, capacity: u64) -> io::Result<(File, bool)> {
        match OpenOptions::new().read(true).write(true).create_new(true).open(path) {
            Ok(file) => {
                file.set_len(PAGE as u64 + 2 * capacity)?;
                Ok((file, true))
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok((existing(path)?, false)),
            Err(error) => Err(error),
        }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: the words are within the first page of the map (checked when it was made), which lives as
        // long as `self`; maps begin on a page and the offsets are multiples of 64, so they are aligned; and
        // every access to them, in both processes, is atomic.
        unsafe { &*self.map.as_mut_ptr().add(at).cast::<AtomicU64>() }
    }

    /// Which ring this end writes; it reads the other one.
    const fn own(&self) -> usize {
        if self.creator { 0 } else { 1 }
    }

    fn check(&self) -> io::Result<()> {
        let state = self.word(STATE).load(Ordering::Acquire);
        if self.connection == Some(state) { Ok(()) } else { Err(io::ErrorKind::ConnectionReset.into()) }
    }

    /// Bytes that are in a ring. Both words are changed by both processes, so they may say anything.
    fn used(&self, read: u64, written: u64) -> io::Result<usize> {
        let used = usize::try_from(written.wrapping_sub(read)).unwrap_or(usize::MAX);
        if used <= self.capacity { Ok(used) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// Where in `ring` the byte `number` lies, and how many lie behind it without a gap.
    fn place(&self, ring: usize, number: u64) -> (*mut u8, usize) {
        let at = (number & (self.capacity as u64 - 1)) as usize;
        (self.map.as_mut_ptr().wrapping_add(PAGE + ring * self.capacity + at), self.capacity - at)
    }
}

fn existing(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

fn no_link(path: &Path, source: io::Error) -> ExecutorError {
    ExecutorError::NoLink { over: path.display().to_string(), source }
}

impl Carrier for SharedMemory {
    fn connect(&mut self) -> io::Result<bool> {
        let word = self.word(STATE);
        let state = word.load(Ordering::Acquire);
        let next = match (state & PHASE, self.creator) {
            (CLOSED, true) => {
                for ring in [0, 1] {
                    self.word(READ[ring]).store(0, Ordering::Relaxed);
                    self.word(WRITTEN[ring]).store(0, Ordering::Relaxed);
                }
                // The other end sees empty rings once it sees the call.
                word.store((state & !PHASE) | CALLING, Ordering::Release);
                None
            }
            (OPEN, true) => Some(state),
            (CALLING, false) => {
                let open = (state & !PHASE) | OPEN;
                word.compare_exchange(state, open, Ordering::AcqRel, Ordering::Acquire).is_ok().then_some(open)
            }
            (OPEN, false) => {
                // The connection of an earlier life of this end.
                let closed = (state & !PHASE).wrapping_add(PHASE + 1);
                let _ = word.compare_exchange(state, closed, Ordering::AcqRel, Ordering::Acquire);
                None
            }
            _ => None,
        };
        self.connection = next;
        Ok(next.is_some())
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.check()?;
        let ring = 1 - self.own();
        let read = self.word(READ[ring]).load(Ordering::Relaxed);
        // What was written before the count was raised is seen.
        let used = self.used(read, self.word(WRITTEN[ring]).load(Ordering::Acquire))?;
        let (place, straight) = self.place(ring, read);
        let count = into.len().min(used).min(straight);
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // SAFETY: `count` bytes at `place` are within the ring and so the map. The other process does not write
        // them before `READ` is raised; one that does all the same changes bytes, which a checksum finds.
        // `into` is memory of this process, which the map does not overlap.
        unsafe { std::ptr::copy_nonoverlapping(place, into.as_mut_ptr(), count) };
        self.word(READ[ring]).store(read.wrapping_add(count as u64), Ordering::Release);
        Ok(count)
    }

    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.check()?;
        let ring = self.own();
        let written = self.word(WRITTEN[ring]).load(Ordering::Relaxed);
        // The other end has read what it says to have read before this end writes over it.
        let used = self.used(self.word(READ[ring]).load(Ordering::Acquire), written)?;
        let (place, straight) = self.place(ring, written);
        let count = from.len().min(self.capacity - used).min(straight);
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // SAFETY: as in `read`; the other process does not read these bytes before `WRITTEN` is raised.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), place, count) };
        self.word(WRITTEN[ring]).store(written.wrapping_add(count as u64), Ordering::Release);
        Ok(count)
    }

    fn close(&mut self) {
        if let Some(state) = self.connection.take() {
            let closed = (state & !PHASE).wrapping_add(PHASE + 1);
            // If it is another one by now, the other end has closed it first.
            let _ = self.word(STATE).compare_exchange(state, closed, Ordering::AcqRel, Ordering::Acquire);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn path(test: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("slicescheduler-rings-{test}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    /// Why a file is refused.
    fn reason(refused: Result<SharedMemory>) -> String {
        match refused {
            Err(ExecutorError::NoLink { source, .. }) => source.to_string(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn a_file_of_somebody_else_is_refused_and_left_alone() {
        let path = path("foreign");
        // One as long as a pair of rings of a page, too.
        for bytes in [b"a letter".to_vec(), Vec::new(), vec![7; 3 * PAGE]] {
            std::fs::write(&path, &bytes).unwrap();
            let refused = reason(SharedMemory::create(&path, Bytes::kib(4)));
            assert!(refused.contains("a pair of rings") || refused.contains("no pair of rings"), "{refused}");
            assert!(SharedMemory::open(&path).is_err());
            assert_eq!(std::fs::read(&path).unwrap(), bytes);
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_file_of_an_earlier_life_is_taken_over_as_long_as_it_is() {
        let path = path("taken-over");
        drop(SharedMemory::create(&path, Bytes::kib(8)).unwrap());
        let mut created = SharedMemory::create(&path, Bytes::kib(4)).unwrap();
        let mut opened = SharedMemory::open(&path).unwrap();
        assert_eq!((created.capacity, opened.capacity), (8 << 10, 8 << 10));
        assert!(!created.connect().unwrap() && opened.connect().unwrap() && created.connect().unwrap());
        assert_eq!(created.write(b"letter").unwrap(), 6);
        let mut read = [0; 8];
        assert_eq!((opened.read(&mut read).unwrap(), &read[..6]), (6, &b"letter"[..]));
        let refused = reason(SharedMemory::create(&path, Bytes::kib(16)));
        assert_eq!(refused, "its rings have 8192 bytes each, 16384 are wanted; remove it if nobody uses it");
        std::fs::remove_file(path).unwrap();
    }
}
