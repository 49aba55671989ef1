//! Tasks that the host performs itself. Rounds see them as objects in the cache, which are created, change and are deleted like pods.
//!
//! A write to such an object goes to the task runner of this process, and not to the API server. A task must not outlive its term.

use std::sync::Arc;

use oarlock_core::cache::store::Indexed;
use oarlock_core::object::api_object::{Kind, Object, ObjectKey};
use oarlock_core::object::fields::text;
use oarlock_core::object::task_pod::{ContainerEnd, Hindrance, JOB_UID, TaskPod};
use oarlock_core::ops_job::export::{ExportOrder, ExportTask};
use oarlock_core::ops_job::names::ops_key;
use oarlock_core::requests::reads::ReadFailed;
use oarlock_core::requests::writes::{Stopped, Write};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::link::Link;
use crate::read::target_pod::TargetPod;
use crate::tasks::runner::{HostTask, HostTaskState, HostTasks};

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
                let owner = self.owners.kinds().iter().find_map(|kind| kind.quota_of(&task.job_uid));
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

/// Returns the state of a task in the form in which a pod shows it.
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
    /// Sets the runner of the tasks of this process from now on.
    pub fn do_tasks(&self, runner: Arc<dyn HostTasks>) {
        let labels = [JOB_UID.to_owned()].into();
        self.store().keep(&Kind::host_task(), Indexed { labels, ..Indexed::default() });
        *self.link.host_tasks.runner.lock() = Some(runner);
    }

    /// Reads live which image the OpsJob of a task copies, for a task whose plugin gives no arguments.
    ///
    /// # Errors
    /// If the read fails, with the message of the API server. The inner error is the reason why the task copies nothing.
    pub async fn export_order(&self, task: &HostTask) -> Result<Result<ExportOrder, String>, ReadFailed> {
        // The OperationJob of an OpsJob has the name of the OpsJob. The status of the OpsJob records the UID of its OperationJob, so
        // another OperationJob with this name gets no order.
        let Some(document) = self.link.stored(&ops_key(&task.job_name)).await? else {
            return Ok(Err("outside of an OpsJob a copy names its `source`, `target` and `otherwise`".to_owned()));
        };
        let TargetPod { namespace, uid, .. } = &task.target;
        Ok(ExportOrder::read(&document, &ExportTask { job: &task.job_uid, pod: (namespace, uid) }))
    }

    /// Shows the state of a task to the rounds.
    pub fn show_task(&self, name: &str, state: HostTaskState) {
        self.link.show(name, state);
    }

    /// Ends all tasks, because a term is over and the next term knows none of them.
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
