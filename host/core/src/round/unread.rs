//! Live reads that keep failing: they show as the error of their target, and bound its end and its release no longer than
//! a request can be under way. Source: docs/operationjob.md 3.1.9, 3.11.2.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_api::TargetError;

use crate::job::bound::shown_cause;
use crate::job::state::TargetState;
use crate::job::time::after;
use crate::round::context::Target;
use crate::round::pace::too_late_for;
use crate::round::target::Need;
use crate::round::target_memory::TargetMemory;

/// The reason of the error.
const UNREAD: &str = "GetObjectFailed";
/// Time for the record of the error, before the reads are made again.
const RECORD: SignedDuration = SignedDuration::from_secs(2);

impl TargetMemory {
    /// True if its live reads have failed for so long that its end and its release go on without them.
    pub fn gives_up_reads(&self, now: Timestamp) -> bool {
        self.unread_since.is_some_and(|since| too_late_for(since) <= now)
    }
}

impl Target<'_> {
    /// Notes since when the live reads of this target have failed.
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

    /// The need of a target, pending or in flight, whose live reads fail: at first that this is shown.
    pub(super) fn shown_unread(&self, need: Need, known: &mut TargetMemory) -> Need {
        let Need::Read(wanted) = &need else {
            if known.failure.is_none() {
                // It waits for none: the cache has shown what a read was to show.
                known.unread_since = None;
            }
            return need;
        };
        let Some(failure) = wanted.iter().find_map(|read| self.round.live.failed.get(read)) else { return need };
        let trouble = TargetError { reason: UNREAD.to_owned(), message: shown_cause(&failure.message, 256) };
        let lasts = known.trouble_lasts(&trouble);
        // Each failure may have another message: one of them is enough.
        let shown = self.stored.error.as_ref().is_some_and(|error| error.reason == UNREAD);
        if !lasts || shown || known.failure.is_some() {
            return need;
        }
        known.read_at = Some(after(self.round.now, RECORD));
        Need::Set(TargetState { error: Some(trouble), ..self.stored.clone() })
    }
}
