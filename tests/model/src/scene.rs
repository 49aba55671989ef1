//! The scene that a model begins with: a job, its pods, the plugin, and how much may go wrong.

use k8s_openapi::jiff::Timestamp;
use oarlock_core::cluster::object::ObjectKey;
use oarlock_core::job::key::{JobKey, JobRef};
use oarlock_core::job::time::after_seconds;
use oarlock_core::plugin::lookup::PluginLookup;
use serde_json::{Value, json};

use crate::plugin;
use crate::switch::Switch;

/// The namespace of everything.
pub const NAMESPACE: &str = "d";
/// The UID of the job.
pub const JOB_UID: &str = "job-uid";
/// The label by which a plugin marks a pod that is to be replaced.
pub const MARK: &str = "mark";
/// The finalizer by which a plugin keeps a marked pod until its new pod is recorded.
pub const GUARD: &str = "f.io/f";
/// The label by which a new pod names the one that it replaces.
pub const ORIGIN: &str = "origin";

/// How pods are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Each is evicted; the controller makes another one under a new name.
    Evicted,
    /// Each is evicted; the controller makes another one under the same name.
    EvictedUnderItsName,
    /// Each is marked and guarded; the controller makes a new one beside it, and then deletes it.
    Marked,
}

/// How often something may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// A process ends at any point, and starts again.
    pub crashes: u8,
    /// The other process takes the lease, or a process takes back its own.
    pub takeovers: u8,
    /// A request is made and its reply is lost, or it times out and may still be made later.
    pub losses: u8,
    /// The user deletes the job.
    pub deletions: u8,
    /// The user raises the partition.
    pub edits: u8,
    /// Somebody else deletes a pod.
    pub removals: u8,
    /// Time passes to the next due time.
    pub ticks: u8,
}

/// A scene.
#[derive(Clone)]
pub struct Scene {
    /// Its name.
    pub name: &'static str,
    /// How pods are replaced.
    pub way: Way,
    /// The names of the pods that are there; each has its name as UID.
    pub pods: &'static [&'static str],
    /// The spec of the job, beside action and targets.
    pub spec: Value,
    /// The targets.
    pub targets: &'static [&'static str],
    /// How often something may happen.
    pub budget: Budget,
    /// The rule that is switched off.
    pub off: Option<Switch>,
    /// The plugin.
    pub plugin: PluginLookup,
    /// It begins at every point of the life of a job that nothing happens to, and not at its beginning alone.
    pub from_anywhere: bool,
    /// One state in so many has to heal once faults stop.
    pub heal_one_in: u64,
}

impl Scene {
    /// A scene of these pods, all of them targets.
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

    /// The same, with these fields of the spec.
    pub fn with(mut self, fields: &Value) -> Self {
        if let (Some(spec), Some(fields)) = (self.spec.as_object_mut(), fields.as_object()) {
            spec.extend(fields.clone());
        }
        self
    }

    /// The same, from every point of an undisturbed life on.
    pub fn from_anywhere(mut self) -> Self {
        self.from_anywhere = true;
        self
    }

    /// The same, with a rule switched off. Such a scene is small.
    pub fn without(mut self, rule: Switch) -> Self {
        self.off = Some(rule);
        self.heal_one_in = 8;
        self
    }

    /// True if this rule is switched off.
    pub fn lacks(&self, rule: Switch) -> bool {
        self.off == Some(rule)
    }

    /// The job as its user makes it.
    pub fn job(&self) -> Value {
        let mut spec = self.spec.clone();
        spec["action"] = json!("Replace");
        spec["targets"] = self.targets.iter().map(|name| json!({"name": name})).collect();
        json!({"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob",
            "metadata": {"name": "j", "namespace": NAMESPACE, "uid": JOB_UID, "resourceVersion": "1", "generation": 1},
            "spec": spec})
    }

    /// The kind of the controller of the pods.
    pub fn controller(&self) -> &'static str {
        if self.way == Way::EvictedUnderItsName { "StatefulSet" } else { "CloneSet" }
    }
}

/// The deadline of each target, in seconds.
pub const DEADLINE: i64 = 10;

/// The time at `seconds` after the beginning.
pub fn at(seconds: u32) -> Timestamp {
    after_seconds(Timestamp::UNIX_EPOCH, BEGIN.saturating_add(i64::from(seconds)))
}

/// When the pods were made that are there in the beginning.
pub fn before_all() -> Timestamp {
    after_seconds(at(0), -3_600)
}

/// 2026-01-01T00:00:00Z.
const BEGIN: i64 = 1_767_225_600;

/// The first whole second, after the beginning, that is not before `time`.
pub fn second(time: Timestamp) -> u32 {
    let nanoseconds = time.as_nanosecond().saturating_sub(i128::from(BEGIN).saturating_mul(1_000_000_000));
    u32::try_from(nanoseconds.max(0).saturating_add(999_999_999) / 1_000_000_000).unwrap_or(u32::MAX)
}

/// The key of the job.
pub fn job_key() -> JobKey {
    JobKey { namespace: NAMESPACE.into(), name: "j".into() }
}

/// The job.
pub fn job_ref() -> JobRef {
    JobRef { key: job_key(), uid: JOB_UID.into() }
}

/// The key of a pod.
pub fn pod_key(name: &str) -> ObjectKey {
    ObjectKey::pod(NAMESPACE, name)
}
