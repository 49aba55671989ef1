//! The requests of an OpsJob's effects.

use serde_json::{Value, json};

use crate::cache::object_cache::CachedObject as _;
use crate::ops_job::plan::Effect;
use crate::ops_job::stored::StoredOps;
use crate::ops_job::view::OpsChild;
use crate::requests::scripts;
use crate::requests::writes::Write;

/// The object of an effect, beside the job.
#[derive(Clone, Copy, Debug)]
pub(super) struct EffectContext<'a> {
    /// The job, as the plan saw it.
    pub(super) job: &'a StoredOps,
    /// The OperationJob of the job, if it exists.
    pub(super) child: Option<&'a OpsChild>,
    /// The namespace of the pods of tasks, which read the scripts.
    pub(super) tasks_namespace: &'a str,
}

/// Returns the request of an effect, or `None` if the effect needs no request any more.
pub(super) fn request(effect: &Effect, context: EffectContext<'_>) -> Option<Write> {
    let EffectContext { job, child, tasks_namespace } = context;
    let of_child = job.view.child_key();
    let paused = |paused: bool| {
        let uid = &child?.uid;
        Some(Write::patch(&of_child, json!({"metadata": {"uid": uid}, "spec": {"paused": paused}})))
    };
    match effect {
        Effect::AddFinalizers(names) => Some(own_patch(
            job,
            match job.finalizers {
                None => vec![json!({"op": "add", "path": "/metadata/finalizers", "value": names})],
                Some(_) => {
                    let add = |name| json!({"op": "add", "path": "/metadata/finalizers/-", "value": name});
                    names.iter().map(add).collect()
                }
            },
        )),
        Effect::StoreTargets(resolved, workspace) => {
            let add = |(field, value)| json!({"op": "add", "path": format!("/spec/{field}"), "value": value});
            Some(own_patch(job, resolved.fields(workspace.as_deref()).into_iter().map(add).collect()))
        }
        Effect::CreateChild(body) => {
            let (body, owner_uid) = (body.clone(), job.view.uid.clone());
            Some(Write::Create { object: of_child.clone(), body, owner_uid })
        }
        Effect::StoreScript(text) => Some(scripts::create(text, tasks_namespace, &job.view.uid)),
        Effect::UnpauseChild => paused(false),
        Effect::PauseChild => paused(true),
        Effect::DeleteChild => {
            let OpsChild { uid, version, .. } = child?;
            Some(Write::delete(of_child.clone(), uid, Some(version.to_string())))
        }
        Effect::DropFinalizer(name) => {
            let place = job.finalizers?.place(name)?;
            Some(own_patch(job, vec![json!({"op": "remove", "path": format!("/metadata/finalizers/{place}")})]))
        }
        Effect::DeleteSelf => Some(Write::delete(job.key(), &job.view.uid, Some(job.view.version.clone()))),
    }
}

/// Returns a patch of a job at the version that the host saw.
fn own_patch(job: &StoredOps, operations: Vec<Value>) -> Write {
    Write::patch_at(&job.view.version, job.key(), operations)
}
