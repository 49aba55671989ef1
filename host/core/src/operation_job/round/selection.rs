//! The targets of a job with a selector: listed once, and frozen before any of them starts.
//!
//! Takes the checked spec and the answer to the live read that this step asked for; yields the spec, or the reason why
//! there are no targets. Puts the list into the memory, where the next record makes it durable. One write of the status
//! stores `selection`, and the names and UIDs of all targets. Above 250 targets, OperationRecords store the names and
//! UIDs, and that write follows them. Nothing starts before. The host writes the records only once this term has raised
//! the job's epoch, so that no term writes over the list of another. May not list again once a list is durable. Source:
//! docs/operationjob.md 3.2.

use std::sync::Arc;

use k8s_openapi::jiff::SignedDuration;
use oarlock_api::TargetRef;

use crate::object::key::JobKey;
use crate::object::time::after;
use crate::operation_job::progress::{ProgressSets, targets};
use crate::operation_job::round::context::{Observed, Round};
use crate::operation_job::round::memory::{Decisions, JobMemory, Selecting, StoredState, Targets};
use crate::operation_job::round::operation_records::record_number_of;
use crate::operation_job::round::starts::memory::Availability;
use crate::operation_job::spec::{Invalid, MOST_TARGETS, ValidSpec};
use crate::operation_job::state::{SHARD, TargetState};
use crate::plugin::manifest::TargetKind;
use crate::requests::live_reads::{FoundTarget, LiveRead, ReadFailure};
use crate::requests::selector::TargetQuery;
use crate::requests::writes::EventNote;

/// Wait after a list with no targets, with too many targets, or that the API server refused.
const AGAIN: SignedDuration = SignedDuration::from_secs(30);
/// Wait after a list that the API server did not answer.
const UNANSWERED: SignedDuration = SignedDuration::from_secs(2);

/// Selects the targets of a job whose selector was not evaluated yet.
pub(super) fn select(
    key: &JobKey,
    spec: Result<Arc<ValidSpec>, Invalid>,
    observed: &Observed,
    memory: &mut JobMemory,
    serves: bool,
) -> Result<Arc<ValidSpec>, Invalid> {
    let deleting = observed.namespace_terminating
        || observed.job.as_ref().is_some_and(|job| job.metadata.deletion_timestamp.is_some());
    let query = spec.as_ref().ok().and_then(|spec| spec.query.clone());
    let Some(query) = query.filter(|_| serves && !deleting && memory.stored.state.end.is_none()) else {
        memory.decisions.unfreeze(&mut memory.stored, &mut memory.targets);
        return spec;
    };
    if memory.decisions.selecting.freezing || !memory.stored.state.targets.is_empty() {
        return spec;
    }
    if memory.stored.state.selection.is_some() {
        return Err(list_lost());
    }
    let kind = memory.stored.state.kind;
    let namespace = (kind == TargetKind::Pod).then(|| key.namespace.clone());
    let read = LiveRead::Selection { kind: kind.kind(), namespace, query: Box::new(query) };
    memory.decisions.selecting.take_answer(&read, observed);
    if let Some(found) = memory.decisions.selecting.found.take() {
        if found.len() <= SHARD || memory.stored.epoch_raised {
            memory.decisions.freeze(found, &mut memory.stored, &mut memory.targets);
        } else {
            // The record of this round raises the epoch.
            memory.decisions.selecting.found = Some(found);
        }
        return spec;
    }
    if memory.decisions.selecting.requeue_at.is_none_or(|time| time <= observed.now) {
        memory.decisions.selecting.requeue_at = None;
        memory.decisions.selecting.wanted = Some(read);
        memory.housekeeping.requeue_now = true;
    }
    memory.decisions.selecting.refused.clone().map_or(spec, Err)
}

impl Selecting {
    /// Takes the answer to the read of the last round, if there is one.
    fn take_answer(&mut self, read: &LiveRead, observed: &Observed) {
        self.wanted = None;
        let (invalid, wait) = match (observed.live.selections.get(read), observed.live.failed.get(read)) {
            (Some(found), _) => match none_of(found, read) {
                None => {
                    *self = Self { found: Some(found.clone()), ..Self::default() };
                    return;
                }
                Some(invalid) => (invalid, AGAIN),
            },
            (None, Some(failure)) => (failed(failure), if failure.refused { AGAIN } else { UNANSWERED }),
            (None, None) => return,
        };
        self.refused = Some(invalid);
        self.requeue_at = Some(after(observed.now, wait));
    }

    /// Returns true until the first read is answered. Before, the host does not know what the status should say.
    pub(super) fn unanswered(&self) -> bool {
        self.wanted.is_some() && self.refused.is_none()
    }
}

/// Returns why a list gives no targets, if it gives none.
fn none_of(found: &[FoundTarget], read: &LiveRead) -> Option<Invalid> {
    let LiveRead::Selection { kind, namespace, query } = read else { return None };
    let noun = kind.kind.to_lowercase();
    let place = namespace.as_ref().map_or_else(String::new, |namespace| format!(" in namespace {namespace}"));
    let which = match &**query {
        TargetQuery::Labels(labels) => format!("that matches {labels}"),
        TargetQuery::Controller { kind, name } => format!("whose controller is {} {name}", kind.kind),
    };
    if found.is_empty() {
        let message = format!("spec.selector: no {noun} {which}{place}; tried again every 30 s");
        return Some(Invalid { reason: "NoTargetsMatched", message });
    }
    (found.len() > MOST_TARGETS).then(|| {
        let message =
            format!("spec.selector: more than {MOST_TARGETS} {noun}s{place}, each one {which}; tried again every 30 s");
        Invalid { reason: "TooManyTargets", message }
    })
}

fn failed(failure: &ReadFailure) -> Invalid {
    let message = format!("spec.selector: {}; tried again until it is answered", failure.message);
    Invalid { reason: "NoTargets", message }
}

fn list_lost() -> Invalid {
    let message = "status: the list of targets that spec.selector gave is missing, and a selector is evaluated once; delete the job and create it again";
    Invalid { reason: "NoTargets", message: message.to_owned() }
}

impl Decisions {
    /// Takes the list as the job's targets. The next record makes it durable.
    fn freeze(&mut self, found: Vec<FoundTarget>, stored: &mut StoredState, targets: &mut Targets) {
        let name = |found: &FoundTarget| TargetRef { name: Some(found.name.clone()), ..TargetRef::default() };
        stored.state.names = found.iter().map(name).collect();
        let dry_run = stored.state.dry_run;
        let target =
            |found: FoundTarget| TargetState { uid: Some(found.uid), attempt: 1, dry_run, ..TargetState::default() };
        stored.state.targets = found.into_iter().map(target).collect();
        self.count_anew(stored, targets);
        if stored.state.uses_records() {
            let last = u32::try_from(stored.state.targets.len()).unwrap_or(u32::MAX).saturating_sub(1);
            stored.operation_records.rewrite.extend(0..=record_number_of(last));
        }
        self.selecting = Selecting { freezing: true, ..Selecting::default() };
    }

    /// Drops the list that was found or frozen, if it is not durable.
    pub(super) fn unfreeze(&mut self, stored: &mut StoredState, targets: &mut Targets) {
        if std::mem::take(&mut self.selecting).freezing {
            stored.state.names.clear();
            stored.state.targets.clear();
            stored.operation_records.rewrite.clear();
            self.count_anew(stored, targets);
        }
    }

    fn count_anew(&mut self, stored: &mut StoredState, targets: &mut Targets) {
        stored.durable = ProgressSets::of(&stored.state.targets);
        self.latest = stored.durable.clone();
        targets.availability = Availability::default();
    }
}

/// Returns the event of the record that freezes the targets of a selector.
pub(super) fn selected(round: &Round<'_>, stored: &StoredState, selecting: &Selecting) -> Option<EventNote> {
    let count = stored.state.targets.len();
    let message =
        || format!("{}: the {}s that spec.selector found; later ones do not count", targets(count), round.kind.noun());
    selecting.freezing.then(|| round.events().about_job(false, "Selected", message()))
}
