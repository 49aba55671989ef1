//! The objects that a round of a JobFlow or DaemonJob reads past the cache, and the decisions on them.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::attempts::build::OWNER_UID;
use crate::attempts::parent::{Parent, ParentKind, record_kind};
use crate::attempts::view::{ChildKind, ChildView};
use crate::attempts::waiting::{UNFINISHED, WaitLookup, last_warning, read_waiting_pods};
use crate::object::api_object::Kind;
use crate::object::fields::text;
use crate::requests::reads::{Answers, Pending, Read, Reduction, Selected};

/// The most pods of a failed Job that the host reads for the Job's message.
const PODS: usize = 500;
/// The most pods of a Job, and the most events of an object, that the host reads to find out what the Job waits for.
const LOOKED_AT: usize = 50;

/// Keeps the resourceVersion of an object.
const VERSION: Reduction = Reduction {
    name: "resourceVersion",
    fields: &["/metadata/resourceVersion"],
    keep: |object, _| text(&object, "/metadata/resourceVersion").map(Into::into),
};

/// Keeps the UIDs of children. [`Read::among`] has the identities of the children that the read looks for.
const CHILD: Reduction = Reduction {
    name: "child",
    fields: &[
        "/metadata/namespace",
        "/metadata/name",
        "/metadata/uid",
        "/metadata/labels",
        "/metadata/ownerReferences",
    ],
    // The kind of a child says nothing about its owner.
    keep: |object, wanted| {
        let child = ChildView::read(ChildKind::Job, &object)?;
        let identity = identity(&child.namespace, child.owner_kind?, child.owner_uid.as_deref()?, &child.uid);
        wanted.contains(&identity).then(|| child.uid.into())
    },
};

/// Keeps the fields of pods that tell why a Job failed or waits.
const POD_OF_JOB: Reduction = Reduction {
    name: "pod of a Job",
    fields: &[
        "/metadata/name",
        "/metadata/uid",
        "/metadata/deletionTimestamp",
        "/spec/nodeName",
        "/spec/initContainers",
        "/status",
    ],
    keep: |pod, _| Some(pod),
};

/// Returns the identity of a child with this UID and owner in a namespace.
fn identity(namespace: &str, kind: ParentKind, owner: &str, child: &str) -> String {
    format!("{namespace}/{}/{owner}/{child}", kind.name())
}

/// Returns the read of the objects of a namespace with this label.
fn labelled(kind: Kind, namespace: &str, label: &str, value: &str) -> Read {
    let (namespace, labels) = (Some(namespace.to_owned()), Some(format!("{label}={value}")));
    Read::of(kind, Selected::All { namespace, labels, fields: None })
}

/// Returns true if the API server stores a parent in the cached version. The watch may be late.
///
/// # Errors
/// If reads are missing or one failed.
pub fn is_current(parent: &Parent, answers: &Answers) -> Result<bool, Pending> {
    let read = Read::one(parent.key()).reduced(VERSION);
    Ok(answers.to(&read)?.one::<String>().is_some_and(|version| version == parent.version))
}

/// Returns true if the API server stores a child of a parent with one of these UIDs. The cache lacks these children, but the watch may be late.
///
/// # Errors
/// If reads are missing or one failed.
pub fn is_stored(parent: &Parent, uids: &HashSet<&str>, answers: &Answers) -> Result<bool, Pending> {
    let wanted = |uid: &&str| identity(&parent.namespace, parent.kind, &parent.uid, uid);
    let among: BTreeSet<String> = uids.iter().map(wanted).collect();
    let kinds = match parent.kind {
        ParentKind::Flow => &[ChildKind::Job, ChildKind::Operation][..],
        ParentKind::Daemon => &[ChildKind::Job],
    };
    for kind in kinds {
        let read = labelled(kind.kind(), &parent.namespace, OWNER_UID, &parent.uid).reduced(CHILD);
        if answers.to(&Read { among: among.clone(), most: 0, ..read })?.one::<String>().is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the stored JobRecords of a parent.
///
/// # Errors
/// If reads are missing or one failed.
pub fn records_of(parent: &Parent, answers: &Answers) -> Result<Vec<Value>, Pending> {
    let read = labelled(record_kind(), &parent.namespace, OWNER_UID, &parent.uid);
    Ok(answers.to(&read)?.parsed().collect())
}

/// Returns the read of the pods of a Job.
fn pods_of(job: &ChildView) -> Read {
    labelled(Kind::pod(), &job.namespace, "batch.kubernetes.io/controller-uid", &job.uid).reduced(POD_OF_JOB)
}

/// Returns the pods of a failed Job. The host waits at most `time_limit` for each page of them.
///
/// # Errors
/// If reads are missing or one failed.
pub fn failed_pods(job: &ChildView, time_limit: Option<Duration>, answers: &Answers) -> Result<Vec<Value>, Pending> {
    let read = Read { most: PODS, time_limit, ..pods_of(job) };
    Ok(answers.to(&read)?.parsed().collect())
}

/// Returns a text that says what a Job without a running pod waits for. The text comes from the pods, or from the events of a pod or of the Job. It is
/// empty if none of them says so.
///
/// # Errors
/// If reads are missing or one failed.
pub fn wait_reason(job: &ChildView, now: Timestamp, answers: &Answers) -> Result<String, Pending> {
    let mut unfinished = Read { most: LOOKED_AT, ..pods_of(job) };
    if let Selected::All { fields, .. } = &mut unfinished.selected {
        *fields = Some(UNFINISHED.to_owned());
    }
    let pods: Vec<Value> = answers.to(&unfinished)?.parsed().collect();
    let uid = match read_waiting_pods(&pods) {
        WaitLookup::Reason(told) => return Ok(told),
        WaitLookup::ReadJobEvents => job.uid.clone(),
        WaitLookup::ReadPodEvents(uid) => uid,
    };
    let (namespace, fields) = (Some(job.namespace.clone()), Some(format!("regarding.uid={uid},type=Warning")));
    let kind = Kind::new("events.k8s.io/v1", "Event");
    let events = Read::of(kind, Selected::All { namespace, labels: None, fields });
    let events: Vec<Value> = answers.to(&Read { most: LOOKED_AT, ..events })?.parsed().collect();
    Ok(last_warning(&events, now))
}

#[cfg(test)]
#[path = "live_reads_tests.rs"]
mod tests;
