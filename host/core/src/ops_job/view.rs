//! An OpsJob and its OperationJob, as a reconcile sees them.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::attempts::progress::block;
use crate::cache::object_cache::CachedObject;
use crate::kind::locks::{ClaimOrder, TargetLock};
use crate::object::api_object::ObjectKey;
use crate::object::bound::cut;
use crate::object::bound::shown_cause;
use crate::object::fields::{flag, list, number, text};
use crate::object::key::JobKey;
use crate::object::own::OPS_NAMESPACE;
use crate::object::quota_key::QuotaKey;
use crate::object::time::read_time;
use crate::operation_job::spec::REFUSALS;
use crate::operation_job::state::waits_of;
use crate::ops_job::names::{API_VERSION, OPS_KIND, SKIPPED};
use crate::ops_job::phases::OpsStatus;
use crate::ops_job::spec::OpsType;
use crate::ops_job::targets::Resolved;

/// A stored OpsJob.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpsJobView {
    /// Name of the job.
    pub name: String,
    /// UID of the job.
    pub uid: String,
    /// Type of the job, if the type is valid.
    pub kind: Option<OpsType>,
    /// resourceVersion of the job.
    pub version: String,
    /// Place among the jobs that were created in the same second, once the controller has set it.
    pub seq: Option<i64>,
    /// The resourceVersion at which the host first saw the job.
    pub first_version: i64,
    /// Time of creation.
    pub created: Option<Timestamp>,
    /// True if the job is being deleted.
    pub deleting: bool,
    /// True if the job has the finalizer of a job that may have targets.
    pub has_ops_finalizer: bool,
    /// True if the job has the finalizer of a job whose last state the history must get.
    pub has_history_finalizer: bool,
    /// The name of the requester. Empty if the job names none.
    pub requester: String,
    /// True if the spec asks to stop the job.
    pub stops: bool,
    /// Seconds that the job stays after its end. `None` means forever.
    pub ttl: Option<i64>,
    /// The stored bytes of the job, as long as its targets are not stored.
    pub bytes: usize,
    /// The targets with name and UID, and the skipped nodes, once they are stored.
    pub targets: Option<Resolved>,
    /// Status of the job.
    pub status: OpsStatus,
}

impl OpsJobView {
    /// Returns the place among the jobs that were created in the same second. It is the place in the status, or the version at which the host first
    /// saw the job.
    pub fn place_in_second(&self) -> i64 {
        self.seq.unwrap_or(self.first_version)
    }

    /// Returns the targets that the job holds.
    pub fn locks(&self) -> Vec<TargetLock> {
        let targets = self.targets.iter().flat_map(|resolved| &resolved.targets);
        targets.map(|(_, uid)| lock_of(self.kind, uid)).collect()
    }

    /// Returns the key whose shares the job's OperationJob uses. It is the key of the requester, or of the OperationJob's namespace if there is no
    /// requester.
    pub fn owner(&self) -> QuotaKey {
        match self.requester.as_str() {
            "" => QuotaKey::Namespace(self.child_namespace().to_owned()),
            name => QuotaKey::of(name),
        }
    }

    /// Returns the namespace of the OperationJob: the namespace of the target pods, or the namespace for jobs on nodes.
    pub fn child_namespace(&self) -> &str {
        let of_pods = self.targets.as_ref().and_then(|resolved| resolved.namespace.as_deref());
        of_pods.filter(|_| self.kind.is_some_and(|kind| !kind.is_for_nodes())).unwrap_or(OPS_NAMESPACE)
    }

    /// Returns the key of the OperationJob.
    pub fn child_key(&self) -> ObjectKey {
        JobKey { namespace: self.child_namespace().to_owned(), name: self.name.clone() }.object()
    }

    /// Returns true if the status names another OperationJob than this one. The API server may create another one from a request that arrives late.
    pub fn has_recorded_another(&self, child: &OpsChild) -> bool {
        self.status.recorded_uid().is_some_and(|uid| uid != child.uid)
    }

    /// Returns the order in which a new term restores the claims of jobs. A job whose status names its OperationJob may be at work, so it comes
    /// first. The OperationJob of another job is still paused. Among equals, the older job comes first.
    pub fn claim_order(&self) -> ClaimOrder {
        ClaimOrder { is_idle: !self.status.has_recorded_child(), created: self.created }
    }

    /// Returns the targets that the status of the job claims. A term restores these locks when it begins.
    pub fn stored_locks(&self) -> Vec<TargetLock> {
        if self.has_ops_finalizer && self.status.has_locked_targets() { self.locks() } else { Vec::new() }
    }
}

/// The name of the work of all types that work on nodes. Jobs of these types exclude each other.
pub const NODE_WORK: &str = "node";

/// Returns the lock that a job of this type needs on the target with this UID.
pub fn lock_of(kind: Option<OpsType>, uid: &str) -> TargetLock {
    match kind.filter(|kind| !kind.is_for_nodes()) {
        Some(kind) => TargetLock::new(kind.word(), uid),
        None => TargetLock::new(NODE_WORK, uid),
    }
}

/// The OperationJob of an OpsJob, as the host last saw it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpsChild {
    /// UID of the OpsJob that owns the OperationJob.
    pub owner_uid: String,
    /// Namespace and name of the OperationJob.
    pub key: JobKey,
    /// UID of the OperationJob.
    pub uid: String,
    /// resourceVersion of the OperationJob.
    pub version: u64,
    /// True if all targets have ended.
    pub has_ended: bool,
    /// True if the OperationJob is paused and starts no more targets.
    pub paused: bool,
    /// True if the OperationJob is being deleted, which releases its targets.
    pub deleting: bool,
    /// Time at which the first target began.
    pub began: Option<Timestamp>,
    /// The numbers of targets by progress.
    pub counts: TargetCounts,
    /// The reason for which the OperationJob waits, in a word or two.
    pub waits_for: Option<String>,
    /// Sentences about the obstacles of the first targets in work.
    pub obstacles: Vec<String>,
    /// The reason why the spec is refused.
    pub refused: Option<String>,
    /// The reason why the OperationJob makes no progress: no plugin serves its action, or not in its namespace.
    pub unserved: Option<String>,
}

impl OpsChild {
    /// Returns true if this has the name and namespace of the job's OperationJob.
    pub fn is_of(&self, job: &OpsJobView) -> bool {
        self.key.name == job.name && self.key.namespace == job.child_namespace()
    }

    /// Reads a stored OperationJob. Returns `None` if no OpsJob owns it.
    pub fn read(document: &Value) -> Option<Self> {
        let is_ours = |owner: &&Value| {
            let (api_version, kind) = (text(owner, "/apiVersion"), text(owner, "/kind"));
            flag(owner, "/controller") && (api_version, kind) == (Some(API_VERSION), Some(OPS_KIND))
        };
        let owner = list(document, "/metadata/ownerReferences").iter().find(is_ours)?;
        let owner_uid = text(owner, "/uid").filter(|uid| uid.len() <= MOST_UID)?.to_owned();
        let details = list(document, "/status/targetDetails");
        let is_skipped = |detail: &&Value| text(detail, "/error/reason") == Some(SKIPPED);
        let counts = TargetCounts::of_child(document, details.iter().filter(is_skipped).count());
        let status = document.get("status").unwrap_or(&Value::Null);
        let [valid, available] = ["Valid", "ActionAvailable"].map(|condition| block(status, condition));
        // All other reasons of `Valid` can be fixed without a new job: a grant, a label of the namespace, room in memory.
        let refused = valid.filter(|(reason, _)| REFUSALS.contains(reason));
        let unserved = valid.filter(|_| refused.is_none()).or(available);
        let message = |(_, message): (&str, &str)| cut(message, MOST_MESSAGE);
        let started = details.iter().filter_map(|detail| read_time(text(detail, "/startTime"))).min();
        let has_begun = counts.processing + counts.succeeded + counts.failed > 0;
        let job_began = || read_time(text(document, "/status/startTime"));
        let own = |field: &str| text(document, field).unwrap_or_default().to_owned();
        Some(Self {
            owner_uid,
            key: JobKey { namespace: own("/metadata/namespace"), name: own("/metadata/name") },
            uid: text(document, "/metadata/uid")?.to_owned(),
            version: text(document, "/metadata/resourceVersion").and_then(|own| own.parse().ok()).unwrap_or(0),
            has_ended: matches!(text(document, "/status/progress"), Some("Succeeded" | "Failed")),
            paused: flag(document, "/spec/paused"),
            deleting: text(document, "/metadata/deletionTimestamp").is_some(),
            began: started.or_else(job_began).filter(|_| has_begun),
            counts,
            refused: refused.map(message),
            unserved: unserved.map(message),
            waits_for: text(document, "/status/waitsFor").map(|word| cut(word, MOST_WORDS)),
            obstacles: details.iter().filter_map(obstacle).take(OBSTACLES).collect(),
        })
    }
}

impl CachedObject for OpsChild {
    fn key(&self) -> ObjectKey {
        self.key.object()
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn owner_uid(&self) -> Option<&str> {
        Some(&self.owner_uid)
    }
}

/// Returns the obstacle of a target in work, if it has one.
fn obstacle(detail: &Value) -> Option<String> {
    let is_in_work = text(detail, "/progress") == Some("Processing");
    if !is_in_work {
        return None;
    }
    let waits = || {
        let own = detail.get("extraInfo").and_then(Value::as_object)?;
        let texts = own.iter().filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
        waits_of(&texts.collect()).map(|(_, sentence)| sentence)
    };
    let message = text(detail, "/error/message").map(str::to_owned).or_else(waits)?;
    Some(shown_cause(&format!("{}: {message}", text(detail, "/name")?), MOST_OBSTACLE))
}

/// The longest message of the condition.
const MOST_MESSAGE: usize = 1_024;
/// The longest UID of an owner, and the longest reason for waiting.
const MOST_UID: usize = 63;
const MOST_WORDS: usize = 256;
/// The longest text about an obstacle. Ten pods with their namespaces fit.
const MOST_OBSTACLE: usize = 1_024;
/// The most targets in work whose obstacles are listed.
const OBSTACLES: usize = 10;

/// The numbers of targets by progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetCounts {
    /// All targets.
    pub total: usize,
    /// Targets that succeeded.
    pub succeeded: usize,
    /// Targets that failed, without the skipped targets.
    pub failed: usize,
    /// Targets in work.
    pub processing: usize,
    /// Targets that never started because other targets had failed.
    pub skipped: usize,
}

impl TargetCounts {
    /// Reads the counts from the status of an OperationJob, which counts targets that never started as failed.
    pub(super) fn of_child(child: &Value, skipped: usize) -> Self {
        let count = |field: &str| {
            let count = number(child, &format!("/status/{field}PodCount")).unwrap_or(0);
            usize::try_from(count).unwrap_or(0)
        };
        Self {
            total: count("total"),
            succeeded: count("succeeded"),
            failed: count("failed").saturating_sub(skipped),
            processing: count("processing"),
            skipped,
        }
    }

    /// Returns the counts in their stored form.
    pub fn write(self) -> Value {
        let Self { total, succeeded, failed, processing, skipped } = self;
        let pending = total.saturating_sub(succeeded + failed + processing + skipped);
        let done = format!("{}/{total}", succeeded + failed + skipped);
        json!({"total": total, "succeeded": succeeded, "failed": failed, "processing": processing, "pending": pending,
            "skipped": skipped, "done": done})
    }

    /// Reads the stored counts.
    pub fn read(progress: Option<&Value>) -> Self {
        let count = |field: &str| {
            let count = progress.and_then(|progress| progress.get(field)).and_then(Value::as_u64);
            count.and_then(|count| usize::try_from(count).ok()).unwrap_or(0)
        };
        Self {
            total: count("total"),
            succeeded: count("succeeded"),
            failed: count("failed"),
            processing: count("processing"),
            skipped: count("skipped"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::locks::TargetLocks;
    use crate::ops_job::names::{FINALIZER, RESOLVED};
    use crate::ops_job::spec::Defaults;
    use crate::ops_job::stored::StoredOps;

    /// Returns a job on node `n` whose targets are resolved.
    fn resolved(name: &str, second: u8, status: &Value) -> OpsJobView {
        let mut document = json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1", "finalizers": [FINALIZER],
            "creationTimestamp": format!("2026-01-01T00:00:0{second}Z")},
            "spec": {"type": "reboot", "targets": [{"name": "n", "uid": "n"}]},
            "status": {"conditions": [{"type": RESOLVED, "status": "True", "reason": "", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        document["status"].as_object_mut().unwrap().extend(status.as_object().unwrap().clone());
        StoredOps::read(&document, Defaults::default()).unwrap().view
    }

    fn holder(mut jobs: Vec<OpsJobView>) -> String {
        jobs.sort_by_key(|job| (job.claim_order(), job.name.clone()));
        let mut locks = TargetLocks::default();
        jobs.iter().for_each(|job| drop(locks.take(&job.uid, &job.name, &job.stored_locks())));
        locks.holder(&TargetLock::new(NODE_WORK, "n")).unwrap().to_owned()
    }

    #[test]
    fn an_operation_job_that_the_plugin_refuses_is_told_from_one_that_waits() {
        let child = |reason: &str| {
            let owner =
                json!({"apiVersion": API_VERSION, "kind": OPS_KIND, "name": "a", "uid": "u", "controller": true});
            let metadata = json!({"namespace": "n", "name": "a", "uid": "c", "ownerReferences": [owner]});
            let valid = json!({"type": "Valid", "status": "False", "reason": reason, "message": "why"});
            let child = OpsChild::read(&json!({"metadata": metadata, "status": {"conditions": [valid]}})).unwrap();
            (child.refused, child.unserved)
        };
        let why = || Some("why".to_owned());
        for reason in ["ParametersInvalid", "TargetKindNotSupported", "InvalidValue"] {
            assert_eq!(child(reason), (why(), None), "{reason}");
        }
        for reason in ["NamespaceNotAllowed", "Unreadable"] {
            assert_eq!(child(reason), (None, why()), "{reason}");
        }
    }

    #[test]
    fn a_new_term_gives_a_node_to_the_job_that_may_be_at_work() {
        let named = json!({"operationJob": {"name": "b", "uid": "c"}});
        assert_eq!(holder(vec![resolved("a", 1, &json!({})), resolved("b", 2, &named)]), "b");
        assert_eq!(holder(vec![resolved("b", 2, &json!({})), resolved("a", 1, &json!({}))]), "a", "the older");
        assert_eq!(holder(vec![resolved("b", 1, &named), resolved("a", 1, &named)]), "a", "of one second");
    }
}
