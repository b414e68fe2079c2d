//! The content hash depends on what a version says and on nothing else.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

mod support;

use slicescheduler_gmg::id::{DeviceId, JobId};
use slicescheduler_gmg::job::JobSpec;
use slicescheduler_gmg::plan::{Event, Source};
use slicescheduler_gmg::units::{Bytes, Nanos};
use slicescheduler_gmg::{Gmg, Intent};
use support::{CHAIN, CHAT, DIAMOND, OPS, chain, diamond, dispatch, finished, gmg, iteration, lane, request};

fn hash(gmg: &Gmg) -> u64 {
    gmg.state().content_hash().0
}

fn numbered(iteration: u64, of: JobSpec) -> JobSpec {
    let mut spec = of;
    spec.key.iteration = iteration;
    spec
}

fn submit(gmg: &mut Gmg, iteration_number: u64, tokens: u64) -> JobId {
    gmg.submit(numbered(iteration_number, iteration(CHAIN, tokens))).unwrap()
}

#[test]
fn the_order_in_which_things_came_does_not_count() {
    let (mut one, mut other) = (gmg(), gmg());
    assert_eq!(hash(&one), hash(&other));
    let [a, b] = [submit(&mut one, 1, 2), submit(&mut one, 2, 3)];
    dispatch(&mut one, a, 0..OPS, lane(0, 0)).unwrap();
    dispatch(&mut one, b, 0..OPS, lane(0, 1)).unwrap();

    // Other slots, other generations, other offsets, more deltas.
    let gone = submit(&mut other, 9, 5);
    dispatch(&mut other, gone, 0..OPS, lane(0, 0)).unwrap();
    let [b, a] = [submit(&mut other, 2, 3), submit(&mut other, 1, 2)];
    dispatch(&mut other, b, 0..OPS, lane(0, 1)).unwrap();
    other.apply(finished(gone, 0..OPS, lane(0, 0), 7)).unwrap();
    other.apply(Intent::Retire { job: gone }).unwrap();
    dispatch(&mut other, a, 0..OPS, lane(0, 0)).unwrap();
    assert_ne!(one.version(), other.version());
    assert_eq!(hash(&one), hash(&other));
}

#[test]
fn whatever_is_said_counts() {
    let mut seen = vec![hash(&gmg())];
    let mut differs = |change: &dyn Fn(&mut Gmg)| {
        let mut gmg = gmg();
        change(&mut gmg);
        let hash = hash(&gmg);
        assert!(!seen.contains(&hash), "change {}", seen.len());
        seen.push(hash);
    };
    differs(&|gmg| {
        submit(gmg, 1, 2);
    });
    differs(&|gmg| {
        submit(gmg, 2, 2);
    });
    differs(&|gmg| {
        submit(gmg, 1, 3);
    });
    differs(&|gmg| {
        let job = submit(gmg, 1, 2);
        dispatch(gmg, job, 0..OPS, lane(0, 0)).unwrap();
    });
    differs(&|gmg| {
        let job = submit(gmg, 1, 2);
        dispatch(gmg, job, 0..OPS, lane(0, 1)).unwrap();
    });
    differs(&|gmg| {
        let job = submit(gmg, 1, 2);
        dispatch(gmg, job, 0..OPS, lane(0, 0)).unwrap();
        gmg.apply(Event::Started { job, at: Nanos(4) }).unwrap();
    });
    differs(&|gmg| {
        let job = submit(gmg, 1, 2);
        gmg.submit(numbered(2, iteration(CHAIN, 2).after(job))).unwrap();
    });
    differs(&|gmg| {
        request(gmg, CHAT);
    });
    differs(&|gmg| drop(gmg.apply(Intent::ReserveExternal { device: DeviceId(1), bytes: Bytes(8) }).unwrap()));
    differs(&|gmg| drop(gmg.apply(Event::DeviceLost { device: DeviceId(2), at: Nanos(1) }).unwrap()));
    let load = |model, source| Intent::LoadWeights { model, device: DeviceId(2), source };
    differs(&|gmg| drop(gmg.apply(load(CHAIN, Source::Host)).unwrap()));
    differs(&|gmg| drop(gmg.apply(load(DIAMOND, Source::Host)).unwrap()));
    let part = |ops| Intent::LoadOps { model: CHAIN, ops, device: DeviceId(2), source: Source::Host };
    differs(&|gmg| drop(gmg.apply(part(0..2)).unwrap()));
    differs(&|gmg| drop(gmg.apply(part(1..3)).unwrap()));
    let link = slicescheduler_gmg::id::LinkId(0);
    differs(&|gmg| drop(gmg.apply(Event::LinkFailed { link, at: Nanos(1) }).unwrap()));
}

#[test]
fn fingerprints_tell_templates_apart_and_equal_ones_together() {
    assert_eq!(chain().fingerprint(), chain().fingerprint());
    assert_ne!(chain().fingerprint(), diamond().fingerprint());
    use slicescheduler_gmg::templates::{DenseSpec, dense};
    let of = |spec: &DenseSpec| dense(spec).unwrap().fingerprint();
    let tiny = DenseSpec::tiny();
    let all = [of(&tiny), of(&tiny.clone().tensor_parallel(2)), of(&tiny.pipeline(2)[0]), of(&tiny.pipeline(2)[1])];
    for (index, one) in all.iter().enumerate() {
        assert!(!all[..index].contains(one), "{all:?}");
    }
}
