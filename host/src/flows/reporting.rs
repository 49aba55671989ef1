//! Writes the status of an object and its JobRecords if they changed, at a limited rate.

use oarlock_core::attempts::header::Header;
use oarlock_core::attempts::plan::{ParentPlan, PlanMemory};
use oarlock_core::attempts::status::{Reported, StatusInput, next_first_record, report};
use oarlock_core::attempts::transition_events::transition_events;
use oarlock_core::attempts::unit::Unit;
use oarlock_core::object::quota_key::QuotaKey;
use oarlock_core::requests::writes::Stopped;
use oarlock_kube::flows::cache::ParentView;
use tokio::time::{Duration, Instant};

use crate::flows::memory::{FlowMemory, StoredStatus, digest_of};
use crate::flows::round::Round;
use crate::round_trouble::RoundTrouble;
use crate::status_rate_limit::StatusWrite;

/// The state of the stored status, compared with the plan.
pub(super) enum StatusWriteResult {
    /// The stored status already matched the plan.
    Before,
    /// The status was written now.
    Now,
    /// The status will be written at this time.
    Later(Instant),
}

/// The time at which a status may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatusWriteTime {
    /// Now, because something waits for the status.
    AtOnce,
    /// Once the object's rate limit allows it.
    RateLimited,
}

impl StatusWriteResult {
    pub(super) fn is_stored(&self) -> bool {
        !matches!(self, Self::Later(_))
    }

    /// Returns the wait until the write.
    pub(super) fn due(&self) -> Option<Duration> {
        if let Self::Later(due) = self { Some(due.saturating_duration_since(Instant::now())) } else { None }
    }
}

impl Round<'_> {
    /// Writes the status if it differs from the stored one.
    pub(super) async fn write_status(
        &self,
        plan: &ParentPlan,
        memory: &mut FlowMemory,
        pacing: StatusWriteTime,
    ) -> Result<StatusWriteResult, RoundTrouble> {
        let parent = self.parent();
        let with_records = memory.plan.header.is_truncated;
        let slot = memory.pace.next(with_records, plan.summary.has_completed);
        if let Some(due) = slot.filter(|_| pacing == StatusWriteTime::RateLimited) {
            return Ok(StatusWriteResult::Later(due));
        }
        let ParentView { children, .. } = &self.view;
        let known = (memory.stored == StoredStatus::Known).then_some(memory.reported.units.as_slice());
        let first = next_first_record(&plan.units, parent, known);
        let header = &Header { first_record: first, ..plan.header.clone() };
        let from = StatusInput { parent, units: &plan.units, header, summary: &plan.summary, children };
        let Reported { status, is_cut } = report(from);
        if is_cut {
            self.write_records(&plan.units, first, memory).await?;
        }
        let differs = status != parent.status;
        if differs {
            let began = Instant::now();
            let written = self.term.flows.write_status(parent, &status, &self.term.fence).await;
            let (ended, took) = (self.term.flows.cluster().clock().now(), began.elapsed());
            let owner = QuotaKey::Namespace(parent.namespace.clone());
            memory.pace.wrote(StatusWrite { key: &parent.key(), owner, ended, took }, &self.term.shared_limit);
            memory.stored = match &written {
                Ok(()) => StoredStatus::Known,
                Err(Stopped::Unknown { .. }) => StoredStatus::Unanswered,
                Err(Stopped::Conflict) => StoredStatus::Conflicted,
                Err(_) => memory.stored,
            };
            if let Err(stopped) = written {
                memory.note_sent(&status);
                return Err(RoundTrouble::of("write the status", &stopped));
            }
            memory.read_from = None;
            memory.sent.clear();
            memory.last = is_cut.then(|| digest_of(&status));
        }
        self.metrics.reported(&memory.reported.units, &plan.units);
        let notes = transition_events(parent, &memory.reported, plan);
        if !notes.is_empty() {
            self.term.flows.cluster().emit(notes);
        }
        memory.plan.header.is_truncated = is_cut;
        memory.plan.header.first_record = first;
        memory.reported = PlanMemory {
            units: memory.plan.units.clone(),
            header: memory.plan.header.clone(),
            ..PlanMemory::default()
        };
        memory.records_hold = is_cut;
        memory.durable_first = false;
        memory.ignored.clear();
        Ok(if differs { StatusWriteResult::Now } else { StatusWriteResult::Before })
    }

    /// Writes the changed JobRecords. Their contents are uncertain until the status counts them.
    async fn write_records(&self, units: &[Unit], first: usize, memory: &mut FlowMemory) -> Result<(), RoundTrouble> {
        let changed = memory.changed_records(units, first);
        memory.records_hold = false;
        let written = self.term.flows.write_records(self.parent(), changed, &memory.records, &self.term.fence).await;
        let mut all: Result<(), RoundTrouble> = Ok(());
        for (number, written) in written {
            match written {
                Ok(version) => drop(memory.records.insert(number, version)),
                Err(stopped) => {
                    // Without a version, the record is read before it is written again.
                    memory.records.remove(&number);
                    if all.as_ref().err().is_none_or(|before| before.is_old_view) {
                        all = Err(RoundTrouble::of("write a JobRecord", &stopped));
                    }
                }
            }
        }
        all
    }
}
