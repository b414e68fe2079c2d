//! Chrome traces of the PyTorch profiler (Kineto).
//!
//! Operators are what ran on devices: kernels, copies, fills. With them come the calls of the
//! runtime that launched them, on lanes of their own: one per thread. Edges: an operator waits for
//! the one before it on its stream; a call for the one before it on its thread; an operator for
//! its launch (equal correlation id); and, where the trace has `cuda_sync` events, for the other
//! stream that its stream was made to wait for. Traces of old profilers have no such events, so
//! waits between streams are missing in their graphs.
//!
//! Kernels of NCCL are communication, with the payload and group that they or their call carry.
//! Arithmetic is known where the trace has the shapes of calls (`record_shapes`): that of a product
//! is put on the longest kernel of its call.
//!
//! A trace in which no device did anything is one of a processor: its operators are the calls that
//! make no further call, in the order of their threads. The time that callers spend between their
//! calls is nobody's, and what one thread waits for another is not known.

mod event;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use smallvec::SmallVec;

use super::draft::{Draft, Node};
use super::json::{Records, Scalar};
use super::{Communication, Format, Import, ImportError, OpRecord, Options, Pattern, Position, Reason, products};
use crate::semantics::OpCost;
use crate::units::{Bytes, Flops, Nanos};
use event::{Arguments, Event};

/// What ran on a device, and the calls that may have launched it.
#[derive(Debug)]
struct Span {
    record: u64,
    position: Position,
    name: Arc<str>,
    start: Nanos,
    duration: Nanos,
    lane: u32,
    correlation: Option<u64>,
    work: Work,
}

#[derive(Debug)]
enum Work {
    Launch,
    Kernel { call: Option<u64>, communication: Option<Box<Communication>> },
    Call { flops: Flops, communication: Option<Box<Communication>> },
    Copy(Bytes),
    Fill(Bytes),
}

impl Work {
    fn is_on_device(&self) -> bool {
        matches!(self, Self::Kernel { .. } | Self::Copy(_) | Self::Fill(_))
    }
}

/// A stream that was made to wait for another.
#[derive(Debug)]
struct Wait {
    /// Who waits: what is launched on this lane after this correlation id.
    waiter: (u32, u64),
    /// For whom: what was launched on this lane before this correlation id.
    waited: (u32, u64),
}

#[derive(Debug)]
pub(super) struct Reader {
    draft: Draft,
    options: Options,
    spans: Vec<Span>,
    /// Calls of the host, as long as no device has done anything.
    calls: Vec<Span>,
    has_devices: bool,
    /// Where there were more calls than may be kept.
    too_many_calls: Option<Position>,
    waits: Vec<Wait>,
    names: HashSet<Arc<str>>,
    /// By external id: the arithmetic of a call, and what it communicates.
    products: HashMap<u64, Flops>,
    communications: HashMap<u64, Communication>,
}

impl Reader {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            draft: Draft::new(Format::Kineto, options),
            options: options.clone(),
            spans: Vec::new(),
            calls: Vec::new(),
            has_devices: false,
            too_many_calls: None,
            waits: Vec::new(),
            names: HashSet::new(),
            products: HashMap::new(),
            communications: HashMap::new(),
        }
    }

    fn name(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.names.get(name) {
            return Arc::clone(known);
        }
        let shared: Arc<str> = name.into();
        self.names.insert(Arc::clone(&shared));
        shared
    }

    fn stream(&mut self, event: &Event) -> u32 {
        let Arguments { device, stream, .. } = &event.args;
        let or =
            |value: &Scalar, other: &Scalar| if value.is_nothing() { other.to_string() } else { value.to_string() };
        let (device, stream) = (or(device, &event.pid), or(stream, &event.tid));
        self.draft.lane(&format!("device {device} stream {stream}"))
    }

    fn call(&mut self, event: &Event, position: Position) {
        let shapes: SmallVec<[&[u64]; 8]> = event.args.shapes.0.iter().map(|shape| &shape[..]).collect();
        let flops = products::flops(event.name.as_text().unwrap_or_default(), &shapes, &[]);
        let flops = flops.filter(|&flops| self.draft.in_range(flops != Flops::MAX));
        let communication = self.communication(event);
        let known = (self.products.len() + self.communications.len()) as u64;
        if let Some(external) = event.args.external.as_u64().filter(|_| known < self.options.limits.ops) {
            if let Some(flops) = flops {
                self.products.insert(external, flops);
            }
            if let Some(communication) = &communication {
                self.communications.insert(external, communication.clone());
            }
        }
        let work = Work::Call { flops: flops.unwrap_or_default(), communication: communication.map(Box::new) };
        if self.has_devices || self.too_many_calls.is_some() {
            self.draft.drop(Reason::Host);
        } else if self.calls.len() as u64 >= self.options.limits.ops.saturating_mul(2) {
            self.too_many_calls = Some(position);
            self.drop_calls();
            self.draft.drop(Reason::Host);
        } else {
            match self.span(event, position, work) {
                Some(span) => self.calls.push(span),
                None => self.draft.drop(Reason::BadTime),
            }
        }
    }

    fn communication(&mut self, event: &Event) -> Option<Communication> {
        let mut communication = event.args.communication(self.options.limits.name_bytes)?;
        let elements = event.args.elements();
        if !self.draft.in_range(elements.is_nothing() || (elements.as_u64().is_some() && possible(communication.bytes)))
        {
            communication.bytes = Bytes::ZERO;
        }
        Some(communication)
    }

    /// The bytes that a copy or fill says that it moves.
    fn bytes(&mut self, event: &Event) -> Bytes {
        let given = &event.args.bytes;
        let bytes = given.as_u64().map(Bytes).filter(|&bytes| possible(bytes));
        self.draft.in_range(given.is_nothing() || bytes.is_some());
        bytes.unwrap_or_default()
    }

    fn drop_calls(&mut self) {
        let calls = std::mem::take(&mut self.calls);
        self.draft.drop_many(Reason::Host, calls.len() as u64);
    }

    /// [`None`] if its times are impossible.
    fn span(&mut self, event: &Event, position: Position, work: Work) -> Option<Span> {
        let start = event.ts.as_micros()?;
        let duration = event.dur.as_f64().and_then(|duration| self.draft.duration(duration, 1e3))?;
        let lane = if work.is_on_device() {
            self.stream(event)
        } else {
            self.draft.lane(&format!("thread {} of process {}", event.tid, event.pid))
        };
        let full = event.name.as_text().unwrap_or_default();
        // Twice the limit tells the draft that a tail was cut.
        let name = self.name(super::draft::cut(full, self.options.limits.name_bytes.saturating_mul(2)));
        let record = position.record.unwrap_or_default();
        let correlation = event.args.correlation.as_u64();
        Some(Span { record, position, name, start, duration, lane, correlation, work })
    }

    /// Without devices, the calls that make no further call are the operators.
    fn take_calls(&mut self) -> Result<(), ImportError> {
        if self.has_devices || self.options.devices_only {
            self.drop_calls();
            return Ok(());
        }
        if let Some(position) = self.too_many_calls {
            let most = self.options.limits.ops;
            return Err(ImportError::Limit { position, what: "operators", most, limit: "ops" });
        }
        let mut calls = std::mem::take(&mut self.calls);
        let end = |span: &Span| span.start + span.duration;
        calls.sort_by_key(|span| (span.lane, span.start, std::cmp::Reverse(end(span)), span.record));
        let (all, before) = (calls.len(), self.spans.len());
        // Behind a caller comes the first of its calls.
        let mut calls = calls.into_iter().peekable();
        while let Some(call) = calls.next() {
            let calls_next = calls.peek().is_some_and(|next| next.lane == call.lane && next.start < end(&call));
            if !calls_next {
                self.spans.push(call);
            }
        }
        self.draft.drop_many(Reason::Caller, (all + before - self.spans.len()) as u64);
        Ok(())
    }

    fn wait(&mut self, event: &Event) {
        if self.waits.len() as u64 >= self.options.limits.ops {
            return self.draft.drop(Reason::Host);
        }
        let arguments = &event.args;
        let ids = (arguments.correlation.as_u64(), arguments.wait_on_record.as_u64());
        let (Some(from), Some(until), false) = (ids.0, ids.1, arguments.wait_on_stream.is_nothing()) else {
            return self.draft.drop(Reason::Host);
        };
        let waiter = self.stream(event);
        let device = if arguments.device.is_nothing() { &event.pid } else { &arguments.device };
        let waited = self.draft.lane(&format!("device {device} stream {}", arguments.wait_on_stream));
        self.waits.push(Wait { waiter: (waiter, from), waited: (waited, until) });
    }

    /// Everything that is kept, in the order of time; a launch before what starts with it.
    fn sort(&mut self) {
        self.spans.sort_by_key(|span| (span.start, !matches!(span.work, Work::Launch), span.record));
    }

    /// By span: the records of the spans that come first.
    fn edges(&mut self) -> Vec<SmallVec<[u64; 4]>> {
        let mut launches: HashMap<u64, u64> = HashMap::new();
        for span in &self.spans {
            if let (Work::Launch, Some(correlation)) = (&span.work, span.correlation) {
                launches.insert(correlation, span.record);
            }
        }
        let mut last: HashMap<u32, u64> = HashMap::new();
        let mut after: Vec<SmallVec<[u64; 4]>> = Vec::with_capacity(self.spans.len());
        let mut orphans = 0;
        for span in &self.spans {
            let mut first: SmallVec<[u64; 4]> = last.insert(span.lane, span.record).into_iter().collect();
            if span.work.is_on_device() && !self.options.devices_only {
                match span.correlation.and_then(|correlation| launches.get(&correlation)) {
                    Some(&launch) => first.push(launch),
                    None => orphans += 1,
                }
            }
            after.push(first);
        }
        self.draft.drop_many(Reason::NoLaunch, orphans);
        self.between_streams(&mut after);
        after
    }

    /// Adds the waits between streams: from the last operator before the record to the first after
    /// the wait. O((operators + waits) log operators).
    fn between_streams(&self, after: &mut [SmallVec<[u64; 4]>]) {
        if self.waits.is_empty() {
            return;
        }
        let mut lanes: HashMap<u32, Vec<(u64, usize)>> = HashMap::new();
        for (index, span) in self.spans.iter().enumerate() {
            if let (true, Some(correlation)) = (span.work.is_on_device(), span.correlation) {
                lanes.entry(span.lane).or_default().push((correlation, index));
            }
        }
        for operators in lanes.values_mut() {
            operators.sort_unstable();
        }
        let none = Vec::new();
        for Wait { waiter, waited } in &self.waits {
            let on = |lane: &u32| lanes.get(lane).unwrap_or(&none);
            let (waiting, before) = (on(&waiter.0), on(&waited.0));
            let first = waiting.partition_point(|&(correlation, _)| correlation <= waiter.1);
            let last = before.partition_point(|&(correlation, _)| correlation < waited.1).checked_sub(1);
            if let (Some(&(_, waiter)), Some(last)) = (waiting.get(first), last) {
                let (_, waited) = before[last];
                // A clock that runs backwards must not close a circle.
                if waited < waiter {
                    after[waiter].push(self.spans[waited].record);
                }
            }
        }
    }

    /// By span: the arithmetic of its call, on the longest kernel of each.
    fn arithmetic(&self) -> HashMap<usize, Flops> {
        let mut longest: HashMap<u64, (Nanos, usize)> = HashMap::new();
        for (index, span) in self.spans.iter().enumerate() {
            if let Work::Kernel { call: Some(call), .. } = span.work
                && self.products.contains_key(&call)
            {
                let longest = longest.entry(call).or_insert((span.duration, index));
                if span.duration > longest.0 {
                    *longest = (span.duration, index);
                }
            }
        }
        longest.into_iter().map(|(call, (_, index))| (index, self.products[&call])).collect()
    }

    /// Drops the calls that launched nothing that is kept.
    fn drop_idle_calls(&mut self) {
        let launched: HashSet<u64> = self
            .spans
            .iter()
            .filter(|span| !matches!(span.work, Work::Launch))
            .filter_map(|span| span.correlation)
            .collect();
        let before = self.spans.len();
        let devices_only = self.options.devices_only;
        self.spans.retain(|span| {
            let used = span.correlation.is_some_and(|correlation| launched.contains(&correlation));
            !matches!(span.work, Work::Launch) || (used && !devices_only)
        });
        self.draft.drop_many(Reason::Host, (before - self.spans.len()) as u64);
    }

    pub(super) fn finish(mut self, name: &str, records: u64) -> Result<Import, ImportError> {
        self.drop_idle_calls();
        self.take_calls()?;
        self.sort();
        let after = self.edges();
        let arithmetic = self.arithmetic();
        for (index, (span, after)) in std::mem::take(&mut self.spans).into_iter().zip(after).enumerate() {
            let flops = arithmetic.get(&index).copied().unwrap_or_default();
            let (kind, cost, communication) = match span.work {
                Work::Launch => (span.name.to_string(), OpCost::default(), None),
                Work::Copy(bytes) => {
                    (copy_kind(&span.name), OpCost { read: bytes, written: bytes, ..OpCost::default() }, None)
                }
                Work::Call { flops, communication } => {
                    let pattern = communication.as_ref().and_then(|communication| communication.pattern);
                    let kind = pattern.map_or_else(|| span.name.to_string(), |pattern| pattern.name().to_owned());
                    (kind, OpCost { flops, ..OpCost::default() }, communication)
                }
                Work::Fill(bytes) => ("memset".to_owned(), OpCost { written: bytes, ..OpCost::default() }, None),
                Work::Kernel { call, communication } => {
                    let mut from_call = || call.and_then(|call| self.communications.remove(&call)).map(Box::new);
                    let is_nccl = span.name.contains("nccl") || span.name.contains("rccl");
                    let by_name = || Box::new(Communication::new(Pattern::of_name(&span.name), Bytes::ZERO));
                    let communication = communication.or_else(|| from_call().filter(|_| is_nccl));
                    let communication = communication.or_else(|| is_nccl.then(by_name));
                    let pattern = communication.as_ref().and_then(|communication| communication.pattern);
                    let kind = pattern.map_or_else(|| kernel_kind(&span.name), |pattern| pattern.name().to_owned());
                    (kind, OpCost { flops, ..OpCost::default() }, communication)
                }
            };
            let record = OpRecord {
                duration: Some(span.duration),
                start: Some(span.start),
                lane: Some(span.lane),
                communication,
                ..OpRecord::default()
            };
            let node = Node { id: span.record, name: &span.name, kind: &kind, cost, record, after, ..Node::default() };
            self.draft.add(node, span.position)?;
        }
        self.draft.finish(name, records)
    }
}

impl Records for Reader {
    type Record = Event;

    fn record(&mut self, event: Event, position: Position) -> Result<(), ImportError> {
        if event.ph.as_text() != Some("X") {
            self.draft.drop(Reason::NotASpan);
            return Ok(());
        }
        let category = event.cat.as_text().unwrap_or_default().to_ascii_lowercase();
        let work = match category.as_str() {
            "kernel" => Work::Kernel {
                call: event.args.external.as_u64(),
                communication: self.communication(&event).map(Box::new),
            },
            "gpu_memcpy" | "memcpy" => Work::Copy(self.bytes(&event)),
            "gpu_memset" | "memset" => Work::Fill(self.bytes(&event)),
            "cuda_runtime" | "cuda_driver" | "hip_runtime" | "runtime" | "privateuse1_runtime" => Work::Launch,
            "cpu_op" | "operator" => {
                self.call(&event, position);
                return Ok(());
            }
            "cuda_sync" => {
                self.wait(&event);
                return Ok(());
            }
            _ => {
                self.draft.drop(Reason::Annotation);
                return Ok(());
            }
        };
        if work.is_on_device() && !self.has_devices {
            self.has_devices = true;
            self.drop_calls();
        }
        let Some(span) = self.span(&event, position, work) else {
            self.draft.drop(Reason::BadTime);
            return Ok(());
        };
        if self.spans.len() as u64 >= self.options.limits.ops.saturating_mul(2) {
            let most = self.options.limits.ops;
            return Err(ImportError::Limit { position, what: "operators", most, limit: "ops" });
        }
        self.spans.push(span);
        Ok(())
    }
}

/// True if one operator may move so much: 2^53 bytes are far more than any machine has, and what a number of JSON holds
/// exactly.
fn possible(bytes: Bytes) -> bool {
    bytes.get() <= 1 << 53
}

/// `Memcpy HtoD (Pageable -> Device)` is `memcpy_htod`.
fn copy_kind(name: &str) -> String {
    let mut words = name.split(' ').take(2).map(str::to_ascii_lowercase);
    match (words.next(), words.next()) {
        (Some(first), Some(second)) => format!("{first}_{second}"),
        _ => "memcpy".to_owned(),
    }
}

/// The name of a kernel's function without result, template arguments and parameters.
fn kernel_kind(name: &str) -> String {
    let plain = name.replace("(anonymous namespace)::", "");
    let plain = plain.strip_prefix("void ").unwrap_or(&plain);
    let end = plain.find(['<', '(']).unwrap_or(plain.len());
    if end == 0 { "kernel".to_owned() } else { plain[..end].trim_end().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_of_one_kind_whatever_their_template_arguments() {
        let name = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 128>(float*, int)";
        assert_eq!(kernel_kind(name), "at::native::CatArrayBatchedCopy");
        assert_eq!(kernel_kind("ampere_sgemm_64x64_nn"), "ampere_sgemm_64x64_nn");
        assert_eq!(kernel_kind("<broken>"), "kernel");
        assert_eq!(copy_kind("Memcpy HtoD (Pageable -> Device)"), "memcpy_htod");
    }

    const CALLS: &str = r#"{"traceEvents": [
      {"ph": "X", "cat": "cpu_op", "name": "aten::linear", "pid": 1, "tid": 2, "ts": 10, "dur": 50, "args": {}},
      {"ph": "X", "cat": "cpu_op", "name": "aten::t", "pid": 1, "tid": 2, "ts": 10, "dur": 5, "args": {}},
      {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 2, "ts": 20, "dur": 40,
       "args": {"External id": 3, "Input Dims": [[2, 3], [3, 4]]}},
      {"ph": "X", "cat": "cpu_op", "name": "aten::relu", "pid": 1, "tid": 2, "ts": 60, "dur": 7, "args": {}},
      {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 9, "ts": 12, "dur": 1, "args": {}}
    ]}"#;

    #[test]
    fn without_devices_the_innermost_calls_are_operators_in_the_order_of_their_threads() {
        let import = crate::import::read(CALLS.as_bytes(), "calls", &Options::default()).unwrap();
        let names: Vec<_> = import.graph.ops().map(|op| op.name().to_string()).collect();
        assert_eq!(names, ["aten::t", "aten::add", "aten::mm", "aten::relu"]);
        // t -> mm -> relu on one thread; add alone on the other.
        assert_eq!((import.account.edges, import.lanes.len()), (2, 2));
        assert_eq!(import.measured(), Nanos::us(5 + 40 + 7 + 1));
        assert_eq!(import.account.dropped.get(&Reason::Caller), Some(&1));
        let flops: u64 = import.graph.ops().map(|op| op.cost(&Default::default()).flops.get()).sum();
        assert_eq!(flops, 2 * 2 * 3 * 4);

        let none =
            crate::import::read(CALLS.as_bytes(), "calls", &Options { devices_only: true, ..Options::default() });
        assert!(matches!(none, Err(ImportError::NoOperators { .. })), "{none:?}");
    }

    #[test]
    fn calls_are_forgotten_once_a_device_has_done_something() {
        let kernel =
            r#"{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 3, "ts": 99, "dur": 4, "args": {}}"#;
        let with = CALLS.replace("\n    ]}", &format!(",{kernel}]}}"));
        let import = crate::import::read(with.as_bytes(), "calls", &Options::default()).unwrap();
        assert_eq!((import.graph.op_count(), import.account.dropped.get(&Reason::Host)), (1, Some(&5)));
    }
}
