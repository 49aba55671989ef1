//! The stored targets that a selector found: their number, and the targets whose record is lost. The spec names none of
//! these targets, so only the details in the status and the records hold their names and UIDs. Source:
//! docs/operationjob.md 3.2.

use std::collections::{BTreeMap, BTreeSet};

use oarlock_api::{OperationJob, OperationJobStatus, TargetDetail, TargetRef};

use crate::object::ranges;
use crate::operation_job::spec::MOST_TARGETS;
use crate::operation_job::state::{JobState, TargetState};

/// Value of `selection.source` for a list that a selector gave.
pub const FROM_SELECTOR: &str = "Selector";

/// Returns the number of targets that a selector found; `None` if the job has no such list. The memory of this term
/// comes first, then the count in the status. Records alone may be missing, or left over from a list that never became
/// the job's.
pub(crate) fn selected(
    job: &OperationJob,
    details: &BTreeMap<usize, TargetDetail>,
    known: Option<&JobState>,
) -> Option<usize> {
    let (spec, status) = (job.spec.as_ref(), job.status.as_ref());
    if spec.and_then(|spec| spec.targets.as_ref()).is_some_and(|listed| !listed.is_empty()) {
        return None;
    }
    let frozen = status.and_then(|status| status.selection.as_ref()).or_else(|| known?.selection.as_ref());
    let by_selector = spec.is_some_and(|spec| spec.selector.is_some()) && !details.is_empty();
    if !by_selector && frozen.is_none_or(|frozen| frozen.source != FROM_SELECTOR) {
        return None;
    }
    if let Some(known) = known.filter(|known| !known.names.is_empty()) {
        return Some(known.names.len());
    }
    let counted = status.and_then(|status| usize::try_from(status.total_pod_count?).ok()).unwrap_or(0);
    let recorded = || details.keys().next_back().map_or(0, |last| last.saturating_add(1));
    let count = if counted > 0 { counted } else { recorded() };
    Some(count.max(status.map_or(0, in_ranges)).min(MOST_TARGETS))
}

/// Returns the number of targets that the ranges of a status cover.
fn in_ranges(status: &OperationJobStatus) -> usize {
    let most = u32::try_from(MOST_TARGETS).unwrap_or(u32::MAX);
    let Some(stored) = &status.ranges else { return 0 };
    let texts = [&stored.processing, &stored.succeeded, &stored.failed];
    let last = texts.into_iter().filter_map(|text| ranges::parse(text, most).pop_last()).max();
    last.map_or(0, |last| (last as usize).saturating_add(1))
}

/// Returns the targets among `missing` that have not ended and whose name or UID is unknown. No other place stores
/// which objects these targets are.
pub(crate) fn nameless(missing: &[usize], names: &[TargetRef], targets: &[TargetState]) -> BTreeSet<u32> {
    let unknown = |index: &&usize| {
        let named =
            names.get(**index).is_some_and(|target| target.name.as_deref().is_some_and(|name| !name.is_empty()));
        targets.get(**index).is_some_and(|target| !(target.progress.terminal() || named && target.uid.is_some()))
    };
    missing.iter().filter(unknown).filter_map(|index| u32::try_from(*index).ok()).collect()
}
