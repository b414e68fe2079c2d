//! The files that show a replay: the table, the trace and the page.
//!
//! Oracle tests: what is written is read back with an independent parser and compared with the input.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io;

use proptest::prelude::*;
use serde_json::Value;
use slicescheduler::report::{
    CoverageFigures, DecisionFigures, DeviceLabel, LatencyFigures, MemorySample, PolicySummary, RunRecord, SecondUse,
    Span, SpanKind, Summary, TenantLabel, TenantSummary, html, perfetto, table,
};
use slicescheduler_gmg::tenant::Class;
use slicescheduler_gmg::units::Nanos;

const HOSTILE: &str = "</script><script>alert(\"1\")</script>'&";

fn tenant(name: &str, class: &str, tokens: f64) -> TenantSummary {
    TenantSummary {
        name: name.into(),
        class: class.into(),
        sla_violation_rate: if class == "best-effort" { 0.0 } else { 0.0312 },
        ttft_ms: LatencyFigures { p50: 81.3, p99: 377.2 },
        tpot_ms: LatencyFigures { p50: 9.13, p99: 31.75 },
        token_throughput: tokens,
        arrived: 12_345,
        completed: 12_300,
        preemptions: 3,
        prefix_cache: None,
    }
}

fn policy(name: &str, factor: f64) -> PolicySummary {
    PolicySummary {
        name: name.into(),
        token_throughput: 86_000.0 * factor,
        input_token_throughput: 80_000.0 * factor,
        output_token_throughput: 6_000.0 * factor,
        flop_weighted_throughput: 1_376.0 * factor,
        goodput: 85_000.0 * factor,
        sla_violation_rate: 0.0312,
        tenants: vec![tenant("chat", "latency-sensitive", 40_000.0), tenant("batch", "best-effort", 46_000.0 * factor)],
        memory_violations: 0,
        busy_share: 0.412,
        idle_slice_recovery: 0.873,
        peak_memory_gib: 71.2,
        forecast_peak_memory_gib: None,
        recalls: 5_120,
        decisions: 123_456,
        decision_us: DecisionFigures { p50: 1.25, p99: 17.5, mean: 2.0 },
        what_ifs: 77_777,
        sim_ops_per_ms: 81_234.0,
        sim_entries_per_ms: 9_876.0,
        wall_s: 3.25,
        answers_compared: None,
        tokens_hash: None,
        predictions: None,
        forecast_coverage: Some(CoverageFigures {
            measured: 0.25,
            interpolated: 0.5,
            extrapolated: 0.125,
            farthest_percent: 40,
            modelled: 0.125,
        }),
    }
}

fn summary(policies: Vec<PolicySummary>) -> Summary {
    Summary {
        schema: 1,
        measured: false,
        scenario: "default".into(),
        seed: 7,
        duration_s: 600.0,
        rate_scale: 1.5,
        core_scaling: None,
        policies,
    }
}

fn span(device: u32, tenant: u32, start: u64, length: u64) -> Span {
    Span {
        device,
        tenant,
        start: Nanos(start),
        finish: Nanos(start + length),
        kind: SpanKind::Decode,
        guest: false,
        recalled: false,
        operators: 291,
        tokens: 17,
    }
}

fn run(policy: PolicySummary) -> RunRecord {
    RunRecord {
        tenants: vec![
            TenantLabel { name: "chat".into(), class: Class::LatencySensitive },
            TenantLabel { name: "batch".into(), class: Class::BestEffort },
        ],
        devices: vec![
            DeviceLabel { name: "gpu0".into(), owner: Some(0), usable: 72 << 30 },
            DeviceLabel { name: "gpu1".into(), owner: None, usable: 72 << 30 },
        ],
        seconds: vec![vec![SecondUse { owner_us: 500_000, guest_us: 250_000 }; 3]; 2],
        slices: Vec::new(),
        memory: vec![
            MemorySample { at: Nanos(0), device: 0, bytes: [16 << 30, 0, 1 << 20, 0, 0] },
            MemorySample { at: Nanos(1_500_000_001), device: 1, bytes: [16 << 30, 5 << 30, 0, 0, 0] },
        ],
        spans: vec![
            Span { kind: SpanKind::Prefill, ..span(0, 0, 1_000_000_007, 12_345_678) },
            Span { guest: true, recalled: true, operators: 12, ..span(0, 1, 1_020_000_000, 999) },
            span(1, 1, 1_000_000_000, 9_000_000),
        ],
        detail: (Nanos::secs(1), Nanos::secs(2)),
        late: Vec::new(),
        summary: policy,
    }
}

fn trace_of(runs: &[RunRecord]) -> Value {
    let mut bytes = Vec::new();
    perfetto::write(runs, &mut bytes).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

fn events<'a>(trace: &'a Value, phase: &'a str) -> impl Iterator<Item = &'a Value> {
    trace["traceEvents"].as_array().unwrap().iter().filter(move |event| event["ph"] == phase)
}

fn page_of(summary: &Summary, runs: &[RunRecord]) -> String {
    let mut bytes = Vec::new();
    html::write(summary, runs, &mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// The data that the page's script draws.
fn data_of(page: &str) -> Value {
    let opening = "<script type=\"application/json\" id=\"data\">";
    let from = page.find(opening).unwrap() + opening.len();
    let to = from + page[from..].find("</script>").unwrap();
    serde_json::from_str(&page[from..to]).unwrap()
}

#[test]
fn a_trace_has_one_event_per_span_and_loses_no_nanosecond() {
    let runs = [run(policy("static", 1.0)), run(policy("slice-fill", 2.2))];
    let trace = trace_of(&runs);
    assert_eq!(events(&trace, "X").count(), 6);
    let of_second: Vec<_> = events(&trace, "X").filter(|event| event["pid"] == 2).collect();
    for (event, span) in of_second.iter().zip(&runs[1].spans) {
        let nanos = |field: &str| (event[field].as_f64().unwrap() * 1e3).round() as u64;
        assert_eq!(nanos("ts"), span.start.get());
        assert_eq!(nanos("dur"), span.finish.get() - span.start.get());
        assert_eq!(event["tid"], [5, 6][span.device as usize]);
        assert_eq!(event["args"]["tokens"], span.tokens);
        assert_eq!(event["args"]["operators"], span.operators);
        assert_eq!(event["args"]["guest"], span.guest);
        assert_eq!(event["args"]["recalled"], span.recalled);
    }
    let names: Vec<_> = of_second.iter().map(|event| event["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["chat prefill", "batch decode", "batch decode"]);
}

#[test]
fn a_trace_names_policies_as_processes_and_devices_as_threads() {
    let trace = trace_of(&[run(policy("static", 1.0)), run(policy("slice-fill", 2.2))]);
    let named = |what: &str| -> Vec<(u64, Option<u64>, String)> {
        let named = events(&trace, "M").filter(|event| event["name"] == what);
        named
            .map(|event| {
                let name = event["args"]["name"].as_str().unwrap().to_owned();
                (event["pid"].as_u64().unwrap(), event["tid"].as_u64(), name)
            })
            .collect()
    };
    assert_eq!(named("process_name"), [(1, None, "static".into()), (2, None, "slice-fill".into())]);
    let threads = named("thread_name");
    let of_static = [(1, Some(3), "gpu0 (chat)".into()), (1, Some(4), "gpu1".into())];
    assert_eq!(threads[..2], of_static);
    assert_eq!(threads[2..], [(2, Some(5), "gpu0 (chat)".into()), (2, Some(6), "gpu1".into())]);
}

#[test]
fn a_trace_counts_the_kinds_of_memory_that_are_ever_used() {
    let trace = trace_of(&[run(policy("static", 1.0))]);
    let counters: Vec<_> = events(&trace, "C").collect();
    assert_eq!(counters.len(), 2);
    assert_eq!(counters[1]["name"], "gpu1 memory, bytes");
    assert_eq!(counters[1]["ts"].as_f64().unwrap(), 1_500_000.001);
    let series = counters[1]["args"].as_object().unwrap();
    assert_eq!(series.len(), 3);
    assert_eq!(series["weights"], 16u64 << 30);
    assert_eq!(series["kv"], 5u64 << 30);
    assert_eq!(series["activations"], 0);
}

#[test]
fn a_trace_of_nothing_is_a_trace() {
    assert_eq!(trace_of(&[])["traceEvents"].as_array().unwrap().len(), 0);
    let bare = RunRecord {
        tenants: Vec::new(),
        devices: Vec::new(),
        seconds: Vec::new(),
        memory: Vec::new(),
        spans: Vec::new(),
        ..run(policy("static", f64::NAN))
    };
    let trace = trace_of(&[bare]);
    assert!(trace["traceEvents"].as_array().unwrap().iter().all(|event| event["ph"] == "M"));
}

#[test]
fn a_full_disk_is_an_error() {
    struct Full;
    impl io::Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let runs = [run(policy("static", 1.0))];
    assert_eq!(perfetto::write(&runs, &mut Full).unwrap_err().kind(), io::ErrorKind::StorageFull);
    let error = html::write(&summary(vec![policy("static", 1.0)]), &runs, &mut Full).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
}

proptest! {
    #[test]
    fn any_run_gives_valid_json_with_every_span(
        names in proptest::collection::vec(any::<String>(), 1..4),
        spans in proptest::collection::vec(
            (any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>(), any::<bool>(), any::<bool>(), any::<u32>()),
            0..50,
        ),
        samples in proptest::collection::vec((any::<u64>(), 0u32..5, any::<[u64; 5]>()), 0..50),
    ) {
        let mut odd = run(policy(&names[0], f64::INFINITY));
        odd.tenants = names.iter().map(|name| TenantLabel { name: name.clone(), class: Class::BestEffort }).collect();
        odd.spans = spans
            .iter()
            .map(|&(device, tenant, start, finish, guest, recalled, tokens)| Span {
                device: device % 3,
                tenant: tenant % 5,
                start: Nanos(start),
                finish: Nanos(finish),
                kind: SpanKind::Prefill,
                guest,
                recalled,
                operators: tokens,
                tokens,
            })
            .collect();
        odd.memory =
            samples.iter().map(|&(at, device, bytes)| MemorySample { at: Nanos(at), device, bytes }).collect();
        odd.memory.sort_by_key(|sample| sample.at);
        let trace = trace_of(std::slice::from_ref(&odd));
        prop_assert_eq!(events(&trace, "X").count(), spans.len());
        let data = data_of(&page_of(&summary(vec![odd.summary.clone()]), std::slice::from_ref(&odd)));
        prop_assert_eq!(data["runs"][0]["name"].as_str().unwrap(), names[0].as_str());
    }
}

#[test]
fn the_page_draws_what_was_recorded() {
    let runs = [run(policy("static", 1.0)), run(policy("slice-fill", 2.2))];
    let page = page_of(&summary(runs.iter().map(|run| run.summary.clone()).collect()), &runs);
    let data = data_of(&page);
    assert_eq!(data["tenants"], serde_json::json!(["chat", "batch"]));
    let second = &data["runs"][1];
    assert_eq!(second["detail"], serde_json::json!([1_000_000, 2_000_000]));
    assert_eq!(second["devices"][1], serde_json::json!({ "name": "gpu1", "owner": -1 }));
    // (start after the last, duration) in microseconds, tenant * 8 + guest 2 + decode 1 + recalled 4.
    assert_eq!(second["spans"][0], serde_json::json!([0, 12_345, 0, 291, 17, 20_000, 0, 8 + 1 + 2 + 4, 12, 17]));
    assert_eq!(second["spans"][1], serde_json::json!([0, 9_000, 8 + 1, 291, 17]));
    assert_eq!(second["use"][0], serde_json::json!([500, 250, 500, 250, 500, 250]));
    let unit = second["unit"].as_u64().unwrap();
    assert_eq!(second["usable"][0].as_u64().unwrap(), (72 << 30) / unit);
    let kv = second["memory"][1][2].as_u64().unwrap() * unit;
    assert!((5u64 << 30).abs_diff(kv) <= unit, "{kv} bytes");
    for text in ["2.20x", "189,200", "3.12 %", "9.13 / 31.8", "<strong>simulated</strong>", "arrival + TTFT + i * TPOT"]
    {
        assert!(page.contains(text), "{text} is missing");
    }
}

#[test]
fn the_page_refers_to_nothing_outside_itself() {
    let runs = [run(policy("static", 1.0))];
    let page = page_of(&summary(vec![policy("static", 1.0)]), &runs);
    for reference in ["http:", "https:", "//cdn", "src=", "href=", "@import", "url(", "import(", "fetch("] {
        assert!(!page.contains(reference), "the page contains {reference}");
    }
}

#[test]
fn names_cannot_break_out_of_the_page() {
    let mut hostile = policy(HOSTILE, 1.0);
    hostile.tenants[0].name = HOSTILE.into();
    hostile.tenants[1].class = HOSTILE.into();
    hostile.tokens_hash = Some("<b>".into());
    let mut record = run(hostile.clone());
    record.tenants[0].name = HOSTILE.into();
    record.devices[0].name = HOSTILE.into();
    let mut figures = summary(vec![hostile.clone(), hostile]);
    figures.scenario = HOSTILE.into();
    let page = page_of(&figures, &[record]);
    assert!(!page.contains("<script>alert") && !page.contains("alert(\"1\")") && !page.contains("<b>\"<"));
    assert!(page.contains("&lt;/script&gt;&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&#39;&amp;"));
    assert_eq!(page.matches("</script>").count(), 2);
    let data = data_of(&page);
    assert_eq!(data["runs"][0]["name"], HOSTILE);
    assert_eq!(data["runs"][0]["devices"][0]["name"], HOSTILE);
}

#[test]
fn a_page_of_nothing_has_no_numbers_that_are_none() {
    let mut empty = policy("static", f64::NAN);
    empty.tenants[0].token_throughput = f64::INFINITY;
    empty.tenants[0].sla_violation_rate = f64::NAN;
    empty.decision_us = DecisionFigures { p50: f64::NAN, p99: f64::NEG_INFINITY, mean: f64::NAN };
    let mut record = run(empty.clone());
    (record.devices, record.spans, record.memory) = (Vec::new(), Vec::new(), Vec::new());
    let mut figures = summary(vec![empty.clone(), empty]);
    figures.duration_s = f64::NAN;
    for page in [page_of(&figures, &[record]), page_of(&summary(Vec::new()), &[])] {
        let body = &page[page.find("<main>").unwrap()..page.find("</main>").unwrap()];
        for none in ["NaN", "nan%", ">inf", "inf%", "inf "] {
            assert!(!body.contains(none), "the page contains {none}");
        }
        assert!(data_of(&page)["runs"].is_array());
    }
}

#[test]
fn a_long_run_still_makes_a_small_page() {
    let mut long = run(policy("slice-fill", 1.0));
    long.devices = (0..1_024)
        .map(|device| DeviceLabel { name: format!("gpu{device}"), owner: Some(0), usable: 72 << 30 })
        .collect();
    long.spans = (0..600_000u32).map(|n| span(n % 64, n % 2, u64::from(n) * 77_777, 1_234_567)).collect();
    long.seconds = vec![vec![SecondUse { owner_us: 412_345, guest_us: 512_345 }; 3_600]; 1_024];
    long.memory = (0..400_000u32)
        .map(|n| MemorySample { at: Nanos::ms(u64::from(n) * 9), device: n % 1_024, bytes: [1 << 34; 5] })
        .collect();
    let runs = vec![long; 3];
    let page = page_of(&summary(runs.iter().map(|run| run.summary.clone()).collect()), &runs);
    assert!(page.len() < 8_000_000, "{} bytes", page.len());
    let data = data_of(&page);
    let kept = data["runs"][2]["spans"].as_array().unwrap().iter().map(|spans| spans.as_array().unwrap().len() / 5);
    assert_eq!(kept.sum::<usize>(), 100_000 / 3);
    assert!(page.contains("The detail window ends early") && page.contains("The first 64 of 1,024 devices"));
}

#[test]
fn a_table_says_where_its_figures_are_from() {
    let mut figures = summary(vec![policy("static", 1.0)]);
    assert_eq!(
        table::render(&figures).lines().next(),
        Some("simulated: default, seed 7, window 600 s, rate scale 1.5")
    );
    figures.measured = true;
    assert!(table::render(&figures).starts_with("measured: default"));
}

#[test]
fn a_table_compares_every_policy_with_the_first() {
    let text =
        table::render(&summary(vec![policy("static", 1.0), policy("idle-priority", 1.5), policy("slice-fill", 2.2)]));
    let row = |label: &str| -> Vec<&str> {
        let line = text.lines().find(|line| line.trim_start().starts_with(label)).unwrap();
        line.trim_start()[label.len()..].split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
    };
    assert_eq!(row("token throughput, tokens/s"), ["86,000", "129,000 1.50x", "189,200 2.20x"]);
    assert_eq!(row("input"), ["80,000", "120,000 1.50x", "176,000 2.20x"]);
    assert_eq!(row("SLA violations, worst tenant"), ["3.12 %"; 3]);
    assert_eq!(row("decision p50 / p99, us"), ["1.25 / 17.5"; 3]);
    assert_eq!(row("memory violations"), ["0"; 3]);
    assert_eq!(row("forecast time beyond samples"), ["12.5 %"; 3]);
    assert_eq!(row("chat (latency-sensitive)"), ["static", "idle-priority", "slice-fill"]);
    assert_eq!(row("TTFT p50 / p99, ms"), ["81.3 / 377"; 3]);
    assert!(!text.contains("hash"));
}

#[test]
fn the_columns_of_a_table_are_aligned_and_fit_the_terminal() {
    let mut policies: Vec<_> = (0..7).map(|n| policy(&format!("policy-number-{n}"), 1.0 + f64::from(n))).collect();
    policies[3].tenants.remove(0);
    policies[4].tenants[1].name = "a name\tthat is much longer than any column of a terminal can be".into();
    let text = table::render(&summary(policies));
    assert!(text.lines().all(|line| line.chars().count() <= table::WIDTH), "{text}");
    for n in 0..7 {
        let name = format!("policy-number-{n}");
        let ends: Vec<usize> =
            text.lines().filter_map(|line| line.find(&name).map(|at| line[..at].chars().count())).collect();
        assert_eq!(ends.len(), 4, "one heading for the policies and one per tenant");
        assert!(ends.iter().all(|end| *end == ends[0]), "{text}");
    }
}

#[test]
fn a_table_prints_a_dash_for_what_is_not_a_number() {
    let mut figures = summary(vec![policy("static", 0.0), policy("slice-fill", f64::NAN)]);
    figures.policies[0].busy_share = f64::INFINITY;
    let text = table::render(&figures);
    assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    let busy = text.lines().find(|line| line.starts_with("device busy share")).unwrap();
    assert!(busy.contains(" - "), "{busy}");
    let batch = text.split("batch (best-effort)").nth(1).unwrap();
    assert!(batch.lines().nth(1).unwrap().ends_with('-'), "a best-effort tenant has no service level: {batch}");
    assert!(table::render(&summary(Vec::new())).ends_with("no policy ran\n"));
}
