//! A carrier within the process: what tests and examples go over, and the least that a carrier has to do.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Carrier;

/// One end of a pipe, made by [`pipe`].
#[derive(Debug)]
pub struct Pipe {
    shared: Arc<Mutex<Shared>>,
    /// 0 or 1.
    end: usize,
    /// The connection that this end is on.
    connection: Option<u64>,
}

#[derive(Debug)]
struct Shared {
    capacity: usize,
    /// Bytes to each end.
    to: [VecDeque<u8>; 2],
    /// Which ends are on the present connection.
    on: [bool; 2],
    connection: u64,
}

/// Both ends of a pipe that holds `capacity` bytes each way.
pub fn pipe(capacity: usize) -> (Pipe, Pipe) {
    let shared =
        Shared { capacity: capacity.max(1), to: [VecDeque::new(), VecDeque::new()], on: [false; 2], connection: 0 };
    let shared = Arc::new(Mutex::new(shared));
    (Pipe { shared: shared.clone(), end: 0, connection: None }, Pipe { shared, end: 1, connection: None })
}

impl Pipe {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What both ends share, if this one is on its present connection.
    fn connected(&self) -> io::Result<MutexGuard<'_, Shared>> {
        let shared = self.shared();
        if self.connection == Some(shared.connection) { Ok(shared) } else { Err(io::ErrorKind::ConnectionReset.into()) }
    }
}

impl Shared {
    fn cut(&mut self) {
        self.connection += 1;
        self.on = [false; 2];
        self.to.iter_mut().for_each(VecDeque::clear);
    }
}

impl Carrier for Pipe {
    fn connect(&mut self) -> io::Result<bool> {
        let mut shared = self.shared();
        shared.on[self.end] = true;
        let (both, connection) = (shared.on == [true; 2], shared.connection);
        drop(shared);
        self.connection = Some(connection);
        Ok(both)
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut shared = self.connected()?;
        let bytes = &mut shared.to[self.end];
        if bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        io::Read::read(bytes, into)
    }

    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let mut shared = self.connected()?;
        let room = shared.capacity - shared.to[1 - self.end].len();
        let count = from.len().min(room);
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        shared.to[1 - self.end].extend(&from[..count]);
        Ok(count)
    }

    fn close(&mut self) {
        if let Ok(mut shared) = self.connected() {
            shared.cut();
        }
        self.connection = None;
    }
}
