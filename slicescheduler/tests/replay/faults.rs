//! Devices that are lost and kernels that fail: everybody else goes on, and nothing is lost silently.

use proptest::prelude::*;
use slicescheduler::driver::{Driver, RequestError};
use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::DeviceId;
use slicescheduler_gmg::units::Nanos;

use crate::accounted::{accounted, troubles};
use crate::rig::{Driven, Faults, POLICIES, ROOMY, Watched, as_they_are, replayed, small};

/// Batching and graph agree on who holds how many blocks where.
fn ledgers_agree(driver: &Driver<Watched>) {
    let view = driver.gmg().view();
    for batcher in driver.batching() {
        let tenant = batcher.tenant();
        for replica in batcher.replicas() {
            let kv = view.memory(replica.device).unwrap().kv();
            assert_eq!(replica.blocks(), kv.used_by(tenant), "{tenant} on {} at {}", replica.device, driver.now());
            for sequence in replica.running() {
                let request = view.request(sequence.request).unwrap();
                assert_eq!(kv.table(sequence.request).len() as u32, sequence.blocks, "{}", sequence.request);
                assert!(request.device.is_none_or(|device| device == replica.device), "{request:?}");
            }
        }
        for sequence in batcher.waiting() {
            let request = view.request(sequence.request).unwrap();
            assert_eq!((request.device, sequence.blocks), (None, 0), "{} waits: {request:?}", sequence.request);
        }
    }
}

fn checked(usable: f64, seed: u64, policy: &str, faults: &Faults) -> Driven<Watched> {
    accounted(&small(usable, Nanos::secs(6), seed), policy, faults, Nanos::secs(20), ledgers_agree)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn whatever_fails_every_request_is_accounted_for((seed, usable, faults) in troubles(Nanos::secs(8), 5, 4)) {
        for policy in POLICIES {
            checked(usable, seed, policy, &faults);
        }
    }
}

#[test]
fn tenants_with_a_device_left_complete_everything() {
    let faults = Faults { devices: vec![(Nanos::secs(2), DeviceId(3))], jobs_one_in: 0 };
    for policy in POLICIES {
        let run = checked(ROOMY, 11, policy, &faults);
        assert!(run.lost.is_empty(), "{policy}: {:?}", run.lost);
        assert_eq!(run.completed.len(), run.submitted.len(), "{policy}: the other device of batch took over");
        assert!(run.completed.iter().any(|done| done.preemptions > 0), "{policy}: some were computed again");
    }
}

#[test]
fn requests_of_a_tenant_without_devices_end_with_a_reason_and_others_go_on() {
    let lost_at = Nanos::secs(2);
    for (tenant, devices) in [(0, vec![0]), (3, vec![3, 4])] {
        let devices = devices.into_iter().map(|device| (lost_at, DeviceId(device))).collect();
        let faults = Faults { devices, jobs_one_in: 0 };
        for policy in POLICIES {
            let run = checked(ROOMY, 11, policy, &faults);
            assert!(run.lost.len() > 10, "{policy}: {}", run.lost.len());
            for lost in &run.lost {
                assert_eq!((lost.tenant.0, &lost.reason), (tenant, &RequestError::NoDevice), "{policy}");
            }
            let late = |arrival: Nanos, of: u32| of == tenant && arrival >= lost_at;
            assert!(!run.completed.iter().any(|done| late(done.arrival, done.tenant.0)), "{policy}");
            assert_eq!(run.completed.len() + run.lost.len(), run.submitted.len(), "{policy}");
        }
    }
}

#[test]
fn a_replay_goes_on_when_tenants_lose_every_device() {
    let devices = [0, 3, 4].map(|device| (Nanos::secs(2), DeviceId(device))).to_vec();
    let faults = Faults { devices, jobs_one_in: 0 };
    for policy in POLICIES {
        let (record, seen) = replayed(&small(ROOMY, Nanos::secs(10), 3), policy, &faults, as_they_are());
        assert!(seen.complaints.is_empty(), "{policy}: {:#?}", seen.complaints);
        let [code, _, conv, _] = record.summary.tenants.as_slice() else { panic!("four tenants") };
        let lost = 1.0 - code.completed as f64 / code.arrived as f64;
        assert!(lost > 0.1 && code.sla_violation_rate >= lost - 1e-9, "{policy}: those lost violate: {code:?}");
        assert!(conv.completed > 0, "{policy}: {conv:?}");
    }
}

#[test]
fn a_failed_kernel_ends_the_requests_of_its_batch_only() {
    let faults = Faults { devices: Vec::new(), jobs_one_in: 2000 };
    for policy in POLICIES {
        let run = checked(ROOMY, 12, policy, &faults);
        assert!(!run.lost.is_empty() && run.completed.len() > run.lost.len(), "{policy}");
        assert!(run.lost.iter().all(|lost| matches!(lost.reason, RequestError::Failed(_))), "{policy}");
        assert_eq!(run.completed.len() + run.lost.len(), run.submitted.len(), "{policy}");
    }
}
