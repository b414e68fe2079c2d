//! Sequences that move from one world to another in the middle of their answer, over links between processes.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::{Receiver, unbounded};
use slicescheduler_executor::ExecutorError;
use slicescheduler_executor::conformance::Flaky;
use slicescheduler_executor::cpu_world::{IncomingKv, KvCopy};
use slicescheduler_executor::lane::StdThreads;
use slicescheduler_executor::model::CpuModel;
use slicescheduler_executor::transport::link::{Carrier, Endpoint, Link, LinkOptions, Pipe, pipe};
use slicescheduler_executor::transport::shared_memory::SharedMemory;
use slicescheduler_executor::transport::tcp::Tcp;
use slicescheduler_executor::transport::{TransferEvent, Transport};
use slicescheduler_gmg::id::{DeviceId, LaneId, RequestId, TransferId};
use slicescheduler_gmg::plan::Rank;
use slicescheduler_gmg::templates::{DenseSpec, dense};
use slicescheduler_gmg::units::{Bytes, Nanos};

use crate::rig::{BLOCK_TOKENS, Rig, alone, prompt, weights};

const NAME: TransferId = TransferId(4);
const OUTPUT: u32 = 14;

fn end<C: Carrier + 'static>(carrier: C, patience: Nanos) -> (Link, Receiver<TransferEvent>) {
    let (sender, events) = unbounded();
    let options = LinkOptions { chunk: Bytes(256), patience, ..LinkOptions::default() };
    let started = std::time::Instant::now();
    let clock = Arc::new(move || started.elapsed().into());
    (Endpoint::new(carrier, clock, options, sender).on_thread(&StdThreads, "link").unwrap(), events)
}

fn ended(events: &Receiver<TransferEvent>) -> Result<(), ExecutorError> {
    let event = events.recv_timeout(Duration::from_secs(20)).expect("a transfer ends");
    assert_eq!(event.id, NAME);
    event.outcome
}

/// Computes one iteration of a request.
fn step(rig: &mut Rig, request: RequestId) {
    let spec = rig.iteration(&[(request, 8)]);
    rig.launch(spec, LaneId::new(DeviceId(0), 0), Rank::OwnerLatency);
    rig.event();
}

/// A world in which a request has answered a part, and what was kept of it.
fn source() -> (Rig, RequestId, KvCopy) {
    let mut rig = Rig::new();
    let request = rig.request(0, &prompt(5, 19), OUTPUT);
    rig.keep(request);
    while rig.world.tokens(request).len() < 5 {
        step(&mut rig, request);
    }
    let copy = rig.world.kept_kv(request).unwrap();
    (rig, request, copy)
}

fn room(tokens: u32) -> IncomingKv {
    let spec = DenseSpec::tiny();
    let model = CpuModel::decoder(&spec, dense(&spec).unwrap().into(), &weights(0)).unwrap();
    IncomingKv::new(&model, BLOCK_TOKENS, tokens).unwrap()
}

/// Moves a sequence over a link; while its bytes are under way, the source computes others.
fn move_over<A: Carrier + 'static, B: Carrier + 'static>(here: A, there: B) {
    let (mut rig, request, copy) = source();
    let tokens = copy.tokens();
    assert_eq!(tokens, 20, "19 of the prompt and 4 of the answer make five whole blocks");
    let ((mut here, sent), (mut there, received)) = (end(here, Nanos::secs(15)), end(there, Nanos::secs(15)));
    let incoming = room(tokens);
    // SAFETY: it is said to have arrived below, after the event.
    let into = unsafe { incoming.incoming(NAME) }.unwrap();
    assert!(here.submit(copy.outgoing(NAME, tokens).unwrap()).is_ok() && there.submit(into).is_ok());
    let neighbour = rig.request(0, &prompt(6, 11), 6);
    rig.run_alone(neighbour);
    ended(&sent).unwrap();
    ended(&received).unwrap();
    assert_eq!(rig.world.tokens(neighbour), alone(0, &prompt(6, 11), 6));

    let answered = rig.world.tokens(request).to_vec();
    let mut known = prompt(5, 19);
    known.extend(&answered);
    let mut other = Rig::new();
    let moved = other.request(0, &known, OUTPUT - answered.len() as u32);
    other.adopt(moved, incoming.arrived(), tokens);
    assert_eq!(other.remaining(moved), 4, "what was in no whole block");
    other.run_alone(moved);
    let whole = [&answered[..], other.world.tokens(moved)].concat();
    assert_eq!(whole, alone(0, &prompt(5, 19), OUTPUT));
}

#[test]
fn a_sequence_moves_over_tcp_and_its_answer_goes_on() {
    let listening = Tcp::listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let connecting = Tcp::connect_to(listening.address().unwrap());
    move_over(listening, connecting);
}

#[test]
fn a_sequence_moves_over_shared_memory_and_its_answer_goes_on() {
    let path = std::env::temp_dir().join(format!("slicescheduler-moves-{}", std::process::id()));
    let created = SharedMemory::create(&path, Bytes::kib(64)).unwrap();
    let opened = SharedMemory::open(&path).unwrap();
    move_over(created, opened);
    std::fs::remove_file(path).unwrap();
}

/// What is cut goes on, and what is turned is sent again.
#[test]
fn a_sequence_moves_over_a_link_that_is_cut_and_corrupted() {
    let (here, there) = pipe(512);
    move_over(here, Flaky::new(there, Bytes(3000), Bytes(2000), 5));
}

/// A carrier that breaks after so many bytes, for good.
#[derive(Debug)]
struct Breaks(Pipe, usize);

impl Carrier for Breaks {
    fn connect(&mut self) -> io::Result<bool> {
        if self.1 == 0 { Err(io::ErrorKind::ConnectionRefused.into()) } else { self.0.connect() }
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let room = into.len().min(self.1);
        if room == 0 {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let count = self.0.read(&mut into[..room])?;
        self.1 -= count;
        Ok(count)
    }

    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.0.write(from)
    }

    fn close(&mut self) {
        self.0.close();
    }
}

#[test]
fn a_sequence_whose_move_is_cut_goes_on_where_it_was() {
    let (mut rig, request, copy) = source();
    let (tokens, patience) = (copy.tokens(), Nanos::ms(50));
    let (here, there) = pipe(512);
    let ((mut here, sent), (mut there, received)) = (end(here, patience), end(Breaks(there, 2000), patience));
    let incoming = room(tokens);
    // SAFETY: it never is said to have arrived.
    let into = unsafe { incoming.incoming(NAME) }.unwrap();
    let out = copy.outgoing(NAME, tokens).unwrap();
    assert!(out.size() > Bytes(4000), "it is cut before its half");
    assert!(here.submit(out).is_ok() && there.submit(into).is_ok());
    for failed in [ended(&sent).unwrap_err(), ended(&received).unwrap_err()] {
        assert!(matches!(failed, ExecutorError::LinkCut { .. }), "{failed:?}");
    }
    rig.run_alone(request);
    assert_eq!(rig.world.tokens(request), alone(0, &prompt(5, 19), OUTPUT));
}
