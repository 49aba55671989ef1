//! Combines the data about a job's targets from its spec, status and records.
//!
//! The host writes the status and the records of a large job one after the other, so each may be newer than the other. Source:
//! docs/operationjob.md 2.5.

use oarlock_api::{
    Failure, OperationJobSpec, OperationJobStatus, OperationRecord, TargetDetail, TargetError, TargetRef,
};

use crate::index_ranges::IndexRanges;
use crate::job_view::number;
use crate::shown_progress::ShownProgress;
use crate::target_view::TargetView;

/// The most targets that a job can have. A status with a higher number is wrong and must not cost memory.
const MOST_TARGETS: usize = 10_000;

/// The combined data about a job's targets.
pub(crate) struct TargetAccounts<'a> {
    named: &'a [TargetRef],
    details: Vec<Option<&'a TargetDetail>>,
    failures: &'a [Failure],
    processing: IndexRanges,
    succeeded: IndexRanges,
    failed: IndexRanges,
    is_cut: bool,
    has_ranges: bool,
}

impl<'a> TargetAccounts<'a> {
    pub(crate) fn new(
        spec: &'a OperationJobSpec,
        status: &'a OperationJobStatus,
        records: &[&'a OperationRecord],
    ) -> Self {
        let named = spec.targets.as_deref().unwrap_or_default();
        let listed = status.target_details.as_deref().unwrap_or_default();
        let first = |record: &OperationRecord| usize::try_from(record.record.first_index).unwrap_or(MOST_TARGETS);
        let recorded = records.iter().map(|record| first(record).saturating_add(record.record.targets.len())).max();
        let count = [named.len(), listed.len(), number(status.total_pod_count), recorded.unwrap_or(0)];
        let count = count.into_iter().max().unwrap_or(0).min(MOST_TARGETS);
        let mut details: Vec<Option<&TargetDetail>> = vec![None; count];
        let indexed = listed.iter().enumerate();
        let of_records = records.iter().flat_map(|record| {
            record.record.targets.iter().enumerate().map(|(at, detail)| (first(record) + at, detail))
        });
        for (index, detail) in indexed.chain(of_records) {
            if let Some(place) = details.get_mut(index) {
                *place = Some(detail);
            }
        }
        let ranges = status.ranges.clone().unwrap_or_default();
        Self {
            named,
            details,
            failures: status.failures.as_deref().unwrap_or_default(),
            processing: IndexRanges::read(&ranges.processing),
            succeeded: IndexRanges::read(&ranges.succeeded),
            failed: IndexRanges::read(&ranges.failed),
            is_cut: status.ranges_truncated.unwrap_or_default(),
            has_ranges: status.ranges.is_some(),
        }
    }

    pub(crate) fn views(&self) -> Vec<TargetView> {
        let mut views: Vec<TargetView> = (0..self.details.len()).map(|index| self.view(index)).collect();
        for failure in self.failures {
            let view = usize::try_from(failure.index).ok().and_then(|index| views.get_mut(index));
            if let Some(view) = view.filter(|view| view.progress == ShownProgress::Failed && view.error.is_none()) {
                view.error = Some(TargetError { reason: failure.reason.clone(), message: failure.message.clone() });
                if view.name.is_empty() {
                    view.name.clone_from(&failure.name);
                }
            }
        }
        views
    }

    fn view(&self, index: usize) -> TargetView {
        let name = self.named.get(index).and_then(|target| target.name.as_deref()).unwrap_or_default();
        match self.details.get(index).copied().flatten() {
            // An unreadable line of a record becomes a detail without a name.
            Some(detail) if !detail.name.is_empty() => TargetView::new(index, detail, self.in_ranges(index)),
            _ => TargetView::unexplained(index, name, self.in_ranges(index).unwrap_or_default()),
        }
    }

    /// Returns the progress according to the ranges of a large job. An index in no range is pending, unless the range may have been cut
    /// before it.
    fn in_ranges(&self, index: usize) -> Option<ShownProgress> {
        let whole = |ranges: &IndexRanges| ranges.last().is_some_and(|last| last >= index);
        self.has_ranges.then(|| match index {
            _ if self.processing.contains(index) => ShownProgress::Processing,
            _ if self.succeeded.contains(index) => ShownProgress::Succeeded,
            _ if self.failed.contains(index) => ShownProgress::Failed,
            _ if self.is_cut && !(whole(&self.succeeded) && whole(&self.failed)) => ShownProgress::Unknown,
            _ => ShownProgress::Pending,
        })
    }
}
