//! Exports images for OpsJobs: the task `copy-image` of a target. Source: docs/opsjob.md 12.
//!
//! Takes tasks; tells the rounds what becomes of them. What a copy has brought into the registry stays there: a host that is killed begins
//! anew, and skips it. May not show a credential, nor use one that its job may not, nor take from a plugin what an OpsJob says.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use oarlock_core::ops_job::export::ExportOrder;
use oarlock_core::plugin::grant::TaskRule;
use oarlock_core::plugin::task::{CopyImage, Task, TaskRequest, repository_of};
use oarlock_core::round::task_settings::CommitRegistry;
use oarlock_kube::host_tasks::{HostTask, HostTaskState, TaskPlugin};
use oarlock_kube::{Cluster, ReadFailed};
use oarlock_registry::{
    Copied, CopyFailed, CopyProgress, Credentials, Destination, ImageCopy, Registries, credentials_in,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::task::{AbortHandle, spawn_blocking};
use tokio::time::{Duration, sleep};
use tokio_util::sync::CancellationToken;

use crate::places::WorkPlaces;

/// Images that are copied at once, in all and of one owner. The last place is for an owner that has none.
const AT_ONCE: usize = 4;
const OF_OWNER: usize = 2;
/// The message of an export that waits for its turn.
const TURN: &str = "for its turn: four images are copied at once, and two of one owner";
/// How often a copy is tried that a registry ends, and the wait before the second time, which doubles. Each try goes on where the one
/// before has ended.
const TRIES: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_secs(5);
/// Least time between two words on how far a copy is.
const TELL: Duration = Duration::from_secs(5);
/// Longest output: what is longer could not be read back.
const MOST_OUTPUT: usize = 512;

/// The registry to which images are exported.
#[derive(Clone, Debug)]
pub struct ExportRegistry {
    /// `host[:port]`.
    pub registry: String,
    /// The namespace and name of the Secret with its credentials.
    pub secret: Option<(String, String)>,
    /// The certificates that it may have, in PEM, beside those of the system.
    pub ca: Option<Vec<u8>>,
    /// Further hosts, `host[:port]`, to which it may send whoever pushes.
    pub hosts: Vec<String>,
    /// Where all images are pulled from, in place of their own registries: of a cluster in memory.
    pub mirror: Option<String>,
}

impl ExportRegistry {
    /// A registry at this address of this machine, `host:port`, from which all images are pulled as well.
    pub fn in_memory(registry: String) -> Self {
        let mirror = Some(format!("http://{registry}"));
        Self { registry, secret: None, ca: None, hosts: Vec::new(), mirror }
    }

    /// The same registry, as nodes push to it.
    pub fn of_commits(&self) -> CommitRegistry {
        let secret = self.secret.as_ref().map(|(_, name)| name.clone());
        CommitRegistry { registry: self.registry.clone(), secret, hosts: self.hosts.clone() }
    }
}

/// Exports images. Clones share what goes on.
#[derive(Clone)]
pub(crate) struct Images {
    cluster: Cluster,
    exports: Arc<ExportRegistry>,
    places: WorkPlaces,
    tasks: Arc<Mutex<HashMap<String, AbortHandle>>>,
}

/// Why an image was not copied.
enum ExportFailed {
    Copy(CopyFailed),
    /// What it needs of the API server cannot be read now.
    Unread(String),
    /// What it needs may not be read.
    Unauthorized(String),
    /// It never will be.
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

    /// The reason for programs, and the words.
    fn words(&self) -> String {
        match self {
            Self::Copy(failed) => format!("{}: {failed}", failed.reason()),
            Self::Unauthorized(why) => format!("Unauthorized: {why}"),
            Self::Unread(why) | Self::ForGood(why) => format!("PushFailed: {why}"),
        }
    }
}

impl Images {
    pub(crate) fn new(cluster: Cluster, exports: ExportRegistry) -> Self {
        let (places, tasks) = (WorkPlaces::new(AT_ONCE, OF_OWNER), Arc::default());
        Self { cluster, exports: Arc::new(exports), places, tasks }
    }

    pub(crate) fn begin(&self, task: HostTask) {
        let (images, name) = (self.clone(), task.name.clone());
        let going = tokio::spawn(async move {
            let state = images.export(&task).await;
            if let HostTaskState::Failed(why) = &state {
                let (namespace, pod, _) = &task.target;
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
        let mut wait = FIRST_WAIT;
        for left in (0..TRIES).rev() {
            let tell = |state| self.cluster.show_task(&task.name, state);
            let place = self.places.take_or_tell(&task.owner, || tell(HostTaskState::Waiting(TURN.to_owned()))).await;
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
                Err(failed) if left > 0 && failed.is_for_now() => {
                    let words = format!("tried again after {} s: {}", wait.as_secs(), failed.words());
                    tell(HostTaskState::Waiting(words));
                    sleep(wait).await;
                    wait = wait.saturating_mul(2);
                }
                Err(failed) => return HostTaskState::Failed(failed.words()),
            }
        }
        HostTaskState::Failed("PushFailed: it was tried too often".to_owned())
    }

    /// Returns the copy to make: for an OpsJob as its status says, otherwise as the plugin names it, without Secrets.
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
        // The rules were compared with what the plugin named, and an OpsJob may name another image.
        let TaskPlugin { name, manifest, grant } = &task.plugin;
        match TaskRule::forbids_copy(repository_of(&order.source), name, [manifest, grant]) {
            Some(why) => Err(ExportFailed::Unauthorized(why)),
            None => Ok(order),
        }
    }

    async fn copy(&self, task: &HostTask, copy: &ExportOrder) -> Result<Copied, ExportFailed> {
        let ExportRegistry { registry, secret, ca, hosts, mirror } = &*self.exports;
        let (namespace, _, _) = &task.target;
        let mut source_credentials = Vec::new();
        for name in &copy.secrets {
            // One that is gone is one less: kubelets have it so, too.
            source_credentials.extend(self.credentials((namespace, name), repository_of(&copy.source)).await?);
        }
        let target_credentials = match secret {
            None => None,
            Some((namespace, name)) => {
                let (of, _) = copy.target.rsplit_once(':').unwrap_or_default();
                let found = self.credentials((namespace, name), &format!("{registry}/{of}")).await?;
                Some(found.ok_or_else(|| {
                    let words = format!(
                        "the Secret {namespace}/{name} has no credentials for {registry}: a cluster admin adds them"
                    );
                    ExportFailed::ForGood(words)
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
            let words =
                format!("copying the image: {} of {} MiB", mebibytes(progress.copied), mebibytes(progress.total));
            cluster.show_task(&name, HostTaskState::Running(words));
        };
        copy_apart(asked, tell).await
    }

    /// The credentials for a registry, or what is at this place in it, in a Secret, by its namespace and name.
    async fn credentials(
        &self,
        (namespace, name): (&str, &str),
        place: &str,
    ) -> Result<Option<Credentials>, ExportFailed> {
        match self.cluster.pull_secret(namespace, name).await {
            Ok(config) => Ok(config.and_then(|config| credentials_in(&config, place))),
            Err(failed) => Err(unread(failed)),
        }
    }
}

/// Makes the failure of an export from a failed read of the API server.
fn unread(failed: ReadFailed) -> ExportFailed {
    match failed.is_refused {
        true => ExportFailed::Unauthorized(failed.message),
        false => ExportFailed::Unread(failed.message),
    }
}

/// Copies an image on a thread of its own, so that neither TLS nor digests delay the lease. Dropped, it ends the copy.
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

/// The output of a task that has exported an image. A name that is too long is left out, and before that the names of the platforms that
/// were not there: the digest is what counts.
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
