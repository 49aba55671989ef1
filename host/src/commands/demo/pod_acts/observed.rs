//! What a bystander saw of the pods: each version of each of them, by a watch of its own.
//!
//! Takes the versions; yields how many pods of a set were out of service at once, and through which steps a pod went. It knows
//! nothing of jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ApiResource;
use oarlock_sim::world::{History, Version, labels};
use serde_json::Value;

use super::super::stage::Stage;

/// The watch of a bystander.
pub(super) struct Observations {
    history: History,
}

/// A moment, as the newest resource version seen until then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark(u64);

/// The steps of an operation on one pod, in their order, as its versions showed them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Passage {
    pub(super) steps: Vec<&'static str>,
    /// How often a container was restarted.
    pub(super) restarts: i64,
    /// How many of these restarts showed while the pod got traffic.
    pub(super) restarts_in_traffic: i64,
}

impl Observations {
    /// Watches from now on.
    pub(super) fn begin(stage: &Stage) -> Self {
        Self { history: History::record(&stage.client(), vec![ApiResource::erase::<Pod>(&())]) }
    }

    /// This moment, once everything that these pods show was seen.
    pub(super) async fn mark(&self, pods: &[Pod], patience: Duration) -> anyhow::Result<Mark> {
        let shown: Vec<(&str, u64)> = pods.iter().filter_map(shown).collect();
        let is_seen = |(uid, number): &(&str, u64), all: &[Version]| {
            all.iter().any(|version| version.uid == *uid && version.resource_version >= *number)
        };
        let all_seen = |all: &[Version]| shown.iter().all(|one| is_seen(one, all));
        self.history.until("the newest versions of the pods", patience, all_seen).await.context("the watch lags")?;
        Ok(Mark(self.history.versions().last().map_or(0, |version| version.resource_version)))
    }

    /// How many of the `wanted` pods of an app did not serve, at the worst version of any pod since a mark.
    pub(super) fn most_out_of_service(&self, app: &str, wanted: usize, since: Mark) -> usize {
        most_out_of_service(&self.history.versions(), app, wanted, since)
    }

    /// What a pod went through since a mark.
    pub(super) fn passage(&self, uid: &str, since: Mark) -> Passage {
        let versions = self.history.versions();
        passage(versions.iter().filter(|version| version.uid == uid), since)
    }

    /// The names of the pods on which an operation began since a mark.
    pub(super) fn operated_on(&self, since: Mark) -> BTreeSet<String> {
        let versions = self.history.versions();
        let began = |version: &&Version| {
            let of_pod = versions.iter().filter(|other| other.uid == version.uid);
            passage(of_pod, since).steps.contains(&BEGUN)
        };
        versions.iter().filter(began).map(|version| version.name.clone()).collect()
    }
}

/// UID and resource version of a pod.
fn shown(pod: &Pod) -> Option<(&str, u64)> {
    Some((pod.metadata.uid.as_deref()?, pod.metadata.resource_version.as_ref()?.parse().ok()?))
}

fn most_out_of_service(versions: &[Version], app: &str, wanted: usize, since: Mark) -> usize {
    let mut serving = BTreeMap::new();
    let mut most = 0;
    for version in versions.iter().filter(|version| version.at("/metadata/labels/app") == app) {
        serving.insert(version.uid.as_str(), !version.is_end && serves(version));
        if version.resource_version > since.0 {
            let now = serving.values().filter(|serves| **serves).count();
            most = most.max(wanted.saturating_sub(now));
        }
    }
    most
}

/// It is ready, and not being deleted.
fn serves(version: &Version) -> bool {
    let conditions = version.at("/status/conditions").as_array().into_iter().flatten();
    let mut ready = conditions.filter(|one| one.get("type").is_some_and(|kind| kind == "Ready"));
    version.at("/metadata/deletionTimestamp").is_null()
        && ready.any(|one| one.get("status").is_some_and(|status| status == "True"))
}

/// The step with which an operation begins.
const BEGUN: &str = "operation announced";

fn passage<'a>(versions: impl Iterator<Item = &'a Version>, since: Mark) -> Passage {
    let mut passage = Passage::default();
    let mut before: Option<Facts> = None;
    for version in versions {
        let now = Facts::of(version);
        if let Some(before) = before.filter(|_| version.resource_version > since.0) {
            passage.steps.extend(before.steps_to(&now));
            let restarts = now.restarts.saturating_sub(before.restarts);
            passage.restarts = passage.restarts.saturating_add(restarts);
            if now.in_traffic || before.in_traffic {
                passage.restarts_in_traffic = passage.restarts_in_traffic.saturating_add(restarts);
            }
        }
        before = Some(now);
    }
    passage
}

/// What one version of a pod shows of an operation.
#[derive(Clone, Copy)]
struct Facts {
    announced: bool,
    allowed: bool,
    in_traffic: bool,
    restarts: i64,
}

impl Facts {
    fn of(version: &Version) -> Self {
        let all = version.at("/metadata/labels").as_object();
        let has = |word: &str| {
            let begin = format!("{word}.{}/", labels::LIFECYCLE);
            all.is_some_and(|labels| labels.keys().any(|key| key.starts_with(&begin)))
        };
        let statuses = version.at("/status/containerStatuses").as_array().into_iter().flatten();
        Self {
            announced: has("operating"),
            allowed: has("operate"),
            in_traffic: all.is_some_and(|labels| labels.contains_key(labels::SERVICE_AVAILABLE)),
            restarts: statuses.filter_map(|status| status.get("restartCount").and_then(Value::as_i64)).sum(),
        }
    }

    fn steps_to(self, now: &Self) -> impl Iterator<Item = &'static str> {
        let steps = [
            (!self.announced && now.announced, BEGUN),
            (self.in_traffic && !now.in_traffic, "out of traffic"),
            (!self.allowed && now.allowed, "operation allowed"),
            (now.restarts > self.restarts, "container restarted"),
            (self.announced && !now.announced, "operation over"),
            (!self.in_traffic && now.in_traffic, "in traffic again"),
        ];
        steps.into_iter().filter(|(happened, _)| *happened).map(|(_, step)| step)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn version(number: u64, uid: &str, object: Value) -> Version {
        let (plural, namespace) = ("pods".to_owned(), "default".to_owned());
        let (name, uid, object) = (uid.to_owned(), uid.to_owned(), Arc::new(object));
        Version { resource_version: number, plural, namespace, name, uid, object, is_end: false }
    }

    fn web(number: u64, uid: &str, ready: &str) -> Version {
        let conditions = json!([{"type": "Ready", "status": ready}]);
        version(number, uid, json!({"metadata": {"labels": {"app": "web"}}, "status": {"conditions": conditions}}))
    }

    #[test]
    fn worst_moment_counts_and_only_since_the_mark() {
        let mut leaving = web(5, "a", "True");
        leaving.object = Arc::new({
            let mut object = (*leaving.object).clone();
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            object
        });
        let end = Version { is_end: true, ..web(8, "b", "True") };
        let other = version(9, "x", json!({"metadata": {"labels": {"app": "foo"}}}));
        let versions =
            [web(1, "a", "True"), web(2, "b", "False"), web(3, "b", "True"), leaving, web(6, "c", "True"), end, other];
        assert_eq!(most_out_of_service(&versions, "web", 2, Mark(0)), 1);
        assert_eq!(most_out_of_service(&versions[..4], "web", 2, Mark(3)), 1);
        assert_eq!(most_out_of_service(&versions[..3], "web", 2, Mark(2)), 0);
        let both = [web(1, "a", "True"), web(2, "b", "True"), web(3, "a", "False"), web(4, "b", "False")];
        assert_eq!(most_out_of_service(&both, "web", 2, Mark(2)), 2);
    }

    #[test]
    fn restart_of_a_pod_in_traffic_is_seen() {
        let pod = |number: u64, words: &[&str], restarts: u32| {
            let labels: BTreeMap<&str, &str> = words.iter().map(|word| (*word, "1")).collect();
            let statuses = json!([{"name": "app", "restartCount": restarts}]);
            version(number, "a", json!({"metadata": {"labels": labels}, "status": {"containerStatuses": statuses}}))
        };
        let operating = "operating.podopslifecycle.kusionstack.io/j";
        let operate = "operate.podopslifecycle.kusionstack.io/j";
        let good = [
            pod(1, &[labels::SERVICE_AVAILABLE], 0),
            pod(2, &[labels::SERVICE_AVAILABLE, operating], 0),
            pod(3, &[operating], 0),
            pod(4, &[operating, operate], 0),
            pod(5, &[operating, operate], 1),
            pod(6, &[operate], 1),
            pod(7, &[labels::SERVICE_AVAILABLE], 1),
        ];
        let seen = passage(good.iter(), Mark(1));
        let steps =
            [BEGUN, "out of traffic", "operation allowed", "container restarted", "operation over", "in traffic again"];
        assert_eq!((seen.steps.as_slice(), seen.restarts, seen.restarts_in_traffic), (&steps[..], 1, 0));
        assert_eq!(passage(good.iter(), Mark(5)).restarts, 0);
        let bad = [pod(1, &[labels::SERVICE_AVAILABLE], 0), pod(2, &[labels::SERVICE_AVAILABLE], 1)];
        assert_eq!(passage(bad.iter(), Mark(0)).restarts_in_traffic, 1);
    }
}
