//! Where nodes lie in memory.
//!
//! Outside, a node is known by its number, in the order in which nodes were added; inside of the engine it is its place.
//! What depends on numbers goes by them: timers, ties, and who is named in a violation.
//!
//! With few lanes nodes lie in the order of their numbers, which is about that in which they start: the few that are needed
//! next are neighbours, and those behind them are [read ahead](super::Engine::read_on). With many lanes that are filled
//! in turn, the next node of a lane would be far from its last one, on a page of its own, and every start of
//! a node would wait for memory. There each lane has *chunks* of neighbouring places, each larger than the
//! one before up to a page, and a node of the lane takes the next of them.

use super::Held;
use super::node::{NONE, State};

/// From so many lanes on each lane has chunks.
const MANY: usize = 256;

/// Places of the largest chunk: its nodes fill a page.
const LARGEST: u32 = 64;

/// The places that a lane has left.
#[derive(Clone, Copy, Debug, Default)]
struct Chunk {
    next: u32,
    end: u32,
    /// Places that it had.
    size: u32,
}

/// Nodes and what they hold.
#[derive(Debug, Default)]
pub(super) struct Store {
    /// By number.
    places: Vec<u32>,
    /// By lane.
    chunks: Vec<Chunk>,
    /// Of nodes that are on no lane.
    elsewhere: Chunk,
    /// True if places are not in the order of numbers.
    by_lane: bool,
    /// By place: the first hold of its node, if that holds something.
    first: Vec<Held>,
    /// The other holds of nodes that have several.
    more: Vec<Held>,
}

impl Store {
    pub(super) fn clear(&mut self) {
        self.places.clear();
        self.chunks.clear();
        self.elsewhere = Chunk::default();
        self.by_lane = false;
        self.first.clear();
        self.more.clear();
    }

    /// Nodes that were added.
    pub(super) fn count(&self) -> u32 {
        self.places.len() as u32
    }

    /// Where node `number` lies; at no place if there is none.
    pub(super) fn place(&self, number: u32) -> u32 {
        self.places.get(number as usize).copied().unwrap_or(NONE)
    }

    /// True if places are not in the order of numbers.
    pub(super) fn is_by_lane(&self) -> bool {
        self.by_lane
    }

    /// Takes in the next node, of `lane` among so many `lanes`, at the place that is returned.
    pub(super) fn add(&mut self, nodes: &mut Vec<State>, lane: u32, lanes: usize, state: State) -> u32 {
        if lanes < MANY && !self.by_lane {
            let place = nodes.len() as u32;
            nodes.push(state);
            self.first.push(Held::NONE);
            self.places.push(place);
            return place;
        }
        self.by_lane = true;
        if self.chunks.len() < lanes {
            self.chunks.resize(lanes, Chunk::default());
        }
        let chunk = self.chunks.get_mut(lane as usize).unwrap_or(&mut self.elsewhere);
        if chunk.next == chunk.end {
            let size = (2 * chunk.size).clamp(1, LARGEST);
            let next = nodes.len() as u32;
            *chunk = Chunk { next, end: next + size, size };
            nodes.resize(chunk.end as usize, State::VACANT);
            self.first.resize(chunk.end as usize, Held::NONE);
        }
        let place = chunk.next;
        chunk.next += 1;
        nodes[place as usize] = state;
        self.places.push(place);
        place
    }

    /// What the nodes at the places from `from` on hold first.
    pub(super) fn first_holds(&self, from: usize) -> &[Held] {
        self.first.get(from..).unwrap_or_default()
    }

    /// The node at `place` holds more, behind what it holds already. O(what it holds).
    pub(super) fn hold(&mut self, place: u32, held: Held) {
        let more = self.more.len() as u32;
        let first = &mut self.first[place as usize];
        if first.device == NONE {
            *first = held;
            return;
        }
        let mut last = first;
        while last.next != NONE {
            let next = last.next as usize;
            last = &mut self.more[next];
        }
        last.next = more;
        self.more.push(held);
    }

    /// What the node at `place` holds first.
    pub(super) fn first_hold(&self, place: u32) -> Option<Held> {
        self.first.get(place as usize).copied().filter(|held| held.device != NONE)
    }

    /// What a node holds behind `held`.
    pub(super) fn next_hold(&self, held: Held) -> Option<Held> {
        self.more.get(held.next as usize).copied()
    }
}
