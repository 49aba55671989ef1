//! The facts of an OpsJob that only the host knows, as answers to reads of objects that exist only in the host's process.

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ops_job::outcomes::StoredFile;
use crate::ops_job::plan::RowState;
use crate::ops_job::view::OpsJobView;
use crate::requests::reads::Read;

/// The kind of [`OpsFacts`].
pub const FACTS: &str = "OpsFacts";
/// The kind of [`FileFact`].
pub const FILE: &str = "OpsFile";

/// Returns the read of the [`OpsFacts`] of a job.
pub fn facts_of(job: &OpsJobView) -> Read {
    Read::of_host(FACTS, &job.name)
}

/// Returns the read of the [`FileFact`] of a job. The host makes the file, or goes on with making it.
pub fn file_of(job: &OpsJobView) -> Read {
    Read::of_host(FILE, &job.name)
}

/// The host's settings and stores, as far as they concern a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpsFacts {
    /// The cluster of the host.
    pub cluster: String,
    /// The node of the host's pod, if known.
    pub node: Option<String>,
    /// The namespace of the pods of tasks.
    pub tasks_namespace: String,
    /// True if the host keeps files.
    pub keeps_files: bool,
    /// The reason why the host begins no new file, if there is one.
    pub scarce: Option<String>,
    /// The registry to which the host exports images, as `host[:port]`, if there is one.
    pub exports: Option<String>,
    /// The part of the spec that the plugin's grant does not cover.
    pub ungranted: Option<String>,
    /// How much of the job the history has.
    pub history_row: RowState,
    /// The time before which the requester's quota of written bytes allows no further status that can wait.
    pub status_not_before: Option<Timestamp>,
}

/// The state of a job's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileFact {
    /// The host is making the file. The text says how far it is.
    Underway(String),
    /// The file is stored.
    Stored(StoredFile),
    /// The file could not be stored, for this reason.
    Lost(String),
}
