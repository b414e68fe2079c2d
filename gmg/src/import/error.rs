//! Why a file is not a graph.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use super::{Format, Reason};
use crate::graph::GraphError;

/// Where in a file something is: after decompression, counted from the start of what is imported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Position {
    /// Bytes before it, or read when it was noticed.
    pub byte: u64,
    /// The number of its record (node, event), counted from 0; [`None`] outside of records.
    pub record: Option<u64>,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}", self.byte)?;
        self.record.map_or(Ok(()), |record| write!(f, ", record {record}"))
    }
}

/// Why a file can not be imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The file can not be read, or its compression is broken.
    #[error("{position}: {source}")]
    Read {
        /// Where.
        position: Position,
        /// Why.
        source: io::Error,
    },
    /// It is none of the formats.
    #[error("{position}: {found}: expected a Chakra, Kineto or PyTorch trace, plain, .gz or .tar.gz")]
    UnknownFormat {
        /// Where.
        position: Position,
        /// What is there instead.
        found: &'static str,
    },
    /// It is a trace of another format than the one that the options ask for.
    #[error("{position}: this is a {found} trace: expected {wanted}, as asked for")]
    OtherFormat {
        /// Where.
        position: Position,
        /// What it is.
        found: Format,
        /// What was asked for.
        wanted: Format,
    },
    /// It is what [`export::perfetto`](crate::export::perfetto) wrote, which is for looking at.
    #[error(
        "{position}: this is a timeline that SliceScheduler exported, without the edges and kinds that a graph needs: \
         expected a trace; a graph that was exported to Chakra can be read back"
    )]
    Timeline {
        /// Where.
        position: Position,
    },
    /// The format is known, but its reader was not compiled.
    #[error("this is a {0} trace, which needs the feature \"{feature}\"", feature = .0.feature())]
    NotCompiled(Format),
    /// The file breaks the rules of its encoding.
    #[error("{position}: {reason}")]
    Syntax {
        /// Where.
        position: Position,
        /// What is wrong, in the words of the decoder.
        reason: String,
    },
    /// A field is missing or makes no sense.
    #[error("{position}{}: {field} is {found}: expected {expected}", of_node(.node))]
    Field {
        /// Where.
        position: Position,
        /// The node's id, once it is known.
        node: Option<u64>,
        /// The field.
        field: &'static str,
        /// Its value, shortened.
        found: String,
        /// What it must be.
        expected: &'static str,
    },
    /// Two nodes have one id.
    #[error("{position}: node {node} exists already: expected ids to be unique")]
    DuplicateNode {
        /// Where the second one is.
        position: Position,
        /// Their id.
        node: u64,
    },
    /// A node waits for itself.
    #[error("{position}: node {node} depends on itself")]
    SelfDependency {
        /// Where.
        position: Position,
        /// Its id.
        node: u64,
    },
    /// A node waits for one that the file does not have, and the options ask for it.
    #[error("record {record}: node {node} depends on node {on}, which the file does not have")]
    Dangling {
        /// The record of the node.
        record: u64,
        /// The node.
        node: u64,
        /// What it depends on.
        on: u64,
    },
    /// Nodes wait for each other.
    #[error("nodes {} depend on each other in a circle", in_a_row(.nodes))]
    Cycle {
        /// Each depends on the one before it, the first on the last; at most 32 of them are named.
        nodes: Vec<u64>,
    },
    /// A limit of the options.
    #[error("{position}: more than {most} {what}: raise the limit {limit} if the file is to be trusted")]
    Limit {
        /// Where.
        position: Position,
        /// What there is too much of.
        what: &'static str,
        /// How much is allowed.
        most: u64,
        /// What the limit is called in [`Limits`](crate::import::Limits).
        limit: &'static str,
    },
    /// Nothing in the file is an operator.
    #[error("{records} records and no operator among them{}", in_words(.dropped))]
    NoOperators {
        /// Records read.
        records: u64,
        /// What was dropped, and why.
        dropped: BTreeMap<Reason, u64>,
    },
    /// What was read makes no graph.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

fn of_node(node: &Option<u64>) -> String {
    node.map_or_else(String::new, |node| format!(", node {node}"))
}

fn in_words(dropped: &BTreeMap<Reason, u64>) -> String {
    let counts: Vec<_> = dropped.iter().map(|(reason, count)| format!("{count} x {reason}")).collect();
    if counts.is_empty() { String::new() } else { format!("; dropped: {}", counts.join(", ")) }
}

fn in_a_row(nodes: &[u64]) -> String {
    let names: Vec<_> = nodes.iter().map(u64::to_string).collect();
    names.join(" -> ")
}

/// A value in an error message: its beginning, if it is long.
pub(super) fn shortened(value: impl fmt::Display) -> String {
    let mut text = value.to_string();
    if let Some((end, _)) = text.char_indices().nth(40) {
        text.truncate(end);
        text.push_str("...");
    }
    text
}
