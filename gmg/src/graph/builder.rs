//! Building a graph.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use super::{GraphError, OpGraph, Role, Tensor, resolve, validate};
use crate::dtype::DType;
use crate::semantics::{OpKind, OpSemantics};
use crate::shape::{Shape, Symbol, SymbolTable, TOKENS};

/// A tensor of the graph that is being built.
///
/// It knows its builder: a builder that is given one of another refuses it with
/// [`GraphError::UnknownReference`]. What a built graph hands out ([`OpIndex`](crate::id::OpIndex),
/// [`TensorId`](crate::id::TensorId)) are plain numbers, see [`id`](crate::id).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorRef {
    at: TensorAt,
    builder: u64,
}

/// An operator of the graph that is being built; as for [`TensorRef`], of no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpRef {
    at: OpAt,
    builder: u64,
}

/// Builders are numbered in the process, so that what is of another one is told.
static BUILDERS: AtomicU64 = AtomicU64::new(0);

/// A tensor's place among those of its draft. What is carried has a place behind what it carries, so types are found
/// in finite steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct TensorAt(pub(super) u32);

/// An operator's place among those of its draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct OpAt(pub(super) u32);

impl TensorAt {
    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }
}

impl OpAt {
    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Collects tensors and operators; [`build`](Self::build) checks them all at once.
///
/// Operators may be added in any order within a segment; those outside blocks that are added before
/// a block run before it, and those added after it run after it. Operators that share a KV cache
/// run in the order in which they were added.
#[derive(Debug)]
pub struct OpGraphBuilder {
    /// Its number among the builders of the process.
    number: u64,
    pub(super) name: Box<str>,
    pub(super) symbols: SymbolTable,
    pub(super) tensors: Vec<DraftTensor>,
    pub(super) ops: Vec<DraftOp>,
    pub(super) segments: Vec<Option<u32>>,
    pub(super) blocks: Vec<DraftBlock>,
    pub(super) controls: Vec<(OpAt, OpAt)>,
    pub(super) semantics: HashMap<Arc<str>, Arc<dyn OpSemantics>>,
    /// The first mistake that could not be represented.
    failed: Option<GraphError>,
    /// The block that is being declared.
    scope: Option<u32>,
}

#[derive(Debug)]
pub(super) struct DraftTensor {
    pub(super) definition: Definition,
    pub(super) scope: Option<u32>,
}

#[derive(Debug)]
pub(super) enum Definition {
    Declared(Tensor),
    /// What a block takes at this position: from outside, or from the repetition before.
    CarriedIn {
        block: u32,
        position: u32,
    },
    /// What the last repetition of a block gives at this position.
    CarriedOut {
        block: u32,
        position: u32,
    },
}

#[derive(Debug)]
pub(super) struct DraftOp {
    pub(super) name: Box<str>,
    pub(super) kind: OpKind,
    /// Its own meaning, which goes before that of its kind.
    pub(super) semantics: Option<Arc<dyn OpSemantics>>,
    pub(super) inputs: SmallVec<[TensorAt; 3]>,
    pub(super) outputs: SmallVec<[TensorAt; 1]>,
    pub(super) segment: u32,
    pub(super) scope: Option<u32>,
}

#[derive(Debug)]
pub(super) struct DraftBlock {
    pub(super) name: Box<str>,
    pub(super) repeat: u32,
    pub(super) taken: SmallVec<[TensorAt; 2]>,
    pub(super) given: SmallVec<[TensorAt; 2]>,
}

impl OpGraphBuilder {
    pub(super) fn new(name: &str) -> Self {
        Self {
            number: BUILDERS.fetch_add(1, Ordering::Relaxed),
            name: name.into(),
            symbols: SymbolTable::new(),
            tensors: Vec::new(),
            ops: Vec::new(),
            segments: Vec::new(),
            blocks: Vec::new(),
            controls: Vec::new(),
            semantics: HashMap::new(),
            failed: None,
            scope: None,
        }
    }

    /// The symbol called `name`, added to the graph if it is new.
    pub fn symbol(&mut self, name: &str) -> Symbol {
        self.symbols.intern(name).unwrap_or_else(|| {
            let graph = self.name.to_string();
            self.fail(GraphError::TooManySymbols { graph, symbol: name.to_owned(), most: Symbol::MAX });
            TOKENS
        })
    }

    /// Says what operators of the custom kind `name` mean.
    pub fn semantics(&mut self, name: &str, semantics: Arc<dyn OpSemantics>) -> &mut Self {
        self.semantics.insert(name.into(), semantics);
        self
    }

    /// Declares a tensor.
    pub fn tensor(&mut self, name: &str, dtype: DType, shape: impl Into<Shape>, role: Role) -> TensorRef {
        let tensor = Tensor { name: name.into(), dtype, shape: shape.into(), role };
        let at = self.define(Definition::Declared(tensor));
        self.handed_out(at)
    }

    /// Declares what the host provides when the job starts.
    pub fn input(&mut self, name: &str, dtype: DType, shape: impl Into<Shape>) -> TensorRef {
        self.tensor(name, dtype, shape, Role::Input)
    }

    /// Declares an intermediate result.
    pub fn activation(&mut self, name: &str, dtype: DType, shape: impl Into<Shape>) -> TensorRef {
        self.tensor(name, dtype, shape, Role::Activation)
    }

    /// Declares a weight; in a block, one per repetition.
    pub fn weight(&mut self, name: &str, dtype: DType, shape: impl Into<Shape>) -> TensorRef {
        self.tensor(name, dtype, shape, Role::Weight)
    }

    /// Declares a KV cache; in a block, one per repetition.
    pub fn kv_cache(&mut self, name: &str, dtype: DType, shape: impl Into<Shape>) -> TensorRef {
        self.tensor(name, dtype, shape, Role::KvCache)
    }

    /// Declares what the host receives when the job ends.
    pub fn output(&mut self, name: &str, dtype: DType, shape: impl Into<Shape>) -> TensorRef {
        self.tensor(name, dtype, shape, Role::Output)
    }

    /// Adds an operator.
    pub fn op(&mut self, name: &str, kind: OpKind, inputs: &[TensorRef], outputs: &[TensorRef]) -> OpRef {
        self.add(name, kind, None, inputs, outputs)
    }

    /// Adds an operator of the custom kind `kind` with a meaning of its own, such as
    /// [`Recorded`](crate::semantics::Recorded): operators of one kind need not cost alike.
    pub fn op_with(
        &mut self,
        name: &str,
        kind: &Arc<str>,
        semantics: Arc<dyn OpSemantics>,
        inputs: &[TensorRef],
        outputs: &[TensorRef],
    ) -> OpRef {
        self.add(name, OpKind::Custom(Arc::clone(kind)), Some(semantics), inputs, outputs)
    }

    fn add(
        &mut self,
        name: &str,
        kind: OpKind,
        semantics: Option<Arc<dyn OpSemantics>>,
        inputs: &[TensorRef],
        outputs: &[TensorRef],
    ) -> OpRef {
        let continues = self.scope.is_some() || self.segments.last().is_some_and(Option::is_none);
        if !continues {
            self.segments.push(None);
        }
        let own = |tensors: &[TensorRef]| tensors.iter().all(|tensor| tensor.builder == self.number);
        if !own(inputs) || !own(outputs) {
            let user = self.qualified(self.scope, name);
            self.fail(GraphError::UnknownReference { what: "operator", user });
        }
        let op = OpRef { at: OpAt(self.ops.len() as u32), builder: self.number };
        self.ops.push(DraftOp {
            name: name.into(),
            kind,
            semantics,
            inputs: inputs.iter().map(|tensor| tensor.at).collect(),
            outputs: outputs.iter().map(|tensor| tensor.at).collect(),
            segment: self.segments.len() as u32 - 1,
            scope: self.scope,
        });
        op
    }

    /// Makes `after` wait for `before` without taking data from it. Within a block the two are of
    /// the same repetition; from outside, an operator in a block stands for its last repetition
    /// as `before` and for all of them as `after`.
    pub fn control(&mut self, before: OpRef, after: OpRef) -> &mut Self {
        let own = |op: &OpRef| op.builder == self.number;
        if own(&before) && own(&after) {
            self.controls.push((before.at, after.at));
        } else {
            let user = [before, after].into_iter().find(own).map(|op| self.op_name(op.at));
            let user = user.unwrap_or_else(|| self.name.to_string());
            self.fail(GraphError::UnknownReference { what: "a control edge of", user });
        }
        self
    }

    /// Adds a block that is repeated `count` times.
    ///
    /// `body` declares one repetition. It receives the carried tensors: those given here in the
    /// first repetition, and in the others what `body` returned for the repetition before. What is
    /// returned here is the result of the last repetition. Tensors declared outside are the same
    /// in all repetitions; those declared inside exist once per repetition.
    pub fn repeat<const N: usize>(
        &mut self,
        name: &str,
        count: u32,
        carried: [TensorRef; N],
        body: impl FnOnce(&mut Self, [TensorRef; N]) -> [TensorRef; N],
    ) -> [TensorRef; N] {
        if let Some(outer) = self.scope {
            let outer = self.blocks[outer as usize].name.to_string();
            self.fail(GraphError::NestedBlock { inner: name.to_owned(), outer });
            return carried;
        }
        self.refuse_foreign(name, &carried);
        let block = self.blocks.len() as u32;
        self.segments.push(Some(block));
        self.blocks.push(DraftBlock {
            name: name.into(),
            repeat: count,
            taken: carried.iter().map(|tensor| tensor.at).collect(),
            given: SmallVec::new(),
        });
        self.scope = Some(block);
        let mut positions = 0..;
        let taken = carried.map(|_| {
            let position = positions.next().unwrap_or_default();
            let at = self.define(Definition::CarriedIn { block, position });
            self.handed_out(at)
        });
        let given = body(self, taken);
        self.scope = None;
        self.refuse_foreign(name, &given);
        self.blocks[block as usize].given = given.iter().map(|tensor| tensor.at).collect();
        let mut positions = 0..;
        given.map(|_| {
            let position = positions.next().unwrap_or_default();
            let at = self.define(Definition::CarriedOut { block, position });
            self.handed_out(at)
        })
    }

    /// Checks everything and makes the graph. O(n log n) in what is stored, times the buffers that
    /// activations need.
    ///
    /// # Errors
    ///
    /// The first of: a name given twice, a reference that leads nowhere or into a block, a block
    /// that can not be repeated, a tensor that is never produced or never consumed or produced
    /// twice, a cycle, operators that do not accept their inputs.
    pub fn build(self) -> Result<OpGraph, GraphError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        let checked = validate::check(&self)?;
        resolve::graph(self, &checked)
    }

    /// The meaning of an operator of a custom kind, if somebody said it.
    pub(super) fn semantics_of<'d>(&'d self, op: &'d DraftOp) -> Option<&'d Arc<dyn OpSemantics>> {
        let of_kind = || match &op.kind {
            OpKind::Custom(kind) => self.semantics.get(kind),
            _ => None,
        };
        op.semantics.as_ref().or_else(of_kind)
    }

    fn handed_out(&self, at: TensorAt) -> TensorRef {
        TensorRef { at, builder: self.number }
    }

    /// Notes that a block carries what is of another builder.
    fn refuse_foreign(&mut self, block: &str, carried: &[TensorRef]) {
        if carried.iter().any(|tensor| tensor.builder != self.number) {
            self.fail(GraphError::UnknownReference { what: "block", user: block.to_owned() });
        }
    }

    fn define(&mut self, definition: Definition) -> TensorAt {
        let reference = TensorAt(self.tensors.len() as u32);
        self.tensors.push(DraftTensor { definition, scope: self.scope });
        reference
    }

    fn fail(&mut self, error: GraphError) {
        self.failed.get_or_insert(error);
    }

    /// The type of a tensor, through what carries it. The references must have been checked.
    pub(super) fn type_of(&self, reference: TensorAt) -> &Tensor {
        let mut at = reference;
        loop {
            at = match self.tensors[at.index()].definition {
                Definition::Declared(ref tensor) => return tensor,
                Definition::CarriedIn { block, position } => self.blocks[block as usize].taken[position as usize],
                Definition::CarriedOut { block, position } => self.blocks[block as usize].given[position as usize],
            };
        }
    }

    /// The name of an operator, with the block that it is in.
    pub(super) fn op_name(&self, op: OpAt) -> String {
        let draft = &self.ops[op.index()];
        self.qualified(draft.scope, &draft.name)
    }

    /// The name of a tensor, with the block that it is in.
    pub(super) fn tensor_name(&self, reference: TensorAt) -> String {
        match &self.tensors[reference.index()].definition {
            Definition::Declared(tensor) => self.qualified(self.tensors[reference.index()].scope, &tensor.name),
            Definition::CarriedIn { block, position } | Definition::CarriedOut { block, position } => {
                format!("{} (carried, position {position})", self.blocks[*block as usize].name)
            }
        }
    }

    fn qualified(&self, scope: Option<u32>, name: &str) -> String {
        match scope {
            None => name.to_owned(),
            Some(block) => format!("{}.{name}", self.blocks[block as usize].name),
        }
    }
}
