//! What one target needs now.
//!
//! Takes its durable state, what is remembered of it and the views of this round; yields a [`Turn`]: rest, look, decide
//! or visit. May not call a plugin or write: it names what is to be done. Source: spec/operationjob.md §§3.5 to 3.11.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_api::TargetError;

use crate::cluster::object::{Object, ObjectKey};
use crate::cluster::store::Store;
use crate::cluster::writes::{JobKey, Write};
use crate::job::spec::ValidSpec;
use crate::job::state::{Progress, TargetState, extras, whole};
use crate::plugin::lookup::PluginInfo;
use crate::plugin::visit::{Call, Look, Looked};
use crate::round::memory::{Fate, TargetMemory};
use crate::shared::holds;

/// How long an own write may stay unseen before the host looks.
const UNSEEN: SignedDuration = SignedDuration::from_secs(3);

/// What the targets of a job have in common in one round.
pub struct Common<'a> {
    /// The job.
    pub key: &'a JobKey,
    /// Its UID.
    pub job_uid: &'a str,
    /// When the round began.
    pub now: Timestamp,
    /// Its spec, where that is valid.
    pub spec: Option<&'a ValidSpec>,
    /// Seconds each target has.
    pub deadline_seconds: i64,
    /// Its plugin, where one serves.
    pub plugin: Option<&'a PluginInfo>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// The objects.
    pub store: &'a Arc<Store>,
    /// What the looks found.
    pub looked: &'a Arc<Looked>,
}

/// What one target needs now.
#[derive(Debug)]
pub enum Turn {
    /// Nothing before a change or this time.
    Rest(Option<Timestamp>),
    /// These looks first.
    Look(BTreeSet<Look>),
    /// To be recorded so, with no call.
    Decide(TargetState),
    /// To be touched, so that a write still under way fails.
    Touch(Write),
    /// To be visited.
    Visit(Planned),
}

/// A visit that the round makes.
#[derive(Debug)]
pub struct Planned {
    /// Which functions.
    pub call: Call,
    /// The state to record, before what the plugin adds.
    pub state: TargetState,
    /// The object of the recorded UID.
    pub object: Option<Arc<Object>>,
    /// Every read is live, and only `succeeded` counts.
    pub last_look: bool,
}

impl Common<'_> {
    /// Key of the pod of that name.
    pub fn pod(&self, name: &str) -> ObjectKey {
        ObjectKey::pod(&self.key.namespace, name)
    }

    /// When a target's time is over.
    pub fn deadline(&self, target: &TargetState) -> Option<Timestamp> {
        target.start.map(|start| start + SignedDuration::from_secs(self.deadline_seconds))
    }
}

/// What the target `name` needs now.
pub fn turn(name: &str, state: &TargetState, memory: &mut TargetMemory, common: &Common<'_>) -> Turn {
    let key = common.pod(name);
    match state.progress {
        Progress::Pending => start(&key, state, common),
        Progress::Processing => Flight { key, state, common }.turn(memory),
        Progress::Succeeded | Progress::Failed => release(&key, state, memory, common),
    }
}

/// A pending target: it starts, or it is found never to have been there.
fn start(key: &ObjectKey, state: &TargetState, common: &Common<'_>) -> Turn {
    let now = whole(common.now);
    if common.deleting {
        let error = TargetError {
            reason: "JobDeleted".into(),
            message: "the job was deleted before the target started".into(),
        };
        return Turn::Decide(ended(state, Progress::Failed, now, Some(error)));
    }
    let Some(object) = common.store.get(key) else {
        let look = Look::Object(key.clone());
        if !common.looked.has(&look) {
            return Turn::Look([look].into());
        }
        let error = TargetError {
            reason: "PodNotFound".into(),
            message: format!("there is no pod {} in namespace {}", key.name, common.key.namespace),
        };
        return Turn::Decide(ended(state, Progress::Failed, now, Some(error)));
    };
    let mut next = state.clone();
    next.progress = Progress::Processing;
    next.start = Some(now);
    next.attempt = 1;
    next.uid = Some(object.uid.clone());
    if common.plugin.is_some_and(|plugin| plugin.registration.same_controller().is_some()) {
        match note_owner(&object, common) {
            Ok(noted) => next.extra.extend(noted),
            Err(look) => return Turn::Look([look].into()),
        }
    }
    match common.spec.map_or(0, |spec| spec.delay_seconds) {
        0 => visit(Call::OperateThenProgress, next, Some(object)),
        _ => Turn::Decide(next),
    }
}

/// What must be remembered of the controller, since later nobody can look it up.
fn note_owner(object: &Object, common: &Common<'_>) -> Result<Vec<(String, String)>, Look> {
    let root = match common.store.root(object) {
        Ok(root) => root,
        Err(_) => {
            let look = Look::Controllers { namespace: common.key.namespace.clone() };
            if !common.looked.has(&look) {
                return Err(look);
            }
            // The ReplicaSet is gone already: it is the only root there is.
            object.controller().cloned()
        }
    };
    let mut noted = Vec::new();
    if let Some(owner) = root {
        noted.push((extras::OWNER.to_owned(), format!("{}/{}/{}", owner.kind.kind, owner.name, owner.uid)));
        if owner.kind.kind == "DaemonSet" {
            noted.extend(object.text("/spec/nodeName").map(|node| (extras::NODE.to_owned(), node)));
        }
    }
    Ok(noted)
}

/// A target in flight.
struct Flight<'a> {
    key: ObjectKey,
    state: &'a TargetState,
    common: &'a Common<'a>,
}

impl Flight<'_> {
    fn turn(&self, memory: &mut TargetMemory) -> Turn {
        if let Some(look) = self.unconfirmed(memory) {
            return Turn::Look([look].into());
        }
        let object = self.object();
        if memory.unknown.is_some() && object.as_ref().map(|o| &o.resource_version) != memory.unknown.as_ref() {
            // The object has moved: a write made against the older version fails from now on.
            memory.unknown = None;
        }
        if memory.departing && object.as_ref().is_none_or(|o| o.terminating()) {
            memory.departing = false;
        }
        self.doom(memory);
        if let Some(fate) = memory.fate.clone() {
            return self.fated(memory, &fate, object);
        }
        self.advance(memory, object)
    }

    fn object(&self) -> Option<Arc<Object>> {
        self.common.store.get(&self.key).filter(|object| Some(&object.uid) == self.state.uid.as_ref())
    }

    /// The look that is due before an absence is believed: a cache may lag behind the leader that recorded the UID.
    fn unconfirmed(&self, memory: &mut TargetMemory) -> Option<Look> {
        if memory.own_intent || memory.confirmed {
            return None;
        }
        let look = Look::Object(self.key.clone());
        if self.object().is_some() || self.common.looked.has(&look) {
            memory.confirmed = true;
            return None;
        }
        Some(look)
    }

    /// Gives the target its fate where its time is over or its job goes.
    fn doom(&self, memory: &mut TargetMemory) {
        let settled = memory.own_intent && memory.unknown.is_none();
        if self.common.deleting && !memory.fate.as_ref().is_some_and(|fate| fate.final_word) {
            let error = TargetError {
                reason: "JobDeleted".into(),
                message: "the job was deleted while the target was in flight".into(),
            };
            memory.fate = Some(Fate { error, settled, final_word: true });
            return;
        }
        let due = self.common.deadline(self.state).is_some_and(|deadline| deadline <= self.common.now);
        if due && memory.fate.is_none() {
            let waited =
                memory.trouble.as_ref().map(|(trouble, _)| format!(", last: {}: {}", trouble.reason, trouble.message));
            let message = format!(
                "not done {} s after its start{}; what was asked for already may still happen",
                self.common.deadline_seconds,
                waited.unwrap_or_default()
            );
            let error = TargetError { reason: "DeadlineExceeded".into(), message };
            memory.fate = Some(Fate { error, settled, final_word: false });
        }
    }

    fn fated(&self, memory: &mut TargetMemory, fate: &Fate, object: Option<Arc<Object>>) -> Turn {
        let look = Look::Object(self.key.clone());
        if !fate.settled {
            let Some(object) = object.as_ref().filter(|_| memory.stale.is_none()) else {
                if self.common.looked.has(&look) {
                    memory.stale = None;
                    if object.is_none() {
                        memory.fate = Some(Fate { settled: true, ..fate.clone() });
                    }
                    return self.turn(memory);
                }
                return Turn::Look([look].into());
            };
            let body = holds::touch(object, self.common.job_uid);
            return Turn::Touch(Write::Patch { object: self.key.clone(), subresource: None, body });
        }
        if fate.final_word || self.common.plugin.is_none() {
            return Turn::Decide(ended(self.state, Progress::Failed, whole(self.common.now), Some(fate.error.clone())));
        }
        let missing: BTreeSet<_> =
            memory.looks.iter().chain([&look]).filter(|look| !self.common.looked.has(look)).cloned().collect();
        if !missing.is_empty() {
            memory.looks.extend(missing.iter().cloned());
            return Turn::Look(memory.looks.clone());
        }
        let next = self.with_eviction_time(memory, object.as_deref());
        Turn::Visit(Planned { call: Call::Progress, state: next, object, last_look: true })
    }

    /// The ordinary way on.
    fn advance(&self, memory: &mut TargetMemory, object: Option<Arc<Object>>) -> Turn {
        let deadline = self.common.deadline(self.state);
        let rest = |until: Option<Timestamp>| Turn::Rest(until.into_iter().chain(deadline).min());
        if self.common.plugin.is_none() {
            return rest(None);
        }
        let delay = SignedDuration::from_secs(self.common.spec.map_or(0, |spec| spec.delay_seconds));
        let begin = self.state.start.map(|start| start + delay);
        let earliest = begin.into_iter().chain(memory.not_before).max();
        if earliest.is_some_and(|earliest| earliest > self.common.now) {
            return rest(earliest);
        }
        if let Some(look) = self.unseen(memory, object.as_deref()) {
            let patience = *memory.look_at.get_or_insert(self.common.now + UNSEEN);
            return if patience <= self.common.now { Turn::Look([look].into()) } else { rest(Some(patience)) };
        }
        memory.look_at = None;
        let missing: BTreeSet<_> = memory.looks.iter().filter(|look| !self.common.looked.has(look)).cloned().collect();
        if !missing.is_empty() {
            return Turn::Look(memory.looks.clone());
        }
        memory.not_before = None;
        let next = self.with_eviction_time(memory, object.as_deref());
        let call = if self.common.spec.is_some() { Call::OperateThenProgress } else { Call::Progress };
        visit(call, next, object)
    }

    /// The look that shows an own write, where the cache does not show it.
    fn unseen(&self, memory: &mut TargetMemory, object: Option<&Object>) -> Option<Look> {
        let look = Look::Object(self.key.clone());
        let looked = self.common.looked.has(&look);
        if memory.stale.is_some() && (looked || object.map(|o| &o.resource_version) != memory.stale.as_ref()) {
            memory.stale = None;
        }
        if looked {
            memory.departing = false;
        }
        (memory.stale.is_some() || memory.departing).then_some(look)
    }

    /// The state with the time at which the target was asked to go, once that is known.
    fn with_eviction_time(&self, memory: &mut TargetMemory, object: Option<&Object>) -> TargetState {
        let mut next = self.state.clone();
        object.and_then(asked_to_go).into_iter().for_each(|time| memory.asked_to_go(time));
        let relevant = self.common.plugin.is_some_and(|plugin| plugin.registration.same_controller().is_some());
        if !relevant || next.extra.contains_key(extras::EVICTED_AT) {
            return next;
        }
        let going = object.is_none_or(Object::terminating);
        if let Some(time) = memory.evicted_at.filter(|_| going) {
            next.extra.insert(extras::EVICTED_AT.to_owned(), crate::job::state::write_time(time));
        }
        next
    }
}

/// When a terminating object was asked to go: its deletionTimestamp less its grace period. `None` where no grace is
/// left: the kubelet's last request shortens it to zero and moves the timestamp to the object's end, by which time the
/// new pod is there already.
pub fn asked_to_go(object: &Object) -> Option<Timestamp> {
    let grace = object.grace_seconds.filter(|seconds| *seconds > 0)?;
    object.deleted.map(|deleted| deleted - SignedDuration::from_secs(grace))
}

/// A target that ended and from which something of ours may have to go.
fn release(key: &ObjectKey, state: &TargetState, memory: &mut TargetMemory, common: &Common<'_>) -> Turn {
    if memory.not_before.is_some_and(|time| time > common.now) {
        return Turn::Rest(memory.not_before);
    }
    let object = common.store.get(key).filter(|object| Some(&object.uid) == state.uid.as_ref());
    let look = Look::Object(key.clone());
    let looked = common.looked.has(&look);
    // A lagging cache may not show our hold, or show one that is gone.
    let old_view = !(memory.own_intent || memory.confirmed || looked) || memory.stale.is_some() && !looked;
    if old_view {
        return Turn::Look([look].into());
    }
    memory.confirmed = true;
    memory.stale = None;
    let missing: BTreeSet<_> = memory.looks.iter().filter(|look| !common.looked.has(look)).cloned().collect();
    if !missing.is_empty() {
        return Turn::Look(memory.looks.clone());
    }
    memory.not_before = None;
    visit(Call::Release, state.clone(), object)
}

fn visit(call: Call, state: TargetState, object: Option<Arc<Object>>) -> Turn {
    Turn::Visit(Planned { call, state, object, last_look: false })
}

/// `state` at its end.
pub fn ended(state: &TargetState, progress: Progress, now: Timestamp, error: Option<TargetError>) -> TargetState {
    let mut next = state.clone();
    next.start = next.start.or(Some(now));
    next.end = Some(now);
    next.progress = progress;
    next.attempt = next.attempt.max(1);
    next.error = error.map(|error| TargetError { message: cut(&error.message, 256), ..error });
    next
}

/// At most `length` characters of `text`.
pub fn cut(text: &str, length: usize) -> String {
    match text.char_indices().nth(length.saturating_sub(1)) {
        Some((at, _)) if text[at..].chars().count() > 1 => format!("{}…", text.get(..at).unwrap_or_default()),
        _ => text.to_owned(),
    }
}
