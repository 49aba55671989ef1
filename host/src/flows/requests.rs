//! The requests of a round that create and change children.

use std::collections::{BTreeSet, HashMap};

use futures::StreamExt;
use k8s_openapi::jiff::Timestamp;
use oarlock_core::attempts::build::Cause;
use oarlock_core::attempts::plan::{ChildChange, Create, LateCreate};
use oarlock_core::attempts::refused::Refused;
use oarlock_core::attempts::transition_events::change_refused;
use oarlock_core::object::time::{after, too_late_for};
use oarlock_core::requests::writes::Stopped;
use oarlock_kube::flows::CreateError;
use tokio::time::Instant;

use crate::flows::memory::FlowMemory;
use crate::flows::round::{AT_ONCE, Round};
use crate::round_trouble::RoundTrouble;

/// A create and its result.
pub(super) struct CreateTried<'a> {
    create: &'a Create,
    result: Result<(), CreateError>,
}

/// A change and its result.
pub(super) struct ChangeTried<'a> {
    pub(super) change: &'a ChildChange,
    pub(super) result: Result<(), Stopped>,
}

/// The number of refused changes of one object after which further ones are neither logged nor reported by events.
const WARNINGS: usize = 100;

/// Returns the verb of a change and the version of its child. A change of another version is sent at once.
fn what(change: &ChildChange) -> String {
    format!("{}/{}", change.verb(), change.child().map_or(0, |child| child.version))
}

impl Round<'_> {
    pub(super) async fn create_all<'c>(
        &self,
        creates: &'c [Create],
        starts: &HashMap<String, Instant>,
    ) -> Vec<CreateTried<'c>> {
        let parent = self.parent();
        let created = creates.iter().map(|create| async move {
            let result = self.term.flows.create(parent, create, &self.term.fence).await;
            let since = starts.get(&create.unit).filter(|_| result.is_ok());
            since.into_iter().for_each(|since| self.metrics.started_after(since.elapsed()));
            CreateTried { create, result }
        });
        let created: Vec<_> = created.collect();
        futures::stream::iter(created).buffer_unordered(AT_ONCE).collect().await
    }

    /// Returns the changes that are due. A recently refused change waits.
    pub(super) fn due_changes<'c>(&self, changes: &'c [ChildChange], memory: &FlowMemory) -> Vec<&'c ChildChange> {
        let waits = |change: &ChildChange| {
            let refused = memory.plan.refused_changes.get(&change.key(self.parent()));
            refused.is_some_and(|refused| refused.until > self.now && refused.revision == what(change))
        };
        changes.iter().filter(|change| !waits(change)).collect()
    }

    pub(super) async fn change_all<'c>(&self, changes: Vec<&'c ChildChange>) -> Vec<ChangeTried<'c>> {
        let (parent, flows) = (self.parent(), &self.term.flows);
        let made = changes.into_iter().map(async |change| {
            let result = flows.change(parent, change, &self.term.fence).await;
            ChangeTried { change, result }
        });
        let made: Vec<_> = made.collect();
        futures::stream::iter(made).buffer_unordered(AT_ONCE).collect().await
    }

    /// Remembers refused changes until their next attempt. Refused changes delay nothing else. The next plan reports
    /// them.
    pub(super) fn note_changes(
        &self,
        changed: Vec<ChangeTried<'_>>,
        memory: &mut FlowMemory,
    ) -> Result<(), RoundTrouble> {
        let (mut trouble, mut told_anew) = (None, false);
        let all_refused = &mut memory.plan.refused_changes;
        // Changes of one object with near times get the same time, so that thousands of them do not cost a round each.
        let mut times: BTreeSet<Timestamp> = all_refused.values().map(|refused| refused.until).collect();
        for ChangeTried { change, result } in changed {
            let key = change.key(self.parent());
            let message = match result {
                Ok(()) => {
                    all_refused.remove(&key);
                    continue;
                }
                Err(Stopped::Refused { message }) => message,
                Err(stopped) => {
                    trouble = Some(RoundTrouble::of(&change.describe(), &stopped));
                    continue;
                }
            };
            let before = all_refused.get(&key);
            let cause = Cause::new("Refused", format!("cannot {}: {message}", change.describe()));
            let mut refused = Refused::again(before, cause, what(change), false, self.now);
            let wait = refused.until.duration_since(self.now);
            let near = times.range(refused.until..).next().copied();
            refused.until = near.filter(|near| *near <= after(refused.until, wait)).unwrap_or(refused.until);
            times.insert(refused.until);
            told_anew |= before.is_none_or(|before| before.refusal != refused.refusal);
            if before.is_none() && all_refused.len() < WARNINGS {
                let cause = &refused.refusal;
                tracing::warn!(of = %self.parent().name, error = cause.message, "the API server refused a change of a child");
                self.term.flows.cluster().emit(change_refused(self.parent(), change, cause));
            }
            all_refused.insert(key, refused);
        }
        if told_anew {
            self.term.flows.cache().mark_dirty(self.parent().key());
        }
        trouble.map_or(Ok(()), Err)
    }

    /// Remembers creates that brought no child until their next attempt.
    pub(super) fn note_refusals(
        &self,
        created: Vec<CreateTried<'_>>,
        memory: &mut FlowMemory,
    ) -> Result<(), RoundTrouble> {
        let (mut later, mut told_anew) = (None, false);
        for CreateTried { create, result } in created {
            let Create { unit, attempt, revision, .. } = create;
            let (refusal, may_exist) = match result {
                Ok(()) => continue,
                Err(CreateError::Conflict(message)) => (Cause::new("NameConflict", message), false),
                Err(CreateError::Rejected(message)) => (Cause::new("Rejected", message), false),
                Err(CreateError::Later(Stopped::Unknown { message })) => (Cause::new("Rejected", message), true),
                // No child exists. The next round repeats the create with the others.
                Err(CreateError::Later(stopped)) => {
                    later = Some(stopped);
                    continue;
                }
            };
            if may_exist {
                let (late, answered) = (&mut memory.plan.late_creates, self.term.flows.cluster().clock().now());
                late.retain(|_, late| late.until > answered);
                late.insert(unit.clone(), LateCreate { attempt: *attempt, until: too_late_for(answered) });
            }
            let before = memory.plan.refused.get(unit);
            let refused = Refused::again(before, refusal, revision.clone(), may_exist, self.now);
            let is_told = before.is_some_and(|before| before.blocks() && before.refusal == refused.refusal);
            told_anew |= refused.blocks() && !is_told;
            memory.plan.refused.insert(unit.clone(), refused);
        }
        if told_anew {
            // The units are blocked now, and the next plan reports it.
            self.term.flows.cache().mark_dirty(self.parent().key());
        }
        later.map_or(Ok(()), |stopped| Err(RoundTrouble::of("create a child", &stopped)))
    }
}
