//! What a version says, as one number.
//!
//! The number depends on the content only: not on the order in which things came, on which slots jobs
//! and blocks got, on the machine, or on how the tables are kept. Two graphs that say the same about the
//! same cluster have equal numbers; graphs that differ have different ones, but for the 2^-64 of chance.
//!
//! Left out is what follows from history alone: offsets and block numbers, generations, high-water
//! marks, the version counter. A job counts by what it is, not by its id.

mod encoding;

use std::fmt;

use crate::cluster::Cluster;
use crate::graph::{OpGraph, Tensor};
use crate::id::{DeviceId, JobId, LaneId, LinkId, TensorId};
use crate::job::{Job, JobSpec};
use crate::memory::ByteKind;
use crate::semantics::OpKind;
use crate::shape::{Binding, Symbol};
use crate::state::State;
use crate::view::GmgView;
use encoding::Canon;

/// The content of a version, as one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentHash(pub u64);

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl OpGraph {
    /// A number that is equal for graphs of equal names, operators, tensors and edges, on every
    /// machine. Of a custom operator, its kind and its cost under one binding count. O(stored operators
    /// and tensors).
    pub fn fingerprint(&self) -> u64 {
        let mut canon = Canon::default();
        canon.put(self.name());
        for segment in self.segments() {
            canon.put(segment.block()).put(segment.repeat()).put(segment.op_range().start);
            // The second repetition shows what is carried from one to the next.
            for repetition in 0..segment.repeat().min(2) {
                for slot in segment.slots() {
                    let Some(op) = segment.op(slot, repetition).and_then(|op| self.op(op)) else { continue };
                    canon.put(&*op.name().to_string()).put(op.kind());
                    canon.list(op.inputs()).list(op.outputs()).list(self.predecessors(op.index()));
                    if let OpKind::Custom(_) = op.kind() {
                        let binding = Symbol::all().fold(Binding::new(), |binding, symbol| binding.bind(symbol, 17));
                        canon.put(op.cost(&binding));
                    }
                }
            }
        }
        let tensors = (0..self.tensor_count()).filter_map(|id| self.tensor(TensorId(id)));
        for view in tensors.filter(|view| view.repetition == 0) {
            let Tensor { name, dtype, shape, role } = view.tensor;
            canon.put(&**name).put(dtype).put(shape).put(role);
        }
        canon.finish()
    }
}

impl Cluster {
    /// A number that is equal for clusters of equal nodes, devices and links, failed or not, on every machine.
    /// O(devices + links).
    pub fn fingerprint(&self) -> u64 {
        let mut canon = Canon::default();
        for node in self.nodes() {
            canon.put(&*node.name).put(node.host_memory).put(&node.devices);
            for device in node.device_ids().filter_map(|id| self.device(id)) {
                canon.put(&device.spec);
            }
        }
        canon.put(self.links());
        canon.finish()
    }
}

/// What a job is, without what it comes after.
fn spec(canon: &mut Canon, spec: &JobSpec) {
    let JobSpec { key, model, binding, release, after: _, rows, growth, gang } = spec;
    canon.put(key).put(model).put(binding).put(release).put(&rows[..]).put(&growth[..]).put(gang);
}

/// What a job is and how far it has come, without its ids.
fn job(job: &Job) -> u64 {
    let mut canon = Canon::default();
    spec(&mut canon, &job.spec);
    canon.list(job.segments.iter());
    canon.put(job.arena.map(|(device, _)| device)).put(job.arena.map(|(_, region)| region.bytes)).put(job.kv_on);
    canon.put(job.waiting_for).put(job.gang.as_ref().is_some_and(|gang| gang.is_broken()));
    canon.finish()
}

impl State {
    /// The content of this version, as one number; see [`ContentHash`]. O(n log n) in requests and jobs,
    /// O(n) in everything else.
    pub fn content_hash(&self) -> ContentHash {
        let mut canon = Canon::default();
        let cluster = self.cluster();
        canon.put(cluster.fingerprint());
        canon.list((0..cluster.links().len() as u32).map(|link| cluster.is_failed(LinkId(link))));
        canon.put(self.tenants());
        for model in self.models() {
            canon.put(&model.name).put(model.tenant).put(model.template.fingerprint());
            canon.put(model.weights).put(model.kv_bytes_per_token);
        }
        canon.put(self.containers());
        for id in self.request_ids() {
            canon.put(id).put(self.request(id));
        }
        let mut ids = Vec::new();
        self.jobs(&mut ids);
        let hashes: Vec<(JobId, u64)> = ids.iter().filter_map(|&id| Some((id, job(self.job(id)?)))).collect();
        let of = |id: JobId| hashes.binary_search_by_key(&id, |&(id, _)| id).map_or(0, |place| hashes[place].1);
        let mut jobs: Vec<u64> = Vec::with_capacity(ids.len());
        for &id in &ids {
            let Some(found) = self.job(id) else { continue };
            let after = found.spec.after.iter().filter(|&&id| self.job(id).is_some()).map(|&id| of(id));
            jobs.push(Canon::default().put(of(id)).list(after).finish());
        }
        jobs.sort_unstable();
        canon.put(&jobs[..]);
        for device in (0..cluster.devices().len() as u32).map(DeviceId) {
            self.device(&mut canon, device, of);
        }
        ContentHash(canon.finish())
    }

    fn device(&self, canon: &mut Canon, device: DeviceId, job: impl Fn(JobId) -> u64) {
        canon.put(device).put(self.is_lost(device)).put(self.container_of(device));
        let lanes = self.cluster().device(device).map_or(0, |device| device.spec.lanes);
        for lane in (0..lanes).filter_map(|index| self.lane(LaneId::new(device, index))) {
            canon.put(lane.queue().len() as u64);
            for entry in lane.queue() {
                canon.put(job(entry.job)).put(&entry.ops).put(entry.rank);
            }
        }
        let Some(memory) = self.memory(device) else { return };
        canon
            .put(memory.layout())
            .put(memory.borrowed_blocks())
            .put(ByteKind::ALL.map(|kind| memory.ledger().of(kind).get()));
        canon.put(memory.models().count() as u64);
        for (model, state) in memory.models() {
            canon.put(model).put(state).put(memory.loaded(model));
        }
        canon.put(memory.weight_parts());
        let sequences = memory.kv().sequences();
        canon.put(sequences.len() as u64);
        for request in sequences {
            canon.put(request).put(memory.kv().table(request).len() as u64).put(memory.kv().parts(request));
        }
        let mut shared = Vec::new();
        memory.kv().sharing(|said| shared.push(said));
        canon.list(shared);
    }
}
