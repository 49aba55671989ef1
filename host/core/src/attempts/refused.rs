//! Requests that failed: a create without a child, a refused change, a list without an answer. Each has a message and a time of its retry. Source:
//! docs/jobflow.md 2.3.

use k8s_openapi::jiff::Timestamp;

use crate::attempts::build::Cause;
use crate::object::time::after;
use crate::requests::backoff::Backoff;

/// Waits after refusals.
const REFUSED: Backoff = Backoff::from_secs(5, 300);
/// Waits after creates without a known outcome. Usually a watch shows the child, or the next try finds it.
const UNKNOWN: Backoff = Backoff::from_millis(100, 30_000);
/// Unknown outcomes in a row after which the unit is blocked.
const UNKNOWN_TRIES: u32 = 3;

/// A request that failed, usually the create of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Reason and message of the failure.
    pub refusal: Cause,
    /// The revision of the child and its attempt, as refused.
    pub revision: String,
    /// Time of the next try.
    pub until: Timestamp,
    /// The number of earlier failures in a row.
    pub tries: u32,
    /// True if the child may exist, because there was no answer or a server error. Its unit keeps its slot.
    pub may_exist: bool,
}

impl Refused {
    /// Returns the record of a create that failed at `now`. `before` is the earlier failure of the same unit.
    pub fn again(before: Option<&Self>, refusal: Cause, revision: String, may_exist: bool, now: Timestamp) -> Self {
        let before = before.filter(|before| before.revision == revision && before.may_exist == may_exist);
        let tries = before.map_or(0, |before| before.tries.saturating_add(1));
        let backoff = if may_exist { UNKNOWN } else { REFUSED };
        let until = after(now, backoff.signed_wait(tries));
        Self { refusal, revision, until, tries, may_exist }
    }

    /// Returns true if the failure blocks its unit. One lost answer does not.
    pub fn blocks(&self) -> bool {
        !self.may_exist || self.tries.saturating_add(1) >= UNKNOWN_TRIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(may_exist: bool) -> Vec<(i128, bool)> {
        let mut before: Option<Refused> = None;
        let mut all = Vec::new();
        for _ in 0..12 {
            let now = Timestamp::UNIX_EPOCH;
            let next = Refused::again(before.as_ref(), Cause::new("Rejected", "no"), "r".to_owned(), may_exist, now);
            all.push((next.until.duration_since(now).as_millis(), next.blocks()));
            before = Some(next);
        }
        all
    }

    #[test]
    fn a_refusal_blocks_at_once_and_is_tried_again_after_five_seconds_doubling_to_five_minutes() {
        let all = waits(false);
        assert_eq!(all[..3], [(5_000, true), (10_000, true), (20_000, true)]);
        assert_eq!(all.last(), Some(&(300_000, true)));
    }

    #[test]
    fn a_create_without_answer_is_tried_again_soon_and_blocks_from_the_third_one_on() {
        let all = waits(true);
        assert_eq!(all[..4], [(100, false), (200, false), (400, true), (800, true)]);
        assert_eq!(all.last(), Some(&(30_000, true)));
    }

    #[test]
    fn another_revision_is_another_create() {
        let of = |before: Option<&Refused>, revision: &str| {
            let refusal = Cause::new("Rejected", "no");
            Refused::again(before, refusal, revision.to_owned(), true, Timestamp::UNIX_EPOCH)
        };
        let second = of(Some(&of(None, "a")), "a");
        assert_eq!((second.tries, of(Some(&second), "b").tries), (1, 0));
    }
}
