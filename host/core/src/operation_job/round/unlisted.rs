//! A job whose plugin cannot serve yet, because the host still lists the kinds that the plugin declares.
//!
//! Takes the memory of the job as it is stored. The claims of the job need no plugin, so the other jobs of its
//! namespace go on. May not decide anything. Source: docs/operationjob.md 3.1.11.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::object::key::JobKey;
use crate::object::time::after;
use crate::operation_job::round::exclusive::take_again;
use crate::operation_job::round::memory::JobMemory;
use crate::operation_job::round::refresh::index_claims;
use crate::operation_job::round::starts::bounds::note_all_disrupted;
use crate::operation_job::shared::tables::{SharedTables, lock};
use crate::plugin::manifest::TargetKind;

/// Time after which a job whose epoch this term has not raised no longer keeps the other jobs of its namespace waiting.
/// A job that cannot be written keeps them waiting as long.
const NEIGHBOURS_WAIT: SignedDuration = SignedDuration::from_secs(1);

/// Counts the job's claims as read once the job has waited for its plugin for a second. Returns the time of the job's
/// next round. The job has a round anyway when the kinds are listed.
pub fn wait_for_kinds(
    job: &JobKey,
    memory: &mut JobMemory,
    tables: &SharedTables,
    now: Timestamp,
) -> Option<Timestamp> {
    let tables = &mut lock(tables);
    index_claims(job, &memory.stored, None, tables);
    memory.targets.woken.extend(note_all_disrupted(job, &memory.stored, &memory.decisions, tables));
    if memory.stored.state.kind == TargetKind::Node && !memory.stored.state.dry_run {
        // Jobs never share nodes, whatever the plugin's manifest says.
        memory.targets.woken.extend(tables.exclusive.forget(job));
        take_again(job, &memory.stored, &memory.decisions, &memory.targets, tables);
    }
    let until = after(*memory.housekeeping.unlisted_since.get_or_insert(now), NEIGHBOURS_WAIT);
    if until > now && !memory.stored.epoch_raised && memory.stored.state.end.is_none() {
        return Some(until);
    }
    tables.claims.read(job);
    None
}
