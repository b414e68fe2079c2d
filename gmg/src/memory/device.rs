//! The memory of one device.

#[cfg(feature = "serde")]
mod saved;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

#[cfg(feature = "serde")]
pub(crate) use saved::SavedDevice;

use crate::id::{DeviceId, ModelId, RequestId, TenantId, TransferId};
use crate::memory::{BestFit, ByteKind, DeviceLayout, KvPool, Ledger, Owned, Region, WeightPart};
use crate::units::Bytes;

/// Whether a model's weights are on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum WeightState {
    /// On their way; the region is reserved.
    Loading,
    /// There, usable.
    Resident,
    /// About to go: what uses them may end, nothing new may begin.
    Evicting,
}

/// Everything that is reserved on one device.
///
/// Its large parts are shared between copies until one of them changes its own. So a branch copies
/// a few cache lines of a device that it touches, and the KV pool or the weights only when it
/// changes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    layout: DeviceLayout,
    weights: Arc<Weights>,
    staging: Arc<Staging>,
    arena: BestFit,
    kv: Arc<KvPool>,
    ledger: Ledger,
    departures: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Weights {
    slots: BestFit,
    models: BTreeMap<ModelId, (Region, WeightState)>,
    /// What has arrived of whole models that are loading.
    loaded: BTreeMap<ModelId, Bytes>,
    parts: Vec<WeightPart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Staging {
    slots: BestFit,
    transfers: BTreeMap<TransferId, Region>,
}

impl DeviceMemory {
    /// A device laid out as `layout`, with nothing on it.
    pub fn new(layout: DeviceLayout) -> Self {
        let arena = Region { offset: layout.weights, bytes: layout.arena };
        let staging = Region { offset: arena.end(), bytes: layout.staging };
        Self {
            layout,
            weights: Arc::new(Weights {
                slots: BestFit::new(Region { offset: Bytes::ZERO, bytes: layout.weights }),
                models: BTreeMap::new(),
                loaded: BTreeMap::new(),
                parts: Vec::new(),
            }),
            staging: Arc::new(Staging { slots: BestFit::new(staging), transfers: BTreeMap::new() }),
            arena: BestFit::new(arena),
            kv: Arc::new(KvPool::new(layout.kv_blocks())),
            ledger: Ledger::default(),
            departures: 0,
        }
    }

    /// A device laid out as `layout`, in place of this one, with nothing on it.
    pub(crate) fn emptied(&self, layout: DeviceLayout) -> Self {
        Self { departures: self.departures.wrapping_add(1), ..Self::new(layout) }
    }

    /// How often sequences left: while it stands, every sequence that was here still is.
    pub(crate) fn departures(&self) -> u32 {
        self.departures
    }

    /// How the memory is divided.
    pub fn layout(&self) -> &DeviceLayout {
        &self.layout
    }

    /// Bytes in use, by kind.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The KV blocks.
    pub fn kv(&self) -> &KvPool {
        &self.kv
    }

    /// KV blocks that lie in the part for weights now.
    pub fn borrowed_blocks(&self) -> u32 {
        self.kv.total().saturating_sub(self.layout.kv_blocks())
    }

    /// The most KV blocks that the part for weights has room for behind the weights that are there.
    pub fn borrowable_blocks(&self) -> u32 {
        self.layout.borrowable_from(self.weights.slots.free_from())
    }

    /// Lets the KV pool have `blocks` blocks in the part for weights, from its end, and says which blocks
    /// moved for it. [`None`], and nothing changes, if weights lie there, or if what sequences have does not
    /// fit into the blocks that remain.
    pub(crate) fn borrow_slots(&mut self, blocks: u32) -> Option<Vec<(u32, u32)>> {
        if blocks > self.borrowable_blocks() {
            return None;
        }
        let moves = Arc::make_mut(&mut self.kv).resize(self.layout.kv_blocks().checked_add(blocks)?)?;
        Arc::make_mut(&mut self.weights).slots.end_at(self.layout.weights_end(blocks));
        Some(moves)
    }

    /// The weight slots.
    pub fn weight_slots(&self) -> &BestFit {
        &self.weights.slots
    }

    /// The activation arena.
    pub fn arena(&self) -> &BestFit {
        &self.arena
    }

    /// The buffers of transfers under way.
    pub fn staging(&self) -> &BestFit {
        &self.staging.slots
    }

    /// Where the bytes of a transfer lie while it is under way.
    pub fn staging_region(&self, transfer: TransferId) -> Option<Region> {
        self.staging.transfers.get(&transfer).copied()
    }

    /// Whether the weights of `model` are here; [`None`] if they are not.
    pub fn weight_state(&self, model: ModelId) -> Option<WeightState> {
        self.weights.models.get(&model).map(|&(_, state)| state)
    }

    /// Where the weights of `model` lie, loaded or loading.
    pub fn weight_region(&self, model: ModelId) -> Option<Region> {
        self.weights.models.get(&model).map(|&(region, _)| region)
    }

    /// The models with a region here, ascending, with their state.
    pub fn models(&self) -> impl Iterator<Item = (ModelId, WeightState)> + '_ {
        self.weights.models.iter().map(|(&model, &(_, state))| (model, state))
    }

    /// Reserves a slot for weights. [`None`] if there is no room or the model has one.
    pub(crate) fn reserve_weights(&mut self, model: ModelId, bytes: Bytes, state: WeightState) -> Option<Region> {
        if self.weights.models.contains_key(&model) {
            return None;
        }
        let weights = Arc::make_mut(&mut self.weights);
        let region = weights.slots.allocate(bytes)?;
        weights.models.insert(model, (region, state));
        self.ledger.add(ByteKind::Weights, region.bytes);
        Some(region)
    }

    pub(crate) fn weights_arrived(&mut self, model: ModelId) -> bool {
        if self.weight_state(model) != Some(WeightState::Loading) {
            return false;
        }
        let weights = Arc::make_mut(&mut self.weights);
        weights.loaded.remove(&model);
        if let Some((_, state)) = weights.models.get_mut(&model) {
            *state = WeightState::Resident;
        }
        true
    }

    pub(crate) fn drain_weights(&mut self, model: ModelId) -> bool {
        match Arc::make_mut(&mut self.weights).models.get_mut(&model) {
            Some((_, state @ WeightState::Resident)) => {
                *state = WeightState::Evicting;
                true
            }
            _ => false,
        }
    }

    /// What has arrived of a whole model that is loading.
    pub(crate) fn loaded(&self, model: ModelId) -> Bytes {
        self.weights.loaded.get(&model).copied().unwrap_or(Bytes::ZERO)
    }

    /// So many bytes of what is loading have arrived. False if nothing is, or fewer than before.
    pub(crate) fn weights_progress(&mut self, model: ModelId, ops: &Range<u32>, loaded: Bytes) -> bool {
        if let Some(&(region, WeightState::Loading)) = self.weights.models.get(&model) {
            let grows = self.loaded(model) <= loaded;
            if grows {
                Arc::make_mut(&mut self.weights).loaded.insert(model, loaded.min(region.bytes));
            }
            return grows;
        }
        match self.part_mut(model, ops) {
            Some(part) if part.state == WeightState::Loading && part.loaded <= loaded => {
                part.loaded = loaded.min(part.region.bytes);
                true
            }
            _ => false,
        }
    }

    pub(super) fn parts(&self) -> &[WeightPart] {
        &self.weights.parts
    }

    pub(crate) fn part_mut(&mut self, model: ModelId, ops: &Range<u32>) -> Option<&mut WeightPart> {
        let parts = &mut Arc::make_mut(&mut self.weights).parts;
        parts.iter_mut().find(|part| part.model == model && part.ops == *ops)
    }

    /// Reserves a slot for the weights of some operators. [`None`] if there is no room.
    pub(crate) fn reserve_part(&mut self, model: ModelId, ops: Range<u32>, bytes: Bytes) -> Option<Region> {
        let weights = Arc::make_mut(&mut self.weights);
        let region = weights.slots.allocate(bytes)?;
        let place = weights.parts.partition_point(|part| (part.model, part.ops.start) < (model, ops.start));
        let part = WeightPart { model, ops, region, state: WeightState::Loading, loaded: Bytes::ZERO };
        weights.parts.insert(place, part);
        self.ledger.add(ByteKind::Weights, region.bytes);
        Some(region)
    }

    pub(crate) fn release_part(&mut self, model: ModelId, ops: &Range<u32>) -> bool {
        let found = |part: &WeightPart| part.model == model && part.ops == *ops;
        let Some(place) = self.weights.parts.iter().position(found) else { return false };
        let weights = Arc::make_mut(&mut self.weights);
        let part = weights.parts.remove(place);
        self.ledger.remove(ByteKind::Weights, part.region.bytes);
        weights.slots.free(part.region)
    }

    pub(crate) fn release_weights(&mut self, model: ModelId) -> bool {
        let Some(region) = self.weight_region(model) else { return false };
        self.ledger.remove(ByteKind::Weights, region.bytes);
        let weights = Arc::make_mut(&mut self.weights);
        weights.models.remove(&model);
        weights.loaded.remove(&model);
        weights.slots.free(region)
    }

    /// Reserves a buffer for a transfer. [`None`] if there is no room or the transfer has one.
    pub(crate) fn reserve_staging(&mut self, transfer: TransferId, bytes: Bytes) -> Option<Region> {
        if self.staging.transfers.contains_key(&transfer) {
            return None;
        }
        let staging = Arc::make_mut(&mut self.staging);
        let region = staging.slots.allocate(bytes)?;
        staging.transfers.insert(transfer, region);
        self.ledger.add(ByteKind::Staging, region.bytes);
        Some(region)
    }

    pub(crate) fn release_staging(&mut self, transfer: TransferId) -> bool {
        let Some(region) = self.staging_region(transfer) else { return false };
        self.ledger.remove(ByteKind::Staging, region.bytes);
        let staging = Arc::make_mut(&mut self.staging);
        staging.transfers.remove(&transfer);
        staging.slots.free(region)
    }

    pub(crate) fn reserve_arena(&mut self, bytes: Bytes) -> Option<Region> {
        let region = self.arena.allocate(bytes)?;
        self.ledger.add(ByteKind::Activations, region.bytes);
        Some(region)
    }

    pub(crate) fn release_arena(&mut self, region: Region) -> bool {
        let freed = self.arena.free(region);
        if freed {
            self.ledger.remove(ByteKind::Activations, region.bytes);
        }
        freed
    }

    pub(crate) fn grow_kv(&mut self, request: RequestId, tenant: TenantId, blocks: u32) -> bool {
        let grown = Arc::make_mut(&mut self.kv).grow(request, tenant, blocks);
        if grown && blocks > 0 {
            self.ledger.add(ByteKind::Kv, self.layout.kv_block.times(u64::from(blocks)));
        }
        grown
    }

    /// See [`KvPool::share`].
    pub(crate) fn share_kv(&mut self, request: RequestId, tenant: TenantId, hashes: &[u64]) -> u32 {
        self.change_kv(|kv| kv.share(request, tenant, hashes))
    }

    /// See [`KvPool::publish`].
    pub(crate) fn publish_kv(&mut self, request: RequestId, first: u32, hashes: &[u64]) -> bool {
        Arc::make_mut(&mut self.kv).publish(request, first, hashes)
    }

    /// See [`KvPool::keep_for`].
    pub(crate) fn keep_kv_for(&mut self, tenant: TenantId) {
        Arc::make_mut(&mut self.kv).keep_for(tenant);
    }

    /// See [`KvPool::fork`].
    pub(crate) fn fork_kv(&mut self, of: RequestId, request: RequestId) -> bool {
        Arc::make_mut(&mut self.kv).fork(of, request)
    }

    /// See [`KvPool::own`].
    pub(crate) fn own_kv(&mut self, request: RequestId, index: u32) -> Option<Owned> {
        self.change_kv(|kv| kv.own(request, index))
    }

    /// See [`KvPool::drop_cached`].
    pub(crate) fn drop_cached_kv(&mut self, tenant: Option<TenantId>) -> u32 {
        Arc::make_mut(&mut self.kv).drop_cached(tenant)
    }

    /// Counts the blocks that a change gives to sequences.
    fn change_kv<R>(&mut self, change: impl FnOnce(&mut KvPool) -> R) -> R {
        let kv = Arc::make_mut(&mut self.kv);
        let before = kv.used_blocks();
        let result = change(kv);
        let more = kv.used_blocks().saturating_sub(before);
        if more > 0 {
            self.ledger.add(ByteKind::Kv, self.layout.kv_block.times(u64::from(more)));
        }
        result
    }

    pub(crate) fn add_kv_part(&mut self, request: RequestId, device: DeviceId) {
        Arc::make_mut(&mut self.kv).add_part(request, device);
    }

    pub(crate) fn release_kv(&mut self, request: RequestId) -> u32 {
        self.departures = self.departures.wrapping_add(1);
        let blocks = Arc::make_mut(&mut self.kv).release(request);
        self.ledger.remove(ByteKind::Kv, self.layout.kv_block.times(u64::from(blocks)));
        blocks
    }

    pub(crate) fn reserve_external(&mut self, bytes: Bytes) {
        self.ledger.add(ByteKind::External, bytes);
    }

    pub(crate) fn release_external(&mut self, bytes: Bytes) {
        self.ledger.remove(ByteKind::External, bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::memory::layout::testing::layout;

    proptest! {
        /// Whatever comes and goes: blocks and weights never share a byte, every block has one owner, and what
        /// moves arrives where its sequence looks for it.
        #[test]
        fn weights_and_blocks_share_a_region_without_sharing_a_byte(
            steps in prop::collection::vec((0u8..5, 0u32..6, 0u32..14), 1..200),
        ) {
            let mut memory = DeviceMemory::new(layout());
            let mut content: HashMap<u32, (u64, usize)> = HashMap::new();
            for (what, which, amount) in steps {
                let (model, request) = (ModelId(which), RequestId(u64::from(which)));
                match what {
                    0 => drop(memory.reserve_weights(model, Bytes(256 * 100), WeightState::Resident)),
                    1 => drop(memory.release_weights(model)),
                    2 => {
                        memory.grow_kv(request, TenantId(0), amount);
                        content.extend((0..).zip(memory.kv().table(request)).map(|(at, &block)| (block, (request.0, at))));
                    }
                    3 => {
                        memory.release_kv(request);
                    }
                    _ => {
                        let before = memory.clone();
                        match memory.borrow_slots(amount) {
                            Some(moves) => {
                                prop_assert_eq!(memory.borrowed_blocks(), amount);
                                for (from, to) in moves {
                                    prop_assert!(to < memory.kv().total() && memory.kv().total() <= from);
                                    let held = content[&from];
                                    content.insert(to, held);
                                }
                            }
                            None => prop_assert_eq!(&memory, &before),
                        }
                    }
                }
                let mut used = 0;
                for request in memory.kv().sequences() {
                    for (at, block) in memory.kv().table(request).iter().enumerate() {
                        used += 1;
                        prop_assert_eq!(content[block], (request.0, at));
                    }
                }
                prop_assert_eq!(used, memory.kv().used_blocks(), "no block has two owners");
                let end = memory.models().filter_map(|(model, _)| memory.weight_region(model)).map(|region| region.end()).max();
                let begin = layout().weights_end(memory.borrowed_blocks());
                prop_assert!(end.unwrap_or_default() <= begin);
                prop_assert!(memory.borrowable_blocks() >= memory.borrowed_blocks());
                prop_assert_eq!(memory.ledger().of(ByteKind::Kv), layout().kv_block.times(u64::from(used)));
            }
        }
    }
}
