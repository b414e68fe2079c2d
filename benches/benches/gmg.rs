//! What the graph costs at the size of a large cluster: 1,024 devices with one lane each and about
//! 1,000,000 live operators, as iterations of Llama 3 8B with 16 decoding sequences of 32 KV blocks.
//! Every lane has one iteration dispatched and about two more pending.
//!
//! One thread; the graph has one owner, snapshots are shared. Iterations are undisturbed, so each is
//! one segment: the figures are per macro-operator, except where operators are named.

use std::cell::RefCell;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::Criterion;
use slicescheduler_benches::{Target, print_and_write};
use slicescheduler_gmg::cluster::{Cluster, DeviceSpec};
use slicescheduler_gmg::delta::NewRequest;
use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, ModelId, RequestId, TenantId};
use slicescheduler_gmg::job::{JobSpec, KvGrowth, Row};
use slicescheduler_gmg::memory::{BestFit, KvPool, Region};
use slicescheduler_gmg::plan::{Event, Fate, Rank};
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};
use slicescheduler_gmg::{Container, Delta, Gmg, GmgView, Intent, Model, Tenant, templates};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const NODES: u32 = 128;
const DEVICES_PER_NODE: u32 = 8;
const ROWS: u64 = 16;
const BLOCKS: u32 = 32;

/// A loaded cluster. Job `n` is for lane `n % devices`; the first of each lane is dispatched.
struct Loaded {
    gmg: Gmg,
    template: Arc<OpGraph>,
    specs: Vec<Arc<JobSpec>>,
    jobs: Vec<JobId>,
    devices: u32,
}

impl Loaded {
    /// `operators` live operators, rounded up to whole iterations.
    fn new(nodes: u32, operators: u64) -> Outcome<Self> {
        let mut cluster = Cluster::builder().network(Bandwidth::gb_per_s(50), Nanos::us(8));
        for node in 0..nodes {
            cluster = cluster.node(format!("n{node}"), |node| node.devices(DEVICES_PER_NODE, DeviceSpec::h100_sxm()));
        }
        let mut gmg = Gmg::new(cluster.build()?);
        let devices = nodes * DEVICES_PER_NODE;
        let template = Arc::new(templates::dense(&templates::DenseSpec::llama3_8b())?);
        let tenant = gmg.add_tenant(Tenant::latency_sensitive("chat"))?;
        let model =
            gmg.add_model(tenant, Model::new("llama3-8b", template.clone()), Container::replicas(0..devices))?;
        let mut this = Self { gmg, template, specs: Vec::new(), jobs: Vec::new(), devices };
        for job in 0..operators.div_ceil(u64::from(this.template.op_count())) {
            let spec = Arc::new(this.batch(tenant, model, job < u64::from(devices))?);
            let effect = this.gmg.apply(Intent::SubmitJob(spec.clone()))?.effect;
            this.jobs.extend(effect.job());
            this.specs.push(spec);
        }
        for job in 0..this.jobs.len().min(devices as usize) {
            let dispatch = this.dispatch(job);
            this.gmg.apply(dispatch)?;
        }
        Ok(this)
    }

    /// A decoding iteration of requests of its own. One that is dispatched right away grows their
    /// sequences to their full length.
    fn batch(&mut self, tenant: TenantId, model: ModelId, grows: bool) -> Outcome<JobSpec> {
        let mut spec = JobSpec::of(model);
        let mut binding = Binding::new();
        for _ in 0..ROWS {
            let new = NewRequest { tenant, arrival: Nanos(0), prompt: 500, max_output: 500 };
            let request = self.gmg.submit_request(new)?;
            spec.rows.push(Row { request, position: 500, tokens: 1, emits: true });
            binding.add_chunk(1, 500, true);
            if grows {
                spec.growth.push(KvGrowth { request, blocks: BLOCKS });
            }
        }
        Ok(spec.bind(binding))
    }

    fn lane(&self, job: usize) -> LaneId {
        LaneId::new(DeviceId(job as u32 % self.devices), 0)
    }

    fn whole(&self) -> std::ops::Range<u32> {
        0..self.template.op_count()
    }

    fn dispatch(&self, job: usize) -> Intent {
        Intent::Dispatch { job: self.jobs[job], ops: self.whole(), lane: self.lane(job), rank: Rank::OwnerLatency }
    }

    fn recalled(&self, job: usize) -> Event {
        Event::Recalled {
            job: self.jobs[job],
            lane: self.lane(job),
            done: 0..0,
            end: self.template.op_count(),
            fate: Fate::Keep,
            started: Nanos(1),
            at: Nanos(2),
        }
    }

    fn finished(&self, job: usize, ops: std::ops::Range<u32>) -> Event {
        let (job, lane) = (self.jobs[job], self.lane(job));
        Event::Finished { job, ops, lane, started: Nanos(1), at: Nanos(2), tokens: Vec::new(), ended: Vec::new() }
    }

    /// 100 deltas on 25 lanes far from each other: an iteration finishes and goes, and the next one
    /// of the same sequences comes and is dispatched.
    fn pass(&mut self, number: usize) -> Outcome<()> {
        for nth in 0..25 {
            let job = (number * 25 + nth) * 401 % self.devices as usize;
            self.gmg.apply(self.finished(job, self.whole()))?;
            self.succeed(job)?;
        }
        Ok(())
    }

    /// The finished iteration goes, the next one of the same sequences comes and is dispatched.
    fn succeed(&mut self, job: usize) -> Outcome<()> {
        self.gmg.apply(Intent::Retire { job: self.jobs[job] })?;
        let mut next = JobSpec::clone(&self.specs[job]);
        next.growth.clear();
        let effect = self.gmg.apply(Intent::SubmitJob(Arc::new(next)))?.effect;
        self.jobs[job] = effect.job().ok_or("a job was submitted")?;
        self.gmg.apply(self.dispatch(job))?;
        Ok(())
    }
}

/// Runs a criterion bench and gives the median of its samples, in ns.
fn median(criterion: &mut Criterion, name: &str, mut run: impl FnMut(u64) -> Duration) -> f64 {
    let samples = RefCell::new(Vec::new());
    criterion.bench_function(name, |bencher| {
        bencher.iter_custom(|iterations| {
            let took = run(iterations);
            samples.borrow_mut().push(took.as_nanos() as f64 / iterations as f64);
            took
        });
    });
    let mut samples = samples.into_inner();
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN)
}

fn timed(iterations: u64, mut run: impl FnMut()) -> Duration {
    let begun = Instant::now();
    for _ in 0..iterations {
        run();
    }
    begun.elapsed()
}

fn branch(criterion: &mut Criterion, loaded: &mut Loaded, name: &str) -> f64 {
    let snapshot = loaded.gmg.publish();
    median(criterion, name, |iterations| timed(iterations, || drop(black_box(snapshot.branch()))))
}

/// A branch, 50 iterations recalled and dispatched again, and the branch dropped.
fn branch_with_changes(criterion: &mut Criterion, loaded: &mut Loaded, scattered: bool) -> f64 {
    let snapshot = loaded.gmg.publish();
    let job = |nth: usize| if scattered { nth * 401 % loaded.devices as usize } else { nth % 4 };
    let deltas: Vec<_> = (0..50)
        .flat_map(|nth| [Delta::from(loaded.recalled(job(nth))), Delta::from(loaded.dispatch(job(nth)))])
        .collect();
    let mut checked = snapshot.branch();
    assert!(deltas.iter().all(|delta| checked.apply(delta.clone()).is_ok()), "a change of the bench was refused");
    let name = if scattered { "branch, 100 scattered changes, drop" } else { "branch, 100 local changes, drop" };
    median(criterion, name, |iterations| {
        timed(iterations, || {
            let mut branch = snapshot.branch();
            for delta in &deltas {
                black_box(branch.apply(delta.clone()).is_ok());
            }
        })
    })
}

fn publish(criterion: &mut Criterion, loaded: &mut Loaded) -> f64 {
    let mut number = 0;
    median(criterion, "publish after 100 deltas", |iterations| {
        let mut took = Duration::ZERO;
        for _ in 0..iterations {
            number += 1;
            if let Err(error) = loaded.pass(number) {
                eprintln!("the pass failed: {error}");
            }
            let begun = Instant::now();
            black_box(loaded.gmg.publish());
            took += begun.elapsed();
        }
        took
    })
}

/// The same while readers keep the last two publications: the tables are copied.
fn publish_copying(criterion: &mut Criterion, loaded: &mut Loaded) -> f64 {
    let mut number = 0;
    let mut kept = [loaded.gmg.publish(), loaded.gmg.publish()];
    median(criterion, "publish after 100 deltas, readers lag", |iterations| {
        let mut took = Duration::ZERO;
        for _ in 0..iterations {
            number += 1;
            if let Err(error) = loaded.pass(number) {
                eprintln!("the pass failed: {error}");
            }
            let begun = Instant::now();
            let snapshot = loaded.gmg.publish();
            took += begun.elapsed();
            kept[number % 2] = snapshot;
        }
        took
    })
}

/// A transition in the life of an iteration.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Transition {
    Dispatched,
    Started,
    TakenBack,
    Finished,
}

/// One transition of a whole iteration, with its batch of 16. The publisher records every delta and
/// publishes, outside of the time, every few hundred.
fn transition(criterion: &mut Criterion, loaded: &mut Loaded, name: &str, measured: Transition) -> f64 {
    let devices = loaded.devices as usize;
    let mut from = 0;
    median(criterion, name, |iterations| {
        let mut took = Duration::ZERO;
        let mut left = iterations as usize;
        while left > 0 {
            let jobs: Vec<_> = (from..from + left.min(100)).map(|nth| nth * 401 % devices).collect();
            from += jobs.len();
            left -= jobs.len();
            let mut phase = |loaded: &mut Loaded, now: Transition, delta: fn(&Loaded, usize) -> Delta| {
                let begun = Instant::now();
                for &job in &jobs {
                    let delta = delta(loaded, job);
                    black_box(loaded.gmg.apply(delta).is_ok());
                }
                if now == measured {
                    took += begun.elapsed();
                }
            };
            let started = |loaded: &Loaded, job| Event::Started { job: loaded.jobs[job], at: Nanos(1) }.into();
            phase(loaded, Transition::Started, started);
            phase(loaded, Transition::TakenBack, |loaded, job| loaded.recalled(job).into());
            phase(loaded, Transition::Dispatched, |loaded, job| loaded.dispatch(job).into());
            if measured == Transition::Finished {
                phase(loaded, Transition::Finished, |loaded, job| loaded.finished(job, loaded.whole()).into());
                for &job in &jobs {
                    if let Err(error) = loaded.succeed(job) {
                        eprintln!("no successor: {error}");
                    }
                }
            }
            loaded.gmg.publish();
        }
        took
    })
}

/// An iteration that finishes operator by operator, so that its segment is cut at every one.
fn single_operators(criterion: &mut Criterion, loaded: &mut Loaded) -> f64 {
    let (mut job, mut op) = (0, 0);
    let count = loaded.template.op_count();
    median(criterion, "one operator finished", |iterations| {
        let mut took = Duration::ZERO;
        for _ in 0..iterations {
            if op + 1 == count {
                let end = loaded.template.op_count();
                let recalled = Event::Recalled {
                    job: loaded.jobs[job],
                    lane: loaded.lane(job),
                    done: op..op,
                    end,
                    fate: Fate::Drop,
                    started: Nanos(1),
                    at: Nanos(2),
                };
                let dispatch = loaded.dispatch(job);
                black_box(loaded.gmg.apply(recalled).is_ok() && loaded.gmg.apply(dispatch).is_ok());
                loaded.gmg.publish();
                job = (job + 401) % loaded.devices as usize;
                op = 0;
            }
            let event = loaded.finished(job, op..op + 1);
            let begun = Instant::now();
            black_box(loaded.gmg.apply(event).is_ok());
            took += begun.elapsed();
            op += 1;
        }
        took
    })
}

/// The sizes of activations of small and large iterations, in turn, 64 regions live.
fn best_fit(criterion: &mut Criterion) -> f64 {
    let mut memory = BestFit::new(Region { offset: Bytes::ZERO, bytes: Bytes::gib(10) });
    let sizes: Vec<_> = (0..97u64).map(|n| Bytes(256 + n * n * 5003 % (1 << 20))).collect();
    let mut live: Vec<_> = (0..64).filter_map(|n| memory.allocate(sizes[n * 7 % 97])).collect();
    let mut step = 0usize;
    median(criterion, "best fit, allocate and free", |iterations| {
        timed(iterations, || {
            step += 1;
            let place = step * 29 % live.len();
            memory.free(live[place]);
            if let Some(region) = memory.allocate(sizes[step % 97]) {
                live[place] = region;
            }
        })
    })
}

/// 48 sequences of 1 to 8 blocks; one goes and comes again.
fn kv_pool(criterion: &mut Criterion) -> f64 {
    let mut pool = KvPool::new(14_000);
    for request in 0..48 {
        pool.grow(RequestId(request), TenantId(0), 1 + request as u32 % 8);
    }
    let mut step = 0u64;
    median(criterion, "KV pool, release and grow", |iterations| {
        timed(iterations, || {
            step += 1;
            let request = RequestId(step * 29 % 48);
            black_box(pool.release(request));
            pool.grow(request, TenantId(0), 1 + step as u32 % 8);
        })
    })
}

fn main() -> Outcome<()> {
    let mut criterion = Criterion::default().sample_size(30).configure_from_args();
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
    let from_small = branch(criterion, &mut small, "branch, 10,000 operators");
    let from_large = branch(criterion, &mut loaded, "branch, 1,000,000 operators");
    let local = branch_with_changes(criterion, &mut loaded, false);
    let scattered = branch_with_changes(criterion, &mut loaded, true);
    let published = publish(criterion, &mut loaded);
    let copied = publish_copying(criterion, &mut loaded);
    let dispatched = transition(criterion, &mut loaded, "dispatched", Transition::Dispatched);
    let started = transition(criterion, &mut loaded, "started", Transition::Started);
    let finished = transition(criterion, &mut loaded, "finished", Transition::Finished);
    let taken_back = transition(criterion, &mut loaded, "taken back", Transition::TakenBack);
    let operator = single_operators(criterion, &mut loaded);
    let (allocator, blocks) = (best_fit(criterion), kv_pool(criterion));
    if loaded.gmg.view().version() == version || from_large.is_nan() || allocator.is_nan() {
        return Ok(());
    }
    let us = |ns: f64| ns / 1000.0;
    println!("\nbeside the targets, {live} operators, median of 30 samples, one thread:");
    println!("  branch from a snapshot of 10,000 operators     {from_small:>12.1} ns");
    println!("  branch, 100 local changes, drop (no simulation) {:>11.1} us", us(local));
    println!("  the same, scattered                            {:>12.1} us", us(scattered));
    println!("  publish after 100 deltas when readers lag      {:>12.1} us", us(copied));
    println!("  an iteration of 16 sequences dispatched        {dispatched:>12.1} ns");
    println!("  started                                        {started:>12.1} ns");
    println!("  finished                                       {finished:>12.1} ns");
    println!("  taken back                                     {taken_back:>12.1} ns");
    println!("  one operator of an iteration finished          {operator:>12.1} ns");
    println!("  KV pool, release and grow by 1 to 8 blocks     {blocks:>12.1} ns\n");
    print_and_write(
        "gmg",
        &[
            Target::at_most("branch from a snapshot", from_large, "ns", 100.0),
            Target::at_most("publish a snapshot after a pass of 100 deltas", us(published), "us", 20.0),
            // Over the life of an iteration: dispatched, started, finished.
            Target::at_most("apply one state transition", (dispatched + started + finished) / 3.0, "ns", 60.0),
            Target::at_most("allocator bookkeeping", allocator, "ns", 50.0),
        ],
    )?;
    Ok(())
}
