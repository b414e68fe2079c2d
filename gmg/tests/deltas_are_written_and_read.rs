//! The serialized form of deltas and of whole versions: what it looks like, and that it comes back.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

mod support;

use std::sync::Arc;

use proptest::prelude::*;
use slicescheduler_gmg::delta::NewRequest;
use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::id::{DeviceId, RequestId, TenantId};
use slicescheduler_gmg::plan::Event;
use slicescheduler_gmg::tenant::Slo;
use slicescheduler_gmg::units::Nanos;
use slicescheduler_gmg::wire::{self, LogReader, WireError};
use slicescheduler_gmg::{Delta, Durability, Gmg, GmgView, Intent};
use support::digest::digest;
use support::stream::{Stream, steps};
use support::{chain, diamond};

fn templates() -> Vec<Arc<OpGraph>> {
    vec![chain(), diamond()]
}

/// The deltas of a stream that were applied, with the graph that they made.
fn history(steps: Vec<support::stream::Step>) -> (Gmg, Vec<Delta>) {
    streamed(steps, &mut Stream::default())
}

fn streamed(steps: Vec<support::stream::Step>, stream: &mut Stream) -> (Gmg, Vec<Delta>) {
    let mut gmg = support::gmg();
    let mut applied = Vec::new();
    for step in steps {
        let delta = stream.next(step, gmg.state());
        if let Ok(done) = gmg.apply(delta) {
            stream.note(&done.effect);
            applied.push(done.delta);
        }
    }
    (gmg, applied)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_record_is_what_postcard_says_it_is() {
    // Version 1; an intent, the third kind of it; the fields as variable-length numbers of 7 bits each,
    // the lowest first.
    let request = NewRequest { tenant: TenantId(1), arrival: Nanos(5), prompt: 300, max_output: 2 };
    let record = wire::to_bytes(&Intent::Submit(request).into()).unwrap();
    assert_eq!(record, [1, 0, 2, 1, 5, 0xac, 0x02, 2]);
    // The kind with the number 27.
    let own = Intent::SetSlo { request: RequestId(4), slo: Slo { ttft: Nanos(1000), tpot: Nanos(5) } };
    assert_eq!(wire::to_bytes(&own.into()).unwrap(), [1, 0, 27, 4, 0x80 | 104, 7, 5]);
    // An observation, the thirteenth kind; 1000 is 7 * 128 + 104.
    let lost = Event::DeviceLost { device: DeviceId(3), at: Nanos(1000) };
    assert_eq!(wire::to_bytes(&lost.into()).unwrap(), [1, 1, 12, 3, 0x80 | 104, 7]);
}

/// Every line of the file is one delta, in both forms. The file is written once per version: where
/// this fails, the form has changed and needs a new one.
#[test]
fn version_1_reads_and_writes_what_it_always_did() {
    let templates = templates();
    let golden = include_str!("golden/deltas-v1.txt");
    let mut lines = 0;
    for line in golden.lines().filter(|line| !line.starts_with('#')) {
        let (bytes, json) = line.split_once(' ').unwrap();
        let delta = wire::from_json(json, &templates[..]).unwrap();
        assert_eq!(hex(&wire::to_bytes(&delta).unwrap()), bytes, "{json}");
        assert_eq!(wire::to_json(&delta).unwrap(), json);
        let raw: Vec<u8> =
            (0..bytes.len() / 2).map(|at| u8::from_str_radix(&bytes[2 * at..2 * at + 2], 16).unwrap()).collect();
        let delta = wire::from_bytes(&raw, &templates[..]).unwrap();
        assert_eq!(wire::to_json(&delta).unwrap(), json);
        lines += 1;
    }
    assert!(lines >= 30, "{lines} samples");
}

#[test]
fn another_version_is_refused_whatever_follows() {
    let templates = templates();
    for record in [&[2u8, 0, 2, 1, 5, 0xac, 0x02, 2][..], &[2, 0xff, 0xff], &[0xac, 0x02]] {
        let refused = wire::from_bytes(record, &templates[..]).unwrap_err();
        assert!(matches!(refused, WireError::Version { found: 2 | 300 }), "{refused}");
    }
    let refused = wire::from_json(r#"{"version":7,"delta":{"Later":[]}}"#, &templates[..]).unwrap_err();
    assert_eq!(refused.to_string(), "the record is of version 7; this reads version 1");
}

#[test]
fn a_model_comes_back_only_to_whoever_has_its_template() {
    let mut gmg = support::gmg();
    gmg.apply(Event::DeviceLost { device: DeviceId(2), at: Nanos(1) }).unwrap();
    let model = Arc::new(slicescheduler_gmg::Model::new("m", chain()));
    let container = Arc::new(slicescheduler_gmg::Container::replicas([2]));
    let delta: Delta = Intent::AddModel { tenant: TenantId(0), model, container }.into();
    let record = wire::to_bytes(&delta).unwrap();
    let read = wire::from_bytes(&record, &[diamond(), chain()][..]).unwrap();
    let Delta::Intent(Intent::AddModel { model, .. }) = read else { panic!("{read:?}") };
    assert_eq!((model.template.name(), &*model.name), ("chain", "m"));
    let absent = wire::from_bytes(&record, &[diamond()][..]).unwrap_err();
    assert!(absent.to_string().starts_with("model \"m\" runs template \"chain\" with fingerprint"), "{absent}");
}

#[test]
fn a_log_that_was_cut_is_read_up_to_the_cut() {
    let templates = templates();
    let mut log = Vec::new();
    for device in 0..3 {
        wire::append(&mut log, &Event::DeviceLost { device: DeviceId(device), at: Nanos(9) }.into()).unwrap();
    }
    let record = log.len() / 3;
    for cut in 0..log.len() {
        let mut reader = LogReader::new(&log[..cut], &templates[..]);
        assert_eq!(reader.by_ref().filter(Result::is_ok).count(), cut / record);
        assert_eq!(reader.position(), cut / record * record);
    }
    let last = LogReader::new(&log[..record + 5], &templates[..]).last().unwrap().unwrap_err();
    assert!(matches!(last, WireError::Truncated { at, len } if at == record && len == record + 5), "{last}");
    log[record + 12] ^= 1;
    let results: Vec<_> = LogReader::new(&log, &templates[..]).collect();
    assert_eq!(results.len(), 2);
    assert!(matches!(results[1], Err(WireError::Checksum { at }) if at == record));
}

/// Magic, version and checksum; then the cluster's fingerprint, of which nothing is known here.
#[test]
fn a_snapshot_begins_with_its_magic_its_version_and_its_checksum() {
    let bytes = wire::save(support::gmg().state()).unwrap();
    assert_eq!(bytes[..6], *b"GMGS\x01\x00");
    assert_eq!(bytes[6..14], xxhash_rust::xxh3::xxh3_64(&bytes[14..]).to_le_bytes());
    let restore = |bytes: &[u8]| wire::restore(bytes, support::cluster(), &templates()[..]).map(drop).unwrap_err();
    assert!(matches!(restore(b"GMGT\x01\x00        "), WireError::NotASnapshot));
    assert!(matches!(restore(b"GMGS\x02\x00        "), WireError::Version { found: 2 }));
    assert!(matches!(restore(&bytes[..13]), WireError::Truncated { at: 0, len: 13 }));
    assert!(matches!(restore(&bytes[..20]), WireError::Checksum { at: 14 }));
}

#[test]
fn a_snapshot_is_restored_on_its_own_cluster_with_its_own_templates() {
    let mut gmg = support::gmg();
    gmg.apply(Event::LinkFailed { link: slicescheduler_gmg::id::LinkId(1), at: Nanos(1) }).unwrap();
    let bytes = wire::save(gmg.publish().state()).unwrap();
    let spec = slicescheduler_gmg::cluster::DeviceSpec::l4();
    let other =
        slicescheduler_gmg::cluster::Cluster::builder().node("a", |node| node.devices(3, spec)).build().unwrap();
    assert!(matches!(wire::restore(&bytes, other, &templates()[..]), Err(WireError::Resources { .. })));
    assert!(matches!(wire::restore(&bytes, support::cluster(), &[chain()][..]), Err(WireError::Template { .. })));
    let restored = wire::restore(&bytes, support::cluster(), &templates()[..]).unwrap();
    assert!(restored.view().cluster().is_failed(slicescheduler_gmg::id::LinkId(1)));
}

proptest! {
    #![proptest_config(support::cases(200))]

    /// The bytes of the bytes are the bytes; and what is replayed on a restored graph does what it did, down to
    /// ids, offsets, block numbers and high-water marks, all of which are in the bytes.
    #[test]
    fn a_restored_version_goes_on_as_the_original_did(before in steps(1..150), after in steps(1..60)) {
        let templates = templates();
        let mut stream = Stream::default();
        let (mut gmg, _) = streamed(before, &mut stream);
        let bytes = wire::save(gmg.publish().state()).unwrap();
        let mut restored = wire::restore(&bytes, support::cluster(), &templates[..]).unwrap();
        prop_assert_eq!(digest(restored.state()), digest(gmg.state()));
        prop_assert_eq!(restored.state().content_hash(), gmg.state().content_hash());
        prop_assert_eq!(wire::save(restored.state()).unwrap(), bytes);
        let mut log = Vec::new();
        for step in after {
            let delta = stream.next(step, gmg.state());
            wire::append(&mut log, &delta).unwrap();
            let read = LogReader::new(&log, &templates[..]).last().unwrap().unwrap();
            let [one, other] = [gmg.apply(delta), restored.apply(read)].map(|done| done.map(|done| done.effect));
            prop_assert_eq!(&one, &other);
            if let Ok(effect) = one {
                stream.note(&effect);
            }
        }
        prop_assert_eq!(wire::save(restored.state()).unwrap(), wire::save(gmg.state()).unwrap());
        prop_assert_eq!(digest(restored.publish().state()), digest(gmg.state()));
    }

    #[test]
    fn what_is_written_comes_back_and_replays_to_an_equal_graph(steps in steps(1..150)) {
        let templates = templates();
        let (gmg, deltas) = history(steps);
        let mut log = Vec::new();
        let mut replayed = support::gmg();
        for delta in &deltas {
            wire::append(&mut log, delta).unwrap();
            let bytes = wire::to_bytes(delta).unwrap();
            let json = wire::to_json(delta).unwrap();
            let read = [wire::from_bytes(&bytes, &templates[..]).unwrap(), wire::from_json(&json, &templates[..]).unwrap()];
            for read in read {
                prop_assert_eq!(wire::to_bytes(&read).unwrap(), &bytes[..]);
            }
        }
        for delta in LogReader::new(&log, &templates[..]) {
            replayed.apply(delta.unwrap()).unwrap();
        }
        prop_assert_eq!(digest(replayed.state()), digest(gmg.state()));
        prop_assert_eq!(replayed.state().content_hash(), gmg.state().content_hash());
    }

    /// Tenants, models, layouts and weights survive in the durable deltas, and so do the requests that
    /// nobody ended.
    #[test]
    fn the_durable_deltas_alone_restore_who_owns_what(steps in steps(1..150)) {
        let (gmg, deltas) = history(steps);
        let mut restored = support::gmg();
        for delta in deltas.into_iter().filter(|delta| delta.durability() == Durability::Durable) {
            // A layout that was possible after an external reservation had gone is possible without it.
            restored.apply(delta).unwrap();
        }
        prop_assert_eq!(restored.state().tenants(), gmg.state().tenants());
        prop_assert_eq!(restored.state().models().len(), gmg.state().models().len());
        prop_assert_eq!(restored.state().containers(), gmg.state().containers());
        for device in (0..support::DEVICES).map(DeviceId) {
            let [left, right] = [&restored, &gmg].map(|gmg| gmg.state().memory(device).unwrap());
            prop_assert_eq!(left.layout(), right.layout());
            prop_assert_eq!(left.models().collect::<Vec<_>>(), right.models().collect::<Vec<_>>());
            prop_assert_eq!(restored.state().is_lost(device), gmg.state().is_lost(device));
        }
        for id in (0..gmg.next_request_id().0).map(slicescheduler_gmg::id::RequestId) {
            prop_assert_eq!(restored.state().request(id).is_some(), gmg.state().request(id).is_some());
        }
    }
}
