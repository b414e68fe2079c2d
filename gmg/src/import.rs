//! Graphs out of other people's traces.
//!
//! | format | feature | operators | edges |
//! |---|---|---|---|
//! | Chakra ET, protobuf and JSON | `chakra` | every node | data and control dependencies |
//! | Kineto (Chrome JSON of the PyTorch profiler) | `kineto` | kernels, copies, fills; the calls that launched them | streams, threads, launches, recorded waits |
//! | PyTorch execution trace | `pytorch` | the calls that compute, at the innermost level | tensors, through the storage they lie in |
//!
//! [`read`] finds the format out by content; files may be plain, gzip, or the first trace of a tar
//! archive, within each other up to four deep. Reading is one pass: memory grows with the operators and edges that are kept, and with
//! one record, never with the file. Every bound is a field of [`Limits`].
//!
//! What is not an operator is dropped and counted by [`Reason`]; what contradicts itself is an
//! [`ImportError`] with its position.
//!
//! ```
//! # #[cfg(feature = "chakra")] {
//! use slicescheduler_gmg::import::{self, Options};
//! use slicescheduler_gmg::units::Nanos;
//!
//! let trace = r#"{"workload_graph": [
//!     {"Id": 1, "Name": "load", "NodeType": 2, "runtime": 5, "data_deps": [], "tensor_size": 4096},
//!     {"Id": 2, "Name": "gemm", "NodeType": 4, "runtime": 20, "data_deps": [1], "num_ops": 1000}
//! ]}"#;
//! let import = import::read(trace.as_bytes(), "two nodes", &Options::default())?;
//! assert_eq!((import.graph.op_count(), import.account.edges), (2, 1));
//! assert_eq!(import.ops[1].duration, Some(Nanos::us(20)));
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "chakra")]
mod chakra;
mod communication;
#[cfg(any(feature = "chakra", feature = "kineto", feature = "pytorch"))]
#[cfg_attr(
    not(all(feature = "chakra", feature = "kineto", feature = "pytorch")),
    allow(dead_code, reason = "every reader uses a part of it")
)]
mod draft;
#[cfg_attr(
    not(any(feature = "chakra", feature = "kineto", feature = "pytorch")),
    allow(dead_code, reason = "the readers use it")
)]
mod error;
#[cfg(any(feature = "chakra", feature = "kineto", feature = "pytorch"))]
#[cfg_attr(
    not(all(feature = "chakra", feature = "kineto", feature = "pytorch")),
    allow(dead_code, reason = "every reader uses a part of it")
)]
mod json;
#[cfg(feature = "kineto")]
mod kineto;
#[cfg(any(feature = "kineto", feature = "pytorch"))]
mod products;
#[cfg(feature = "pytorch")]
mod pytorch;
#[cfg(any(feature = "chakra", feature = "kineto", feature = "pytorch"))]
#[cfg_attr(
    not(all(feature = "chakra", feature = "kineto", feature = "pytorch")),
    allow(dead_code, reason = "every reader uses a part of it")
)]
mod source;

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;

pub use communication::{Communication, Pattern};
pub use error::{ImportError, Position};

use crate::graph::OpGraph;
use crate::units::Nanos;

/// A kind of trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Format {
    /// Chakra execution trace: length-delimited protobuf messages.
    Chakra,
    /// The JSON form of the same nodes: ASTRA-sim's object with a `workload_graph`, or what protobuf's mapping makes
    /// of a trace, metadata first: an array, or one object behind the other.
    ChakraJson,
    /// A Chrome trace of the PyTorch profiler: an object with `traceEvents`, or the bare array.
    Kineto,
    /// A PyTorch execution trace: an object with `nodes`.
    PyTorch,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Chakra, Self::ChakraJson, Self::Kineto, Self::PyTorch];

    /// Its name on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Chakra => "chakra",
            Self::ChakraJson => "chakra-json",
            Self::Kineto => "kineto",
            Self::PyTorch => "pytorch",
        }
    }

    /// The feature that its reader belongs to.
    pub const fn feature(self) -> &'static str {
        match self {
            Self::Chakra | Self::ChakraJson => "chakra",
            Self::Kineto => "kineto",
            Self::PyTorch => "pytorch",
        }
    }

    /// True if its reader was compiled.
    pub const fn is_compiled(self) -> bool {
        match self {
            Self::Chakra | Self::ChakraJson => cfg!(feature = "chakra"),
            Self::Kineto => cfg!(feature = "kineto"),
            Self::PyTorch => cfg!(feature = "pytorch"),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The format; found out by content if [`None`].
    pub format: Option<Format>,
    /// Refuse a dependency on a node that the file does not have, instead of dropping it.
    pub refuse_dangling: bool,
    /// Chakra: follow data dependencies only, as ASTRA-sim does.
    pub data_only: bool,
    /// Kineto: keep what ran on devices only, without the calls that launched it.
    pub devices_only: bool,
    /// What a file may ask for.
    pub limits: Limits,
}

/// What a file may ask for. The defaults hold for the traces of a training step of a large model.
///
/// Memory is at most about `64 * record_bytes` for the record that is being read, 1 KiB and
/// twice the name for an operator, and 64 bytes for an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one record: a node, an event, a field between them. 8 MiB.
    pub record_bytes: u64,
    /// Bytes of the whole file, unpacked. 1 TiB.
    pub total_bytes: u64,
    /// Operators. 4 million.
    pub ops: u64,
    /// Dependencies; in PyTorch's traces tensors that calls read and write, too. 64 million.
    pub edges: u64,
    /// Bytes of a name; the tail of a longer one is dropped. 512.
    pub name_bytes: usize,
    /// A longer duration is taken for damage: 30 days.
    pub duration: Nanos,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            record_bytes: 8 << 20,
            total_bytes: 1 << 40,
            ops: 4_000_000,
            edges: 64_000_000,
            name_bytes: 512,
            duration: Nanos::secs(30 * 24 * 3600),
        }
    }
}

/// A graph, with what the trace says about its operators.
#[derive(Clone, Debug)]
pub struct Import {
    /// The operators, their tensors where the trace has them, and their edges.
    pub graph: OpGraph,
    /// What was recorded about each operator; an [`OpIndex`](crate::id::OpIndex) is an index into it.
    pub ops: Vec<OpRecord>,
    /// The names of the lanes that operators ran on: streams, threads, devices.
    pub lanes: Vec<Box<str>>,
    /// What became of the records.
    pub account: Account,
}

impl Import {
    /// The durations together; operators without one count nothing.
    pub fn measured(&self) -> Nanos {
        self.ops.iter().filter_map(|op| op.duration).sum()
    }
}

/// What a trace says about an operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpRecord {
    /// The node's id in the trace; for formats without ids, the number of its record.
    pub id: u64,
    /// How long it ran.
    pub duration: Option<Nanos>,
    /// When it started, counted from the first operator that has a start.
    pub start: Option<Nanos>,
    /// Where it ran: an index into [`Import::lanes`].
    pub lane: Option<u32>,
    /// What it sent and received.
    pub communication: Option<Box<Communication>>,
}

/// What became of the records of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// What the file is.
    pub format: Format,
    /// Records read: nodes or events.
    pub records: u64,
    /// Operators kept.
    pub ops: u64,
    /// Dependencies kept, each pair of operators once.
    pub edges: u64,
    /// What was dropped, and why.
    pub dropped: BTreeMap<Reason, u64>,
}

/// Why something is not in the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// A dependency on a node that the file does not have.
    Dangling,
    /// A dependency that is named twice.
    Repeated,
    /// A control dependency on the operator itself, or against the order that data asks for.
    Contradicting,
    /// A control dependency that the options leave out.
    Control,
    /// The tail of a name that is longer than the limit.
    NameTail,
    /// A call that only calls others, which are kept.
    Caller,
    /// A label that somebody put around calls.
    Annotation,
    /// A call that makes tensors or views, or looks at them, and moves no data.
    NoWork,
    /// Work of the host that is no launch.
    Host,
    /// An event that is no span of time: counters, flow arrows, names of threads.
    NotASpan,
    /// An event without a time, or with a time or duration that can not be.
    BadTime,
    /// The link from an operator to the call that launched it, which the file does not have.
    NoLaunch,
    /// A size, a number of operations, or in PyTorch's traces a time, that is negative, too large or no number; the
    /// operator stays without it.
    OutOfRange,
    /// A file of the archive that was not read: the graph is that of the first trace.
    OtherFile,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Dangling => "dependencies on nodes that are not in the file",
            Self::Repeated => "dependencies named twice",
            Self::Contradicting => "control dependencies against the flow of data",
            Self::Control => "control dependencies, as asked for",
            Self::NameTail => "tails of long names",
            Self::Caller => "calls that only call others",
            Self::Annotation => "annotations",
            Self::NoWork => "calls that move no data (views, allocations, queries)",
            Self::Host => "work of the host that launched nothing itself",
            Self::NotASpan => "events that are no span of time",
            Self::BadTime => "events with an impossible time",
            Self::NoLaunch => "links to launches that are not in the file",
            Self::OutOfRange => "sizes, operations or times of operators that are out of range",
            Self::OtherFile => "other files of the archive",
        })
    }
}

/// Reads a trace and makes a graph called `name` of it. One pass.
///
/// # Errors
///
/// The first thing that is wrong, with its position; see [`ImportError`].
pub fn read(reader: impl Read, name: &str, options: &Options) -> Result<Import, ImportError> {
    if let Some(format) = options.format.filter(|format| !format.is_compiled()) {
        return Err(ImportError::NotCompiled(format));
    }
    #[cfg(any(feature = "chakra", feature = "kineto", feature = "pytorch"))]
    return source::read(Box::new(reader), name, options);
    #[cfg(not(any(feature = "chakra", feature = "kineto", feature = "pytorch")))]
    {
        let (_, _) = (reader, name);
        Err(ImportError::NotCompiled(options.format.unwrap_or(Format::Chakra)))
    }
}
