//! Counts over the recorded versions of nodes and pods, for a job on nodes. The versions are in the order of resource versions.

use std::collections::{BTreeMap, BTreeSet};

use oarlock_sim::world::Version;
use serde_json::{Value, json};

/// Returns true if this version of a node is Ready and not cordoned.
pub(crate) fn serves(version: &Version) -> bool {
    let mut conditions = version.at("/status/conditions").as_array().into_iter().flatten();
    let is = |one: &Value, field: &str, value: &str| one.get(field).is_some_and(|found| found == value);
    let ready = conditions.any(|one| is(one, "type", "Ready") && is(one, "status", "True"));
    !version.is_end && ready && version.at("/spec/unschedulable") != &json!(true)
}

/// Returns how many nodes were out of service at the worst of these versions: cordoned or not Ready. A node counts from its first
/// version in service.
pub(crate) fn most_out_of_service(versions: &[Version]) -> usize {
    let (mut born, mut out) = (BTreeSet::new(), BTreeSet::new());
    let mut most = 0;
    for version in versions {
        let name = version.name.as_str();
        if serves(version) {
            born.insert(name);
            out.remove(name);
        } else if born.contains(name) {
            out.insert(name);
        }
        most = most.max(out.len());
    }
    most
}

/// Adds an element to a set, or removes it.
fn put<'a>(set: &mut BTreeSet<&'a str>, one: &'a str, is_in: bool) {
    if is_in {
        set.insert(one);
    } else {
        set.remove(one);
    }
}

/// The highest number of pods at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MostPods {
    /// Pods whose containers had not ended.
    pub(crate) at_work: usize,
    /// Pods in any state.
    pub(crate) there: usize,
}

/// Returns the highest number of pods of this namespace at once.
pub(crate) fn most_pods(versions: &[Version], namespace: &str) -> MostPods {
    let (mut there, mut at_work) = (BTreeSet::new(), BTreeSet::new());
    let mut most = MostPods::default();
    for version in versions.iter().filter(|version| version.namespace == namespace) {
        let uid = version.uid.as_str();
        let has_ended = ["Succeeded", "Failed"].iter().any(|phase| version.at("/status/phase") == phase);
        put(&mut there, uid, !version.is_end);
        put(&mut at_work, uid, !version.is_end && !has_ended);
        most = MostPods { at_work: most.at_work.max(at_work.len()), there: most.there.max(there.len()) };
    }
    most
}

/// Returns the UIDs of all pods of this namespace, by the index of their targets.
pub(crate) fn pods_of_targets<'a>(versions: &'a [Version], namespace: &str) -> BTreeMap<usize, BTreeSet<&'a str>> {
    let mut found: BTreeMap<usize, BTreeSet<&str>> = BTreeMap::new();
    for version in versions.iter().filter(|version| version.namespace == namespace) {
        let index = version.at("/metadata/labels/oarlock.dev~1target-index").as_str();
        if let Some(index) = index.and_then(|index| index.parse().ok()) {
            found.entry(index).or_default().insert(&version.uid);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn version(name: &str, object: Value, is_end: bool) -> Version {
        let (plural, namespace) = ("x".to_owned(), "tasks".to_owned());
        let (name, uid) = (name.to_owned(), name.to_owned());
        Version { resource_version: 1, plural, namespace, name, uid, object: Arc::new(object), is_end }
    }

    fn node(name: &str, ready: bool, cordoned: bool) -> Version {
        let conditions = json!([{"type": "Ready", "status": if ready { "True" } else { "Unknown" }}]);
        let object = json!({"status": {"conditions": conditions}, "spec": {"unschedulable": cordoned}});
        version(name, object, false)
    }

    #[test]
    fn node_is_out_of_service_while_it_is_cordoned_or_not_ready() {
        let made = [node("a", false, false), node("a", true, false), node("b", false, false), node("b", true, false)];
        assert_eq!(most_out_of_service(&made), 0);
        let apart = [node("a", true, true), node("a", false, true), node("a", true, false), node("b", false, false)];
        assert_eq!(most_out_of_service(&[&made[..], &apart].concat()), 1);
        let both = [node("a", true, true), node("b", false, false), node("a", true, false), node("b", true, false)];
        assert_eq!(most_out_of_service(&[&made[..], &both].concat()), 2);
    }

    #[test]
    fn pod_is_at_work_until_it_has_ended_and_there_until_it_is_gone() {
        let pod = |name: &str, phase: &str, is_end| {
            let metadata = json!({"labels": {"oarlock.dev/target-index": "7"}});
            version(name, json!({"metadata": metadata, "status": {"phase": phase}}), is_end)
        };
        let versions = [
            pod("a", "Pending", false),
            pod("a", "Succeeded", false),
            pod("b", "Running", false),
            pod("a", "Succeeded", true),
            pod("b", "Failed", false),
        ];
        assert_eq!(most_pods(&versions, "tasks"), MostPods { at_work: 1, there: 2 });
        assert_eq!(most_pods(&versions, "shop"), MostPods::default());
        assert_eq!(pods_of_targets(&versions, "tasks"), [(7, ["a", "b"].into())].into());
    }
}
