//! An OpsJob and its child, as a pass sees them.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::child::fields::{flag, list, number, text};
use crate::child::progress::block;
use crate::cluster::own::OPS_NAMESPACE;
use crate::job::bound::shown_cause;
use crate::job::key::JobKey;
use crate::job::state::{cut, waits_of};
use crate::job::time::read_time;
use crate::ops_job::child::{API_VERSION, OPS_KIND};
use crate::ops_job::holders::{HeldPlace, Holders};
use crate::ops_job::outcomes::SKIPPED;
use crate::ops_job::phases::OpsStatus;
use crate::ops_job::plan::RESOLVED;
use crate::ops_job::spec::OpsType;
use crate::ops_job::targets::Resolved;
use crate::shared::quota_key::QuotaKey;

/// A job as it is stored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpsJobView {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// What it does, where that is one of the types.
    pub kind: Option<OpsType>,
    /// Its version.
    pub version: String,
    /// Its place among the jobs that were created in one second, once the controller gave it one.
    pub seq: Option<i64>,
    /// The version at which it was first seen.
    pub first_version: i64,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// It is being deleted.
    pub deleting: bool,
    /// It has the finalizer of a job that may have targets.
    pub is_kept: bool,
    /// It has that of a job whose last state the history is to have.
    pub is_recorded: bool,
    /// The name of the user who asked for it; empty where nobody says so.
    pub requester: String,
    /// Its owner wants it to end.
    pub stops: bool,
    /// Seconds that it stays after its end; `None` for ever.
    pub ttl: Option<i64>,
    /// The bytes that are stored of it, while its targets are not.
    pub bytes: usize,
    /// Its targets, name and UID, and those that were skipped, once they are stored.
    pub targets: Option<Resolved>,
    /// Its status.
    pub status: OpsStatus,
}

impl OpsJobView {
    /// Its place among the jobs that were created in one second: that of its status, else by the version at which it was first seen.
    pub fn place_in_second(&self) -> i64 {
        self.seq.unwrap_or(self.first_version)
    }

    /// What it works on.
    pub fn places(&self) -> Vec<HeldPlace> {
        let targets = self.targets.iter().flat_map(|resolved| &resolved.targets);
        targets.map(|(_, uid)| place(self.kind, uid)).collect()
    }

    /// Returns the key whose shares the job's child takes: the key of its requester, or else of its child's namespace.
    pub fn owner(&self) -> QuotaKey {
        match self.requester.as_str() {
            "" => QuotaKey::Namespace(self.child_namespace().to_owned()),
            name => QuotaKey::of(name),
        }
    }

    /// The namespace of its child: that of its pods, else the one for jobs on nodes.
    pub fn child_namespace(&self) -> &str {
        let of_pods = self.targets.as_ref().and_then(|resolved| resolved.namespace.as_deref());
        of_pods.filter(|_| self.kind.is_some_and(|kind| !kind.is_for_nodes())).unwrap_or(OPS_NAMESPACE)
    }

    /// Takes what it has, as its status says it, when a term begins.
    pub fn take_held(&self, holders: &mut Holders) {
        if self.is_kept && self.status.is(RESOLVED) {
            // Of two that say so, one has it, and the other is told when it has its round.
            let _ = holders.take(&self.uid, &self.name, &self.places());
        }
    }
}

/// What a job of this type has of a target.
pub fn place(kind: Option<OpsType>, uid: &str) -> HeldPlace {
    match kind.filter(|kind| !kind.is_for_nodes()) {
        Some(kind) => HeldPlace::Pod(kind.word(), uid.to_owned()),
        None => HeldPlace::Node(uid.to_owned()),
    }
}

/// Its child as it was last seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpsChild {
    /// Its namespace and name.
    pub key: JobKey,
    /// Its UID.
    pub uid: String,
    /// Its version.
    pub version: u64,
    /// All its targets have ended.
    pub has_ended: bool,
    /// It starts nothing any more.
    pub paused: bool,
    /// It is being deleted: what it holds is released.
    pub deleting: bool,
    /// When its first target began.
    pub began: Option<Timestamp>,
    /// How many targets are how far.
    pub counts: TargetCounts,
    /// What holds it up, in a word or two.
    pub waits_for: Option<String>,
    /// What holds up the first of its targets in work, in a sentence each.
    pub obstacles: Vec<String>,
    /// Why its spec is refused.
    pub refused: Option<String>,
    /// Why nobody works on it: no plugin serves its action, or not in its namespace.
    pub unserved: Option<String>,
}

impl OpsChild {
    /// True where it is in the place of the child of this job.
    pub fn is_of(&self, job: &OpsJobView) -> bool {
        self.key.name == job.name && self.key.namespace == job.child_namespace()
    }

    /// Reads a stored OperationJob, with the UID of the OpsJob that owns it. `None` where none does.
    pub fn read(document: &Value) -> Option<(String, Self)> {
        let is_ours = |owner: &&Value| {
            let (api_version, kind) = (text(owner, "/apiVersion"), text(owner, "/kind"));
            flag(owner, "/controller") && (api_version, kind) == (Some(API_VERSION), Some(OPS_KIND))
        };
        let owner = list(document, "/metadata/ownerReferences").iter().find(is_ours)?;
        let uid = text(owner, "/uid").filter(|uid| uid.len() <= MOST_UID)?.to_owned();
        let details = list(document, "/status/targetDetails");
        let is_skipped = |detail: &&Value| text(detail, "/error/reason") == Some(SKIPPED);
        let counts = TargetCounts::of_child(document, details.iter().filter(is_skipped).count());
        let status = document.get("status").unwrap_or(&Value::Null);
        let [valid, available] = ["Valid", "ActionAvailable"].map(|condition| block(status, condition));
        // Whatever else makes it not valid can be mended: a grant, a label of the namespace, room in memory.
        let refused = valid.filter(|(reason, _)| *reason == "InvalidSpec");
        let unserved = valid.filter(|_| refused.is_none()).or(available);
        let message = |(_, message): (&str, &str)| cut(message, MOST_MESSAGE);
        let started = details.iter().filter_map(|detail| read_time(text(detail, "/startTime"))).min();
        let has_begun = counts.processing + counts.succeeded + counts.failed > 0;
        let job_began = || read_time(text(document, "/status/startTime"));
        let own = |field: &str| text(document, field).unwrap_or_default().to_owned();
        let child = Self {
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
        };
        Some((uid, child))
    }
}

/// What holds up a target in work, where something does.
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

/// The condition that says whether a plugin serves the action.
pub(super) const AVAILABLE: &str = "ActionAvailable";
/// Longest message of it.
const MOST_MESSAGE: usize = 1_024;
/// Longest UID of an owner, and longest words of what a child waits for.
const MOST_UID: usize = 63;
const MOST_WORDS: usize = 256;
/// Longest words of what holds up a target: ten pods with their namespaces.
const MOST_OBSTACLE: usize = 1_024;
/// Most targets in work whose obstacles are told.
const OBSTACLES: usize = 10;

/// How many targets are how far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetCounts {
    /// All.
    pub total: usize,
    /// Those that succeeded.
    pub succeeded: usize,
    /// Those that failed, without the skipped ones.
    pub failed: usize,
    /// Those in work.
    pub processing: usize,
    /// Those that never started, since others had failed.
    pub skipped: usize,
}

impl TargetCounts {
    /// What the status of a child counts. Those that never started are among its failed ones.
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

    /// As it is stored.
    pub fn write(self) -> Value {
        let Self { total, succeeded, failed, processing, skipped } = self;
        let pending = total.saturating_sub(succeeded + failed + processing + skipped);
        let done = format!("{}/{total}", succeeded + failed + skipped);
        json!({"total": total, "succeeded": succeeded, "failed": failed, "processing": processing, "pending": pending,
            "skipped": skipped, "done": done})
    }

    /// Reads what is stored.
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
