//! Weights that move between devices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::channel::Sender;
use slicescheduler_executor::ExecutorError;
use slicescheduler_executor::cpu_world::CpuWorldOptions;
use slicescheduler_executor::lane::{LaneClock, StdThreads, ThreadSpawner};
use slicescheduler_executor::transport::{Refusal, Refused, StartTransport, Transfer, TransferEvent, Transport};
use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::{DeviceId, LaneId, TransferId};
use slicescheduler_gmg::plan::{Action, Event, Rank, Source};
use slicescheduler_gmg::units::Nanos;

use crate::rig::{Rig, alone, prompt};

#[test]
fn a_guest_whose_weights_were_fetched_gives_the_tokens_that_it_gives_at_home() {
    let expected = alone(0, &prompt(7, 11), 4);
    let (own, guest) = (DeviceId(0), DeviceId(1));
    let mut rig = Rig::new();
    let model = rig.models[0];
    for source in [Source::Host, Source::Device(own)] {
        rig.act(Action::Prefetch { model, device: guest, source });
        assert!(!rig.gmg.view().is_resident(model, guest));
        let loaded = rig.event();
        assert!(matches!(loaded, Event::WeightsLoaded { model: m, device, .. } if m == model && device == guest));
        let request = rig.request(0, &prompt(7, 11), 4);
        while !rig.has_ended(request) {
            let spec = rig.iteration(&[(request, 5)]);
            rig.launch(spec, LaneId::new(guest, 1), Rank::GuestLatency);
            rig.event();
        }
        assert_eq!(rig.world.tokens(request), expected);
        rig.act(Action::EvictWeights { model, device: guest });
    }
    rig.assert_empty();
}

/// The slot that is copied is given to another model before the copy has started or ended.
#[test]
fn a_slot_that_is_evicted_while_it_is_copied_gives_its_bytes_first() {
    let (own, guest) = (DeviceId(0), DeviceId(1));
    let mut rig = Rig::new();
    let (mine, others) = (rig.models[0], rig.models[1]);
    rig.act(Action::Prefetch { model: mine, device: guest, source: Source::Device(own) });
    rig.act(Action::EvictWeights { model: mine, device: own });
    rig.act(Action::Prefetch { model: others, device: own, source: Source::Device(guest) });
    let mut loaded = Vec::new();
    while loaded.len() < 2 {
        loaded.extend(rig.events());
    }
    for (tenant, device) in [(0, guest), (1, own)] {
        let request = rig.request(tenant, &prompt(2, 5), 3);
        while !rig.has_ended(request) {
            let spec = rig.iteration(&[(request, u32::MAX)]);
            rig.launch(spec, LaneId::new(device, 0), Rank::GuestLatency);
            rig.event();
        }
        assert_eq!(rig.world.tokens(request), alone(tenant, &prompt(2, 5), 3));
    }
}

/// What a transport of a host does with a transfer.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Moves it in pieces of seven bytes, and writes another name over the event's.
    Moves,
    /// Says that it was moved.
    Claims,
    /// Has no room, ever.
    Refuses,
    /// Ends without a word.
    Forgets,
}

/// A transport of a host: it works when it is given something, without a thread.
#[derive(Debug)]
struct Own {
    way: Way,
    transfers: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Started {
    way: Way,
    transfers: Arc<AtomicU64>,
    events: Option<Sender<TransferEvent>>,
}

impl StartTransport for Own {
    fn start(
        &self,
        _: &dyn ThreadSpawner,
        _: LaneClock,
        events: Sender<TransferEvent>,
    ) -> slicescheduler_executor::Result<Box<dyn Transport>> {
        Ok(Box::new(Started { way: self.way, transfers: self.transfers.clone(), events: Some(events) }))
    }
}

impl Transport for Started {
    fn submit(&mut self, mut transfer: Transfer) -> Result<(), Box<Refused>> {
        if matches!(self.way, Way::Refuses) {
            return Err(Box::new(Refused { transfer, reason: Refusal::Full }));
        }
        self.transfers.fetch_add(1, Ordering::Relaxed);
        while matches!(self.way, Way::Moves) && !transfer.left().is_zero() {
            transfer.copy_chunk(&mut [0; 7]).unwrap();
        }
        if matches!(self.way, Way::Forgets) {
            self.events = None;
            return Ok(());
        }
        let mut event = transfer.end(Nanos(1), Nanos(2), Ok(()));
        event.id = TransferId(999);
        self.events.as_ref().unwrap().send(event).unwrap();
        Ok(())
    }
}

/// A rig whose weights are loaded in such a way, and how many transfers it was given.
fn with_transport(way: Way) -> (Result<Rig, ExecutorError>, Arc<AtomicU64>) {
    let transfers = Arc::new(AtomicU64::new(0));
    let transport = Arc::new(Own { way, transfers: transfers.clone() });
    (Rig::with(CpuWorldOptions { transport, ..CpuWorldOptions::default() }, &StdThreads), transfers)
}

#[test]
fn weights_come_by_the_transport_of_a_host() {
    let (rig, transfers) = with_transport(Way::Moves);
    let mut rig = rig.unwrap();
    assert_eq!(transfers.load(Ordering::Relaxed), 2, "both tenants' at home");
    let (model, guest) = (rig.models[0], DeviceId(1));
    rig.act(Action::Prefetch { model, device: guest, source: Source::Device(DeviceId(0)) });
    assert!(matches!(rig.event(), Event::WeightsLoaded { device, .. } if device == guest));
    assert_eq!(transfers.load(Ordering::Relaxed), 3);
    let request = rig.request(0, &prompt(3, 9), 4);
    while !rig.has_ended(request) {
        let spec = rig.iteration(&[(request, u32::MAX)]);
        rig.launch(spec, LaneId::new(guest, 0), Rank::GuestLatency);
        rig.event();
    }
    assert_eq!(rig.world.tokens(request), alone(0, &prompt(3, 9), 4));
}

#[test]
fn a_transport_that_breaks_its_contract_makes_no_world_of_wrong_weights() {
    let (claims, transfers) = with_transport(Way::Claims);
    assert!(matches!(claims.err(), Some(ExecutorError::DeviceLost(_))));
    assert!(transfers.load(Ordering::Relaxed) >= 3, "it is tried again");
    let (refuses, _) = with_transport(Way::Refuses);
    assert!(matches!(refuses.err(), Some(ExecutorError::NoRoomForTransfers { .. })));
    let (forgets, _) = with_transport(Way::Forgets);
    assert!(matches!(forgets.err(), Some(ExecutorError::TransportEnded { .. })));
}
