//! Chrome trace JSON, which the page of Perfetto opens.

use std::fmt;
use std::io::{self, Write};

use super::{Source, TIMELINE};
use crate::id::OpIndex;

/// Writes the operators as spans on their lanes, with an arrow along each dependency that crosses
/// lanes. An operator without a recorded start begins when those before it have finished.
///
/// It is for looking at: edges within a lane, tensors and ids have no place in it, and
/// [`import::read`](crate::import::read) refuses it as [`ImportError::Timeline`](crate::import::ImportError::Timeline).
///
/// # Errors
///
/// Those of the writer.
pub fn perfetto(source: Source<'_>, mut out: impl Write) -> io::Result<()> {
    let graph = source.graph;
    let starts = source.starts();
    let lane = |op: OpIndex| source.record(op).and_then(|record| record.lane).map_or(0, |lane| u64::from(lane) + 1);
    let (field, key, exporter) = TIMELINE;
    writeln!(out, "{{\"displayTimeUnit\":\"ms\",\"{field}\":{{\"{key}\":\"{exporter}\"}},\"traceEvents\":[")?;
    write!(out, "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":1,\"args\":{{\"name\":{}}}}}", Json(graph.name()))?;
    let unknown = (0..graph.op_count()).any(|op| lane(OpIndex(op)) == 0).then_some((0, "operators"));
    let named = source.lanes.iter().enumerate().map(|(index, name)| (index + 1, &**name));
    for (thread, name) in unknown.into_iter().chain(named) {
        let name = Json(name);
        write!(
            out,
            ",\n{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":{thread},\"args\":{{\"name\":{name}}}}}"
        )?;
    }
    let mut arrows = 0u64;
    for view in graph.ops() {
        let op = view.index();
        let (start, thread) = (starts[op.index()], lane(op));
        let duration = source.record(op).and_then(|record| record.duration).unwrap_or_default();
        let cost = view.cost(&source.binding);
        write!(
            out,
            ",\n{{\"ph\":\"X\",\"name\":{},\"cat\":{},\"pid\":1,\"tid\":{thread},\"ts\":{},\"dur\":{},\"args\":{{\"op\":{},\"flops\":{},\"bytes\":{}}}}}",
            Json(&view.name().to_string()),
            Json(&view.kind().to_string()),
            Micros(start.get()),
            Micros(duration.get()),
            op.0,
            cost.flops.get(),
            cost.bytes().get(),
        )?;
        for before in graph.predecessors(op).filter(|&before| lane(before) != thread) {
            let finish =
                starts[before.index()] + source.record(before).and_then(|record| record.duration).unwrap_or_default();
            let (from, finish, start) = (lane(before), Micros(finish.get()), Micros(start.get()));
            let common = format_args!("\"name\":\"waits\",\"cat\":\"edge\",\"id\":{arrows},\"pid\":1").to_string();
            write!(out, ",\n{{\"ph\":\"s\",{common},\"tid\":{from},\"ts\":{finish}}}")?;
            write!(out, ",\n{{\"ph\":\"f\",\"bp\":\"e\",{common},\"tid\":{thread},\"ts\":{start}}}")?;
            arrows += 1;
        }
    }
    writeln!(out, "\n]}}")
}

/// Nanoseconds as microseconds, exactly.
struct Micros(u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// A text in quotes (RFC 8259, section 7).
struct Json<'t>(&'t str);

impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for letter in self.0.chars() {
            match letter {
                '"' | '\\' => write!(f, "\\{letter}")?,
                letter if u32::from(letter) < 0x20 => write!(f, "\\u{:04x}", u32::from(letter))?,
                letter => write!(f, "{letter}")?,
            }
        }
        f.write_str("\"")
    }
}
