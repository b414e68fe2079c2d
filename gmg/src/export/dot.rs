//! DOT, the language of Graphviz.

use std::io::{self, Write};

use petgraph::dot::{Config, Dot};

use super::Source;
use crate::id::OpIndex;

/// Writes the graph in DOT: a node per operator with its name, kind and, if it was measured,
/// duration; an edge per dependency.
///
/// # Errors
///
/// Those of the writer.
pub fn dot(source: Source<'_>, mut out: impl Write) -> io::Result<()> {
    let graph = source.graph;
    let label = |op: OpIndex| {
        let view = graph.op(op);
        let (name, kind) =
            view.map_or_else(Default::default, |view| (view.name().to_string(), view.kind().to_string()));
        let duration = source.record(op).and_then(|record| record.duration);
        let duration = duration.map_or_else(String::new, |duration| format!("\\n{duration}"));
        let (name, kind) = (escaped(&name), escaped(&kind));
        if name == kind {
            format!("label = \"{name}{duration}\"")
        } else {
            format!("label = \"{name}\\n{kind}{duration}\"")
        }
    };
    let of_node = |_, (op, _): (OpIndex, _)| label(op);
    let of_edge = |_, _| String::new();
    let config = [Config::NodeNoLabel, Config::EdgeNoLabel];
    write!(out, "{:?}", Dot::with_attr_getters(graph, &config, &of_edge, &of_node))
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '"' | '\\' => escaped.extend(['\\', letter]),
            letter if letter.is_control() => escaped.push(' '),
            letter => escaped.push(letter),
        }
    }
    escaped
}
