//! The requests of a round for children.

use std::collections::{BTreeSet, HashMap};

use futures::StreamExt;
use k8s_openapi::jiff::Timestamp;
use oarlock_core::child::build::Cause;
use oarlock_core::child::plan::{ChildChange, Create, LATE, LateCreate};
use oarlock_core::child::refused::Refused;
use oarlock_core::child::told::change_refused;
use oarlock_core::cluster::writes::Stopped;
use oarlock_core::job::time::after;
use oarlock_kube::flows::{CreateError, FlowKey};
use tokio::time::Instant;

use crate::flows::memory::FlowMemory;
use crate::flows::round::{AT_ONCE, Round};
use crate::round_trouble::RoundTrouble;

/// What became of a create.
pub(super) type Created<'a> = (&'a Create, Result<(), CreateError>);
/// What became of a change.
pub(super) type Changed<'a> = (&'a ChildChange, Result<(), Stopped>);

/// Refused changes of one object above which no more are told of.
const WARNINGS: usize = 100;

/// What a change does to which version of a child: of another one it is tried at once.
fn what(change: &ChildChange) -> String {
    format!("{}/{}", change.verb(), change.child().map_or(0, |child| child.version))
}

impl Round<'_> {
    pub(super) async fn create_all<'c>(
        &self,
        creates: &'c [Create],
        starts: &HashMap<String, Instant>,
    ) -> Vec<Created<'c>> {
        let parent = self.parent();
        let created = creates.iter().map(|create| async move {
            let result = self.term.flows.create(parent, create, &self.term.fence).await;
            let since = starts.get(&create.unit).filter(|_| result.is_ok());
            since.into_iter().for_each(|since| self.metrics.started_after(since.elapsed()));
            (create, result)
        });
        let created: Vec<_> = created.collect();
        futures::stream::iter(created).buffer_unordered(AT_ONCE).collect().await
    }

    /// Those of the changes that were not refused lately.
    pub(super) fn due_changes<'c>(&self, changes: &'c [ChildChange], memory: &FlowMemory) -> Vec<&'c ChildChange> {
        let waits = |change: &ChildChange| {
            let held = memory.plan.refused_changes.get(&change.key(self.parent()));
            held.is_some_and(|held| held.until > self.now && held.revision == what(change))
        };
        changes.iter().filter(|change| !waits(change)).collect()
    }

    pub(super) async fn change_all<'c>(&self, changes: Vec<&'c ChildChange>) -> Vec<Changed<'c>> {
        let (parent, flows) = (self.parent(), &self.term.flows);
        let made =
            changes.into_iter().map(async |change| (change, flows.change(parent, change, &self.term.fence).await));
        let made: Vec<_> = made.collect();
        futures::stream::iter(made).buffer_unordered(AT_ONCE).collect().await
    }

    /// Remembers changes that were refused until they are tried again; they hold up nothing else. The next plan tells of them.
    pub(super) fn note_changes(&self, changed: Vec<Changed<'_>>, memory: &mut FlowMemory) -> Result<(), RoundTrouble> {
        let (mut trouble, mut told_anew) = (None, false);
        let held = &mut memory.plan.refused_changes;
        // Those of one object are tried again together where their times are near: thousands of them cost no round each.
        let mut times: BTreeSet<Timestamp> = held.values().map(|refused| refused.until).collect();
        for (change, result) in changed {
            let key = change.key(self.parent());
            let message = match result {
                Ok(()) => {
                    held.remove(&key);
                    continue;
                }
                Err(Stopped::Refused { message }) => message,
                Err(stopped) => {
                    trouble = Some(RoundTrouble::of(&change.words(), &stopped));
                    continue;
                }
            };
            let before = held.get(&key);
            let cause = Cause::new("Refused", format!("cannot {}: {message}", change.words()));
            let mut refused = Refused::again(before, cause, (what(change), false), self.now);
            let wait = refused.until.duration_since(self.now);
            let near = times.range(refused.until..).next().copied();
            refused.until = near.filter(|near| *near <= after(refused.until, wait)).unwrap_or(refused.until);
            times.insert(refused.until);
            told_anew |= before.is_none_or(|before| before.refusal != refused.refusal);
            if before.is_none() && held.len() < WARNINGS {
                let cause = &refused.refusal;
                tracing::warn!(of = %self.parent().name, error = cause.message, "a change of a child was refused");
                self.term.flows.cluster().emit(change_refused(self.parent(), change, cause));
            }
            held.insert(key, refused);
        }
        if told_anew {
            self.term.flows.cache().soil(FlowKey::of(self.parent()));
        }
        trouble.map_or(Ok(()), Err)
    }

    /// Remembers creates that brought no child until they are tried again.
    pub(super) fn note_refusals(&self, created: Vec<Created<'_>>, memory: &mut FlowMemory) -> Result<(), RoundTrouble> {
        let (mut later, mut told_anew) = (None, false);
        for (create, result) in created {
            let Create { unit, attempt, revision, .. } = create;
            let (refusal, may_exist) = match result {
                Ok(()) => continue,
                Err(CreateError::Conflict(message)) => (Cause::new("NameConflict", message), false),
                Err(CreateError::Rejected(message)) => (Cause::new("Rejected", message), false),
                Err(CreateError::Later(Stopped::Unknown { message })) => (Cause::new("Rejected", message), true),
                // Nothing was made: it is tried again with the others.
                Err(CreateError::Later(stopped)) => {
                    later = Some(stopped);
                    continue;
                }
            };
            if may_exist {
                let (late, answered) = (&mut memory.plan.late_creates, self.term.flows.cluster().clock().now());
                late.retain(|_, late| late.until > answered);
                late.insert(unit.clone(), LateCreate { attempt: *attempt, until: after(answered, LATE) });
            }
            let before = memory.plan.refused.get(unit);
            let refused = Refused::again(before, refusal, (revision.clone(), may_exist), self.now);
            let is_told = before.is_some_and(|before| before.blocks() && before.refusal == refused.refusal);
            told_anew |= refused.blocks() && !is_told;
            memory.plan.refused.insert(unit.clone(), refused);
        }
        if told_anew {
            // The units are blocked from now on, and the next plan says so.
            self.term.flows.cache().soil(FlowKey::of(self.parent()));
        }
        later.map_or(Ok(()), |stopped| Err(RoundTrouble::of("create a child", &stopped)))
    }
}
