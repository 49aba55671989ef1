//! The conditions of an object, of whatever kind: one line each, and the time of the last transition kept.

use k8s_openapi::jiff::Timestamp;
use oarlock_api::Condition;

use crate::job::bound::shown_cause;
use crate::job::time::write_time;

/// Longest message, in bytes.
const MESSAGE: usize = 1_024;

/// What is said of an object now.
pub(crate) struct Said {
    kind: &'static str,
    is: bool,
    reason: String,
    message: String,
}

/// Says that a condition is True or False, and why.
pub(crate) fn say(kind: &'static str, is: bool, reason: &str, message: impl AsRef<str>) -> Said {
    Said { kind, is, reason: reason.to_owned(), message: shown_cause(message.as_ref(), MESSAGE) }
}

impl Said {
    /// True where the stored conditions give another reason or message, or none.
    pub(crate) fn is_news(&self, stored: &[Condition]) -> bool {
        let old = stored.iter().find(|old| old.kind == self.kind);
        old.is_none_or(|old| (old.reason.as_str(), &old.message) != (self.reason.as_str(), &self.message))
    }

    /// The condition, with the time of the stored one where that has the same status.
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
        let stored = [say("Failed", false, "InProgress", "").stamped(1, &[], first)];
        let same = say("Failed", false, "AtRest", "").stamped(2, &stored, later);
        assert_eq!((same.last_transition_time.as_str(), same.observed_generation), ("2026-01-01T00:00:00Z", Some(2)));
        let other = say("Failed", true, "StepFailed", "").stamped(2, &stored, later);
        assert_eq!((other.status.as_str(), other.last_transition_time.as_str()), ("True", "2026-01-01T00:01:00Z"));
    }

    #[test]
    fn a_message_is_one_bounded_line_and_no_news_when_it_is_stored() {
        let long = format!("a\n{}", "x".repeat(5_000));
        let stored = [say("Valid", false, "BadName", &long).stamped(1, &[], Timestamp::UNIX_EPOCH)];
        assert!(stored[0].message.len() == MESSAGE && stored[0].message.starts_with("a\\nxx"));
        assert!(!say("Valid", false, "BadName", &long).is_news(&stored));
        assert!(say("Valid", false, "Cycle", &long).is_news(&stored) && say("Paused", false, "", "").is_news(&stored));
    }
}
