//! Whatever is in a file, an importer gives a sound graph or an error, in bounded memory.
//!
//! Documents are our own small ones, damaged, and random ones made of the words of each format.
//! `IMPORT_CASES` says how many of each there are for every format; 2,000 if it is not set. A failure
//! names its seed; `IMPORT_SEED` starts with it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use peak_alloc::PeakAlloc;
use slicescheduler_gmg::export::{self, Source};
use slicescheduler_gmg::import::{self, Format, Import, ImportError, Limits, Options};
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::units::Nanos;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Memory is that of the process, so tests take turns.
static TURN: Mutex<()> = Mutex::new(());

const CHAKRA_JSON: &str = r#"{"workload_graph": [
  {"Id": 1, "Name": "load(0)", "NodeType": 2, "runtime": 5, "data_deps": [], "tensor_size": 4096, "is_cpu_op": false},
  {"Id": 2, "Name": "gemm(0)", "NodeType": 4, "runtime": 20, "data_deps": [1], "ctrl_deps": [1, 2, 3], "num_ops": 1000},
  {"Id": 3, "Name": "ar", "NodeType": 7, "runtime": 7, "data_deps": [1, 2], "comm_type": 0, "comm_size": 1048576},
  {"Id": 4, "Name": "send", "NodeType": 5, "data_deps": [3, 9], "comm_size": 64, "comm_src": 0, "comm_dst": 1, "comm_tag": 5}
]}"#;

const CHAKRA_STREAM: &str = r#"{"version": "0.0.4", "attr": [{"name": "schema", "stringVal": "1.0"}]}{"id": "1", "name": "load", "type": "MEM_LOAD_NODE",
  "durationMicros": "5", "attr": [{"name": "tensor_size", "uint64Val": "4096"}, {"name": "is_cpu_op", "boolVal": false}]}
{"id": "2", "name": "ar", "type": "COMM_COLL_NODE", "dataDeps": ["1"], "ctrlDeps": ["1", "2"], "durationMicros": "9007199254740993",
  "attr": [{"name": "comm_type", "int64Val": "0"}, {"name": "comm_size", "int64_val": 64}, {"name": "pg_name", "string_val": "tp"}, {"name": "x", "int64List": {"values": ["1"]}}]}
{"id": 3, "type": 4, "data_deps": null, "name": "gemm", "attr": [null, {"name": "num_ops", "doubleVal": 1e3}]}"#;

const KINETO: &str = r#"{"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceEvents": [
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 2, "ts": 9, "dur": 9, "args": {"External id": 5, "Input Dims": [[4, 5], [5, 6], []]}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 2, "ts": 10.5, "dur": 2, "args": {"correlation": 7}},
  {"ph": "X", "cat": "kernel", "name": "void gemm<float>(int)", "pid": 0, "tid": 3, "ts": 13.25, "dur": 4.125, "args": {"External id": 5, "correlation": 7, "device": 0, "stream": 3}},
  {"ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "pid": 0, "tid": 4, "ts": 15, "dur": 1, "args": {"correlation": 8, "device": 0, "stream": 4, "wait_on_stream": 3, "wait_on_cuda_event_record_corr_id": 8}},
  {"ph": "X", "cat": "kernel", "name": "ncclKernel_AllReduce", "pid": 0, "tid": 4, "ts": 20, "dur": 9, "args": {"correlation": 9, "device": 0, "stream": 4, "Collective name": "allreduce", "In msg nelems": 100, "dtype": "Half", "Group size": 8}},
  {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 0, "tid": 3, "ts": 30, "dur": 1, "args": {"device": 0, "stream": 3, "bytes": 4096}},
  {"ph": "s", "id": 7, "pid": 1, "tid": 2, "ts": 10, "cat": "ac2g", "name": "ac2g"}
]}"#;

const PYTORCH: &str = r#"{"schema": "1.1.0-chakra.0.0.4", "pid": 1, "nodes": [
  {"id": 1, "name": "[pytorch|profiler|execution_trace|process]", "ctrl_deps": 1, "inputs": {"values": [], "shapes": [], "types": []}, "outputs": {"values": [], "shapes": [], "types": []}, "attrs": [{"name": "op_schema", "type": "string", "value": ""}]},
  {"id": 3, "name": "aten::mm", "ctrl_deps": 2, "inputs": {"values": [[10, 11, 0, 20, 4, "cuda:0"], [12, 13, 0, 30, 4, "cuda:0"]], "shapes": [[4, 5], [5, 6]], "types": ["Tensor(float)", "Tensor(float)"]}, "outputs": {"values": [[14, 15, 0, 24, 4, "cuda:0"]], "shapes": [[4, 6]], "types": ["Tensor(float)"]}, "attrs": [{"name": "op_schema", "type": "string", "value": "aten::mm(Tensor self, Tensor mat2) -> Tensor"}, {"name": "tid", "type": "uint64", "value": 1}]},
  {"id": 2, "name": "aten::matmul", "ctrl_deps": 1, "inputs": {"values": [[10, 11, 0, 20, 4, "cuda:0"], [12, 13, 0, 30, 4, "cuda:0"]], "shapes": [[4, 5], [5, 6]], "types": ["Tensor(float)", "Tensor(float)"]}, "outputs": {"values": [[14, 15, 0, 24, 4, "cuda:0"]], "shapes": [[4, 6]], "types": ["Tensor(float)"]}, "attrs": [{"name": "op_schema", "type": "string", "value": "aten::matmul(Tensor self, Tensor other) -> Tensor"}]},
  {"id": 4, "name": "aten::view", "ctrl_deps": 1, "inputs": {"values": [[14, 15, 0, 24, 4, "cuda:0"], [24]], "shapes": [[4, 6], [[]]], "types": ["Tensor(float)", "GenericList[Int]"]}, "outputs": {"values": [[16, 15, 0, 24, 4, "cuda:0"]], "shapes": [[24]], "types": ["Tensor(float)"]}, "attrs": [{"name": "op_schema", "type": "string", "value": "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)"}]},
  {"id": 5, "name": "aten::add_", "ctrl_deps": 1, "inputs": {"values": [[16, 15, 0, 24, 4, "cuda:0"], [14, 15, 0, 24, 4, "cuda:0"], 1], "shapes": [[24], [4, 6], []], "types": ["Tensor(float)", "Tensor(float)", "Int"]}, "outputs": {"values": [[16, 15, 0, 24, 4, "cuda:0"]], "shapes": [[24]], "types": ["Tensor(float)"]}, "attrs": [{"name": "op_schema", "type": "string", "value": "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)"}]},
  {"id": 6, "name": "record_param_comms", "parent": 1, "inputs": {"values": [[[16, 15, 0, 24, 4, "cuda:0"]], 3, "allreduce"], "shapes": [[[24]], [], []], "types": ["GenericList[Tensor(float)]", "Int", "String"]}, "outputs": {"values": [], "shapes": [], "types": []}, "attrs": []}
]}"#;

/// Words that documents are made of.
const WORDS: [&str; 67] = [
    "inf",
    "-nan",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "[[[[[[",
    "]]]]]]",
    "{\"a\":",
    "0",
    "1",
    "2",
    "3",
    "7",
    "-1",
    "1e999",
    "-0.0",
    "18446744073709551615",
    "18446744073709551616",
    "9007199254740993",
    "1.5",
    "null",
    "true",
    "\"X\"",
    "\"ph\":",
    "\"cat\":",
    "\"kernel\"",
    "\"cuda_runtime\"",
    "\"ts\":",
    "\"dur\":",
    "\"args\":",
    "\"correlation\":",
    "\"stream\":",
    "\"Id\":",
    "\"id\":",
    "\"Name\":",
    "\"name\":",
    "\"NodeType\":",
    "\"data_deps\":",
    "\"ctrl_deps\":",
    "\"inputs\":",
    "\"values\":",
    "\"shapes\":",
    "\"types\":",
    "\"attrs\":",
    "\"traceEvents\":[",
    "\"nodes\":[",
    "\"workload_graph\":[",
    "\"\\ud800\"",
    "\"\\u0000\"",
    "\"op_schema\"",
    "\"Input Dims\":",
    "\"External id\":",
    "\u{1f980}",
    " ",
    "\n",
    "e",
    "}{",
    "\"type\":",
    "\"COMP_NODE\"",
    "\"dataDeps\":[",
    "\"attr\":[{\"name\":\"num_ops\",",
    "\"int64Val\":",
    "\"version\":",
];

/// SplitMix64 (Steele, Lea, Flood 2014): every case has its own seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// A document with one to eight things wrong.
fn damaged(document: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = document.to_vec();
    for _ in 0..=random.below(8) {
        let at = random.below(bytes.len() + 1);
        match random.below(9) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = random.next() as u8,
            2 => bytes.truncate(at),
            3 => {
                let end = (at + random.below(64)).min(bytes.len());
                bytes.drain(at..end);
            }
            4 => {
                let from = random.below(bytes.len() + 1);
                let piece = bytes[from..(from + random.below(200)).min(bytes.len())].to_vec();
                bytes.splice(at..at, piece);
            }
            5 => {
                let word = WORDS[random.below(WORDS.len())];
                bytes.splice(at..at, word.bytes());
            }
            6 => {
                // A number or word in place of another.
                let is_word = |byte: &u8| byte.is_ascii_alphanumeric();
                let start = (at..bytes.len()).find(|&at| is_word(&bytes[at])).unwrap_or(bytes.len());
                let end = (start..bytes.len()).find(|&at| !is_word(&bytes[at])).unwrap_or(bytes.len());
                bytes.splice(start..end, WORDS[10 + random.below(14)].bytes());
            }
            7 => {
                let varint = [0xff; 9].into_iter().chain([random.below(4) as u8]);
                bytes.splice(at..at, varint);
            }
            _ => bytes.insert(at, random.next() as u8),
        }
    }
    bytes
}

/// A document of words, in the brackets of a trace more often than not.
fn random_document(random: &mut Random) -> Vec<u8> {
    let mut text = String::from(
        ["", "{\"traceEvents\":[{", "{\"nodes\":[{", "{\"workload_graph\":[{", "[", "{}{"][random.below(6)],
    );
    for _ in 0..random.below(120) {
        text.push_str(WORDS[random.below(WORDS.len())]);
    }
    text.into_bytes()
}

/// Nodes of random fields, with the right lengths.
fn random_messages(random: &mut Random) -> Vec<u8> {
    let mut file = vec![7, 0x0a, 5, b'0', b'.', b'0', b'.', b'4'];
    for id in 0..random.below(12) {
        let mut node = vec![0x08, id as u8, 0x18, random.below(9) as u8];
        for _ in 0..random.below(8) {
            let value = (random.next() >> random.below(64)).to_le_bytes();
            match random.below(5) {
                0 => node.extend([0x28, random.below(12) as u8]),
                1 => node.extend([0x20, random.below(12) as u8]),
                2 => {
                    // An attribute with a number of some type.
                    let name = ["num_ops", "tensor_size", "comm_type", "comm_size", "is_cpu_op"][random.below(5)];
                    let field = 3 + random.below(30) as u32;
                    let wire = random.below(6) as u32;
                    let key = ((field << 3) | wire) as u16;
                    let mut attribute = vec![0x0a, name.len() as u8];
                    attribute.extend(name.bytes());
                    attribute.extend([key as u8 | 0x80, (key >> 7) as u8]);
                    attribute.extend(&value[..random.below(9)]);
                    node.extend([0x52, attribute.len() as u8]);
                    node.extend(attribute);
                }
                3 => node.extend([0x38, value[0] & 0x7f]),
                _ => node.extend(&value[..random.below(9)]),
            }
        }
        file.push(node.len() as u8 & 0x7f);
        file.extend(node);
    }
    file
}

fn environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name}={value}: not a number")))
}

/// What a graph must be, wherever it comes from.
fn sound(import: &Import) {
    let Import { graph, ops, lanes, account } = import;
    assert_eq!((u64::from(graph.op_count()), ops.len()), (account.ops, graph.op_count() as usize));
    let mut edges = 0;
    for op in graph.ops() {
        for before in graph.predecessors(op.index()) {
            assert!(before < op.index(), "an operator comes after what it waits for");
            edges += 1;
        }
    }
    assert_eq!(edges, account.edges);
    assert!(ops.iter().all(|op| op.lane.is_none_or(|lane| (lane as usize) < lanes.len())));
    assert!(ops.iter().filter_map(|op| op.duration).all(|duration| duration <= Limits::default().duration));
    let _ = graph.total_cost(&Binding::new());
    let _ = graph.activation_bytes(&Binding::new());
    let mut written = Vec::new();
    export::chakra(Source::from(import), &mut written).unwrap();
}

/// Reads every document; counts those that are graphs.
fn try_all(format: Format, mut document: impl FnMut(&mut Random) -> Vec<u8>) {
    let _turn = TURN.lock().unwrap();
    let cases = environment("IMPORT_CASES").unwrap_or(2000);
    let first = environment("IMPORT_SEED").unwrap_or((format as u64) << 32);
    let options = Options { format: Some(format), ..Options::default() };
    let (mut graphs, mut most) = (0u64, 0);
    for seed in first..first.saturating_add(cases) {
        let document = document(&mut Random(seed));
        let before = MEMORY.current_usage();
        MEMORY.reset_peak_usage();
        let read = catch_unwind(AssertUnwindSafe(|| {
            let read = import::read(&document[..], "damaged", &options);
            let used = MEMORY.peak_usage().saturating_sub(before);
            if let Ok(import) = &read {
                sound(import);
            }
            (read.is_ok(), used)
        }));
        let (read, used) = read.unwrap_or_else(|_| panic!("IMPORT_SEED={seed}: a panic"));
        // Two buffers, and what the limits promise for a record and an operator.
        let bound = (256 << 10) + 96 * document.len();
        assert!(used <= bound, "IMPORT_SEED={seed}: {used} bytes for a document of {}", document.len());
        graphs += u64::from(read);
        most = most.max(used);
    }
    println!("{format}: {cases} documents, {graphs} of them graphs, at most {most} bytes of memory");
    assert!(graphs > 0, "some documents are not damaged where it matters");
}

fn messages() -> Vec<u8> {
    let import = import::read(CHAKRA_JSON.as_bytes(), "base", &Options::default()).unwrap();
    let mut file = Vec::new();
    export::chakra(Source::from(&import), &mut file).unwrap();
    file
}

#[test]
fn damaged_chakra_messages() {
    let base = messages();
    try_all(Format::Chakra, |random| match random.below(4) {
        0 => random_messages(random),
        _ => damaged(&base, random),
    });
}

#[test]
fn damaged_chakra_json() {
    try_all(Format::ChakraJson, |random| match random.below(6) {
        0 => random_document(random),
        1 | 2 => damaged(CHAKRA_STREAM.as_bytes(), random),
        _ => damaged(CHAKRA_JSON.as_bytes(), random),
    });
}

#[test]
fn damaged_kineto() {
    try_all(Format::Kineto, |random| match random.below(4) {
        0 => random_document(random),
        _ => damaged(KINETO.as_bytes(), random),
    });
}

#[test]
fn damaged_pytorch() {
    try_all(Format::PyTorch, |random| match random.below(4) {
        0 => random_document(random),
        _ => damaged(PYTORCH.as_bytes(), random),
    });
}

#[test]
fn the_undamaged_documents_say_what_they_say() {
    let _turn = TURN.lock().unwrap();
    let read = |text: &[u8]| import::read(text, "whole", &Options::default()).unwrap();
    let chakra = read(CHAKRA_JSON.as_bytes());
    assert_eq!((chakra.account.ops, chakra.account.edges, chakra.measured()), (4, 4, Nanos::us(32)));
    let stream = import::read(CHAKRA_STREAM.as_bytes(), "stream", &Options::default());
    let too_long = stream.unwrap_err().to_string();
    assert!(too_long.contains("record 1, node 2: duration"), "{too_long}");
    let kineto = read(KINETO.as_bytes());
    let names: Vec<_> = kineto.graph.ops().map(|op| op.kind().to_string()).collect();
    assert_eq!(names, ["cudaLaunchKernel", "gemm", "all_reduce", "memcpy_htod"]);
    // The launch; the wait that `cuda_sync` recorded; the copy behind the product on its stream.
    assert_eq!(kineto.account.edges, 3);
    assert_eq!(kineto.graph.flops(&Binding::new()).get(), 2 * 4 * 5 * 6);
    let pytorch = read(PYTORCH.as_bytes());
    let names: Vec<_> = pytorch.graph.ops().map(|op| op.kind().to_string()).collect();
    assert_eq!(names, ["aten::mm", "aten::add_", "all_reduce"]);
    assert_eq!((pytorch.account.edges, pytorch.graph.flops(&Binding::new()).get()), (2, 240));
}

/// `repeated` for ever, behind `start`.
struct Endless {
    start: io::Cursor<Vec<u8>>,
    repeated: u8,
}

impl Endless {
    fn new(start: &str, repeated: u8) -> Self {
        Self { start: io::Cursor::new(start.as_bytes().to_vec()), repeated }
    }
}

impl Read for Endless {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.start.read(into)?;
        if read == 0 {
            into.fill(self.repeated);
            return Ok(into.len());
        }
        Ok(read)
    }
}

/// The error of an endless file, which must come in bounded memory.
fn refused(name: &str, reader: impl Read) -> ImportError {
    let limits = Limits { record_bytes: 1 << 20, ..Limits::default() };
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let error = import::read(reader, name, &Options { limits, ..Options::default() }).err();
    let used = MEMORY.peak_usage().saturating_sub(before);
    assert!(used < 8 << 20, "{name}: {used} bytes for a record of 1 MiB");
    error.unwrap_or_else(|| panic!("{name}: expected an error"))
}

#[test]
fn endless_files_are_refused_in_bounded_memory() {
    let _turn = TURN.lock().unwrap();
    let cases = [
        ("a name", r#"{"traceEvents":[{"ph":"X","cat":"kernel","name":""#, b'a'),
        ("a key", r#"{""#, b'a'),
        ("a field that nobody asks for", r#"{"other":""#, b'a'),
        ("a number", r#"{"nodes":[{"id":"#, b'1'),
        ("digits behind the point", r#"{"nodes":[{"id":1."#, b'1'),
        ("white space", r#"{"workload_graph":[ "#, b' '),
        ("an attribute", r#"{"nodes":[{"id":1,"attrs":[{"name":"op_schema","value":""#, b'a'),
        ("lists in a field", r#"{"other":"#, b'['),
        ("objects without end", r#"{"traceEvents":[{"args":"#, b'['),
    ];
    for (name, start, repeated) in cases {
        let error = refused(name, Endless::new(start, repeated));
        assert!(matches!(error, ImportError::Limit { .. } | ImportError::Syntax { .. }), "{name}: {error}");
    }
    // A name of one GiB in a message that says so.
    let huge = [0x80, 0x80, 0x80, 0x80, 0x04, 0x12, 0x80, 0x80, 0x80, 0x80, 0x04];
    let error = refused("a message", (&huge[..]).chain(io::repeat(b'a')));
    assert!(matches!(error, ImportError::Limit { .. }), "{error}");
}

#[test]
fn what_unpacks_to_much_more_is_read_in_bounded_memory() {
    let _turn = TURN.lock().unwrap();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(b"{\"other\":\"").unwrap();
    for _ in 0..64 {
        packed.write_all(&[b'a'; 1 << 20]).unwrap();
    }
    let packed = packed.finish().unwrap();
    let error = refused("64 MiB in a few hundred KiB", &packed[..]);
    assert!(matches!(error, ImportError::Limit { .. }), "{error}");

    let mut whole = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    whole.write_all(KINETO.as_bytes()).unwrap();
    let whole = whole.finish().unwrap();
    assert_eq!(import::read(&whole[..], "packed", &Options::default()).unwrap().account.ops, 4);
    for end in [1, 9, 12, whole.len() / 2, whole.len() - 9, whole.len() - 1] {
        let error = import::read(&whole[..end], "cut", &Options::default()).unwrap_err();
        let told =
            matches!(error, ImportError::Read { .. } | ImportError::UnknownFormat { .. } | ImportError::Syntax { .. });
        assert!(told, "{end}: {error}");
    }
}

#[test]
fn contradictions_are_refused_with_their_place() {
    let _turn = TURN.lock().unwrap();
    let error = |text: &str| import::read(text.as_bytes(), "bad", &Options::default()).unwrap_err().to_string();
    let node = |id: u64, deps: &str| format!(r#"{{"Id":{id},"Name":"n","NodeType":4,"data_deps":{deps}}}"#);
    let graph = |nodes: &[String]| format!(r#"{{"workload_graph":[{}]}}"#, nodes.join(","));
    let cases = [
        (graph(&[node(1, "[2]"), node(2, "[3]"), node(3, "[1]"), node(4, "[3]")]), "depend on each other in a circle"),
        (graph(&[node(1, "[]"), node(1, "[]")]), "record 1: node 1 exists already"),
        (graph(&[node(7, "[7]")]), "node 7 depends on itself"),
        (r#"{"workload_graph":[{"Id":-4,"NodeType":4}]}"#.to_owned(), "Id is -4: expected a whole number"),
        (r#"{"workload_graph":[{"Id":18446744073709551616,"NodeType":4}]}"#.to_owned(), "Id is 18446744073709552000"),
        (r#"{"workload_graph":[{"Id":4,"NodeType":4,"runtime":-3}]}"#.to_owned(), "node 4: runtime is -3"),
        (r#"{"workload_graph":[{"Id":4,"NodeType":4,"runtime":9000000000000000}]}"#.to_owned(), "duration is"),
        (r#"{"workload_graph":[{"Id":4,"NodeType":7,"comm_type":12}]}"#.to_owned(), "comm_type is 12"),
        (r#"{"workload_graph":[]}"#.to_owned(), "no operator"),
        (r#"{"some":"thing"}"#.to_owned(), "without"),
        (String::new(), "nothing"),
        (r#"{"nodes":[{"id":1,"name":"aten::mm"},{"id":1,"name":"aten::mm"}]}"#.to_owned(), "node 1 exists already"),
    ];
    for (text, expected) in cases {
        let error = error(&text);
        assert!(error.contains(expected), "{text}: {error}");
    }
    // Events with impossible times are dropped one by one: they do not depend on each other.
    let events = r#"{"traceEvents":[
        {"ph":"X","cat":"kernel","name":"k","ts":1,"dur":-5},
        {"ph":"X","cat":"kernel","name":"k","ts":-1,"dur":5},
        {"ph":"X","cat":"kernel","name":"k","ts":1,"dur":1e300},
        {"ph":"X","cat":"kernel","name":"k","ts":1,"dur":nan,"args":null},
        {"ph":"X","cat":"kernel","name":"k","ts":-Infinity,"dur":5,"args":{"Input Dims":"none","speed":inf}},
        {"ph":"X","cat":"kernel","name":"k","ts":1,"dur":5}]}"#;
    let import = import::read(events.as_bytes(), "times", &Options::default()).unwrap();
    assert_eq!(import.account.dropped.get(&import::Reason::BadTime), Some(&5));
    // Without the last one nothing is left, and the refusal says why.
    let none = events.replace(r#""ts":1,"dur":5}]"#, r#""ts":1,"dur":-5}]"#);
    let none = error(&none);
    assert!(
        none.contains("6 records and no operator") && none.contains("6 x events with an impossible time"),
        "{none}"
    );
}

#[test]
fn values_that_can_not_be_are_left_out_and_counted() {
    let _turn = TURN.lock().unwrap();
    let read = |events: &str| {
        let text = format!(r#"{{"traceEvents":[{events}]}}"#);
        import::read(text.as_bytes(), "range", &Options::default()).unwrap()
    };
    let copy = |bytes: &str| {
        let event = r#"{"ph":"X","cat":"gpu_memcpy","name":"Memcpy HtoD","ts":1,"dur":5,"args":{"bytes":BYTES}}"#;
        read(&event.replace("BYTES", bytes))
    };
    let counted = |import: &import::Import| import.account.dropped.get(&import::Reason::OutOfRange).copied();
    let moved = |import: &import::Import| import.graph.total_cost(&Binding::new()).bytes().get();
    for bytes in ["-5", "9223372036854775808", "1e300", "0.5"] {
        let import = copy(bytes);
        assert_eq!((counted(&import), moved(&import)), (Some(1), 0), "{bytes}");
    }
    // 2^53, there and back.
    let import = copy("9007199254740992");
    assert_eq!((counted(&import), moved(&import)), (None, 1 << 54));
    let import = copy("null");
    assert_eq!((counted(&import), moved(&import)), (None, 0));

    let product = r#"{"ph":"X","cat":"cpu_op","name":"aten::mm","ts":1,"dur":5,
        "args":{"Input Dims":[[1099511627776,1099511627776],[1099511627776,1099511627776]]}}"#;
    let import = read(product);
    let flops = import.graph.total_cost(&Binding::new()).flops.get();
    assert_eq!((counted(&import), flops), (Some(1), 0));
    let collective = r#"{"ph":"X","cat":"kernel","name":"ncclKernel","ts":1,"dur":5,
        "args":{"Collective name":"allreduce","In msg nelems":18446744073709551615,"dtype":"Float"}}"#;
    let import = read(collective);
    let communication = import.ops[0].communication.as_ref().unwrap();
    assert_eq!((counted(&import), communication.bytes.get()), (Some(1), 0));
}

/// The product and the addition of [`PYTORCH`] are kept, the call of the product is not.
#[test]
fn times_of_calls_that_can_not_be_are_left_out_and_counted() {
    let _turn = TURN.lock().unwrap();
    let cases = [
        (r#""ts": 1711964646000001, "dur": 2.5"#, None, Some(Nanos::ZERO), Some(Nanos(2_500))),
        (r#""ts": null"#, None, None, None),
        (r#""ts": -1, "dur": 5"#, Some(1), None, Some(Nanos(5_000))),
        (r#""ts": nan, "dur": "five""#, Some(2), None, None),
        (r#""ts": 1e300, "dur": 1e300"#, Some(2), None, None),
    ];
    for (times, counted, start, duration) in cases {
        let text = PYTORCH.replace(r#""id": 3,"#, &format!(r#""id": 3, {times},"#));
        let import = import::read(text.as_bytes(), "times", &Options::default()).unwrap();
        assert_eq!(import.account.dropped.get(&import::Reason::OutOfRange).copied(), counted, "{times}");
        assert_eq!((import.ops[0].start, import.ops[0].duration), (start, duration), "{times}");
    }
    let caller = PYTORCH.replace(r#""id": 2,"#, r#""id": 2, "ts": -1, "dur": -1,"#);
    let import = import::read(caller.as_bytes(), "times", &Options::default()).unwrap();
    assert_eq!(import.account.dropped.get(&import::Reason::OutOfRange), None);
}

#[test]
fn what_a_document_is_and_has_twice_is_said() {
    let _turn = TURN.lock().unwrap();
    let twice = KINETO.replacen(r#""traceEvents""#, r#""traceEvents":[],"traceEvents""#, 1);
    let error = import::read(twice.as_bytes(), "twice", &Options::default()).unwrap_err();
    assert!(error.to_string().contains("\"traceEvents\" is there twice"), "{error}");

    let wanted = Options { format: Some(Format::PyTorch), ..Options::default() };
    let error = import::read(KINETO.as_bytes(), "other", &wanted).unwrap_err();
    let told = matches!(error, ImportError::OtherFormat { found: Format::Kineto, wanted: Format::PyTorch, .. });
    assert!(told, "{error}");

    let nodes = format!(r#"{{"nodes":["{}"]}}"#, "a".repeat(9 << 20));
    let wanted = Options { format: Some(Format::Kineto), ..Options::default() };
    let error = import::read(nodes.as_bytes(), "large", &wanted).unwrap_err();
    assert!(matches!(error, ImportError::OtherFormat { found: Format::PyTorch, .. }), "{error}");

    for zeros in [1, 300, 1000, 1 << 20] {
        let error = import::read(&vec![0; zeros][..], "zeros", &Options::default()).unwrap_err();
        assert!(matches!(error, ImportError::UnknownFormat { .. }) && error.to_string().contains("zeros"), "{error}");
    }
    // An empty message where a node belongs is no node 0.
    let padded = [&messages()[..], &[0; 9]].concat();
    let error = import::read(&padded[..], "padded", &Options::default()).unwrap_err();
    assert!(error.to_string().contains("an empty message: expected a node"), "{error}");
}

#[test]
fn files_are_unpacked_four_deep() {
    let _turn = TURN.lock().unwrap();
    let gzip = |bytes: &[u8]| {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    };
    // A header of ustar (POSIX.1-1988) and the file in blocks of 512 bytes.
    let file = |bytes: &[u8]| {
        let mut header = [0; 512];
        header[..5].copy_from_slice(b"trace");
        header[124..136].copy_from_slice(format!("{:011o}\0", bytes.len()).as_bytes());
        header[148..156].fill(b' ');
        header[156] = b'0';
        header[257..265].copy_from_slice(b"ustar\x0000");
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let padding = bytes.len().next_multiple_of(512) - bytes.len();
        [&header[..], bytes, &vec![0; padding]].concat()
    };
    let tar = |bytes: &[u8]| [file(bytes), vec![0; 1024]].concat();
    let ops = |bytes: &[u8]| import::read(bytes, "packed", &Options::default()).map(|import| import.account.ops);
    let plain = KINETO.as_bytes();
    for packed in
        [tar(plain), gzip(&tar(plain)), gzip(&gzip(plain)), tar(&gzip(plain)), gzip(&tar(&gzip(&gzip(plain))))]
    {
        assert_eq!(ops(&packed).unwrap(), 4);
    }
    let deeper = ops(&gzip(&gzip(&tar(&gzip(&gzip(plain)))))).unwrap_err();
    assert!(matches!(deeper, ImportError::UnknownFormat { .. }), "{deeper}");
    // The first trace of an archive is read, whatever lies before it; what was not read is counted.
    let archive = |files: &[&[u8]]| {
        let files: Vec<u8> = files.iter().flat_map(|bytes| file(bytes)).collect();
        import::read(&gzip(&[files, vec![0; 1024]].concat())[..], "archive", &Options::default())
    };
    let others =
        |import: import::Import| (import.account.ops, import.account.dropped.get(&import::Reason::OtherFile).copied());
    assert_eq!(others(archive(&[b"Read me first.", br#"{"rank": 0}"#, plain]).unwrap()), (4, Some(2)));
    assert_eq!(others(archive(&[plain, plain, plain]).unwrap()), (4, Some(2)));
    assert_eq!(others(archive(&[plain]).unwrap()), (4, None));
    let error = archive(&[b"Read me first.", b"And me."]).unwrap_err();
    assert!(matches!(error, ImportError::UnknownFormat { .. }), "{error}");
    let limits = Limits { total_bytes: 1 << 20, ..Limits::default() };
    let large = [file(&vec![b' '; 2 << 20]), file(plain), vec![0; 1024]].concat();
    let error = import::read(&large[..], "large", &Options { limits, ..Options::default() }).unwrap_err();
    assert!(matches!(error, ImportError::Limit { .. }), "{error}");
    let marked = [b"\xef\xbb\xbf", plain].concat();
    assert_eq!(ops(&marked).unwrap(), 4);
}

#[test]
fn text_that_is_no_trace_is_told_so() {
    let _turn = TURN.lock().unwrap();
    for text in ["time,duration\n1,2\n", "The trace was moved.", "\u{feff}name", "42"] {
        let error = import::read(text.as_bytes(), "text", &Options::default()).unwrap_err();
        assert!(matches!(error, ImportError::UnknownFormat { .. }), "{text}: {error}");
        assert!(error.to_string().contains("expected a Chakra, Kineto or PyTorch trace"), "{error}");
    }
    let read = import::read(&messages()[..], "messages", &Options::default()).unwrap();
    assert_eq!(read.account.format, Format::Chakra);
}

#[test]
fn names_of_groups_are_cut_like_all_names() {
    let _turn = TURN.lock().unwrap();
    let group = "g".repeat(5000);
    let chakra = format!(
        r#"{{"workload_graph": [{{"Id": 1, "Name": "ar", "NodeType": 7, "comm_type": 0, "pg_name": "{group}"}}]}}"#
    );
    let kineto = KINETO.replace(r#""Group size": 8"#, &format!(r#""Process Group Name": "{group}""#));
    let messages = {
        let mut file = Vec::new();
        let limits = Limits { name_bytes: 5000, ..Limits::default() };
        let whole = import::read(chakra.as_bytes(), "whole", &Options { limits, ..Options::default() }).unwrap();
        export::chakra(Source::from(&whole), &mut file).unwrap();
        file
    };
    for file in [chakra.as_bytes(), kineto.as_bytes(), &messages] {
        let import = import::read(file, "groups", &Options::default()).unwrap();
        let groups: Vec<_> =
            import.ops.iter().filter_map(|op| op.communication.as_ref()?.group.as_deref()).map(str::len).collect();
        assert_eq!(groups, [512], "{}", import.account.format);
    }
}

/// So many calls with `inputs` and `outputs` tensors, each in a storage of its own.
fn calls(count: usize, inputs: usize, outputs: usize, shape: &str) -> String {
    let tensors = |first: usize, count: usize| {
        let tensors: Vec<_> = (first..first + count).map(|at| format!(r#"[{at}, {at}, 0, 1, 4, "cpu"]"#)).collect();
        let shapes = vec![shape; count].join(",");
        format!(r#"{{"values": [{}], "shapes": [{shapes}], "types": []}}"#, tensors.join(","))
    };
    let schema = r#"[{"name": "op_schema", "type": "string", "value": "aten::view(Tensor(a) self) -> Tensor(a)"}]"#;
    let call = |id: usize| {
        let first = id * (inputs + outputs);
        let (inputs, outputs) = (tensors(first, inputs), tensors(first + inputs, outputs));
        format!(r#"{{"id": {id}, "name": "aten::view", "inputs": {inputs}, "outputs": {outputs}, "attrs": {schema}}}"#)
    };
    format!(r#"{{"nodes": [{}]}}"#, (0..count).map(call).collect::<Vec<_>>().join(","))
}

#[test]
fn tensors_of_calls_count_while_they_are_read() {
    let _turn = TURN.lock().unwrap();
    let read = |file: &str, edges| {
        let limits = Limits { edges, ..Limits::default() };
        import::read(file.as_bytes(), "calls", &Options { limits, ..Options::default() })
    };
    let hundred = calls(1, 60, 40, "[1]");
    assert_eq!(read(&hundred, 100).unwrap().account.ops, 1);
    let error = read(&hundred, 99).unwrap_err();
    assert!(matches!(error, ImportError::Limit { what: "tensors that calls use", most: 99, .. }), "{error}");
    // 64 dimensions are a shape, and count; 65 are none.
    let shape = |rank: usize| format!("[{}]", vec!["1"; rank].join(","));
    assert!(read(&calls(1, 1, 1, &shape(64)), 33).is_err());
    assert_eq!(read(&calls(1, 1, 1, &shape(65)), 33).unwrap().account.ops, 1);
}

/// Forty thousand inputs and as many outputs, in one call and in four hundred. Compared with each other, those of
/// the one would be 1.6 * 10^9 pairs.
#[test]
fn a_call_with_many_tensors_takes_no_longer_than_many_with_few() {
    let _turn = TURN.lock().unwrap();
    let (one, many) = (calls(1, 40_000, 40_000, "[1]"), calls(400, 100, 100, "[1]"));
    let time = |file: &str| {
        let began = std::time::Instant::now();
        let import = import::read(file.as_bytes(), "calls", &Options::default()).unwrap();
        assert_eq!(import.graph.tensor_count(), 80_000);
        began.elapsed()
    };
    // Whoever else is busy may disturb one measurement.
    assert!((0..3).any(|_| time(&one) < 3 * time(&many)));
}
