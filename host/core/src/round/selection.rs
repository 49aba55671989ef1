//! The targets of a job with a selector: asked for once, and frozen before any of them starts.
//!
//! Takes the checked spec and the answer to the live read that this step asked for; yields the spec, or why there are no
//! targets, and puts the list into the memory, where the next record makes it durable: names and UIDs of all targets and
//! `selection` in one write of the status, above 250 targets after all OperationRecords. Nothing starts before. Records are
//! written only once this term has raised the job's epoch, so that no term writes over the list of another. May not ask
//! again once a list is durable. Source: docs/operationjob.md 3.2.

use std::sync::Arc;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_api::TargetRef;

use crate::cluster::live_reads::{FoundTarget, LiveRead, ReadFailure};
use crate::cluster::writes::EventNote;
use crate::job::key::JobKey;
use crate::job::progress::{ProgressSets, targets};
use crate::job::selector::TargetQuery;
use crate::job::spec::{Invalid, MOST_TARGETS, ValidSpec};
use crate::job::state::{SHARD, TargetState};
use crate::job::time::after;
use crate::plugin::manifest::TargetKind;
use crate::round::availability::Availability;
use crate::round::context::{Observed, Round};
use crate::round::memory::JobMemory;
use crate::round::shards::shard_of;

/// Wait after a list that found no targets, or too many, or that the API server refused.
const AGAIN: SignedDuration = SignedDuration::from_secs(30);
/// Wait after a list that the API server did not answer.
const UNANSWERED: SignedDuration = SignedDuration::from_secs(2);

/// How far the selection of a job has come. All of it is empty for a job that names its targets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selecting {
    /// The live read that the next observation makes.
    pub wanted: Option<LiveRead>,
    /// Why the last read gave no targets.
    pub refused: Option<Invalid>,
    /// The time of the next read.
    pub again_at: Option<Timestamp>,
    /// A list that waits for this term to raise the job's epoch.
    found: Option<Vec<FoundTarget>>,
    /// The targets in the memory are not durable yet: nothing starts.
    pub freezing: bool,
}

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
    let Some(query) = query.filter(|_| serves && !deleting && memory.state.end.is_none()) else {
        memory.unfreeze();
        return spec;
    };
    if memory.selecting.freezing || !memory.state.targets.is_empty() {
        return spec;
    }
    if memory.state.selection.is_some() {
        return Err(list_lost());
    }
    let kind = memory.state.kind;
    let namespace = (kind == TargetKind::Pod).then(|| key.namespace.clone());
    let read = LiveRead::Selection { kind: kind.kind(), namespace, query: Box::new(query) };
    memory.selecting.take_answer(&read, observed);
    if let Some(found) = memory.selecting.found.take() {
        if found.len() <= SHARD || memory.epoch_raised {
            memory.freeze(found);
        } else {
            // The record of this round raises the epoch.
            memory.selecting.found = Some(found);
        }
        return spec;
    }
    if memory.selecting.again_at.is_none_or(|time| time <= observed.now) {
        memory.selecting.again_at = None;
        memory.selecting.wanted = Some(read);
        memory.again = true;
    }
    memory.selecting.refused.clone().map_or(spec, Err)
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
        self.again_at = Some(after(observed.now, wait));
    }

    /// True until the first read is answered: what a status would say of the job is not known yet.
    pub(super) fn unanswered(&self) -> bool {
        self.wanted.is_some() && self.refused.is_none()
    }
}

/// Why a list gives no targets, if it gives none.
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

impl JobMemory {
    /// Takes the list as the job's targets. The next record makes it durable.
    fn freeze(&mut self, found: Vec<FoundTarget>) {
        let name = |found: &FoundTarget| TargetRef { name: Some(found.name.clone()), ..TargetRef::default() };
        self.state.names = found.iter().map(name).collect();
        let dry_run = self.state.dry_run;
        let target =
            |found: FoundTarget| TargetState { uid: Some(found.uid), attempt: 1, dry_run, ..TargetState::default() };
        self.state.targets = found.into_iter().map(target).collect();
        self.count_anew();
        if self.state.sharded() {
            let last = u32::try_from(self.state.targets.len()).unwrap_or(u32::MAX).saturating_sub(1);
            self.shards.rewrite.extend(0..=shard_of(last));
        }
        self.selecting = Selecting { freezing: true, ..Selecting::default() };
    }

    /// Drops what was found or frozen and is not durable.
    pub(super) fn unfreeze(&mut self) {
        if std::mem::take(&mut self.selecting).freezing {
            self.state.names.clear();
            self.state.targets.clear();
            self.shards.rewrite.clear();
            self.count_anew();
        }
    }

    fn count_anew(&mut self) {
        self.durable = ProgressSets::of(&self.state.targets);
        self.latest = self.durable.clone();
        self.availability = Availability::default();
    }
}

/// The event of the record that freezes what a selector found.
pub(super) fn selected(round: &Round<'_>, memory: &JobMemory) -> Option<EventNote> {
    let count = memory.state.targets.len();
    let message =
        || format!("{}: the {}s that spec.selector found; later ones do not count", targets(count), round.kind.noun());
    memory.selecting.freezing.then(|| round.events().about_job(false, "Selected", message()))
}
