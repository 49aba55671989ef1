//! The settings that JobFlow and DaemonJob share: retryPolicy, failurePolicy, cleanup. Source: docs/jobflow.md 1, 2.5.

use oarlock_api::IntOrPercent;
use serde::Deserialize as _;
use serde_json::Value;

use crate::attempts::build::Cause;
use crate::object::fields::{at, number, text};
use crate::status::policy::{self, Amount, LEAST_BACKOFF, LEAST_LONGEST, MOST_ATTEMPTS, Retry};

/// The reaction to a failure after the last attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailurePolicyType {
    /// The object fails at once, and nothing new starts.
    #[default]
    FailFast,
    /// All other units run to their end.
    Continue,
    /// Nothing new starts until a user retries.
    Pause,
}

/// The handling of children that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeptJobs {
    /// The host keeps them.
    #[default]
    Keep,
    /// The host deletes the children that succeeded.
    DeleteSucceeded,
    /// The host deletes all of them.
    DeleteAll,
}

/// The field `cleanup` of a spec.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cleanup {
    /// Seconds from the completion to the deletion of the object.
    pub ttl: Option<i64>,
    /// The handling of children that have ended.
    pub jobs: KeptJobs,
}

/// The field `retryPolicy` of a step or a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitRetry {
    /// Retries after failures of the work itself.
    pub own: Retry,
    /// Retries after infrastructure failures.
    pub infra: Retry,
    /// `backoffLimit` of each Job.
    pub pod_backoff_limit: Option<i64>,
}

fn invalid(place: &str, rule: &str) -> Cause {
    Cause::new("InvalidValue", format!("{place}: {rule}"))
}

/// Reads a whole number of at least `least`. Returns `None` if the field is absent.
///
/// # Errors
/// If the field has another value. The message names the field.
pub fn whole(value: &Value, field: &str, place: &str, least: i64) -> Result<Option<i64>, Cause> {
    match at(value, &format!("/{field}")) {
        None => Ok(None),
        // Kubernetes computes with nanoseconds, which overflow for longer times.
        Some(found) => match found.as_i64().filter(|number| (least..=i64::from(i32::MAX)).contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let rule = format!("must be a whole number from {least} to {}", i32::MAX);
                Err(invalid(&format!("{place}{field}"), &rule))
            }
        },
    }
}

/// Reads `retryPolicy` below `holder`. Without one, nothing is retried.
///
/// # Errors
/// If a field has an invalid number.
pub fn retry_policy(holder: &Value, place: &str) -> Result<UnitRetry, Cause> {
    let Some(policy) = at(holder, "/retryPolicy") else {
        let never = Retry { limit: 0, ..Retry::default() };
        return Ok(UnitRetry { own: never, infra: never, pod_backoff_limit: None });
    };
    let place = format!("{place}retryPolicy.");
    let count = |field: &str, usual: u32| -> Result<u32, Cause> {
        let count = whole(policy, field, &place, 0)?;
        Ok(count.map_or(usual, |count| u32::try_from(count).unwrap_or(u32::MAX).min(MOST_ATTEMPTS)))
    };
    let usual = Retry::default();
    let backoff = whole(policy, "backoffSeconds", &place, 0)?.unwrap_or(usual.backoff).max(LEAST_BACKOFF);
    let longest = whole(policy, "maxBackoffSeconds", &place, 0)?.unwrap_or(usual.longest).max(LEAST_LONGEST);
    Ok(UnitRetry {
        own: Retry { limit: count("limit", 0)?, backoff, longest },
        infra: Retry { limit: count("infraLimit", 5)?, backoff, longest },
        pod_backoff_limit: whole(policy, "podBackoffLimit", &place, 0)?,
    })
}

/// Returns true if a `retryPolicy` of these holders asks for more than [`MOST_ATTEMPTS`] retries.
pub fn asks_too_often<'a>(mut holders: impl Iterator<Item = &'a Value>) -> bool {
    let asks = |holder: &Value, limit: &str| {
        number(holder, &format!("/retryPolicy/{limit}")).is_some_and(|count| count > i64::from(MOST_ATTEMPTS))
    };
    holders.any(|holder| asks(holder, "limit") || asks(holder, "infraLimit"))
}

/// Reads `failurePolicy.type` below `holder`.
///
/// # Errors
/// If the value is not one of the three types.
pub fn failure_policy(holder: &Value, place: &str) -> Result<FailurePolicyType, Cause> {
    match text(holder, "/failurePolicy/type") {
        None | Some("FailFast") => Ok(FailurePolicyType::FailFast),
        Some("Continue") => Ok(FailurePolicyType::Continue),
        Some("Pause") => Ok(FailurePolicyType::Pause),
        Some(_) => Err(invalid(&format!("{place}failurePolicy.type"), "must be FailFast, Continue or Pause")),
    }
}

/// Reads `cleanup` of a spec.
///
/// # Errors
/// If a field has an invalid value.
pub fn cleanup(spec: &Value) -> Result<Cleanup, Cause> {
    let Some(cleanup) = at(spec, "/cleanup") else { return Ok(Cleanup::default()) };
    let jobs = match text(cleanup, "/jobs") {
        None | Some("Keep") => KeptJobs::Keep,
        Some("DeleteSucceeded") => KeptJobs::DeleteSucceeded,
        Some("DeleteAll") => KeptJobs::DeleteAll,
        Some(_) => return Err(invalid("spec.cleanup.jobs", "must be Keep, DeleteSucceeded or DeleteAll")),
    };
    Ok(Cleanup { ttl: whole(cleanup, "ttlSeconds", "spec.cleanup.", 0)?, jobs })
}

/// Returns the token of a retry by hand and the units that it names. An empty list means all units.
pub fn retry_by_hand(value: &str) -> (&str, Vec<&str>) {
    let (token, units) = value.split_once('/').unwrap_or((value, ""));
    (token, units.split(',').map(str::trim).filter(|unit| !unit.is_empty()).collect())
}

/// Reads a field that takes a count or a percentage, by the same rule as an OperationJob. Returns `None` if the field is absent.
///
/// # Errors
/// If the field is neither an integer >= 0 nor a percentage from 0% to 100%.
pub fn amount(holder: &Value, field: &str, place: &str) -> Result<Option<Amount>, Cause> {
    let stated = at(holder, &format!("/{field}")).map(|found| {
        // A value that is neither a number nor a text becomes an invalid percentage.
        IntOrPercent::deserialize(found).unwrap_or_else(|_| IntOrPercent::Percent(found.to_string()))
    });
    policy::amount(stated.as_ref(), &format!("{place}{field}"), 0).map_err(|rule| Cause::new("InvalidValue", rule))
}

#[cfg(test)]
mod tests {
    use oarlock_api::OperationJobSpec;
    use serde_json::json;

    use super::*;
    use crate::status::policy::Policy;

    /// `"05%"` and `"+5%"` are invalid everywhere, as in admission (docs/operationjob.md 1.2, docs/jobflow.md 1).
    #[test]
    fn an_amount_means_the_same_in_an_operation_job_and_in_a_rollout() {
        let cases = [
            (json!(0), Some(Amount::Count(0))),
            (json!(7), Some(Amount::Count(7))),
            (json!("0%"), Some(Amount::Percent(0))),
            (json!("5%"), Some(Amount::Percent(5))),
            (json!("10%"), Some(Amount::Percent(10))),
            (json!("100%"), Some(Amount::Percent(100))),
            (json!("05%"), None),
            (json!("00%"), None),
            (json!("+5%"), None),
            (json!("-5%"), None),
            (json!(" 5%"), None),
            (json!("5 %"), None),
            (json!("5.0%"), None),
            (json!("101%"), None),
            (json!("0101%"), None),
            (json!("\u{0665}%"), None),
            (json!("99999999999999999999%"), None),
            (json!("%"), None),
            (json!(""), None),
            (json!("5"), None),
            (json!("5%%"), None),
            (json!(-1), None),
        ];
        for (stated, meant) in cases {
            let spec = json!({"failurePolicy": {"type": "Pause", "maxFailures": stated}});
            let spec: OperationJobSpec = serde_json::from_value(spec).unwrap();
            let of_job = Policy::read(&spec).map(|policy| policy.tolerated);
            let rollout = json!({"maxFailures": stated});
            let of_rollout = amount(&rollout, "maxFailures", "spec.failurePolicy.").map_err(|cause| cause.message);
            assert_eq!(of_rollout, of_job, "{stated}");
            assert_eq!(of_job.ok(), meant.map(Some), "{stated}");
        }
        // The API server stores no OperationJob with these values.
        for odd in [json!(1.5), json!(true), json!([5]), json!({"a": 5})] {
            assert!(amount(&json!({"a": odd}), "a", "").is_err(), "{odd}");
        }
        assert_eq!(amount(&json!({"a": null}), "a", ""), Ok(None));
    }
}
