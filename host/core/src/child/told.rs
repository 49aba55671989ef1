//! Events about a JobFlow or DaemonJob: once for each transition, by comparing what was with what is.
//! Source: docs/jobflow.md 7.

use crate::child::build::Cause;
use crate::child::changes::changed_units;
use crate::child::closing::FLOW_TIMEOUT;
use crate::child::parent::{API_VERSION, Parent, ParentKind};
use crate::child::plan::{ChildChange, Memory, ParentPlan};
use crate::child::unit::{Unit, UnitState};
use crate::cluster::object::{Kind, ObjectKey};
use crate::cluster::writes::EventNote;

/// Units above which Normal events of units become one for each tenth.
const MANY: usize = 80;
/// Most warnings about units of an object with many.
const WARNINGS: usize = 100;

struct Teller<'a> {
    parent: &'a Parent,
    notes: Vec<EventNote>,
}

impl Teller<'_> {
    /// `mark` tells apart what may happen again: an attempt, a generation, a retry.
    fn tell(&mut self, warning: bool, reason: &str, mark: &str, message: String) {
        let parent = self.parent;
        let text = format!("{}/{reason}/{mark}", parent.uid);
        let key = ObjectKey {
            kind: Kind::new(API_VERSION, parent.kind.name()),
            namespace: Some(parent.namespace.clone()),
            name: parent.name.clone(),
        };
        self.notes.push(EventNote {
            name: EventNote::name_of(&parent.name, &text),
            regarding: key,
            regarding_uid: parent.uid.clone(),
            warning,
            reason: reason.to_owned(),
            action: "Reconcile".to_owned(),
            message: crate::job::bound::shown_cause(&message, 1_024),
        });
    }
}

/// The events of a plan that is durable.
pub fn told(parent: &Parent, memory: &Memory, plan: &ParentPlan) -> Vec<EventNote> {
    let mut teller = Teller { parent, notes: Vec::new() };
    let many = plan.units.len() > MANY;
    // Those that stand were told of before.
    let stands = |unit: &&Unit| matches!(unit.state, UnitState::Failed | UnitState::Blocked);
    let warned = memory.units.iter().filter(stands).count();
    for (old, unit) in changed_units(&memory.units, &plan.units) {
        tell_unit(&mut teller, old, unit, (many, warned));
    }
    if many {
        tell_tenths(&mut teller, memory, plan);
    }
    tell_object(&mut teller, memory, plan);
    let is_new = memory.header.observed_generation != Some(parent.generation)
        || memory.header.retry_token != plan.header.retry_token;
    for ignored in plan.ignored.iter().filter(|_| is_new) {
        teller.tell(true, "IgnoredField", ignored, ignored.clone());
    }
    teller.notes
}

/// The events of changes of a clean-up that were carried out. Of an object with many units, only its own deletion is told.
pub fn cleaned_up<'a>(
    parent: &Parent,
    units: usize,
    changes: impl IntoIterator<Item = &'a ChildChange>,
) -> Vec<EventNote> {
    let mut teller = Teller { parent, notes: Vec::new() };
    let many = units > MANY;
    for change in changes {
        match change {
            ChildChange::DeleteSelf => {
                teller.tell(false, "CleanedUp", "", "deleted, since its spec.cleanup.ttlSeconds are over".to_owned());
            }
            ChildChange::Delete(child) if !many => {
                let why = if child.progress.ended.is_some() {
                    "had ended"
                } else {
                    "had not ended when its attempt was over"
                };
                teller.tell(false, "CleanedUp", &child.uid, format!("deleted {}, which {why}", child.name));
            }
            _ => {}
        }
    }
    teller.notes
}

/// The event of a change that the API server refuses, for this cause.
pub fn change_refused(parent: &Parent, change: &ChildChange, cause: &Cause) -> Vec<EventNote> {
    let mut teller = Teller { parent, notes: Vec::new() };
    let (uid, verb) = change.key(parent);
    let mark = format!("{uid}/{verb}/{}", cause.message);
    teller.tell(true, "ChangeRefused", &mark, cause.message.clone());
    teller.notes
}

fn tell_unit(teller: &mut Teller<'_>, old: Option<&Unit>, unit: &Unit, (many, warned): (bool, usize)) {
    let word = teller.parent.kind.unit_word();
    let mark = format!("{}/{}", unit.name, unit.attempt);
    let name = &unit.name;
    if !many && unit.has_child() && old.is_none_or(|old| old.job_uid != unit.job_uid) {
        teller.tell(false, "Created", &mark, format!("created {} for {word} {name}", unit.job));
    }
    if old.is_some_and(|old| old.state == unit.state) {
        return;
    }
    let warnings = teller.notes.iter().filter(|note| note.warning).count();
    let may_warn = !many || warned + warnings < WARNINGS;
    let why = if unit.message.is_empty() { unit.reason.clone() } else { format!("{}: {}", unit.reason, unit.message) };
    match unit.state {
        UnitState::Retrying if !many => {
            teller.tell(false, "Retrying", &mark, format!("{word} {name} is retried: {why}"))
        }
        UnitState::Omitted if !many => teller.tell(false, "Omitted", &mark, format!("{word} {name} is omitted: {why}")),
        UnitState::Blocked if may_warn => {
            teller.tell(true, "Blocked", &format!("{mark}/{}", unit.reason), format!("{word} {name}: {why}"))
        }
        UnitState::Failed if may_warn => {
            let reason = if teller.parent.kind == ParentKind::Flow { "StepFailed" } else { "NodeFailed" };
            teller.tell(true, reason, &mark, format!("{word} {name} failed: {why}"));
        }
        _ => {}
    }
}

fn tell_tenths(teller: &mut Teller<'_>, memory: &Memory, plan: &ParentPlan) {
    let tenth = |units: &[Unit]| units.iter().filter(|unit| unit.state.is_terminal()).count() * 10 / units.len().max(1);
    let (was, is) = (tenth(&memory.units), tenth(&plan.units));
    if is > was {
        let counts = plan.verdict.counts;
        let message = format!(
            "{} succeeded, {} failed, {} omitted of {}",
            counts.succeeded, counts.failed, counts.omitted, counts.total
        );
        teller.tell(
            false,
            "Progress",
            &format!("{is}/{}", plan.header.retry_token.as_deref().unwrap_or_default()),
            message,
        );
    }
}

fn tell_object(teller: &mut Teller<'_>, memory: &Memory, plan: &ParentPlan) {
    let before = &memory.header;
    let parent = teller.parent;
    let mark = format!("{}/{}", parent.generation, plan.header.retry_token.as_deref().unwrap_or_default());
    let verdict = &plan.verdict;
    let message_of = |kind: &str| {
        let mut all = verdict.conditions.iter();
        all.find(|one| one.kind == kind && one.status == "True").map(|one| one.message.clone()).unwrap_or_default()
    };
    let was_true = |kind: &str| before.conditions.iter().any(|one| one.kind == kind && one.status == "True");
    let is_true = |kind: &str| verdict.conditions.iter().any(|one| one.kind == kind && one.status == "True");
    if verdict.state == "Succeed" && before.state != "Succeed" {
        // New nodes may make it succeed again.
        let end = plan.header.completion_time.map(|time| time.to_string()).unwrap_or_default();
        teller.tell(false, "Succeed", &format!("{mark}/{end}"), message_of("Complete"));
    }
    if verdict.state == "Failed" && before.state != "Failed" {
        // New nodes may make it fail again: they are further units or attempts.
        let attempts: u64 = plan.units.iter().map(|unit| u64::from(unit.attempt)).sum();
        let mark = format!("{mark}/{}/{attempts}", plan.units.len());
        let why = verdict.failure.as_ref().map(|failure| failure.message.clone());
        teller.tell(true, "Failed", &mark, why.unwrap_or_else(|| format!("{} failed", parent.name)));
    }
    let invalid = |conditions: &[oarlock_api::Condition]| {
        conditions.iter().find(|one| one.kind == "Valid" && one.status == "False").map(|one| one.message.clone())
    };
    if let Some(message) = invalid(&verdict.conditions).filter(|now| invalid(&before.conditions).as_ref() != Some(now))
    {
        teller.tell(true, "InvalidSpec", &mark, message);
    }
    // Of a timeout before a retry by name, units may still be there.
    let is_new = |(old, unit): (Option<&Unit>, &Unit)| {
        unit.reason == FLOW_TIMEOUT && old.is_none_or(|old| old.reason != FLOW_TIMEOUT)
    };
    if changed_units(&memory.units, &plan.units).any(is_new) {
        teller.tell(true, "Timeout", &mark, "the limit of spec.timeoutSeconds is over".to_owned());
    }
    let since = || plan.header.suspended_since.map(|time| time.to_string()).unwrap_or_default();
    match (was_true("Paused"), is_true("Paused")) {
        (false, true) => teller.tell(false, "Paused", &format!("{mark}/{}", since()), message_of("Paused")),
        (true, false) => teller.tell(
            false,
            "Resumed",
            &format!("{mark}/{}", plan.header.suspended_seconds),
            "units start again".to_owned(),
        ),
        _ => {}
    }
}
