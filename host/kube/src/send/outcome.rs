//! The meanings of failed writes.
//!
//! A write counts as not made only if the API server clearly says so. In every other case the outcome is unknown. Source:
//! docs/operationjob.md 3.7.

use kube::core::Status;
use oarlock_core::requests::writes::{Stopped, blocked_by, is_of_several};

use crate::error_chain::error_chain;
use crate::transport::call::{Refusal, RequestError, retry_after};

/// Returns the reason why a write stopped.
pub(crate) fn stopped(error: &RequestError) -> Stopped {
    match error {
        RequestError::Refused(refusal) => refused(refusal),
        RequestError::Build(_) => Stopped::Refused { message: error_chain(error) },
        // Not sent, and possible later.
        RequestError::NotConnected(_) => Stopped::Throttled { retry_after: None },
        RequestError::TimedOut(_) | RequestError::Broken(_) | RequestError::Unreadable(_) => {
            Stopped::Unknown { message: error_chain(error) }
        }
    }
}

/// Returns the reason why a JSON Patch stopped. The API server answers a failed `test` with 422 and names no field.
pub(crate) fn tested(error: &RequestError) -> Stopped {
    match error {
        RequestError::Refused(refusal) if refusal.code == 422 && !has_cause(&refusal.status, |_, _| true) => {
            Stopped::Conflict
        }
        _ => stopped(error),
    }
}

/// Returns the reason why an eviction stopped. A webhook that answers 429 keeps only its pod, and the API server is not busy for other
/// writes.
pub(crate) fn kept(error: &RequestError) -> Stopped {
    match error {
        RequestError::Refused(refusal)
            if refusal.code == 429 && refusal.status.message.starts_with("admission webhook ") =>
        {
            Stopped::Blocked { message: refusal.status.message.clone(), retry_after: retry_after(refusal) }
        }
        _ => stopped(error),
    }
}

fn refused(refusal: &Refusal) -> Stopped {
    let message = refusal.status.message.clone();
    match refusal.code {
        404 => Stopped::Gone,
        409 => Stopped::Conflict,
        422 if has_cause(&refusal.status, |field, _| field == "metadata.uid") => Stopped::Conflict,
        429 if has_cause(&refusal.status, |_, reason| reason == "DisruptionBudget") => {
            let message = budget(&refusal.status).map_or_else(|| message.clone(), |name| blocked_by(name, &message));
            Stopped::Blocked { message, retry_after: retry_after(refusal) }
        }
        429 => Stopped::Throttled { retry_after: retry_after(refusal) },
        // The eviction endpoint answers 500 and evicts nothing if several budgets select the pod.
        500 if is_of_several(&message) => Stopped::Blocked { message, retry_after: retry_after(refusal) },
        // A request that is too large stays too large when the host repeats it.
        500 if message.contains("request is too large") => Stopped::Refused { message },
        500.. => Stopped::Unknown { message },
        _ => Stopped::Refused { message },
    }
}

/// Returns the budget that blocks an eviction. The API server gives its name only in the message of the cause:
/// `The disruption budget web needs 3 healthy pods and has 3 currently`.
fn budget(status: &Status) -> Option<&str> {
    let causes = status.details.as_ref()?.causes.iter();
    let mut told = causes.filter(|cause| cause.reason == "DisruptionBudget");
    let name = told.find_map(|cause| cause.message.strip_prefix("The disruption budget ")?.split(' ').next());
    name.filter(|name| !name.is_empty())
}

fn has_cause(status: &Status, found: impl Fn(&str, &str) -> bool) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.into_iter().any(|cause| found(&cause.field, &cause.reason))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::transport::call::LONGEST_RETRY_AFTER;

    fn answer(code: u16, details: Value, message: &str) -> Stopped {
        let status = json!({"kind": "Status", "code": code, "message": message, "details": details});
        let status = serde_json::from_value(status).unwrap();
        stopped(&RequestError::Refused(Box::new(Refusal { code, status, is_status: true, retry_after: None })))
    }

    /// Source: <https://github.com/kubevirt/kubevirt/issues/11532>.
    #[test]
    fn a_webhook_that_refuses_an_eviction_with_429_keeps_that_pod_alone() {
        let message = "admission webhook \"evictions.example\" denied the request: it is moved first";
        let answer = |message: &str| {
            let status = json!({"kind": "Status", "code": 429, "message": message, "details": {}});
            let status = serde_json::from_value(status).unwrap();
            kept(&RequestError::Refused(Box::new(Refusal { code: 429, status, is_status: true, retry_after: None })))
        };
        assert_eq!(answer(message), Stopped::Blocked { message: message.to_owned(), retry_after: None });
        assert_eq!(answer("too many"), Stopped::Throttled { retry_after: None });
    }

    #[test]
    fn an_old_view_is_a_conflict_whatever_the_server_calls_it() {
        assert_eq!(answer(409, json!({}), "modified"), Stopped::Conflict);
        let uid = json!({"causes": [{"field": "metadata.uid", "reason": "FieldValueInvalid"}]});
        assert_eq!(answer(422, uid, "field is immutable"), Stopped::Conflict);
    }

    #[test]
    fn a_test_of_a_json_patch_that_fails_is_a_conflict_and_an_invalid_result_is_refused() {
        let answer = |details: Value| {
            let status = json!({"kind": "Status", "code": 422, "message": "no", "details": details});
            let status = serde_json::from_value(status).unwrap();
            tested(&RequestError::Refused(Box::new(Refusal { code: 422, status, is_status: true, retry_after: None })))
        };
        assert_eq!(answer(json!({})), Stopped::Conflict);
        let field = json!({"causes": [{"field": "metadata.finalizers", "reason": "FieldValueForbidden"}]});
        assert_eq!(answer(field), Stopped::Refused { message: "no".into() });
    }

    #[test]
    fn an_invalid_body_is_refused_and_not_called_a_conflict() {
        let field = json!({"causes": [{"field": "spec.x", "reason": "FieldValueInvalid"}]});
        assert_eq!(answer(422, field, "bad x"), Stopped::Refused { message: "bad x".into() });
    }

    #[test]
    fn a_disruption_budget_blocks_and_a_busy_server_throttles() {
        let budget = json!({"causes": [{"reason": "DisruptionBudget"}], "retryAfterSeconds": 7});
        assert_eq!(answer(429, budget, "no"), Stopped::Blocked { message: "no".into(), retry_after: Some(7) });
        let named = json!({"causes": [{"reason": "DisruptionBudget",
            "message": "The disruption budget web needs 3 healthy pods and has 3 currently"}]});
        let message = "disruption budget web: no".into();
        assert_eq!(answer(429, named, "no"), Stopped::Blocked { message, retry_after: None });
        assert_eq!(answer(429, json!({"retryAfterSeconds": 1}), "busy"), Stopped::Throttled { retry_after: Some(1) });
        let several =
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        assert_eq!(answer(500, json!({}), several), Stopped::Blocked { message: several.into(), retry_after: None });
    }

    #[test]
    fn a_reply_cannot_make_the_host_wait_for_ever() {
        let busy = answer(429, json!({"retryAfterSeconds": u32::MAX}), "busy");
        assert_eq!(busy, Stopped::Throttled { retry_after: Some(LONGEST_RETRY_AFTER) });
    }

    #[test]
    fn a_server_error_or_a_timeout_is_unknown_and_never_refused() {
        assert_eq!(answer(500, json!({}), "etcd"), Stopped::Unknown { message: "etcd".into() });
        let large = "etcdserver: request is too large";
        assert_eq!(answer(500, json!({}), large), Stopped::Refused { message: large.into() });
        assert_eq!(answer(504, json!({}), "late"), Stopped::Unknown { message: "late".into() });
        let timeout = stopped(&RequestError::TimedOut(Duration::from_secs(10)));
        assert!(matches!(timeout, Stopped::Unknown { .. }));
    }

    #[test]
    fn a_forbidden_write_is_refused_and_an_absent_object_is_gone() {
        assert_eq!(answer(403, json!({}), "no"), Stopped::Refused { message: "no".into() });
        assert_eq!(answer(404, json!({}), "none"), Stopped::Gone);
    }
}
