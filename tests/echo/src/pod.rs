//! The pods of an EchoJob.

use oarlock_core::cache::object_cache::CachedObject;
use oarlock_core::object::api_object::{Kind, Object, ObjectKey};
use oarlock_core::object::fields::text;
use oarlock_core::requests::writes::Write;
use serde_json::{Value, json};

use crate::job::{EchoJob, echo_kind};

/// The label of a pod with the name of its EchoJob.
pub const LABEL: &str = "test.oarlock.dev/echojob";

/// A pod that an EchoJob owns.
#[derive(Clone, Debug)]
pub struct EchoPod {
    /// The metadata.
    pub object: Object,
    /// `status.phase`.
    pub phase: String,
}

impl EchoPod {
    /// Reads a pod. Returns `None` if no EchoJob owns it.
    pub fn read(document: &Value) -> Option<Self> {
        let object = Object::slim(document, &Kind::pod(), &[])?;
        object.controller().filter(|owner| owner.kind == echo_kind())?;
        let phase = text(document, "/status/phase").unwrap_or_default().to_owned();
        Some(Self { object, phase })
    }

    /// Returns true if the pod succeeded.
    pub fn has_succeeded(&self) -> bool {
        self.phase == "Succeeded"
    }

    /// Returns true if the pod succeeded or failed.
    pub fn has_ended(&self) -> bool {
        self.has_succeeded() || self.phase == "Failed"
    }

    /// Returns the deletion of the pod, unless it has begun.
    pub fn deletion(&self) -> Option<Write> {
        let Object { key, uid, .. } = &self.object;
        (!self.object.terminating()).then(|| Write::delete(key.clone(), uid, None))
    }
}

/// Returns the name of the pods of a job. It is the same in each namespace.
pub fn pod_name(job: &EchoJob) -> String {
    format!("echo-{}", job.object.key.name)
}

/// Returns the creation of a job's pod in a namespace.
pub fn creation(job: &EchoJob, namespace: &str) -> Write {
    let (name, owner) = (pod_name(job), &job.object);
    let Kind { api_version, kind } = echo_kind();
    let body = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {LABEL: owner.key.name}, "ownerReferences": [
            {"apiVersion": api_version, "kind": kind, "name": owner.key.name, "uid": owner.uid, "controller": true}]},
        "spec": {"restartPolicy": "Never", "automountServiceAccountToken": false,
            "containers": [{"name": "echo", "image": job.spec.image, "command": job.spec.command}]},
    });
    Write::Create { object: ObjectKey::pod(namespace, name), body, owner_uid: owner.uid.clone() }
}

impl CachedObject for EchoPod {
    fn key(&self) -> ObjectKey {
        self.object.key.clone()
    }

    fn uid(&self) -> &str {
        &self.object.uid
    }

    fn version(&self) -> u64 {
        self.object.version()
    }

    fn owner_uid(&self) -> Option<&str> {
        self.object.controller().map(|owner| owner.uid.as_str())
    }
}
