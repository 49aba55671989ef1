//! Live reads that keep failing. They show as the error of their target, and delay its end and its release no longer
//! than a request can be in flight. Source: docs/operationjob.md 3.1.9, 3.11.2.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_api::TargetError;

use crate::object::bound::shown_cause;
use crate::object::time::{after, too_late_for};
use crate::operation_job::round::context::Target;
use crate::operation_job::round::target::NextStep;
use crate::operation_job::round::target_memory::TargetMemory;
use crate::operation_job::state::TargetState;

/// Reason of the error for failed live reads.
const UNREAD: &str = "GetObjectFailed";
/// Time for the record of the error before the host makes the reads again.
const RECORD: SignedDuration = SignedDuration::from_secs(2);

impl TargetMemory {
    /// Returns true if the target's live reads have failed for so long that its end and its release go on without them.
    pub fn gives_up_reads(&self, now: Timestamp) -> bool {
        self.unread_since.is_some_and(|since| too_late_for(since) <= now)
    }
}

impl Target<'_> {
    /// Records since when the live reads of this target have failed.
    pub(super) fn note_reads(&self, known: &mut TargetMemory) {
        let live = &self.round.live;
        let own = self.live_read();
        let reads = || known.live_reads.iter().chain([&own]);
        if reads().any(|read| live.failed.contains_key(read)) {
            known.unread_since = known.unread_since.or(Some(self.round.now));
        } else if reads().any(|read| live.has(read)) {
            known.unread_since = None;
        }
    }

    /// Returns the need of a target, pending or in flight, whose live reads fail. The host shows the failure first.
    pub(super) fn shown_unread(&self, next_step: NextStep, known: &mut TargetMemory) -> NextStep {
        let NextStep::Read(wanted) = &next_step else {
            if known.failure.is_none() {
                // The target waits for no read, because the cache has shown what the read was to show.
                known.unread_since = None;
            }
            return next_step;
        };
        let Some(failure) = wanted.iter().find_map(|read| self.round.live.failed.get(read)) else { return next_step };
        let trouble = TargetError { reason: UNREAD.to_owned(), message: shown_cause(&failure.message, 256) };
        let lasts = known.trouble_lasts(&trouble);
        // Each failure may have another message, and one of them is enough.
        let shown = self.stored.error.as_ref().is_some_and(|error| error.reason == UNREAD);
        if !lasts || shown || known.failure.is_some() {
            return next_step;
        }
        known.read_at = Some(after(self.round.now, RECORD));
        NextStep::Set(TargetState { error: Some(trouble), ..self.stored.clone() })
    }
}
