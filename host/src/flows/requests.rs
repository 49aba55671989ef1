//! The requests of a round for children.

use std::collections::HashMap;

use futures::StreamExt;
use oarlock_core::child::build::Cause;
use oarlock_core::child::plan::{ChildChange, Create};
use oarlock_core::child::refused::Refused;
use oarlock_core::cluster::writes::Stopped;
use oarlock_kube::flows::{CreateError, FlowKey};
use tokio::time::Instant;

use crate::flows::memory::FlowMemory;
use crate::flows::round::{AT_ONCE, Round};
use crate::flows::trouble::RoundTrouble;

impl Round<'_> {
    pub(super) async fn create_all(
        &self,
        creates: &[Create],
        starts: &HashMap<String, Instant>,
    ) -> Vec<(String, String, Result<(), CreateError>)> {
        let parent = self.parent();
        let created = creates.iter().map(|create| async move {
            let result = self.term.flows.create(parent, create, &self.term.fence).await;
            let since = starts.get(&create.unit).filter(|_| result.is_ok());
            since.into_iter().for_each(|since| self.metrics.started_after(since.elapsed()));
            (create.unit.clone(), create.revision.clone(), result)
        });
        let created: Vec<_> = created.collect();
        futures::stream::iter(created).buffer_unordered(AT_ONCE).collect().await
    }

    pub(super) async fn change_all(&self, changes: &[ChildChange]) -> Result<(), RoundTrouble> {
        let parent = self.parent();
        let made = changes.iter().map(|change| self.term.flows.change(parent, change, &self.term.fence));
        let made: Vec<_> = made.collect();
        let results: Vec<_> = futures::stream::iter(made).buffer_unordered(AT_ONCE).collect().await;
        for stopped in results.into_iter().filter_map(Result::err) {
            // What is refused is tried again when something changes; it holds up nothing else.
            let Stopped::Refused { message } = &stopped else {
                return Err(RoundTrouble::of("change a child", &stopped));
            };
            tracing::warn!(of = %parent.name, error = message, "a change of a child was refused");
        }
        Ok(())
    }

    /// Remembers creates that brought no child until they are tried again.
    pub(super) fn note_refusals(
        &self,
        created: Vec<(String, String, Result<(), CreateError>)>,
        memory: &mut FlowMemory,
    ) -> Result<(), RoundTrouble> {
        let (mut later, mut told_anew) = (None, false);
        for (unit, revision, result) in created {
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
            let before = memory.plan.refused.get(&unit);
            let refused = Refused::again(before, refusal, (revision, may_exist), self.now);
            let is_told = before.is_some_and(|before| before.blocks() && before.refusal == refused.refusal);
            told_anew |= refused.blocks() && !is_told;
            memory.plan.refused.insert(unit, refused);
        }
        if told_anew {
            // The units are blocked from now on, and the next plan says so.
            self.term.flows.cache().soil(FlowKey::of(self.parent()));
        }
        later.map_or(Ok(()), |stopped| Err(RoundTrouble::of("create a child", &stopped)))
    }
}
