//! What came of a round's writes, remembered for the next one.
//!
//! Takes what was applied; changes the memory and yields warnings that follow. Unknown is not failed: a write that may
//! have been made is observed before it is repeated. May not write. Source: spec/operationjob.md §§3.7, 6.2.

use std::collections::HashMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_api::TargetError;

use crate::cluster::store::Store;
use crate::cluster::writes::{Applied, EventNote, JobKey, Stopped, TargetWrites, Write};
use crate::plugin::proposal::PluginEvent;
use crate::round::events::{Teller, untold};
use crate::round::judge::wait_after;
use crate::round::memory::JobMemory;
use crate::round::target::cut;

/// First wait after an eviction that a budget refused; doubles up to a minute.
const BLOCKED_WAIT: i64 = 5;
const LONGEST_WAIT: i64 = 60;
/// How long the cache may take to show what made a write fail before the host looks.
const UNSEEN: SignedDuration = SignedDuration::from_millis(500);

/// What was sent for each target: whether it asks the target to go, and the version it was decided on.
pub struct Sent {
    departs: HashMap<u32, bool>,
    versions: HashMap<u32, String>,
}

impl Sent {
    /// What `writes` are about.
    pub fn note(writes: &[TargetWrites], store: &Store) -> Self {
        let indexed = || writes.iter().filter_map(|target| Some((target.target?, &target.writes)));
        let departs =
            |writes: &[Write]| writes.iter().any(|write| matches!(write, Write::Evict { .. } | Write::Delete { .. }));
        let version =
            |writes: &[Write]| store.get(writes.first()?.object()).map(|object| object.resource_version.clone());
        Self {
            departs: indexed().map(|(index, writes)| (index, departs(writes))).collect(),
            versions: indexed().filter_map(|(index, writes)| Some((index, version(writes)?))).collect(),
        }
    }
}

/// Takes what came of the writes. Yields warnings about evictions that a budget refused.
pub fn absorb(applied: &[Applied], sent: &Sent, memory: &mut JobMemory, key: &JobKey, uid: &str) -> Vec<EventNote> {
    let teller = Teller { key, uid, action: "Evict" };
    let mut notes = Vec::new();
    for outcome in applied {
        memory.acts += u64::try_from(outcome.done).unwrap_or(0);
        let Some(index) = outcome.target else {
            closed(outcome, memory);
            continue;
        };
        match &outcome.stopped {
            None => done(index, outcome.at, sent, memory),
            Some(stopped) => notes.extend(stop(index, stopped, outcome.at, sent, memory).map(|warning| {
                let attempt = memory.latest(index).map_or(1, |target| target.attempt);
                teller.note(warning, index, attempt)
            })),
        }
    }
    untold(notes, memory)
}

/// What came of the job's own write.
fn closed(outcome: &Applied, memory: &mut JobMemory) {
    let tries = memory.job_retry.map_or(0, |(_, tries)| tries);
    memory.job_retry = outcome.stopped.as_ref().map(|_| (outcome.at + wait_after(tries, None), tries + 1));
    memory.close_at = memory.job_retry.map(|(time, _)| time);
    // What it was a step to is due now.
    memory.again |= memory.job_retry.is_none();
}

fn done(index: u32, at: Timestamp, sent: &Sent, memory: &mut JobMemory) {
    let departs = sent.departs.get(&index).copied().unwrap_or(false);
    memory.blocked.remove(&index);
    let target = memory.target(index);
    target.blocked = 0;
    target.trouble = None;
    target.not_before = None;
    target.release_tries = 0;
    if departs {
        target.departing = true;
        target.asked_to_go(at);
    }
    if let Some(fate) = target.fate.as_mut() {
        // The only write of a target with a fate is its touch.
        fate.settled = true;
    }
    memory.dirty.insert(index);
    memory.again = true;
}

fn stop(index: u32, stopped: &Stopped, at: Timestamp, sent: &Sent, memory: &mut JobMemory) -> Option<PluginEvent> {
    let name = memory.state.name(index).to_owned();
    let version = sent.versions.get(&index).cloned();
    let target = memory.target(index);
    let mut trouble = None;
    let mut warning = None;
    let wait = match stopped {
        Stopped::Gone | Stopped::Conflict => {
            // Never at once: a refused eviction has spent its budget. The cache moves, or a look moves it.
            target.stale = version;
            target.look_at = Some(at + UNSEEN);
            memory.wake(at + UNSEEN, index);
            return None;
        }
        Stopped::Blocked { message, retry_after } => {
            let own = retry_after.map(|seconds| SignedDuration::from_secs(i64::from(seconds.max(1))));
            let doubled = SignedDuration::from_secs((BLOCKED_WAIT << target.blocked.min(5)).min(LONGEST_WAIT));
            target.blocked += 1;
            trouble = Some(("EvictionBlocked", message.clone()));
            let message = format!("{name}: {message}");
            warning = Some(PluginEvent { warning: true, reason: "EvictionBlocked".into(), message });
            own.unwrap_or(doubled)
        }
        Stopped::Throttled { retry_after } => SignedDuration::from_secs(i64::from(retry_after.unwrap_or(1).max(1))),
        Stopped::Unknown { .. } => {
            target.unknown.clone_from(&version);
            target.stale = version;
            backed_off(&mut target.tries)
        }
        Stopped::Refused { message } => {
            trouble = Some(("UpdateObjectFailed", message.clone()));
            backed_off(&mut target.tries)
        }
        Stopped::Fenced => return None,
    };
    target.not_before = Some(at + wait);
    if matches!(stopped, Stopped::Blocked { .. }) {
        memory.blocked.insert(index);
    }
    let target = memory.target(index);
    if let Some((reason, message)) = trouble {
        let error = TargetError { reason: reason.into(), message: cut(&message, 256) };
        let rounds = target.trouble.as_ref().map_or(1, |(_, rounds)| rounds + 1);
        target.trouble = Some((error.clone(), rounds));
        if rounds >= 2 {
            show(index, error, memory);
        }
    }
    memory.wake(at + wait, index);
    warning
}

fn backed_off(tries: &mut u32) -> SignedDuration {
    let wait = wait_after(*tries, None);
    *tries = tries.saturating_add(1);
    wait
}

/// A trouble that lasts is shown on its target, when the status is written next.
fn show(index: u32, error: TargetError, memory: &mut JobMemory) {
    let Some(mut state) = memory.latest(index).cloned() else { return };
    if state.progress.terminal() || state.error.as_ref() == Some(&error) {
        return;
    }
    state.error = Some(error);
    memory.decided.insert(index, state);
    // Nothing else may bring a round before the write is tried again.
    memory.again = true;
}
