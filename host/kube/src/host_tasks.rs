//! Tasks that the host itself does, as the rounds see them: objects in memory, which are made, change and go as pods do.
//!
//! A write to one goes to whoever does the tasks of this process, and to no API server. May not keep one longer than its term.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use oarlock_core::child::fields::{list, text};
use oarlock_core::cluster::object::{Kind, Object, ObjectKey};
use oarlock_core::cluster::store::Indexed;
use oarlock_core::cluster::task_pod::{ContainerEnd, Hindrance, JOB_UID, TaskPod};
use oarlock_core::cluster::writes::{Stopped, Write};
use oarlock_core::ops_job::child::ops_key;
use oarlock_core::ops_job::export::{ExportOrder, ExportTask};
use oarlock_core::plugin::grant::TaskRule;
use oarlock_core::shared::quota_key::QuotaKey;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;

use crate::cluster::{Cluster, Link};
use crate::past_cache::ReadFailed;

/// Whoever does the tasks of this process.
pub trait HostTasks: Send + Sync {
    /// Why no task of this kind is done here; `None` where one is.
    fn lacks(&self, kind: &str) -> Option<&'static str>;
    /// Begins a task, or goes on with it. What becomes of it is told by [`Cluster::show_task`].
    fn begin(&self, task: HostTask);
    /// Ends a task, if it goes on. Nothing more is told of it.
    fn end(&self, name: &str);
}

/// A task of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTask {
    /// Its name: the same for ever for one job, target and task.
    pub name: String,
    /// UID of the OperationJob.
    pub job_uid: String,
    /// Its kind, such as `collect-logs`.
    pub kind: String,
    /// The target's namespace, name and UID.
    pub target: (String, String, String),
    /// When its job was made, in RFC 3339.
    pub until: String,
    /// What its plugin says of it.
    pub arguments: Value,
    /// The owner whose slots the task takes: the requester of its OpsJob, or the namespace of its target.
    pub owner: QuotaKey,
    /// The hosts beside that of its image from which this may be read.
    pub hosts: Vec<String>,
    /// Name of the OperationJob.
    pub job_name: String,
    /// The plugin that asks for it.
    pub plugin: TaskPlugin,
}

/// A plugin that asks for a task, and the tasks that it may.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct TaskPlugin {
    /// Its name.
    pub name: String,
    /// The rules of its manifest.
    pub manifest: Vec<TaskRule>,
    /// The rules of its grant.
    pub grant: Vec<TaskRule>,
}

/// How far a task is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostTaskState {
    /// It goes on, and this says how.
    Running(String),
    /// It waits for its turn or for its next try, and this says for which.
    Waiting(String),
    /// It was done, with this output.
    Done(String),
    /// It could not be done, for this reason.
    Failed(String),
}

/// Who does the tasks of a process, and those that rounds may see.
#[derive(Default)]
pub(crate) struct HostTaskPort {
    runner: Mutex<Option<Arc<dyn HostTasks>>>,
    version: AtomicU64,
    begun: Mutex<BTreeMap<String, Value>>,
}

impl HostTaskPort {
    fn next(&self) -> u64 {
        self.version.fetch_add(1, Ordering::Relaxed).saturating_add(1)
    }

    /// Notes that a task goes on. False where that was known.
    fn note(&self, name: &str, body: &Value) -> bool {
        let mut begun = self.begun.lock();
        if begun.contains_key(name) {
            return false;
        }
        let mut body = body.clone();
        // One that is begun anew in this process is another object.
        if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("uid".to_owned(), format!("{name}-{}", self.next()).into());
        }
        begun.insert(name.to_owned(), body);
        true
    }
}

impl HostTask {
    fn read(body: &Value) -> Option<Self> {
        let text = |at: &str| text(body, at).map(str::to_owned);
        Some(Self {
            owner: QuotaKey::Namespace(text("/spec/target/namespace")?),
            name: text("/metadata/name")?,
            job_uid: body.pointer("/metadata/labels")?.get(JOB_UID)?.as_str()?.to_owned(),
            kind: text("/spec/kind")?,
            target: (text("/spec/target/namespace")?, text("/spec/target/name")?, text("/spec/target/uid")?),
            until: text("/spec/until")?,
            arguments: body.pointer("/spec/arguments").cloned().unwrap_or_default(),
            hosts: list(body, "/spec/hosts").iter().filter_map(|host| host.as_str().map(str::to_owned)).collect(),
            job_name: text("/spec/jobName").unwrap_or_default(),
            plugin: body.pointer("/spec/plugin").and_then(|of| TaskPlugin::deserialize(of).ok()).unwrap_or_default(),
        })
    }
}

impl Link {
    /// Makes a write to a task of the host.
    pub(crate) fn host_task(&self, write: &Write, dry_run: bool) -> Result<Value, Stopped> {
        let object = write.object();
        let refused = |message: &str| Err(Stopped::Refused { message: message.to_owned() });
        let Some(runner) = self.host_tasks.runner.lock().clone() else {
            return refused("this process does no tasks of its own");
        };
        if let Write::Create { body, .. } = write
            && let Some(why) = runner.lacks(text(body, "/spec/kind").unwrap_or_default())
        {
            return refused(why);
        }
        if dry_run {
            return Ok(Value::Null);
        }
        match write {
            Write::Create { body, .. } => {
                let Some(task) = HostTask::read(body) else { return refused("its target is not known") };
                let owner = self.parents.ops.get().and_then(|ops| ops.owner_of(&task.job_uid));
                let task = HostTask { owner: owner.unwrap_or_else(|| task.owner.clone()), ..task };
                if !self.host_tasks.note(&task.name, body) {
                    return Ok(Value::Null);
                }
                self.show(&task.name, HostTaskState::Running(String::new()));
                runner.begin(task);
            }
            Write::Delete { uid, .. } => {
                self.host_tasks.begun.lock().remove(&object.name);
                runner.end(&object.name);
                self.objects.send(self.objects.store.confirm_gone(object, uid), None);
            }
            Write::Patch { .. } | Write::Evict { .. } => return refused("a task is made and deleted, and not changed"),
        }
        Ok(Value::Null)
    }

    fn show(&self, name: &str, state: HostTaskState) {
        let Some(body) = self.host_tasks.begun.lock().get(name).cloned() else { return };
        let Some(object) = Object::slim(&body, &Kind::host_task(), &[]) else { return };
        let resource_version = self.host_tasks.next().to_string();
        self.objects.take(Object { task: Some(Box::new(as_pod(state))), resource_version, ..object });
    }
}

/// How a task fares, as a pod would show it.
fn as_pod(state: HostTaskState) -> TaskPod {
    let end = |exit_code, message| Some(ContainerEnd { exit_code, message, reason: String::new() });
    let hindrance = if matches!(state, HostTaskState::Waiting(_)) { Hindrance::Turn } else { Hindrance::Other };
    let (ended, why) = match state {
        HostTaskState::Running(how) | HostTaskState::Waiting(how) => (None, how),
        HostTaskState::Done(output) => (end(0, output), String::new()),
        HostTaskState::Failed(why) => (end(1, String::new()), why),
    };
    TaskPod { started: true, ended, why, hindrance, ..TaskPod::default() }
}

impl Cluster {
    /// From now on the tasks of this process are done by this one.
    pub fn do_tasks(&self, runner: Arc<dyn HostTasks>) {
        let labels = [JOB_UID.to_owned()].into();
        self.store().keep(&Kind::host_task(), Indexed { labels, ..Indexed::default() });
        *self.link.host_tasks.runner.lock() = Some(runner);
    }

    /// Reads past the cache what is copied for a task whose plugin says no more than that it is to begin: the OpsJob of its job says so.
    ///
    /// # Errors
    /// The API server's sentence. The inner error says why nothing is copied.
    pub async fn export_order(&self, task: &HostTask) -> Result<Result<ExportOrder, String>, ReadFailed> {
        // The OperationJob of an OpsJob has its name, and who makes one of that name is not recorded in its status.
        let Some(document) = self.link.stored(&ops_key(&task.job_name)).await? else {
            return Ok(Err("outside of an OpsJob a copy names its `source`, `target` and `otherwise`".to_owned()));
        };
        let (namespace, _, pod) = &task.target;
        Ok(ExportOrder::read(&document, &ExportTask { job: &task.job_uid, pod: (namespace, pod) }))
    }

    /// Shows the rounds how far a task is.
    pub fn show_task(&self, name: &str, state: HostTaskState) {
        self.link.show(name, state);
    }

    /// Ends all tasks: a term is over, and none of another one is known.
    pub fn end_tasks(&self) {
        let begun = std::mem::take(&mut *self.link.host_tasks.begun.lock());
        let runner = self.link.host_tasks.runner.lock().clone();
        for name in begun.keys() {
            runner.iter().for_each(|runner| runner.end(name));
            let namespace = Some(self.tasks().namespace.clone());
            let key = ObjectKey { kind: Kind::host_task(), namespace, name: name.clone() };
            if let Some(object) = self.store().get(&key) {
                self.link.objects.send(self.store().confirm_gone(&key, &object.uid), None);
            }
        }
    }
}
