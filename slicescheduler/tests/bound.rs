//! No policy's simulated throughput exceeds the bound of the linear program.
//!
//! Property: random small scenarios in a world without noise, with a bin of its own for every request.

#![allow(clippy::unwrap_used, reason = "a test may fail by it, in its helpers too")]

use std::path::Path;

use proptest::prelude::*;
use slicescheduler::bound::linear::{LinearBound, LinearOptions};
use slicescheduler::replay::{ReplayOptions, Silent, policy, policy_names, simulate};
use slicescheduler::scenario::{PolicySpec, Scenario};
use slicescheduler_simulator::world::{WorldCost, WorldOptions};

/// Requests of a backlog that anybody could take in so short a run.
const BACKLOG: usize = 400;

fn scenario(devices: u32, kind: &str, usable: f64, rate: f64, seed: u64, output: u32) -> Scenario {
    let last = devices - 1;
    let text = format!(
        r#"
        seed = {seed}
        duration = "2s"
        policies = ["static"]
        [cluster]
        usable = {usable}
        [[cluster.nodes]]
        devices = {last}
        kind = "h100-sxm"
        [[cluster.nodes]]
        devices = 1
        kind = "{kind}"
        [[tenants]]
        name = "chat"
        class = "latency-sensitive"
        model = "llama3-8b"
        slo = {{ ttft = "400ms", tpot = "40ms" }}
        container = {{ devices = [0] }}
        workload = {{ generator = "azure-conv", rate_scale = {rate} }}
        [[tenants]]
        name = "batch"
        class = "best-effort"
        model = "llama3-8b"
        container = {{ devices = [{last}] }}
        workload = {{ backlog = "azure-conv", window = 32, max_output = {output} }}
        "#
    );
    Scenario::parse(&text, Path::new("bound.toml"), None).unwrap()
}

fn reached(scenario: &Scenario, name: &str) -> f64 {
    let world = WorldOptions { operator_noise: 0, iteration_noise: 0, ..WorldOptions::default() };
    let spec = PolicySpec { name: name.to_owned(), options: Default::default() };
    let options = ReplayOptions { world, ..ReplayOptions::default() };
    let run = simulate(scenario, policy(&spec).unwrap(), &options, &mut Silent).unwrap();
    run.summary.token_throughput
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, failure_persistence: None, ..ProptestConfig::default() })]

    /// In two seconds a slow device may not end its first batch of long prompts, so a policy may well have no tokens: that they
    /// come near is the next test's.
    #[test]
    fn no_policy_exceeds_the_bound(
        devices in 2u32..4,
        kind in prop::sample::select(vec!["h100-sxm", "a100-sxm-80"]),
        usable in 0.4f64..0.9,
        rate in 1.0f64..30.0,
        seed in 0u64..1000,
    ) {
        let scenario = scenario(devices, kind, usable, rate, seed, 40);
        let options = LinearOptions { bins: usize::MAX, backlog: Some(BACKLOG) };
        let bound = LinearBound::of(&scenario, &WorldCost::default(), options).unwrap().token_throughput;
        for name in policy_names() {
            let reached = reached(&scenario, name);
            prop_assert!(reached <= bound, "{name} reaches {reached} tokens/s, the bound is {bound}");
        }
    }
}

/// A bound that nobody comes near would be of no use as a scale.
#[test]
fn policies_come_near_the_bound_in_a_longer_run() {
    let mut scenario = scenario(2, "h100-sxm", 0.9, 8.0, 1, 1000);
    scenario.set_duration("60s").unwrap();
    let bound = LinearBound::of(&scenario, &WorldCost::default(), LinearOptions::default()).unwrap();
    let parts: f64 = bound.tenants.iter().sum();
    assert!((parts - bound.token_throughput).abs() < 1e-3 * bound.token_throughput);
    for name in ["idle-priority", "jsq-edf", "slice-fill"] {
        let share = reached(&scenario, name) / bound.token_throughput;
        assert!((0.5..1.0).contains(&share), "{name} reaches {share} of the bound");
    }
}
