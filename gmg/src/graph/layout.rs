//! Where activations lie in the arena of a device.
//!
//! When a graph is built, every transient tensor gets a *buffer* that it shares only with tensors
//! that are never alive at the same time. That assignment holds for every job; what a job decides
//! is how large the buffers are. So the layout of a job costs a handful of multiplications, and its
//! peak is known exactly before the job is placed.
//!
//! A tensor is alive from the operator that produces it to the last one that reads it, in index
//! order, both included; inputs are alive from the start and outputs to the end. All repetitions
//! of a block use the same buffers. A tensor that is still read while the next repetition writes
//! its own has two and alternates between them.

use std::collections::BTreeMap;

use smallvec::{SmallVec, smallvec};

use super::{OpGraph, Operand, Role};
use crate::id::TensorId;
use crate::memory::Region;
use crate::shape::polynomial::Monomial;
use crate::shape::{Binding, CONTEXT, PAIRS, SEQUENCES, Symbol, TOKENS};
use crate::units::Bytes;

/// Offsets are multiples of this many bytes, the strictest alignment that kernels ask for.
const ALIGNMENT: u64 = 256;

/// Buffers that a tensor is tried in, the smallest ones: models have a handful in all, and a graph
/// with thousands of long-lived tensors is laid out in linear time.
const TRIED: usize = 256;

/// No buffer: the tensor does not live in the arena.
const NONE: u32 = u32::MAX;

/// The places of all transient tensors of a job; see [`OpGraph::activation_layout`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActivationLayout {
    offsets: SmallVec<[Bytes; 8]>,
    binding: Binding,
    peak: Bytes,
}

impl ActivationLayout {
    /// The bytes of the arena that the job needs.
    pub fn peak(&self) -> Bytes {
        self.peak
    }

    /// The place of `tensor` of `graph`, the graph that the layout was made for, from the start of the job's
    /// part of the arena; offsets are multiples of 256. `None` for weights, KV and ids that the graph does not
    /// have.
    pub fn region(&self, graph: &OpGraph, tensor: TensorId) -> Option<Region> {
        let (stored, repetition, _) = graph.locate_tensor(tensor)?;
        let buffer = graph.buffers.of_tensor.get(stored as usize)?[(repetition % 2) as usize];
        let offset = *self.offsets.get(buffer as usize)?;
        Some(Region { offset, bytes: graph.tensors[stored as usize].bytes(&self.binding) })
    }
}

impl OpGraph {
    /// The place of every transient tensor under `binding`. O(buffers); a handful.
    pub fn activation_layout(&self, binding: &Binding) -> ActivationLayout {
        let mut peak = Bytes::ZERO;
        let sizes = self.buffers.sizes(binding);
        let place = |size| {
            let offset = peak;
            peak += size;
            offset
        };
        let offsets = sizes.map(place).collect();
        ActivationLayout { offsets, binding: *binding, peak }
    }

    /// The bytes of the arena that a job needs: exactly [`ActivationLayout::peak`]. O(buffers),
    /// allocates nothing.
    pub fn activation_bytes(&self, binding: &Binding) -> Bytes {
        self.buffers.sizes(binding).sum()
    }
}

/// Which tensors share a buffer.
#[derive(Clone, Debug, Default)]
pub(super) struct BufferPlan {
    /// By stored tensor: its buffer in even and in odd repetitions.
    of_tensor: Vec<[u32; 2]>,
    /// By buffer: the sizes of its tensors, without those that never decide.
    buffers: Vec<SmallVec<[Monomial; 2]>>,
}

/// When a stored tensor is alive in one repetition of its block: first and last position.
type Interval = (u32, u32);

/// A buffer's worth of tensor: all its repetitions, or every other one.
struct Unit {
    stored: u32,
    /// Even and odd repetitions, or both.
    parities: [bool; 2],
    intervals: Vec<Interval>,
    size: u64,
}

impl BufferPlan {
    /// Greedy by size (Pisarchyk & Lee 2020): the largest tensor first, each into the smallest
    /// buffer that is free whenever the tensor is alive.
    pub(super) fn of(graph: &OpGraph) -> Self {
        let mut units = units(graph);
        units.sort_by(|left, right| {
            let key = |unit: &Unit| (unit.intervals.first().copied(), unit.stored, unit.parities);
            right.size.cmp(&left.size).then_with(|| key(left).cmp(&key(right)))
        });
        let mut plan = Self { of_tensor: vec![[NONE; 2]; graph.tensors.len()], buffers: Vec::new() };
        let mut occupied: Vec<Occupied> = Vec::new();
        for unit in &units {
            // Sizes descend, so the last buffer is the smallest.
            let tried = occupied.len().saturating_sub(TRIED);
            let free = occupied[tried..].iter().rposition(|taken| taken.is_free(&unit.intervals));
            let buffer = free.map(|place| tried + place).unwrap_or_else(|| {
                occupied.push(Occupied::default());
                plan.buffers.push(smallvec![]);
                occupied.len() - 1
            });
            occupied[buffer].0.extend(unit.intervals.iter().copied());
            let size = graph.tensors[unit.stored as usize].bytes_formula();
            let sizes = &mut plan.buffers[buffer];
            if !sizes.iter().any(|known| known.dominates(&size)) {
                sizes.retain(|known| !size.dominates(known));
                sizes.push(size);
            }
            let places = plan.of_tensor[unit.stored as usize].iter_mut().zip(unit.parities);
            for (place, _) in places.filter(|(_, own)| *own) {
                *place = buffer as u32;
            }
        }
        plan
    }

    fn sizes(&self, binding: &Binding) -> impl Iterator<Item = Bytes> {
        self.buffers.iter().map(|sizes| {
            let largest = sizes.iter().map(|size| size.eval(binding)).max().unwrap_or(0);
            Bytes(largest).align_up(ALIGNMENT)
        })
    }
}

/// When a buffer is taken: pairwise disjoint intervals, from first position to last.
#[derive(Default)]
struct Occupied(BTreeMap<u32, u32>);

impl Occupied {
    fn is_free(&self, intervals: &[Interval]) -> bool {
        // Of disjoint intervals, the last that starts in time is the last that ends.
        intervals.iter().all(|&(start, end)| self.0.range(..=end).next_back().is_none_or(|(_, &last)| last < start))
    }
}

/// A large mixed batch: what is large under it decides first.
fn nominal() -> Binding {
    let own = Symbol::all().fold(Binding::new(), |binding, symbol| binding.bind(symbol, 512));
    own.bind(TOKENS, 512).bind(SEQUENCES, 256).bind(CONTEXT, 1 << 16).bind(PAIRS, 1 << 20)
}

/// Repetitions that show everything that any number of them does: a first, a last and some
/// between, with the last one as even or odd as it is.
fn unrolled(repeat: u32) -> u32 {
    if repeat <= 4 { repeat } else { 3 + (repeat + 1) % 2 }
}

fn units(graph: &OpGraph) -> Vec<Unit> {
    let binding = nominal();
    let mut units = Vec::new();
    for (stored, lives) in (0u32..).zip(lives(graph)) {
        let tensor = &graph.tensors[stored as usize];
        if !tensor.role.is_transient() || lives.is_empty() {
            continue;
        }
        let size = tensor.bytes(&binding).get();
        let alternates = lives.windows(2).any(|pair| pair[0].1 >= pair[1].0);
        let of_parity = |parity: usize| lives.iter().copied().skip(parity).step_by(2).collect::<Vec<_>>();
        if alternates {
            units.push(Unit { stored, parities: [true, false], intervals: of_parity(0), size });
            units.push(Unit { stored, parities: [false, true], intervals: of_parity(1), size });
        } else {
            units.push(Unit { stored, parities: [true, true], intervals: lives, size });
        }
    }
    units
}

/// By stored tensor, then by repetition: when it is alive in the unrolled graph.
fn lives(graph: &OpGraph) -> Vec<Vec<Interval>> {
    let mut lives: Vec<Vec<Option<Interval>>> = vec![Vec::new(); graph.tensors.len()];
    let mut touch = |stored: u32, repetition: u32, position: u32| {
        let lives = &mut lives[stored as usize];
        if lives.len() <= repetition as usize {
            lives.resize(repetition as usize + 1, None);
        }
        let life = lives[repetition as usize].get_or_insert((position, position));
        *life = (life.0.min(position), life.1.max(position));
    };
    // A tensor that is named from outside its block is that of the last repetition.
    let fixed = |id: TensorId| {
        let located = graph.locate_tensor(id);
        located.map_or((0, 0), |(stored, _, block)| (stored, block.map_or(0, |block| unrolled(block.repeat) - 1)))
    };
    let mut position = 0;
    for segment in &graph.segments {
        for repetition in 0..unrolled(segment.repeat) {
            for slot in segment.slots.clone() {
                let op = &graph.ops[slot as usize];
                for operand in op.inputs.iter().chain(&op.outputs) {
                    let (stored, of) = match *operand {
                        Operand::Fixed(id) => fixed(id),
                        Operand::Local(offset) => (segment.tensors.start + offset, repetition),
                        Operand::Carried { first, previous } => match repetition.checked_sub(1) {
                            None => fixed(first),
                            Some(before) => (segment.tensors.start + previous, before),
                        },
                    };
                    touch(stored, of, position);
                }
                position += 1;
            }
        }
    }
    for (stored, tensor) in (0u32..).zip(&graph.tensors) {
        match tensor.role {
            Role::Input => touch(stored, 0, 0),
            Role::Output => touch(stored, 0, position),
            Role::Activation | Role::Weight | Role::KvCache => {}
        }
    }
    lives.into_iter().map(|lives| lives.into_iter().flatten().collect()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{binding, programs};
    use super::*;
    use crate::templates::{DenseSpec, dense};

    /// By tensor: the first and the last operator, in index order, at which it is alive.
    fn alive(graph: &OpGraph) -> Vec<Option<Interval>> {
        let mut alive: Vec<Option<Interval>> = vec![None; graph.tensor_count() as usize];
        let mut touch = |tensor: TensorId, position: u32| {
            let life = alive[tensor.index()].get_or_insert((position, position));
            *life = (life.0.min(position), life.1.max(position));
        };
        for op in graph.ops() {
            for tensor in op.inputs().chain(op.outputs()) {
                touch(tensor, op.index().0);
            }
        }
        for view in graph.tensors() {
            match view.tensor.role {
                Role::Input => touch(view.id, 0),
                Role::Output => touch(view.id, graph.op_count()),
                _ => {}
            }
        }
        alive
    }

    fn check(graph: &OpGraph, binding: &Binding) {
        let layout = graph.activation_layout(binding);
        assert_eq!(graph.activation_bytes(binding), layout.peak());
        let alive = alive(graph);
        let placed: Vec<_> = graph
            .tensors()
            .filter(|view| view.tensor.role.is_transient())
            .map(|view| (view, alive[view.id.index()].unwrap(), layout.region(graph, view.id).unwrap()))
            .collect();
        for (index, (view, life, region)) in placed.iter().enumerate() {
            assert_eq!(region.offset.get() % ALIGNMENT, 0);
            assert_eq!(region.bytes, view.bytes(binding));
            assert!(region.end() <= layout.peak(), "{} ends past the peak", view.name());
            for (other, other_life, other_region) in &placed[index + 1..] {
                let together = life.0 <= other_life.1 && other_life.0 <= life.1;
                let apart = region.end() <= other_region.offset || other_region.end() <= region.offset;
                assert!(!together || apart, "{} and {} overlap", view.name(), other.name());
            }
        }
        let kept = graph.tensors().filter(|view| !view.tensor.role.is_transient());
        assert!(kept.into_iter().all(|view| layout.region(graph, view.id).is_none()));
    }

    proptest! {
        #[test]
        fn tensors_that_are_alive_together_never_overlap(program in programs(), binding in binding()) {
            check(&program.graph(false), &binding);
            check(&program.graph(true), &binding);
        }
    }

    /// One operator per entry, which reads two of the tensors before it and makes one of so many times 256
    /// bytes; what nobody read is read at the end.
    fn written_out(ops: &[([usize; 2], u64)]) -> OpGraph {
        use std::sync::Arc;

        use crate::dtype::DType;
        use crate::semantics::{OpCost, Recorded};
        use crate::shape::Shape;

        let mut graph = OpGraph::builder("written out");
        let mut tensors = vec![graph.input("x", DType::F32, Shape::vector(64))];
        let mut unread = vec![0];
        for (index, &(reads, size)) in ops.iter().enumerate() {
            let shape = Shape::vector(64 * size);
            let mut reads: Vec<_> = reads.iter().map(|read| read % tensors.len()).collect();
            reads.dedup();
            let inputs: Vec<_> = reads.iter().map(|&read| tensors[read]).collect();
            let made = graph.activation(&format!("t{index}"), DType::F32, shape.clone());
            let meaning = Recorded::new(OpCost::default()).output(DType::F32, shape);
            graph.op_with(&format!("op{index}"), &format!("kind{index}").into(), Arc::new(meaning), &inputs, &[made]);
            unread.retain(|place| !reads.contains(place));
            unread.push(tensors.len());
            tensors.push(made);
        }
        let rest: Vec<_> = unread.into_iter().map(|place| tensors[place]).collect();
        let meaning = Arc::new(Recorded::new(OpCost::default()));
        graph.op_with("end", &"end".into(), meaning, &rest, &[]);
        graph.build().unwrap()
    }

    /// The least that any layout needs: some order of placing each tensor as low as it can be gives it.
    fn optimum(tensors: &mut Vec<(Interval, u64)>, placed: &mut Vec<(Interval, u64, u64)>, best: &mut u64) {
        let peak = placed.iter().map(|&(_, offset, size)| offset + size).max().unwrap_or(0);
        if peak >= *best {
            return;
        }
        if tensors.is_empty() {
            *best = peak;
        }
        for index in 0..tensors.len() {
            let (life, size) = tensors.remove(index);
            let beside = || placed.iter().filter(|(other, ..)| life.0 <= other.1 && other.0 <= life.1);
            let fits =
                |&offset: &u64| beside().all(|&(_, from, taken)| offset + size <= from || from + taken <= offset);
            let lowest = beside().map(|&(_, from, taken)| from + taken).chain([0]).filter(fits).min().unwrap_or(0);
            placed.push((life, lowest, size));
            optimum(tensors, placed, best);
            placed.pop();
            tensors.insert(index, (life, size));
        }
    }

    fn least_of_all_layouts(graph: &OpGraph, binding: &Binding) -> Bytes {
        let alive = alive(graph);
        let transient = graph.tensors().filter(|view| view.tensor.role.is_transient());
        let mut tensors: Vec<_> =
            transient.filter_map(|view| Some((alive[view.id.index()]?, view.bytes(binding).get()))).collect();
        let mut best = u64::MAX;
        optimum(&mut tensors, &mut Vec::new(), &mut best);
        Bytes(best)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        /// Tensors of one size are laid out as well as any layout can: what is alive at once is needed, and
        /// no more. With unlike sizes no layout needs less than the enumerated one, this one included.
        #[test]
        fn small_graphs_are_laid_out_as_well_as_the_best_of_all_layouts(
            ops in prop::collection::vec((any::<[usize; 2]>(), 1u64..6), 1..6),
        ) {
            let nothing = Binding::new();
            let mixed = written_out(&ops);
            check(&mixed, &nothing);
            let best = least_of_all_layouts(&mixed, &nothing);
            prop_assert!(least(&mixed, &nothing) <= best && best <= mixed.activation_bytes(&nothing));

            let equal = written_out(&ops.iter().map(|&(reads, _)| (reads, 1)).collect::<Vec<_>>());
            check(&equal, &nothing);
            prop_assert_eq!(equal.activation_bytes(&nothing), least_of_all_layouts(&equal, &nothing));
            prop_assert_eq!(equal.activation_bytes(&nothing), least(&equal, &nothing));
        }
    }

    /// The most that is alive at once: no layout can do with less.
    fn least(graph: &OpGraph, binding: &Binding) -> Bytes {
        let alive = alive(graph);
        let at = |position: u32| {
            let live = graph.tensors().filter(|view| {
                view.tensor.role.is_transient()
                    && alive[view.id.index()].is_some_and(|(start, end)| start <= position && position <= end)
            });
            live.map(|view| view.bytes(binding).align_up(ALIGNMENT)).sum::<Bytes>()
        };
        (0..graph.op_count()).map(at).max().unwrap_or_default()
    }

    #[test]
    fn a_dense_model_needs_little_more_than_what_is_alive_at_once() {
        for spec in [DenseSpec::tiny(), DenseSpec::smollm2_135m(), DenseSpec::llama3_8b()] {
            let graph = dense(&spec).unwrap();
            for (tokens, sequences) in [(1, 1), (64, 64), (2048, 1), (512, 256)] {
                let binding = Binding::iteration(tokens, sequences, 4096, 4096);
                check(&graph, &binding);
                let (peak, least) = (graph.activation_bytes(&binding), least(&graph, &binding));
                // A layout without buffers could put the logits over several of them.
                let bound = least.scale(if sequences == 1 && tokens > 1 { 12 } else { 15 }, 10);
                assert!(peak <= bound, "{} at {tokens}/{sequences}: {peak} of {least}", spec.name);
            }
        }
    }

    #[test]
    fn a_tensor_that_outlives_its_repetition_alternates_between_two_buffers() {
        use crate::dtype::DType;
        use crate::semantics::OpKind;
        use crate::shape::Shape;

        let mut graph = OpGraph::builder("chain");
        let rows = || Shape::matrix(TOKENS, 64);
        let x = graph.input("x", DType::F32, rows());
        let [last] = graph.repeat("block", 7, [x], |block, [x]| {
            let y = block.activation("y", DType::F32, rows());
            block.op("step", OpKind::Softmax, &[x], &[y]);
            [y]
        });
        let z = graph.output("z", DType::F32, rows());
        graph.op("end", OpKind::Softmax, &[last], &[z]);
        let graph = graph.build().unwrap();
        let binding = Binding::new().bind(TOKENS, 10);
        check(&graph, &binding);
        assert_eq!(graph.activation_bytes(&binding), Bytes(2 * 2560));
    }
}
