//! Carrying out what was recorded.
//!
//! Takes a [`Recorded`]; yields what came of each target's writes. Targets are independent; the writes of one go in
//! order up to the first that fails. May not decide anything, nor be given what was not recorded.

use futures::StreamExt;
use oarlock_core::cluster::writes::{Applied, Recorded, TargetWrites};

use crate::cluster::Cluster;
use crate::lease::Fence;
use crate::write::Mode;

/// Targets that are begun at once; the gate lets at most half as many requests through, so none waits for another.
const TARGETS_AT_ONCE: usize = 64;

impl Cluster {
    /// Does what was recorded, then emits its events. Nothing is sent once `fence` closes.
    pub async fn apply(&self, recorded: Recorded, fence: &Fence) -> Vec<Applied> {
        let Recorded { writes, events, .. } = recorded;
        let applied = self.all(&writes, Mode::Real, fence).await;
        self.emit(events);
        applied
    }

    /// Asks the API server whether it would accept these writes; none of them is done.
    pub async fn rehearse(&self, writes: &[TargetWrites], fence: &Fence) -> Vec<Applied> {
        self.all(writes, Mode::Rehearsal, fence).await
    }

    async fn all(&self, writes: &[TargetWrites], mode: Mode, fence: &Fence) -> Vec<Applied> {
        // Collected first: a stream that makes futures of borrowed items is not `Send` for every lifetime.
        let each: Vec<_> = writes.iter().map(|target| self.target(target, mode, fence)).collect();
        let mut applied: Vec<Applied> = futures::stream::iter(each).buffer_unordered(TARGETS_AT_ONCE).collect().await;
        applied.sort_by_key(|applied| applied.target);
        applied
    }

    async fn target(&self, target: &TargetWrites, mode: Mode, fence: &Fence) -> Applied {
        let TargetWrites { target, writes } = target;
        let mut done = 0;
        let mut stopped = None;
        for write in writes {
            if let Err(why) = self.link.write(write, mode, fence).await {
                tracing::debug!(object = ?write.object(), verb = write.verb(), ?why, "a write was stopped");
                stopped = Some(why);
                break;
            }
            done += 1;
        }
        Applied { target: *target, done, stopped, at: self.clock().now() }
    }
}
