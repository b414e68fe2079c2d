//! Which best-effort weights are on a device follows from who has work.

use std::path::Path;

use slicescheduler::scenario::Scenario;
use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::{DeviceId, TenantId};
use slicescheduler_gmg::units::Nanos;

use crate::rig::{driven, simulated};

const QUIET_FIRST: &str = r#"
seed = 1
duration = "40s"
policies = ["slice-fill"]
[cluster]
usable = 0.9
[[cluster.nodes]]
devices = 3
kind = "h100-sxm"
[[tenants]]
name = "chat"
class = "latency-sensitive"
model = "llama3-8b"
slo = { ttft = "400ms", tpot = "40ms" }
container = { devices = [0] }
workload = { generator = "azure-conv", rate_scale = 0.1 }
[[tenants]]
name = "quiet"
class = "best-effort"
model = "llama3-8b"
container = { devices = [1] }
workload = { generator = "azure-conv", rate_scale = 0.001 }
[[tenants]]
name = "batch"
class = "best-effort"
model = "llama3-8b"
container = { devices = [2] }
workload = { backlog = "azure-conv", window = 32 }
"#;

/// The tenant "quiet" is the best-effort guest on the device of "chat" at first, and has no work there or at home.
#[test]
fn weights_of_a_tenant_with_work_come_to_devices_whose_guests_have_none() {
    let scenario = Scenario::parse(QUIET_FIRST, Path::new("quiet.toml"), None).unwrap();
    let batch = TenantId(2);
    let mut places = Vec::new();
    let run = driven(
        &scenario,
        "slice-fill",
        |setup| simulated(&scenario, setup),
        Nanos::secs(1),
        |driver| {
            let view = driver.gmg().view();
            let is_batch = |&(model, _): &(_, _)| view.model(model).is_some_and(|model| model.tenant() == batch);
            let here = |device: &DeviceId| {
                view.memory(*device).is_some_and(|memory| memory.models().any(|one| is_batch(&one)))
            };
            let now: Vec<_> = (0..3).map(DeviceId).filter(here).collect();
            if places.last() != Some(&now) {
                places.push(now);
            }
        },
    );
    assert_eq!(places[0], [DeviceId(2)], "at home only");
    assert_eq!(places.last().unwrap()[..], [0, 1, 2].map(DeviceId), "{places:?}");
    assert!(places.len() <= 3, "weights do not go back and forth: {places:?}");
    let done = run.completed.iter().filter(|done| done.tenant == batch).count();
    let alone = driven(&scenario, "static", |setup| simulated(&scenario, setup), Nanos::secs(1), |_| {});
    let few = alone.completed.iter().filter(|done| done.tenant == batch).count();
    assert!(done > 2 * few && few > 50, "{few} requests on its own device, {done} on three");
}
