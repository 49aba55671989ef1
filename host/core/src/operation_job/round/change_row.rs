//! The changes that a plugin makes for one target in a row. After many changes without a pause, each further change
//! waits longer, whatever causes the visits. The watch may show the host's own change before its reply comes. Two
//! targets that change one object wake each other. Without the wait, both write as fast as the API server answers, for
//! ever. Source: docs/operationjob.md 3.1.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_api::TargetError;

use crate::object::time::after;
use crate::requests::backoff::Backoff;

/// Waits of a target that is visited or changed again and again, without a change from elsewhere.
pub(super) const RESTLESS: Backoff = Backoff::from_millis(250, 60_000);
/// Number of proposals in a row before the next one waits. An action with several steps needs a few.
const FREE: u32 = 16;
/// Length of the pause that ends a row, beyond twice the wait that the row has reached.
const PAUSE: SignedDuration = SignedDuration::from_secs(2);

/// The changes of one target without a pause between them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ChangeRow {
    length: u32,
    last: Option<Timestamp>,
}

impl ChangeRow {
    /// Records that the host carried out a proposal.
    pub fn made(&mut self, at: Timestamp) {
        self.length = if self.is_over(at) { 1 } else { self.length.saturating_add(1) };
        self.last = Some(at);
    }

    /// Returns the time before which the host does not visit the target again. `None` if the row needs no wait, or the
    /// target was visited after its last change.
    pub fn backs_off_until(&self, visited: Option<Timestamp>) -> Option<Timestamp> {
        let last = self.last.filter(|last| visited.is_none_or(|visited| visited <= *last))?;
        Some(after(last, self.wait()?))
    }

    /// Returns the error for a row that has become too long and is not over.
    pub fn trouble(&self, now: Timestamp) -> Option<TargetError> {
        self.wait().filter(|_| !self.is_over(now))?;
        let message = format!(
            "the plugin proposed {} changes in a row without a pause, so the host waits up to a minute before it calls the plugin again",
            self.length
        );
        Some(TargetError { reason: "NotConverging".into(), message })
    }

    fn is_over(&self, now: Timestamp) -> bool {
        let pause = self.wait().unwrap_or(SignedDuration::ZERO).saturating_mul(2).saturating_add(PAUSE);
        self.last.is_none_or(|last| now.duration_since(last) > pause)
    }

    fn wait(&self) -> Option<SignedDuration> {
        self.length.checked_sub(FREE).map(|changes| RESTLESS.signed_wait(changes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: i64) -> Timestamp {
        Timestamp::from_millisecond(milliseconds).unwrap()
    }

    /// Returns the waits of a plugin that makes a change at every visit and asks for the next visit after `asked_ms`.
    fn waits(asked_ms: i64, visits: usize) -> Vec<i64> {
        let (mut row, mut now, mut found) = (ChangeRow::default(), 0, Vec::new());
        for _ in 0..visits {
            row.made(at(now));
            let rest = row.backs_off_until(Some(at(now))).map_or(0, |time| time.as_millisecond() - now);
            found.push(rest);
            now += rest.max(asked_ms);
        }
        found
    }

    #[test]
    fn after_many_changes_without_a_pause_each_further_one_waits_longer() {
        let found = waits(10, 27);
        assert_eq!(found[..15], [0; 15]);
        assert_eq!(found[15..25], [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]);
    }

    #[test]
    fn a_plugin_that_pauses_between_its_steps_is_never_held_up() {
        assert_eq!(waits(5_000, 100), [0; 100]);
    }

    #[test]
    fn a_visit_that_changes_nothing_is_not_held_up_and_does_not_end_the_row() {
        let mut row = ChangeRow::default();
        (0..20).for_each(|step| row.made(at(step)));
        assert!(row.trouble(at(20)).is_some());
        assert_eq!(row.trouble(at(1_000_000)), None, "a long pause ends it");
        assert_eq!(row.backs_off_until(Some(at(20))), None, "it was visited since");
        row.made(at(4_000));
        assert_eq!(row.backs_off_until(Some(at(3_990))), Some(at(12_000)));
    }
}
