//! The changes between two views of a job. Each change is one line of a watch.

use crate::job_view::JobView;
use crate::target_view::TargetView;

/// One change between two views.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViewChange {
    /// The job as a whole: its progress, its numbers, or the reason why it waits.
    Job,
    /// The target with this index.
    Target(usize),
    /// The connection to the cluster is lost, and the client retries. The text is the cause.
    Disconnected(String),
    /// The connection to the cluster works again.
    Connected,
    /// The job was deleted before it ended.
    Deleted,
}

/// Returns the changes from `before` to `now`: first the job, then its targets in their order. Without an earlier view, the changes are all
/// targets that are not simply pending.
pub fn changes(before: Option<&JobView>, now: &JobView) -> Vec<ViewChange> {
    let pending = TargetView { attempt: 1, ..TargetView::default() };
    let moved = |target: &&TargetView| {
        let old = before.and_then(|before| before.targets().get(target.index)).unwrap_or(&pending);
        old.differs_from(target)
    };
    let mut found = Vec::new();
    if before.is_none_or(|before| job_differs(before, now)) {
        found.push(ViewChange::Job);
    }
    found.extend(now.targets().iter().filter(moved).map(|target| ViewChange::Target(target.index)));
    found
}

fn job_differs(before: &JobView, now: &JobView) -> bool {
    let told = |view: &JobView| {
        (
            view.progress,
            view.counts,
            view.waits_for.clone(),
            view.notices.clone(),
            view.bounds.clone(),
            view.is_deleting,
        )
    };
    told(before) != told(now)
}
