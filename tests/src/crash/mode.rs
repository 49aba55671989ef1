//! What the job of a run does, and to what.
//!
//! Takes a rig; yields targets and the job. May not know what goes wrong.

use oarlock_core::cluster::own::TASKS_NAMESPACE;
use oarlock_sim::world::{Seedbed, SetKey};
use serde_json::{Value, json};

use super::on_nodes;
use crate::components::{GRANTS, PREFLIGHT_GRANTS, REBOOT_GRANTS};
use crate::jobs::replace;
use crate::rig::Rig;
use crate::scenarios::drains::{REBOOT, workload};
use crate::scenarios::reboots::PREFLIGHT;
use crate::scenarios::{identities, on_nodes as nodes};

/// The two ways of Replace and the workload that each is shown on, and what is done to nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The CollaSet `foo` replaces a marked pod.
    CollaSet,
    /// The pods of the Deployment `web` are evicted.
    Evict,
    /// The pods of the StatefulSet `db` are evicted, and come back under their names.
    EvictSameName,
    /// Nodes are drained and rebooted, two at a time; somebody else cordoned the first.
    Reboot,
    /// Nodes are checked, two at a time; somebody else cordoned the first.
    Check,
}

impl Mode {
    /// Name of the workload.
    #[must_use]
    pub fn app(self) -> &'static str {
        match self {
            Self::CollaSet => "foo",
            Self::Evict | Self::Reboot | Self::Check => "web",
            Self::EvictSameName => "db",
        }
    }

    /// Whether the targets are nodes.
    #[must_use]
    pub fn is_on_nodes(self) -> bool {
        matches!(self, Self::Reboot | Self::Check)
    }

    /// Names and grants of the plugins that its hosts have.
    pub(super) fn plugins(self) -> (&'static [&'static str], Vec<&'static str>) {
        if self.is_on_nodes() {
            (&["reboot", "preflight"], vec![REBOOT_GRANTS, PREFLIGHT_GRANTS])
        } else {
            (&["replace"], vec![GRANTS])
        }
    }

    /// Plants the workload, and as many nodes for it where they are the targets.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn plant(self, rig: &Rig, count: usize) -> anyhow::Result<SetKey> {
        Ok(match self {
            Self::CollaSet => rig.seedbed.collaset(self.app(), count).await?,
            Self::Evict => rig.seedbed.deployment(self.app(), count).await?,
            Self::EvictSameName => rig.seedbed.stateful_set(self.app(), count).await?,
            Self::Reboot | Self::Check => {
                nodes::set_label(rig, Some("true")).await?;
                nodes::grant(rig, if self == Self::Reboot { REBOOT } else { PREFLIGHT }).await?;
                Seedbed::namespace(rig.client.clone(), TASKS_NAMESPACE).await?;
                on_nodes::plant(rig, count).await?;
                workload(rig, self.app(), count).await?
            }
        })
    }

    /// Names and UIDs of the targets.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn targets(self, rig: &Rig) -> anyhow::Result<Vec<(String, String)>> {
        if self.is_on_nodes() {
            return on_nodes::identities(rig).await;
        }
        identities(rig, &rig.pod_names(self.app()).await?).await
    }

    /// The spec of the job for targets of these names, with more fields.
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
