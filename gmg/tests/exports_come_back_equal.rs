//! What is written as a Chakra trace is read back equal; what is written for Graphviz and Perfetto
//! says the same as the graph.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::Value;
use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::export::{self, Source};
use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::id::OpIndex;
use slicescheduler_gmg::import::{self, Communication, Format, Import, OpRecord, Options, Pattern};
use slicescheduler_gmg::semantics::{OpCost, Recorded};
use slicescheduler_gmg::shape::{Binding, Shape};
use slicescheduler_gmg::templates::{DenseSpec, dense};
use slicescheduler_gmg::units::{Bytes, Flops, Nanos};

/// An operator without what a trace cannot hold: tensors, repetitions.
#[derive(Debug, PartialEq)]
struct Op {
    name: String,
    kind: String,
    cost: OpCost,
    before: Vec<OpIndex>,
}

fn ops(graph: &OpGraph, binding: &Binding) -> Vec<Op> {
    let of = |index| {
        let mut before: Vec<_> = graph.predecessors(index).collect();
        before.sort_unstable();
        before
    };
    let op = |op: slicescheduler_gmg::graph::OpView<'_>| Op {
        name: op.name().to_string(),
        kind: op.kind().to_string(),
        cost: op.cost(binding),
        before: of(op.index()),
    };
    graph.ops().map(op).collect()
}

fn back(source: Source<'_>) -> Import {
    let mut file = Vec::new();
    export::chakra(source, &mut file).unwrap();
    let import = import::read(&file[..], "back", &Options::default()).unwrap();
    assert_eq!(import.account.format, Format::Chakra);
    assert!(import.account.dropped.is_empty(), "{:?}", import.account.dropped);
    import
}

#[test]
fn templates_come_back_as_one_operator_per_repetition() {
    let binding = Binding::iteration(512, 1, 512, 131_328);
    for spec in [DenseSpec::tiny(), DenseSpec::llama3_8b()] {
        let graph = dense(&spec).unwrap();
        let import = back(Source::new(&graph, &binding));
        assert_eq!(ops(&import.graph, &Binding::new()), ops(&graph, &binding));
        assert_eq!(import.lanes, [Box::from("device")]);
    }
}

const KINETO: &str = r#"{"traceEvents": [
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 2, "ts": 10.5, "dur": 2, "args": {"correlation": 7}},
    {"ph": "X", "cat": "kernel", "name": "void gemm<float>(int)", "pid": 0, "tid": 3, "ts": 13.25, "dur": 4.125, "args": {"correlation": 7, "device": 0, "stream": 3}},
    {"ph": "X", "cat": "kernel", "name": "ncclKernel_AllReduce", "pid": 0, "tid": 4, "ts": 20, "dur": 9, "args": {"device": 0, "stream": 4, "Collective name": "allreduce", "In msg nelems": 100, "dtype": "Half", "Group size": 8, "Process Group Name": "dp"}}
]}"#;

#[test]
fn a_trace_of_another_kind_comes_back_with_its_times_lanes_and_collectives() {
    let options = Options::default();
    let import = import::read(KINETO.as_bytes(), "small", &options).unwrap();
    let again = back(Source::from(&import));
    assert_eq!(ops(&again.graph, &Binding::new()), ops(&import.graph, &Binding::new()));
    assert_eq!((&again.ops, &again.lanes), (&import.ops, &import.lanes));
    let collective = again.ops[2].communication.as_ref().unwrap();
    assert_eq!(
        (collective.pattern, collective.bytes, collective.ranks),
        (Some(Pattern::AllReduce), Bytes(200), Some(8))
    );
    assert_eq!((again.ops[1].start, again.ops[1].duration), (Some(Nanos(2750)), Some(Nanos(4125))));
}

/// Id, tag, start, duration.
type DrawnRecord = (u64, u64, Option<u64>, Option<u64>);

/// A graph of recorded operators, and records for them.
#[derive(Clone, Debug)]
struct Drawn {
    kinds: Vec<u8>,
    edges: Vec<(prop::sample::Index, prop::sample::Index)>,
    records: Vec<DrawnRecord>,
    numbers: Vec<[u64; 4]>,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    (1usize..30).prop_flat_map(|count| {
        let small = prop_oneof![Just(0), 0..1000u64, 0..1_000_000_000_000u64];
        let record = (any::<u64>(), 0..12u64, prop::option::of(0..1u64 << 50), prop::option::of(1..1u64 << 50));
        (
            prop::collection::vec(0u8..8, count),
            prop::collection::vec(any::<(prop::sample::Index, prop::sample::Index)>(), 0..60),
            prop::collection::vec(record, count),
            prop::collection::vec([small.clone(), small.clone(), small.clone(), small], count),
        )
            .prop_map(|(kinds, edges, records, numbers)| Drawn { kinds, edges, records, numbers })
    })
}

impl Drawn {
    fn graph(&self) -> (OpGraph, Vec<OpRecord>) {
        let mut graph = OpGraph::builder("drawn");
        let kinds = ["gemm", "all_reduce", "send", "receive", "load", "store", "metadata", "a \"b\" \\ \u{1f980}"];
        let mut refs = Vec::new();
        for (index, (&kind, &[flops, weights, read, written])) in self.kinds.iter().zip(&self.numbers).enumerate() {
            let cost =
                OpCost { flops: Flops(flops), weights: Bytes(weights), read: Bytes(read), written: Bytes(written) };
            let out = graph.output(&format!("out {index}"), DType::I64, Shape::vector(3));
            let meaning = Recorded::new(cost).output(DType::I64, Shape::vector(3));
            let kind: Arc<str> = kinds[kind as usize].into();
            refs.push(graph.op_with(&format!("op {index}"), &kind, Arc::new(meaning), &[], &[out]));
        }
        for (from, to) in &self.edges {
            let (from, to) = (from.index(refs.len()), to.index(refs.len()));
            if from < to {
                graph.control(refs[from], refs[to]);
            }
        }
        let graph = graph.build().unwrap();
        let first = self.records.iter().filter_map(|record| record.2).min().unwrap_or_default();
        let record = |(index, &(id, tag, start, duration)): (usize, &DrawnRecord)| {
            let pattern = match self.kinds[index] {
                1 => Some(Pattern::AllReduce),
                2 => Some(Pattern::Send),
                3 => Some(Pattern::Receive),
                _ => None,
            };
            let communication = pattern.map(|pattern| {
                let small = u32::try_from(tag).ok();
                Box::new(Communication {
                    group: (tag % 2 == 0).then(|| "tp".into()),
                    from: small,
                    to: small.map(|rank| rank + 1),
                    tag: Some(tag),
                    ..Communication::new(Some(pattern), Bytes(tag * 1000))
                })
            });
            OpRecord {
                // Distinct, and of any size.
                id: (id & !63) | index as u64,
                start: start.map(|start| Nanos(start - first)),
                duration: duration.map(Nanos),
                lane: Some(0),
                communication,
            }
        };
        let records = self.records.iter().enumerate().map(record).collect();
        (graph, records)
    }
}

proptest! {
    #[test]
    fn any_graph_comes_back_equal_with_its_records(drawn in drawn()) {
        let (graph, records) = drawn.graph();
        let mut records = records;
        // Ids that differ in their upper bits only would still be distinct; two of them must not meet.
        records.iter_mut().enumerate().for_each(|(index, record)| record.id = record.id.wrapping_shl(6) | index as u64);
        let lanes = [Box::from("stream \"7\" \\ \n \u{1f980}")];
        let source = Source::new(&graph, &Binding::new()).with_records(&records, &lanes);
        let import = back(source);
        prop_assert_eq!(ops(&import.graph, &Binding::new()), ops(&graph, &Binding::new()));
        prop_assert_eq!(&import.ops, &records);
        prop_assert_eq!(&import.lanes[..], &lanes[..]);

        let mut dot = Vec::new();
        export::dot(source, &mut dot).unwrap();
        let dot = String::from_utf8(dot).unwrap();
        prop_assert_eq!(dot.lines().filter(|line| line.contains(" -> ")).count() as u64, import.account.edges);
        prop_assert_eq!(dot.matches("label = ").count(), graph.op_count() as usize);
        for line in dot.lines() {
            let unescaped = line.replace("\\\\", "").replace("\\\"", "");
            prop_assert_eq!(unescaped.matches('"').count() % 2, 0, "{}", line);
        }

        let mut perfetto = Vec::new();
        export::perfetto(source, &mut perfetto).unwrap();
        let trace: Value = serde_json::from_slice(&perfetto).unwrap();
        let named = |event: &&Value| event["name"] == "thread_name" && event["tid"] == 1;
        let name = trace["traceEvents"].as_array().unwrap().iter().find(named).unwrap();
        prop_assert_eq!(name["args"]["name"].as_str(), Some(&*lanes[0]));
        let spans: Vec<&Value> =
            trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X").collect();
        prop_assert_eq!(spans.len(), records.len());
        for (span, record) in spans.iter().zip(&records) {
            let nanos = |field: &str| (span[field].as_f64().unwrap() * 1000.0).round() as u64;
            prop_assert_eq!(nanos("dur"), record.duration.unwrap_or_default().get());
            if let Some(start) = record.start {
                prop_assert_eq!(nanos("ts"), start.get());
            }
        }
    }
}

#[test]
fn without_starts_a_timeline_is_as_early_as_its_edges_allow() {
    let graph = dense(&DenseSpec::tiny()).unwrap();
    let records: Vec<OpRecord> = (0..graph.op_count())
        .map(|op| OpRecord { duration: Some(Nanos::us(1 + u64::from(op % 3))), ..OpRecord::default() })
        .collect();
    let mut file = Vec::new();
    export::perfetto(Source::new(&graph, &Binding::iteration(1, 1, 1, 1)).with_records(&records, &[]), &mut file)
        .unwrap();
    let trace: Value = serde_json::from_slice(&file).unwrap();
    let spans = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X");
    let finish = spans.map(|span| span["ts"].as_f64().unwrap() + span["dur"].as_f64().unwrap()).fold(0.0, f64::max);
    let path = graph.critical_path(|op| records[op.index()].duration.unwrap().get());
    assert_eq!((finish * 1000.0).round() as u64, path.length);
}

#[test]
fn a_timeline_is_known_as_ours_and_refused() {
    let graph = dense(&DenseSpec::tiny()).unwrap();
    let mut file = Vec::new();
    export::perfetto(Source::new(&graph, &Binding::iteration(1, 1, 1, 1)), &mut file).unwrap();
    let timeline = |bytes: &[u8], format| {
        let read = import::read(bytes, "timeline", &Options { format, ..Options::default() });
        matches!(read, Err(import::ImportError::Timeline { .. }))
    };
    assert!(timeline(&file, None) && timeline(&file, Some(Format::Kineto)));
    // A tool that sorts its fields puts the mark behind or before the events; others' marks mean nothing.
    let document: Value = serde_json::from_slice(&file).unwrap();
    let (events, mark) = (&document["traceEvents"], &document["otherData"]);
    assert!(timeline(format!(r#"{{"traceEvents":{events},"otherData":{mark}}}"#).as_bytes(), None));
    for other in [r#"{"exporter": "somebody"}"#, "[1, 2]", "null", "7", r#"{"exporter": {}}"#] {
        let trace = format!(
            r#"{{"otherData": {other}, "traceEvents": [{{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":5}}]}}"#
        );
        assert_eq!(import::read(trace.as_bytes(), "other", &Options::default()).unwrap().account.ops, 1, "{other}");
    }
}
