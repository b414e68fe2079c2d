//! Scenario files: what they mean, and how a wrong one is refused.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use slicescheduler::scenario::{
    Class, DeviceKind, Layout, LendingMode, OptionValue, Scenario, ScenarioError, Slo, Source, Workload,
};
use slicescheduler::workload::{ArrivalRecord, Preset, Shift, TraceFormat};
use slicescheduler_gmg::id::DeviceId;
use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};

const SMALL: &str = r#"seed = 7
duration = "90s"
warm_up = "10s"
rate_scale = 1.5
policies = ["static", { name = "slice-fill", options = { horizon = "2s", candidates = 4, recall = true } }]

[cluster]
usable = 0.85
network = { bandwidth = "50GB/s", latency = "5us" }

[[cluster.nodes]]
count = 2
devices = 2
kind = "h100-sxm"
nvlink = { bandwidth = "400GB/s" }
host_memory = "1TiB"

[[tenants]]
name = "chat"
class = "latency-sensitive"
model = { name = "mine", layers = 16, hidden = 2048, heads = 16, kv_heads = 4, intermediate = 5632, vocab = 32000 }
slo = { ttft = "1s", tpot = "100ms" }
weight = 3
lending = "strict"
container = { devices = [0, 2], layout = "replicas" }
workload = { generator = "azure-code", rate_scale = 2, seed = 5 }

[[tenants]]
name = "batch"
class = "best-effort"
model = "llama3-8b"
container = { devices = [3] }
workload = { backlog = "azure-conv", window = 32, output_scale = 0.5 }

[engine]
token_budget = 4096
"#;

fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    Scenario::parse(text, Path::new("small.toml"), None)
}

/// The message for [`SMALL`] with `old` replaced by `new`.
fn refusal(old: &str, new: &str) -> String {
    assert!(SMALL.contains(old), "{old} is not in the scenario");
    parse(&SMALL.replacen(old, new, 1)).expect_err(new).to_string()
}

fn arrivals(scenario: &Scenario, tenant: usize) -> Vec<ArrivalRecord> {
    match scenario.requests(tenant).unwrap().unwrap() {
        Source::Arrivals(records) => records.map(Result::unwrap).collect(),
        Source::Backlog { .. } => panic!("tenant {tenant} has a backlog"),
    }
}

#[test]
fn a_scenario_is_read_with_its_units_and_defaults() {
    let scenario = parse(SMALL).unwrap();
    assert_eq!((scenario.seed, scenario.duration, scenario.warm_up), (7, Nanos::secs(90), Nanos::secs(10)));
    assert_eq!(scenario.cluster.network.bandwidth, Some(Bandwidth::gb_per_s(50)));
    assert_eq!(scenario.cluster.network.latency, Some(Nanos::us(5)));
    let node = &scenario.cluster.nodes[1];
    assert_eq!((node.devices, node.kind, node.host_memory), (2, DeviceKind::H100Sxm, Some(Bytes::gib(1024))));
    assert_eq!((node.nvlink.latency, node.pcie.bandwidth), (None, None));
    let devices: Vec<_> = scenario.cluster.devices().map(|(id, node, _)| (id.0, node)).collect();
    assert_eq!(devices, [(0, 0), (1, 0), (2, 1), (3, 1)]);

    let [chat, batch] = &scenario.tenants[..] else { panic!("two tenants") };
    assert_eq!((chat.class, chat.weight, chat.lending), (Class::LatencySensitive, 3, LendingMode::Strict));
    assert_eq!(chat.slo, Some(Slo { ttft: Nanos::secs(1), tpot: Nanos::ms(100) }));
    assert_eq!(chat.container.devices, [DeviceId(0), DeviceId(2)]);
    let model = chat.model.dense().unwrap();
    assert_eq!((&*model.name, model.head_dim, model.kv_heads), ("mine", 128, 4));
    assert_eq!((batch.slo, batch.weight, batch.lending), (None, 1, LendingMode::SloSlack));
    assert!(matches!(batch.workload, Workload::Backlog { preset: Preset::AzureConv, window: 32, .. }));

    assert_eq!(scenario.policies[0].name, "static");
    let options = &scenario.policies[1].options;
    assert_eq!(options["horizon"], OptionValue::Text("2s".into()));
    assert_eq!(options["candidates"], OptionValue::Integer(4));
    assert_eq!(options["recall"], OptionValue::Bool(true));
    assert_eq!((scenario.engine.token_budget, scenario.engine.block_tokens), (4096, 16));
}

const SPREAD: &str = r#"
duration = "10s"
policies = ["static"]
[cluster]
[[cluster.nodes]]
devices = 4
kind = "h100-sxm"
[[cluster.nodes]]
devices = 2
kind = "a100-sxm-80"
[[tenants]]
name = "big"
class = "best-effort"
model = "yi-34b"
container = { devices = [3, 0, 2, 1], layout = "tensor-parallel", ranks = 2 }
workload = { backlog = "azure-conv" }
"#;

#[test]
fn a_model_is_spread_over_devices_where_it_divides_and_they_are_alike() {
    let scenario = parse(SPREAD).unwrap();
    let container = &scenario.tenants[0].container;
    assert_eq!((container.layout, container.devices.clone()), (Layout::Tensor(2), (0..4).map(DeviceId).collect()));
    let layout = |old: &str, new: &str| parse(&SPREAD.replacen(old, new, 1)).unwrap().tenants[0].container.layout;
    assert_eq!(layout(", ranks = 2", ""), Layout::Tensor(4));
    assert_eq!(layout("ranks = 2", "ranks = 1"), Layout::Replicas);
    for (old, new, place, message) in [
        ("ranks = 2", "ranks = 3", "tenants[0].container.ranks", "a divisor of the 4 devices of the container"),
        ("ranks = 2", "ranks = 0", "tenants[0].container.ranks", "a divisor of the 4 devices of the container"),
        ("\"tensor-parallel\"", "\"replicas\"", "tenants[0].container.ranks", "set only beside layout"),
        ("\"tensor-parallel\"", "\"tensor\"", "", "replicas or tensor-parallel"),
        (
            "\"yi-34b\"",
            "\"yi-34b\"\nprefix_caching = true",
            "tenants[0].prefix_caching is true",
            "false for a model that is spread over devices",
        ),
        ("[3, 0, 2, 1]", "[2, 3, 4, 5]", "", ""),
        (
            "[3, 0, 2, 1], layout = \"tensor-parallel\", ranks = 2",
            "[3, 4], layout = \"tensor-parallel\"",
            "tenants[0].container.devices is 4",
            "2 devices of one kind on one node",
        ),
        (
            "[3, 0, 2, 1], layout = \"tensor-parallel\", ranks = 2",
            "[0, 1, 2], layout = \"tensor-parallel\"",
            "tenants[0].container.ranks is 3",
            "56 heads",
        ),
    ] {
        let read = parse(&SPREAD.replacen(old, new, 1));
        if message.is_empty() {
            assert!(read.is_ok(), "{new}: each pair is on a node of its own");
            continue;
        }
        let refused = read.expect_err(new).to_string();
        assert!(refused.contains(place) && refused.contains(message), "{new}: {refused}");
    }
    let text = SPREAD.replacen("h100-sxm", "cpu", 1);
    let refused = parse(&text).unwrap_err().to_string();
    assert!(refused.contains("accelerators"), "{refused}");
}

#[test]
fn a_tenant_has_a_prefix_cache_if_it_asks_for_one_and_its_prompts_have_beginnings() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("prefixes-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("t"), "").unwrap();
    let generator = "generator = \"azure-code\", rate_scale = 2, seed = 5";
    let of = |line: &str, format: &str| {
        let traced = SMALL.replacen(generator, &format!("trace = \"t\", format = {format:?}"), 1);
        let scenario = Scenario::parse(&traced.replacen("weight = 3", line, 1), Path::new("small.toml"), Some(&folder));
        scenario.map(|scenario| scenario.tenants[0].prefix_caching).map_err(|error| error.to_string())
    };
    let [absent, off, on] = ["weight = 3", "prefix_caching = false", "prefix_caching = true"];
    assert_eq!([of(absent, "mooncake"), of(off, "mooncake"), of(on, "mooncake")], [Ok(false), Ok(false), Ok(true)]);
    assert_eq!(of(off, "azure"), Ok(false));
    let expected = "small.toml:23:18: tenants[0].prefix_caching is true: expected false for a workload that is no trace \
                    of format \"mooncake\", whose prompts share nothing";
    assert_eq!(of(on, "azure").unwrap_err(), expected);
    assert_eq!(refusal("weight = 3", on), expected);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_stands_in_for_a_client_keeps_its_rate_and_its_shift() {
    let generated = |keys: &str| {
        let workload = format!(
            "clients = \"none.tar.xz\", like = \"azure-conv\", client = 7, stand_in = \"azure-code\", rate_scale = 0.5{keys}"
        );
        let text = SMALL.replacen("generator = \"azure-code\", rate_scale = 2, seed = 5", &workload, 1);
        let (scenario, stand_ins) = Scenario::parse_or_generate(&text, Path::new("small.toml"), None).unwrap();
        assert_eq!(stand_ins, ["none.tar.xz"]);
        match &scenario.tenants[0].workload {
            Workload::Generated { preset: Preset::AzureCode, rate_scale, seed, .. } => {
                assert_eq!(*rate_scale, 0.5);
                *seed
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!([generated(""), generated(", seed = 3"), generated(", shift = \"0%\"")], [None, Some(3), None]);
    // A shift of 10 % counts as 100,000 millionths.
    assert_eq!(generated(", shift = \"10%\", seed = 3"), Some(100_003));
    assert_eq!(generated(", shift = \"10%\""), Some(100_007));
}

#[test]
fn the_default_workload_is_four_tenants_on_eight_h100() {
    let scenario = Scenario::embedded().unwrap();
    assert_eq!(scenario.duration, Nanos::secs(600));
    assert!(scenario.cluster.devices().all(|(_, _, kind)| kind == DeviceKind::H100Sxm));
    assert_eq!(scenario.cluster.devices().count(), 8);
    let slo = Slo { ttft: Nanos::ms(400), tpot: Nanos::ms(40) };
    let presets = [Preset::AzureCode, Preset::AzureCode, Preset::AzureConv];
    for (tenant, expected) in scenario.tenants.iter().zip(presets) {
        assert_eq!((tenant.slo, tenant.lending), (Some(slo), LendingMode::SloSlack));
        assert_eq!(tenant.container.devices.len(), 2);
        assert!(matches!(tenant.workload, Workload::Generated { preset, .. } if preset == expected));
    }
    let batch = &scenario.tenants[3];
    assert!(matches!(batch.workload, Workload::Backlog { preset: Preset::AzureConv, window: 64, .. }));
    assert_eq!(batch.class, Class::BestEffort);
    let names: Vec<_> = scenario.policies.iter().map(|policy| policy.name.as_str()).collect();
    assert_eq!(names, ["static", "idle-priority", "slice-fill"]);
}

#[test]
fn the_cpu_workload_is_two_tenants_on_two_lanes() {
    let scenario = Scenario::embedded_cpu().unwrap();
    assert!(scenario.cluster.devices().all(|(_, _, kind)| kind == DeviceKind::Cpu));
    let names: Vec<_> = scenario.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
    assert_eq!(names, ["chat", "batch"]);
    assert!(scenario.tenants.iter().all(|tenant| tenant.model.name() == "tiny"));
    let chat = arrivals(&scenario, 0);
    assert!(chat.len() > 100);
    let context = scenario.tenants[0].model.dense().unwrap().max_context;
    assert!(chat.iter().all(|request| request.prompt + request.output <= context));
    let Source::Backlog { requests, .. } = scenario.requests(1).unwrap().unwrap() else { panic!("no backlog") };
    assert!(requests.take(10_000).all(|(prompt, output)| prompt + output <= context));
}

#[test]
fn two_tenants_with_one_generator_get_different_requests_and_a_scenario_always_the_same() {
    let scenario = Scenario::embedded().unwrap();
    let [first, second] = [0, 1].map(|tenant| arrivals(&scenario, tenant));
    assert_ne!(first, second);
    assert_eq!(first, arrivals(&Scenario::embedded().unwrap(), 0));
    assert!(first.last().unwrap().at < scenario.duration);
    let reseeded = Scenario { seed: 2, ..scenario };
    assert_ne!(first, arrivals(&reseeded, 0));
}

#[test]
fn a_rate_scale_multiplies_that_of_the_tenant() {
    let scenario = parse(SMALL).unwrap();
    let plain = Scenario { rate_scale: 0.5, duration: Nanos::secs(270), ..scenario.clone() };
    let (fast, slow) = (arrivals(&scenario, 0), arrivals(&plain, 0));
    assert_eq!(fast.len(), slow.len());
    assert!(fast.iter().zip(&slow).all(|(fast, slow)| (fast.at.0 * 3).abs_diff(slow.at.0) <= 3));
}

#[test]
fn a_backlog_scales_its_lengths_and_does_not_end() {
    let scenario = parse(SMALL).unwrap();
    let Source::Backlog { requests, window } = scenario.requests(1).unwrap().unwrap() else { panic!("no backlog") };
    assert_eq!(window, 32);
    let outputs: Vec<_> = requests.take(20_000).map(|(_, output)| f64::from(output)).collect();
    let mean = outputs.iter().sum::<f64>() / 20_000.0;
    assert!((mean / (211.1 / 2.0) - 1.0).abs() < 0.03, "{mean}");
    assert!(scenario.requests(2).unwrap().is_none());
}

#[test]
fn wrong_values_are_refused_with_place_key_and_what_would_be_right() {
    for (old, new, message) in [
        ("\"90s\"", "\"0s\"", "small.toml:2:12: duration is zero: expected a time above zero"),
        ("\"10s\"", "\"2m\"", "small.toml:3:11: warm_up is 120.000 s: expected less than the duration (90.000 s)"),
        (
            "usable = 0.85",
            "usable = nan",
            "small.toml:8:10: cluster.usable is NaN: expected a share above 0, at most 1",
        ),
        (
            "devices = 2\n",
            "devices = 0\n",
            "small.toml:13:11: cluster.nodes[0].devices is 0: expected a whole number of at least 1",
        ),
        (
            "count = 2",
            "count = 4000000000",
            "small.toml:13:11: cluster.nodes[0] is 4000000000 x 2 devices: expected at most 1024 devices in the cluster",
        ),
        (
            "\"400GB/s\"",
            "\"0GB/s\"",
            "small.toml:15:24: cluster.nodes[0].nvlink.bandwidth is zero: expected more than zero",
        ),
        (
            "\"5us\"",
            "\"100000h\"",
            "small.toml:9:45: cluster.network.latency is 360000000.000 s: expected at most 1.000 s",
        ),
        (
            "heads = 16",
            "heads = 0",
            "small.toml:21:62: tenants[0].model.heads is 0: expected a whole number from 1 to 16777216",
        ),
        (
            "kv_heads = 4",
            "kv_heads = 5",
            "small.toml:21:77: tenants[0].model.kv_heads is 5: expected a divisor of heads (16)",
        ),
        (
            "hidden = 2048",
            "hidden = 2050",
            "small.toml:21:48: tenants[0].model.hidden is 2050: expected a multiple of heads (16), or head_dim",
        ),
        (
            "slo = { ttft = \"1s\", tpot = \"100ms\" }\n",
            "",
            "small.toml:19:8: tenants[0].slo is missing: expected { ttft = \"400ms\", tpot = \"40ms\" } or the like for a latency-sensitive tenant, or relative_slo",
        ),
        (
            "[0, 2]",
            "[0, 4]",
            "small.toml:25:29: tenants[0].container.devices is 4: expected device numbers from 0 to 3",
        ),
        ("[0, 2]", "[]", "small.toml:25:25: tenants[0].container.devices is empty: expected at least one device"),
        (
            "[3]",
            "[2]",
            "small.toml:32:26: tenants[1].container.devices is 2: expected a device in no other container (it is in that of tenant \"chat\")",
        ),
        (
            "[3]",
            "[3, 3]",
            "small.toml:32:29: tenants[1].container.devices is 3: expected a device in no other container (it is in that of tenant \"batch\")",
        ),
        (
            "\"batch\"",
            "\"chat\"",
            "small.toml:29:8: tenants[1].name is \"chat\": expected a name of its own (tenants[0] has it)",
        ),
        (
            "\"static\"",
            "\"statik\"",
            "small.toml:5:13: policies[0] is \"statik\": expected one of static, idle-priority, round-robin, jsq-edf, orion, conserve, \
             hygen, clockwork, muxserve, aegaeon, alpaserve, container-loaning, slice-fill",
        ),
        ("\"slice-fill\"", "\"static\"", "small.toml:5:23: policies[1] is \"static\": expected each policy once"),
        (
            "window = 32",
            "shift = \"50%\"",
            "small.toml:33:46: tenants[1].workload.shift is set: expected none beside backlog",
        ),
        (
            "backlog = \"azure-conv\", ",
            "",
            "small.toml:33:12: tenants[1].workload is none: expected one of trace, clients, generator and backlog",
        ),
        ("weight = 3", "weight = 0", "small.toml:23:10: tenants[0].weight is 0: expected a whole number of at least 1"),
        (
            "token_budget = 4096",
            "token_budget = 0",
            "small.toml:36:16: engine.token_budget is 0: expected a whole number of at least 1",
        ),
    ] {
        assert_eq!(refusal(old, new), message, "{new}");
    }
}

#[test]
fn values_of_a_wrong_form_are_refused_with_place_and_line() {
    for (old, new, message) in [
        (
            "\"90s\"",
            "90",
            "small.toml:2:12: invalid type: integer `90`, expected a time with its unit, such as \"400ms\", \"90s\" or \"1h\" (ns, us, ms, s, m, h), at most 584 years (in: duration = 90)",
        ),
        (
            "\"90s\"",
            "\"soon\"",
            "small.toml:2:12: invalid value: string \"soon\", expected a time with its unit, such as \"400ms\", \"90s\" or \"1h\" (ns, us, ms, s, m, h), at most 584 years (in: duration = \"soon\")",
        ),
        (
            "rate_scale = 1.5",
            "rate_scale = nan",
            "small.toml:4:14: invalid value: floating point `NaN`, expected a number from 0.0001 to 10000 (in: rate_scale = nan)",
        ),
        (
            "rate_scale = 1.5",
            "rate_scale = -inf",
            "small.toml:4:14: invalid value: floating point `-inf`, expected a number from 0.0001 to 10000 (in: rate_scale = -inf)",
        ),
        (
            "rate_scale = 1.5",
            "rate_scale = 0",
            "small.toml:4:14: invalid value: floating point `0.0`, expected a number from 0.0001 to 10000 (in: rate_scale = 0)",
        ),
        (
            "\"h100-sxm\"",
            "\"h100\"",
            "small.toml:14:8: invalid value: string \"h100\", expected a device: h100-sxm, a100-sxm-80, h200-sxm, l4, rtx-4090 or cpu (in: kind = \"h100\")",
        ),
        (
            "token_budget",
            "tokens",
            "small.toml:36:1: unknown field `tokens`, expected one of `token_budget`, `max_sequences`, `block_tokens` (in: tokens = 4096)",
        ),
        (
            "weight = 3",
            "wieght = 3",
            "small.toml:23:1: unknown field `wieght`, expected one of `name`, `class`, `model`, `slo`, `relative_slo`, `weight`, `lending`, `prefix_caching`, `container`, `workload` (in: wieght = 3)",
        ),
    ] {
        assert_eq!(refusal(old, new), message, "{new}");
    }
    assert!(refusal("seed = 7", "seed = -7").starts_with("small.toml:1:8: invalid value: integer `-7`, expected u64"));
    assert!(refusal("layers = 16", "depth = 16").contains("unknown field `depth`, expected one of `name`, `layers`"));
    assert!(refusal("duration = \"90s\"\n", "").contains("missing field `duration`"));
}

#[test]
fn a_best_effort_tenant_has_no_service_level_and_a_latency_sensitive_one_no_backlog() {
    let message = refusal("class = \"best-effort\"", "class = \"best-effort\"\nslo = { ttft = \"1s\", tpot = \"1s\" }");
    assert_eq!(message, "small.toml:31:7: tenants[1].slo is set: expected none for a best-effort tenant");
    let message = refusal("generator = \"azure-code\", rate_scale = 2,", "backlog = \"azure-code\",");
    assert_eq!(
        message,
        "small.toml:26:24: tenants[0].workload is a backlog: expected a trace or a generator for a latency-sensitive tenant"
    );
}

#[test]
fn a_trace_is_looked_for_in_the_data_folder_and_beside_the_scenario() {
    let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("scenario-{}", std::process::id()));
    let [beside, data] = ["beside", "data"].map(|name| root.join(name));
    fs::create_dir_all(beside.join("traces")).unwrap();
    fs::create_dir_all(&data).unwrap();
    let scenario_file = beside.join("s.toml");
    let text = SMALL.replace(
        "generator = \"azure-code\", rate_scale = 2, seed = 5",
        "trace = \"traces/t.csv\", format = \"azure\", shift = \"12s\"",
    );
    fs::write(&scenario_file, &text).unwrap();
    let load = |data_dir: Option<&Path>| Scenario::load(&scenario_file, data_dir);

    let message = load(Some(&data)).unwrap_err().to_string();
    for part in [
        ":26:22: tenants[0].workload.trace is \"traces/t.csv\": no such file",
        &data.join("traces/t.csv").display().to_string(),
        &data.join("t.csv").display().to_string(),
        &beside.join("traces/t.csv").display().to_string(),
    ] {
        assert!(message.contains(part), "{part} is not in {message}");
    }

    let trace = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:00,1,1\n2024-01-01 00:00:30,2,1\n";
    fs::write(beside.join("traces/t.csv"), trace).unwrap();
    let path = |scenario: &Scenario| match &scenario.tenants[0].workload {
        Workload::Trace { file, shift, .. } => {
            assert_eq!((file.format, *shift), (TraceFormat::Azure, Shift::Span(Nanos::secs(12))));
            file.path.clone()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(path(&load(Some(&data)).unwrap()), beside.join("traces/t.csv"));
    fs::write(data.join("t.csv"), trace).unwrap();
    let mut scenario = load(Some(&data)).unwrap();
    assert_eq!(path(&scenario), data.join("t.csv"));

    scenario.seed = 0;
    let times: Vec<_> = arrivals(&scenario, 0).iter().map(|record| (record.at, record.prompt)).collect();
    assert_eq!(times, [(Nanos::secs(12), 2), (Nanos::secs(12), 1)]);
    scenario.scale_rate(2.0).unwrap();
    assert_eq!((scenario.duration, scenario.warm_up, scenario.rate_scale), (Nanos::secs(45), Nanos::secs(5), 3.0));
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn a_caller_may_change_duration_rate_and_policies() {
    let mut scenario = parse(SMALL).unwrap();
    scenario.set_duration("30m").unwrap();
    scenario.scale_rate(2.0).unwrap();
    assert_eq!((scenario.duration, scenario.rate_scale), (Nanos::secs(1800), 3.0));
    scenario.set_policies(["slice-fill", "idle-priority"]).unwrap();
    let options: Vec<_> = scenario.policies.iter().map(|policy| policy.options.len()).collect();
    assert_eq!(options, [3, 0]);

    let before = scenario.clone();
    for (error, message) in [
        (scenario.set_duration("5s"), "duration is 5.000 s: expected more than the warm-up (10.000 s)"),
        (scenario.scale_rate(f64::NAN), "rate scale is NaN: expected a number from 0.0001 to 10000"),
        (scenario.scale_rate(-1.0), "rate scale is -1: expected a number from 0.0001 to 10000"),
        (
            scenario.set_policies(["fill"]),
            "policy is \"fill\": expected one of static, idle-priority, round-robin, jsq-edf, orion, conserve, \
             hygen, clockwork, muxserve, aegaeon, alpaserve, container-loaning, slice-fill",
        ),
        (scenario.set_policies(["static", "static"]), "policy is \"static\": expected each policy once"),
        (
            scenario.set_policies([]),
            "policy is empty: expected some of static, idle-priority, round-robin, jsq-edf, orion, conserve, \
             hygen, clockwork, muxserve, aegaeon, alpaserve, container-loaning, slice-fill",
        ),
    ] {
        assert_eq!(error.unwrap_err().to_string(), message);
    }
    assert!(
        scenario
            .set_duration("forever")
            .unwrap_err()
            .to_string()
            .starts_with("duration is \"forever\": expected a time")
    );
    assert_eq!(scenario, before);
}

#[test]
fn a_missing_scenario_is_named() {
    let message = Scenario::load(Path::new("no/such.toml"), None).unwrap_err().to_string();
    assert!(message.starts_with("no/such.toml: can not be read: "), "{message}");
}

#[test]
fn the_reference_of_scenario_files_lists_every_policy() {
    let reference = fs::read_to_string(examples().join("README.md")).unwrap();
    for policy in slicescheduler::scenario::POLICIES.iter() {
        assert!(reference.contains(&format!("`{policy}`")), "{policy} is missing");
    }
}

/// The folder of the example scenarios.
fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/scenarios")
}

#[test]
fn every_example_scenario_is_valid_once_its_traces_are_there() {
    let data = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("examples-{}", std::process::id()));
    fs::create_dir_all(&data).unwrap();
    for name in
        ["AzureLLMInferenceTrace_code.csv", "AzureLLMInferenceTrace_conv.csv", "mooncake_conversation_trace.jsonl"]
    {
        fs::write(data.join(name), "").unwrap();
    }
    let mut seen = 0;
    for entry in fs::read_dir(examples()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let scenario = Scenario::load(&path, Some(&data)).unwrap();
            assert!(scenario.tenants.iter().any(|tenant| tenant.class == Class::BestEffort), "{}", path.display());
            seen += 1;
        }
    }
    assert!(seen >= 5, "{seen} scenarios");
    fs::remove_dir_all(&data).unwrap();
}

#[test]
fn the_cpu_example_is_the_embedded_cpu_workload() {
    let example = Scenario::load(&examples().join("cpu.toml"), None).unwrap();
    assert_eq!(example, Scenario::embedded_cpu().unwrap());
}

#[test]
fn nesting_beyond_reason_is_refused() {
    for depth in [1, 100, 10_000, 100_000] {
        let brackets = "[".repeat(depth);
        for value in [&brackets, &brackets.replace('[', "{a=")] {
            assert!(parse(&format!("duration = {value}")).is_err());
        }
        assert!(parse(&format!("a{} = 1", ".a".repeat(depth))).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC{0,400}") {
        parse(&text).ok();
    }

    #[test]
    fn no_damage_to_a_valid_scenario_makes_the_parser_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<char>(), 0..3_u8), 1..6)
    ) {
        let mut characters: Vec<char> = SMALL.chars().collect();
        for (place, character, kind) in edits {
            let place = place.index(characters.len());
            match kind {
                0 => characters[place] = character,
                1 => drop(characters.remove(place)),
                _ => characters.insert(place, character),
            }
        }
        let text: String = characters.into_iter().collect();
        if let Err(error) = parse(&text) {
            prop_assert!(error.to_string().starts_with("small.toml"));
        }
    }

    #[test]
    fn no_number_in_a_valid_scenario_makes_the_parser_panic(place in any::<prop::sample::Index>(), number in any::<i64>()) {
        let numbers: Vec<_> = SMALL.match_indices(|c: char| c.is_ascii_digit()).collect();
        let (at, digit) = numbers[place.index(numbers.len())];
        let text = format!("{}{number}{}", &SMALL[..at], &SMALL[at + digit.len()..]);
        if let Ok(scenario) = parse(&text) {
            prop_assert!(scenario.cluster.nodes.len() <= 1 << 17);
        }
    }
}
