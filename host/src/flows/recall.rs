//! What a term does not know yet of an object, or not for sure: read, and compared with what is stored, before it plans.
//!
//! Watches that are late are waited for: by an old view, what was done since would be done again.

use std::collections::HashSet;

use k8s_openapi::jiff::SignedDuration;
use oarlock_core::child::closing::new_retry;
use oarlock_core::child::header::Header;
use oarlock_core::child::plan::Memory;
use oarlock_core::child::unit::Unit;
use oarlock_core::job::time::after;
use oarlock_kube::flows::ReadFailed;

use crate::flows::memory::{FlowMemory, Stored};
use crate::flows::round::Round;
use crate::flows::trouble::RoundTrouble;

/// How far the clocks of the API server and of this host may be apart.
const SKEW: SignedDuration = SignedDuration::from_secs(30);

impl Round<'_> {
    /// Reads the memory of an object that this term has not met yet, from the status that the last one left; and looks what is
    /// stored after a write of that without answer.
    pub(super) async fn recall(&self, memory: &mut FlowMemory) -> Result<(), RoundTrouble> {
        let parent = self.parent();
        let is_read = memory.read_from.as_ref().is_none_or(|version| *version == parent.version);
        if memory.uid == parent.uid && is_read {
            if memory.stored == Stored::InDoubt {
                self.must_be_current().await?;
                memory.stored = Stored::Seen;
                memory.records_hold = false;
            }
            return Ok(());
        }
        let header = Header::read(&parent.status);
        let may_move = self.may_have_moved(&header);
        if may_move {
            self.must_be_current().await?;
        }
        let records = if header.is_truncated { self.term.flows.read_records(parent).await? } else { Vec::new() };
        let stored = Memory::recalled(parent, &records);
        if may_move && self.misses_children(&stored.units).await? {
            return Err(RoundTrouble::old_view());
        }
        let (uid, read_from) = (parent.uid.clone(), Some(parent.version.clone()));
        *memory = FlowMemory { uid, read_from, plan: stored.clone(), reported: stored, ..FlowMemory::default() };
        Ok(())
    }

    /// Whether a term before may have done what the view of its watch does not show: no term before knew a new object, and
    /// nothing moves in one that is over.
    fn may_have_moved(&self, header: &Header) -> bool {
        let parent = self.parent();
        let is_new = parent.created.is_some_and(|created| created > after(self.term.began, SKEW));
        let is_over = header.completion_time.is_some()
            && header.observed_generation == Some(parent.generation)
            && new_retry(parent, header).is_none();
        !is_new && !is_over
    }

    async fn must_be_current(&self) -> Result<(), RoundTrouble> {
        let is_current = self.term.flows.is_current(self.parent()).await?;
        is_current.then_some(()).ok_or_else(RoundTrouble::old_view)
    }

    /// Whether a child that runs is stored and was not seen: it would count as deleted.
    async fn misses_children(&self, units: &[Unit]) -> Result<bool, ReadFailed> {
        let running = units.iter().filter(|unit| unit.has_child() && !unit.state.is_terminal());
        let mut unseen: HashSet<&str> = running.map(|unit| unit.job_uid.as_str()).collect();
        for child in self.view.children.iter() {
            unseen.remove(child.uid.as_str());
        }
        Ok(!unseen.is_empty() && self.term.flows.is_stored(self.parent(), &unseen).await?)
    }
}
