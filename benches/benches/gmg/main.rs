//! What the graph costs at the size of a large cluster: 1,024 devices with one lane each and about
//! 1,000,000 live operators, as iterations of Llama 3 8B with 16 decoding sequences of 32 KV blocks.
//! Every lane has one iteration dispatched and about two more pending.
//!
//! One thread; the graph has one owner, snapshots are shared between threads, and so are the peers'
//! vectors. Iterations are undisturbed, so each is one segment: the figures are per macro-operator,
//! except where operators are named.
//!
//! The peers are persistent vectors (im, imbl, rpds) and a copied `Vec`, in the same run; the first lines of
//! `peers.rs` say what they keep and write. Publishing is writing for them, so their figure of that row has the
//! writes of the 100 deltas in it and ours has not; their transition is one record written and nothing checked.

mod allocators;
mod loaded;
mod peers;
mod transitions;
mod versions;

use std::cell::RefCell;
use std::time::{Duration, Instant};

use criterion::Criterion;
use slicescheduler_benches::{Better, Target, print_and_write};
use slicescheduler_gmg::GmgView;

use crate::loaded::Loaded;
use crate::transitions::{Transition, single_operators, transition};
use crate::versions::Reach;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const NODES: u32 = 128;

/// Runs a criterion bench and gives the lowest of its samples, in ns: what disturbs a run only adds.
fn lowest(criterion: &mut Criterion, name: &str, mut run: impl FnMut(u64) -> Duration) -> f64 {
    let samples = RefCell::new(Vec::new());
    criterion.bench_function(name, |bencher| {
        bencher.iter_custom(|iterations| {
            let took = run(iterations);
            samples.borrow_mut().push(took.as_nanos() as f64 / iterations as f64);
            took
        });
    });
    samples.into_inner().into_iter().reduce(f64::min).unwrap_or(f64::NAN)
}

fn timed(iterations: u64, mut run: impl FnMut()) -> Duration {
    let begun = Instant::now();
    for _ in 0..iterations {
        run();
    }
    begun.elapsed()
}

/// Bytes per live operator in one copy of the tables: undisturbed, and with every operator of the
/// dispatched iterations a segment of its own.
fn bytes_per_operator(loaded: &mut Loaded) -> Outcome<(f64, f64)> {
    let count = loaded.template.op_count();
    let jobs = loaded.jobs.len().min(loaded.devices as usize);
    let before = loaded.gmg.state().job_bytes().get() as f64;
    let whole = before / (loaded.jobs.len() as f64 * f64::from(count));
    for job in 0..jobs {
        for op in 0..count - 1 {
            loaded.gmg.apply(loaded.finished_alone(job, op))?;
        }
    }
    let cut = loaded.gmg.state().job_bytes().get() as f64 - before;
    Ok((whole, whole + cut / (jobs as f64 * f64::from(count))))
}

/// The lowest of the persistent vectors' figures, with its name.
fn best(peers: &[peers::Peer], figure: impl Fn(&peers::Peer) -> f64) -> Option<(&'static str, f64)> {
    let figures = peers.iter().filter(|peer| peer.is_persistent).map(|peer| (peer.name, figure(peer)));
    figures.min_by(|(_, left), (_, right)| left.total_cmp(right))
}

fn main() -> Outcome<()> {
    if peers::measured_records() {
        return Ok(());
    }
    let short = (Duration::from_millis(300), Duration::from_secs(1));
    let criterion = Criterion::default().sample_size(50).warm_up_time(short.0).measurement_time(short.1);
    let mut criterion = criterion.configure_from_args();
    let records = peers::bytes_per_operator();
    let mut loaded = Loaded::new(NODES, 1_000_000)?;
    let mut small = Loaded::new(1, 10_000)?;
    let live = loaded.jobs.len() as u64 * u64::from(loaded.template.op_count());
    println!(
        "{live} operators in {} jobs of {}, {} devices",
        loaded.jobs.len(),
        loaded.template.name(),
        loaded.devices
    );
    let version = loaded.gmg.view().version();

    let criterion = &mut criterion;
    let from_small = versions::branch(criterion, &mut small, "branch, 10,000 operators");
    let from_large = versions::branch(criterion, &mut loaded, "branch, 1,000,000 operators");
    let local = versions::branch_changed_and_read(criterion, &mut loaded, Reach::Local);
    let scattered = versions::branch_changed_and_read(criterion, &mut loaded, Reach::Scattered);
    let marked = versions::marked_and_rolled_back(criterion, &mut loaded, Reach::Local);
    let marked_scattered = versions::marked_and_rolled_back(criterion, &mut loaded, Reach::Scattered);
    let peers = peers::all(criterion, &loaded);
    let published = versions::publish(criterion, &mut loaded);
    let lagging = versions::publish_to_laggards(criterion, &mut loaded);
    let dispatched = transition(criterion, &mut loaded, "dispatched", Transition::Dispatched);
    let started = transition(criterion, &mut loaded, "started", Transition::Started);
    let finished = transition(criterion, &mut loaded, "finished", Transition::Finished);
    let taken_back = transition(criterion, &mut loaded, "taken back", Transition::TakenBack);
    let operator = single_operators(criterion, &mut loaded);
    let (allocator, range_alloc) = (allocators::best_fit(criterion), allocators::range_alloc(criterion));
    let blocks = allocators::kv_pool(criterion);
    let (whole, cut) = bytes_per_operator(&mut small)?;
    if loaded.gmg.view().version() == version || from_large.is_nan() || allocator.is_nan() {
        return Ok(());
    }
    let us = |ns: f64| ns / 1000.0;
    println!("\nbeside the targets, {live} operators, lowest of 50 samples, one thread:");
    println!("  branch from a snapshot of 10,000 operators         {from_small:>12.1} ns");
    println!("  mark, 100 local changes, 1,000 operators, roll back{:>12.1} us", us(marked));
    println!("  the same, scattered                                {:>12.1} us", us(marked_scattered));
    println!("  publish after 100 deltas when a reader lags        {:>12.1} us", us(lagging));
    println!("  an iteration of 16 sequences dispatched            {dispatched:>12.1} ns");
    println!("  started                                            {started:>12.1} ns");
    println!("  finished                                           {finished:>12.1} ns");
    println!("  taken back                                         {taken_back:>12.1} ns");
    println!("  one operator of an iteration finished              {operator:>12.1} ns");
    println!("  KV pool, release and grow by 1 to 8 blocks         {blocks:>12.1} ns");
    println!("  bytes per live operator, undisturbed iterations    {whole:>12.2} B in each copy of the tables");
    for peer in &peers {
        println!(
            "  {:<16} copy {:>12.1} ns, with 100 changes and 1,000 operators {:>9.1} us local, {:>9.1} us scattered",
            peer.name,
            peer.fork,
            us(peer.local),
            us(peer.scattered)
        );
        println!(
            "  {:<16} 100 deltas and a copy {:>9.1} us, one record written alone {:>9.1} ns",
            "",
            us(peer.publish),
            peer.write
        );
    }
    for (name, bytes) in records.iter().flatten() {
        println!("  {name:<16} {bytes:>6.1} B per operator");
    }
    println!();
    let at_most = |name, value, unit, bound, peer| Target { peer, ..Target::at_most(name, value, unit, bound) };
    let ratio = |name, ours: f64, theirs: Option<(&str, f64)>| Target {
        better: Better::Higher,
        ..Target::at_most(name, theirs.map_or(f64::NAN, |(_, theirs)| theirs / us(ours)), "x", 12.0)
    };
    let best_us = |figure: fn(&peers::Peer) -> f64| best(&peers, figure).map(|(name, ns)| (name, us(ns)));
    let (best_local, best_scattered) = (best_us(|peer| peer.local), best_us(|peer| peer.scattered));
    let least = records.and_then(|records| records.into_iter().min_by(|(_, one), (_, other)| one.total_cmp(other)));
    print_and_write(
        "gmg",
        &[
            at_most("branch from a snapshot", from_large, "ns", 100.0, best(&peers, |peer| peer.fork)),
            at_most(
                "publish a snapshot after a pass of 100 deltas",
                us(published),
                "us",
                20.0,
                best_us(|peer| peer.publish),
            ),
            at_most("branch, 100 local changes, 1,000 operators, discard", us(local), "us", 25.0, best_local),
            at_most(
                "branch, 100 scattered changes, 1,000 operators, discard",
                us(scattered),
                "us",
                80.0,
                best_scattered,
            ),
            ratio("the best persistent vector over a branch, local", local, best_local),
            ratio("the best persistent vector over a branch, scattered", scattered, best_scattered),
            // Over the life of an iteration: dispatched, started, finished.
            at_most(
                "apply one state transition",
                (dispatched + started + finished) / 3.0,
                "ns",
                60.0,
                best(&peers, |peer| peer.write),
            ),
            at_most("allocator bookkeeping", allocator, "ns", 50.0, Some(("range-alloc", range_alloc))),
            at_most("memory per live operator, every operator a segment", cut, "B", 32.0, least),
        ],
    )?;
    Ok(())
}
