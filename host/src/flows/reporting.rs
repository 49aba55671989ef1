//! The status of an object and its JobRecords: written where they differ, at their pace.

use oarlock_core::child::header::Header;
use oarlock_core::child::plan::{Memory, ParentPlan};
use oarlock_core::child::status::{Reported, StatusInput, next_first_record, report};
use oarlock_core::child::told::told;
use oarlock_core::child::unit::Unit;
use oarlock_core::cluster::writes::Stopped;
use oarlock_kube::flows::FlowKey;
use oarlock_kube::flows::cache::ParentView;
use tokio::time::{Duration, Instant};

use crate::flows::memory::{FlowMemory, Stored, digest_of};
use crate::flows::round::Round;
use crate::round_trouble::RoundTrouble;

/// Whether the status says what the plan says.
pub(super) enum Written {
    /// It did before.
    Before,
    /// It does now.
    Now,
    /// It will.
    Later(Instant),
}

/// When a status may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pacing {
    /// Now: something waits for it.
    AtOnce,
    /// Once the slot of its object has come.
    InItsSlot,
}

impl Written {
    pub(super) fn is_stored(&self) -> bool {
        !matches!(self, Self::Later(_))
    }

    /// The wait until its slot.
    pub(super) fn due(&self) -> Option<Duration> {
        if let Self::Later(due) = self { Some(due.saturating_duration_since(Instant::now())) } else { None }
    }
}

impl Round<'_> {
    /// Writes the status where it differs.
    pub(super) async fn write_status(
        &self,
        plan: &ParentPlan,
        memory: &mut FlowMemory,
        pacing: Pacing,
    ) -> Result<Written, RoundTrouble> {
        let parent = self.parent();
        let with_records = memory.plan.header.is_truncated;
        let slot = memory.pace.next(with_records, plan.verdict.has_completed);
        if let Some(due) = slot.filter(|_| pacing == Pacing::InItsSlot) {
            return Ok(Written::Later(due));
        }
        let ParentView { children, .. } = &self.view;
        let known = (memory.stored == Stored::Known).then_some(memory.reported.units.as_slice());
        let first = next_first_record(&plan.units, parent, known);
        let header = &Header { first_record: first, ..plan.header.clone() };
        let from = StatusInput { parent, units: &plan.units, header, verdict: &plan.verdict, children };
        let Reported { status, is_cut } = report(from);
        if is_cut {
            self.write_records(&plan.units, first, memory).await?;
        }
        let differs = status != parent.status;
        if differs {
            let began = Instant::now();
            let written = self.term.flows.write_status(parent, &status, &self.term.fence).await;
            let ended = (self.term.flows.cluster().clock().now(), began.elapsed());
            memory.pace.wrote(&FlowKey::of(parent), &self.term.together, ended);
            memory.stored = match &written {
                Ok(()) => Stored::Known,
                Err(Stopped::Unknown { .. }) => Stored::InDoubt,
                Err(Stopped::Conflict) => Stored::InConflict,
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
        let notes = told(parent, &memory.reported, plan);
        if !notes.is_empty() {
            self.term.flows.cluster().emit(notes);
        }
        memory.plan.header.is_truncated = is_cut;
        memory.plan.header.first_record = first;
        memory.reported =
            Memory { units: memory.plan.units.clone(), header: memory.plan.header.clone(), ..Memory::default() };
        memory.records_hold = is_cut;
        memory.durable_first = false;
        memory.ignored.clear();
        Ok(if differs { Written::Now } else { Written::Before })
    }

    /// Writes the JobRecords that differ. Until the status counts them, it is not known what they hold.
    async fn write_records(&self, units: &[Unit], first: usize, memory: &mut FlowMemory) -> Result<(), RoundTrouble> {
        let changed = memory.changed_shards(units, first);
        memory.records_hold = false;
        let written = self.term.flows.write_records(self.parent(), changed, &memory.records, &self.term.fence).await;
        let mut all: Result<(), RoundTrouble> = Ok(());
        for (number, written) in written {
            match written {
                Ok(version) => drop(memory.records.insert(number, version)),
                Err(stopped) => {
                    // It is read before it is written again.
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
