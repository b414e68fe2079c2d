//! Models that are spread over several devices: under every policy, in every world.

use proptest::prelude::*;
use slicescheduler::driver::Driver;
use slicescheduler::scenario::{Layout, Scenario};
use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::{DeviceId, TenantId};
use slicescheduler_gmg::memory::ByteKind;
use slicescheduler_gmg::plan::Rank;
use slicescheduler_gmg::units::{Bytes, Nanos};
use slicescheduler_scheduler::baseline::BASELINES;

use crate::accounted::{accounted, troubles};
use crate::rig::{Driven, Faults, POLICIES, ROOMY, Watched, as_they_are, groups, replayed};
use crate::witness::Decided;

/// Every rank has as many blocks of every sequence as batching says, and nothing else of the tenant.
fn ranks_agree(driver: &Driver<Watched>) {
    let view = driver.gmg().view();
    for batcher in driver.batching() {
        let tenant = batcher.tenant();
        for replica in batcher.replicas() {
            let spread = view.is_home(tenant, replica.device);
            let group = if spread { view.group(replica.device) } else { &[] };
            let devices = if group.is_empty() { vec![replica.device] } else { group.to_vec() };
            for device in devices {
                let kv = view.memory(device).unwrap().kv();
                assert_eq!(replica.blocks(), kv.used_by(tenant), "{tenant} on {device} at {}", driver.now());
                for sequence in replica.running() {
                    assert_eq!(kv.table(sequence.request).len() as u32, sequence.blocks, "{}", sequence.request);
                }
            }
        }
    }
}

fn checked(usable: f64, seed: u64, policy: &str, faults: &Faults) -> Driven<Watched> {
    accounted(&groups(usable, Nanos::secs(5), seed), policy, faults, Nanos::secs(40), ranks_agree)
}

#[test]
fn every_policy_runs_groups_and_keeps_the_rules() {
    for policy in BASELINES.iter().map(|baseline| baseline.name).chain(["slice-fill"]) {
        let (record, seen) = replayed(&groups(ROOMY, Nanos::secs(12), 3), policy, &Faults::default(), as_they_are());
        assert!(seen.complaints.is_empty(), "{policy}: {:#?}", seen.complaints);
        for (tenant, summary) in (0..).zip(&record.summary.tenants) {
            let of_tenant = |(_, decided): &(Nanos, Decided)| matches!(decided, Decided::Launch { spec, .. } if spec.key.tenant == tenant);
            let iterations = seen.decided.iter().filter(|decided| of_tenant(decided)).count();
            assert!(iterations > 20 || summary.arrived == 0, "{policy}: {iterations} of {summary:?}");
        }
    }
}

#[test]
fn guests_run_on_single_devices_of_a_group_and_make_way_on_every_one() {
    let (_, seen) = replayed(&groups(ROOMY, Nanos::secs(20), 3), "slice-fill", &Faults::default(), as_they_are());
    assert!(seen.complaints.is_empty(), "{:#?}", seen.complaints);
    let launches = |device: u32, rank: Rank| {
        let on = |decided: &Decided| matches!(decided, Decided::Launch { lane, rank: found, .. } if lane.device == DeviceId(device) && *found == rank);
        seen.decided.iter().filter(|(_, decided)| on(decided)).count()
    };
    for device in 0..2 {
        assert!(launches(device, Rank::GuestBestEffort) > 20, "{}", launches(device, Rank::GuestBestEffort));
    }
    assert_eq!(launches(0, Rank::OwnerLatency), launches(1, Rank::OwnerLatency));
    assert!(launches(4, Rank::OwnerBestEffort) > 100 && seen.counts.yields > 10, "{:?}", seen.counts);
}

#[test]
fn a_lost_rank_ends_the_requests_of_its_tenant_with_a_reason_and_nothing_stays() {
    for policy in POLICIES {
        let faults = Faults { devices: vec![(Nanos::secs(2), DeviceId(1))], jobs_one_in: 0 };
        let run = checked(ROOMY, 11, policy, &faults);
        assert!(!run.lost.is_empty(), "{policy}");
        assert!(run.lost.iter().all(|lost| lost.tenant == TenantId(0)), "{policy}: {:?}", run.lost);
        let view = run.driver.gmg().view();
        let kv = view.memory(DeviceId(0)).unwrap().kv();
        assert_eq!(kv.used_by(TenantId(0)), 0, "{policy}");
    }
}

#[test]
fn of_two_groups_one_goes_on_when_the_other_is_lost() {
    let mut scenario = groups(ROOMY, Nanos::secs(5), 5);
    let mut last = scenario.tenants.remove(3);
    last.container.devices = (2..6).map(DeviceId).collect();
    scenario.tenants.truncate(1);
    scenario.tenants.push(last);
    let faults = Faults { devices: vec![(Nanos::secs(2), DeviceId(3))], jobs_one_in: 0 };
    for policy in POLICIES {
        let run = accounted(&scenario, policy, &faults, Nanos::secs(60), ranks_agree);
        assert!(run.lost.is_empty(), "{policy}: {:?}", run.lost);
        assert_eq!(run.completed.len(), run.submitted.len(), "{policy}");
        assert!(run.completed.iter().any(|done| done.preemptions > 0), "{policy}: some were computed again");
        let view = run.driver.gmg().view();
        for device in (0..6).map(DeviceId) {
            let ledger = view.memory(device).unwrap().ledger();
            assert_eq!(ledger.of(ByteKind::Activations), Bytes::ZERO, "{policy}: {device}");
            assert_eq!(ledger.of(ByteKind::Kv), Bytes::ZERO, "{policy}: {device}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn whatever_fails_every_request_of_a_group_is_accounted_for((seed, usable, faults) in troubles(Nanos::secs(6), 6, 3)) {
        for policy in POLICIES {
            checked(usable, seed, policy, &faults);
        }
    }
}

#[test]
fn a_group_of_one_device_is_a_device() {
    let text = |layout: &str| {
        format!(
            r#"
            seed = 4
            duration = "8s"
            policies = ["slice-fill"]
            [cluster]
            [[cluster.nodes]]
            devices = 2
            kind = "h100-sxm"
            [[tenants]]
            name = "chat"
            class = "latency-sensitive"
            model = "llama3-8b"
            slo = {{ ttft = "400ms", tpot = "40ms" }}
            container = {{ devices = [0]{layout} }}
            workload = {{ generator = "azure-conv", rate_scale = 2 }}
            [[tenants]]
            name = "batch"
            class = "best-effort"
            model = "llama3-8b"
            container = {{ devices = [1]{layout} }}
            workload = {{ backlog = "azure-conv", window = 16 }}
            "#
        )
    };
    let run = |layout: &str| {
        let scenario = Scenario::parse(&text(layout), std::path::Path::new("one.toml"), None).unwrap();
        assert!(scenario.tenants.iter().all(|tenant| tenant.container.layout == Layout::Replicas));
        let (record, seen) = replayed(&scenario, "slice-fill", &Faults::default(), as_they_are());
        (record.summary, seen.decided)
    };
    let (plain, group) = (run(""), run(", layout = \"tensor-parallel\""));
    assert!(plain.1.len() > 100 && plain.1 == group.1);
    assert_eq!(plain.0.tenants, group.0.tenants);
}
