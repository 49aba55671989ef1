//! Results of writes, as input of the next plan of a JobFlow or DaemonJob. Source: docs/jobflow.md 2.3.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;

use crate::attempts::build::Cause;
use crate::attempts::parent::Parent;
use crate::attempts::plan::{ChildChange, Create, LateCreate, PlanMemory};
use crate::attempts::refused::Refused;
use crate::attempts::transition_events::change_refused;
use crate::object::time::{after, too_late_for};
use crate::requests::writes::{EventNote, Stopped};

/// The number of refused changes of one object after which the host logs and reports no more of them.
const WARNINGS: usize = 100;

/// The reason why a child does not exist after its create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateError {
    /// Another object has the name of the child. The text names the kind, namespace, name and owner of that object.
    Conflict(String),
    /// The API server refuses the child with this message.
    Rejected(String),
    /// The child may or may not exist, or the API server is busy. The host repeats the round.
    Later(Stopped),
}

/// A create with its result.
#[derive(Clone, Debug)]
pub struct CreateResult<'a> {
    /// The create.
    pub create: &'a Create,
    /// The result. An existing child of the same owner, unit and attempt counts as created.
    pub result: Result<(), CreateError>,
}

/// A change with its result.
#[derive(Clone, Debug)]
pub struct ChangeResult<'a> {
    /// The change.
    pub change: &'a ChildChange,
    /// The result. An object that no longer exists counts as changed.
    pub result: Result<(), Stopped>,
}

/// The time of results.
#[derive(Clone, Copy, Debug)]
pub struct ResultTime {
    /// The time of the plan that made the writes.
    pub planned: Timestamp,
    /// The time at which the last answer came.
    pub answered: Timestamp,
}

/// The steps of the host after it has kept results for the next plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResultEffects {
    /// A write that was not made for now, in words that follow `failed to`. The host repeats the round later.
    pub unmade: Option<UnmadeWrite>,
    /// True if a new plan has something to report.
    pub plan_again: bool,
    /// Events to emit.
    pub events: Vec<EventNote>,
}

/// A write that was not made for now.
#[derive(Clone, Debug, PartialEq)]
pub struct UnmadeWrite {
    /// The write, in words that follow `failed to`.
    pub what: String,
    /// The reason.
    pub stopped: Stopped,
}

/// Returns the verb of a change and the version of its child. A change of another version is sent at once.
fn revision_of(change: &ChildChange) -> String {
    format!("{}/{}", change.verb(), change.child().map_or(0, |child| child.version))
}

impl PlanMemory {
    /// Returns true if a change is due. A recently refused change waits.
    pub fn is_due(&self, change: &ChildChange, parent: &Parent, now: Timestamp) -> bool {
        let refused = self.refused_changes.get(&change.key(parent));
        !refused.is_some_and(|refused| refused.until > now && refused.revision == revision_of(change))
    }

    /// Keeps refused changes until their next attempt. Refused changes delay nothing else. The next plan reports them.
    pub fn keep_change_results(
        &mut self,
        results: Vec<ChangeResult<'_>>,
        parent: &Parent,
        time: ResultTime,
    ) -> ResultEffects {
        let mut effects = ResultEffects::default();
        let now = time.planned;
        let all_refused = &mut self.refused_changes;
        // Changes of one object with near times get the same time, so that thousands of them do not cost a round each.
        let mut times: BTreeSet<Timestamp> = all_refused.values().map(|refused| refused.until).collect();
        for ChangeResult { change, result } in results {
            let key = change.key(parent);
            let message = match result {
                Ok(()) => {
                    all_refused.remove(&key);
                    continue;
                }
                Err(Stopped::Refused { message }) => message,
                Err(stopped) => {
                    effects.unmade = Some(UnmadeWrite { what: change.describe(), stopped });
                    continue;
                }
            };
            let before = all_refused.get(&key);
            let cause = Cause::new("Refused", format!("cannot {}: {message}", change.describe()));
            let mut refused = Refused::again(before, cause, revision_of(change), false, now);
            let wait = refused.until.duration_since(now);
            let near = times.range(refused.until..).next().copied();
            refused.until = near.filter(|near| *near <= after(refused.until, wait)).unwrap_or(refused.until);
            times.insert(refused.until);
            effects.plan_again |= before.is_none_or(|before| before.refusal != refused.refusal);
            if before.is_none() && all_refused.len() < WARNINGS {
                effects.events.extend(change_refused(parent, change, &refused.refusal));
            }
            all_refused.insert(key, refused);
        }
        effects
    }

    /// Keeps creates that made no child until their next attempt.
    pub fn keep_create_results(&mut self, results: Vec<CreateResult<'_>>, time: ResultTime) -> ResultEffects {
        let mut effects = ResultEffects::default();
        for CreateResult { create, result } in results {
            let Create { unit, attempt, revision, .. } = create;
            let (refusal, may_exist) = match result {
                Ok(()) => continue,
                Err(CreateError::Conflict(message)) => (Cause::new("NameConflict", message), false),
                Err(CreateError::Rejected(message)) => (Cause::new("Rejected", message), false),
                Err(CreateError::Later(Stopped::Unknown { message })) => (Cause::new("Rejected", message), true),
                // No child exists. The next round repeats the create with the others.
                Err(CreateError::Later(stopped)) => {
                    effects.unmade = Some(UnmadeWrite { what: "create a child".to_owned(), stopped });
                    continue;
                }
            };
            if may_exist {
                let late = &mut self.late_creates;
                late.retain(|_, late| late.until > time.answered);
                late.insert(unit.clone(), LateCreate { attempt: *attempt, until: too_late_for(time.answered) });
            }
            let before = self.refused.get(unit);
            let refused = Refused::again(before, refusal, revision.clone(), may_exist, time.planned);
            let is_reported = before.is_some_and(|before| before.blocks() && before.refusal == refused.refusal);
            // The unit is blocked now, and the next plan reports it.
            effects.plan_again |= refused.blocks() && !is_reported;
            self.refused.insert(unit.clone(), refused);
        }
        effects
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::attempts::parent::{API_VERSION, ParentKind};
    use crate::attempts::view::ChildKind;
    use crate::object::time::after_seconds;

    fn parent() -> Parent {
        let object = json!({"apiVersion": API_VERSION, "metadata": {"name": "p", "namespace": "n", "uid": "u", "resourceVersion": "7"}});
        Parent::read(ParentKind::Flow, object).unwrap()
    }

    fn create(unit: &str) -> Create {
        Create {
            unit: unit.to_owned(),
            kind: ChildKind::Job,
            name: unit.to_owned(),
            attempt: 2,
            revision: "r".to_owned(),
            follows: false,
            object: Value::Null,
        }
    }

    fn at(second: i64) -> ResultTime {
        let planned = after_seconds(Timestamp::UNIX_EPOCH, second);
        ResultTime { planned, answered: after_seconds(planned, 1) }
    }

    #[test]
    fn a_create_without_an_answer_may_still_make_its_child_and_blocks_its_unit_only_after_three() {
        let mut memory = PlanMemory::default();
        let create = create("a");
        let unknown = || Err(CreateError::Later(Stopped::Unknown { message: "no answer".to_owned() }));
        let mut again = |second| {
            let results = vec![CreateResult { create: &create, result: unknown() }];
            memory.keep_create_results(results, at(second)).plan_again
        };
        assert_eq!([again(0), again(1), again(2), again(3)], [false, false, true, false], "it is reported once");
        let late = memory.late_creates["a"];
        assert_eq!((late.attempt, late.until), (2, too_late_for(at(3).answered)));
    }

    #[test]
    fn a_busy_server_repeats_the_round_and_a_refusal_only_its_create() {
        let (first, second) = (create("a"), create("b"));
        let mut memory = PlanMemory::default();
        let throttled = Stopped::Throttled { retry_after: Some(3) };
        let results = vec![
            CreateResult { create: &first, result: Err(CreateError::Later(throttled.clone())) },
            CreateResult { create: &second, result: Err(CreateError::Conflict("taken".to_owned())) },
        ];
        let effects = memory.keep_create_results(results, at(0));
        assert_eq!(effects.unmade.map(|unmade| unmade.stopped), Some(throttled));
        assert!(effects.plan_again && memory.late_creates.is_empty());
        assert_eq!(memory.refused.keys().collect::<Vec<_>>(), ["b"]);
        assert_eq!(memory.refused["b"].refusal.reason, "NameConflict");
    }

    #[test]
    fn a_refused_change_waits_and_is_reported_once_until_it_succeeds() {
        let (parent, mut memory) = (parent(), PlanMemory::default());
        let all = [ChildChange::DeleteSelf];
        let keep = |memory: &mut PlanMemory, result, second| {
            memory.keep_change_results(vec![ChangeResult { change: &all[0], result }], &parent, at(second))
        };
        let refused = || Err(Stopped::Refused { message: "no".to_owned() });
        let first = keep(&mut memory, refused(), 0);
        assert!(first.plan_again && first.unmade.is_none());
        assert_eq!(first.events[0].message, "cannot delete the object itself: no");
        let is_due = |second| memory.is_due(&all[0], &parent, at(second).planned);
        assert!(!is_due(4) && is_due(5));
        assert_eq!(keep(&mut memory, refused(), 5), ResultEffects::default(), "nothing new");
        assert_eq!(keep(&mut memory, Ok(()), 20), ResultEffects::default());
        assert!(memory.refused_changes.is_empty());
    }
}
