//! Exports images for OpsJobs: the task `copy-image` of a target. Source: docs/opsjob.md 12.
//!
//! The host copies the images, and reports the state of each task to the rounds. Copied layers stay in the registry, so
//! a restarted host skips them.
//!
//! A task never shows a credential, and never uses one that its job may not use. The task takes the image of an OpsJob
//! from the job's status, never from the plugin.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use oarlock_core::operation_job::tasks::settings::CommitRegistry;
use oarlock_core::ops_job::export::ExportOrder;
use oarlock_core::plugin::grant::TaskRule;
use oarlock_core::plugin::task::{CopyImage, Task, TaskRequest, repository_of};
use oarlock_core::requests::backoff::Backoff;
use oarlock_core::requests::reads::ReadFailed;
use oarlock_kube::Cluster;
use oarlock_kube::read::target_pod::TargetPod;
use oarlock_kube::tasks::runner::{HostTask, HostTaskState, TaskPlugin};
use oarlock_registry::{
    Copied, CopyFailed, CopyProgress, Credentials, Destination, ImageCopy, Registries, credentials_in,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::task::{AbortHandle, spawn_blocking};
use tokio::time::{Duration, sleep};
use tokio_util::sync::CancellationToken;

use crate::concurrency_limit::ConcurrencyLimit;

/// The number of images that are copied at once, in total and for one owner. The last slot is for an owner without one.
const AT_ONCE: usize = 4;
const OF_OWNER: usize = 2;
/// The message of an export that waits for a slot.
const TURN: &str = "for a free slot: the host copies at most four images at once, and two of one owner";
/// The number of attempts for a copy that a registry breaks off, and the wait before the second attempt, which doubles.
/// Each attempt continues the one before.
const TRIES: u32 = 5;
const RETRIES: Backoff = Backoff::from_secs(5, 60);
/// The shortest time between two progress messages of a copy.
const TELL: Duration = Duration::from_secs(5);
/// The longest output. A longer one could not be read back.
const MOST_OUTPUT: usize = 512;

/// The registry to which images are exported.
#[derive(Clone, Debug)]
pub struct ExportRegistry {
    /// The address, `host[:port]`.
    pub registry: String,
    /// The namespace and the name of the Secret with the registry's credentials.
    pub secret: Option<(String, String)>,
    /// CA certificates for the registry, in PEM, in addition to those of the system.
    pub ca: Option<Vec<u8>>,
    /// Other hosts, `host[:port]`, to which the registry may redirect a push.
    pub hosts: Vec<String>,
    /// The registry from which all images are pulled instead of their own; for in-memory clusters.
    pub mirror: Option<String>,
}

impl ExportRegistry {
    /// Returns a registry at an address of this machine, `host:port`, from which all images are also pulled.
    pub fn in_memory(registry: String) -> Self {
        let mirror = Some(format!("http://{registry}"));
        Self { registry, secret: None, ca: None, hosts: Vec::new(), mirror }
    }

    /// Returns this registry with the settings for pushes from nodes.
    pub fn of_commits(&self) -> CommitRegistry {
        let secret = self.secret.as_ref().map(|(_, name)| name.clone());
        CommitRegistry { registry: self.registry.clone(), secret, hosts: self.hosts.clone() }
    }
}

/// The exporter of images. Clones share the running tasks.
#[derive(Clone)]
pub(crate) struct Images {
    cluster: Cluster,
    exports: Arc<ExportRegistry>,
    places: ConcurrencyLimit,
    tasks: Arc<Mutex<HashMap<String, AbortHandle>>>,
}

/// The reason why an image was not copied.
enum ExportFailed {
    Copy(CopyFailed),
    /// An object that the copy needs could not be read from the API server now.
    Unread(String),
    /// The host may not read an object that the copy needs.
    Unauthorized(String),
    /// The copy can never succeed.
    ForGood(String),
}

impl ExportFailed {
    fn is_for_now(&self) -> bool {
        match self {
            Self::Copy(failed) => failed.is_for_now(),
            Self::Unread(_) => true,
            Self::Unauthorized(_) | Self::ForGood(_) => false,
        }
    }

    /// Returns the reason for programs, and the message.
    fn describe(&self) -> String {
        match self {
            Self::Copy(failed) => format!("{}: {failed}", failed.reason()),
            Self::Unauthorized(why) => format!("Unauthorized: {why}"),
            Self::Unread(why) | Self::ForGood(why) => format!("PushFailed: {why}"),
        }
    }
}

impl Images {
    pub(crate) fn new(cluster: Cluster, exports: ExportRegistry) -> Self {
        let (places, tasks) = (ConcurrencyLimit::new(AT_ONCE, OF_OWNER), Arc::default());
        Self { cluster, exports: Arc::new(exports), places, tasks }
    }

    pub(crate) fn begin(&self, task: HostTask) {
        let (images, name) = (self.clone(), task.name.clone());
        let going = tokio::spawn(async move {
            let state = images.export(&task).await;
            if let HostTaskState::Failed(why) = &state {
                let TargetPod { namespace, name: pod, .. } = &task.target;
                tracing::warn!(namespace, pod, why, "failed to export the image of a pod");
            }
            images.cluster.show_task(&task.name, state);
            images.tasks.lock().remove(&task.name);
        });
        let mut tasks = self.tasks.lock();
        tasks.retain(|_, task| !task.is_finished());
        if let Some(before) = tasks.insert(name, going.abort_handle()) {
            before.abort();
        }
    }

    pub(crate) fn end(&self, name: &str) {
        if let Some(task) = self.tasks.lock().remove(name) {
            task.abort();
        }
    }

    async fn export(&self, task: &HostTask) -> HostTaskState {
        for failures in 0..TRIES {
            let tell = |state| self.cluster.show_task(&task.name, state);
            let place = self.places.take_or_report(&task.owner, || tell(HostTaskState::Waiting(TURN.to_owned()))).await;
            tell(HostTaskState::Running("copying the image".to_owned()));
            let exported = match self.order(task).await {
                Ok(order) => self.copy(task, &order).await,
                Err(failed) => Err(failed),
            };
            drop(place);
            match exported {
                Ok(copied) => {
                    return HostTaskState::Done(export_output(&copied.target, &copied.digest, &copied.left_out));
                }
                Err(failed) if failures.saturating_add(1) < TRIES && failed.is_for_now() => {
                    let wait = RETRIES.wait(failures);
                    let message = format!("tried again after {} s: {}", wait.as_secs(), failed.describe());
                    tell(HostTaskState::Waiting(message));
                    sleep(wait).await;
                }
                Err(failed) => return HostTaskState::Failed(failed.describe()),
            }
        }
        HostTaskState::Failed("PushFailed: it was tried too often".to_owned())
    }

    /// Returns the copy to make. For an OpsJob, the job's status names it; otherwise the plugin does, without Secrets.
    async fn order(&self, task: &HostTask) -> Result<ExportOrder, ExportFailed> {
        let request = TaskRequest { name: "a".to_owned(), kind: task.kind.clone(), arguments: task.arguments.clone() };
        let order = match request.task() {
            Ok(Task::CopyImage(CopyImage { source, target, otherwise, runs, available })) => {
                ExportOrder { source, target, otherwise, runs, available, secrets: Vec::new() }
            }
            Ok(Task::ExportImage) => {
                let order = self.cluster.export_order(task).await.map_err(unread)?;
                order.map_err(ExportFailed::Unauthorized)?
            }
            Ok(_) => return Err(ExportFailed::ForGood("it is no copy of an image".to_owned())),
            Err(why) => return Err(ExportFailed::ForGood(why)),
        };
        // An OpsJob may name another image than the plugin, so the rules are checked again.
        let TaskPlugin { name, manifest, grant } = &task.plugin;
        match TaskRule::forbids_copy(repository_of(&order.source), name, [manifest, grant]) {
            Some(why) => Err(ExportFailed::Unauthorized(why)),
            None => Ok(order),
        }
    }

    async fn copy(&self, task: &HostTask, copy: &ExportOrder) -> Result<Copied, ExportFailed> {
        let ExportRegistry { registry, secret, ca, hosts, mirror } = &*self.exports;
        let namespace = &task.target.namespace;
        let mut source_credentials = Vec::new();
        for name in &copy.secrets {
            // A missing Secret is skipped, as kubelets do.
            source_credentials.extend(self.credentials(namespace, name, repository_of(&copy.source)).await?);
        }
        let target_credentials = match secret {
            None => None,
            Some((namespace, name)) => {
                let (of, _) = copy.target.rsplit_once(':').unwrap_or_default();
                let found = self.credentials(namespace, name, &format!("{registry}/{of}")).await?;
                Some(found.ok_or_else(|| {
                    let message = format!(
                        "the Secret {namespace}/{name} has no credentials for {registry}: a cluster admin adds them"
                    );
                    ExportFailed::ForGood(message)
                })?)
            }
        };
        let asked = ImageCopy {
            source: copy.source.clone(),
            source_credentials,
            hosts: task.hosts.clone(),
            source_base: mirror.clone(),
            target: Destination {
                image: format!("{registry}/{}", copy.target),
                credentials: target_credentials,
                hosts: hosts.clone(),
                ca: ca.clone(),
            },
            otherwise: copy.otherwise.clone(),
            runs: copy.runs.clone(),
            available: copy.available,
        };
        let (cluster, name) = (self.cluster.clone(), task.name.clone());
        let told = Mutex::new(None);
        let tell = move |progress: CopyProgress| {
            let mut told = told.lock();
            if told.is_some_and(|at: Instant| at.elapsed() < TELL) {
                return;
            }
            *told = Some(Instant::now());
            let mebibytes = |bytes: u64| bytes / (1024 * 1024);
            let message =
                format!("copying the image: {} of {} MiB", mebibytes(progress.copied), mebibytes(progress.total));
            cluster.show_task(&name, HostTaskState::Running(message));
        };
        copy_apart(asked, tell).await
    }

    /// Reads the credentials for a registry, or for a path in it, from a Secret.
    async fn credentials(&self, namespace: &str, name: &str, place: &str) -> Result<Option<Credentials>, ExportFailed> {
        match self.cluster.pull_secret(namespace, name).await {
            Ok(config) => Ok(config.and_then(|config| credentials_in(&config, place))),
            Err(failed) => Err(unread(failed)),
        }
    }
}

/// Converts a failed read of the API server into the failure of an export.
fn unread(failed: ReadFailed) -> ExportFailed {
    match failed.is_refused {
        true => ExportFailed::Unauthorized(failed.message),
        false => ExportFailed::Unread(failed.message),
    }
}

/// Copies an image on a separate thread, so that TLS and digests do not delay the renewal of the lease. Dropping the
/// future ends the copy.
async fn copy_apart(
    asked: ImageCopy,
    tell: impl Fn(CopyProgress) + Send + Sync + 'static,
) -> Result<Copied, ExportFailed> {
    let (stop, broken) = (CancellationToken::new(), |why: String| ExportFailed::Unread(why));
    let _ends_with_this = stop.clone().drop_guard();
    let copying = spawn_blocking(move || {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| broken(error.to_string()))?;
        let client = Registries::new().and_then(|client| match &asked.target.ca {
            Some(ca) => client.trusting(ca),
            None => Ok(client),
        });
        let client = client.map_err(|error| broken(error.to_string()))?;
        runtime.block_on(async {
            tokio::select! {
                copied = client.copy(&asked, tell) => copied.map_err(ExportFailed::Copy),
                () = stop.cancelled() => Err(broken("it was stopped".to_owned())),
            }
        })
    });
    copying.await.unwrap_or_else(|_| Err(broken("the copy broke off".to_owned())))
}

/// Returns the output of a task that exported an image. If it is too long, omits first the names of the missing
/// platforms, then the target. The digest always stays.
pub(crate) fn export_output(target: &str, digest: &str, left_out: &[String]) -> String {
    let names = left_out.join(", ");
    let number = format!("{} platforms", left_out.len());
    let said = |target: Option<&str>, left_out: &str| -> Value {
        match left_out {
            "" => json!({"digest": digest, "target": target}),
            _ => json!({"digest": digest, "target": target, "leftOut": left_out}),
        }
    };
    let number = if left_out.is_empty() { "" } else { &number };
    let all = [said(Some(target), &names), said(Some(target), number), said(None, number)].map(|said| said.to_string());
    let [.., least] = &all;
    all.iter().find(|text| text.len() <= MOST_OUTPUT).unwrap_or(least).clone()
}
