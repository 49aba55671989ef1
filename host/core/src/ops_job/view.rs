//! An OpsJob and its child, as a pass sees them.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::ops_job::phases::OpsStatus;
use crate::ops_job::targets::Resolved;

/// A job as it is stored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpsJobView {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// It is being deleted.
    pub deleting: bool,
    /// It has the finalizer of a job that may have targets.
    pub is_kept: bool,
    /// Its targets, name and UID, and those that were skipped, once they are stored.
    pub targets: Option<Resolved>,
    /// Its status.
    pub status: OpsStatus,
}

/// Its child as it was last seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpsChild {
    /// Its UID.
    pub uid: String,
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
}

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
    /// As it is stored.
    pub fn write(self) -> Value {
        let Self { total, succeeded, failed, processing, skipped } = self;
        let pending = total.saturating_sub(succeeded + failed + processing + skipped);
        json!({"total": total, "succeeded": succeeded, "failed": failed, "processing": processing, "pending": pending, "skipped": skipped})
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
