//! The `replay` command: what it prints, what it writes, and how it refuses.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// One tenant on one device, fed by the trace that the test puts beside it.
const TRACED: &str = r#"
seed = 0
duration = "20s"
policies = ["static", "slice-fill"]
[cluster]
[[cluster.nodes]]
devices = 1
kind = "h100-sxm"
[[tenants]]
name = "chat"
class = "latency-sensitive"
model = "llama3-8b"
slo = { ttft = "400ms", tpot = "40ms" }
container = { devices = [0] }
workload = { trace = "trace.csv", format = "azure" }
"#;

const TRACE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,374,44
2023-11-16 18:17:04.0319600,396,109
2023-11-16 18:17:05.0781490,879,55
";

/// A fresh folder of one test.
fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("replay_command").join(test);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn replay(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_replay")).args(arguments).output().unwrap()
}

/// What it prints for `arguments`, which it accepts.
fn accepted(arguments: &[&str]) -> String {
    let output = replay(arguments);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments:?}: {errors}");
    assert_eq!(errors, "", "{arguments:?}: nothing is wrong");
    String::from_utf8(output.stdout).unwrap()
}

fn summary(arguments: &[&str]) -> Value {
    let printed = accepted(&[arguments, &["--json"]].concat());
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error} in {printed}"))
}

/// The exit status for arguments that make no sense.
const USAGE: i32 = 2;
/// The exit status for whatever else is wrong.
const FAILURE: i32 = 1;

/// Checks that `arguments` are refused with a message that has `parts`, and that nothing is written.
#[track_caller]
fn refused(test: &str, status: i32, arguments: &[&str], parts: &[&str]) {
    let out = folder(test).join("out");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("summary.json"), "of an earlier run").unwrap();
    let output = replay(&[arguments, &["--out", out.to_str().unwrap()]].concat());
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {message}");
    assert_eq!(output.stdout, b"", "{arguments:?} prints nothing");
    for part in parts {
        assert!(message.contains(part), "{arguments:?}: no {part:?} in {message}");
    }
    assert!(!message.contains("panicked"), "{message}");
    let left: Vec<_> = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["summary.json"], "{arguments:?}");
    assert_eq!(fs::read_to_string(out.join("summary.json")).unwrap(), "of an earlier run");
}

/// Checks that the scenario `text` is refused, with `files` beside it.
#[track_caller]
fn refused_scenario(test: &str, text: &str, files: &[(&str, &str)], parts: &[&str]) {
    let folder = folder(&format!("{test}-scenario"));
    let path = folder.join("scenario.toml");
    fs::write(&path, text).unwrap();
    for (name, text) in files {
        fs::write(folder.join(name), text).unwrap();
    }
    refused(test, FAILURE, &["--scenario", path.to_str().unwrap()], parts);
}

#[test]
fn unknown_keys_are_refused_with_their_place() {
    let text = TRACED.replace("[cluster]", "[cluster]\ncolour = \"red\"");
    refused_scenario("unknown-key", &text, &[("trace.csv", TRACE)], &["scenario.toml:6:1", "colour"]);
}

#[test]
fn missing_files_are_refused_with_the_places_that_were_tried() {
    refused("missing-scenario", FAILURE, &["--scenario", "no/such.toml"], &["no/such.toml", "can not be read"]);
    refused_scenario("missing-trace", TRACED, &[], &["scenario.toml:15", "no such file", "trace.csv"]);
    let folder = folder("missing-data-scenario");
    let path = folder.join("scenario.toml");
    fs::write(&path, TRACED).unwrap();
    let data = folder.join("elsewhere");
    fs::create_dir_all(&data).unwrap();
    let arguments = ["--scenario", path.to_str().unwrap(), "--data", data.to_str().unwrap()];
    refused("missing-data", FAILURE, &arguments, &["elsewhere/trace.csv", "scenario/trace.csv"]);
}

#[test]
fn malformed_rows_are_refused_with_line_column_and_value() {
    let bad = |row: &str| format!("{TRACE}{row}\n");
    let rows = [
        ("2023-11-16 18:17:06.0000000,many,10", ["trace.csv:5", "ContextTokens", "many"]),
        ("2023-11-16 18:17:06.0000000,10,-3", ["trace.csv:5", "GeneratedTokens", "-3"]),
        ("yesterday,10,10", ["trace.csv:5", "TIMESTAMP", "yesterday"]),
        ("2023-11-16 18:17:02.0000000,10,10", ["trace.csv:5", "TIMESTAMP", "not before"]),
        ("2023-11-16 18:17:06.0000000,10", ["trace.csv:5", "GeneratedTokens", "06.0000000,10"]),
    ];
    for (index, (row, parts)) in rows.iter().enumerate() {
        refused_scenario(&format!("malformed-{index}"), TRACED, &[("trace.csv", &bad(row))], parts);
    }
    let header = TRACE.replace("ContextTokens", "Context");
    refused_scenario("header", TRACED, &[("trace.csv", &header)], &["trace.csv:1", "ContextTokens"]);
    refused_scenario("empty", TRACED, &[("trace.csv", "")], &["trace.csv", "no records"]);
    let mooncake = TRACED.replace("trace.csv", "trace.jsonl").replace("\"azure\"", "\"mooncake\"");
    let lines = "{\"timestamp\": 0, \"input_length\": 9, \"output_length\": 5}\n\
                 {\"timestamp\": 1, \"input_length\": 0.5, \"output_length\": 5}\n";
    let parts = ["trace.jsonl:2", "input_length", "0.5"];
    refused_scenario("mooncake", &mooncake, &[("trace.jsonl", lines)], &parts);
}

#[test]
fn impossible_clusters_are_refused() {
    let files = [("trace.csv", TRACE)];
    let small = TRACED.replace("h100-sxm", "l4").replace("[cluster]", "[cluster]\nusable = 0.5");
    let parts = ["\"chat\"", "llama3-8b", "weights", "KV cache", "n0", "usable of"];
    refused_scenario("too-small", &small, &files, &parts);
    let outside = TRACED.replace("devices = [0]", "devices = [1]");
    refused_scenario("no-such-device", &outside, &files, &["scenario.toml:14", "devices"]);
    let none = TRACED.replace("devices = 1\n", "devices = 0\n");
    refused_scenario("no-device", &none, &files, &["scenario.toml:7", "devices"]);
}

#[test]
fn bad_arguments_are_refused_with_what_would_be_right() {
    refused("policy", USAGE, &["--policy", "static,best"], &["best", "static, idle-priority", "slice-fill"]);
    refused("policy-twice", USAGE, &["--policy", "static,static"], &["static", "once"]);
    refused("no-policy", USAGE, &["--policy", ""], &["static, idle-priority", "slice-fill"]);
    for duration in ["10", "10 parsecs", "-5s", "", "0s"] {
        refused("duration", USAGE, &["--duration", duration], &["duration is", "expected"]);
    }
    for rate in ["-1", "0", "nan", "inf", "1e9"] {
        refused("rate", USAGE, &["--rate-scale", rate], &["rate scale", "0.0001"]);
    }
    refused("rate-word", USAGE, &["--rate-scale", "fast"], &["rate-scale", "fast"]);
    refused("seed", USAGE, &["--seed", "-1"], &["invalid value '-1' for '--seed <N>'"]);
    refused("explain", USAGE, &["--explain", "-1"], &["invalid value '-1' for '--explain <N>'"]);
    refused("device", USAGE, &["--device", "tpu"], &["tpu", "sim", "cpu"]);
    refused("unknown", USAGE, &["--frobnicate"], &["--frobnicate"]);
    refused("no-data", FAILURE, &["--data", "/nowhere"], &["/nowhere: is not a folder"]);
}

#[test]
fn a_policy_option_that_does_not_exist_is_refused() {
    let text = TRACED.replace("\"slice-fill\"", "{ name = \"slice-fill\", options = { hurry = true } }");
    refused_scenario("option", &text, &[("trace.csv", TRACE)], &["slice-fill", "hurry", "reserve_percent"]);
}

#[test]
fn an_out_that_is_a_file_is_refused() {
    let file = folder("out-file").join("out");
    fs::write(&file, "mine").unwrap();
    let output = replay(&["--duration", "1s", "--out", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(FAILURE));
    assert!(String::from_utf8(output.stderr).unwrap().contains("out-file/out"));
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
}

#[test]
fn a_folder_that_cannot_be_written_is_refused_before_anything_runs_and_figures_are_printed_whatever_happens() {
    let folder = folder("out-refused");
    let inside = folder.join("file");
    fs::write(&inside, "").unwrap();
    let out = inside.join("out");
    let output = replay(&["--duration", "10h", "--out", out.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(FAILURE));
    assert!(
        String::from_utf8(output.stderr).unwrap().contains("cannot be made a folder"),
        "at once, not after ten hours"
    );
    // What cannot be known beforehand: a folder where the file should be.
    let out = folder.join("out");
    fs::create_dir_all(out.join("summary.json")).unwrap();
    let output = replay(&["--duration", "5s", "--policy", "static", "--out", out.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(FAILURE));
    assert!(String::from_utf8(output.stdout).unwrap().contains("token throughput"), "the figures are not lost");
    assert!(String::from_utf8(output.stderr).unwrap().contains("summary.json: cannot be written"));
    assert_eq!(fs::read_dir(&out).unwrap().count(), 1, "nothing unfinished is left");
}

/// The keys of an object.
fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

fn has(value: &Value, expected: &[&str]) {
    expected.iter().for_each(|key| assert!(value.get(key).is_some(), "no {key} among {:?}", keys(value)));
}

#[test]
fn json_is_the_summary_and_nothing_else() {
    let summary = summary(&["--duration", "20s", "--seed", "3"]);
    has(&summary, &["schema", "measured", "seed", "policies"]);
    assert_eq!((&summary["schema"], &summary["measured"], &summary["seed"]), (&1.into(), &false.into(), &3.into()));
    let policies = summary["policies"].as_array().unwrap();
    let names: Vec<_> = policies.iter().map(|policy| policy["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["static", "idle-priority", "slice-fill"]);
    for policy in policies {
        let figures = [
            "token_throughput",
            "input_token_throughput",
            "output_token_throughput",
            "flop_weighted_throughput",
            "goodput",
            "sla_violation_rate",
            "memory_violations",
            "busy_share",
            "idle_slice_recovery",
            "sim_ops_per_ms",
        ];
        has(policy, &figures);
        figures.iter().for_each(|figure| assert!(policy[figure].is_number(), "{figure} is {}", policy[figure]));
        has(&policy["decision_us"], &["p50", "p99"]);
        let tenants = policy["tenants"].as_array().unwrap();
        assert_eq!(tenants.len(), 4);
        for tenant in tenants {
            has(tenant, &["name", "class", "sla_violation_rate", "ttft_ms", "tpot_ms", "token_throughput"]);
            has(&tenant["ttft_ms"], &["p50", "p99"]);
            has(&tenant["tpot_ms"], &["p50", "p99"]);
        }
        let sum: f64 = tenants.iter().map(|tenant| tenant["token_throughput"].as_f64().unwrap()).sum();
        let total = policy["token_throughput"].as_f64().unwrap();
        assert!((sum / total - 1.0).abs() < 1e-9, "{sum} over the tenants, {total} in all");
        let worst = tenants.iter().map(|tenant| tenant["sla_violation_rate"].as_f64().unwrap()).fold(0.0, f64::max);
        assert_eq!(policy["sla_violation_rate"].as_f64().unwrap(), worst);
    }
}

#[test]
fn out_gets_three_whole_files() {
    let out = folder("three-files").join("a/b");
    let printed = summary(&["--duration", "20s", "--out", out.to_str().unwrap()]);
    let mut files: Vec<_> = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    files.sort();
    assert_eq!(files, ["report.html", "summary.json", "timeline.json"]);
    let read = |name: &str| fs::read_to_string(out.join(name)).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&read("summary.json")).unwrap(), printed);
    let timeline: Value = serde_json::from_str(&read("timeline.json")).unwrap();
    let graph =
        Command::new(env!("CARGO_BIN_EXE_graph")).arg("import").arg(out.join("timeline.json")).output().unwrap();
    let refusal = String::from_utf8(graph.stderr).unwrap();
    assert!(refusal.contains("a timeline that SliceScheduler exported"), "{refusal}");
    let events = timeline["traceEvents"].as_array().unwrap();
    let spans = events.iter().filter(|event| event["ph"] == "X").count();
    assert!(spans > 100, "{spans} spans among {} events", events.len());
    let report = read("report.html");
    assert!(report.starts_with("<!doctype html>") && report.trim_end().ends_with("</html>"));
    for external in ["src=", "<link", "@import", "url(", "fetch(", "XMLHttpRequest", "https://", "http://"] {
        let found = report.match_indices(external).map(|(at, _)| &report[at..report.len().min(at + 60)]);
        let found: Vec<_> = found.filter(|text| !text.contains("http://www.w3.org/2000/svg")).collect();
        assert!(found.is_empty(), "the report refers to {found:?}");
    }
}

#[test]
fn the_table_says_that_it_is_simulated_and_names_everybody() {
    let table = accepted(&["--duration", "20s"]);
    for part in ["simulated", "static", "idle-priority", "slice-fill", "code-a", "code-b", "conv", "batch"] {
        assert!(table.contains(part), "no {part} in {table}");
    }
}

/// The figures that depend on nothing but scenario and seed.
#[test]
fn late_requests_are_explained() {
    let folder = folder("explain");
    let tight = TRACED.replace("ttft = \"400ms\"", "ttft = \"1ms\"");
    let scenario = folder.join("scenario.toml");
    fs::write(&scenario, tight).unwrap();
    fs::write(folder.join("trace.csv"), TRACE).unwrap();
    let scenario = scenario.to_str().unwrap();
    let printed = accepted(&["--scenario", scenario, "--explain", "2"]);
    for policy in ["static", "slice-fill"] {
        let late = printed.lines().filter(|line| line.starts_with(&format!("{policy}, chat: arrived at"))).count();
        assert_eq!(late, 2, "two of the three requests, all late: {printed}");
    }
    assert!(printed.contains("prompt of 396 tokens; first token after") && printed.contains(" ran for "), "{printed}");
    assert!(!accepted(&["--scenario", scenario]).contains("arrived at"), "nothing is explained unasked");
    refused("explain-json", USAGE, &["--explain", "1", "--json"], &["--explain", "--json"]);
}

fn figures(summary: &Value) -> Vec<(String, Vec<Value>)> {
    let of = |policy: &Value| {
        let figures = ["tenants", "token_throughput", "busy_share", "recalls", "decisions", "peak_memory_gib"];
        (policy["name"].as_str().unwrap().to_owned(), figures.map(|figure| policy[figure].clone()).to_vec())
    };
    summary["policies"].as_array().unwrap().iter().map(of).collect()
}

#[test]
fn the_seed_decides_and_policies_run_in_the_order_asked_for() {
    let run = |seed: &str| summary(&["--duration", "20s", "--policy", "slice-fill,static", "--seed", seed]);
    let (first, again, other) = (figures(&run("5")), figures(&run("5")), figures(&run("6")));
    assert_eq!(first, again);
    assert_ne!(first, other);
    assert_eq!(first.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["slice-fill", "static"]);
}

#[test]
fn a_higher_rate_brings_more_requests() {
    let arrived = |rate: &str| {
        let summary = summary(&["--duration", "60s", "--policy", "static", "--rate-scale", rate]);
        let tenants = summary["policies"][0]["tenants"].as_array().unwrap();
        tenants.iter().take(3).map(|tenant| tenant["arrived"].as_u64().unwrap()).sum::<u64>()
    };
    let (one, three) = (arrived("1"), arrived("3"));
    assert!(three > 2 * one, "{one} requests at rate 1, {three} at rate 3");
}

#[test]
fn traces_are_found_beside_the_scenario_or_in_the_data_folder() {
    let folder = folder("found");
    let scenario = folder.join("scenario.toml");
    fs::write(&scenario, TRACED).unwrap();
    fs::write(folder.join("trace.csv"), TRACE).unwrap();
    let path = scenario.to_str().unwrap();
    let arrived = |summary: &Value| summary["policies"][0]["tenants"][0]["arrived"].clone();
    assert_eq!(arrived(&summary(&["--scenario", path])), 3);
    let data = folder.join("data");
    fs::create_dir(&data).unwrap();
    let shorter: String = TRACE.lines().take(3).flat_map(|line| [line, "\n"]).collect();
    fs::write(data.join("trace.csv"), shorter).unwrap();
    assert_eq!(arrived(&summary(&["--scenario", path, "--data", data.to_str().unwrap()])), 2);
}

#[test]
fn a_mixture_of_experts_runs_on_real_kernels_with_equal_answers() {
    let scenario = include_str!("../../slicescheduler/src/scenario/cpu.toml");
    let path = folder("mixture").join("scenario.toml");
    fs::write(&path, scenario.replace("model = \"tiny\"", "model = \"tiny-moe\"")).unwrap();
    let path = path.to_str().unwrap();
    let arguments = ["--scenario", path, "--device", "cpu", "--duration", "2s", "--policy", "static,slice-fill"];
    let summary = summary(&arguments);
    let policies = summary["policies"].as_array().unwrap();
    let [alone, filled] = policies.as_slice() else { panic!("two policies") };
    assert!(alone["answers_compared"].as_u64().unwrap() > 0, "{alone}");
    assert_eq!(alone["tokens_hash"], filled["tokens_hash"]);
}

#[test]
fn real_kernels_give_the_same_answers_under_every_policy() {
    let summary = summary(&["--device", "cpu", "--duration", "3s", "--policy", "static,slice-fill"]);
    assert_eq!(summary["measured"], true);
    let policies = summary["policies"].as_array().unwrap();
    let [alone, filled] = policies.as_slice() else { panic!("two policies") };
    assert!(alone["tokens_hash"].is_string() && alone["answers_compared"].as_u64().unwrap() > 0, "{alone}");
    assert_eq!(alone["tokens_hash"], filled["tokens_hash"]);
    assert_eq!(alone["answers_compared"], filled["answers_compared"]);
    assert_eq!((&alone["memory_violations"], &filled["memory_violations"]), (&0.into(), &0.into()));
}
