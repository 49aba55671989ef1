//! An EchoJob as the host sees it.

use k8s_openapi::jiff::Timestamp;
use oarlock_core::cache::object_cache::CachedObject;
use oarlock_core::object::api_object::{Kind, Object, ObjectKey};
use oarlock_core::object::time::{after_seconds, read_time};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The finalizer of a job that may have pods.
pub const FINALIZER: &str = "test.oarlock.dev/pods";

/// Returns the kind EchoJob.
pub fn echo_kind() -> Kind {
    Kind::new("test.oarlock.dev/v1", "EchoJob")
}

/// A stored EchoJob.
#[derive(Clone, Debug)]
pub struct EchoJob {
    /// The metadata.
    pub object: Object,
    /// `spec`. Empty if it is invalid.
    pub spec: EchoSpec,
    /// Why the spec is invalid.
    pub invalid: Option<String>,
    /// `status`.
    pub status: EchoStatus,
}

/// `spec` of an EchoJob.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EchoSpec {
    /// The label selector of the namespaces.
    pub namespace_selector: String,
    /// The image of the pods.
    pub image: String,
    /// The command of the pods. Empty for the command of the image.
    #[serde(default)]
    pub command: Vec<String>,
    /// Seconds from the start after which the job fails.
    pub active_deadline_seconds: Option<i64>,
}

/// `status` of an EchoJob.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EchoStatus {
    /// How far the job is.
    pub phase: Phase,
    /// The namespaces that the selector named at the start, sorted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<Vec<String>>,
    /// Time of the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// Time of the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
    /// The reason of the phase.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// How far an EchoJob is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum Phase {
    /// The namespaces are not known yet.
    #[default]
    Pending,
    /// The pods run.
    Running,
    /// All pods succeeded.
    Succeeded,
    /// A pod failed, or the deadline is over.
    Failed,
}

/// The next step of an EchoJob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The finalizer, so that a deletion waits for the pods.
    Finalizer,
    /// The namespaces.
    Namespaces,
    /// Pods, or their ends.
    Pods,
    /// Its end, because the deadline is over.
    Deadline,
    /// Its end, because its spec is invalid.
    Invalid,
    /// The end of pods that still run.
    Stop,
    /// The end of its pods, and then of the job.
    Cleanup,
    /// Nothing. The job is being deleted without the host.
    Nothing,
}

impl EchoJob {
    /// Reads a stored EchoJob. Returns `None` for a document without a name or a UID.
    pub fn read(document: &Value) -> Option<Self> {
        let object = Object::slim(document, &echo_kind(), &[])?;
        let spec = EchoSpec::deserialize(document.get("spec").unwrap_or(&Value::Null));
        let invalid = spec.as_ref().err().map(|cause| format!("spec: {cause}"));
        let status = document.get("status").and_then(|status| EchoStatus::deserialize(status).ok());
        Some(Self { object, spec: spec.unwrap_or_default(), invalid, status: status.unwrap_or_default() })
    }

    /// Returns what the job needs next.
    pub fn stage(&self, now: Timestamp) -> Stage {
        let has_finalizer = self.object.finalizers.iter().any(|name| name == FINALIZER);
        match (self.object.terminating(), has_finalizer) {
            (true, true) => Stage::Cleanup,
            (true, false) => Stage::Nothing,
            (false, false) => Stage::Finalizer,
            (false, true) if self.status.finished_at.is_some() => Stage::Stop,
            (false, true) if self.invalid.is_some() => Stage::Invalid,
            (false, true) if self.status.namespaces.is_none() => Stage::Namespaces,
            (false, true) if self.deadline().is_some_and(|deadline| deadline <= now) => Stage::Deadline,
            (false, true) => Stage::Pods,
        }
    }

    /// Returns the time after which the job fails, if it has started and has a deadline.
    pub fn deadline(&self) -> Option<Timestamp> {
        let started = read_time(self.status.started_at.as_deref())?;
        Some(after_seconds(started, self.spec.active_deadline_seconds?))
    }

    /// Returns the namespaces, once they are stored.
    pub fn namespaces(&self) -> &[String] {
        self.status.namespaces.as_deref().unwrap_or_default()
    }
}

impl CachedObject for EchoJob {
    fn key(&self) -> ObjectKey {
        self.object.key.clone()
    }

    fn uid(&self) -> &str {
        &self.object.uid
    }

    fn version(&self) -> u64 {
        self.object.version()
    }
}
