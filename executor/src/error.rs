//! What can go wrong while operators run.

use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::id::{DeviceId, ModelId, RequestId};
use slicescheduler_gmg::plan::WorldError;
use slicescheduler_gmg::units::Bytes;
use thiserror::Error;

/// Result with this crate's error.
pub type Result<T, E = ExecutorError> = std::result::Result<T, E>;

/// The error of everything in this crate.
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
    /// A region lies within its arena, but not within what the operator was given of it.
    #[error(
        "region at {offset} of {size} is not within the {bounds_size} at {bounds_offset} that the operator was given"
    )]
    RegionNotGranted {
        /// Where the region starts.
        offset: Bytes,
        /// Its size.
        size: Bytes,
        /// Where what was given starts.
        bounds_offset: Bytes,
        /// Its size.
        bounds_size: Bytes,
    },
    /// A region does not begin on a boundary of its elements, or is not made of whole ones.
    #[error(
        "region at {offset} of {size} does not begin on a boundary of {element} bytes, or is no whole number of them"
    )]
    RegionMisaligned {
        /// Where the region starts.
        offset: Bytes,
        /// Its size.
        size: Bytes,
        /// The size of an element, or the boundary on which kernels want a region to start, in bytes.
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
    /// A graph has more tasks than labels can name.
    #[error("the graph has {tasks} tasks; at most {limit} are possible")]
    TooManyTasks {
        /// Its tasks.
        tasks: u32,
        /// The limit.
        limit: u32,
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
    #[error("operators {start}..{end} are not within the program's {len}, or there are none of them")]
    OperatorRange {
        /// First operator asked for.
        start: u32,
        /// One past the last.
        end: u32,
        /// How many the program has.
        len: u32,
    },
    /// An operator has more inputs than a call keeps account of.
    #[error("operator {op} has {inputs} inputs; at most {most} are supported")]
    Inputs {
        /// The operator.
        op: String,
        /// Its inputs.
        inputs: usize,
        /// As many as may be.
        most: usize,
    },
    /// The lane has ended and takes no more entries.
    #[error("the lane has ended; enqueue on a lane that is alive")]
    LaneEnded,
    /// As many entries wait on a lane before another one as may.
    #[error("{waiting} entries of its rank or above wait on the lane, as many as may; wait for two of its events")]
    LaneFull {
        /// Entries of its rank or above that wait.
        waiting: usize,
    },
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
    /// The two ends of a transfer differ in length.
    #[error("a transfer from {from} to {to} is not possible; both ends must have the same length")]
    TransferLength {
        /// Length of the source.
        from: Bytes,
        /// Length of the destination.
        to: Bytes,
    },
    /// A transport wants to use an end of a transfer that is not in this process.
    #[error("the {end} of the transfer is not in this process")]
    NoSuchEnd {
        /// Source or destination.
        end: &'static str,
    },
    /// The two processes at the ends of a link gave one name to transfers of different sizes.
    #[error("the transfer has {here} here and {there} at the other end of the link; both must be the same")]
    TransferSize {
        /// Bytes of this process's half.
        here: Bytes,
        /// Bytes of the other half.
        there: Bytes,
    },
    /// The process at the other end of a link could not go on with a transfer.
    #[error("the other end of the link could not go on with the transfer, {left} of {size} were not moved")]
    OtherEndFailed {
        /// Bytes that were not moved.
        left: Bytes,
        /// Bytes of the transfer.
        size: Bytes,
    },
    /// A link was cut and did not come back in time.
    #[error("the link was cut and did not come back, {left} of a transfer of {size} were not moved")]
    LinkCut {
        /// Bytes that were not moved.
        left: Bytes,
        /// Bytes of the transfer.
        size: Bytes,
    },
    /// What a link goes over can not be had.
    #[error("no link over {over}")]
    NoLink {
        /// The address or the file.
        over: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The transport ended before it had moved everything.
    #[error("the transport ended with {left} of a transfer of {size} not moved")]
    TransportEnded {
        /// Bytes that were not moved.
        left: Bytes,
        /// Bytes of the transfer.
        size: Bytes,
    },
    /// A transport said that a transfer had ended well, and it had not.
    #[error("the transport reported a transfer of {size} as done with {left} of it not moved")]
    NotMoved {
        /// Bytes that were not moved.
        left: Bytes,
        /// Bytes of the transfer.
        size: Bytes,
    },
    /// A transport refused a transfer for want of room although it had none.
    #[error("the transport has no room for a transfer of {size} although none is under way")]
    NoRoomForTransfers {
        /// Bytes of the transfer.
        size: Bytes,
    },
    /// A tensor that no kernel here can work on.
    #[error("tensor {tensor:?} is {dtype} {shape}; {expected} is supported")]
    UnsupportedTensor {
        /// Its qualified name.
        tensor: String,
        /// Its element type.
        dtype: DType,
        /// Its shape, in words.
        shape: String,
        /// What would be right.
        expected: &'static str,
    },
    /// A weight that can not be given.
    #[error("weight {weight:?} can not be read: {reason}")]
    Weight {
        /// Its qualified name in the template.
        weight: String,
        /// What is wrong, and where.
        reason: String,
    },
    /// A template lacks what the executor fills or reads, or has what it can not fill.
    #[error("template {template:?} is neither that of a decoder nor that of an encoder: {reason}")]
    NotAModel {
        /// The template's name.
        template: String,
        /// What is missing, or too much.
        reason: String,
    },
    /// No kernel is registered for an operator.
    #[error("no kernel for {kind} of {dtype} elements, which operator {op:?} needs; register one")]
    NoKernel {
        /// The operator's qualified name.
        op: String,
        /// Its kind.
        kind: String,
        /// The element type that decides.
        dtype: DType,
    },
    /// A kernel asks for an operand that its operator does not have.
    #[error("operand {index} of the operator's {side} is not {expected}")]
    NoOperand {
        /// Inputs or outputs.
        side: &'static str,
        /// Which of them.
        index: usize,
        /// What the kernel asked for.
        expected: &'static str,
    },
    /// The model of the graph has another template than the implementation given for it.
    #[error("the implementation of {0} was made for another template; make both from the same Arc")]
    OtherTemplate(ModelId),
    /// A model can not be made ready to run.
    #[error("{model}: {source}")]
    Model {
        /// The model.
        model: ModelId,
        /// Why.
        source: Box<ExecutorError>,
    },
    /// A weight slot is too small for the packed weights.
    #[error("{model} needs {needed} of weights on {device}, its slot has {slot}; enter it with packed weights")]
    SlotTooSmall {
        /// The model.
        model: ModelId,
        /// Where.
        device: DeviceId,
        /// What the graph reserved.
        slot: Bytes,
        /// What would be right.
        needed: Bytes,
    },
    /// The KV blocks of a device are too small for a model.
    #[error("{model} needs KV blocks of {needed} for {tokens} tokens, those of {device} have {block}")]
    KvBlockTooSmall {
        /// The model.
        model: ModelId,
        /// Where.
        device: DeviceId,
        /// Tokens in a block of the device.
        tokens: u32,
        /// Bytes of a block of the device.
        block: Bytes,
        /// What would be right.
        needed: Bytes,
    },
    /// A region lies outside of the part of a device that it belongs in.
    #[error("{what} at {offset} of {size} are not within {part_size} at {part_offset} of {device}")]
    OutsidePart {
        /// What the region is for.
        what: &'static str,
        /// Where.
        device: DeviceId,
        /// Where the region starts.
        offset: Bytes,
        /// Its size.
        size: Bytes,
        /// Where the part starts.
        part_offset: Bytes,
        /// Its size.
        part_size: Bytes,
    },
    /// A model does not run in this world.
    #[error("{0} has no implementation here; give it when the world is made")]
    NoModel(ModelId),
    /// The weights of a model are not on the device that is to run it.
    #[error("the weights of {model} were not loaded on {device}")]
    NotLoaded {
        /// The model.
        model: ModelId,
        /// Where.
        device: DeviceId,
    },
    /// Two lanes, or a lane and a transfer, were given the same bytes.
    #[error("region at {offset} of {size} on {device} is in use by another lane or transfer")]
    RegionInUse {
        /// Where.
        device: DeviceId,
        /// Where the region starts.
        offset: Bytes,
        /// Its size.
        size: Bytes,
    },
    /// Two lanes were given the same KV block.
    #[error("KV block {block} of {device} is in use by another lane")]
    BlockInUse {
        /// Where.
        device: DeviceId,
        /// The block.
        block: u32,
    },
    /// A KV block lies where CPU lanes have none: in the part of the device for weights, or nowhere.
    #[error(
        "{device} has {blocks} KV blocks here, so not number {block}; lanes of a CPU have none in the part for weights: \
         do not let its pool borrow slots (Action::BorrowSlots)"
    )]
    NoBlock {
        /// Where.
        device: DeviceId,
        /// The block.
        block: u32,
        /// Blocks that there are.
        blocks: u32,
    },
    /// Weights of some operators were to come or go, and CPU lanes have weights of whole models only.
    #[error(
        "weights of operators {start}..{end} of {model} alone can not be on {device}: lanes of a CPU have whole models; \
         load and free those (Action::Prefetch, Action::EvictWeights)"
    )]
    PartOfWeights {
        /// Whose.
        model: ModelId,
        /// Where.
        device: DeviceId,
        /// The first operator.
        start: u32,
        /// One past the last.
        end: u32,
    },
    /// A command that this version does not know.
    #[error("lanes of a CPU can not carry out {command}")]
    NoSuchCommand {
        /// The command.
        command: String,
    },
    /// A job names a request whose prompt was not entered.
    #[error("{0} has no prompt here; enter it before the first job that computes it")]
    UnknownRequest(RequestId),
    /// Of a sequence less was kept than a job wants to be restored.
    #[error("a row of {request} begins at position {position}, of which {kept} were kept; begin there at the latest")]
    NotKept {
        /// The request.
        request: RequestId,
        /// The row's first position.
        position: u32,
        /// Tokens that were kept.
        kept: u32,
    },
    /// Keys and values were kept in blocks of another kind than the device has.
    #[error("the keys and values of {request} were kept in blocks of another size than those of {device}")]
    OtherBlocks {
        /// The request.
        request: RequestId,
        /// Where they are to go.
        device: DeviceId,
    },
    /// Keys and values are moved in whole blocks.
    #[error("{tokens} tokens can not be moved; whole blocks of {block_tokens} can, up to {most} tokens")]
    KvTokens {
        /// Tokens asked for.
        tokens: u32,
        /// Tokens of a block.
        block_tokens: u32,
        /// The most that can be moved.
        most: u32,
    },
    /// A prompt that can not be answered.
    #[error("{request} has {prompt} tokens of prompt and at most {max_output} of output; both must be at least 1")]
    EmptyRequest {
        /// The request.
        request: RequestId,
        /// Tokens of the prompt.
        prompt: usize,
        /// Most output tokens.
        max_output: u32,
    },
    /// A row of a batch does not fit what is known of its sequence.
    #[error(
        "a row of {request} ends at position {end} (emits: {emits}), {known} tokens are known; a row ends there at \
         the latest, and there exactly if it emits"
    )]
    Row {
        /// The request.
        request: RequestId,
        /// One past the row's last position.
        end: u64,
        /// Whether it gives an output token.
        emits: bool,
        /// Tokens of prompt and output so far.
        known: usize,
    },
    /// A job of an encoder has a part of a sequence as a row.
    #[error(
        "a row of {request} has its tokens {start} to {end} of {known}; an encoder takes all tokens of a sequence at \
         once"
    )]
    NotWhole {
        /// The request.
        request: RequestId,
        /// The row's first position.
        start: u64,
        /// One past the row's last position.
        end: u64,
        /// Tokens of the sequence.
        known: usize,
    },
    /// A job's dims and rows say different things.
    #[error("the job binds {symbol} to {bound}, its rows have {rows}")]
    BatchDims {
        /// The symbol.
        symbol: &'static str,
        /// What it is bound to.
        bound: u64,
        /// What the rows say.
        rows: u64,
    },
    /// An entry's turn came before the operators ahead of it had run, because they were recalled.
    #[error("operator {op} can not run, the job has come to operator {next}")]
    NotReached {
        /// The operator.
        op: u32,
        /// The job's next operator.
        next: u32,
    },
    /// A device is gone, with everything on it.
    #[error("{0} is lost")]
    DeviceLost(DeviceId),
    /// An operator has left its lane unable to go on: a context of its device that takes no more work, for instance. A
    /// [`Program`](crate::lane::Program) that fails with this ends its lane.
    #[error("the lane can not go on behind an operator that has poisoned it; start another one")]
    LanePoisoned,
    /// Something failed because [`Faults`](crate::fault::Faults) said so.
    #[error("{what} was made to fail")]
    MadeToFail {
        /// What.
        what: &'static str,
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

impl From<ExecutorError> for WorldError {
    fn from(error: ExecutorError) -> Self {
        Self::Other { message: error.to_string(), source: Some(Box::new(error)) }
    }
}
