//! What a version says, as one number.
//!
//! The number depends on the content only: not on the order in which things came, on which slots jobs
//! and blocks got, on the machine, or on how the tables are kept. Two graphs that say the same about the
//! same cluster have equal numbers; graphs that differ have different ones, but for the 2^-64 of chance.
//!
//! Left out is what follows from history alone: offsets and block numbers, generations, high-water
//! marks, the version counter. A job counts by what it is, not by its id.

use std::fmt::{self, Write};

use xxhash_rust::xxh3::Xxh3;

use crate::graph::{OpGraph, Tensor};
use crate::id::{DeviceId, JobId, LaneId};
use crate::job::{Job, JobSpec};
use crate::memory::ByteKind;
use crate::semantics::OpKind;
use crate::shape::{Binding, Shape, Symbol};
use crate::state::State;
use crate::view::GmgView;

/// The content of a version, as one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentHash(pub u64);

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Takes values in a form that is equal on every machine. Whatever has a variable length is preceded
/// by it.
#[derive(Default)]
struct Canon(Xxh3);

impl Canon {
    fn number(&mut self, value: impl Into<u64>) -> &mut Self {
        self.0.update(&value.into().to_le_bytes());
        self
    }

    fn numbers(&mut self, values: impl IntoIterator<Item = u64>) -> &mut Self {
        let mut count = 0u64;
        for value in values {
            self.number(value);
            count += 1;
        }
        self.number(count)
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.number(text.len() as u64);
        self.0.update(text.as_bytes());
        self
    }

    /// Plain data of which every field counts, by their names and values.
    fn debug(&mut self, value: &impl fmt::Debug) -> &mut Self {
        // Neither this writer nor a derived form fails. The byte behind it is in no text.
        let written = write!(self, "{value:?}");
        debug_assert!(written.is_ok());
        self.0.update(&[0xff]);
        self
    }

    fn finish(&self) -> u64 {
        self.0.digest()
    }
}

impl Write for Canon {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}

impl OpGraph {
    /// A number that is equal for graphs of equal names, operators, tensors and edges, on every
    /// machine. Of a custom operator, its kind and its cost under one binding count. O(stored operators
    /// and tensors).
    pub fn fingerprint(&self) -> u64 {
        let mut canon = Canon::default();
        canon.text(self.name());
        for segment in self.segments() {
            canon.text(segment.block().unwrap_or_default()).number(segment.repeat()).number(segment.op_range().start);
            // The second repetition shows what is carried from one to the next.
            for repetition in 0..segment.repeat().min(2) {
                for slot in segment.slots() {
                    let Some(op) = segment.op(slot, repetition).and_then(|op| self.op(op)) else { continue };
                    canon.text(&op.name().to_string());
                    kind(&mut canon, op.kind());
                    canon.numbers(op.inputs().map(|id| u64::from(id.0)));
                    canon.numbers(op.outputs().map(|id| u64::from(id.0)));
                    canon.numbers(self.predecessors(op.index()).map(|op| u64::from(op.0)));
                    if let OpKind::Custom(_) = op.kind() {
                        let binding = Symbol::all().fold(Binding::new(), |binding, symbol| binding.bind(symbol, 17));
                        let cost = op.cost(&binding);
                        canon.numbers([cost.flops.get(), cost.weights.get(), cost.read.get(), cost.written.get()]);
                    }
                }
            }
        }
        for id in 0..self.tensor_count() {
            let Some(view) = self.tensor(crate::id::TensorId(id)).filter(|view| view.repetition < 2) else { continue };
            tensor(&mut canon, view.tensor);
        }
        canon.finish()
    }
}

fn kind(canon: &mut Canon, kind: &OpKind) {
    canon.debug(kind);
}

fn tensor(canon: &mut Canon, Tensor { name, dtype, shape, role }: &Tensor) {
    canon.text(name).debug(dtype).debug(role);
    dims(canon, shape);
}

fn dims(canon: &mut Canon, shape: &Shape) {
    let symbol = |symbol: Option<Symbol>| symbol.map_or(u64::MAX, |symbol| symbol.index() as u64);
    canon.numbers(shape.dims().iter().flat_map(|dim| [dim.coefficient, symbol(dim.symbol)]));
}

/// What a job is, without what it comes after.
fn spec(canon: &mut Canon, spec: &JobSpec) {
    canon.debug(&spec.key).number(spec.model.0).debug(&spec.binding).number(spec.release.get());
    canon.debug(&spec.rows).debug(&spec.growth).debug(&spec.gang);
}

/// What a job is and how far it has come, without its ids.
fn job(job: &Job) -> u64 {
    let mut canon = Canon::default();
    spec(&mut canon, &job.spec);
    for segment in job.segments.iter() {
        canon.number(segment.first).number(segment.end).debug(&segment.state).debug(&segment.lane);
        canon.number(segment.start.get()).number(segment.finish.get());
    }
    canon.debug(&job.arena.map(|(device, region)| (device, region.bytes))).debug(&job.kv_on);
    canon.number(job.waiting_for).number(job.gang.as_ref().is_some_and(|gang| gang.is_broken()));
    canon.finish()
}

impl State {
    /// The content of this version, as one number; see [`ContentHash`]. O(n log n) in requests and jobs,
    /// O(n) in everything else.
    pub fn content_hash(&self) -> ContentHash {
        let mut canon = Canon::default();
        self.resources(&mut canon);
        for tenant in self.tenants() {
            canon.debug(tenant);
        }
        for model in self.models() {
            canon.text(&model.name).number(model.tenant.0).number(model.template.fingerprint());
            canon.number(model.weights.get()).number(model.kv_bytes_per_token.get());
        }
        for container in self.containers() {
            canon.debug(container);
        }
        let mut requests = self.request_ids();
        requests.sort_unstable();
        for id in requests {
            canon.number(id.0).debug(&self.request(id));
        }
        let mut ids = Vec::new();
        self.jobs(&mut ids);
        let hashes: Vec<(JobId, u64)> = ids.iter().filter_map(|&id| Some((id, job(self.job(id)?)))).collect();
        let of = |id: JobId| hashes.binary_search_by_key(&id, |&(id, _)| id).map_or(0, |place| hashes[place].1);
        let mut jobs: Vec<u64> = Vec::with_capacity(ids.len());
        for &id in &ids {
            let Some(found) = self.job(id) else { continue };
            let mut canon = Canon::default();
            canon
                .number(of(id))
                .numbers(found.spec.after.iter().filter(|&&id| self.job(id).is_some()).map(|&id| of(id)));
            jobs.push(canon.finish());
        }
        jobs.sort_unstable();
        canon.numbers(jobs);
        for device in (0..self.cluster().devices().len() as u32).map(DeviceId) {
            self.device(&mut canon, device, of);
        }
        ContentHash(canon.finish())
    }

    fn resources(&self, canon: &mut Canon) {
        let cluster = self.cluster();
        for node in cluster.nodes() {
            canon.text(&node.name).number(node.host_memory.get());
            for device in node.device_ids().filter_map(|id| cluster.device(id)) {
                canon.debug(&device.spec);
            }
        }
        for (id, link) in (0..).map(crate::id::LinkId).zip(cluster.links()) {
            canon.debug(link).number(cluster.is_failed(id));
        }
    }

    fn device(&self, canon: &mut Canon, device: DeviceId, job: impl Fn(JobId) -> u64) {
        canon.number(device.0).number(self.is_lost(device)).debug(&self.container_of(device));
        let lanes = self.cluster().device(device).map_or(0, |device| device.spec.lanes);
        for lane in (0..lanes).filter_map(|index| self.lane(LaneId::new(device, index))) {
            for entry in lane.queue() {
                canon.number(job(entry.job)).debug(&entry.ops).debug(&entry.rank);
            }
            canon.number(lane.queue().len() as u64);
        }
        let Some(memory) = self.memory(device) else { return };
        canon.debug(memory.layout()).numbers(ByteKind::ALL.map(|kind| memory.ledger().of(kind).get()));
        for (model, state) in memory.models() {
            canon.number(model.0).debug(&state).debug(&memory.residency(model, &(0..u32::MAX)));
        }
        for part in memory.weight_parts() {
            canon.number(part.model.0).debug(&part.ops).debug(&part.state).number(part.loaded.get());
        }
        for request in memory.kv().sequences() {
            canon.number(request.0).number(memory.kv().table(request).len() as u64).debug(&memory.kv().parts(request));
        }
        memory.kv().sharing(|said| {
            canon.numbers(said);
        });
    }
}
