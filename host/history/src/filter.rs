//! Which rows are asked for, and in which order.

use k8s_openapi::jiff::Timestamp;

/// The column that rows are sorted by. Equal rows follow by creation, their place in its second, and UID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortKey {
    /// Name of the OpsJob.
    JobId,
    /// Its name, as it was sent.
    JobName,
    /// The cluster, which is one.
    Cluster,
    /// The workspace.
    Workspace,
    /// Who asked for it, by UID.
    UserId,
    /// Who asked for it, by name.
    UserName,
    /// Its type.
    Kind,
    /// Its phase.
    Phase,
    /// When it was made.
    Created,
    /// When it began.
    Started,
    /// When it ended.
    Ended,
    /// When it was deleted.
    Deleted,
    /// Seconds from its creation to its end by force.
    Timeout,
}

impl SortKey {
    /// The column; none where all rows are equal, or sorted by creation anyway.
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

/// Which jobs somebody may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Viewer {
    /// All of them.
    All,
    /// Those of these types, and those that this user asked for.
    Some {
        /// The types.
        kinds: Vec<String>,
        /// By UID or else by name.
        user_id: String,
        /// By name.
        user_name: String,
    },
}

/// Which rows are asked for.
#[derive(Clone, Debug)]
pub struct JobFilter {
    /// Made in this second or later.
    pub since: Timestamp,
    /// Made in this second or before.
    pub until: Timestamp,
    /// Of this workspace.
    pub workspace: Option<String>,
    /// With this phase.
    pub phase: Option<String>,
    /// Of this type.
    pub kind: Option<String>,
    /// Those that somebody deleted, too.
    pub with_deleted: bool,
    /// With this text in the name of the user, in lower case.
    pub user_words: Option<String>,
    /// With this text in name or id, in lower case.
    pub job_words: Option<String>,
    /// Which may be seen.
    pub seen: Viewer,
}

/// Which of the rows are read.
#[derive(Clone, Debug)]
pub struct Window {
    /// Their order.
    pub sort: SortKey,
    /// The smallest first.
    pub is_ascending: bool,
    /// How many are left out before.
    pub offset: usize,
    /// How many are read.
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
