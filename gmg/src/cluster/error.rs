//! What can be wrong with a cluster.

/// Why a cluster can not be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// There is nothing to run on.
    #[error("the cluster has no nodes: expected at least one")]
    NoNodes,
    /// Two nodes have the same name.
    #[error("two nodes are named \"{node}\"")]
    DuplicateNode {
        /// The name.
        node: String,
    },
    /// A node without devices.
    #[error("node \"{node}\" has no devices: expected at least one")]
    NoDevices {
        /// The node.
        node: String,
    },
    /// A device that can hold or do nothing.
    #[error("node \"{node}\": device {local} ({device}) has {what} 0: expected a positive number")]
    ZeroCapability {
        /// The node.
        node: String,
        /// The device's number within the node.
        local: u32,
        /// The model of the device.
        device: String,
        /// What is zero.
        what: &'static str,
    },
    /// A link that can not move a byte.
    #[error("the {link} has bandwidth 0: expected a positive number of bytes per second")]
    ZeroBandwidth {
        /// The link, in words.
        link: String,
    },
    /// A link to a node that does not exist.
    #[error("a link names node \"{node}\", which the cluster does not have")]
    UnknownNode {
        /// The name.
        node: String,
    },
    /// A link from a node to itself.
    #[error("a link connects node \"{node}\" to itself")]
    SelfLink {
        /// The name.
        node: String,
    },
    /// The numbering does not reach so far.
    #[error("the cluster has {count} {what}: expected at most {most}")]
    TooLarge {
        /// Devices, nodes or links.
        what: &'static str,
        /// How many there are.
        count: u64,
        /// How many there can be.
        most: u64,
    },
}
