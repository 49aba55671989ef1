//! A job whose plugin cannot serve yet, because the kinds that it declares are being listed.
//!
//! Takes the memory of the job as it is stored; its claims need no plugin, so that the other jobs of its namespace go on.
//! May not decide anything. Source: docs/operationjob.md 3.1.11.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::job::key::JobKey;
use crate::job::time::after;
use crate::plugin::manifest::TargetKind;
use crate::round::availability::note_all;
use crate::round::exclusive::take_again;
use crate::round::memory::JobMemory;
use crate::round::refresh::index_claims;
use crate::shared::tables::{SharedTables, lock};

/// A job of which this term has not raised the epoch no longer keeps the others of its namespace waiting after this time:
/// as long as one that cannot be written.
const NEIGHBOURS_WAIT: SignedDuration = SignedDuration::from_secs(1);

/// Counts the job's claims as read once it has waited for its plugin for a second. Returns the time of its next round; it
/// has one anyway when the kinds are listed.
pub fn wait_for_kinds(
    job: &JobKey,
    memory: &mut JobMemory,
    tables: &SharedTables,
    now: Timestamp,
) -> Option<Timestamp> {
    let tables = &mut lock(tables);
    index_claims(job, memory, None, tables);
    note_all(job, memory, tables);
    if memory.state.kind == TargetKind::Node && !memory.state.dry_run {
        // Whatever its plugin says.
        take_again(job, true, memory, tables);
    }
    let until = after(*memory.unlisted_since.get_or_insert(now), NEIGHBOURS_WAIT);
    if until > now && !memory.epoch_raised && memory.state.end.is_none() {
        return Some(until);
    }
    tables.claims.read(job);
    None
}
