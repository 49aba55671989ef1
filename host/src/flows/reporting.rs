//! Writes the status of an object and its JobRecords if they changed, at a limited rate.

use oarlock_core::attempts::header::Header;
use oarlock_core::attempts::plan::{ChildChange, ParentPlan, PlanMemory};
use oarlock_core::attempts::status::{Reported, StatusInput, next_first_record, report};
use oarlock_core::attempts::transition_events::transition_events;
use oarlock_core::attempts::unit::Unit;
use oarlock_core::kind::plan::{NewStatus, StoreTime};
use oarlock_core::object::quota_key::QuotaKey;
use oarlock_core::requests::writes::Recorded;
use tokio::time::Instant;

use crate::flows::FlowTerm;
use crate::flows::memory::{FlowMemory, digest_of};
use crate::flows::round::Round;
use crate::round_trouble::RoundTrouble;
use crate::status_rate_limit::StatusWrite;

/// The result of a status write.
pub(super) enum StatusWriteResult<'p> {
    /// The status is stored, and these changes may follow.
    Stored(Recorded<Vec<&'p ChildChange>>),
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

impl Round<'_> {
    /// Writes the status if it differs from the stored one.
    pub(super) async fn write_status<'p>(
        &self,
        plan: &'p ParentPlan,
        memory: &mut FlowMemory,
        pacing: StatusWriteTime,
    ) -> Result<StatusWriteResult<'p>, RoundTrouble> {
        let parent = self.parent();
        let with_records = memory.plan.header.is_truncated;
        let slot = memory.pace.next(with_records, plan.summary.has_completed);
        if let Some(due) = slot.filter(|_| pacing == StatusWriteTime::RateLimited) {
            return Ok(StatusWriteResult::Later(due));
        }
        let known = memory.unsure_at.is_none().then_some(memory.reported.units.as_slice());
        let first = next_first_record(&plan.units, parent, known);
        let header = &Header { first_record: first, ..plan.header.clone() };
        let children = &self.view.children;
        let from = StatusInput { parent, units: &plan.units, header, summary: &plan.summary, children };
        let Reported { status, is_cut } = report(from);
        if is_cut {
            self.write_records(&plan.units, first, memory).await?;
        }
        let differs = status != parent.status;
        let mut changes: Vec<_> = plan.changes_after_record.iter().collect();
        if differs {
            // The delete is for the observed version, but the write makes a new one. That version leads to another round.
            changes.retain(|change| **change != ChildChange::DeleteSelf);
        }
        let status = NewStatus { body: status, when: StoreTime::Now };
        let recorded = match differs {
            true => self.persist(&status, changes, memory).await?,
            false => status.found_in(&parent.status, changes).ok_or_else(RoundTrouble::old_view)?,
        };
        if differs {
            memory.last = is_cut.then(|| digest_of(&status.body));
        }
        let events = transition_events(parent, &memory.reported, plan);
        if !events.is_empty() {
            self.term.flows.cluster().emit(events);
        }
        self.metrics.reported(&memory.reported.units, &plan.units);
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
        Ok(StatusWriteResult::Stored(recorded))
    }

    /// Stores a status. Counts the write against the rate limits.
    async fn persist<T>(
        &self,
        status: &NewStatus,
        then: T,
        memory: &mut FlowMemory,
    ) -> Result<Recorded<T>, RoundTrouble> {
        let (parent, FlowTerm { flows, fence, shared_limit, .. }) = (self.parent(), self.term);
        let began = Instant::now();
        let persisted = flows.persist(parent, status, then, fence).await;
        let (ended, took) = (flows.cluster().clock().now(), began.elapsed());
        let owner = QuotaKey::Namespace(parent.namespace.clone());
        memory.pace.wrote(StatusWrite { key: &parent.key(), owner, ended, took }, shared_limit);
        match persisted {
            Ok(recorded) => {
                memory.unsure_at = None;
                memory.read_from = None;
                memory.sent.clear();
                Ok(recorded)
            }
            Err(stopped) => {
                if stopped.leaves_doubt() {
                    memory.unsure_at = Some(parent.version.clone());
                }
                memory.note_sent(&status.body);
                Err(RoundTrouble::of("write the status", &stopped))
            }
        }
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
