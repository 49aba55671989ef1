//! The results of entries, taken into the memory. They are news: each comes back some rounds after its entry was made.
//!
//! Unknown is not failed: a write that may have been made is observed before it is repeated. Source:
//! docs/operationjob.md 3.7, 3.15.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_api::TargetError;

use crate::cluster::object::ObjectKey;
use crate::cluster::writes::{EntryResult, EventNote, Priority, Stopped, Write};
use crate::job::bound::shown_cause;
use crate::job::key::JobRef;
use crate::job::state::{Progress, TargetState};
use crate::job::time::{after, before};
use crate::plugin::proposal::PluginEvent;
use crate::round::decided::Decided;
use crate::round::events::EventBuilder;
use crate::round::judge::not_made;
use crate::round::memory::JobMemory;
use crate::round::pace::{too_late_for, wait_after};
use crate::round::target_memory::{TargetMemory, UnknownWrite};

/// First wait after an eviction that a budget refused, in seconds; doubles up to a minute.
const BLOCKED_WAIT: i64 = 5;
const LONGEST_WAIT: i64 = 60;
/// Time for the cache to show the change that made a write fail; then the host reads the object live.
const UNSEEN: SignedDuration = SignedDuration::from_millis(500);
/// Greatest lead of the host's clock over the API server's, and a little more.
const CLOCK_MARGIN: SignedDuration = SignedDuration::from_secs(2);

/// Takes the results that came back into the memory. Returns the events that follow from them.
pub fn take_results(memory: &mut JobMemory, job: &JobRef, action: &str) -> Vec<EventNote> {
    let mut notes = Vec::new();
    let events = EventBuilder { job, action };
    for result in std::mem::take(&mut memory.results) {
        if result.entry.job.uid != job.uid {
            continue;
        }
        let Some(index) = result.entry.index else {
            closed(&result, memory, &mut notes);
            continue;
        };
        if concerns(&result, index, memory) {
            target(&result, index, memory, events, &mut notes);
        }
        // It is due now, also by the write of an earlier memory, which kept it from being visited; its own waits still
        // apply.
        if memory.state.target(index).is_some() {
            memory.agenda.set(index, Some(Timestamp::UNIX_EPOCH));
        }
    }
    notes
}

/// The events of a job that is gone: its deletion, which its time to live asked for, is its last write.
pub fn last_events(memory: &mut JobMemory) -> Vec<EventNote> {
    let results = std::mem::take(&mut memory.results);
    let made = results.into_iter().filter(|result| result.entry.index.is_none() && result.stopped.is_none());
    made.flat_map(|result| result.entry.events).collect()
}

/// True if a result is about the target's present attempt and object.
fn concerns(result: &EntryResult, index: u32, memory: &JobMemory) -> bool {
    let epoch = memory.state.epoch;
    memory.state.target(index).is_some_and(|target| {
        let uid = target.uid.as_deref().unwrap_or_default();
        let known = uid == result.entry.target_uid || uid.is_empty() || result.entry.target_uid.is_empty();
        // The epoch of a term rises where somebody writes a higher one into the status.
        known && target.attempt.max(1) == result.entry.attempt.max(1) && result.entry.epoch <= epoch
    })
}

/// The result of a write of the job itself.
fn closed(result: &EntryResult, memory: &mut JobMemory, notes: &mut Vec<EventNote>) {
    let tries = memory.job_retry.map_or(0, |(_, tries)| tries);
    let failed = result.stopped.as_ref().filter(|stopped| **stopped != Stopped::NotSent);
    memory.job_retry = failed.map(|_| (after(result.at, wait_after(tries, None)), tries.saturating_add(1)));
    memory.close_at = memory.job_retry.map(|(time, _)| time);
    if result.stopped.is_none() {
        notes.extend(result.entry.events.iter().cloned());
    }
    // The next step of the job's end is due now.
    memory.again |= memory.job_retry.is_none();
}

fn target(
    result: &EntryResult,
    index: u32,
    memory: &mut JobMemory,
    events: EventBuilder<'_>,
    notes: &mut Vec<EventNote>,
) {
    let own = memory.state.object(&events.job.key.namespace, index);
    if result.entry.dry_run {
        return tried(result, memory.target(index), &own);
    }
    let attempt = result.entry.attempt;
    let progress = memory.state.target(index).map(|target| target.progress);
    let ends = memory.state.target(index).is_some_and(TargetState::attempt_over);
    let follows = std::mem::take(&mut memory.target(index).writes_its_end)
        || progress == Some(Progress::Succeeded) && !memory.releasing.contains(&index);
    memory.target(index).tasks.take(result);
    if !ends && memory.target(index).drain.as_mut().is_some_and(|drain| drain.takes(result)) {
        notes.extend(result.entry.events.iter().cloned());
        return evicted(result, memory.target(index), &own);
    }
    match &result.stopped {
        None => {
            done(result, memory.target(index));
            memory.blocked.remove(&index);
            notes.extend(result.entry.events.iter().cloned());
        }
        Some(stopped) => {
            let known = memory.target(index);
            let (trouble, warning) = stop(stopped, result, known, ends, &own);
            let warning = if follows { stopped_at_the_end(stopped, &own) } else { warning };
            if follows {
                // Nobody tries it again: the release has its own tries.
                known.write_tries = 0;
            }
            if matches!(stopped, Stopped::Blocked { .. }) && !ends {
                memory.blocked.insert(index);
            }
            show(index, trouble, memory);
            notes.extend(warning.map(|warning| events.about_target(warning, index, attempt)));
        }
    }
}

/// The pod of a drain has the result of its eviction: the next one is looked for at once.
fn evicted(result: &EntryResult, known: &mut TargetMemory, own: &ObjectKey) {
    if let Some(Stopped::Unknown { .. }) = &result.stopped {
        note_unknown(result.entry.writes.get(result.done), known, own, result.at);
    }
    known.write_tries = 0;
    known.retry_at = None;
    known.check_at = Some(result.at);
}

/// Takes the result of requests that were only tried: whatever became of them, nothing was changed.
fn tried(result: &EntryResult, known: &mut TargetMemory, pod: &ObjectKey) {
    let write = result.entry.writes.get(result.done);
    let refused = |reason: &str, message: &str| {
        let what = write.map_or_else(String::new, |write| format!("{}: ", write.words()));
        Some(Err(TargetError { reason: reason.to_owned(), message: format!("{what}{message}") }))
    };
    let (outcome, wait) = match &result.stopped {
        None => (Some(Ok(())), None),
        Some(Stopped::Blocked { message, .. }) => (refused("EvictionBlocked", message), None),
        Some(Stopped::Refused { message }) => (refused("UpdateObjectFailed", message), None),
        Some(Stopped::LostLease) => (None, None),
        Some(Stopped::NotSent) => {
            known.news |= write.is_some_and(|write| write.version().is_some());
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
    // Another answer, of a plugin that served before, say, may have been asked for meanwhile: then it is not known.
    if let Some(trial) = known.trial.as_mut() {
        trial.outcome = outcome;
    }
}

fn done(result: &EntryResult, known: &mut TargetMemory) {
    known.blocked = 0;
    known.write_tries = 0;
    known.release_tries = 0;
    known.trouble = None;
    known.retry_at = None;
    note_departure(result, known);
    if result.entry.priority == Priority::Bump {
        known.expects.excluded();
    } else {
        known.changes.made(result.at);
    }
    known.check_at = Some(result.at);
}

/// Remembers that the target was asked to go by a write that was made.
fn note_departure(result: &EntryResult, known: &mut TargetMemory) {
    let made = result.entry.writes.iter().take(result.done);
    if made.filter(|write| write.uid() == Some(&result.entry.target_uid)).any(Write::departs) {
        known.expects.departing = true;
        known.expects.departure_sent = result.sent.map(|sent| before(sent, CLOCK_MARGIN));
    }
}

/// What is said of a write that was proposed with the end of its target, and was stopped.
fn stopped_at_the_end(stopped: &Stopped, own: &ObjectKey) -> Option<PluginEvent> {
    let why = match stopped {
        Stopped::LostLease => return None,
        Stopped::NotSent | Stopped::Gone | Stopped::Conflict => "its object has changed since or is gone",
        Stopped::Throttled { .. } => "the API server is busy",
        Stopped::Unknown { message } => &format!("{message}; it may have been made all the same"),
        Stopped::Blocked { message, .. } | Stopped::Refused { message } => message,
    };
    Some(not_made(&own.name, why))
}

type Trouble = Option<(&'static str, String)>;

fn stop(
    stopped: &Stopped,
    result: &EntryResult,
    known: &mut TargetMemory,
    ends: bool,
    own: &ObjectKey,
) -> (Trouble, Option<PluginEvent>) {
    let at = result.at;
    let write = result.entry.writes.get(result.done);
    note_departure(result, known);
    let mut told = (None, None);
    let wait = match stopped {
        Stopped::NotSent => {
            // Somebody else has changed its object since it was seen.
            known.news |= write.is_some_and(|write| write.version().is_some());
            known.check(at);
            return (None, None);
        }
        Stopped::LostLease => return (None, None),
        Stopped::Gone | Stopped::Conflict => {
            note_outdated(write, known, own, at);
            return (None, None);
        }
        Stopped::Blocked { retry_after, message } => {
            let asked = retry_after.map(|seconds| SignedDuration::from_secs(i64::from(seconds.max(1))));
            let doubled = SignedDuration::from_secs((BLOCKED_WAIT << known.blocked.min(5)).min(LONGEST_WAIT));
            known.blocked = known.blocked.saturating_add(1);
            known.retry_at = Some(after(at, asked.unwrap_or(doubled)));
            known.check_at = known.retry_at;
            let warning = warning("EvictionBlocked", format!("{}: {message}", own.name));
            return (Some(("EvictionBlocked", message.clone())), Some(warning));
        }
        Stopped::Throttled { retry_after } => throttled(*retry_after),
        Stopped::Unknown { .. } => {
            note_unknown(write, known, own, at);
            if result.entry.priority == Priority::Bump {
                give_up_later(known, at);
            }
            backed_off(&mut known.write_tries)
        }
        Stopped::Refused { message } => {
            give_up_later(known, at);
            let first = known.write_tries == 0;
            let warning = warning("ReleaseTargetFailed", format!("{}: {message}", own.name));
            told = (Some(("UpdateObjectFailed", message.clone())), (ends && first).then_some(warning));
            backed_off(&mut known.write_tries)
        }
    };
    known.retry_at = Some(after(at, wait));
    known.check_at = known.retry_at;
    told
}

/// The wait that a busy server asks for.
fn throttled(retry_after: Option<u32>) -> SignedDuration {
    SignedDuration::from_secs(i64::from(retry_after.unwrap_or(1)).clamp(1, LONGEST_WAIT))
}

/// Remembers that a write was decided on a view that is out of date. Nothing follows at once: a refused eviction has
/// spent its budget. The cache or a live read brings a newer view.
fn note_outdated(write: Option<&Write>, known: &mut TargetMemory, own: &ObjectKey, at: Timestamp) {
    let soon = after(at, UNSEEN);
    if write.is_some_and(|write| write.object() != own) {
        known.check(soon);
        known.retry_at = known.check_at;
        return;
    }
    known.expects.patience = Some(soon);
    match write.and_then(Write::version) {
        Some(version) => known.expects.stale = Some(version.to_owned()),
        None => {
            known.expects.unsure = true;
            known.retry_at = Some(soon);
            known.check_at = known.retry_at;
        }
    }
}

/// Remembers a write that may still take effect.
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
                known.expects.unsure = true;
                known.expects.patience = Some(at);
            }
        }
    }
}

/// Bounds the time in which a bump is tried: a late effect of it is none of the job's.
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

/// Shows a lasting trouble on its target with the next write of the status. What a target or its attempt ended with is
/// never changed.
fn show(index: u32, trouble: Trouble, memory: &mut JobMemory) {
    let Some((reason, message)) = trouble else { return };
    let error = TargetError { reason: reason.to_owned(), message: shown_cause(&message, 256) };
    let lasts = memory.target(index).trouble_lasts(&error);
    let Some(mut state) = memory.latest(index).cloned().filter(|_| lasts) else { return };
    if state.attempt_over() || state.error.as_ref() == Some(&error) {
        return;
    }
    state.error = Some(error);
    let waiting = memory.decided.remove(&index);
    let (writes, events, priority) = waiting.map_or((Vec::new(), Vec::new(), Priority::Operated), |waiting| {
        (waiting.writes, waiting.events, waiting.priority)
    });
    memory.decide(index, Decided { state, writes, events, priority });
}
