//! How a scheduler is doing.

use std::sync::Arc;

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::DeviceId;
use slicescheduler_gmg::memory::ByteKind;
use slicescheduler_gmg::plan::World;
use slicescheduler_gmg::units::{Bytes, Nanos};
use slicescheduler_scheduler::batching::ReplicaState;

use crate::driver::{Counters, Driver};
use crate::learned::Predictions;

/// How a scheduler is doing between two passes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Status {
    /// When, by its clock.
    pub now: Nanos,
    /// Requests that were taken and have not ended.
    pub under_way: usize,
    /// By tenant, in the order in which they were added.
    pub tenants: Vec<TenantStatus>,
    /// By device.
    pub devices: Vec<DeviceStatus>,
    /// Counts of what should be rare.
    pub counters: Counters,
    /// How true forecasts of times have been.
    pub predictions: Predictions,
}

/// How a tenant is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TenantStatus {
    /// Its name.
    pub name: Arc<str>,
    /// Requests that no device has taken.
    pub waiting: usize,
    /// Requests whose KV cache lies on a device.
    pub running: usize,
    /// Tokens of prompts that were not computed since the start, because
    /// [prefix caches](crate::Builder::prefix_caching) had them.
    pub cached_tokens: u64,
}

/// What the memory of a device is used for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceStatus {
    /// Its name in the cluster.
    pub name: String,
    /// True once it is gone.
    pub lost: bool,
    /// Weights of its owner and of guests, loaded or on their way.
    pub weights: Bytes,
    /// KV blocks that sequences hold.
    pub kv: Bytes,
    /// Activations of iterations under way.
    pub activations: Bytes,
    /// The most bytes that were ever in use at one time.
    pub peak: Bytes,
    /// The most that was forecast before each plan was carried out; none if that was not
    /// [asked for](crate::Builder::forecasts_memory). A plan of which the graph drops an action is not forecast. Otherwise
    /// never below [`peak`](Self::peak), and equal to it where sequences and jobs leave in the order that was forecast.
    pub forecast_peak: Option<Bytes>,
    /// What may be used.
    pub usable: Bytes,
}

impl Status {
    pub(super) fn of<W: World>(driver: &Driver<W>, predictions: Predictions, under_way: usize, now: Nanos) -> Self {
        let view = driver.gmg().view();
        let tenants = view.tenants().iter().zip(driver.batching()).map(|(tenant, batcher)| TenantStatus {
            name: tenant.name.clone(),
            waiting: batcher.waiting().len(),
            running: batcher.replicas().iter().map(ReplicaState::running).map(<[_]>::len).sum(),
            cached_tokens: batcher.cached_tokens(),
        });
        let count = view.cluster().devices().len() as u32;
        let devices = (0..count).map(DeviceId).filter_map(|device| DeviceStatus::of(driver, device));
        let (tenants, devices) = (tenants.collect(), devices.collect());
        Self { now, under_way, tenants, devices, counters: driver.counters(), predictions }
    }
}

impl DeviceStatus {
    fn of<W: World>(driver: &Driver<W>, device: DeviceId) -> Option<Self> {
        let view = driver.gmg().view();
        let memory = view.memory(device)?;
        let ledger = memory.ledger();
        Some(Self {
            name: view.cluster().device_name(device).to_string(),
            lost: view.is_lost(device),
            weights: ledger.of(ByteKind::Weights),
            kv: ledger.of(ByteKind::Kv),
            activations: ledger.of(ByteKind::Activations),
            peak: ledger.peak(),
            // Before anything was forecast there is what the set-up put there.
            forecast_peak: driver.forecasts_memory().then(|| driver.forecasts().peak(device).unwrap_or(ledger.peak())),
            usable: memory.layout().usable,
        })
    }
}
