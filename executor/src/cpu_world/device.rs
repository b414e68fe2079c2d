//! One device of the world: its memory, its lanes, and what its memory holds.

use std::collections::BTreeMap;
use std::sync::Arc;

use crossbeam::channel::Sender;
use slicescheduler_gmg::id::{DeviceId, LaneId, ModelId};
use slicescheduler_gmg::memory::{DeviceLayout, Region as Reserved};
use slicescheduler_gmg::units::Bytes;

use super::claims::Claims;
use crate::arena::{ARENA_ALIGN, Arena, Region};
use crate::backend::{Backend, CpuBackend};
use crate::error::{ExecutorError, Result};
use crate::kernels::KvPool;
use crate::lane::{Lane, LaneClock, LaneEvent, ThreadSpawner};

/// A device of CPU lanes over one arena, divided as the graph divides it.
#[derive(Debug)]
pub(super) struct Device {
    id: DeviceId,
    /// Before the arena, so that nobody runs when it goes.
    pub(super) lanes: Vec<Lane>,
    pub(super) arena: Arc<Arena>,
    pub(super) layout: DeviceLayout,
    pub(super) claims: Claims,
    /// Models whose weights lie here, and where.
    pub(super) loaded: BTreeMap<ModelId, Region>,
    /// It is gone. Its memory and lanes stay until the world ends, since operators may still run.
    pub(super) lost: bool,
}

impl Device {
    pub(super) fn start(
        id: DeviceId,
        lanes: u16,
        layout: DeviceLayout,
        threads: &dyn ThreadSpawner,
        clock: &LaneClock,
        events: &Sender<LaneEvent>,
    ) -> Result<Self> {
        let blocks = layout.kv_blocks();
        let arena = CpuBackend.allocate(Self::size(&layout))?;
        let lanes = (0..lanes)
            .map(|lane| CpuBackend.start_lane(LaneId::new(id, lane), threads, clock.clone(), events.clone()))
            .collect::<Result<_>>()?;
        Ok(Self { id, lanes, arena, layout, claims: Claims::new(id, blocks), loaded: BTreeMap::new(), lost: false })
    }

    /// Bytes of a device that is divided like this.
    pub(super) fn size(layout: &DeviceLayout) -> Bytes {
        layout.kv_offset() + layout.kv_block.times(u64::from(layout.kv_blocks()))
    }

    /// Where its KV blocks lie.
    pub(super) fn pool(&self) -> KvPool {
        let size = self.layout.kv_block.times(u64::from(self.layout.kv_blocks()));
        KvPool { region: Region::new(self.layout.kv_offset(), size), block_bytes: self.layout.kv_block }
    }

    /// The part of the device for weights.
    pub(super) fn weights(&self) -> Region {
        Region::new(Bytes::ZERO, self.layout.weights)
    }

    /// The part of the device for activations.
    pub(super) fn activations(&self) -> Region {
        Region::new(self.layout.weights, self.layout.arena)
    }

    /// A region that the graph reserved, which must lie within `part` and start on a boundary that
    /// kernels want.
    pub(super) fn granted(&self, what: &'static str, reserved: Reserved, part: Region) -> Result<Region> {
        let (offset, size) = (reserved.offset, reserved.bytes);
        let region = Region::new(offset, size);
        if !part.contains(&region) {
            return Err(ExecutorError::OutsidePart {
                what,
                device: self.id,
                offset,
                size,
                part_offset: part.offset,
                part_size: part.size,
            });
        }
        if !offset.get().is_multiple_of(ARENA_ALIGN as u64) {
            return Err(ExecutorError::RegionMisaligned { offset, size, element: ARENA_ALIGN });
        }
        Ok(region)
    }
}
