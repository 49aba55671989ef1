//! Reads and waits of scenarios.
//!
//! Takes a test cluster; yields stored objects once they are as the scenario wants. The error of a failed wait shows the last state.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject, ListParams};
use oarlock_core::object::key::JobKey;
use oarlock_sim::world::Version;
use oarlock_support::interception::Interceptor;
use serde_json::Value;

use super::{TestCluster, recorded_kinds};
use crate::flows;
use crate::jobs::Told;
use crate::oracle::unexplained;

/// The time limit of every wait. It is far longer than any wait of a test that passes.
const PATIENCE: Duration = Duration::from_secs(300);

/// The time limit for late watches of the history.
const CAUGHT_UP_WITHIN: Duration = Duration::from_secs(15);

impl TestCluster {
    /// Waits until `which` returns true for the job.
    ///
    /// # Errors
    /// If the time is over. The error shows the job as it is then.
    pub async fn until(
        &self,
        name: &str,
        what: &str,
        which: impl Fn(&DynamicObject) -> bool,
    ) -> anyhow::Result<DynamicObject> {
        let mut seen = None;
        let waited = patiently(what, async || {
            seen = self.jobs().get_opt(name).await?;
            Ok(seen.as_ref().is_some_and(&which))
        })
        .await;
        match (waited, seen) {
            (Ok(()), Some(job)) => Ok(job),
            (waited, mut seen) => {
                // The managed fields are longer than the rest of the job.
                seen.iter_mut().for_each(|job| job.metadata.managed_fields = None);
                let shown = seen.map(|job| serde_json::to_string_pretty(&job)).transpose()?;
                let shown = shown.unwrap_or_else(|| "gone".to_owned());
                anyhow::bail!(
                    "{name} is {shown}\n{:#}\n{}",
                    waited.err().unwrap_or_else(|| anyhow::anyhow!("gone")),
                    self.told().await
                )
            }
        }
    }

    /// Returns the event log, the events and the last writes, for someone who debugs a failed scenario.
    async fn told(&self) -> String {
        let ledger: Vec<String> =
            self.world.ledger().entries().iter().rev().take(40).rev().map(ToString::to_string).collect();
        let events = self.events().await.unwrap_or_default();
        let events: Vec<String> = events
            .iter()
            .map(|event| format!("{} {}", word(event.reason.as_ref()), word(event.note.as_ref())))
            .collect();
        let writes: Vec<String> = self
            .interceptors
            .iter()
            .flat_map(Interceptor::records)
            .map(|sent| format!("{} {} {:?}", sent.verb, sent.path, sent.status))
            .collect();
        let writes = writes.get(writes.len().saturating_sub(30)..).unwrap_or_default();
        format!("ledger:\n{}\nevents:\n{}\nwrites:\n{}", ledger.join("\n"), events.join("\n"), writes.join("\n"))
    }

    /// Waits until the job has this progress.
    ///
    /// # Errors
    /// If the time is over. The error shows the job as it is then.
    pub async fn until_progress(&self, name: &str, progress: &str) -> anyhow::Result<DynamicObject> {
        self.until(name, progress, |job| job.progress() == progress).await
    }

    /// Waits until the job is gone.
    ///
    /// # Errors
    /// If the job still exists when the time is over.
    pub async fn until_gone(&self, name: &str) -> anyhow::Result<()> {
        patiently("the job is gone", async || Ok(self.jobs().get_opt(name).await?.is_none())).await
    }

    /// Waits until the host's cache has no job of this name.
    ///
    /// # Errors
    /// If the cache still has the job when the time is over.
    pub async fn until_unknown(&self, name: &str) -> anyhow::Result<()> {
        let key = JobKey { namespace: self.namespace.clone(), name: name.to_owned() };
        patiently("the host knows of no such job", async || Ok(self.running()?.host.cluster.job_uid(&key).is_none()))
            .await
    }

    /// Waits until `which` returns true for the pod.
    ///
    /// # Errors
    /// If the time is over.
    pub async fn until_pod(
        &self,
        name: &str,
        what: &str,
        which: impl Fn(&DynamicObject) -> bool,
    ) -> anyhow::Result<()> {
        let pods: Api<DynamicObject> = Api::namespaced_with(
            self.client.clone(),
            &self.namespace,
            &kube::api::ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&()),
        );
        patiently(what, async || Ok(pods.get_opt(name).await?.as_ref().is_some_and(&which))).await
    }

    /// Waits until no pod has marks of a host any more.
    ///
    /// # Errors
    /// If the time is over. The error names the marks that are left.
    pub async fn until_nothing_is_left(&self) -> anyhow::Result<()> {
        let waited = patiently("nothing is left", async || Ok(self.leftovers().await?.is_empty())).await;
        anyhow::ensure!(waited.is_ok(), "left behind: {:?}", self.leftovers().await?);
        Ok(())
    }

    /// Waits until the recorded history shows everything that is stored. Under load each of its watches is late
    /// independently. Does not fail if the time is over: the caller's check of the history then finds the gap.
    pub async fn catch_up(&self) {
        for kind in recorded_kinds() {
            let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &self.namespace, &kind);
            let Ok(stored) = api.list(&ListParams::default()).await else { continue };
            let number = |object: &DynamicObject| object.resource_version()?.parse::<u64>().ok();
            let stored: HashMap<String, u64> =
                stored.iter().filter_map(|object| Some((object.name_any(), number(object)?))).collect();
            let is_seen = |versions: &[Version]| {
                let own = versions.iter().filter(|one| one.plural == kind.plural && one.namespace == self.namespace);
                let mut last: HashMap<&str, (u64, bool)> = HashMap::new();
                for one in own {
                    let seen = last.entry(&one.name).or_default();
                    *seen = (*seen).max((one.resource_version, one.is_end));
                }
                let is_new =
                    |(name, number): (&String, &u64)| last.get(name.as_str()).is_some_and(|seen| seen.0 >= *number);
                stored.iter().all(is_new) && last.iter().all(|(name, seen)| seen.1 || stored.contains_key(*name))
            };
            let _ = self.history.until("the history shows what is stored", CAUGHT_UP_WITHIN, is_seen).await;
        }
    }

    /// Returns the events of the namespace, in the order of the API server's list.
    ///
    /// # Errors
    /// If the API server refuses a request.
    pub async fn events(&self) -> anyhow::Result<Vec<Event>> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        Ok(events.list(&ListParams::default()).await?.items)
    }

    /// Returns the reasons that the catalogue of reasons lacks: those in all versions of OperationJobs, and in the flows, OpsJobs and
    /// events that still exist.
    pub(super) async fn unexplained_reasons(&self) -> anyhow::Result<BTreeSet<String>> {
        let jobs = self.history.versions().into_iter().filter(|version| version.plural == "operationjobs");
        let mut objects: Vec<(&str, Arc<Value>)> = jobs.map(|version| ("OperationJob", version.object)).collect();
        for event in self.events().await? {
            objects.push(("Event", Arc::new(serde_json::to_value(event)?)));
        }
        for kind in ["JobFlow", "DaemonJob", "JobTemplate"] {
            let api = Api::namespaced_with(self.client.clone(), &self.namespace, &flows::resource(kind));
            objects.extend(stored(&api).await.into_iter().map(|object| (kind, object)));
        }
        objects.extend(stored(&self.ops()).await.into_iter().map(|object| ("OpsJob", object)));
        Ok(unexplained(objects.iter().map(|(kind, object)| (*kind, &**object))))
    }

    /// Returns the number of events with a reason.
    ///
    /// # Errors
    /// If the API server refuses a request.
    pub async fn told_times(&self, reason: &str) -> anyhow::Result<usize> {
        let events = self.events().await?;
        Ok(events.iter().filter(|event| event.reason.as_deref() == Some(reason)).count())
    }

    /// Waits until there are at least this many events with a reason.
    ///
    /// # Errors
    /// If the time is over.
    pub async fn until_told(&self, reason: &str, times: usize) -> anyhow::Result<()> {
        let what = format!("{reason} is told {times} times");
        let waited = patiently(&what, async || Ok(self.told_times(reason).await? >= times)).await;
        anyhow::ensure!(waited.is_ok(), "never: {what}\n{}", self.told().await);
        Ok(())
    }

    /// Returns the marks of hosts on all pods of the namespace: holds, the label of held pods, finalizers and replace labels.
    ///
    /// # Errors
    /// If the API server refuses a request.
    pub async fn leftovers(&self) -> anyhow::Result<Vec<String>> {
        let mut left = Vec::new();
        for pod in self.pods().list(&ListParams::default()).await? {
            let meta = &pod.metadata;
            let name = meta.name.clone().unwrap_or_default();
            let annotations = meta
                .annotations
                .iter()
                .flatten()
                .map(|(key, _)| key)
                .filter(|key| key.starts_with("hold.oarlock.dev/"));
            let finalizers = meta.finalizers.iter().flatten().filter(|key| key.contains("operationjob.kusionstack.io"));
            let labels = meta
                .labels
                .iter()
                .flatten()
                .map(|(key, _)| key)
                .filter(|key| ["collaset.kusionstack.io/to-replace", "oarlock.dev/held"].contains(&key.as_str()));
            left.extend(annotations.chain(finalizers).chain(labels).map(|mark| format!("{name}: {mark}")));
        }
        Ok(left)
    }
}

fn word(text: Option<&String>) -> &str {
    text.map(String::as_str).unwrap_or_default()
}

/// Waits until `which` returns true for the object of this name. `Null` stands for a missing object.
pub(crate) async fn until_stored(
    objects: Api<DynamicObject>,
    name: &str,
    what: &str,
    which: impl Fn(&Value) -> bool,
) -> anyhow::Result<Value> {
    let mut seen = Value::Null;
    let waited = patiently(what, async || {
        seen = objects.get_opt(name).await?.map_or(Value::Null, |object| object.data);
        Ok(which(&seen))
    })
    .await;
    waited.with_context(|| format!("{name} is {seen:#}"))?;
    Ok(seen)
}

/// Asks the question until the answer is true.
///
/// # Errors
/// If the question fails, or if the time is over. The error names `what`.
pub async fn patiently(what: &str, mut question: impl AsyncFnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let begun = tokio::time::Instant::now();
    while !question().await? {
        anyhow::ensure!(begun.elapsed() <= PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Returns the objects of a kind. A cluster that does not serve the kind has none.
async fn stored(api: &Api<DynamicObject>) -> Vec<Arc<Value>> {
    let list = api.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
    list.into_iter().filter_map(|object| serde_json::to_value(object).ok().map(Arc::new)).collect()
}
