//! The requests of a round that create and change children.

use std::collections::HashMap;

use futures::StreamExt;
use oarlock_core::attempts::plan::{ChildChange, Create};
use oarlock_core::attempts::results::{ChangeResult, CreateResult, ResultEffects, ResultTime};
use tokio::time::Instant;

use crate::flows::memory::FlowMemory;
use crate::flows::round::{AT_ONCE, Round};
use crate::round_trouble::RoundTrouble;

impl Round<'_> {
    /// Creates children. `starts` has the time since which the start of a unit is due.
    pub(super) async fn create_all<'c>(
        &self,
        creates: &'c [Create],
        starts: &HashMap<String, Instant>,
    ) -> Vec<CreateResult<'c>> {
        let parent = self.parent();
        let created = creates.iter().map(|create| async move {
            let result = self.term.flows.create(parent, create, &self.term.fence).await;
            let since = starts.get(&create.unit).filter(|_| result.is_ok());
            since.into_iter().for_each(|since| self.metrics.started_after(since.elapsed()));
            CreateResult { create, result }
        });
        let created: Vec<_> = created.collect();
        futures::stream::iter(created).buffer_unordered(AT_ONCE).collect().await
    }

    pub(super) async fn change_all<'c>(&self, changes: Vec<&'c ChildChange>) -> Vec<ChangeResult<'c>> {
        let (parent, flows) = (self.parent(), &self.term.flows);
        let made = changes.into_iter().map(async |change| {
            let result = flows.change(parent, change, &self.term.fence).await;
            ChangeResult { change, result }
        });
        let made: Vec<_> = made.collect();
        futures::stream::iter(made).buffer_unordered(AT_ONCE).collect().await
    }

    fn result_time(&self) -> ResultTime {
        ResultTime { planned: self.now, answered: self.term.flows.cluster().clock().now() }
    }

    /// Keeps the results of changes for the next plan.
    pub(super) fn keep_changes(
        &self,
        results: Vec<ChangeResult<'_>>,
        memory: &mut FlowMemory,
    ) -> Result<(), RoundTrouble> {
        self.carry_out_effects(memory.plan.keep_change_results(results, self.parent(), self.result_time()))
    }

    /// Keeps the results of creates for the next plan.
    pub(super) fn keep_creates(
        &self,
        results: Vec<CreateResult<'_>>,
        memory: &mut FlowMemory,
    ) -> Result<(), RoundTrouble> {
        self.carry_out_effects(memory.plan.keep_create_results(results, self.result_time()))
    }

    fn carry_out_effects(&self, effects: ResultEffects) -> Result<(), RoundTrouble> {
        let ResultEffects { unmade, plan_again, events } = effects;
        for event in &events {
            tracing::warn!(of = %self.parent().name, error = event.message, "the API server refused a change of a child");
        }
        if !events.is_empty() {
            self.term.flows.cluster().emit(events);
        }
        if plan_again {
            self.term.flows.cache().mark_dirty(&self.parent().key());
        }
        unmade.map_or(Ok(()), |unmade| Err(RoundTrouble::of(&unmade.what, &unmade.stopped)))
    }
}
