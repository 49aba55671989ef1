//! The targets that a selector found, as they are stored: how many there are, and which of them are lost. Their names and
//! UIDs are in the details and records alone, since the spec names none. Source: docs/operationjob.md 3.2.

use std::collections::{BTreeMap, BTreeSet};

use oarlock_api::{OperationJob, OperationJobStatus, TargetDetail, TargetRef};

use crate::job::ranges;
use crate::job::spec::MOST_TARGETS;
use crate::job::state::{JobState, TargetState};

/// `selection.source` of a list that a selector gave.
pub const FROM_SELECTOR: &str = "Selector";

/// The number of targets that a selector found, if the job has such a list: as this term remembers it, else as the status
/// counts them, since records may be missing, or left over from a list that never became the job's.
pub(super) fn selected(
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

/// The number of targets that the ranges of a status speak of.
fn in_ranges(status: &OperationJobStatus) -> usize {
    let most = u32::try_from(MOST_TARGETS).unwrap_or(u32::MAX);
    let Some(stored) = &status.ranges else { return 0 };
    let texts = [&stored.processing, &stored.succeeded, &stored.failed];
    let last = texts.into_iter().filter_map(|text| ranges::parse(text, most).pop_last()).max();
    last.map_or(0, |last| (last as usize).saturating_add(1))
}

/// Those of the missing targets that a selector found, have not ended, and that nobody remembers: which object each of them
/// is, no other place says.
pub(super) fn nameless(missing: &[usize], names: &[TargetRef], targets: &[TargetState]) -> BTreeSet<u32> {
    let unknown = |index: &&usize| {
        let named =
            names.get(**index).is_some_and(|target| target.name.as_deref().is_some_and(|name| !name.is_empty()));
        targets.get(**index).is_some_and(|target| !(target.progress.terminal() || named && target.uid.is_some()))
    };
    missing.iter().filter(unknown).filter_map(|index| u32::try_from(*index).ok()).collect()
}
