//! The conditions of an object of any kind. Each has one line of text and keeps the time of its last transition.

use k8s_openapi::jiff::Timestamp;
use oarlock_api::Condition;

use crate::object::bound::shown_cause;
use crate::object::time::write_time;

/// The longest message, in bytes.
const MESSAGE: usize = 1_024;

/// A condition of an object, without its times.
pub(crate) struct NewCondition {
    kind: &'static str,
    is: bool,
    reason: String,
    message: String,
}

/// Returns a condition that is True or False, with its reason and message.
pub(crate) fn new_condition(kind: &'static str, is: bool, reason: &str, message: impl AsRef<str>) -> NewCondition {
    NewCondition { kind, is, reason: reason.to_owned(), message: shown_cause(message.as_ref(), MESSAGE) }
}

impl NewCondition {
    /// Returns true if the stored conditions have another reason or message for this condition, or lack the condition.
    pub(crate) fn differs_from(&self, stored: &[Condition]) -> bool {
        let old = stored.iter().find(|old| old.kind == self.kind);
        old.is_none_or(|old| (old.reason.as_str(), &old.message) != (self.reason.as_str(), &self.message))
    }

    /// Returns the full condition. It keeps the transition time of the stored condition if the status is the same.
    pub(crate) fn stamped(self, generation: i64, stored: &[Condition], now: Timestamp) -> Condition {
        let status = if self.is { "True" } else { "False" };
        let old = stored.iter().find(|old| old.kind == self.kind && old.status == status);
        let since = old.map(|old| &old.last_transition_time).filter(|since| !since.is_empty());
        Condition {
            kind: self.kind.to_owned(),
            status: status.to_owned(),
            observed_generation: Some(generation),
            last_transition_time: since.map_or_else(|| write_time(now), Clone::clone),
            reason: self.reason,
            message: self.message,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_keeps_its_time_until_its_status_changes() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let (first, later) = (at("2026-01-01T00:00:00Z"), at("2026-01-01T00:01:00Z"));
        let stored = [new_condition("Failed", false, "InProgress", "").stamped(1, &[], first)];
        let same = new_condition("Failed", false, "AtRest", "").stamped(2, &stored, later);
        assert_eq!((same.last_transition_time.as_str(), same.observed_generation), ("2026-01-01T00:00:00Z", Some(2)));
        let other = new_condition("Failed", true, "StepFailed", "").stamped(2, &stored, later);
        assert_eq!((other.status.as_str(), other.last_transition_time.as_str()), ("True", "2026-01-01T00:01:00Z"));
    }

    #[test]
    fn a_message_is_one_bounded_line_and_no_news_when_it_is_stored() {
        let long = format!("a\n{}", "x".repeat(5_000));
        let stored = [new_condition("Valid", false, "BadName", &long).stamped(1, &[], Timestamp::UNIX_EPOCH)];
        assert!(stored[0].message.len() == MESSAGE && stored[0].message.starts_with("a\\nxx"));
        assert!(!new_condition("Valid", false, "BadName", &long).differs_from(&stored));
        assert!(
            new_condition("Valid", false, "Cycle", &long).differs_from(&stored)
                && new_condition("Paused", false, "", "").differs_from(&stored)
        );
    }
}
