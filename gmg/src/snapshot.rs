//! Published versions and private what-ifs.
//!
//! *Publishing.* The publisher keeps two copies of the tables and names of what changed between them.
//! A publication brings the copy that no reader holds up to date, which costs what the changes cost,
//! and hands it out. A reader that still holds both costs a third copy, once: from then on the
//! copies take turns again.
//!
//! *Branching.* A [`Branch`] shares a snapshot and keeps the entities that it changed beside it, in
//! tables that it takes from a pool and leaves there when it is dropped. Taking a branch costs one
//! reference count, whatever the size of the graph; marks nest, and a roll-back costs what was
//! changed since.

mod branch;
mod overlay;
mod publisher;
mod scratch;

use std::sync::Arc;

pub use branch::{Branch, Mark, StaleMark};
pub(crate) use publisher::Publisher;
pub(crate) use scratch::ScratchPool;

use crate::state::State;
use crate::view::View;

/// A published version: immutable, cheap to clone, shared between threads.
#[derive(Clone, Debug)]
pub struct Snapshot(Arc<State>);

impl Snapshot {
    /// The tables, for code that is generic over [`GmgView`](crate::GmgView).
    pub fn state(&self) -> &State {
        &self.0
    }

    /// The graph as it was published.
    pub fn view(&self) -> View<'_> {
        View::from(&*self.0)
    }

    /// A private copy to try things on. O(1).
    pub fn branch(&self) -> Branch {
        Branch::of(self.0.clone())
    }
}
