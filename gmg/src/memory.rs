//! Memory bookkeeping: the one implementation of what lies where on a device.
//!
//! Nothing here touches real memory. A reservation made by [`Gmg::accept`](crate::Gmg::accept)
//! fixes an offset; whoever executes obeys it. So a log that is replayed gives equal offsets and
//! equal peaks, and a forecast counts the same bytes as the run.
//!
//! A device is laid out once ([`DeviceLayout`]):
//!
//! ```text
//! | weight slots (best fit) | activation arena (best fit) | staging | KV blocks ... |
//! ```
//!
//! What must stay true: regions of one part never overlap; every KV block is free or belongs to
//! sequences of exactly one tenant; [`Ledger`] equals the sum over what is reserved.

mod best_fit;
mod device;
mod kv_pool;
mod layout;
mod ledger;
mod orders;
mod parts;
mod reclaim;

pub use best_fit::BestFit;
#[cfg(feature = "serde")]
pub(crate) use device::SavedDevice;
pub use device::{DeviceMemory, WeightState};
#[cfg(feature = "serde")]
pub(crate) use kv_pool::SavedPool;
pub use kv_pool::{Draft, KvPool, Owned};
pub use layout::DeviceLayout;
pub(crate) use layout::LayoutFault;
pub use ledger::{ByteKind, Ledger};
pub use orders::{MayExceed, NotBefore, Orders, Step};
pub use parts::{Residency, WeightPart};
pub use reclaim::{Lent, Reclaim, ReclaimTimes, reclaim_order, time_to_free};

use crate::units::Bytes;

/// Bytes at a fixed place of a device, or of a job's part of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Region {
    /// Distance from the start of the device's memory; in an
    /// [`ActivationLayout`](crate::graph::ActivationLayout), from the start of the job's part of the arena.
    pub offset: Bytes,
    /// Length.
    pub bytes: Bytes,
}

impl Region {
    /// One past the last byte.
    pub fn end(&self) -> Bytes {
        self.offset + self.bytes
    }
}
