//! What a scenario asks of its cluster, and how long it waits for an answer.
//!
//! Takes a rig; yields what is stored, once it is as the scenario wants it. Whoever waits in vain shows what there was.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject, ListParams};
use oarlock_bed::interception::Interceptor;
use oarlock_core::job::key::JobKey;
use oarlock_sim::world::Version;
use serde_json::Value;

use super::{Rig, recorded_kinds};
use crate::jobs::Told;

/// How long a scenario waits for anything: far longer than it takes, for it only ends tests that fail.
const PATIENCE: Duration = Duration::from_secs(300);

/// Time for late watches of the history.
const CAUGHT_UP_WITHIN: Duration = Duration::from_secs(15);

impl Rig {
    /// Waits until `job` is as `which` wants it.
    ///
    /// # Errors
    /// Shows the job as it is when patience ends.
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
                // Longer than all the rest of it.
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

    /// Ledger and events, for whoever has to find out why a scenario failed.
    async fn told(&self) -> String {
        let ledger: Vec<String> =
            self.world.ledger().entries().iter().rev().take(40).rev().map(ToString::to_string).collect();
        let events = self.events().await.unwrap_or_default();
        let events: Vec<String> = events
            .iter()
            .map(|event| format!("{} {}", word(event.reason.as_ref()), word(event.note.as_ref())))
            .collect();
        let writes: Vec<String> = self
            .wires
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
    /// Shows the job as it is when patience ends.
    pub async fn until_progress(&self, name: &str, progress: &str) -> anyhow::Result<DynamicObject> {
        self.until(name, progress, |job| job.progress() == progress).await
    }

    /// Waits until the job is gone.
    ///
    /// # Errors
    /// If it is still there when patience ends.
    pub async fn until_gone(&self, name: &str) -> anyhow::Result<()> {
        patiently("the job is gone", async || Ok(self.jobs().get_opt(name).await?.is_none())).await
    }

    /// Waits until the host has heard that there is no job of this name.
    ///
    /// # Errors
    /// If it has not when patience ends.
    pub async fn until_unknown(&self, name: &str) -> anyhow::Result<()> {
        let key = JobKey { namespace: self.namespace.clone(), name: name.to_owned() };
        patiently("the host knows of no such job", async || Ok(self.running()?.host.cluster.job_uid(&key).is_none()))
            .await
    }

    /// Waits until the pod is as `which` wants it.
    ///
    /// # Errors
    /// If it is not when patience ends.
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

    /// Waits until nothing of ours is left on any pod.
    ///
    /// # Errors
    /// Names what is left when patience ends.
    pub async fn until_nothing_is_left(&self) -> anyhow::Result<()> {
        let waited = patiently("nothing is left", async || Ok(self.leftovers().await?.is_empty())).await;
        anyhow::ensure!(waited.is_ok(), "left behind: {:?}", self.leftovers().await?);
        Ok(())
    }

    /// Waits until the recorded history shows all that is stored: under load its watches are late, each for itself. What they
    /// have not seen in time is left to whoever looks at the history.
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

    /// The events of the namespace, oldest first as the server lists them.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn events(&self) -> anyhow::Result<Vec<Event>> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        Ok(events.list(&ListParams::default()).await?.items)
    }

    /// How often a reason was told.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn told_times(&self, reason: &str) -> anyhow::Result<usize> {
        let events = self.events().await?;
        Ok(events.iter().filter(|event| event.reason.as_deref() == Some(reason)).count())
    }

    /// Waits until a reason was told so often.
    ///
    /// # Errors
    /// If it was not when patience ends.
    pub async fn until_told(&self, reason: &str, times: usize) -> anyhow::Result<()> {
        let what = format!("{reason} is told {times} times");
        let waited = patiently(&what, async || Ok(self.told_times(reason).await? >= times)).await;
        anyhow::ensure!(waited.is_ok(), "never: {what}\n{}", self.told().await);
        Ok(())
    }

    /// What is left of ours on any pod of the namespace: holds and their label, finalizers, replace labels.
    ///
    /// # Errors
    /// What the API server says.
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

/// Waits until the object of this name is as `which` wants it; `Null` stands for one that is not there.
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

/// Asks until the answer is yes.
///
/// # Errors
/// What the question met, or `what` never was.
pub async fn patiently(what: &str, mut question: impl AsyncFnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let begun = tokio::time::Instant::now();
    while !question().await? {
        anyhow::ensure!(begun.elapsed() <= PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}
