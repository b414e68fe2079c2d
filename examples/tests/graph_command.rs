//! The `graph` command: what it prints, what it writes, and how it refuses.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const KINETO: &str = r#"{"traceEvents": [
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 2, "ts": 10, "dur": 2, "args": {"correlation": 7}},
  {"ph": "X", "cat": "kernel", "name": "void gemm<float>(int)", "pid": 0, "tid": 3, "ts": 13, "dur": 40, "args": {"correlation": 7, "device": 0, "stream": 3}},
  {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "pid": 0, "tid": 3, "ts": 60, "dur": 1, "args": {"device": 0, "stream": 3, "bytes": 4096}},
  {"ph": "X", "cat": "user_annotation", "name": "step", "pid": 1, "tid": 2, "ts": 0, "dur": 99}
]}"#;

/// A fresh folder of one test.
fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("graph_command").join(test);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn graph(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_graph")).args(arguments).output().unwrap()
}

/// What it prints for `arguments`, which it accepts.
fn accepted(arguments: &[&str]) -> String {
    let output = graph(arguments);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments:?}: {errors}");
    assert_eq!(errors, "", "{arguments:?}: nothing is wrong");
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&accepted(arguments)).unwrap()
}

/// The line that it gives for `arguments`, which it refuses with `status`.
fn refused(arguments: &[&str], status: i32) -> String {
    let output = graph(arguments);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {errors}");
    errors
}

#[test]
fn an_import_says_what_the_trace_has() {
    let trace = folder("import").join("trace.json");
    fs::write(&trace, KINETO).unwrap();
    let trace = trace.to_str().unwrap();
    let summary = json(&["import", trace, "--json"]);
    assert_eq!(
        (&summary["format"], &summary["operators"], &summary["edges"]),
        (&"kineto".into(), &3.into(), &2.into())
    );
    assert_eq!((&summary["measured_ns"], &summary["bytes"]), (&43_000.into(), &4096.into()));
    assert_eq!(summary["critical_path"]["ns"], 43_000);
    let path = summary["critical_path"]["operators"].as_array().unwrap();
    let names: Vec<_> = path.iter().map(|op| op["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["cudaLaunchKernel", "void gemm<float>(int)", "Memset (Device)"]);
    assert_eq!(summary["dropped"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum::<u64>(), 2);

    let text = accepted(&["import", trace]);
    for expected in [
        "kineto trace",
        "operators    3 on 2 lanes",
        "edges        2",
        "critical path 43.000 us through 3",
        "annotations",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    let devices = json(&["import", trace, "--devices-only", "--json"]);
    assert_eq!((&devices["operators"], &devices["edges"]), (&2.into(), &1.into()));
}

#[test]
fn a_trace_without_durations_is_said_to_have_none() {
    let folder = folder("untimed");
    let write = |name: &str, content: &str| {
        let path = folder.join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let untimed = r#"{"workload_graph": [{"Id": 1, "Name": "a\u001b[2J", "NodeType": 4}, {"Id": 2, "Name": "b", "NodeType": 4, "data_deps": [1]}]}"#;
    let untimed = write("untimed.json", untimed);
    let text = accepted(&["import", &untimed]);
    for expected in
        ["measured     nothing: the trace has no durations", "critical path 2 operators", "           -  a [2J"]
    {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    assert!(!text.contains(" ns"), "{text}");
    let summary = json(&["import", &untimed, "--json"]);
    assert_eq!((&summary["measured_ns"], &summary["critical_path"]["ns"]), (&Value::Null, &Value::Null));
    assert_eq!(summary["critical_path"]["operators"][0]["ns"], Value::Null);

    // 30 days, 8,000 times, is more than fits into 64 bits of nanoseconds.
    let node =
        |id: u32| format!(r#"{{"Id": {id}, "Name": "x", "NodeType": 4, "runtime": 2592000000000, "data_deps": []}}"#);
    let nodes: Vec<_> = (0..8000).map(node).collect();
    let long = write("long.json", &format!("{{\"workload_graph\": [{}]}}", nodes.join(",")));
    let text = accepted(&["import", &long]);
    assert!(text.contains("measured     over 18446744074 s") && !text.contains("never"), "{text}");
}

#[test]
fn exports_are_what_the_tools_read() {
    let folder = folder("export");
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (et, dot, perfetto, trace) = (path("tiny.0.et"), path("tiny.dot"), path("tiny.json"), path("trace.json"));
    fs::write(&trace, KINETO).unwrap();

    accepted(&["export", "--template", "tiny", "--to", "chakra", "--out", &et]);
    let back = json(&["import", &et, "--json"]);
    let report = json(&["export", "--template", "tiny", "--to", "dot", "--out", &dot, "--json"]);
    assert_eq!((&back["format"], &back["operators"]), (&"chakra".into(), &report["operators"]));
    assert!(back["flops"].as_u64().unwrap() > 0 && back["measured_ns"].as_u64().unwrap() > 0);

    let text = fs::read_to_string(&dot).unwrap();
    assert_eq!(report["bytes"], text.len());
    assert_eq!(text.matches(" -> ").count() as u64, back["edges"].as_u64().unwrap());

    accepted(&["export", "--import", &trace, "--to", "perfetto", "--out", &perfetto]);
    let events: Value = serde_json::from_slice(&fs::read(&perfetto).unwrap()).unwrap();
    let spans = events["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X");
    let durations: Vec<f64> = spans.map(|span| span["dur"].as_f64().unwrap()).collect();
    assert_eq!(durations, [2.0, 40.0, 1.0]);
    assert!(accepted(&["export", "--import", &trace, "--to", "dot", "--out", "-"]).starts_with("digraph {"));
}

#[test]
fn a_rank_of_a_sharded_template_has_collective_nodes() {
    let folder = folder("sharded");
    let et = folder.join("rank.0.et");
    let et = et.to_str().unwrap();
    accepted(&["export", "--template", "llama3-8b", "--tensor-parallel", "2", "--to", "chakra", "--out", et]);
    let back = json(&["import", et, "--json"]);
    // Twice per layer, a row of 4096 numbers of two bytes is summed for each of 512 tokens.
    let sums = 32 * 2 * 512 * 4096 * 2;
    assert!(back["communicated_bytes"].as_u64().unwrap() >= sums, "{back}");
    refused(&["export", "--template", "bert-base", "--tensor-parallel", "2", "--to", "chakra", "--out", et], 1);
    refused(&["export", "--template", "tiny", "--tensor-parallel", "0", "--to", "chakra", "--out", et], 2);
}

#[test]
fn bad_files_give_one_line_and_bad_usage_two() {
    let folder = folder("refused");
    let write = |name: &str, content: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let cases = [
        (write("empty", b""), "nothing"),
        (write("cut.json", &KINETO.as_bytes()[..200]), "EOF"),
        (write("other.json", b"{\"a\": 1}"), "without"),
        (write("noise", &[0x55; 300]), "byte"),
        (folder.join("absent").to_str().unwrap().to_owned(), "No such file"),
        (folder.to_str().unwrap().to_owned(), "directory"),
    ];
    for (path, expected) in cases {
        let line = refused(&["import", &path], 1);
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(line.starts_with("error: ") && line.contains(expected) && line.contains(&path), "{line}");
    }
    let trace = write("trace.json", KINETO.as_bytes());
    let limited = refused(&["import", &trace, "--max-ops", "1"], 1);
    assert!(limited.contains("more than 1 operators"), "{limited}");
    let unwritable = folder.join("absent").join("out.dot");
    refused(&["export", "--import", &trace, "--to", "dot", "--out", unwritable.to_str().unwrap()], 1);

    let long = write("long.json", KINETO.replace("\"step\"", &format!("\"{}\"", "a".repeat(9 << 20))).as_bytes());
    let limited = refused(&["import", &long], 1);
    assert!(limited.contains("more than 8388608 bytes in one record"), "{limited}");
    accepted(&["import", &long, "--max-record-bytes", "16777216"]);
    for (limit, value) in [("--max-edges", "1"), ("--max-bytes", "200"), ("--max-record-bytes", "10")] {
        let limited = refused(&["import", &trace, limit, value], 1);
        assert!(limited.contains("more than") && limited.contains(&format!("({limit})")), "{limited}");
    }
    let named = json(&["import", &trace, "--max-name-bytes", "4", "--json"]);
    assert_eq!(named["dropped"]["tails of long names"], 3);
    let timeless = refused(&["import", &trace, "--max-duration", "0"], 1);
    assert!(timeless.contains("no operator among them; dropped: 1 x annotations, 3 x events with an"), "{timeless}");

    refused(&["import"], 2);
    refused(&["export", "--to", "dot", "--out", "x"], 2);
    refused(&["export", "--template", "tiny", "--import", &trace, "--to", "dot", "--out", "x"], 2);
    refused(&["import", &trace, "--format", "nonsense"], 2);
}

#[test]
fn what_would_mean_nothing_is_refused() {
    let folder = folder("meaningless");
    let (trace, out) = (folder.join("trace.json"), folder.join("out"));
    fs::write(&trace, KINETO).unwrap();
    let (trace, out) = (trace.to_str().unwrap(), out.to_str().unwrap());
    let of_templates = [["--tokens", "77"], ["--cached", "1"], ["--tensor-parallel", "8"]];
    for [name, value] in of_templates {
        let refusal = refused(&["export", "--import", trace, "--to", "dot", "--out", out, name, value], 2);
        assert!(refusal.contains(name) && refusal.contains("--import"), "{refusal}");
    }
    let template = ["export", "--template", "tiny", "--to", "dot", "--out", out];
    for reading in ["--strict", "--data-only", "--devices-only", "--format=kineto", "--max-ops=9", "--max-bytes=9"] {
        let refusal = refused(&[&template[..], &[reading]].concat(), 2);
        assert!(refusal.contains("--template"), "{refusal}");
    }
    refused(&[&template[..], &["--tokens", "0"]].concat(), 2);
    for most in ["--tokens", "--cached"] {
        let refusal = refused(&[&template[..], &[most, "18446744073709551615"]].concat(), 1);
        assert!(refusal.contains("no place in 64 bits"), "{refusal}");
    }
    assert!(!Path::new(out).exists());
}

#[test]
fn a_timeline_is_not_read_back_and_what_a_format_has_no_place_for_is_said() {
    let folder = folder("timeline");
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (timeline, chakra) = (path("timeline.json"), path("tiny.et"));
    accepted(&["export", "--template", "tiny", "--to", "perfetto", "--out", &timeline]);
    let refusal = refused(&["import", &timeline], 1);
    assert!(refusal.contains("a timeline that SliceScheduler exported") && refusal.contains("Chakra"), "{refusal}");

    let report = json(&["export", "--template", "tiny", "--to", "chakra", "--out", &chakra, "--json"]);
    assert!(report["left_out"]["tensors"].as_u64().unwrap() > 0, "{report}");
    let text = accepted(&["export", "--template", "tiny", "--to", "chakra", "--out", &chakra]);
    assert!(text.contains("tensors, for which chakra has no place"), "{text}");
    assert_eq!(json(&["import", &chakra, "--json"])["tensors"], 0);
}

#[cfg(unix)]
#[test]
fn a_file_is_written_whole_or_not_at_all() {
    let folder = folder("whole");
    let file = folder.join("graph.json");
    fs::write(&file, "what was there").unwrap();
    let export = ["export", "--template", "llama3-8b", "--to", "perfetto", "--out", file.to_str().unwrap()];
    // 20 blocks of at most 1 KiB; without the signal, writing fails.
    let limited = |signal: &str| {
        let script = format!("{signal} ulimit -f 20; exec \"$0\" \"$@\"");
        let shell = Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_graph")]).args(export).output();
        assert!(!shell.unwrap().status.success());
        assert_eq!(fs::read_to_string(&file).unwrap(), "what was there");
    };
    limited("trap '' XFSZ;");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing unfinished is left");
    limited("");

    accepted(&export);
    serde_json::from_slice::<Value>(&fs::read(&file).unwrap()).unwrap();
    let link = folder.join("link.json");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    accepted(&["export", "--template", "tiny", "--to", "dot", "--out", link.to_str().unwrap()]);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(fs::read_to_string(&file).unwrap().starts_with("digraph {"));
}
