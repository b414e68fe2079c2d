//! Both ends of a link.

use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use crossbeam::channel::{Receiver, Sender, unbounded};
use slicescheduler_gmg::id::TransferId;
use slicescheduler_gmg::units::Bytes;

use super::{LIMIT, Violation, hold, place, received, succeed};
use crate::error::Result;
use crate::transport::link::Carrier;
use crate::transport::{Place, Refusal, Transfer, TransferEvent, Transport};

/// Transfers, in both directions by turns, and their sizes.
const TRANSFERS: u64 = 20;
const SIZES: [usize; 5] = [1000, 0, 1, 7777, 2000];

/// Checks the two ends of a link, made by `start` to report to the two senders that it is given. Over a
/// [`Flaky`] carrier, the same holds.
///
/// # Errors
/// What they do against the contract of [`Transport`] or what [`link`](crate::transport::link) says.
pub fn link<A: Transport + 'static, B: Transport + 'static>(
    start: impl FnOnce(Sender<TransferEvent>, Sender<TransferEvent>) -> Result<(A, B)>,
) -> Result<(), Violation> {
    let ((send_a, events_a), (send_b, events_b)) = (unbounded(), unbounded());
    let (a, b) = succeed(start(send_a, send_b), "a link can be started")?;
    let mut ends = [End::new(a, events_a), End::new(b, events_b)];
    move_everything(&mut ends)?;
    sizes_must_agree(&mut ends)?;
    let [mut a, b] = ends;
    let taken = fill(&mut a)?;
    drop(b);
    for _ in 0..taken {
        let event = received(&a.events, "every transfer is reported when the other end is gone")?;
        hold(event.outcome.is_err(), "a transfer that was not moved is reported as failed", &event)?;
    }
    drop(a.transport);
    hold(a.events.try_recv().is_err(), "a transfer is reported once", "more events")
}

struct End {
    transport: Box<dyn Transport>,
    events: Receiver<TransferEvent>,
    waiting: VecDeque<Transfer>,
}

impl End {
    fn new(transport: impl Transport + 'static, events: Receiver<TransferEvent>) -> Self {
        Self { transport: Box::new(transport), events, waiting: VecDeque::new() }
    }

    /// Submits what there is room for.
    fn feed(&mut self) -> Result<(), Violation> {
        while let Some(transfer) = self.waiting.pop_front() {
            if let Err(refused) = self.transport.submit(transfer) {
                hold(refused.reason == Refusal::Full, "an end that lives takes halves", refused.reason)?;
                self.waiting.push_front(refused.transfer);
                break;
            }
        }
        Ok(())
    }
}

/// The two halves of a transfer.
fn halves(id: u64, from: &Place, to: &Place) -> Result<(Transfer, Transfer), Violation> {
    // SAFETY: the memories are this suite's, which looks at them again after both halves were reported.
    let halves = unsafe {
        Transfer::outgoing(TransferId(id), from.clone())
            .and_then(|out| Ok((out, Transfer::incoming(TransferId(id), to.clone())?)))
    };
    succeed(halves, "halves of a transfer can be made")
}

/// Feeds both ends until as many events have come from each as it has halves.
fn run(ends: &mut [End; 2], halves: usize) -> Result<[Vec<TransferEvent>; 2], Violation> {
    let mut events = [Vec::new(), Vec::new()];
    let begun = Instant::now();
    while events.iter().any(|events| events.len() < halves) {
        for (end, events) in ends.iter_mut().zip(&mut events) {
            end.feed()?;
            events.extend(end.events.try_iter());
        }
        let counts = [events[0].len(), events[1].len()];
        hold(begun.elapsed() < LIMIT, "both halves of every transfer are reported", counts)?;
        std::thread::yield_now();
    }
    Ok(events)
}

fn move_everything(ends: &mut [End; 2]) -> Result<(), Violation> {
    let mut places = Vec::new();
    for id in 0..TRANSFERS {
        let size = SIZES[id as usize % SIZES.len()];
        let bytes: Vec<u8> = (0..size).map(|index| (index as u64 * 31 + id) as u8).collect();
        let (from, to) = (place(&bytes)?, place(&vec![0; size])?);
        let (out, into) = halves(id, &from, &to)?;
        let source = id as usize % 2;
        ends[source].waiting.push_back(out);
        ends[1 - source].waiting.push_back(into);
        places.push((to, bytes));
    }
    for events in run(ends, places.len())? {
        let mut reported = vec![false; places.len()];
        for event in events {
            let index = event.id.0 as usize;
            let whole = event.moved == Bytes(places[index].1.len() as u64);
            hold(!reported[index] && whole, "a half is reported once, moved as a whole", &event)?;
            reported[index] = true;
            succeed(event.outcome, "a transfer between memories that work succeeds")?;
        }
    }
    for (to, bytes) in &places {
        let mut found = vec![0; bytes.len()];
        // SAFETY: all transfers were reported.
        succeed(unsafe { to.memory.read(to.region.offset, &mut found) }, "a memory can be read")?;
        hold(found == *bytes, "whoever has the event sees the bytes", "other bytes")?;
    }
    Ok(())
}

fn sizes_must_agree(ends: &mut [End; 2]) -> Result<(), Violation> {
    let (long, short) = (place(&[1; 100])?, place(&[0; 99])?);
    let ids = [TRANSFERS, TRANSFERS + 1];
    let (out, _) = halves(ids[0], &long, &long)?;
    let (_, into) = halves(ids[0], &short, &short)?;
    ends[0].waiting.push_back(out);
    ends[1].waiting.push_back(into);
    for event in run(ends, 1)?.into_iter().flatten() {
        hold(event.outcome.is_err(), "halves of different sizes fail", &event)?;
    }
    let target = place(&[0; 100])?;
    let (out, into) = halves(ids[1], &long, &target)?;
    ends[0].waiting.push_back(out);
    ends[1].waiting.push_back(into);
    for event in run(ends, 1)?.into_iter().flatten() {
        succeed(event.outcome, "a transfer that fails is the only one")?;
    }
    Ok(())
}

/// Submits halves that nobody wants until there is no more room; how many were taken.
fn fill(end: &mut End) -> Result<u64, Violation> {
    let source = place(&[1; 10])?;
    let mut taken = 0;
    while taken < 100_000 {
        let (out, _) = halves(TRANSFERS + 2 + taken, &source, &source)?;
        match end.transport.submit(out) {
            Ok(()) => taken += 1,
            Err(refused) => {
                hold(refused.reason == Refusal::Full, "an end that lives takes halves", refused.reason)?;
                return Ok(taken);
            }
        }
    }
    Err(Violation { rule: "an end takes a bounded number of halves", found: taken.to_string() })
}

/// A carrier whose connection is cut, and whose bits are turned, every so many bytes that are read.
#[derive(Debug)]
pub struct Flaky<C> {
    carrier: C,
    cut_every: u64,
    turn_every: u64,
    until_cut: u64,
    until_turn: u64,
    state: u64,
}

impl<C: Carrier> Flaky<C> {
    /// Disturbs `carrier` about every `cut_every` and `turn_every` bytes, as `seed` says.
    pub fn new(carrier: C, cut_every: Bytes, turn_every: Bytes, seed: u64) -> Self {
        let (cut_every, turn_every) = (cut_every.get().max(1), turn_every.get().max(1));
        Self { carrier, cut_every, turn_every, until_cut: cut_every, until_turn: turn_every, state: seed | 1 }
    }

    /// Between half and one and a half times `mean`, at least 1.
    fn draw(&mut self, mean: u64) -> u64 {
        // xorshift64 (Marsaglia, Journal of Statistical Software 8, 2003).
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (mean / 2 + self.state % mean).max(1)
    }
}

impl<C: Carrier> Carrier for Flaky<C> {
    fn connect(&mut self) -> io::Result<bool> {
        self.carrier.connect()
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.until_cut == 0 {
            self.until_cut = self.draw(self.cut_every);
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let room = into.len().min(usize::try_from(self.until_cut).unwrap_or(usize::MAX));
        let count = self.carrier.read(&mut into[..room])?;
        self.until_cut -= count as u64;
        if count as u64 >= self.until_turn {
            let (at, bit) = (self.until_turn as usize - 1, self.state % 8);
            into[at] ^= 1 << bit;
            self.until_turn = self.draw(self.turn_every);
        } else {
            self.until_turn -= count as u64;
        }
        Ok(count)
    }

    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.carrier.write(from)
    }

    fn close(&mut self) {
        self.carrier.close();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use slicescheduler_gmg::units::Nanos;

    use super::*;
    use crate::lane::StdThreads;
    use crate::transport::link::{Endpoint, LinkOptions, pipe};

    /// Starts both ends on threads, each over its carrier as it is, then as a flaky one.
    fn conforms<C: Carrier + 'static>(carriers: impl Fn() -> (C, C)) {
        let begun = Instant::now();
        let clock = Arc::new(move || Nanos::from(begun.elapsed()));
        let options = LinkOptions { chunk: Bytes(700), queue: 3, patience: Nanos::secs(2) };
        let on_thread = |sender, carrier: Box<dyn Carrier>, name| {
            Endpoint::new(carrier, clock.clone(), options, sender).on_thread(&StdThreads, name)
        };
        for (cut, turn) in [(u64::MAX, u64::MAX), (9000, 14_000)] {
            let start = |to_a, to_b| {
                let (a, b) = carriers();
                let a = Flaky::new(a, Bytes(cut), Bytes(turn), 5);
                let b = Flaky::new(b, Bytes(cut), Bytes(turn), 6);
                Ok((on_thread(to_a, Box::new(a), "a")?, on_thread(to_b, Box::new(b), "b")?))
            };
            assert_eq!(link(start), Ok(()), "cut every {cut} bytes");
        }
    }

    #[test]
    fn links_over_a_pipe_conform_cut_and_corrupted_too() {
        conforms(|| pipe(300));
    }

    #[cfg(feature = "tcp")]
    #[test]
    fn links_over_tcp_conform_cut_and_corrupted_too() {
        use crate::transport::tcp::Tcp;
        conforms(|| {
            let a = Tcp::listen(([127, 0, 0, 1], 0).into()).unwrap();
            let b = Tcp::connect_to(a.address().unwrap());
            (a, b)
        });
    }

    #[cfg(feature = "shared-memory")]
    #[test]
    fn links_over_shared_memory_conform_cut_and_corrupted_too() {
        use crate::transport::shared_memory::SharedMemory;
        let path = std::env::temp_dir().join(format!("slicescheduler-link-{}", std::process::id()));
        conforms(|| {
            let a = SharedMemory::create(&path, Bytes::kib(4)).unwrap();
            (a, SharedMemory::open(&path).unwrap())
        });
        std::fs::remove_file(path).unwrap();
    }
}
