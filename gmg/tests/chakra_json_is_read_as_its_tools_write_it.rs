//! Nodes in JSON come from ASTRA-sim's users and from protobuf's mapping, one object behind the other or in an
//! array. All of them say what the messages say.
//!
//! The documents are ours, by the mapping's specification (protobuf, "ProtoJSON format") and by what Chakra's
//! converter does with it: metadata, then nodes.

#![cfg(feature = "chakra")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

use slicescheduler_gmg::export::{self, Source};
use slicescheduler_gmg::import::{self, Format, Import, ImportError, Options, Pattern};
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::units::{Bytes, Flops, Nanos};

/// In ASTRA-sim's form, and in each form of the mapping, the same four nodes.
const ASTRA: &str = r#"{"workload_graph": [
  {"Id": 0, "Name": "embed(0)", "NodeType": 2, "runtime": 5, "data_deps": [], "tensor_size": 4096, "is_cpu_op": false},
  {"Id": 9007199254740993, "Name": "gemm(0)", "NodeType": 4, "start": 7, "runtime": 20, "data_deps": [0], "num_ops": 9007199254740995, "is_cpu_op": false},
  {"Id": 3, "Name": "ar", "NodeType": 7, "runtime": 7, "data_deps": [0, 9007199254740993], "comm_type": 0, "comm_size": 1048576, "pg_name": "tp", "is_cpu_op": false},
  {"Id": 4, "Name": "send", "NodeType": 5, "data_deps": [3], "ctrl_deps": [0], "comm_size": 64, "comm_src": 0, "comm_dst": 1, "comm_tag": 5, "is_cpu_op": true}
]}"#;

const METADATA: &str = r#"{"version": "0.0.4", "attr": [{"name": "schema", "stringVal": "1.1.1-chakra.0.0.4"}]}"#;

/// As `MessageToJson` writes them: lower camel case, names of enums, texts for 64 bits, no zeros.
const CAMEL: [&str; 4] = [
    r#"{"name": "embed(0)", "type": "MEM_LOAD_NODE", "durationMicros": "5",
        "attr": [{"name": "is_cpu_op", "boolVal": false}, {"name": "tensor_size", "uint64Val": "4096"}]}"#,
    r#"{"id": "9007199254740993", "name": "gemm(0)", "type": "COMP_NODE", "dataDeps": ["0"],
        "startTimeMicros": "7", "durationMicros": "20", "inputs": {"values": "[]", "shapes": "[]", "types": "[]"},
        "attr": [{"name": "num_ops", "int64Val": "9007199254740995"}, {"name": "is_cpu_op", "boolVal": false},
                 {"name": "shape", "docString": "of no use here", "int64List": {"values": ["1", "2"]}}]}"#,
    r#"{"id": "3", "name": "ar", "type": "COMM_COLL_NODE", "dataDeps": ["0", "9007199254740993"],
        "durationMicros": "7", "attr": [{"name": "comm_type", "int64Val": "0"}, {"name": "is_cpu_op", "boolVal": false},
                 {"name": "comm_size", "int64Val": "1048576"}, {"name": "pg_name", "stringVal": "tp"}]}"#,
    r#"{"id": "4", "name": "send", "type": "COMM_SEND_NODE", "ctrlDeps": ["0"], "dataDeps": ["3"],
        "attr": [{"name": "comm_size", "int64Val": "64"}, {"name": "comm_src", "int32Val": 0}, {"name": "is_cpu_op", "boolVal": true},
                 {"name": "comm_dst", "int32Val": 1}, {"name": "comm_tag", "int32Val": 5}]}"#,
];

/// With the schema's names, zeros and nulls; numbers where texts are allowed, texts where numbers are.
const SNAKE: [&str; 4] = [
    r#"{"id": "0", "name": "embed(0)", "type": 2, "ctrl_deps": null, "data_deps": [], "start_time_micros": "0",
        "duration_micros": 5, "inputs": null,
        "attr": [{"name": "is_cpu_op", "bool_val": false}, {"name": "tensor_size", "uint64_val": 4096}]}"#,
    r#"{"id": 9007199254740993, "name": "gemm(0)", "type": "COMP_NODE", "ctrl_deps": [], "data_deps": [0],
        "start_time_micros": 7, "duration_micros": "2e1",
        "attr": [null, {"name": "num_ops", "int64_val": "9007199254740995"}, {"name": "is_cpu_op", "int32_val": 0}]}"#,
    r#"{"id": "3", "name": "ar", "type": "7", "data_deps": ["0", 9007199254740993], "duration_micros": 7,
        "attr": [{"name": "comm_type", "int64_val": null, "uint64_val": 0}, {"name": "is_cpu_op", "bool_val": false},
                 {"name": "comm_size", "double_val": 1048576.0}, {"name": "pg_name", "string_val": "tp"}]}"#,
    r#"{"id": "4", "name": "send", "type": "COMM_SEND_NODE", "ctrl_deps": ["0"], "data_deps": ["3"], "duration_micros": "0",
        "attr": [{"name": "comm_size", "int64_val": 64}, {"name": "comm_src", "int32_val": "0"}, {"name": "is_cpu_op", "bool_val": true},
                 {"name": "comm_dst", "int32_val": "1"}, {"name": "comm_tag", "int32_val": 5}]}"#,
];

fn read(document: &str) -> Import {
    import::read(document.as_bytes(), "nodes", &Options::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(document: &str) -> ImportError {
    match import::read(document.as_bytes(), "nodes", &Options::default()) {
        Ok(import) => panic!("{:?}", import.account),
        Err(error) => error,
    }
}

/// All that an import says.
fn said(import: &Import) -> String {
    let ops = import.graph.ops().map(|op| {
        let before: Vec<_> = import.graph.predecessors(op.index()).collect();
        format!("{} {} {:?} {before:?}", op.name(), op.kind(), op.cost(&Binding::new()))
    });
    let ops: Vec<_> = ops.collect();
    format!("{ops:#?} {:#?} {:#?} {:#?}", import.ops, import.lanes, import.account)
}

#[test]
fn every_form_of_the_same_nodes_is_the_same_import() {
    let astra = read(ASTRA);
    assert_eq!((astra.account.format, astra.account.records), (Format::ChakraJson, 4));
    assert_eq!((astra.graph.op_count(), astra.account.edges), (4, 5));
    assert_eq!(astra.measured(), Nanos::us(32));
    assert_eq!(astra.graph.flops(&Binding::new()), Flops(9_007_199_254_740_995));
    let all_reduce = astra.ops[2].communication.as_deref().unwrap();
    assert_eq!((all_reduce.pattern, all_reduce.bytes), (Some(Pattern::AllReduce), Bytes(1 << 20)));
    let expected = said(&astra);
    for nodes in [CAMEL, SNAKE] {
        let forms = [
            format!("{METADATA}{}", nodes.concat()),
            format!("{METADATA}\n{}\n", nodes.join("\n")),
            format!("{{}} {}", nodes.join(" ")),
            format!("[{METADATA}, {}]", nodes.join(", ")),
            format!("[\n{}]", nodes.join(",\n")),
            format!("{{\"workload_graph\": [{}]}}", nodes.join(",")),
        ];
        for form in &forms {
            assert_eq!(said(&read(form)), expected, "{form}");
        }
    }
}

#[test]
fn messages_say_the_same_as_json() {
    let import = read(&format!("{METADATA}{}", CAMEL.concat()));
    let mut file = Vec::new();
    export::chakra(Source::from(&import), &mut file).unwrap();
    let messages = import::read(&file[..], "nodes", &Options::default()).unwrap();
    assert_eq!((&messages.ops, &messages.lanes), (&import.ops, &import.lanes));
}

#[test]
fn patterns_and_types_have_names_or_numbers() {
    let names = [
        ("ALL_REDUCE", Pattern::AllReduce),
        ("ALL_GATHER", Pattern::AllGather),
        ("BROADCAST", Pattern::Broadcast),
        ("ALL_TO_ALL", Pattern::AllToAll),
        ("REDUCE_SCATTER", Pattern::ReduceScatter),
        ("REDUCE_SCATTER_BLOCK", Pattern::ReduceScatter),
        ("BARRIER", Pattern::Barrier),
    ];
    for (name, pattern) in names {
        let import = read(&format!(
            r#"{{"workload_graph": [{{"Id": 1, "Name": "x", "NodeType": "COMM_COLL_NODE", "comm_type": "{name}"}}]}}"#
        ));
        assert_eq!(import.ops[0].communication.as_ref().unwrap().pattern, Some(pattern));
    }
}

#[test]
fn what_is_wrong_is_refused_with_its_place_and_what_would_be_right() {
    let behind = |node: &str| format!("{METADATA}{}{node}", CAMEL[0]);
    let cases = [
        (
            behind(r#"{"id": "-1", "name": "x", "type": "COMP_NODE"}"#),
            "record 1: Id is \"-1\": expected a whole number",
        ),
        (
            behind(r#"{"id": "5", "name": "x", "type": "COMP"}"#),
            "record 1, node 5: NodeType is \"COMP\": expected a number or a name",
        ),
        (
            behind(r#"{"id": "5", "type": 4, "dataDeps": ["0", "zero"]}"#),
            "node 5: data_deps is an array with \"zero\": expected an array of whole",
        ),
        (
            behind(r#"{"id": "5", "type": 4, "dataDeps": ["0", -3]}"#),
            "node 5: data_deps is an array with -3: expected an array of whole",
        ),
        (behind(r#"{"id": "5", "type": 4, "dataDeps": [null]}"#), "node 5: data_deps is an array with missing"),
        (
            behind(r#"{"id": "5", "type": 4, "dataDeps": "0"}"#),
            "record 1: invalid type: string \"0\", expected an array of ids",
        ),
        (
            behind(r#"{"id": "5", "type": 4, "attr": [{"name": "num_ops", "int64Val": "many"}]}"#),
            "node 5: num_ops is Text(\"many\")",
        ),
        (
            behind(r#"{"id": "5", "type": 4, "attr": [{"name": "comm_type", "int64Val": "10"}]}"#),
            "node 5: comm_type is 10",
        ),
        (behind(r#"{"id": "5", "type": 4, "durationMicros": "18446744073709551615"}"#), "node 5: duration is"),
        (behind(r#"{"type": "COMP_NODE"}"#), "record 1: node 0 exists already"),
        (behind("{}"), "record 1: Id is missing"),
        (behind(r#"{"Name": "x", "type": 4}"#), "record 1: Id is missing"),
        (behind("[]"), "record 1: invalid"),
        (behind(r#"{"id": "5""#), "record 1: EOF"),
        (behind("}"), "record 1: expected value"),
        (format!("{}{}", CAMEL[0], CAMEL[1]), "trailing characters"),
        (METADATA.to_owned(), "no stream of nodes"),
        (format!("[{METADATA}]"), "0 records and no operator among them"),
        (r#"{"traceEvents": []}{"id": "5", "type": 4}"#.to_owned(), "trailing characters"),
    ];
    for (document, expected) in cases {
        let error = refused(&document).to_string();
        assert!(error.contains(expected), "{document}\n{error}");
        assert!(error.contains("byte ") || error.contains("0 records"), "{error}");
    }
}

#[test]
fn arrays_of_events_are_still_events() {
    let events = r#"[{"ph": "X", "cat": "kernel", "name": "a", "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": {"stream": 7, "device": 0}},
        {"ph": "X", "cat": "kernel", "name": "b", "pid": 0, "tid": 7, "ts": 5, "dur": 2, "args": {"stream": 7, "device": 0}}]"#;
    let import = read(events);
    assert_eq!((import.account.format, import.account.records, import.graph.op_count()), (Format::Kineto, 2, 2));
    let wanted = Options { format: Some(Format::ChakraJson), ..Options::default() };
    assert!(import::read(events.as_bytes(), "events", &wanted).is_err());
    let nodes = format!("[{METADATA}, {}]", CAMEL.join(","));
    assert!(import::read(nodes.as_bytes(), "nodes", &wanted).is_ok());
    let wanted = Options { format: Some(Format::Kineto), ..Options::default() };
    assert!(import::read(nodes.as_bytes(), "nodes", &wanted).is_err());
}
