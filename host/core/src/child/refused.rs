//! A create that brought no child, a change that was refused, a list without answer: what is said of it, and when it is tried
//! again. Source: docs/jobflow.md 2.3.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::child::build::Cause;
use crate::job::time::after;

/// First and longest wait after a refusal, in milliseconds.
const REFUSED: (i64, i64) = (5_000, 300_000);
/// The same after a create that may have been made: most often a watch shows the child, or the next try finds it.
const UNKNOWN: (i64, i64) = (100, 30_000);
/// Answers in a row that say nothing, before the unit is called blocked.
const UNKNOWN_TRIES: u32 = 3;

/// A request that failed: most often the create of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub refusal: Cause,
    /// What was refused: the revision of the child and its attempt.
    pub revision: String,
    /// When it is tried again.
    pub until: Timestamp,
    /// How often that happened in a row before.
    pub tries: u32,
    /// The child may have been made: there was no answer, or a server error. Its unit keeps its slot.
    pub may_exist: bool,
}

impl Refused {
    /// A create that was refused at `now`, after another one of its unit.
    pub fn again(before: Option<&Self>, refusal: Cause, (revision, may_exist): (String, bool), now: Timestamp) -> Self {
        let before = before.filter(|before| before.revision == revision && before.may_exist == may_exist);
        let tries = before.map_or(0, |before| before.tries.saturating_add(1));
        let (first, longest) = if may_exist { UNKNOWN } else { REFUSED };
        let wait = first.saturating_mul(1 << tries.min(10)).min(longest);
        let until = after(now, SignedDuration::from_millis(wait));
        Self { refusal, revision, until, tries, may_exist }
    }

    /// True where its unit is blocked by it. One lost answer is no news.
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
            let next = Refused::again(before.as_ref(), Cause::new("Rejected", "no"), ("r".to_owned(), may_exist), now);
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
            Refused::again(before, refusal, (revision.to_owned(), true), Timestamp::UNIX_EPOCH)
        };
        let second = of(Some(&of(None, "a")), "a");
        assert_eq!((second.tries, of(Some(&second), "b").tries), (1, 0));
    }
}
