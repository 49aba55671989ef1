//! A child as it is kept in memory: what its unit needs to know of it.

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::child::build::{ATTEMPT, BY_TEMPLATE, OWNER_KIND, OWNER_UID, REVISION, TEMPLATE, TTL, WITHHELD};
use crate::child::fields::{at, flag, list, number, text};
use crate::child::parent::{API_VERSION, ParentKind};
use crate::child::progress::{ChildProgress, of_job, of_operation};
use crate::cluster::memory::text_len;
use crate::job::bound::shown;
use crate::job::time::read_time;

/// The kinds of children.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChildKind {
    /// A batch Job.
    Job,
    /// An OperationJob.
    Operation,
}

impl ChildKind {
    /// API version and kind.
    pub fn api(self) -> (&'static str, &'static str) {
        match self {
            Self::Job => crate::child::build::JOB,
            Self::Operation => crate::child::build::OPERATION,
        }
    }
}

/// A Job or OperationJob, as it was last seen.
#[derive(Clone, Debug, PartialEq)]
pub struct ChildView {
    /// Which of the two.
    pub kind: ChildKind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its version.
    pub version: u64,
    /// The kind of its owner, of those that have children; where it has none, the one that its label names.
    pub owner_kind: Option<ParentKind>,
    /// The UID of that owner; where there is none, the one that its label names.
    pub owner_uid: Option<String>,
    /// It has a controller.
    pub is_controlled: bool,
    /// The index of that owner reference.
    pub owner_index: usize,
    /// The unit that it names.
    pub unit: Option<String>,
    /// The number of its attempt, as its label says it; the largest one where that is no number.
    pub attempt: u32,
    /// The digest of what it was built from.
    pub revision: String,
    /// Its annotation [`TEMPLATE`]; empty where there is none.
    pub template: Box<str>,
    /// Its annotation [`BY_TEMPLATE`].
    pub by_template: Option<String>,
    /// The time to live that was withheld, and is not set yet.
    pub withheld_ttl: Option<i64>,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// It is being deleted.
    pub terminating: bool,
    /// It is not there any more.
    pub gone: bool,
    /// It has no owner reference: nobody's child, though its label names an owner, who may have made it.
    pub disowned: bool,
    /// Its `spec.suspend`.
    pub suspended: bool,
    /// Who else says whether it runs: a queue, or another controller. Empty where nobody does.
    pub held_by: Box<str>,
    /// It asks for no pods.
    pub is_idle: bool,
    /// Its `spec.activeDeadlineSeconds`.
    pub deadline: Option<i64>,
    /// How far it is.
    pub progress: ChildProgress,
    /// Its status for `jobStatusList`, as JSON; empty where there is none.
    pub status: Box<str>,
}

/// The fields that a view is read from, below `metadata`.
pub const FIELDS: [&str; 8] = [
    "/spec/suspend",
    "/spec/managedBy",
    "/spec/parallelism",
    "/spec/template/spec/terminationGracePeriodSeconds",
    "/spec/ttlSecondsAfterFinished",
    "/spec/TTLSecondsAfterFinished",
    "/spec/activeDeadlineSeconds",
    "/status",
];

impl ChildView {
    /// Reads a stored object, or a projection of it to [`FIELDS`].
    pub fn read(kind: ChildKind, object: &Value) -> Option<Self> {
        let own = |pointer: &str| text(object, pointer).map(str::to_owned);
        let annotation = |name: &str| own(&format!("/metadata/annotations/{}", name.replace('/', "~1")));
        let label = |name: &str| own(&format!("/metadata/labels/{}", name.replace('/', "~1")));
        let owners = list(object, "/metadata/ownerReferences");
        let kind_of = |owner: &Value| ParentKind::of_owner(text(owner, "/apiVersion")?, text(owner, "/kind")?);
        let owner_index = owners.iter().position(|owner| kind_of(owner).is_some());
        let owner = owner_index.and_then(|index| owners.get(index));
        let labelled = || ParentKind::of_owner(API_VERSION, &label(OWNER_KIND)?);
        let owner_kind = owner.map_or_else(labelled, kind_of);
        let status = at(object, "/status").cloned().unwrap_or(Value::Null);
        let (mut progress, shown_status) = match kind {
            ChildKind::Job => (of_job(&status), status.clone()),
            ChildKind::Operation => of_operation(&status),
        };
        if let Some(grace) = number(object, "/spec/template/spec/terminationGracePeriodSeconds") {
            progress.grace = grace;
        }
        let is_withheld = |ttl: &i64| match kind {
            ChildKind::Job => at(object, "/spec/ttlSecondsAfterFinished").is_none(),
            // Whoever asks for as much has it already.
            ChildKind::Operation => {
                *ttl != WITHHELD && number(object, "/spec/TTLSecondsAfterFinished") == Some(WITHHELD)
            }
        };
        let withheld = annotation(TTL).and_then(|ttl| ttl.parse().ok()).filter(is_withheld);
        // One that is longer is nobody's.
        let owner_uid = owner.and_then(|owner| text(owner, "/uid")).map(str::to_owned);
        let owner_uid = owner_uid.map(|uid| if uid.len() > NAME { String::new() } else { uid });
        Some(Self {
            kind,
            namespace: own("/metadata/namespace")?,
            name: own("/metadata/name")?,
            uid: own("/metadata/uid")?,
            version: own("/metadata/resourceVersion").and_then(|version| version.parse().ok()).unwrap_or(0),
            disowned: owner_uid.is_none(),
            owner_kind,
            owner_uid: owner_uid.or_else(|| label(OWNER_UID)),
            is_controlled: owners.iter().any(|owner| flag(owner, "/controller")),
            owner_index: owner_index.unwrap_or(0),
            unit: owner_kind.and_then(|kind| annotation(kind.unit_annotation())).filter(|unit| unit.len() <= NAME),
            attempt: label(ATTEMPT).map_or(0, |attempt| attempt.parse().unwrap_or(u32::MAX)),
            revision: annotation(REVISION).filter(|revision| is_revision(revision)).unwrap_or_default(),
            template: annotation(TEMPLATE).filter(|version| is_version(version)).unwrap_or_default().into(),
            by_template: annotation(BY_TEMPLATE).filter(|place| place.len() <= 2 * NAME),
            withheld_ttl: withheld,
            created: read_time(text(object, "/metadata/creationTimestamp")),
            terminating: own("/metadata/deletionTimestamp").is_some(),
            gone: false,
            suspended: flag(object, "/spec/suspend"),
            held_by: if kind == ChildKind::Job { held_by(label(QUEUE), object) } else { "".into() },
            is_idle: kind == ChildKind::Job && number(object, "/spec/parallelism") == Some(0),
            deadline: number(object, "/spec/activeDeadlineSeconds"),
            progress,
            status: if shown_status.is_null() || text_len(&shown_status) > MOST_STATUS {
                "".into()
            } else {
                shown_status.to_string().into()
            },
        })
    }
}

/// Who else says whether a Job runs that has this queue.
fn held_by(queue: Option<String>, job: &Value) -> Box<str> {
    let manager = || text(job, "/spec/managedBy").filter(|manager| *manager != JOB_CONTROLLER).map(str::to_owned);
    let held_by = queue.map(|queue| format!("queue {queue}")).or_else(manager).unwrap_or_default();
    shown(&held_by, NAME).into()
}

/// The label with the queue of a Job.
const QUEUE: &str = "kueue.x-k8s.io/queue-name";
/// The controller of Jobs that no other one manages.
const JOB_CONTROLLER: &str = "kubernetes.io/job-controller";
/// Longest name of an object, of its namespace with it about twice that.
const NAME: usize = 253;
/// Longest status of a child that its owner shows.
const MOST_STATUS: usize = 32 * 1024;

/// Anybody may write the annotation: one that no builder wrote does not get into a status.
fn is_revision(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The same of the annotation with the version of a JobTemplate.
fn is_version(text: &str) -> bool {
    let (uid, generation) = text.rsplit_once('/').unwrap_or_default();
    let is_of_uid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=63).contains(&uid.len()) && uid.bytes().all(is_of_uid) && generation.parse::<i64>().is_ok()
}
