//! The pace of a job and its reaction to failures: the fields of its spec, with their defaults.
//!
//! Takes a spec; yields a [`Policy`], or the first field that breaks a rule. Percentages stay as they are until the number of targets is known.
//! Source: docs/operationjob.md 1.2, 3.4, 3.9, 3.10.

use k8s_openapi::jiff::SignedDuration;
use oarlock_api::{IntOrPercent, OperationJobSpec};

/// A number of targets, or a percentage of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Amount {
    /// A number of targets.
    Count(usize),
    /// A percentage of the targets.
    Percent(usize),
}

impl Amount {
    /// Returns the number of targets out of `total`. A percentage is rounded up.
    pub fn rounded_up(self, total: usize) -> usize {
        match self {
            Self::Count(count) => count,
            Self::Percent(share) => total.saturating_mul(share).div_ceil(100),
        }
    }

    /// Returns the number of targets out of `total`. A percentage is rounded down.
    pub fn rounded_down(self, total: usize) -> usize {
        match self {
            Self::Count(count) => count,
            Self::Percent(share) => total.saturating_mul(share) / 100,
        }
    }
}

/// The reaction once more targets have failed than the job tolerates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnFailures {
    /// The job goes on.
    #[default]
    Continue,
    /// The job skips the targets that have not started.
    FailFast,
    /// The job stops as if it were paused.
    Pause,
}

/// Retries of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Retry {
    /// The number of retries.
    pub limit: u32,
    /// Seconds before the first retry. The wait doubles with each retry.
    pub backoff: i64,
    /// The longest wait, in seconds.
    pub longest: i64,
}

/// The most retries of a target or of a unit of a flow, even if a spec asks for more: each retry costs writes. Source: docs/operationjob.md 3,
/// docs/jobflow.md 1.3.
pub const MOST_ATTEMPTS: u32 = 100;
/// The shortest wait before a retry, in seconds.
pub const LEAST_BACKOFF: i64 = 1;
/// The lowest cap of the doubling waits, in seconds.
pub const LEAST_LONGEST: i64 = 10;

impl Default for Retry {
    fn default() -> Self {
        Self { limit: 0, backoff: 10, longest: 300 }
    }
}

impl Retry {
    /// Returns the wait after the attempt with this number. Returns `None` if no retry follows.
    pub fn wait_after(self, attempt: u32) -> Option<SignedDuration> {
        let doublings = attempt.max(1).saturating_sub(1);
        let factor = 1_i64.checked_shl(doublings).filter(|factor| *factor > 0).unwrap_or(i64::MAX);
        let wait = self.backoff.saturating_mul(factor).min(self.longest);
        (attempt <= self.limit).then(|| SignedDuration::from_secs(wait))
    }
}

/// The pace of a job and its reaction to failures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Policy {
    /// The most targets in flight.
    pub parallelism: Option<Amount>,
    /// The most targets that may be unavailable.
    pub max_unavailable: Option<Amount>,
    /// The reaction once more than `tolerated` targets have failed.
    pub on_failures: OnFailures,
    /// Failed targets that the job tolerates.
    pub tolerated: Option<Amount>,
    /// Retries of each target.
    pub retry: Retry,
    /// True if no target may start.
    pub paused: bool,
}

impl Policy {
    /// Returns the policy of a spec.
    ///
    /// # Errors
    ///
    /// If a field has an invalid number or word. The error names the field and the rule.
    pub fn read(spec: &OperationJobSpec) -> Result<Self, String> {
        let failures = spec.failure_policy.clone().unwrap_or_default();
        let on_failures = match failures.kind.as_deref() {
            None | Some("Continue") => OnFailures::Continue,
            Some("FailFast") => OnFailures::FailFast,
            Some("Pause") => OnFailures::Pause,
            Some(_) => return Err("spec.failurePolicy.type: must be Continue, FailFast or Pause".to_owned()),
        };
        let retry = spec.retry_policy.clone().unwrap_or_default();
        let usual = Retry::default();
        let policy = Self {
            parallelism: amount(spec.parallelism.as_ref(), "spec.parallelism", 1)?,
            max_unavailable: amount(spec.max_unavailable.as_ref(), "spec.maxUnavailable", 1)?,
            on_failures,
            tolerated: amount(failures.max_failures.as_ref(), "spec.failurePolicy.maxFailures", 0)?,
            retry: Retry {
                limit: at_least(retry.limit, "spec.retryPolicy.limit", 0)?.map_or(usual.limit, |limit| {
                    u32::try_from(limit).map_or(MOST_ATTEMPTS, |limit| limit.min(MOST_ATTEMPTS))
                }),
                backoff: at_least(retry.backoff_seconds, "spec.retryPolicy.backoffSeconds", 0)?
                    .unwrap_or(usual.backoff)
                    .max(LEAST_BACKOFF),
                longest: at_least(retry.max_backoff_seconds, "spec.retryPolicy.maxBackoffSeconds", 0)?
                    .unwrap_or(usual.longest)
                    .max(LEAST_LONGEST),
            },
            paused: spec.paused == Some(true),
        };
        Ok(if spec.dry_run == Some(true) { policy.of_dry_run() } else { policy })
    }

    /// Returns the part of the policy that counts in a dry run. In a dry run no pod becomes unavailable. Each target has its own result, regardless
    /// of other failures. A retry would have the same result.
    fn of_dry_run(self) -> Self {
        let Self { parallelism, paused, .. } = self;
        Self { parallelism, paused, ..Self::default() }
    }

    /// Returns true if more of `total` targets have failed than the job tolerates, and the job reacts to that.
    pub fn trips(&self, failed: usize, total: usize) -> bool {
        let tolerated = self.tolerated.map_or(0, |amount| amount.rounded_down(total));
        self.on_failures != OnFailures::Continue && failed > tolerated
    }

    /// Returns true if neither a start nor an `operate` may follow after this many failures of `total` targets.
    pub fn pauses(&self, failed: usize, total: usize) -> bool {
        self.paused || self.on_failures == OnFailures::Pause && self.trips(failed, total)
    }

    /// Returns true if the job skips the targets that have not started.
    pub fn skips(&self, failed: usize, total: usize) -> bool {
        self.on_failures == OnFailures::FailFast && self.trips(failed, total)
    }

    /// Returns true if a start may have to wait until another target has ended.
    pub fn bounds_starts(&self) -> bool {
        self.parallelism.is_some() || self.max_unavailable.is_some()
    }

    /// Returns the most targets in flight, out of `total`.
    pub fn most_in_flight(&self, total: usize) -> usize {
        self.parallelism.map_or(usize::MAX, |amount| amount.rounded_up(total).max(1))
    }

    /// Returns the most targets that may be unavailable, out of `total`. It is at least one, so that a job can end.
    pub fn most_unavailable(&self, total: usize) -> Option<usize> {
        self.max_unavailable.map(|amount| amount.rounded_down(total).max(1))
    }
}

/// Reads a field that takes a count or a percentage, of at least `least`. Admission uses the same words for this rule, for every kind.
///
/// # Errors
///
/// If the field has another value. The error names the field and the rule.
pub fn amount(field: Option<&IntOrPercent>, name: &str, least: i64) -> Result<Option<Amount>, String> {
    let rule = || format!("{name}: must be an integer >= {least} or {least}% to 100%");
    let Some(field) = field else { return Ok(None) };
    match field {
        IntOrPercent::Int(count) if *count >= least => {
            Ok(Some(Amount::Count(usize::try_from(*count).unwrap_or(usize::MAX))))
        }
        IntOrPercent::Int(_) => Err(rule()),
        IntOrPercent::Percent(text) => {
            let digits = text.strip_suffix('%').filter(|digits| digits.chars().all(|c| c.is_ascii_digit()));
            let plain = digits.filter(|digits| !digits.starts_with('0') || digits.len() == 1);
            let share = plain.and_then(|digits| digits.parse::<usize>().ok());
            let fits = |share: &usize| i64::try_from(*share).is_ok_and(|share| (least..=100).contains(&share));
            share.filter(fits).map(|share| Some(Amount::Percent(share))).ok_or_else(rule)
        }
    }
}

fn at_least(field: Option<i32>, name: &str, least: i64) -> Result<Option<i64>, String> {
    match field.map(i64::from) {
        Some(value) if value < least => Err(format!("{name}: must be >= {least}, but is {value}")),
        value => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn policy(fields: Value) -> Result<Policy, String> {
        Policy::read(&serde_json::from_value(fields).unwrap())
    }

    #[test]
    fn without_the_extensions_nothing_is_bounded() {
        let policy = policy(json!({"action": "Replace"})).unwrap();
        assert_eq!(policy, Policy::default());
        assert_eq!((policy.most_in_flight(10), policy.most_unavailable(10)), (usize::MAX, None));
        assert!(!policy.pauses(10, 10) && !policy.skips(10, 10));
        assert_eq!(policy.retry.wait_after(1), None);
    }

    #[test]
    fn shares_are_rounded_as_each_field_says() {
        let policy = policy(json!({"parallelism": "25%", "maxUnavailable": "25%",
            "failurePolicy": {"type": "FailFast", "maxFailures": "25%"}}))
        .unwrap();
        assert_eq!((policy.most_in_flight(10), policy.most_unavailable(10)), (3, Some(2)));
        assert_eq!((policy.most_in_flight(1), policy.most_unavailable(3)), (1, Some(1)), "at least one");
        assert!(!policy.skips(2, 10) && policy.skips(3, 10), "a quarter of ten is two and a half");
        assert!(policy.skips(1, 3), "a quarter of three tolerates none");
    }

    #[test]
    fn a_field_that_breaks_its_rule_is_named() {
        let cases = [
            (json!({"parallelism": 0}), "spec.parallelism"),
            (json!({"parallelism": "0%"}), "spec.parallelism"),
            (json!({"parallelism": "101%"}), "spec.parallelism"),
            (json!({"parallelism": "05%"}), "spec.parallelism"),
            (json!({"parallelism": "5"}), "spec.parallelism"),
            (json!({"maxUnavailable": "%"}), "spec.maxUnavailable"),
            (json!({"maxUnavailable": -1}), "spec.maxUnavailable"),
            (json!({"failurePolicy": {"type": "Stop"}}), "spec.failurePolicy.type"),
            (json!({"failurePolicy": {"maxFailures": -1}}), "spec.failurePolicy.maxFailures"),
            (json!({"retryPolicy": {"limit": -1}}), "spec.retryPolicy.limit"),
            (json!({"retryPolicy": {"backoffSeconds": -1}}), "spec.retryPolicy.backoffSeconds"),
        ];
        for (fields, name) in cases {
            let refused = policy(fields.clone()).expect_err(&fields.to_string());
            assert!(refused.starts_with(&format!("{name}: ")), "{fields}: {refused}");
        }
        let zero = json!({"failurePolicy": {"type": "Pause", "maxFailures": "0%"}});
        assert!(policy(zero).unwrap().pauses(1, 10));
    }

    #[test]
    fn waits_between_attempts_double_up_to_the_longest() {
        let retry = policy(json!({"retryPolicy": {"limit": 6}})).unwrap().retry;
        let waits: Vec<_> = (1..=7).map(|attempt| retry.wait_after(attempt).map(|wait| wait.as_secs())).collect();
        assert_eq!(waits, [Some(10), Some(20), Some(40), Some(80), Some(160), Some(300), None]);
        let asked = json!({"limit": i32::MAX, "backoffSeconds": 0, "maxBackoffSeconds": 0});
        let bounded = policy(json!({"retryPolicy": asked})).unwrap().retry;
        assert_eq!(bounded, Retry { limit: MOST_ATTEMPTS, backoff: LEAST_BACKOFF, longest: LEAST_LONGEST });
        let endless = Retry { limit: u32::MAX, backoff: i64::MAX, longest: i64::MAX };
        assert!(endless.wait_after(4_000_000_000).is_some(), "no number is too large");
    }
}
