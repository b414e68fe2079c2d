//! Transfers between two processes, each of which has one end of a link.
//!
//! Each process submits its half of a transfer, [`Transfer::outgoing`] or [`Transfer::incoming`], under the
//! same name to its end; a name is used once in each direction. An [`Endpoint`] speaks over a [`Carrier`],
//! which moves bytes in order and may lose its connection: every frame has a checksum, and a transfer goes
//! on where it was when there is a connection again. Nothing is sent before the destination has a place for
//! it, so a destination that is slow holds its source back, and neither end buffers more than a chunk each way.
//! Half of a transfer waits for its other half as long as the other end answers; an end that is silent, though
//! its connection seems to live, is asked whether it is there.
//!
//! An endpoint has no thread: its owner calls [`Endpoint::poll`], also while it has nothing to move, for it
//! answers the other end, or lends it one with
//! [`Endpoint::on_thread`]. Bytes are copied once on each side, between the memory and the chunk that the
//! checksum is over.

mod frame;
mod pipe;
mod protocol;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::time::Duration;

use crossbeam::channel::{RecvTimeoutError, Sender};
use slicescheduler_gmg::units::{Bytes, Nanos};

pub use pipe::{Pipe, pipe};

use super::handle::{Handle, Orders};
use super::{Ends, Refusal, Refused, Transfer, TransferEvent, Transport};
use crate::error::{ExecutorError, Result};
use crate::lane::{LaneClock, ThreadSpawner};
use protocol::Protocol;

/// Moves bytes between two processes, in order.
///
/// # Contract
/// - Nothing waits: what can not be done at once is [`io::ErrorKind::WouldBlock`].
/// - Bytes that are read are those that the other end wrote, in order, from the beginning of this
///   connection; none of an earlier one. A carrier that breaks this, or changes bytes, costs time but no
///   transfer: checksums find it, and the endpoint makes a new connection.
/// - A read of 0 bytes says that the other end has closed the connection; so does any other error.
///
/// [`Pipe`] is the one within a process; `conformance::link` (feature `conformance`) tries the
/// endpoints over a carrier.
pub trait Carrier: Debug + Send {
    /// Begins a connection, or goes on beginning it; true once there is one.
    ///
    /// # Errors
    /// When there is none now; it is tried again.
    fn connect(&mut self) -> io::Result<bool>;

    /// Reads what has come, at most as much as `into` has room for, which is not empty.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when nothing has come, others when the connection is lost.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// Writes some of `from`, which is not empty; how much.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is no room, others when the connection is lost.
    fn write(&mut self, from: &[u8]) -> io::Result<usize>;

    /// Ends the connection, if there is one.
    fn close(&mut self);
}

impl<C: Carrier + ?Sized> Carrier for Box<C> {
    fn connect(&mut self) -> io::Result<bool> {
        (**self).connect()
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (**self).read(into)
    }

    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        (**self).write(from)
    }

    fn close(&mut self) {
        (**self).close();
    }
}

/// How an endpoint works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkOptions {
    /// Bytes that have a checksum together, at most; the lesser of both ends' counts.
    pub chunk: Bytes,
    /// Halves of transfers that an end takes at a time, at least 1.
    pub queue: usize,
    /// How long transfers wait for a connection that was cut, without one being moved on, before they fail. A
    /// connection on which nothing is heard for a quarter of it, and nothing for another quarter after a
    /// question, is cut.
    pub patience: Nanos,
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self { chunk: Bytes::kib(64), queue: 16, patience: Nanos::secs(10) }
    }
}

/// Steps of one poll, so that none takes long.
const STEPS: u32 = 64;
/// How long a thread waits when nothing can be done: while something is under way, and else.
const BUSY_WAIT: Duration = Duration::from_micros(200);
const IDLE_WAIT: Duration = Duration::from_millis(10);

/// One end of a link.
///
/// ```
/// use std::sync::Arc;
///
/// use crossbeam::channel::unbounded;
/// use slicescheduler_executor::arena::{Arena, Region};
/// use slicescheduler_executor::transport::link::{Endpoint, LinkOptions, pipe};
/// use slicescheduler_executor::transport::{Place, Transfer, Transport};
/// use slicescheduler_gmg::id::TransferId;
/// use slicescheduler_gmg::units::{Bytes, Nanos};
///
/// # fn main() -> Result<(), slicescheduler_executor::ExecutorError> {
/// let ((here, there), (sender, events)) = (pipe(256), unbounded());
/// let endpoint = |pipe| Endpoint::new(pipe, Arc::new(|| Nanos::ZERO), LinkOptions::default(), sender.clone());
/// let (mut here, mut there) = (endpoint(here), endpoint(there));
/// let place = || -> Result<_, slicescheduler_executor::ExecutorError> {
///     Ok(Place { memory: Arc::new(Arena::new(Bytes::kib(4))?), region: Region::new(Bytes(0), Bytes::kib(4)) })
/// };
/// // SAFETY: nobody else has these memories.
/// let (out, into) = unsafe { (Transfer::outgoing(TransferId(1), place()?)?, Transfer::incoming(TransferId(1), place()?)?) };
/// assert!(here.submit(out).is_ok() && there.submit(into).is_ok());
/// while here.poll() | there.poll() {}
/// assert!(events.try_iter().take(2).all(|event| event.outcome.is_ok()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Endpoint<C: Carrier> {
    carrier: C,
    connected: bool,
    protocol: Protocol,
    clock: Clock,
    events: Sender<TransferEvent>,
    options: LinkOptions,
    /// Since when there is no connection on which anything was moved on.
    stuck: Option<Nanos>,
    /// When the other end was last heard on this connection, or when that began.
    heard: Nanos,
    /// When it was asked whether it is there, if it was not heard since.
    asked: Option<Nanos>,
}

struct Clock(LaneClock);

impl Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

impl<C: Carrier> Endpoint<C> {
    /// An end that speaks over `carrier` and reports to `events`.
    pub fn new(carrier: C, clock: LaneClock, options: LinkOptions, events: Sender<TransferEvent>) -> Self {
        let chunk = usize::try_from(options.chunk.get()).unwrap_or(usize::MAX).clamp(1, 1 << 24);
        // Every hasher of the standard library has keys of its own.
        let life = RandomState::new().hash_one(0);
        let protocol = Protocol::new(life, chunk);
        Self {
            carrier,
            connected: false,
            protocol,
            clock: Clock(clock),
            events,
            options,
            stuck: None,
            heard: Nanos::ZERO,
            asked: None,
        }
    }

    /// Moves on what can be moved on without waiting; false if nothing can.
    pub fn poll(&mut self) -> bool {
        let now = (self.clock.0)();
        let mut moved = false;
        for _ in 0..STEPS {
            if !self.connected && !self.connect(now) {
                break;
            }
            match self.step(now) {
                Ok(true) => moved = true,
                Ok(false) => break,
                Err(Cut) => {
                    self.cut();
                    moved = true;
                    break;
                }
            }
        }
        self.ask_if_silent(now);
        self.lose_patience(now);
        moved | self.report()
    }

    fn connect(&mut self, now: Nanos) -> bool {
        self.connected = matches!(self.carrier.connect(), Ok(true));
        if self.connected {
            self.protocol.connected();
            (self.heard, self.asked) = (now, None);
        }
        self.connected
    }

    fn cut(&mut self) {
        self.carrier.close();
        self.connected = false;
    }

    /// Sends and receives once; true if either moved a byte.
    fn step(&mut self, now: Nanos) -> Result<bool, Cut> {
        let mut moved = false;
        let outbound = self.protocol.outbound(now);
        if !outbound.is_empty()
            && let Some(count) = done(self.carrier.write(outbound))?
        {
            self.protocol.sent(count);
            moved = true;
        }
        let room = self.protocol.room();
        if !room.is_empty()
            && let Some(count) = done(self.carrier.read(room))?
        {
            self.protocol.received(count, now).map_err(|_| Cut)?;
            (self.heard, self.asked) = (now, None);
            moved = true;
        }
        Ok(moved)
    }

    /// Asks the other end whether it is there when it has been silent, and cuts a connection on which it does not
    /// answer. What came while this end was not polled has been read before.
    fn ask_if_silent(&mut self, now: Nanos) {
        if !self.connected || self.protocol.len() == 0 {
            return;
        }
        let quarter = Nanos(self.options.patience.0 / 4);
        let silent = |since: Nanos| now - since > quarter;
        match self.asked {
            None if silent(self.heard) => {
                self.protocol.ask();
                self.asked = Some(now);
            }
            Some(asked) if silent(asked) => {
                self.stuck.get_or_insert(asked);
                self.cut();
            }
            _ => {}
        }
    }

    fn lose_patience(&mut self, now: Nanos) {
        if self.protocol.left_alone {
            let ended =
                |transfer: &Transfer| ExecutorError::OtherEndFailed { left: transfer.left(), size: transfer.size() };
            self.protocol.give_up(now, ended);
        }
        if self.protocol.has_progressed() || self.protocol.len() == 0 {
            self.stuck = None;
        }
        if !self.connected && self.protocol.len() > 0 {
            self.stuck.get_or_insert(now);
        }
        if let Some(since) = self.stuck
            && now - since > self.options.patience
        {
            let cut = |transfer: &Transfer| ExecutorError::LinkCut { left: transfer.left(), size: transfer.size() };
            self.protocol.give_up(now, cut);
            self.stuck = None;
        }
    }

    fn report(&mut self) -> bool {
        let mut any = false;
        for event in self.protocol.events() {
            // A host that has dropped its receiver does not want to know.
            let _ = self.events.send(event);
            any = true;
        }
        any
    }

    /// Polls on a thread from `threads`, called `name`, which waits 0.2 ms between two polls that could do
    /// nothing, or 10 ms while no transfer is under way.
    ///
    /// # Errors
    /// [`ExecutorError::Spawn`] when there is no thread.
    pub fn on_thread(self, threads: &dyn ThreadSpawner, name: &str) -> Result<Link>
    where
        C: 'static,
    {
        let length = self.options.queue;
        Handle::start(threads, name, length, move |orders| self.work(orders)).map(Link)
    }

    fn work(mut self, orders: Orders) {
        loop {
            let moved = self.poll();
            if orders.ended() {
                break;
            }
            let wait = match self.protocol.len() {
                _ if moved => Duration::ZERO,
                0 => IDLE_WAIT,
                _ => BUSY_WAIT,
            };
            if self.protocol.len() >= self.options.queue.max(1) {
                // What waits in the channel stays there, so that its sender learns that it is full.
                if !wait.is_zero() {
                    std::thread::park_timeout(wait);
                }
                continue;
            }
            match orders.transfers.recv_timeout(wait) {
                Ok(transfer) => self.protocol.submit(transfer),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        // What waits was taken and is reported with the rest.
        orders.transfers.try_iter().for_each(|transfer| self.protocol.submit(transfer));
        // The end of it all is said before whoever waits for the thread is told.
        drop(self);
    }
}

impl<C: Carrier> Transport for Endpoint<C> {
    fn submit(&mut self, transfer: Transfer) -> Result<(), Box<Refused>> {
        if transfer.ends() == Ends::Both {
            return Err(Box::new(Refused { transfer, reason: Refusal::OtherEnds }));
        }
        if self.protocol.len() >= self.options.queue.max(1) {
            return Err(Box::new(Refused { transfer, reason: Refusal::Full }));
        }
        self.protocol.submit(transfer);
        Ok(())
    }
}

impl<C: Carrier> Drop for Endpoint<C> {
    fn drop(&mut self) {
        let now = (self.clock.0)();
        let ended =
            |transfer: &Transfer| ExecutorError::TransportEnded { left: transfer.left(), size: transfer.size() };
        self.protocol.give_up(now, ended);
        self.report();
        if self.connected {
            // As far as it can be said at once; else the other end runs out of patience.
            self.protocol.say_bye();
            for _ in 0..STEPS {
                let outbound = self.protocol.outbound(now);
                if outbound.is_empty() {
                    break;
                }
                match self.carrier.write(outbound) {
                    Ok(count) if count > 0 => self.protocol.sent(count),
                    _ => break,
                }
            }
            self.carrier.close();
        }
    }
}

/// One end of a link, on a thread of its own; see [`Endpoint::on_thread`].
#[derive(Debug)]
pub struct Link(Handle);

impl Transport for Link {
    fn submit(&mut self, transfer: Transfer) -> Result<(), Box<Refused>> {
        if transfer.ends() == Ends::Both {
            return Err(Box::new(Refused { transfer, reason: Refusal::OtherEnds }));
        }
        self.0.submit(transfer)
    }
}

/// The connection is of no use any more.
struct Cut;

/// What was read or written, if it could be at once.
fn done(result: io::Result<usize>) -> Result<Option<usize>, Cut> {
    match result {
        Ok(0) => Err(Cut),
        Ok(count) => Ok(Some(count)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
        Err(_) => Err(Cut),
    }
}
