//! The results of write batches, taken into the memory. Each result comes back some rounds after its batch was made.
//!
//! An unknown outcome is not a failure: the host looks at the target's object before it repeats a write to this object.
//! For a write to another object, the host relies on preconditions and fixed names. Source: docs/operationjob.md 3.7,
//! 3.15.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_api::TargetError;

use crate::object::api_object::ObjectKey;
use crate::object::bound::shown_cause;
use crate::object::time::{after, before, too_late_for};
use crate::operation_job::round::decided::Decided;
use crate::operation_job::round::events::EventBuilder;
use crate::operation_job::round::judge::not_made;
use crate::operation_job::round::memory::{Decisions, Housekeeping, JobMemory, RoundWork, StoredState, Targets};
use crate::operation_job::round::pace::wait_after;
use crate::operation_job::round::target_memory::{TargetMemory, UnknownWrite};
use crate::operation_job::state::{Progress, TargetState};
use crate::plugin::proposal::PluginEvent;
use crate::requests::backoff::Backoff;
use crate::requests::writes::{BatchResult, EventNote, Priority, Stopped, Write};

/// Waits in a row after evictions that a disruption budget refused: first 5 seconds, then doubled up to a minute.
const BLOCKED: Backoff = Backoff::from_secs(5, 60);
/// Time for the cache to show the change that made a write fail. After that time, the host reads the object live.
const UNSEEN: SignedDuration = SignedDuration::from_millis(500);
/// Greatest lead of the host's clock over the clock of the API server, with a margin.
const CLOCK_MARGIN: SignedDuration = SignedDuration::from_secs(2);

/// Takes the results that came back into the memory. Returns the events that follow from them.
pub(super) fn take_results(memory: &mut JobMemory, events: EventBuilder<'_>) -> Vec<EventNote> {
    let mut notes = Vec::new();
    for result in std::mem::take(&mut memory.work.results) {
        if result.entry.job.uid != events.job.uid {
            continue;
        }
        let Some(index) = result.entry.index else {
            notes.extend(closed(&result, &mut memory.housekeeping));
            continue;
        };
        if concerns(&result, index, &memory.stored) {
            let found = target(&result, index, &memory.stored, &mut memory.targets, events);
            if let Some(error) = found.trouble {
                show(index, error, &memory.stored, &mut memory.decisions, &mut memory.targets);
            }
            notes.extend(found.notes);
        }
        // The target is due now. This also holds for a write that an earlier memory of this job queued: until its result
        // came, the host did not visit the target. The target's own waits still apply.
        if memory.stored.state.target(index).is_some() {
            memory.work.due_times.set(index, Some(Timestamp::UNIX_EPOCH));
        }
    }
    notes
}

/// Returns the events of a job that is gone. The last write of such a job is the deletion after its time to live, or the
/// removal of its finalizer.
pub fn last_events(work: &mut RoundWork) -> Vec<EventNote> {
    let results = std::mem::take(&mut work.results);
    let made = results.into_iter().filter(|result| result.entry.index.is_none() && result.stopped.is_none());
    made.flat_map(|result| result.entry.events).collect()
}

/// Returns true if a result is about the target's present attempt and object.
fn concerns(result: &BatchResult, index: u32, stored: &StoredState) -> bool {
    let epoch = stored.state.epoch;
    stored.state.target(index).is_some_and(|target| {
        let uid = target.uid.as_deref().unwrap_or_default();
        let known = uid == result.entry.target_uid || uid.is_empty() || result.entry.target_uid.is_empty();
        // The epoch of a term rises if another client writes a higher epoch into the status.
        known && target.attempt.max(1) == result.entry.attempt.max(1) && result.entry.epoch <= epoch
    })
}

/// Takes the result of a write of the job itself. Returns the events that follow from it.
fn closed(result: &BatchResult, housekeeping: &mut Housekeeping) -> Vec<EventNote> {
    let tries = housekeeping.job_retry.map_or(0, |(_, tries)| tries);
    let failed = result.stopped.as_ref().filter(|stopped| **stopped != Stopped::NotSent);
    housekeeping.job_retry = failed.map(|_| (after(result.at, wait_after(tries, None)), tries.saturating_add(1)));
    housekeeping.job_write_at = housekeeping.job_retry.map(|(time, _)| time);
    // The next step of the job's end is due now.
    housekeeping.requeue_now |= housekeeping.job_retry.is_none();
    if result.stopped.is_none() { result.entry.events.clone() } else { Vec::new() }
}

/// The effect of a result on the status of its target, and on events.
#[derive(Default)]
struct ResultReport {
    /// The problem to show on the target.
    trouble: Option<TargetError>,
    /// The events that follow.
    notes: Vec<EventNote>,
}

/// Takes the result of a write of a target into the memory of the target.
fn target(
    result: &BatchResult,
    index: u32,
    stored: &StoredState,
    targets: &mut Targets,
    events: EventBuilder<'_>,
) -> ResultReport {
    let own = stored.state.object(&events.job.key.namespace, index);
    if result.entry.dry_run {
        note_dry_run_result(result, targets.memory_of(index), &own);
        return ResultReport::default();
    }
    let attempt = result.entry.attempt;
    let progress = stored.state.target(index).map(|target| target.progress);
    let ends = stored.state.target(index).is_some_and(TargetState::attempt_over);
    let follows = std::mem::take(&mut targets.memory_of(index).writes_its_end)
        || progress == Some(Progress::Succeeded) && !targets.releasing.contains(&index);
    targets.memory_of(index).tasks.take(result);
    if !ends && targets.memory_of(index).drain.as_mut().is_some_and(|drain| drain.takes(result)) {
        evicted(result, targets.memory_of(index), &own);
        return ResultReport { trouble: None, notes: result.entry.events.clone() };
    }
    match &result.stopped {
        None => {
            done(result, targets.memory_of(index));
            targets.blocked.remove(&index);
            ResultReport { trouble: None, notes: result.entry.events.clone() }
        }
        Some(stopped) => {
            let known = targets.memory_of(index);
            let StoppedWrite { trouble, warning } = stop(stopped, result, known, ends, &own);
            let warning = if follows { stopped_at_the_end(stopped, &own) } else { warning };
            if follows {
                // The host does not retry the write; the release has its own tries.
                known.write_tries = 0;
            }
            if matches!(stopped, Stopped::Blocked { .. }) && !ends {
                targets.blocked.insert(index);
            }
            let notes = warning.map(|warning| events.about_target(warning, index, attempt)).into_iter().collect();
            ResultReport { trouble, notes }
        }
    }
}

/// Takes the result of an eviction of a drain. The host looks for the next pod at once.
fn evicted(result: &BatchResult, known: &mut TargetMemory, own: &ObjectKey) {
    if let Some(Stopped::Unknown { .. }) = &result.stopped {
        note_unknown(result.entry.writes.get(result.done), known, own, result.at);
    }
    known.write_tries = 0;
    known.retry_at = None;
    known.check_at = Some(result.at);
}

/// Takes the result of requests that were only tried. They changed nothing, whatever their outcome is.
fn note_dry_run_result(result: &BatchResult, known: &mut TargetMemory, pod: &ObjectKey) {
    let write = result.entry.writes.get(result.done);
    let refused = |reason: &str, message: &str| {
        let what = write.map_or_else(String::new, |write| format!("{}: ", write.describe()));
        Some(Err(TargetError { reason: reason.to_owned(), message: format!("{what}{message}") }))
    };
    let (outcome, wait) = match &result.stopped {
        None => (Some(Ok(())), None),
        Some(Stopped::Blocked { message, .. }) => (refused("EvictionBlocked", message), None),
        Some(Stopped::Refused { message }) => (refused("UpdateObjectFailed", message), None),
        Some(Stopped::Forbidden { lacking, message }) => (refused(lacking.reason(), message), None),
        Some(Stopped::LostLease) => (None, None),
        Some(Stopped::NotSent) => {
            known.changed_by_others |= write.is_some_and(|write| write.version().is_some());
            known.check(result.at);
            (None, None)
        }
        Some(Stopped::Gone | Stopped::Conflict) => {
            note_outdated(write, known, pod, result.at);
            (None, None)
        }
        Some(Stopped::Throttled { retry_after }) => (None, Some(throttled(*retry_after))),
        Some(Stopped::Unknown { .. }) => (None, Some(backed_off(&mut known.write_tries))),
    };
    if outcome.is_some() {
        known.check_at = Some(result.at);
    }
    if let Some(wait) = wait {
        known.retry_at = Some(after(result.at, wait));
        known.check_at = known.retry_at;
    }
    // The host may meanwhile have asked for another answer, for example of a plugin that served before. Without a
    // trial, the outcome stays unknown.
    if let Some(dry_run) = known.dry_run_trial.as_mut() {
        dry_run.outcome = outcome;
    }
}

fn done(result: &BatchResult, known: &mut TargetMemory) {
    known.blocked = 0;
    known.write_tries = 0;
    known.release_tries = 0;
    known.trouble = None;
    known.retry_at = None;
    note_departure(result, known);
    if result.entry.priority == Priority::Invalidate {
        known.expects.excluded();
    } else {
        known.changes.made(result.at);
    }
    known.check_at = Some(result.at);
}

/// Records that a write which was made asked the target to terminate.
fn note_departure(result: &BatchResult, known: &mut TargetMemory) {
    let made = result.entry.writes.iter().take(result.done);
    if made.filter(|write| write.uid() == Some(&result.entry.target_uid)).any(Write::departs) {
        known.expects.leaving = true;
        known.expects.departure_sent = result.sent.map(|sent| before(sent, CLOCK_MARGIN));
    }
}

/// Returns the event about a write that was proposed with the end of its target, and was stopped.
fn stopped_at_the_end(stopped: &Stopped, own: &ObjectKey) -> Option<PluginEvent> {
    let why = match stopped {
        Stopped::LostLease => return None,
        Stopped::NotSent | Stopped::Gone | Stopped::Conflict => "its object has changed since or is gone",
        Stopped::Throttled { .. } => "the API server is busy or cannot be reached",
        Stopped::Unknown { message } => &format!("{message}; the write may have been made anyway"),
        Stopped::Blocked { message, .. } | Stopped::Refused { message } | Stopped::Forbidden { message, .. } => message,
    };
    Some(not_made(&own.name, why))
}

/// The effect of a stopped write: a problem to show on the target, and an event.
#[derive(Default)]
struct StoppedWrite {
    trouble: Option<TargetError>,
    warning: Option<PluginEvent>,
}

fn trouble(reason: &str, message: &str) -> Option<TargetError> {
    Some(TargetError { reason: reason.to_owned(), message: shown_cause(message, 256) })
}

fn stop(
    stopped: &Stopped,
    result: &BatchResult,
    known: &mut TargetMemory,
    ends: bool,
    own: &ObjectKey,
) -> StoppedWrite {
    let at = result.at;
    let write = result.entry.writes.get(result.done);
    note_departure(result, known);
    let mut told = StoppedWrite::default();
    let wait = match stopped {
        Stopped::NotSent => {
            // Another client has changed the object since the host saw it.
            known.changed_by_others |= write.is_some_and(|write| write.version().is_some());
            known.check(at);
            return StoppedWrite::default();
        }
        Stopped::LostLease => return StoppedWrite::default(),
        Stopped::Gone | Stopped::Conflict => {
            note_outdated(write, known, own, at);
            return StoppedWrite::default();
        }
        Stopped::Blocked { retry_after, message } => {
            let asked = retry_after.map(|seconds| SignedDuration::from_secs(i64::from(seconds.max(1))));
            let doubled = BLOCKED.signed_wait(known.blocked);
            known.blocked = known.blocked.saturating_add(1);
            known.retry_at = Some(after(at, asked.unwrap_or(doubled)));
            known.check_at = known.retry_at;
            let warning = warning("EvictionBlocked", format!("{}: {message}", own.name));
            return StoppedWrite { trouble: trouble("EvictionBlocked", message), warning: Some(warning) };
        }
        Stopped::Throttled { retry_after } => throttled(*retry_after),
        Stopped::Unknown { .. } => {
            note_unknown(write, known, own, at);
            if result.entry.priority == Priority::Invalidate {
                give_up_later(known, at);
            }
            backed_off(&mut known.write_tries)
        }
        Stopped::Refused { message } | Stopped::Forbidden { message, .. } => {
            give_up_later(known, at);
            let first = known.write_tries == 0;
            let warning = warning("ReleaseTargetFailed", format!("{}: {message}", own.name));
            told = StoppedWrite {
                trouble: trouble(refusal_reason(stopped), message),
                warning: (ends && first).then_some(warning),
            };
            backed_off(&mut known.write_tries)
        }
    };
    known.retry_at = Some(after(at, wait));
    known.check_at = known.retry_at;
    told
}

/// Returns the reason on a target whose write the API server refused.
fn refusal_reason(stopped: &Stopped) -> &'static str {
    if let Stopped::Forbidden { lacking, .. } = stopped { lacking.reason() } else { "UpdateObjectFailed" }
}

/// Returns the wait that a busy server asks for.
fn throttled(retry_after: Option<u32>) -> SignedDuration {
    SignedDuration::from_secs(i64::from(retry_after.unwrap_or(1).max(1))).min(BLOCKED.signed_longest())
}

/// Records that a write was decided on an outdated view. The host waits before it decides again, because a refused
/// eviction has already used the disruption budget. The cache or a live read brings a newer view.
fn note_outdated(write: Option<&Write>, known: &mut TargetMemory, own: &ObjectKey, at: Timestamp) {
    let soon = after(at, UNSEEN);
    if write.is_some_and(|write| write.object() != own) {
        known.check(soon);
        known.retry_at = known.check_at;
        return;
    }
    known.expects.live_read_at = Some(soon);
    match write.and_then(Write::version) {
        Some(version) => known.expects.stale = Some(version.to_owned()),
        None => {
            known.expects.view_is_uncertain = true;
            known.retry_at = Some(soon);
            known.check_at = known.retry_at;
        }
    }
}

/// Records a write that may still take effect.
fn note_unknown(write: Option<&Write>, known: &mut TargetMemory, own: &ObjectKey, at: Timestamp) {
    let Some(write) = write else { return };
    let to_own = write.object() == own;
    match write.version() {
        Some(version) if to_own => {
            known.expects.unknown = Some(version.to_owned());
            known.expects.stale = known.expects.unknown.clone();
        }
        version => {
            let (uid, version) = (write.uid().map(str::to_owned), version.map(str::to_owned));
            let unknown = UnknownWrite { object: write.object().clone(), uid, version };
            known.expects.waited_for.insert(unknown, too_late_for(at));
            if to_own {
                known.expects.view_is_uncertain = true;
                known.expects.live_read_at = Some(at);
            }
        }
    }
}

/// Limits the time in which the host tries an invalidation. If the invalidation takes effect after that time, it does no
/// harm.
fn give_up_later(known: &mut TargetMemory, at: Timestamp) {
    if let Some(failure) = known.failure.as_mut() {
        failure.give_up_at.get_or_insert(too_late_for(at));
    }
}

fn warning(reason: &str, message: String) -> PluginEvent {
    PluginEvent { warning: true, reason: reason.to_owned(), message }
}

fn backed_off(tries: &mut u32) -> SignedDuration {
    let wait = wait_after(*tries, None);
    *tries = tries.saturating_add(1);
    wait
}

/// Shows a lasting problem on its target with the next write of the status. The host never changes the error with which
/// a target or its attempt ended.
fn show(index: u32, error: TargetError, stored: &StoredState, decisions: &mut Decisions, targets: &mut Targets) {
    let lasts = targets.memory_of(index).trouble_lasts(&error);
    let Some(mut state) = decisions.latest(stored, index).cloned().filter(|_| lasts) else { return };
    if state.attempt_over() || state.error.as_ref() == Some(&error) {
        return;
    }
    state.error = Some(error);
    let waiting = decisions.decided.remove(&index);
    let decided = match waiting {
        Some(waiting) => Decided { state, ..waiting },
        None => {
            let (writes, events) = (Vec::new(), Vec::new());
            Decided { state, writes, made_as: None, events, priority: Priority::Operated }
        }
    };
    decisions.decide(index, decided, targets);
}
