//! What can go wrong while operators run.

use slicescheduler_gmg::units::Bytes;
use thiserror::Error;

/// Result with this crate's error.
pub type Result<T, E = ExecutorError> = std::result::Result<T, E>;

/// The error of everything in this crate: kernels, arenas, lanes and the graph runner.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExecutorError {
    /// An operand does not have the number of elements that the other operands imply.
    #[error("{kernel}: operand `{operand}` has {found} elements, the shapes ask for {expected}")]
    OperandLength {
        /// The kernel.
        kernel: &'static str,
        /// The operand's name in the kernel's signature.
        operand: &'static str,
        /// Elements that were given.
        found: usize,
        /// Elements that would be right.
        expected: usize,
    },
    /// A dimension has a value that the kernel has no meaning for.
    #[error("{kernel}: dimension `{dimension}` is {value}; it must be {requirement}")]
    Dimension {
        /// The kernel.
        kernel: &'static str,
        /// The dimension's name.
        dimension: &'static str,
        /// The value that was given.
        value: usize,
        /// What would be right.
        requirement: &'static str,
    },
    /// An index operand points outside of what it indexes.
    #[error("{kernel}: `{operand}[{at}]` is {value}, but there are only {limit}")]
    IndexOutOfRange {
        /// The kernel.
        kernel: &'static str,
        /// The operand's name in the kernel's signature.
        operand: &'static str,
        /// Which element of the operand.
        at: usize,
        /// The index found there.
        value: usize,
        /// The first value that is too large.
        limit: usize,
    },
    /// A row of logits has no number in it to choose.
    #[error("{kernel}: row {row} of the logits has no element that is a number")]
    NoNumber {
        /// The kernel.
        kernel: &'static str,
        /// The row.
        row: usize,
    },
    /// The system has no memory for an arena.
    #[error("an arena of {wanted} can not be allocated")]
    OutOfMemory {
        /// The arena's size.
        wanted: Bytes,
    },
    /// A region reaches beyond its arena.
    #[error("region at {offset} of {size} ends beyond the arena of {arena}")]
    RegionOutOfBounds {
        /// Where the region starts.
        offset: Bytes,
        /// Its size.
        size: Bytes,
        /// The arena's size.
        arena: Bytes,
    },
    /// A region does not start or end on a whole element.
    #[error("region at {offset} of {size} is not made of whole elements of {element} bytes")]
    RegionMisaligned {
        /// Where the region starts.
        offset: Bytes,
        /// Its size.
        size: Bytes,
        /// The element's size, in bytes.
        element: usize,
    },
    /// Two operands of one operator share bytes and one of them is written.
    #[error(
        "region at {offset} of {size} overlaps the region at {other_offset} of {other_size} that the same operator holds"
    )]
    RegionOverlap {
        /// Where the refused region starts.
        offset: Bytes,
        /// Its size.
        size: Bytes,
        /// Where the region held starts.
        other_offset: Bytes,
        /// Its size.
        other_size: Bytes,
    },
    /// One operator asks for more regions than it may hold at once.
    #[error("an operator may hold {limit} regions of an arena at once")]
    TooManyRegions {
        /// The limit.
        limit: usize,
    },
    /// A graph has an edge to a task that it does not have.
    #[error("edge {edge} names task {task}, but the graph has {tasks} tasks")]
    UnknownTask {
        /// The edge's position in the list.
        edge: usize,
        /// The task it names.
        task: u32,
        /// How many tasks there are.
        tasks: u32,
    },
    /// A graph has a cycle, so no order of its tasks exists.
    #[error("the graph has a cycle through task {task}")]
    Cycle {
        /// A task on a cycle, or behind one.
        task: u32,
    },
    /// A graph has more edges than 32-bit offsets can count.
    #[error("the graph has {edges} edges; at most {limit} are possible")]
    TooManyEdges {
        /// Its edges.
        edges: usize,
        /// The limit.
        limit: usize,
    },
    /// A task of a parallel run panicked; the tasks behind it did not run.
    #[error("task {task} panicked; the tasks that depend on it did not run")]
    TaskPanicked {
        /// The task.
        task: u32,
    },
    /// More threads want to work on a run than it has places for.
    #[error("the run has places for {limit} workers and all are taken")]
    TooManyWorkers {
        /// The places.
        limit: usize,
    },
    /// An entry names operators that its program does not have.
    #[error(
        "operators {start}..{end} are not within the program's {len}, or there are none of them"
    )]
    OperatorRange {
        /// First operator asked for.
        start: u32,
        /// One past the last.
        end: u32,
        /// How many the program has.
        len: u32,
    },
    /// The lane has ended and takes no more entries.
    #[error("the lane has ended; enqueue on a lane that is alive")]
    LaneEnded,
    /// The host could not give a lane its thread.
    #[error("no thread for lane {name:?}")]
    Spawn {
        /// The thread's name.
        name: String,
        /// What the host said.
        #[source]
        source: std::io::Error,
    },
    /// An operator panicked. The lane lives on, the program is gone.
    #[error("operator {op} panicked: {message}")]
    OperatorPanicked {
        /// The operator's index in its program.
        op: u32,
        /// The panic's message, if it had one.
        message: String,
    },
    /// An operator of the host failed.
    #[error("{operator} failed")]
    Operator {
        /// What failed.
        operator: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
