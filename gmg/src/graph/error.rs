//! What can be wrong with a graph.

use crate::dtype::DType;
use crate::semantics::{DTypeRule, SemanticsError};
use crate::shape::Shape;

/// Why a graph can not be built, or a job can not be bound to it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// There is nothing to run.
    #[error("graph \"{graph}\" has no operators: expected at least one")]
    Empty {
        /// The graph.
        graph: String,
    },
    /// The numbering does not reach so far.
    #[error("graph \"{graph}\" has {count} {what} over all repetitions: expected at most {most}")]
    TooLarge {
        /// The graph.
        graph: String,
        /// Operators or tensors.
        what: &'static str,
        /// How many there are.
        count: u64,
        /// How many there can be.
        most: u64,
    },
    /// A model that does not come out even on its ranks.
    #[error("graph \"{graph}\": {count} {what} do not come out even on {ranks} ranks: expected a multiple")]
    Shard {
        /// The graph.
        graph: String,
        /// What is to be cut.
        what: &'static str,
        /// How many there are.
        count: u64,
        /// How many ranks.
        ranks: u32,
    },
    /// A model whose width does not come out even on its heads.
    #[error("graph \"{graph}\": {columns} columns do not come out even on {heads} heads: expected a multiple")]
    Heads {
        /// The graph.
        graph: String,
        /// How wide it is.
        columns: u64,
        /// How many heads.
        heads: u32,
    },
    /// A model with a number that no model has.
    #[error("graph \"{graph}\": {found} {what}: expected {least} to {most}")]
    Specification {
        /// The graph.
        graph: String,
        /// What it is a number of.
        what: &'static str,
        /// The number.
        found: u64,
        /// The least that it can be.
        least: u64,
        /// The most that it can be.
        most: u64,
    },
    /// The graph has too many symbols of its own.
    #[error(
        "graph \"{graph}\": symbol \"{symbol}\" is one too many: expected at most {most}, the standard ones included"
    )]
    TooManySymbols {
        /// The graph.
        graph: String,
        /// The symbol that did not fit.
        symbol: String,
        /// How many there can be.
        most: usize,
    },
    /// Two things have the same qualified name.
    #[error("graph \"{graph}\" has two {what} named \"{name}\"")]
    DuplicateName {
        /// The graph.
        graph: String,
        /// Operators, tensors or blocks.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A reference is of another builder.
    #[error("{what} \"{user}\" refers to a tensor or operator that this graph does not have")]
    UnknownReference {
        /// Operator or block.
        what: &'static str,
        /// Who refers to it.
        user: String,
    },
    /// A tensor of a block is used outside it.
    #[error("{what} \"{user}\" uses tensor \"{tensor}\" of block \"{block}\" from outside: carry it out of the block")]
    OutOfScope {
        /// Operator or block.
        what: &'static str,
        /// Who uses it.
        user: String,
        /// The tensor.
        tensor: String,
        /// The tensor's block.
        block: String,
    },
    /// A block within a block.
    #[error("block \"{inner}\" is declared within block \"{outer}\": blocks do not nest")]
    NestedBlock {
        /// The block within.
        inner: String,
        /// The block around it.
        outer: String,
    },
    /// A block that does nothing.
    #[error("block \"{block}\" has {ops} operators repeated {repeat} times: expected at least one of each")]
    EmptyBlock {
        /// The block.
        block: String,
        /// Its operators.
        ops: usize,
        /// Its repetitions.
        repeat: u32,
    },
    /// A block declares a tensor that only exists once per job.
    #[error("tensor \"{tensor}\" of block \"{block}\" is {role}: declare it outside the block")]
    RoleInBlock {
        /// The block.
        block: String,
        /// The tensor.
        tensor: String,
        /// Its role, in words.
        role: &'static str,
    },
    /// A block carries out a tensor that it did not make.
    #[error("block \"{block}\" carries out tensor \"{tensor}\", which no operator of the block produces")]
    CarriedNotProduced {
        /// The block.
        block: String,
        /// The tensor.
        tensor: String,
    },
    /// The next repetition could not take what this one gives.
    #[error(
        "block \"{block}\" takes \"{taken}\" {taken_dtype} {taken_shape} and carries out \"{given}\" {given_dtype} {given_shape}: expected the same type"
    )]
    CarriedMismatch {
        /// The block.
        block: String,
        /// What the first repetition takes.
        taken: String,
        /// Its element type.
        taken_dtype: DType,
        /// Its shape.
        taken_shape: Box<Shape>,
        /// What each repetition gives.
        given: String,
        /// Its element type.
        given_dtype: DType,
        /// Its shape.
        given_shape: Box<Shape>,
    },
    /// A tensor is consumed, but comes from nowhere.
    #[error("tensor \"{tensor}\" ({dtype} {shape}) is {role}, but no operator produces it")]
    NeverProduced {
        /// The tensor.
        tensor: String,
        /// Its element type.
        dtype: DType,
        /// Its shape.
        shape: Box<Shape>,
        /// Its role, in words.
        role: &'static str,
    },
    /// Two operators write the same tensor.
    #[error("tensor \"{tensor}\" is produced by operator \"{first}\" and again by \"{second}\"")]
    ProducedTwice {
        /// The tensor.
        tensor: String,
        /// The first producer.
        first: String,
        /// The second producer.
        second: String,
    },
    /// An operator writes what it can only read.
    #[error(
        "operator \"{op}\" produces tensor \"{tensor}\", which is {role}: expected an activation or an output of its own block"
    )]
    NotWritable {
        /// The operator.
        op: String,
        /// The tensor.
        tensor: String,
        /// Its role, in words.
        role: &'static str,
    },
    /// A tensor is of no use to anybody.
    #[error("tensor \"{tensor}\" ({dtype} {shape}) is {role}, but no operator consumes it")]
    NeverConsumed {
        /// The tensor.
        tensor: String,
        /// Its element type.
        dtype: DType,
        /// Its shape.
        shape: Box<Shape>,
        /// Its role, in words.
        role: &'static str,
    },
    /// Operators wait for each other.
    #[error("operators wait for each other: {}", ops.join(" -> "))]
    Cycle {
        /// A cycle; the first operator is repeated at the end.
        ops: Vec<String>,
    },
    /// An operator depends on one that a later segment holds.
    #[error("operator \"{op}\" depends on \"{on}\", which comes in a later segment of the graph")]
    OutOfOrder {
        /// The operator.
        op: String,
        /// What it depends on.
        on: String,
    },
    /// An operator does not accept its inputs.
    #[error("operator \"{op}\" ({kind}): {reason}")]
    Operator {
        /// The operator.
        op: String,
        /// Its kind.
        kind: String,
        /// What is wrong.
        reason: Box<SemanticsError>,
    },
    /// Nobody said what a custom kind means.
    #[error("operator \"{op}\" has the custom kind \"{kind}\": register its semantics with the builder")]
    UnknownKind {
        /// The operator.
        op: String,
        /// Its kind.
        kind: String,
    },
    /// An operator has the wrong number of outputs.
    #[error("operator \"{op}\" ({kind}) has {found} outputs: expected {expected}")]
    OutputCount {
        /// The operator.
        op: String,
        /// Its kind.
        kind: String,
        /// The outputs it has.
        found: usize,
        /// The outputs it must have.
        expected: usize,
    },
    /// An operator gives another type than its output declares.
    #[error(
        "operator \"{op}\" ({kind}): output \"{tensor}\" is declared {dtype} {shape}: expected {expected_dtype} {expected_shape}"
    )]
    OutputType {
        /// The operator.
        op: String,
        /// Its kind.
        kind: String,
        /// The output.
        tensor: String,
        /// The element type it declares.
        dtype: DType,
        /// The shape it declares.
        shape: Box<Shape>,
        /// The element type it is given.
        expected_dtype: DTypeRule,
        /// The shape it is given.
        expected_shape: Box<Shape>,
    },
    /// A weight whose size depends on the job.
    #[error("weight \"{tensor}\" has the shape {shape}: expected fixed dimensions")]
    SymbolicWeight {
        /// The weight.
        tensor: String,
        /// Its shape.
        shape: Box<Shape>,
    },
    /// A quantized tensor with a row that ends within a block.
    #[error("tensor \"{tensor}\" is {dtype} {shape}: expected a last dimension that is a multiple of {block}")]
    PartialBlock {
        /// The tensor.
        tensor: String,
        /// Its element type.
        dtype: DType,
        /// Its shape.
        shape: Box<Shape>,
        /// Elements of a block.
        block: u64,
    },
    /// A job that leaves a symbol without a value.
    #[error("graph \"{graph}\" needs a value for \"{symbol}\", which is not bound")]
    Unbound {
        /// The graph.
        graph: String,
        /// The symbol.
        symbol: String,
    },
}
