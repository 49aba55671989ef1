//! The scenario of a model: a job, its pods, the plugin, and the number of faults.

use k8s_openapi::jiff::Timestamp;
use oarlock_core::object::api_object::ObjectKey;
use oarlock_core::object::key::{JobKey, JobRef};
use oarlock_core::object::time::after_seconds;
use oarlock_core::plugin::lookup::PluginLookup;
use serde_json::{Value, json};

use crate::plugin;
use crate::switch::Switch;

/// The namespace of all objects.
pub const NAMESPACE: &str = "d";
/// The UID of the job.
pub const JOB_UID: &str = "job-uid";
/// The label by which a plugin marks a pod that is to be replaced.
pub const MARK: &str = "mark";
/// The finalizer by which a plugin keeps a marked pod until its new pod is recorded.
pub const GUARD: &str = "f.io/f";
/// The label by which a new pod names the pod that it replaces.
pub const ORIGIN: &str = "origin";

/// The way in which pods are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The host evicts each pod. The controller creates a pod with a new name.
    Evicted,
    /// The host evicts each pod. The controller creates a pod with the same name.
    EvictedUnderItsName,
    /// The host marks and guards each pod. The controller creates a new pod beside it, and then deletes the marked pod.
    Marked,
}

/// How often each event may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// A process dies at any point and restarts.
    pub crashes: u8,
    /// The other process takes the lease, or a process takes its own lease again.
    pub takeovers: u8,
    /// The reply to a request is lost, or the request times out and the API server may still carry it out later.
    pub losses: u8,
    /// The user deletes the job.
    pub deletions: u8,
    /// The user raises the partition.
    pub edits: u8,
    /// Another client deletes a pod.
    pub removals: u8,
    /// Time passes to the next due time.
    pub ticks: u8,
}

/// The start, the rules and the faults of one model.
#[derive(Clone)]
pub struct Scenario {
    /// The name of the scenario.
    pub name: &'static str,
    /// The way in which pods are replaced.
    pub way: Way,
    /// The names of the existing pods. The UID of each pod is its name.
    pub pods: &'static [&'static str],
    /// The spec of the job, without action and targets.
    pub spec: Value,
    /// The names of the targets.
    pub targets: &'static [&'static str],
    /// How often each event may happen.
    pub budget: Budget,
    /// The rule that is switched off.
    pub off: Option<Switch>,
    /// The plugin.
    pub plugin: PluginLookup,
    /// True if the model begins at every state of a job's undisturbed run, not only at the first.
    pub from_anywhere: bool,
    /// The model checks one in this many states for healing once faults stop.
    pub heal_one_in: u64,
}

impl Scenario {
    /// Creates a scenario with these pods. All of them are targets.
    pub fn new(name: &'static str, way: Way, pods: &'static [&'static str], budget: Budget) -> Self {
        let spec = json!({"activeDeadlineSeconds": DEADLINE});
        Self {
            name,
            way,
            pods,
            spec,
            targets: pods,
            budget,
            off: None,
            plugin: plugin::lookup(),
            from_anywhere: false,
            heal_one_in: 512,
        }
    }

    /// Adds fields to the spec of the job.
    pub fn with(mut self, fields: &Value) -> Self {
        if let (Some(spec), Some(fields)) = (self.spec.as_object_mut(), fields.as_object()) {
            spec.extend(fields.clone());
        }
        self
    }

    /// Makes the model begin at every state of an undisturbed run.
    pub fn from_anywhere(mut self) -> Self {
        self.from_anywhere = true;
        self
    }

    /// Switches a rule off. The model then checks more states for healing, because such a scenario is small.
    pub fn without(mut self, rule: Switch) -> Self {
        self.off = Some(rule);
        self.heal_one_in = 8;
        self
    }

    /// Returns true if this rule is switched off.
    pub fn lacks(&self, rule: Switch) -> bool {
        self.off == Some(rule)
    }

    /// Returns the job as the user creates it.
    pub fn job(&self) -> Value {
        let mut spec = self.spec.clone();
        spec["action"] = json!("Replace");
        spec["targets"] = self.targets.iter().map(|name| json!({"name": name})).collect();
        json!({"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob",
            "metadata": {"name": "j", "namespace": NAMESPACE, "uid": JOB_UID, "resourceVersion": "1", "generation": 1},
            "spec": spec})
    }

    /// Returns the kind of the controller of the pods.
    pub fn controller(&self) -> &'static str {
        if self.way == Way::EvictedUnderItsName { "StatefulSet" } else { "CloneSet" }
    }
}

/// The deadline of each target, in seconds.
pub const DEADLINE: i64 = 10;

/// Returns the time `seconds` after the start.
pub fn at(seconds: u32) -> Timestamp {
    after_seconds(Timestamp::UNIX_EPOCH, BEGIN.saturating_add(i64::from(seconds)))
}

/// Returns the creation time of the pods that exist at the start.
pub fn before_all() -> Timestamp {
    after_seconds(at(0), -3_600)
}

/// Start of the model as Unix time: 2026-01-01T00:00:00Z.
const BEGIN: i64 = 1_767_225_600;

/// Returns the first whole second after the start that is not before `time`.
pub fn second(time: Timestamp) -> u32 {
    let nanoseconds = time.as_nanosecond().saturating_sub(i128::from(BEGIN).saturating_mul(1_000_000_000));
    u32::try_from(nanoseconds.max(0).saturating_add(999_999_999) / 1_000_000_000).unwrap_or(u32::MAX)
}

/// Returns the key of the job.
pub fn job_key() -> JobKey {
    JobKey { namespace: NAMESPACE.into(), name: "j".into() }
}

/// Returns the key and UID of the job.
pub fn job_ref() -> JobRef {
    JobRef { key: job_key(), uid: JOB_UID.into() }
}

/// Returns the key of a pod.
pub fn pod_key(name: &str) -> ObjectKey {
    ObjectKey::pod(NAMESPACE, name)
}
