//! Scenarios of the whole host, and the test cluster on which they run. No release contains this crate.
//!
//! A [`test_cluster::TestCluster`] is a cluster (in memory or real), simulated controllers, and a host with the real plugin components.
//! Scenarios are written once and run on both clusters.

pub mod components;
pub mod costly;
pub mod dev;
pub mod flows;
pub mod host_client;
pub mod host_process;
pub mod host_requests;
pub mod hosts;
pub mod image_registry;
pub mod jobs;
pub mod killable_host;
pub mod mishap;
pub mod mode;
pub mod monitoring;
pub mod node_targets;
pub mod ops;
pub mod oracle;
pub mod scenarios;
pub mod terminal;
pub mod test_cluster;
pub mod variant;

/// The environment variable that turns a run into a soak, which has no time limit.
const SOAK_VARIABLE: &str = "OARLOCK_SOAK";

/// Returns true if the run is a soak.
#[must_use]
pub fn is_soak() -> bool {
    std::env::var_os(SOAK_VARIABLE).is_some()
}
