//! Graphs in other people's formats: DOT, Chrome JSON (which Perfetto opens), Chakra ET.
//!
//! ```
//! use slicescheduler_gmg::export::{self, Source};
//! use slicescheduler_gmg::shape::Binding;
//! use slicescheduler_gmg::templates::{DenseSpec, dense};
//!
//! let graph = dense(&DenseSpec::tiny())?;
//! let mut dot = Vec::new();
//! export::dot(Source::new(&graph, &Binding::iteration(16, 1, 16, 136)), &mut dot)?;
//! assert!(dot.starts_with(b"digraph {"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "chakra")]
mod chakra;
mod dot;
mod perfetto;

#[cfg(feature = "chakra")]
pub use chakra::chakra;
pub use dot::dot;
pub use perfetto::perfetto;

#[cfg(feature = "chakra")]
use std::borrow::Cow;

use crate::graph::OpGraph;
#[cfg(feature = "chakra")]
use crate::graph::OpView;
use crate::id::OpIndex;
#[cfg(feature = "chakra")]
use crate::import::{Communication, Pattern};
use crate::import::{Import, OpRecord};
#[cfg(feature = "chakra")]
use crate::semantics::OpKind;
use crate::shape::Binding;
use crate::units::Nanos;

/// How a timeline says whose it is: a field of the document, a field of that, its value. Viewers show it, and the
/// importer knows it by that.
pub(crate) const TIMELINE: (&str, &str, &str) = ("otherData", "exporter", "SliceScheduler timeline");

/// What is exported: a graph under a binding, and what is known about its operators.
#[derive(Clone, Copy, Debug)]
pub struct Source<'s> {
    graph: &'s OpGraph,
    binding: Binding,
    ops: &'s [OpRecord],
    lanes: &'s [Box<str>],
}

impl<'s> Source<'s> {
    /// A graph of whose operators nothing was measured.
    pub fn new(graph: &'s OpGraph, binding: &Binding) -> Self {
        Self { graph, binding: *binding, ops: &[], lanes: &[] }
    }

    /// The same with records: one per operator, by [`OpIndex`]. Operators beyond the end of the
    /// slice have none; a record's lane is an index into `lanes`.
    #[must_use]
    pub fn with_records(self, ops: &'s [OpRecord], lanes: &'s [Box<str>]) -> Self {
        Self { ops, lanes, ..self }
    }

    fn record(&self, op: OpIndex) -> Option<&'s OpRecord> {
        self.ops.get(op.index())
    }

    #[cfg(feature = "chakra")]
    fn lane(&self, op: OpIndex) -> Option<&'s str> {
        let lane = self.record(op)?.lane?;
        self.lanes.get(lane as usize).map(|lane| &**lane)
    }

    /// What an operator sends and receives: what was recorded, or what its kind says.
    #[cfg(feature = "chakra")]
    fn communication(&self, view: &OpView<'_>) -> Option<Cow<'s, Communication>> {
        if let Some(recorded) = self.record(view.index()).and_then(|record| record.communication.as_deref()) {
            return Some(Cow::Borrowed(recorded));
        }
        let OpKind::Collective(collective) = *view.kind() else { return None };
        let cost = view.cost(&self.binding);
        let known = Communication::new(Pattern::of_name(collective.name()), cost.read.max(cost.written));
        Some(Cow::Owned(Communication { ranks: Some(collective.ranks()), ..known }))
    }

    /// By operator: its start; where none was recorded, when all its predecessors have finished.
    fn starts(&self) -> Vec<Nanos> {
        let mut starts: Vec<Nanos> = Vec::with_capacity(self.graph.op_count() as usize);
        let duration = |op: OpIndex| self.record(op).and_then(|record| record.duration).unwrap_or_default();
        for op in (0..self.graph.op_count()).map(OpIndex) {
            let recorded = self.record(op).and_then(|record| record.start);
            let possible = || {
                let finishes = self.graph.predecessors(op).map(|before| starts[before.index()] + duration(before));
                finishes.max().unwrap_or_default()
            };
            let start = recorded.unwrap_or_else(possible);
            starts.push(start);
        }
        starts
    }
}

impl<'s> From<&'s Import> for Source<'s> {
    fn from(import: &'s Import) -> Self {
        Self::new(&import.graph, &Binding::new()).with_records(&import.ops, &import.lanes)
    }
}
