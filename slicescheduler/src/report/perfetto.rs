//! Runs as a Chrome trace (JSON object form), which the Perfetto viewer opens.
//!
//! | in the trace | is |
//! |---|---|
//! | process | a policy |
//! | thread | a device |
//! | complete event | a [`Span`] of the run's detail window |
//! | counter | the bytes in use on a device, one series per kind that is ever used in the run |
//!
//! Form: "Trace Event Format", the document of the Chrome tracing project. Times are microseconds
//! with three decimals, so no nanosecond is lost.

use std::fmt;
use std::io::{self, Write};

use slicescheduler_gmg::memory::ByteKind;
use slicescheduler_gmg::units::Nanos;

use crate::report::{RunRecord, Span, SpanKind};

/// Writes `runs` as one trace. Events are written as they come; memory does not grow with the runs.
///
/// # Errors
/// Those of `out`.
pub fn write(runs: &[RunRecord], out: &mut impl Write) -> io::Result<()> {
    let mut trace = Trace { out: io::BufWriter::new(out), empty: true };
    trace.out.write_all(
        b"{\"displayTimeUnit\":\"ms\",\"otherData\":{\"exporter\":\"SliceScheduler timeline\"},\"traceEvents\":[",
    )?;
    let mut thread = runs.len() + 1;
    for (index, run) in runs.iter().enumerate() {
        trace.run(&Numbers { process: index + 1, thread }, run)?;
        thread += run.devices.len();
    }
    trace.out.write_all(b"\n]}\n")?;
    trace.out.flush()
}

/// The numbers of a run in the trace. No thread has the number of a process or of another thread:
/// viewers take a thread with its process's number for the main thread, and some tell threads apart
/// by their number alone.
struct Numbers {
    process: usize,
    /// The thread of the first device; the others follow.
    thread: usize,
}

struct Trace<W: Write> {
    out: W,
    empty: bool,
}

impl<W: Write> Trace<W> {
    fn run(&mut self, numbers: &Numbers, run: &RunRecord) -> io::Result<()> {
        self.label(numbers, None, "process", &run.summary.name, numbers.process)?;
        for (device, label) in run.devices.iter().enumerate() {
            let owner = label.owner.and_then(|owner| run.tenants.get(owner));
            let name = match owner {
                Some(owner) => format!("{} ({})", label.name, owner.name),
                None => label.name.clone(),
            };
            self.label(numbers, Some(device), "thread", &name, device)?;
        }
        for span in &run.spans {
            self.span(numbers, run, span)?;
        }
        self.memory(numbers, run)
    }

    fn span(&mut self, numbers: &Numbers, run: &RunRecord, span: &Span) -> io::Result<()> {
        let tenant = match run.tenants.get(span.tenant as usize) {
            Some(tenant) => tenant.name.clone(),
            None => format!("tenant {}", span.tenant),
        };
        let kind = match span.kind {
            SpanKind::Prefill => "prefill",
            SpanKind::Decode => "decode",
        };
        self.begin(numbers, Some(span.device as usize), 'X')?;
        self.out.write_all(b",\"name\":")?;
        self.string(&format!("{tenant} {kind}"))?;
        write!(
            self.out,
            ",\"cat\":\"{}\",\"ts\":{},\"dur\":{},\"args\":{{",
            if span.guest { "guest" } else { "owner" },
            Micros(span.start),
            Micros(span.finish - span.start),
        )?;
        write!(
            self.out,
            "\"tokens\":{},\"operators\":{},\"guest\":{},\"recalled\":{}}}}}",
            span.tokens, span.operators, span.guest, span.recalled,
        )
    }

    fn memory(&mut self, numbers: &Numbers, run: &RunRecord) -> io::Result<()> {
        let used = ByteKind::ALL.map(|kind| run.memory.iter().any(|sample| sample.bytes[kind as usize] > 0));
        if !used.contains(&true) {
            return Ok(());
        }
        for sample in &run.memory {
            self.begin(numbers, None, 'C')?;
            self.out.write_all(b",\"name\":")?;
            match run.devices.get(sample.device as usize) {
                Some(device) => self.string(&format!("{} memory, bytes", device.name))?,
                None => self.string(&format!("device {} memory, bytes", sample.device))?,
            }
            write!(self.out, ",\"ts\":{},\"args\":{{", Micros(sample.at))?;
            let mut separator = "";
            for kind in ByteKind::ALL.into_iter().filter(|kind| used[*kind as usize]) {
                write!(self.out, "{separator}\"{}\":{}", kind.name(), sample.bytes[kind as usize])?;
                separator = ",";
            }
            self.out.write_all(b"}}")?;
        }
        Ok(())
    }

    /// Names a process or a thread (`what`) and puts it into its place.
    fn label(
        &mut self,
        numbers: &Numbers,
        device: Option<usize>,
        what: &str,
        name: &str,
        place: usize,
    ) -> io::Result<()> {
        self.begin(numbers, device, 'M')?;
        write!(self.out, ",\"name\":\"{what}_name\",\"args\":{{\"name\":")?;
        self.string(name)?;
        self.out.write_all(b"}}")?;
        self.begin(numbers, device, 'M')?;
        write!(self.out, ",\"name\":\"{what}_sort_index\",\"args\":{{\"sort_index\":{place}}}}}")
    }

    /// Opens an event; the caller writes its other fields and closes it.
    fn begin(&mut self, numbers: &Numbers, device: Option<usize>, phase: char) -> io::Result<()> {
        let separator = if std::mem::take(&mut self.empty) { "\n" } else { ",\n" };
        write!(self.out, "{separator}{{\"ph\":\"{phase}\",\"pid\":{}", numbers.process)?;
        match device {
            Some(device) => write!(self.out, ",\"tid\":{}", numbers.thread + device),
            None => Ok(()),
        }
    }

    fn string(&mut self, text: &str) -> io::Result<()> {
        Ok(serde_json::to_writer(&mut self.out, text)?)
    }
}

/// A time in microseconds with three decimals.
struct Micros(Nanos);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.get();
        write!(f, "{}.{:03}", nanos / 1_000, nanos % 1_000)
    }
}
