//! What a bystander saw of the nodes: each version of each of them, by a watch of its own. It knows nothing of jobs.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Node;
use kube::api::ApiResource;
use oarlock_sim::world::{History, Version};
use serde_json::Value;

use super::super::stage::Stage;

/// The watch of a bystander.
pub(super) struct NodeObservations {
    history: History,
}

/// A moment, as the newest resource version seen until then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark(u64);

impl NodeObservations {
    /// Watches from now on.
    pub(super) fn begin(stage: &Stage) -> Self {
        Self { history: History::record(&stage.client(), vec![ApiResource::erase::<Node>(&())]) }
    }

    /// This moment, once everything that these nodes show was seen.
    pub(super) async fn mark(&self, nodes: &[Node], patience: Duration) -> anyhow::Result<Mark> {
        let number = |node: &Node| node.metadata.resource_version.as_ref().and_then(|text| text.parse::<u64>().ok());
        let newest = nodes.iter().filter_map(number).max().unwrap_or(0);
        let seen = |all: &[Version]| all.iter().any(|version| version.resource_version >= newest);
        self.history.until("the newest versions of the nodes", patience, seen).await.context("the watch lags")?;
        Ok(Mark(newest))
    }

    /// How many nodes took no pods, at the worst version of any node since a mark.
    pub(super) fn most_out_of_service(&self, since: Mark) -> usize {
        most_out_of_service(&self.history.versions(), since)
    }
}

fn most_out_of_service(versions: &[Version], since: Mark) -> usize {
    let mut serving = BTreeMap::new();
    let mut most = 0;
    for version in versions {
        serving.insert(version.name.as_str(), !version.is_end && serves(&version.object));
        if version.resource_version > since.0 {
            most = most.max(serving.values().filter(|serves| !**serves).count());
        }
    }
    most
}

/// It is Ready, and not cordoned.
pub(super) fn serves(node: &Value) -> bool {
    let conditions = node.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
    let mut ready = conditions.filter(|one| one.get("type").is_some_and(|kind| kind == "Ready"));
    let cordoned = node.pointer("/spec/unschedulable").is_some_and(|value| value == true);
    !cordoned && ready.any(|one| one.get("status").is_some_and(|status| status == "True"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn version(number: u64, name: &str, ready: &str, cordoned: bool) -> Version {
        let object = json!({"spec": {"unschedulable": cordoned}, "status": {"conditions": [{"type": "Ready", "status": ready}]}});
        let (plural, namespace, object) = ("nodes".to_owned(), String::new(), Arc::new(object));
        let (name, uid) = (name.to_owned(), name.to_owned());
        Version { resource_version: number, plural, namespace, name, uid, object, is_end: false }
    }

    #[test]
    fn cordoned_nodes_and_nodes_that_are_not_ready_count_at_the_worst_moment_since_the_mark() {
        let all = [
            version(1, "a", "True", true),
            version(2, "b", "Unknown", false),
            version(3, "a", "True", false),
            version(4, "c", "True", true),
            version(5, "b", "True", false),
        ];
        assert_eq!(most_out_of_service(&all, Mark(0)), 2);
        assert_eq!(most_out_of_service(&all, Mark(4)), 1);
    }
}
