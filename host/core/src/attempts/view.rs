//! The data of a child that its unit needs, as the host keeps it in memory.

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::attempts::build::{ATTEMPT, BY_TEMPLATE, OWNER_KIND, OWNER_UID, REVISION, TEMPLATE, TTL, WITHHELD};
use crate::attempts::parent::{API_VERSION, ParentKind};
use crate::attempts::progress::{ChildProgress, of_job, of_operation};
use crate::object::api_object::{Kind, ObjectKey};
use crate::object::bound::shown;
use crate::object::fields::{at, flag, list, number, text};
use crate::object::memory::text_len;
use crate::object::time::read_time;

/// The kind of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChildKind {
    /// A batch Job.
    Job,
    /// An OperationJob.
    Operation,
}

impl ChildKind {
    /// Returns the API version and the kind.
    pub fn api(self) -> (&'static str, &'static str) {
        match self {
            Self::Job => crate::attempts::build::JOB,
            Self::Operation => crate::attempts::build::OPERATION,
        }
    }

    /// Returns the kind as objects name it.
    pub fn kind(self) -> Kind {
        let (api_version, kind) = self.api();
        Kind::new(api_version, kind)
    }

    /// Returns the key of an object of this kind.
    pub fn key(self, namespace: &str, name: &str) -> ObjectKey {
        ObjectKey { kind: self.kind(), namespace: Some(namespace.to_owned()), name: name.to_owned() }
    }
}

/// A Job or OperationJob, as the host last saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct ChildView {
    /// Kind of the child.
    pub kind: ChildKind,
    /// Namespace of the child.
    pub namespace: String,
    /// Name of the child.
    pub name: String,
    /// UID of the child.
    pub uid: String,
    /// resourceVersion of the child.
    pub version: u64,
    /// Kind of the owner, if it is JobFlow or DaemonJob. Without such an owner, the kind that the child's label names.
    pub owner_kind: Option<ParentKind>,
    /// UID of that owner. Without such an owner, the UID that the child's label names.
    pub owner_uid: Option<String>,
    /// True if the child has a controller.
    pub is_controlled: bool,
    /// Index of the owner reference.
    pub owner_index: usize,
    /// Name of the unit, from the annotation.
    pub unit: Option<String>,
    /// Number of the attempt, from the label. The largest number if the label is not a number.
    pub attempt: u32,
    /// The digest of the child's inputs.
    pub revision: String,
    /// The annotation [`TEMPLATE`]. Empty if absent.
    pub template: Box<str>,
    /// The annotation [`BY_TEMPLATE`].
    pub by_template: Option<String>,
    /// The time to live that the host withholds and has not set yet.
    pub withheld_ttl: Option<i64>,
    /// Time of creation.
    pub created: Option<Timestamp>,
    /// True if the child is being deleted.
    pub terminating: bool,
    /// True if the child no longer exists.
    pub gone: bool,
    /// True if the child has no owner reference. It is then nobody's child, even if its label names an owner that may have made it.
    pub orphaned: bool,
    /// The field `spec.suspend`.
    pub suspended: bool,
    /// The queue or other controller that decides whether the Job runs. Empty if there is none.
    pub held_by: Box<str>,
    /// True if the Job has a parallelism of 0.
    pub is_idle: bool,
    /// The field `spec.activeDeadlineSeconds`.
    pub deadline: Option<i64>,
    /// State of the child.
    pub progress: ChildProgress,
    /// The status for `jobStatusList`, as JSON. Empty if there is none.
    pub status: Box<str>,
}

/// The fields other than metadata that a view is read from.
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
            // A user who asks for the longest time to live has it already.
            ChildKind::Operation => {
                *ttl != WITHHELD && number(object, "/spec/TTLSecondsAfterFinished") == Some(WITHHELD)
            }
        };
        let withheld = annotation(TTL).and_then(|ttl| ttl.parse().ok()).filter(is_withheld);
        // A UID that is longer than any name belongs to no object.
        let owner_uid = owner.and_then(|owner| text(owner, "/uid")).map(str::to_owned);
        let owner_uid = owner_uid.map(|uid| if uid.len() > NAME { String::new() } else { uid });
        Some(Self {
            kind,
            namespace: own("/metadata/namespace")?,
            name: own("/metadata/name")?,
            uid: own("/metadata/uid")?,
            version: own("/metadata/resourceVersion").and_then(|version| version.parse().ok()).unwrap_or(0),
            orphaned: owner_uid.is_none(),
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

/// Returns the queue or other controller that decides whether a Job runs. `queue` is the Job's queue label.
fn held_by(queue: Option<String>, job: &Value) -> Box<str> {
    let manager = || text(job, "/spec/managedBy").filter(|manager| *manager != JOB_CONTROLLER).map(str::to_owned);
    let held_by = queue.map(|queue| format!("queue {queue}")).or_else(manager).unwrap_or_default();
    shown(&held_by, NAME).into()
}

/// The label with the queue of a Job.
const QUEUE: &str = "kueue.x-k8s.io/queue-name";
/// The default controller of Jobs.
const JOB_CONTROLLER: &str = "kubernetes.io/job-controller";
/// The longest name of an object, in bytes. A name with its namespace is about twice as long.
const NAME: usize = 253;
/// The longest status of a child that its owner shows, in bytes.
const MOST_STATUS: usize = 32 * 1024;

/// Returns true if the text has the form of a revision. Anyone may write the annotation, and other text must not get into a status.
fn is_revision(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns true if the text has the form of a JobTemplate version. Anyone may write the annotation.
fn is_version(text: &str) -> bool {
    let (uid, generation) = text.rsplit_once('/').unwrap_or_default();
    let is_of_uid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=63).contains(&uid.len()) && uid.bytes().all(is_of_uid) && generation.parse::<i64>().is_ok()
}
