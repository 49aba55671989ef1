//! What a term does not know yet of an object, or not for sure: read, and compared with what is stored, before it plans.
//!
//! Watches that are late are waited for: by an old view, what was done since would be done again.

use std::collections::HashSet;

use k8s_openapi::jiff::SignedDuration;
use oarlock_api::counted_units;
use oarlock_core::child::closing::new_retry;
use oarlock_core::child::header::Header;
use oarlock_core::child::plan::Memory;
use oarlock_core::child::status::record_versions;
use oarlock_core::child::unit::Unit;
use oarlock_core::job::time::after;

use crate::flows::memory::{FlowMemory, Stored, digest_of};
use crate::flows::round::Round;
use crate::round_trouble::RoundTrouble;

/// How far the clocks of the API server and of this host may be apart.
const SKEW: SignedDuration = SignedDuration::from_secs(30);

impl Round<'_> {
    /// Sees to it that what is remembered of an object is of the stored status: this term's own, or the one that the last term
    /// left.
    pub(super) async fn recall(&self, memory: &mut FlowMemory) -> Result<(), RoundTrouble> {
        if memory.uid == self.parent().uid {
            self.settle_doubt(memory).await?;
            if self.recognise(memory) {
                return Ok(());
            }
        }
        self.read_anew(memory).await
    }

    /// Looks what is stored after a write of the status that had no answer, or met a conflict.
    async fn settle_doubt(&self, memory: &mut FlowMemory) -> Result<(), RoundTrouble> {
        if !matches!(memory.stored, Stored::InDoubt | Stored::InConflict) {
            return Ok(());
        }
        self.must_be_current().await?;
        // One without answer may still be made.
        let is_over = memory.stored == Stored::InConflict;
        let was_made = || memory.last.as_ref() != Some(&digest_of(&self.parent().status));
        memory.stored = if is_over && !was_made() { Stored::Known } else { Stored::Seen };
        memory.records_hold = false;
        Ok(())
    }

    /// Whether the stored status is the one that was read. Once this term has written one, it knows more than any other says.
    fn recognise(&self, memory: &mut FlowMemory) -> bool {
        if memory.read_from.is_none() {
            return true;
        }
        let stored = digest_of(&self.parent().status);
        if memory.sent.contains(&stored) {
            // It was written after all. What it says was not told of yet: that is compared with what is remembered.
            memory.read_from = None;
        }
        memory.read_from.as_ref().is_none_or(|read| *read == stored)
    }

    /// Reads what the last term left, in the status and in JobRecords.
    async fn read_anew(&self, memory: &mut FlowMemory) -> Result<(), RoundTrouble> {
        let parent = self.parent();
        let header = Header::read(&parent.status);
        let may_move = self.may_have_moved(&header);
        if may_move {
            self.must_be_current().await?;
        }
        let records = if header.is_truncated { self.term.flows.read_records(parent).await } else { Ok(Vec::new()) };
        let records = records.map_err(RoundTrouble::of_read)?;
        let last = Memory::recalled(parent, &records);
        if may_move && self.misses_children(&last.units).await? {
            return Err(RoundTrouble::old_view());
        }
        *memory = FlowMemory {
            uid: parent.uid.clone(),
            read_from: Some(digest_of(&parent.status)),
            last: header.is_truncated.then(|| digest_of(&parent.status)),
            records_hold: header.is_truncated && Some(last.recorded) == counted_units(&parent.status),
            records: record_versions(parent, &records),
            plan: last.clone(),
            reported: last,
            ..FlowMemory::default()
        };
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
        let is_current = self.term.flows.is_current(self.parent()).await;
        let is_current = is_current.map_err(RoundTrouble::of_read)?;
        is_current.then_some(()).ok_or_else(RoundTrouble::old_view)
    }

    /// Whether a child that runs is stored and was not seen: it would count as deleted.
    async fn misses_children(&self, units: &[Unit]) -> Result<bool, RoundTrouble> {
        let running = units.iter().filter(|unit| unit.has_child() && !unit.state.is_terminal());
        let mut unseen: HashSet<&str> = running.map(|unit| unit.job_uid.as_str()).collect();
        for child in self.view.children.iter() {
            unseen.remove(child.uid.as_str());
        }
        if unseen.is_empty() {
            return Ok(false);
        }
        let stored = self.term.flows.is_stored(self.parent(), &unseen).await;
        stored.map_err(RoundTrouble::of_read)
    }
}
