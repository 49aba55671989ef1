//! The action and the targets of the job of a run.
//!
//! Takes a test cluster; yields targets and the job. May not know what goes wrong.

use oarlock_core::object::own::TASKS_NAMESPACE;
use oarlock_sim::world::{Seedbed, SetKey};
use serde_json::{Value, json};

use crate::components::{GRANTS, PREFLIGHT_GRANTS, REBOOT_GRANTS};
use crate::jobs::replace;
use crate::node_targets;
use crate::scenarios::drains::{REBOOT, workload};
use crate::scenarios::reboots::PREFLIGHT;
use crate::scenarios::{identities, on_nodes};
use crate::test_cluster::TestCluster;

/// The modes of a run: the two ways of Replace with a workload for each, and the actions on nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The CollaSet `foo` replaces marked pods.
    CollaSet,
    /// The host evicts pods of the Deployment `web`.
    Evict,
    /// The host evicts pods of the StatefulSet `db`, which come back under their names.
    EvictSameName,
    /// The host drains and reboots nodes, two at a time. Someone else cordoned the first node.
    Reboot,
    /// The host checks nodes, two at a time. Someone else cordoned the first node.
    Check,
}

impl Mode {
    /// Returns the name of the workload.
    #[must_use]
    pub fn app(self) -> &'static str {
        match self {
            Self::CollaSet => "foo",
            Self::Evict | Self::Reboot | Self::Check => "web",
            Self::EvictSameName => "db",
        }
    }

    /// Returns true if the targets are nodes.
    #[must_use]
    pub fn is_on_nodes(self) -> bool {
        matches!(self, Self::Reboot | Self::Check)
    }

    /// Returns names and grants of the plugins that the hosts have.
    #[must_use]
    pub fn plugins(self) -> (&'static [&'static str], Vec<&'static str>) {
        if self.is_on_nodes() {
            (&["reboot", "preflight"], vec![REBOOT_GRANTS, PREFLIGHT_GRANTS])
        } else {
            (&["replace"], vec![GRANTS])
        }
    }

    /// Creates the workload. If nodes are the targets, also creates as many nodes for it.
    ///
    /// # Errors
    /// If the API server refuses a request.
    pub async fn plant(self, cluster: &TestCluster, count: usize) -> anyhow::Result<SetKey> {
        Ok(match self {
            Self::CollaSet => cluster.seedbed.collaset(self.app(), count).await?,
            Self::Evict => cluster.seedbed.deployment(self.app(), count).await?,
            Self::EvictSameName => cluster.seedbed.stateful_set(self.app(), count).await?,
            Self::Reboot | Self::Check => {
                on_nodes::set_label(cluster, Some("true")).await?;
                on_nodes::grant(cluster, if self == Self::Reboot { REBOOT } else { PREFLIGHT }).await?;
                Seedbed::namespace(cluster.client.clone(), TASKS_NAMESPACE).await?;
                node_targets::plant(cluster, count).await?;
                workload(cluster, self.app(), count).await?
            }
        })
    }

    /// Returns the names and UIDs of the targets.
    ///
    /// # Errors
    /// If the API server refuses a request.
    pub async fn targets(self, cluster: &TestCluster) -> anyhow::Result<Vec<(String, String)>> {
        if self.is_on_nodes() {
            return node_targets::identities(cluster).await;
        }
        identities(cluster, &cluster.pod_names(self.app()).await?).await
    }

    /// Returns the spec of the job for targets of these names, with more fields.
    #[must_use]
    pub fn job(self, names: &[String], more: &Value) -> Value {
        let mut spec = replace(names, more.clone());
        let done = match self {
            Self::CollaSet | Self::Evict | Self::EvictSameName => return spec,
            Self::Reboot => json!({"action": "reboot", "parameters": {"drain": true}}),
            Self::Check => json!({"action": "preflight",
                "parameters": {"image": "check:1", "script": "# sim: message ok", "tolerateAll": true}}),
        };
        if let (Some(spec), Some(done)) = (spec.as_object_mut(), done.as_object()) {
            spec.extend([("targetKind".to_owned(), json!("Node")), ("parallelism".to_owned(), json!(2))]);
            spec.extend(done.clone());
        }
        spec
    }
}
