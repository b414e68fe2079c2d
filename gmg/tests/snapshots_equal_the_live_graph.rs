//! Publications are replayed from deltas; they must equal the graph that they publish, and stay as
//! they are whatever the owner does next.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

mod support;

use std::sync::mpsc;

use proptest::prelude::*;
use slicescheduler_gmg::snapshot::Mark;
use slicescheduler_gmg::{Applied, Branch, Delta, Gmg, GmgError, GmgView, Snapshot, State, View};
use support::digest::{Digest, digest};
use support::stream::{Stream, steps};
use support::{CHAIN, iteration};

fn apply_one(gmg: &mut Gmg, stream: &mut Stream, step: support::stream::Step) {
    let delta = stream.next(step, gmg.state());
    if let Ok(applied) = gmg.apply(delta) {
        stream.note(&applied.effect);
    }
}

proptest! {
    #![proptest_config(support::cases(200))]

    /// Every third publication on average is held by a reader for a while, so that both ways of
    /// publishing are taken: replaying the deltas, and copying.
    #[test]
    fn a_publication_equals_the_graph_and_never_changes(steps in steps(1..200), publish in prop::collection::vec(0u8..12, 200)) {
        let mut gmg = support::gmg();
        let mut stream = Stream::default();
        let mut held: Vec<(Snapshot, Digest)> = Vec::new();
        for (step, publish) in steps.into_iter().zip(publish) {
            apply_one(&mut gmg, &mut stream, step);
            if publish < 6 {
                let snapshot = gmg.publish();
                let published = digest(&snapshot.view());
                prop_assert_eq!(&published, &digest(gmg.state()));
                if publish < 2 {
                    held.push((snapshot, published));
                }
            } else if publish < 8 && !held.is_empty() {
                held.remove(0);
            }
        }
        for (snapshot, published) in &held {
            prop_assert_eq!(&digest(&snapshot.view()), published);
        }
        let last = gmg.publish();
        let ids = [Gmg::restore(&last).submit(iteration(CHAIN, 1)), gmg.submit(iteration(CHAIN, 1))];
        prop_assert_eq!(&ids[0], &ids[1]);
    }

    #[test]
    fn a_restored_graph_goes_on_as_the_original_does(steps in steps(2..200), cut in any::<prop::sample::Index>()) {
        let mut gmg = support::gmg();
        let mut stream = Stream::default();
        let (first, second) = steps.split_at(cut.index(steps.len()));
        first.iter().for_each(|&step| apply_one(&mut gmg, &mut stream, step));
        let mut restored = Gmg::restore(&gmg.publish());
        let mut copied = stream.clone();
        for &step in second {
            apply_one(&mut gmg, &mut stream, step);
            apply_one(&mut restored, &mut copied, step);
        }
        prop_assert_eq!(digest(restored.state()), digest(gmg.state()));
    }

    /// The reader looks at each snapshot while the owner is at work on later versions.
    #[test]
    fn a_reader_on_another_thread_sees_a_constant_graph(steps in steps(50..300)) {
        let mut gmg = support::gmg();
        let mut stream = Stream::default();
        let (to_reader, snapshots) = mpsc::channel::<(Snapshot, Digest)>();
        let seen = std::thread::scope(|scope| {
            let reader = scope.spawn(move || {
                let mut seen = 0;
                while let Ok((snapshot, published)) = snapshots.recv() {
                    for _ in 0..3 {
                        assert_eq!(digest(&snapshot.view()), published);
                    }
                    seen += 1;
                }
                seen
            });
            for chunk in steps.chunks(10) {
                chunk.iter().for_each(|&step| apply_one(&mut gmg, &mut stream, step));
                let snapshot = gmg.publish();
                to_reader.send((snapshot, digest(gmg.state()))).unwrap();
            }
            drop(to_reader);
            reader.join().unwrap()
        });
        prop_assert_eq!(seen, steps.len().div_ceil(10));
    }
}

#[test]
fn publishing_twice_without_a_change_gives_the_same_version() {
    let mut gmg = support::gmg();
    let first = gmg.publish();
    let second = gmg.publish();
    assert!(std::ptr::eq(first.state(), second.state()));
    assert_eq!(first.view().version(), gmg.version());
}

#[test]
fn versions_can_be_shared_between_threads_and_branches_sent() {
    fn shared<T: Send + Sync + 'static>() {}
    fn sent<T: Send + 'static>() {}
    shared::<Snapshot>();
    shared::<State>();
    shared::<Branch>();
    shared::<Gmg>();
    shared::<Delta>();
    shared::<Applied>();
    shared::<GmgError>();
    shared::<View<'static>>();
    sent::<Mark>();
}

/// Far more reservations between two publications than a publisher keeps account of.
#[test]
fn a_publisher_that_is_asked_rarely_copies_everything_and_goes_on() {
    let mut gmg = support::gmg();
    let held = gmg.publish();
    let before = digest(&held.view());
    for round in 0..3 {
        for _ in 0..35_000 {
            let job = gmg.submit(iteration(CHAIN, 1)).unwrap();
            support::dispatch(&mut gmg, job, 0..support::OPS, support::lane(0, 0)).unwrap();
            gmg.apply(support::finished(job, 0..support::OPS, support::lane(0, 0), round)).unwrap();
            gmg.apply(slicescheduler_gmg::Intent::Retire { job }).unwrap();
        }
        assert_eq!(digest(&gmg.publish().view()), digest(gmg.state()));
        gmg.submit(iteration(CHAIN, 2)).unwrap();
        assert_eq!(digest(&gmg.publish().view()), digest(gmg.state()));
    }
    assert_eq!(digest(&held.view()), before);
}
