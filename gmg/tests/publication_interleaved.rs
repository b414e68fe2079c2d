//! Publication and branches in many interleavings of an owner and its readers, chosen by shuttle.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p slicescheduler-gmg --test publication_interleaved`

#![cfg(shuttle)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

mod support;

use shuttle::sync::mpsc::channel;
use shuttle::thread;
use slicescheduler_gmg::{Gmg, GmgView, Snapshot};
use support::digest::{Digest, digest};
use support::{CHAIN, OPS, dispatch, finished, gmg, iteration, lane};

const VERSIONS: usize = 5;

/// A job comes, runs and goes.
fn pass(gmg: &mut Gmg) {
    let job = gmg.submit(iteration(CHAIN, 2)).unwrap();
    dispatch(gmg, job, 0..OPS, lane(0, 0)).unwrap();
    gmg.apply(finished(job, 0..OPS, lane(0, 0), 1)).unwrap();
    if gmg.version().0 % 2 == 0 {
        gmg.apply(slicescheduler_gmg::Intent::Retire { job }).unwrap();
    }
}

/// Two readers keep snapshots for as long as the schedule has it, look at them again, and try things
/// on branches, while the owner goes on; what they see stays as it was published.
fn owner_and_readers() {
    let mut gmg = gmg();
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (send, receive) = channel::<(Snapshot, Digest)>();
            let reader = thread::spawn(move || {
                let mut kept: Option<(Snapshot, Digest)> = None;
                while let Ok((snapshot, published)) = receive.recv() {
                    assert_eq!(digest(&snapshot.view()), published);
                    let mut branch = snapshot.branch();
                    let mark = branch.mark();
                    branch.apply(slicescheduler_gmg::Intent::SubmitJob(iteration(CHAIN, 1).into())).unwrap();
                    thread::yield_now();
                    branch.rollback(mark).unwrap();
                    assert_eq!(digest(&branch), published);
                    if let Some((earlier, published)) = kept.replace((snapshot, published)) {
                        assert_eq!(digest(&earlier.view()), published);
                    }
                    thread::yield_now();
                }
            });
            (send, reader)
        })
        .collect();
    for _ in 0..VERSIONS {
        pass(&mut gmg);
        for (send, _) in &readers {
            send.send((gmg.publish(), digest(gmg.state()))).unwrap();
            thread::yield_now();
        }
    }
    for (send, reader) in readers {
        drop(send);
        reader.join().unwrap();
    }
}

#[test]
fn readers_never_see_a_version_change() {
    shuttle::check_random(owner_and_readers, 2000);
}

#[test]
fn readers_never_see_a_version_change_with_few_preemptions() {
    shuttle::check_pct(owner_and_readers, 1000, 3);
}
