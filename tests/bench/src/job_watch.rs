//! Watches the jobs of a namespace. It records each version of a job's status with the moment at which it came, and waits for
//! conditions.
//!
//! It does not read the spec. The spec names every target, and reading it repeatedly would be a load of the bench itself.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt as _;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::{GroupVersionKind, NotUsed, Object};
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Client, ResourceExt as _};
use oarlock_api::OperationJobStatus;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// The wait before a failed watch is retried. A watch fails while the server is away.
const AGAIN: Duration = Duration::from_millis(100);

/// A job without its spec.
type Job = Object<NotUsed, OperationJobStatus>;

/// A status, and the moment at which the watch delivered it.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    pub(crate) at: Instant,
    pub(crate) status: OperationJobStatus,
}

impl Version {
    /// Returns the number of targets that have ended.
    pub(crate) fn ended(&self) -> usize {
        let counts = [self.status.succeeded_pod_count, self.status.failed_pod_count];
        counts.into_iter().flatten().filter_map(|count| usize::try_from(count).ok()).sum()
    }

    /// Returns true if the job has ended.
    pub(crate) fn is_last(&self) -> bool {
        ["Succeeded", "Failed"].contains(&self.progress())
    }

    /// Returns `status.progress`.
    pub(crate) fn progress(&self) -> &str {
        self.status.progress.as_deref().unwrap_or_default()
    }
}

/// The versions of each job by its name, oldest first.
pub(crate) type Versions = BTreeMap<String, Vec<Version>>;

/// A watch that runs until it is dropped.
pub(crate) struct JobWatch {
    seen: Arc<Mutex<Versions>>,
    changes: watch::Receiver<()>,
    task: AbortHandle,
}

impl JobWatch {
    /// Begins to watch. It also sees the jobs that already exist.
    pub(crate) fn start(client: Client, namespace: &str) -> Self {
        let seen = Arc::<Mutex<Versions>>::default();
        let (sender, changes) = watch::channel(());
        let api: Api<Job> = Api::namespaced_with(client, namespace, &resource());
        let task = tokio::spawn(follow(api, seen.clone(), sender)).abort_handle();
        Self { seen, changes, task }
    }

    /// Returns the versions of one job so far.
    pub(crate) fn of(&self, name: &str) -> Vec<Version> {
        self.seen.lock().get(name).cloned().unwrap_or_default()
    }

    /// Returns the versions of all jobs so far.
    pub(crate) fn all(&self) -> Versions {
        self.seen.lock().clone()
    }

    /// Waits until the versions satisfy a condition.
    ///
    /// # Errors
    /// If `longest` passes first. The error names the awaited condition.
    pub(crate) async fn until(
        &self,
        what: &str,
        longest: Duration,
        condition: impl Fn(&Versions) -> bool,
    ) -> anyhow::Result<()> {
        let mut changes = self.changes.clone();
        let held = async {
            loop {
                changes.mark_unchanged();
                if condition(&self.seen.lock()) {
                    return Ok(());
                }
                changes.changed().await.context("the watch of the jobs has ended")?;
            }
        };
        let waited = tokio::time::timeout(longest, held).await;
        waited.with_context(|| format!("waited {longest:?} for {what}, in vain: {}", self.last()))?
    }

    /// Waits until a job has succeeded.
    ///
    /// # Errors
    /// If the job fails, or does not end within `longest`.
    pub(crate) async fn until_succeeded(&self, name: &str, longest: Duration) -> anyhow::Result<Version> {
        let last = |all: &Versions| all.get(name).and_then(|versions| versions.last()).filter(|v| v.is_last()).cloned();
        self.until(&format!("the end of job {name}"), longest, |all| last(all).is_some()).await?;
        let end = last(&self.seen.lock()).context("the job is gone")?;
        anyhow::ensure!(end.progress() == "Succeeded", "job {name} failed: {}", described(&end));
        Ok(end)
    }

    /// Waits until this many jobs have succeeded. No other jobs may exist.
    ///
    /// # Errors
    /// If a job fails, or not all jobs end within `longest`.
    pub(crate) async fn until_all_succeeded(&self, jobs: usize, longest: Duration) -> anyhow::Result<()> {
        let last = |versions: &[Version]| versions.last().filter(|version| version.is_last()).cloned();
        let all_ended = |all: &Versions| all.values().filter(|versions| last(versions).is_some()).count() >= jobs;
        self.until(&format!("the end of {jobs} jobs"), longest, all_ended).await?;
        let failed =
            self.all().into_iter().find(|(_, versions)| last(versions).is_none_or(|v| v.progress() != "Succeeded"));
        let failed = failed.map(|(name, versions)| (name, versions.last().map(described).unwrap_or_default()));
        anyhow::ensure!(failed.is_none(), "a job did not succeed: {failed:?}");
        Ok(())
    }

    fn last(&self) -> String {
        let seen = self.seen.lock();
        let open = seen.iter().filter_map(|(name, versions)| Some((name, versions.last()?)));
        let open = open.filter(|(_, version)| !version.is_last()).take(3);
        open.map(|(name, version)| format!("{name}: {}", described(version))).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for JobWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn described(version: &Version) -> String {
    serde_json::to_string(&version.status).unwrap_or_default()
}

/// Records the events of the watch. After a failure, it waits and the watch retries.
async fn follow(api: Api<Job>, seen: Arc<Mutex<Versions>>, changes: watch::Sender<()>) {
    let mut events = pin!(watcher(api, Config::default()));
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(job) | Event::InitApply(job)) => {
                let (name, status) = (job.name_any(), job.status.unwrap_or_default());
                let mut seen = seen.lock();
                let versions = seen.entry(name).or_default();
                if versions.last().is_none_or(|last| last.status != status) {
                    versions.push(Version { at: Instant::now(), status });
                }
            }
            Ok(Event::Init | Event::InitDone | Event::Delete(_)) => {}
            Err(_) => tokio::time::sleep(AGAIN).await,
        }
        changes.send_replace(());
    }
}

/// Returns the resource of OperationJob.
pub(crate) fn resource() -> ApiResource {
    let kind = GroupVersionKind::gvk("apps.kusionstack.io", "v1alpha1", "OperationJob");
    ApiResource::from_gvk_with_plural(&kind, "operationjobs")
}

/// Returns a Replace job on these targets, with further fields of the spec.
pub(crate) fn replace(name: &str, targets: &[String], further: serde_json::Value) -> DynamicObject {
    let targets: Vec<_> = targets.iter().map(|target| serde_json::json!({ "name": target })).collect();
    let mut spec = serde_json::json!({"action": "Replace", "targets": targets});
    if let (Some(spec), serde_json::Value::Object(further)) = (spec.as_object_mut(), further) {
        spec.extend(further);
    }
    DynamicObject::new(name, &resource()).data(serde_json::json!({ "spec": spec }))
}
