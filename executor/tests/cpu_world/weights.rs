//! Weights that move between devices.

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::{DeviceId, LaneId};
use slicescheduler_gmg::plan::{Action, Event, Rank, Source};

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
