//! How fast a job goes on, and what failures mean for it: the extensions of its spec, with their defaults.
//!
//! Takes a spec; yields a [`Policy`], or the first field that breaks a rule. Percentages stay as they are until the number
//! of targets is known. Source: docs/operationjob.md 1.2, 3.4, 3.9, 3.10.

use k8s_openapi::jiff::SignedDuration;
use oarlock_api::{IntOrPercent, OperationJobSpec};

use crate::job::dry_run::is_dry_run;

/// A number of targets, or a share of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Amount {
    /// So many.
    Count(usize),
    /// So many of a hundred.
    Percent(usize),
}

impl Amount {
    /// The number of `total`; a share is rounded up.
    pub fn rounded_up(self, total: usize) -> usize {
        match self {
            Self::Count(count) => count,
            Self::Percent(share) => total.saturating_mul(share).div_ceil(100),
        }
    }

    /// The number of `total`; a share is rounded down.
    pub fn rounded_down(self, total: usize) -> usize {
        match self {
            Self::Count(count) => count,
            Self::Percent(share) => total.saturating_mul(share) / 100,
        }
    }
}

/// What happens once more targets have failed than are tolerated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnFailures {
    /// Nothing.
    #[default]
    Continue,
    /// Those that have not started are skipped.
    FailFast,
    /// As if the job were paused.
    Pause,
}

/// Further attempts of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Retry {
    /// The number of further attempts.
    pub limit: u32,
    /// Seconds before the second attempt; doubles.
    pub backoff: i64,
    /// The longest wait, in seconds.
    pub longest: i64,
}

/// Most further attempts of a target or of a unit of a flow, whatever is asked: each costs writes.
/// Source: docs/operationjob.md 3, docs/jobflow.md 1.3.
pub const MOST_ATTEMPTS: u32 = 100;
/// The shortest wait before a further attempt, in seconds.
pub const LEAST_BACKOFF: i64 = 1;
/// Waits double at least up to this one, in seconds.
pub const LEAST_LONGEST: i64 = 10;

impl Default for Retry {
    fn default() -> Self {
        Self { limit: 0, backoff: 10, longest: 300 }
    }
}

impl Retry {
    /// The wait after the attempt of this number, if another one follows.
    pub fn wait_after(self, attempt: u32) -> Option<SignedDuration> {
        let doublings = attempt.max(1).saturating_sub(1);
        let factor = 1_i64.checked_shl(doublings).filter(|factor| *factor > 0).unwrap_or(i64::MAX);
        let wait = self.backoff.saturating_mul(factor).min(self.longest);
        (attempt <= self.limit).then(|| SignedDuration::from_secs(wait))
    }
}

/// How fast a job goes on, and what failures mean for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Policy {
    /// Most targets in flight.
    pub parallelism: Option<Amount>,
    /// Most targets that are unavailable.
    pub max_unavailable: Option<Amount>,
    /// What happens once more than `tolerated` have failed.
    pub on_failures: OnFailures,
    /// Failures that are tolerated.
    pub tolerated: Option<Amount>,
    /// Further attempts.
    pub retry: Retry,
    /// Nothing starts.
    pub paused: bool,
}

impl Policy {
    /// The policy of a spec, or the field that breaks a rule and the rule.
    ///
    /// # Errors
    ///
    /// If a number or word is none that the field takes.
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
        Ok(if is_dry_run(spec) { policy.of_dry_run() } else { policy })
    }

    /// The part of it that counts where nothing is done: no pod gets unavailable, each target is shown whatever the others
    /// would come to, and a second attempt would show the same.
    fn of_dry_run(self) -> Self {
        let Self { parallelism, paused, .. } = self;
        Self { parallelism, paused, ..Self::default() }
    }

    /// True if more of `total` targets have failed than are tolerated, and that means something.
    pub fn trips(&self, failed: usize, total: usize) -> bool {
        let tolerated = self.tolerated.map_or(0, |amount| amount.rounded_down(total));
        self.on_failures != OnFailures::Continue && failed > tolerated
    }

    /// True if neither a start nor an `operate` may follow, with so many failures of `total` targets.
    pub fn pauses(&self, failed: usize, total: usize) -> bool {
        self.paused || self.on_failures == OnFailures::Pause && self.trips(failed, total)
    }

    /// True if the targets that have not started are skipped.
    pub fn skips(&self, failed: usize, total: usize) -> bool {
        self.on_failures == OnFailures::FailFast && self.trips(failed, total)
    }

    /// True if a start may have to wait until another target has ended.
    pub fn bounds_starts(&self) -> bool {
        self.parallelism.is_some() || self.max_unavailable.is_some()
    }

    /// Most targets in flight of `total`.
    pub fn most_in_flight(&self, total: usize) -> usize {
        self.parallelism.map_or(usize::MAX, |amount| amount.rounded_up(total).max(1))
    }

    /// Most targets that may be unavailable of `total`; at least one, so that a job comes to its end.
    pub fn most_unavailable(&self, total: usize) -> Option<usize> {
        self.max_unavailable.map(|amount| amount.rounded_down(total).max(1))
    }
}

/// The count or share of a field that takes either, at least `least`. The rule is admission's, in the same words, for every kind.
///
/// # Errors
///
/// The field and the rule, where it says something else.
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
        Some(value) if value < least => Err(format!("{name}: must be >= {least}, and is {value}")),
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
