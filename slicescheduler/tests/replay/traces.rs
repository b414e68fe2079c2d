//! The production traces, where they are at hand: `$SLICESCHEDULER_DATA`, or `shared/data` beside
//! the workspace.

use std::path::{Path, PathBuf};

use slicescheduler::replay::{ReplayOptions, Silent, replay};
use slicescheduler::scenario::Scenario;

use crate::rig::POLICIES;

fn data() -> Option<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let given = std::env::var_os("SLICESCHEDULER_DATA").map(PathBuf::from);
    let data = given.unwrap_or_else(|| workspace.join("../shared/data"));
    if data.join("traces/AzureLLMInferenceTrace_code.csv").is_file() {
        return Some(data);
    }
    assert!(std::env::var_os("CI").is_none(), "no traces in {}", data.display());
    eprintln!("skipped: no traces in {}; set SLICESCHEDULER_DATA to the folder that holds traces/", data.display());
    None
}

#[test]
fn production_traces_run_under_every_policy_without_memory_violations() {
    let Some(data) = data() else { return };
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/scenarios/azure.toml");
    let mut scenario = Scenario::load(&file, Some(&data)).unwrap();
    scenario.set_duration("2m").unwrap();
    let (summary, runs) = replay(&scenario, "azure", &ReplayOptions::default(), &mut Silent).unwrap();
    assert_eq!(summary.policies.iter().map(|policy| policy.name.as_str()).collect::<Vec<_>>(), POLICIES);
    for policy in &summary.policies {
        assert_eq!(policy.memory_violations, 0, "{}", policy.name);
        assert!(policy.token_throughput > 10_000.0, "{}: {}", policy.name, policy.token_throughput);
        let arrived: Vec<u64> = policy.tenants.iter().map(|tenant| tenant.arrived).collect();
        assert!(arrived.iter().all(|&arrived| arrived > 50), "{}: {arrived:?}", policy.name);
        let same = summary.policies[0].tenants.iter().zip(&policy.tenants).take(3);
        same.for_each(|(first, tenant)| assert_eq!(first.arrived, tenant.arrived, "every policy sees the same trace"));
    }
    for run in &runs {
        let most = run.devices.iter().map(|device| device.usable).max().unwrap() as f64 / f64::from(1u32 << 30);
        assert!(run.summary.peak_memory_gib <= most, "{} GiB of {most}", run.summary.peak_memory_gib);
    }
}
