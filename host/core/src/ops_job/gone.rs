//! The reason why an OpsJob is gone. It decides whether lists contain the job. Source: docs/opsjob-rest.md 9.

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::object::fields::text;
use crate::object::time::{after_seconds, read_time};
use crate::ops_job::spec::{Defaults, time_to_live};

/// The annotation with the reason why a job goes. It is needed only if the times of the job do not show the reason.
pub const GONE_BY: &str = "oarlock.dev/gone-by";

/// The reason why a job is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GoneBy {
    /// A user deleted the job.
    Deletion,
    /// The host removed the job because its time to live was over.
    Expiry,
}

impl GoneBy {
    /// Returns the word for the job's row and annotation.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Deletion => "deleted",
            Self::Expiry => "expired",
        }
    }

    /// Returns the reason with this word.
    pub fn read(word: &str) -> Option<Self> {
        [Self::Deletion, Self::Expiry].into_iter().find(|one| one.word() == word)
    }

    /// Returns the reason of a stored job that is being deleted. Returns `None` if the job stays.
    pub fn of(document: &Value, defaults: Defaults) -> Option<Self> {
        let deleted = read_time(text(document, "/metadata/deletionTimestamp"))?;
        let told = text(document, &format!("/metadata/annotations/{}", GONE_BY.replace('/', "~1")));
        let by_time = || {
            let ended = read_time(text(document, "/status/finishedAt"));
            let ttl = time_to_live(document.get("spec").unwrap_or(&Value::Null), defaults);
            Self::by_time(deleted, ended, ttl)
        };
        Some(told.and_then(Self::read).unwrap_or_else(by_time))
    }

    /// Returns the reason that follows from a job's times: its deletion, its end, and its time to live in seconds.
    fn by_time(deleted: Timestamp, ended: Option<Timestamp>, ttl: Option<i64>) -> Self {
        let due = ended.zip(ttl).map(|(ended, seconds)| after_seconds(ended, seconds));
        if due.is_some_and(|due| due <= deleted) { Self::Expiry } else { Self::Deletion }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn gone_by(deleted: &str, ttl: &Value, ended: &str) -> Option<GoneBy> {
        let document = json!({"metadata": {"deletionTimestamp": deleted}, "spec": {"ttlSecondsAfterFinished": ttl},
            "status": {"finishedAt": ended}});
        GoneBy::of(&document, Defaults::default())
    }

    #[test]
    fn a_job_that_goes_when_its_time_is_over_has_expired_and_any_other_one_was_deleted() {
        let ended = "2026-01-01T00:00:00Z";
        assert_eq!(gone_by("2026-01-01T00:00:10Z", &json!(10), ended), Some(GoneBy::Expiry));
        assert_eq!(gone_by("2026-01-01T00:00:09Z", &json!(10), ended), Some(GoneBy::Deletion));
        assert_eq!(gone_by("2026-01-01T01:00:00Z", &Value::Null, ended), Some(GoneBy::Expiry), "an hour");
        assert_eq!(gone_by("2026-02-01T00:00:00Z", &json!(-1), ended), Some(GoneBy::Deletion), "it stays for ever");
        assert_eq!(gone_by("2026-01-01T00:00:10Z", &json!(0), ""), Some(GoneBy::Deletion), "it had not ended");
        assert_eq!(gone_by("", &json!(0), ended), None);
    }

    #[test]
    fn an_annotation_says_it_whatever_the_times_are() {
        let mut document = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {GONE_BY: "expired"}}});
        assert_eq!(GoneBy::of(&document, Defaults::default()), Some(GoneBy::Expiry));
        document["metadata"]["annotations"][GONE_BY] = json!("unheard of");
        assert_eq!(GoneBy::of(&document, Defaults::default()), Some(GoneBy::Deletion));
    }
}
