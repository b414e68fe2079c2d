//! One end against bytes that nobody meant, and both ends by turns on one thread.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crossbeam::channel::{Receiver, unbounded};
use proptest::prelude::*;
use slicescheduler_gmg::id::TransferId;
use slicescheduler_gmg::units::{Bytes, Nanos};

use super::frame::{Frame, HEADER, KINDS, Kind};
use super::protocol::Protocol;
use super::{Carrier, Endpoint, LinkOptions, Pipe, pipe};
use crate::arena::{Arena, Region};
use crate::backend::Memory;
use crate::conformance::Flaky;
use crate::error::ExecutorError;
use crate::lane::LaneClock;
use crate::transport::{Place, Transfer, TransferEvent, Transport};

const CHUNK: usize = 32;
/// Where the places of tests begin, and how long their memories are beyond both sides of them.
const MARGIN: u64 = 64;

fn filled(size: u64, byte: u8) -> Place {
    let memory = Arena::new(Bytes(size + 2 * MARGIN)).unwrap();
    let region = Region::new(Bytes(MARGIN), Bytes(size));
    // SAFETY: nobody else has the memory yet.
    unsafe { memory.write(region.offset, &vec![byte; size as usize]).unwrap() };
    Place { memory: Arc::new(memory), region }
}

/// All bytes of a place's memory, which no transfer uses any more.
fn bytes(place: &Place) -> Vec<u8> {
    let mut bytes = vec![0; place.memory.size().get() as usize];
    // SAFETY: by this function's contract.
    unsafe { place.memory.read(Bytes::ZERO, &mut bytes).unwrap() };
    bytes
}

fn outgoing(id: u64, place: &Place) -> Transfer {
    // SAFETY: tests look at the memory when the transfer has ended.
    unsafe { Transfer::outgoing(TransferId(id), place.clone()).unwrap() }
}

fn incoming(id: u64, place: &Place) -> Transfer {
    // SAFETY: as above.
    unsafe { Transfer::incoming(TransferId(id), place.clone()).unwrap() }
}

fn sealed(frame: Frame, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    bytes.extend(payload);
    frame.seal(&mut bytes);
    bytes
}

/// What the other end says first.
const HELLO: Frame = Frame::new(Kind::Hello, 7, CHUNK as u64, 0);

/// Any bytes, or a frame with a right checksum that says anything about ids that exist or do not.
fn said() -> impl Strategy<Value = Vec<u8>> {
    let number = || prop_oneof![4 => 0u64..120, 1 => any::<u64>()];
    let frame = (prop::sample::select(KINDS.to_vec()), 0u64..5, number(), number(), 0usize..48);
    let frame = frame.prop_map(|(kind, id, offset, size, payload)| {
        let (size, payload) = if kind == Kind::Data { (payload as u64, payload) } else { (size, 0) };
        sealed(Frame::new(kind, id, offset, size), &vec![9; payload])
    });
    prop_oneof![8 => frame, 1 => prop::collection::vec(any::<u8>(), 0..80)]
}

proptest! {
    #[test]
    fn whatever_is_said_memory_is_bounded_and_nothing_outside_of_places_is_written(
        frames in prop::collection::vec(said(), 0..120),
        answers_are_read in any::<bool>(),
    ) {
        let places = [filled(100, 1), filled(0, 1), filled(50, 1)];
        let mut protocol = Protocol::new(1, CHUNK);
        protocol.submit(incoming(0, &places[0]));
        protocol.submit(incoming(1, &places[1]));
        protocol.submit(outgoing(2, &places[2]));
        protocol.connected();
        let mut stream: &[u8] = &[sealed(HELLO, &[]), frames.concat()].concat();
        while !stream.is_empty() {
            while answers_are_read && !protocol.outbound(Nanos(1)).is_empty() {
                let count = protocol.outbound(Nanos(1)).len();
                protocol.sent(count);
            }
            let room = protocol.room();
            if room.is_empty() {
                prop_assert!(!answers_are_read);
                break;
            }
            prop_assert!(room.len() <= HEADER + CHUNK);
            let count = room.len().min(stream.len());
            room[..count].copy_from_slice(&stream[..count]);
            stream = &stream[count..];
            if protocol.received(count, Nanos(1)).is_err() {
                protocol.connected();
                break;
            }
            prop_assert!(protocol.answers() < 80);
        }
        protocol.give_up(Nanos(2), |_| ExecutorError::LaneEnded);
        let ended: Vec<u64> = { let mut ids: Vec<_> = protocol.events().map(|event| event.id.0).collect(); ids.sort(); ids };
        prop_assert_eq!(ended, [0, 1, 2]);
        for place in &places {
            let bytes = bytes(place);
            let (before, rest) = bytes.split_at(MARGIN as usize);
            let (inside, behind) = rest.split_at(place.region.size.get() as usize);
            prop_assert!(before.iter().chain(behind).all(|&byte| byte == 0));
            prop_assert!(inside.iter().all(|&byte| byte == 1 || byte == 9));
        }
        prop_assert!(bytes(&places[2])[MARGIN as usize..][..50].iter().all(|&byte| byte == 1), "a source is only read");
    }

    /// Both ends by turns: every transfer arrives, whatever is cut and turned, as long as a connection
    /// lives for all that must be said anew and a chunk.
    #[test]
    fn transfers_arrive_over_any_disturbed_pipe(
        seed in any::<u64>(),
        capacity in 1usize..300,
        cut_every in 2000u64..6000,
        chunks in (16u64..80, 16u64..80),
        sizes in prop::collection::vec(0u64..2000, 1..6),
        late in any::<bool>(),
    ) {
        let (sender, events) = unbounded();
        let end = |pipe, seed, chunk| {
            let flaky = Flaky::new(pipe, Bytes(cut_every), Bytes(cut_every * 2), seed);
            let options = LinkOptions { chunk: Bytes(chunk), queue: 8, patience: Nanos::MAX };
            Endpoint::new(flaky, Arc::new(|| Nanos(1)), options, sender.clone())
        };
        let (a, b) = pipe(capacity);
        let (mut a, mut b) = (end(a, seed, chunks.0), end(b, seed.rotate_left(7), chunks.1));
        let places: Vec<_> = sizes.iter().map(|&size| (filled(size, 5), filled(size, 0))).collect();
        for (id, (from, _)) in (0..).zip(&places) {
            prop_assert!(a.submit(outgoing(id, from)).is_ok());
        }
        if late {
            while a.poll() | b.poll() {}
        }
        for (id, (_, to)) in (0..).zip(&places).collect::<Vec<_>>().into_iter().rev() {
            prop_assert!(b.submit(incoming(id, to)).is_ok());
        }
        let mut ended = 0;
        for _ in 0..100_000 {
            a.poll();
            b.poll();
            for event in events.try_iter() {
                prop_assert!(event.outcome.is_ok(), "{event:?}");
                ended += 1;
            }
            if ended == 2 * places.len() {
                break;
            }
        }
        prop_assert_eq!(ended, 2 * places.len());
        for (from, to) in &places {
            prop_assert_eq!(bytes(from), bytes(to));
        }
    }
}

/// A carrier that never has a connection.
#[derive(Debug)]
struct Nowhere;

impl Carrier for Nowhere {
    fn connect(&mut self) -> std::io::Result<bool> {
        Err(std::io::ErrorKind::ConnectionRefused.into())
    }
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::NotConnected.into())
    }
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::NotConnected.into())
    }
    fn close(&mut self) {}
}

#[test]
fn a_transfer_without_a_link_fails_when_patience_ends() {
    let (sender, events) = unbounded();
    let now = Arc::new(AtomicU64::new(0));
    let reading = now.clone();
    let clock = Arc::new(move || Nanos(reading.load(Relaxed)));
    let mut end = Endpoint::new(Nowhere, clock, LinkOptions::default(), sender);
    assert!(end.submit(outgoing(1, &filled(10, 1))).is_ok());
    end.poll();
    now.store(Nanos::secs(10).0, Relaxed);
    end.poll();
    assert!(events.try_recv().is_err());
    now.store(Nanos::secs(10).0 + 1, Relaxed);
    end.poll();
    let error = events.try_recv().unwrap().outcome.unwrap_err();
    assert_eq!(error.to_string(), "the link was cut and did not come back, 10 B of a transfer of 10 B were not moved");
}

#[test]
fn any_bit_that_is_turned_is_found_by_the_bytes_that_were_sent() {
    let place = filled(4, 1);
    let data = sealed(Frame::new(Kind::Data, 0, 0, 4), &[9; 4]);
    let heard = |data: &[u8]| {
        let mut protocol = Protocol::new(1, CHUNK);
        protocol.submit(incoming(0, &place));
        protocol.connected();
        let mut stream: &[u8] = &[&sealed(HELLO, &[]), data].concat();
        while !stream.is_empty() {
            let room = protocol.room();
            let count = room.len().min(stream.len());
            room[..count].copy_from_slice(&stream[..count]);
            stream = &stream[count..];
            protocol.received(count, Nanos(1))?;
        }
        Ok::<_, super::frame::Broken>(protocol.len())
    };
    assert_eq!(heard(&data), Ok(0), "as it was sent, it ends the transfer");
    for bit in 0..data.len() * 8 {
        let mut turned = data.clone();
        turned[bit / 8] ^= 1 << (bit % 8);
        assert!(heard(&turned).is_err(), "bit {bit}");
    }
}

/// A carrier whose connection seems to live while nothing comes through: what is written is lost.
#[derive(Debug)]
struct Mute {
    pipe: Pipe,
    mute: Arc<AtomicBool>,
}

impl Carrier for Mute {
    fn connect(&mut self) -> std::io::Result<bool> {
        self.pipe.connect()
    }
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.pipe.read(into)
    }
    fn write(&mut self, from: &[u8]) -> std::io::Result<usize> {
        if self.mute.load(Relaxed) { Ok(from.len()) } else { self.pipe.write(from) }
    }
    fn close(&mut self) {
        self.pipe.close();
    }
}

/// Two ends by turns at times of the test's own, the second of which can be made mute.
struct Pair {
    a: Endpoint<Pipe>,
    b: Endpoint<Mute>,
    events: Receiver<TransferEvent>,
    now: Arc<AtomicU64>,
    mute: Arc<AtomicBool>,
    places: (Place, Place),
}

const PATIENCE: Nanos = Nanos(1000);

impl Pair {
    fn new() -> Self {
        let (sender, events) = unbounded();
        let (now, mute) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let reading = now.clone();
        let clock: LaneClock = Arc::new(move || Nanos(reading.load(Relaxed)));
        let options = LinkOptions { chunk: Bytes(CHUNK as u64), queue: 8, patience: PATIENCE };
        let (a, b) = pipe(100);
        let a = Endpoint::new(a, clock.clone(), options, sender.clone());
        let b = Endpoint::new(Mute { pipe: b, mute: mute.clone() }, clock, options, sender);
        Self { a, b, events, now, mute, places: (filled(100, 5), filled(100, 0)) }
    }

    /// Both ends do what they can, again and again, while `time` passes.
    fn pass(&mut self, time: Nanos) {
        for _ in 0..time.0 {
            self.now.fetch_add(1, Relaxed);
            while self.a.poll() | self.b.poll() {}
        }
    }

    fn send(&mut self) {
        assert!(self.a.submit(outgoing(1, &self.places.0)).is_ok());
    }

    fn take(&mut self) {
        assert!(self.b.submit(incoming(1, &self.places.1)).is_ok());
    }

    fn arrives(&mut self) {
        self.pass(Nanos(1));
        let ended: Vec<_> = self.events.try_iter().collect();
        assert!(ended.len() == 2 && ended.iter().all(|event| event.outcome.is_ok()), "{ended:?}");
        assert_eq!(bytes(&self.places.0), bytes(&self.places.1));
    }
}

#[test]
fn half_of_a_transfer_waits_as_long_as_the_other_end_answers() {
    let mut pair = Pair::new();
    pair.send();
    pair.pass(Nanos(20 * PATIENCE.0));
    assert!(pair.events.is_empty());
    pair.take();
    pair.arrives();
}

#[test]
fn half_of_a_transfer_waits_after_a_cut_too() {
    let mut pair = Pair::new();
    pair.send();
    pair.pass(PATIENCE);
    pair.b.carrier.close();
    pair.b.connected = false;
    pair.pass(Nanos(20 * PATIENCE.0));
    assert!(pair.events.is_empty());
    pair.take();
    pair.arrives();
}

#[test]
fn an_end_that_is_silent_on_a_connection_that_lives_is_given_up() {
    let mut pair = Pair::new();
    pair.send();
    // Longer than a quarter of patience, so that an answer has been heard.
    pair.pass(Nanos(300));
    pair.mute.store(true, Relaxed);
    // It was heard at most a quarter ago; a quarter after that it is asked, and then patience begins.
    pair.pass(PATIENCE);
    assert!(pair.events.is_empty());
    pair.pass(Nanos(PATIENCE.0 / 4 + 10));
    let error = pair.events.try_recv().unwrap().outcome.unwrap_err();
    assert!(matches!(error, ExecutorError::LinkCut { left: Bytes(100), size: Bytes(100) }), "{error}");
}

#[test]
fn an_end_that_was_silent_for_a_while_costs_time_only() {
    let mut pair = Pair::new();
    pair.send();
    pair.pass(Nanos(300));
    pair.mute.store(true, Relaxed);
    pair.take();
    pair.pass(Nanos(PATIENCE.0 * 3 / 4));
    assert!(pair.events.is_empty());
    pair.mute.store(false, Relaxed);
    // What was lost is asked for anew on the connection after the one that is cut.
    pair.pass(Nanos(PATIENCE.0 / 2 + 2));
    pair.arrives();
}

#[test]
fn an_end_that_takes_no_bytes_at_a_time_is_none() {
    let mut protocol = Protocol::new(1, CHUNK);
    protocol.connected();
    let hello = sealed(Frame::new(Kind::Hello, 7, 0, 0), &[]);
    protocol.room()[..HEADER].copy_from_slice(&hello);
    assert!(protocol.received(HEADER, Nanos(1)).is_err());
}
