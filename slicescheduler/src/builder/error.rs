//! What can be wrong with what a builder was told.

use crate::assembly::AssemblyError;
use slicescheduler_executor::ExecutorError;
use slicescheduler_gmg::GmgError;
use slicescheduler_gmg::cluster::ClusterError;
use slicescheduler_gmg::units::Bytes;

use crate::driver::DriverError;
use crate::model::ModelError;

/// Why there is no scheduler. Nothing was started then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Nobody to serve.
    #[error("there are no tenants: add at least one")]
    NoTenants,
    /// Two tenants of one name.
    #[error("two tenants are named {tenant:?}: names are how requests find their tenant")]
    DuplicateTenant {
        /// The name.
        tenant: String,
    },
    /// Fewer devices than tenants that need one.
    #[error("tenants {} need a device each, {free} of {devices} are free", list(tenants))]
    NotEnoughDevices {
        /// Tenants that did not say which devices they want.
        tenants: Vec<String>,
        /// Devices that nobody claimed.
        free: usize,
        /// Devices that there are.
        devices: usize,
    },
    /// More lanes than this process would start threads for.
    #[error("{lanes} lanes are asked for, each of which is a thread: expected at most {limit}")]
    TooManyLanes {
        /// Lanes of all devices.
        lanes: u64,
        /// Most that there may be.
        limit: u64,
    },
    /// A container without devices.
    #[error("tenant {tenant:?}: its container has no devices; it needs at least one")]
    EmptyContainer {
        /// Whose container.
        tenant: String,
    },
    /// A container with a device that does not exist.
    #[error("tenant {tenant:?}: there is no device {device}, the {devices} devices are 0 to {}", devices.saturating_sub(1))]
    NoSuchDevice {
        /// Whose container.
        tenant: String,
        /// The number that was given.
        device: u32,
        /// Devices that there are.
        devices: usize,
    },
    /// A device in two containers.
    #[error("tenant {tenant:?}: device {device} belongs to tenant {owner:?} already; a device is in one container")]
    DeviceTaken {
        /// Whose container.
        tenant: String,
        /// The device, by its place in the cluster.
        device: String,
        /// Whose it is.
        owner: String,
    },
    /// A setting that makes no sense.
    #[error("{setting} is 0: expected at least 1")]
    Zero {
        /// Which setting.
        setting: &'static str,
    },
    /// A model that cannot be used.
    #[error("tenant {tenant:?}: model {model}: {source}")]
    Model {
        /// Whose model.
        tenant: String,
        /// Its name.
        model: String,
        /// What is wrong with it.
        source: Box<ModelError>,
    },
    /// A model that its container cannot hold.
    #[error(
        "tenant {tenant:?}: model {model} needs {weights} of weights, {activations} of activations and {kv} of KV \
         cache on device {device}, which has {memory}"
    )]
    DoesNotFit {
        /// Whose model.
        tenant: String,
        /// Its name.
        model: String,
        /// Bytes of its weights.
        weights: Bytes,
        /// Bytes of its activations in the largest iteration.
        activations: Bytes,
        /// Bytes of the fewest KV blocks that it can work with.
        kv: Bytes,
        /// The device, by its place in the cluster.
        device: String,
        /// What the device has.
        memory: Bytes,
    },
    /// The hardware is impossible.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The graph refused.
    #[error(transparent)]
    Gmg(#[from] GmgError),
    /// The lanes could not be started.
    #[error(transparent)]
    Lanes(#[from] ExecutorError),
    /// The loop could not be set up.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The host gave no thread for the loop.
    #[error("no thread for the driver")]
    Thread(#[source] std::io::Error),
}

/// `"a", "b"`.
fn list(names: &[String]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

impl From<AssemblyError> for BuildError {
    fn from(error: AssemblyError) -> Self {
        match error {
            AssemblyError::DoesNotFit { tenant, model, weights, activations, kv, device, memory, .. } => {
                Self::DoesNotFit { tenant, model, weights, activations, kv, device, memory }
            }
            AssemblyError::Gmg(error) => Self::Gmg(error),
        }
    }
}
