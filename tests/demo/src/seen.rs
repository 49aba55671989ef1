//! Records each version of pods and nodes, by a watch of its own, and judges the versions. The module knows no jobs.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use kube::api::ApiResource;
use oarlock_sim::world::{History, Version, labels};
use serde_json::Value;

use crate::play::SEEN_WITHIN;
use crate::snapshot::{is_in_traffic, is_ready, keys, restarts, text};

/// The step with which an operation begins.
const BEGUN: &str = "operation announced";

/// The recorded versions.
pub(crate) struct Seen(History);

/// A moment, as the newest resource version seen until then.
pub(crate) type Mark = u64;

/// The steps of an operation on one pod, in their order, as its versions showed them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Passage {
    pub(crate) steps: Vec<&'static str>,
    /// How often a container was restarted.
    pub(crate) restarts: i64,
    /// How many of these restarts showed while the pod got traffic.
    pub(crate) restarts_in_traffic: i64,
}

impl Seen {
    /// Watches from now on.
    pub(crate) fn begin(client: &Client) -> Self {
        Self(History::record(client, vec![ApiResource::erase::<Pod>(&()), ApiResource::erase::<Node>(&())]))
    }

    /// Returns this moment, once everything that these objects show was seen.
    pub(crate) async fn mark(&self, objects: &[Value]) -> anyhow::Result<Mark> {
        let number = |object: &Value| text(object, "/metadata/resourceVersion").parse::<u64>().unwrap_or(0);
        let shown: Vec<_> = objects.iter().map(|object| (text(object, "/metadata/uid"), number(object))).collect();
        let is_seen = |(uid, number): &(&str, u64), all: &[Version]| {
            all.iter().any(|version| version.uid == *uid && version.resource_version >= *number)
        };
        let all_seen = |all: &[Version]| shown.iter().all(|one| is_seen(one, all));
        self.0.until("the newest versions", SEEN_WITHIN, all_seen).await.context("the watch lags")?;
        Ok(self.0.versions().last().map_or(0, |version| version.resource_version))
    }

    /// Returns how many of the `wanted` objects of a kind and an app did not serve, at the worst version since a mark.
    pub(crate) fn most_out_of_service(&self, (plural, app): (&str, &str), wanted: usize, since: Mark) -> usize {
        let mut versions = self.0.versions();
        versions.retain(|version| version.plural == plural && text(&version.object, "/metadata/labels/app") == app);
        most_out_of_service(&versions, wanted, since)
    }

    /// Returns what a pod went through since a mark.
    pub(crate) fn passage(&self, uid: &str, since: Mark) -> Passage {
        passage(self.0.versions().iter().filter(|version| version.uid == uid), since)
    }

    /// Returns the names of the pods on which an operation began since a mark.
    pub(crate) fn operated_on(&self, since: Mark) -> BTreeSet<String> {
        let versions = self.0.versions();
        let began = |version: &&Version| {
            passage(versions.iter().filter(|other| other.uid == version.uid), since).steps.contains(&BEGUN)
        };
        versions.iter().filter(began).map(|version| version.name.clone()).collect()
    }
}

/// Returns true if a pod or a node is Ready, and neither being deleted nor cordoned.
pub(crate) fn serves(object: &Value) -> bool {
    let is_cordoned = object.pointer("/spec/unschedulable") == Some(&Value::Bool(true));
    is_ready(object) && !is_cordoned && text(object, "/metadata/deletionTimestamp").is_empty()
}

fn most_out_of_service(versions: &[Version], wanted: usize, since: Mark) -> usize {
    let mut serving = BTreeMap::new();
    let mut most = 0;
    for version in versions {
        serving.insert(version.uid.as_str(), !version.is_end && serves(&version.object));
        if version.resource_version > since {
            most = most.max(wanted.saturating_sub(serving.values().filter(|serves| **serves).count()));
        }
    }
    most
}

fn passage<'a>(versions: impl Iterator<Item = &'a Version>, since: Mark) -> Passage {
    let mut passage = Passage::default();
    let mut before: Option<&Value> = None;
    for version in versions {
        let now = &*version.object;
        if let Some(before) = before.filter(|_| version.resource_version > since) {
            passage.steps.extend(steps(before, now));
            let more = restarts(now).saturating_sub(restarts(before));
            passage.restarts = passage.restarts.saturating_add(more);
            if is_in_traffic(now) || is_in_traffic(before) {
                passage.restarts_in_traffic = passage.restarts_in_traffic.saturating_add(more);
            }
        }
        before = Some(now);
    }
    passage
}

/// Returns the steps from one version of a pod to the next.
fn steps(before: &Value, now: &Value) -> impl Iterator<Item = &'static str> {
    let has = |pod: &Value, word: &str| {
        keys(pod, "labels").any(|key| key.starts_with(&format!("{word}.{}/", labels::LIFECYCLE)))
    };
    let began = |word: &str| !has(before, word) && has(now, word);
    let steps = [
        (began("operating"), BEGUN),
        (is_in_traffic(before) && !is_in_traffic(now), "out of traffic"),
        (began("operate"), "operation allowed"),
        (restarts(now) > restarts(before), "container restarted"),
        (has(before, "operating") && !has(now, "operating"), "operation over"),
        (!is_in_traffic(before) && is_in_traffic(now), "in traffic again"),
    ];
    steps.into_iter().filter(|(happened, _)| *happened).map(|(_, step)| step)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn version(number: u64, uid: &str, object: Value) -> Version {
        let (plural, namespace, object) = ("pods".to_owned(), String::new(), Arc::new(object));
        let (name, uid) = (uid.to_owned(), uid.to_owned());
        Version { resource_version: number, plural, namespace, name, uid, object, is_end: false }
    }

    #[test]
    fn leaving_cordoned_and_unready_objects_count_at_the_worst_moment_since_the_mark() {
        let ready = |status: &str| json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
        let with = |field: &str, value: Value| {
            let mut object = ready("True");
            object[field] = value;
            object
        };
        let (leaving, cordoned) =
            (json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), json!({"unschedulable": true}));
        let versions = [
            version(1, "a", ready("True")),
            version(2, "b", ready("False")),
            version(3, "b", ready("True")),
            version(5, "a", with("metadata", leaving)),
            version(6, "c", ready("True")),
            Version { is_end: true, ..version(8, "b", ready("True")) },
            version(9, "c", with("spec", cordoned)),
        ];
        let most = |count: usize, since| most_out_of_service(&versions[..count], 2, since);
        assert_eq!((most(3, 2), most(4, 3), most(6, 1), most(6, 6), most(7, 8)), (0, 1, 1, 1, 2));
    }

    #[test]
    fn restart_of_a_pod_in_traffic_is_seen() {
        let pod = |number: u64, words: &[&str], restarts: u32| {
            let labels: BTreeMap<&str, &str> = words.iter().map(|word| (*word, "1")).collect();
            let statuses = json!([{"name": "app", "restartCount": restarts}]);
            version(number, "a", json!({"metadata": {"labels": labels}, "status": {"containerStatuses": statuses}}))
        };
        let (operating, operate) =
            ("operating.podopslifecycle.kusionstack.io/j", "operate.podopslifecycle.kusionstack.io/j");
        let good = [
            pod(1, &[labels::SERVICE_AVAILABLE], 0),
            pod(2, &[labels::SERVICE_AVAILABLE, operating], 0),
            pod(3, &[operating], 0),
            pod(4, &[operating, operate], 0),
            pod(5, &[operating, operate], 1),
            pod(6, &[operate], 1),
            pod(7, &[labels::SERVICE_AVAILABLE], 1),
        ];
        let seen = passage(good.iter(), 1);
        let steps =
            [BEGUN, "out of traffic", "operation allowed", "container restarted", "operation over", "in traffic again"];
        assert_eq!((seen.steps.as_slice(), seen.restarts, seen.restarts_in_traffic), (&steps[..], 1, 0));
        assert_eq!(passage(good.iter(), 5).restarts, 0);
        let bad = [pod(1, &[labels::SERVICE_AVAILABLE], 0), pod(2, &[labels::SERVICE_AVAILABLE], 1)];
        assert_eq!(passage(bad.iter(), 0).restarts_in_traffic, 1);
    }
}
