//! Restores an object's units from its status and records before the first plan of a term.
//!
//! A round waits for a stale watch. With an old view, it would repeat work that was done since.

use std::collections::HashSet;

use k8s_openapi::jiff::SignedDuration;
use oarlock_api::counted_units;
use oarlock_core::attempts::header::Header;
use oarlock_core::attempts::live_reads::{is_current, is_stored, records_of};
use oarlock_core::attempts::plan::PlanMemory;
use oarlock_core::attempts::retry_and_cleanup::new_retry;
use oarlock_core::attempts::status::record_versions;
use oarlock_core::attempts::unit::Unit;
use oarlock_core::object::time::after;
use oarlock_core::requests::reads::{Answers, Pending};

use crate::flows::memory::{FlowMemory, digest_of};
use crate::flows::round::Round;
use crate::round_trouble::RoundTrouble;

/// The largest assumed difference between the clocks of the API server and this host.
const SKEW: SignedDuration = SignedDuration::from_secs(30);

impl Round<'_> {
    /// Makes sure that the state matches the stored status: one that this term wrote, or the one of the last term.
    pub(super) async fn restore(&self, memory: &mut FlowMemory) -> Result<(), RoundTrouble> {
        if memory.uid == self.parent().uid {
            memory.judge_unsure_write(self.parent());
            if self.recognise(memory) {
                return Ok(());
            }
        }
        self.restore_from_status(memory).await
    }

    /// Returns true if the state comes from the stored status. After its first write, this term knows more than any
    /// stored status.
    fn recognise(&self, memory: &mut FlowMemory) -> bool {
        if memory.read_from.is_none() {
            return true;
        }
        let stored = digest_of(&self.parent().status);
        if memory.sent.contains(&stored) {
            // The write succeeded after all. The contents of that status were not reported yet, so the next report
            // compares them with the remembered status.
            memory.read_from = None;
        }
        memory.read_from.as_ref().is_none_or(|read| *read == stored)
    }

    /// Restores the state of the last term from the status and the JobRecords.
    async fn restore_from_status(&self, memory: &mut FlowMemory) -> Result<(), RoundTrouble> {
        let parent = self.parent();
        let header = Header::read(&parent.status);
        let may_move = self.may_have_moved(&header);
        if may_move {
            self.must_be_current().await?;
        }
        let records = match header.is_truncated {
            true => self.ask(|answers| records_of(parent, answers)).await?,
            false => Vec::new(),
        };
        let last = PlanMemory::recalled(parent, &records);
        if may_move && self.misses_children(&last.units).await? {
            return Err(RoundTrouble::old_view());
        }
        *memory = FlowMemory {
            uid: parent.uid.clone(),
            read_from: Some(digest_of(&parent.status)),
            last: header.is_truncated.then(|| digest_of(&parent.status)),
            records_hold: header.is_truncated && Some(last.units_from_records) == counted_units(&parent.status),
            records: record_versions(parent, &records),
            plan: last.clone(),
            reported: last,
            ..FlowMemory::default()
        };
        Ok(())
    }

    /// Returns true if an earlier term may have done work that the watch does not show yet. No earlier term knew a new
    /// object, and a finished object does not change.
    fn may_have_moved(&self, header: &Header) -> bool {
        let parent = self.parent();
        let is_new = parent.created.is_some_and(|created| created > after(self.term.began, SKEW));
        let is_over = header.completion_time.is_some()
            && header.observed_generation == Some(parent.generation)
            && new_retry(parent, header).is_none();
        !is_new && !is_over
    }

    async fn must_be_current(&self) -> Result<(), RoundTrouble> {
        let is_current = self.ask(|answers| is_current(self.parent(), answers)).await?;
        is_current.then_some(()).ok_or_else(RoundTrouble::old_view)
    }

    /// Returns true if a running child exists that the watch does not show. Such a child would count as deleted.
    async fn misses_children(&self, units: &[Unit]) -> Result<bool, RoundTrouble> {
        let running = units.iter().filter(|unit| unit.has_child() && !unit.state.is_terminal());
        let mut unseen: HashSet<&str> = running.map(|unit| unit.job_uid.as_str()).collect();
        for child in self.view.children.iter() {
            unseen.remove(child.uid.as_str());
        }
        if unseen.is_empty() {
            return Ok(false);
        }
        self.ask(|answers| is_stored(self.parent(), &unseen, answers)).await
    }

    /// Makes the reads that a question needs, and returns its result.
    async fn ask<T>(&self, question: impl Fn(&Answers) -> Result<T, Pending>) -> Result<T, RoundTrouble> {
        self.term.flows.cluster().ask(question).await.map_err(RoundTrouble::of_read)
    }
}
