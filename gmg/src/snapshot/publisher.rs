//! Published copies of the live graph, and how they catch up.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::snapshot::Snapshot;
use crate::state::{Changes, State};
use crate::view::GmgView;

/// Copies that are kept at most: one for readers, one to be handed out next, and one more while a reader lags. What
/// it means for callers is said at [`Gmg::publish`](crate::Gmg::publish).
const COPIES: usize = 3;

/// The published copies, older first. Each has the changes that lead from it to the next one, and the
/// last one those that lead to the live graph.
#[derive(Debug, Default)]
pub(crate) struct Publisher {
    copies: VecDeque<(Arc<State>, Changes)>,
    /// Emptied, for the next copy.
    spare: Vec<Changes>,
}

impl Publisher {
    /// Where changes of the live graph are to be written down, if somebody will want them.
    pub(crate) fn listening(&mut self) -> Option<&mut Changes> {
        if self.copies.back().is_some_and(|(_, changes)| !changes.is_complete()) {
            self.copies.clear();
        }
        self.copies.back_mut().map(|(_, changes)| changes)
    }

    pub(crate) fn publish(&mut self, live: &State) -> Snapshot {
        if let Some((last, _)) = self.copies.back()
            && last.version() == live.version()
        {
            return Snapshot(last.clone());
        }
        self.listening();
        let copy = match self.copies.iter_mut().rposition(|(copy, _)| Arc::get_mut(copy).is_some()) {
            Some(free) => {
                // Whoever holds a copy that is older still may keep it.
                self.spare.extend(self.copies.drain(..free).map(|(_, changes)| changes));
                self.catch_up(live)
            }
            None => Arc::new(live.clone()),
        };
        if self.copies.len() == COPIES {
            self.spare.extend(self.copies.pop_front().map(|(_, changes)| changes));
        }
        let mut changes = self.spare.pop().unwrap_or_default();
        self.spare.truncate(COPIES);
        changes.restart(live.free_slots());
        self.copies.push_back((copy.clone(), changes));
        Snapshot(copy)
    }

    /// Takes the oldest copy, which nobody else holds, and makes it equal to `live`.
    fn catch_up(&mut self, live: &State) -> Arc<State> {
        let Some((mut copy, own)) = self.copies.pop_front() else { return Arc::new(live.clone()) };
        match Arc::get_mut(&mut copy) {
            Some(state) => {
                let later = self.copies.iter().map(|(_, changes)| changes);
                state.catch_up(live, std::iter::once(&own).chain(later));
            }
            None => copy = Arc::new(live.clone()),
        }
        self.spare.push(own);
        copy
    }
}
