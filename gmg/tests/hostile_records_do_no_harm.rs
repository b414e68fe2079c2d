//! Whatever a record is said to be, reading it gives a delta or an error, in bounded memory.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

mod support;

use std::sync::{Arc, Mutex};

use peak_alloc::PeakAlloc;
use proptest::prelude::*;
use slicescheduler_gmg::Gmg;
use slicescheduler_gmg::cluster::{Cluster, DeviceSpec};
use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::id::DeviceId;
use slicescheduler_gmg::memory::DeviceLayout;
use slicescheduler_gmg::units::Bytes;
use slicescheduler_gmg::wire::{self, LogReader, WireError};
use support::stream::{Stream, steps};
use support::{chain, diamond};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Memory is that of the process, so measurements take turns.
static TURN: Mutex<()> = Mutex::new(());

fn templates() -> Vec<Arc<OpGraph>> {
    vec![chain(), diamond()]
}

/// Bytes that a reader may take beside those it was given.
const SPARE: usize = 4 << 20;

fn survives(bytes: &[u8]) {
    let templates = templates();
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let before = ALLOCATOR.current_usage();
    ALLOCATOR.reset_peak_usage();
    drop(wire::from_bytes(bytes, &templates[..]));
    drop(wire::from_json(&String::from_utf8_lossy(bytes), &templates[..]));
    LogReader::new(bytes, &templates[..]).for_each(drop);
    drop(wire::restore(bytes, support::cluster(), &templates[..]));
    let taken = ALLOCATOR.peak_usage().saturating_sub(before);
    assert!(taken <= SPARE + 64 * bytes.len(), "{taken} bytes for {}", bytes.len());
}

#[test]
fn lengths_that_lie_reserve_nothing() {
    // A batch of jobs, a resync and a request list that claim 2^63 entries.
    for kind in 0..24u8 {
        for part in 0..2u8 {
            let mut record = vec![1, part, kind];
            for fill in [0u8, 1, 0xff] {
                record.truncate(3);
                record.extend([fill & 0x7f; 12]);
                record.extend([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]);
                survives(&record);
                record.extend([0xff; 40]);
                survives(&record);
            }
        }
    }
    let deep = format!("{{\"version\":1,\"delta\":{}", "[".repeat(100_000));
    survives(deep.as_bytes());
}

/// Makes the header of a snapshot fit what follows it, as whoever damages it on purpose would.
fn reseal(bytes: &mut [u8]) {
    if let Some((header, rest)) = bytes.split_first_chunk_mut::<14>() {
        header[6..].copy_from_slice(&xxhash_rust::xxh3::xxh3_64(rest).to_le_bytes());
    }
}

#[test]
fn a_snapshot_with_lists_of_absurd_length_reserves_nothing() {
    let bytes = wire::save(support::gmg().state()).unwrap();
    for at in 14..bytes.len() {
        let mut hostile = bytes[..at].to_vec();
        hostile.extend([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]);
        reseal(&mut hostile);
        survives(&hostile);
    }
}

fn replaced(bytes: &[u8], at: usize, old: usize, new: &[u8]) -> Vec<u8> {
    let mut bytes = [&bytes[..at], new, &bytes[at + old..]].concat();
    reseal(&mut bytes);
    bytes
}

fn contradicts(bytes: &[u8]) -> bool {
    let restored = wire::restore(bytes, support::cluster(), &templates()[..]);
    matches!(restored, Err(WireError::Contradiction { .. }))
}

/// The first record has the cluster's fingerprint, two empty lists, the version, the number of requests and
/// that of the first page with one.
#[test]
fn counters_at_their_maximum_are_refused() {
    let mut gmg = support::gmg();
    support::request(&mut gmg, support::CHAT);
    let bytes = wire::save(gmg.state()).unwrap();
    let head = &bytes[14..];
    let (before, rest): ((u64, [u8; 2]), _) = postcard::take_from_bytes(head).unwrap();
    assert_eq!(before.1, [0, 0]);
    let (counters, behind): ([u64; 3], _) = postcard::take_from_bytes(rest).unwrap();
    assert_eq!(counters, [gmg.version().0, 1, 0]);
    let (at, old) = (bytes.len() - rest.len(), rest.len() - behind.len());
    for (counter, most) in (0..3).flat_map(|counter| [u64::MAX, 1 << 63, (1 << 63) - 1].map(|most| (counter, most))) {
        let mut hostile = counters;
        hostile[counter] = most;
        let hostile = replaced(&bytes, at, old, &postcard::to_allocvec(&hostile).unwrap());
        let fits = (counter, most) == (0, (1 << 63) - 1);
        assert_eq!(contradicts(&hostile), !fits, "counter {counter} at {most}");
        if fits {
            let mut gmg = wire::restore(&hostile, support::cluster(), &templates()[..]).unwrap();
            support::request(&mut gmg, support::CHAT);
            assert_eq!(gmg.version().0, 1 << 63);
        }
    }
}

#[test]
fn layouts_that_no_table_can_hold_are_refused() {
    let cluster = Cluster::builder().node("a", |node| node.devices(1, DeviceSpec::h100_sxm())).build().unwrap();
    let layout = DeviceLayout::of(Bytes::gib(64));
    let mut gmg = Gmg::new(cluster.clone());
    gmg.lay_out(DeviceId(0), layout).unwrap();
    let bytes = wire::save(gmg.state()).unwrap();
    let written = postcard::to_allocvec(&layout).unwrap();
    let at = bytes.windows(written.len()).position(|window| window == written).unwrap();
    for (kv_block, fits) in [(Bytes::kib(1), true), (Bytes(1023), false), (Bytes(1), false)] {
        let layout = postcard::to_allocvec(&DeviceLayout { kv_block, ..layout }).unwrap();
        let restored = wire::restore(&replaced(&bytes, at, written.len(), &layout), cluster.clone(), &templates()[..]);
        assert_eq!(restored.is_ok(), fits, "{kv_block}");
    }
}

proptest! {
    #![proptest_config(support::cases(300))]

    /// A snapshot whose checksum was made to fit is refused with the place of a record, or is a graph on
    /// which deltas work.
    #[test]
    fn damaged_snapshots_are_refused_where_they_contradict_themselves(
        before in steps(1..120),
        after in steps(1..40),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut stream = Stream::default();
        let mut gmg = support::gmg();
        for step in before {
            if let Ok(done) = gmg.apply(stream.next(step, gmg.state())) {
                stream.note(&done.effect);
            }
        }
        let mut bytes = wire::save(gmg.state()).unwrap();
        for (at, byte) in flips {
            let at = 14 + at.index(bytes.len() - 14);
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(14 + cut.index(bytes.len() - 14));
        }
        reseal(&mut bytes);
        survives(&bytes);
        match wire::restore(&bytes, support::cluster(), &templates()[..]) {
            Ok(mut restored) => {
                // A number may have been written with more bytes than it needs; nothing else is lost.
                let again = wire::save(restored.state()).unwrap();
                prop_assert!(again.len() <= bytes.len());
                let twice = wire::restore(&again, support::cluster(), &templates()[..]).unwrap();
                prop_assert_eq!(wire::save(twice.state()).unwrap(), again);
                for step in after {
                    drop(restored.apply(stream.next(step, restored.state())));
                }
            }
            Err(WireError::Record { at, .. } | WireError::Contradiction { at, .. }) => {
                prop_assert!((14..=bytes.len()).contains(&at));
            }
            Err(WireError::Resources { .. } | WireError::Template { .. } | WireError::Trailing(_)) => {}
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    #[test]
    fn damaged_records_are_refused_or_read_and_never_more(
        steps in steps(1..20),
        cut in any::<prop::sample::Index>(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        json in any::<bool>(),
    ) {
        let mut stream = Stream::default();
        let gmg = support::gmg();
        for step in steps {
            let delta = &stream.next(step, gmg.state());
            let mut record = if json { wire::to_json(delta).unwrap().into_bytes() } else { wire::to_bytes(delta).unwrap() };
            record.truncate(cut.index(record.len() + 1));
            for &(at, byte) in &flips {
                if !record.is_empty() {
                    let at = at.index(record.len());
                    record[at] = byte;
                }
            }
            let read = wire::from_bytes(&record, &templates()[..]);
            // What can be read can be applied, or is refused; the graph stands either way.
            if let Ok(delta) = read {
                drop(support::gmg().apply(delta));
            }
            survives(&record);
        }
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        survives(&bytes);
        let with_version: Vec<u8> = std::iter::once(1).chain(bytes).collect();
        survives(&with_version);
    }
}
