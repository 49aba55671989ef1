//! The runner of the host tasks, and the tasks that it has begun.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use oarlock_core::object::fields::{list, text};
use oarlock_core::object::quota_key::QuotaKey;
use oarlock_core::object::task_pod::JOB_UID;
use oarlock_core::plugin::grant::TaskRule;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;

use crate::read::target_pod::TargetPod;

/// The runner of the host tasks of this process.
pub trait HostTasks: Send + Sync {
    /// Returns the reason why this process performs no tasks of this kind. Returns `None` if it performs them.
    fn lacks(&self, kind: &str) -> Option<&'static str>;
    /// Begins or continues a task. The runner reports the state of the task with [`crate::Cluster::show_task`].
    fn begin(&self, task: HostTask);
    /// Ends a running task. The runner reports no more state of it.
    fn end(&self, name: &str);
}

/// A task of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTask {
    /// The name of the task. It never changes for one job, target and task.
    pub name: String,
    /// The UID of the OperationJob.
    pub job_uid: String,
    /// The kind of the task, such as `collect-logs`.
    pub kind: String,
    /// The pod that is the target.
    pub target: TargetPod,
    /// The creation time of the job, in RFC 3339.
    pub until: String,
    /// The arguments that the plugin gives.
    pub arguments: Value,
    /// The owner whose slots the task takes: the requester of its OpsJob, or the namespace of its target.
    pub owner: QuotaKey,
    /// The hosts that the task may read besides the registry of its image.
    pub hosts: Vec<String>,
    /// The name of the OperationJob.
    pub job_name: String,
    /// The plugin that requests the task.
    pub plugin: TaskPlugin,
}

/// A plugin that requests a task, and its rules for tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct TaskPlugin {
    /// The name of the plugin.
    pub name: String,
    /// The rules of the plugin's manifest.
    pub manifest: Vec<TaskRule>,
    /// The rules of the plugin's grant.
    pub grant: Vec<TaskRule>,
}

/// The state of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostTaskState {
    /// The task runs. The text describes its progress.
    Running(String),
    /// The task waits for a slot or for its next try. The text says which.
    Waiting(String),
    /// The task succeeded with this output.
    Done(String),
    /// The task failed for this reason.
    Failed(String),
}

/// The runner of the tasks of this process, and the tasks that it has begun.
#[derive(Default)]
pub(crate) struct HostTaskPort {
    pub(super) runner: Mutex<Option<Arc<dyn HostTasks>>>,
    version: AtomicU64,
    pub(super) begun: Mutex<BTreeMap<String, Value>>,
}

impl HostTaskPort {
    /// Returns a number that no version or UID of a task has yet.
    pub(super) fn next(&self) -> u64 {
        self.version.fetch_add(1, Ordering::Relaxed).saturating_add(1)
    }

    /// Records that a task has begun. Returns false if it had begun before.
    pub(super) fn note(&self, name: &str, body: &Value) -> bool {
        let mut begun = self.begun.lock();
        if begun.contains_key(name) {
            return false;
        }
        let mut body = body.clone();
        // A task that begins again in this process is another object.
        if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("uid".to_owned(), format!("{name}-{}", self.next()).into());
        }
        begun.insert(name.to_owned(), body);
        true
    }
}

impl HostTask {
    pub(super) fn read(body: &Value) -> Option<Self> {
        let text = |at: &str| text(body, at).map(str::to_owned);
        Some(Self {
            owner: QuotaKey::Namespace(text("/spec/target/namespace")?),
            name: text("/metadata/name")?,
            job_uid: body.pointer("/metadata/labels")?.get(JOB_UID)?.as_str()?.to_owned(),
            kind: text("/spec/kind")?,
            target: TargetPod {
                namespace: text("/spec/target/namespace")?,
                name: text("/spec/target/name")?,
                uid: text("/spec/target/uid")?,
            },
            until: text("/spec/until")?,
            arguments: body.pointer("/spec/arguments").cloned().unwrap_or_default(),
            hosts: list(body, "/spec/hosts").iter().filter_map(|host| host.as_str().map(str::to_owned)).collect(),
            job_name: text("/spec/jobName").unwrap_or_default(),
            plugin: body.pointer("/spec/plugin").and_then(|of| TaskPlugin::deserialize(of).ok()).unwrap_or_default(),
        })
    }
}
