//! Filters and sort keys for rows of jobs.

use k8s_openapi::jiff::Timestamp;

/// The sort column of rows. Ties are sorted by creation time, sequence number within the second, and UID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortKey {
    /// The name of the OpsJob.
    JobId,
    /// The name of the job as the client sent it.
    JobName,
    /// The cluster, which is the same for all rows.
    Cluster,
    /// The workspace.
    Workspace,
    /// The UID of the requester.
    UserId,
    /// The name of the requester.
    UserName,
    /// The type of the job.
    Kind,
    /// The phase of the job.
    Phase,
    /// The creation time.
    Created,
    /// The start time.
    Started,
    /// The end time.
    Ended,
    /// The deletion time.
    Deleted,
    /// The seconds from the job's creation until it times out.
    Timeout,
}

impl SortKey {
    /// Returns the column, or `None` if the rows need no order beyond the creation time.
    pub(crate) fn column(self) -> Option<&'static str> {
        match self {
            Self::JobId => Some("job_id"),
            Self::JobName => Some("job_name"),
            Self::Workspace => Some("workspace_id"),
            Self::UserId => Some("user_id"),
            Self::UserName => Some("user_name"),
            Self::Kind => Some("type"),
            Self::Phase => Some("phase"),
            Self::Started => Some("started"),
            Self::Ended => Some("ended"),
            Self::Deleted => Some("deleted"),
            Self::Timeout => Some("timeout"),
            Self::Cluster | Self::Created => None,
        }
    }
}

/// The jobs that a caller may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Viewer {
    /// All jobs.
    All,
    /// The jobs of these types, and the jobs that this user requested.
    Some {
        /// The visible types.
        kinds: Vec<String>,
        /// The UID of the user, or the name if there is no UID.
        user_id: String,
        /// The name of the user.
        user_name: String,
    },
}

/// The conditions that rows have to meet.
#[derive(Clone, Debug)]
pub struct JobFilter {
    /// The first second of creation times.
    pub since: Timestamp,
    /// The last second of creation times.
    pub until: Timestamp,
    /// The workspace of the jobs.
    pub workspace: Option<String>,
    /// The phase of the jobs.
    pub phase: Option<String>,
    /// The type of the jobs.
    pub kind: Option<String>,
    /// True if jobs that a user deleted are included.
    pub with_deleted: bool,
    /// A part of the requester's name, in lower case.
    pub user_words: Option<String>,
    /// A part of the job's name or id, in lower case.
    pub job_words: Option<String>,
    /// The jobs that the caller may see.
    pub seen: Viewer,
}

/// The window of rows to read.
#[derive(Clone, Debug)]
pub struct Window {
    /// The sort key of the rows.
    pub sort: SortKey,
    /// True if the smallest value comes first.
    pub is_ascending: bool,
    /// The number of rows to skip.
    pub offset: usize,
    /// The most rows to read.
    pub limit: usize,
}

impl Window {
    /// Returns the number of all rows, if a page with `found` rows is the last one. Counting them costs a scan of its own.
    pub(crate) fn total_if_last(&self, found: usize) -> Option<usize> {
        let is_last = found < self.limit && (found > 0 || self.offset == 0);
        is_last.then(|| self.offset.saturating_add(found))
    }
}

#[cfg(test)]
mod window_tests {
    use super::*;

    #[test]
    fn a_page_that_is_not_full_says_how_many_rows_there_are() {
        let window = |offset, limit| Window { sort: SortKey::Created, is_ascending: false, offset, limit };
        assert_eq!(window(0, 10).total_if_last(0), Some(0));
        assert_eq!((window(20, 10).total_if_last(3), window(0, 10).total_if_last(10)), (Some(23), None));
        assert_eq!(
            (window(20, 10).total_if_last(0), window(0, 0).total_if_last(0)),
            (None, None),
            "it may lie beyond the end"
        );
    }
}
