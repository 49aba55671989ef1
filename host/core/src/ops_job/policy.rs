//! Whether the policy of OpsJobs was in force when a job was made. Source: docs/opsjob.md 8.
//!
//! Takes the policy and its binding as they are stored; yields why they let through what the shipped ones do not. Who may make a job of
//! which type nobody else asks, so without them nothing is done for a job.

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::child::fields::{list, text};
use crate::job::time::read_time;

/// The name of the policy, and of its binding.
pub const POLICY: &str = "opsjob.oarlock.dev";
/// Their kinds.
pub const POLICY_KINDS: [&str; 2] = ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"];

/// The policy and its binding among documents of several kinds.
pub fn policy_of(documents: &[Value]) -> [Value; 2] {
    POLICY_KINDS.map(|kind| {
        let is = |one: &&Value| text(one, "/kind") == Some(kind) && text(one, "/metadata/name") == Some(POLICY);
        documents.iter().find(is).cloned().unwrap_or_default()
    })
}

/// Why a job that was made at this time may not have been asked what the shipped policy asks; `None` where it was.
pub fn gap(stored: &[Option<Value>; 2], shipped: &[Value; 2], made: Option<Timestamp>) -> Option<String> {
    let pairs = POLICY_KINDS.into_iter().zip(stored.iter().zip(shipped));
    pairs.into_iter().find_map(|(kind, (stored, shipped))| {
        let Some(stored) = stored else { return Some(format!("{kind} {POLICY} is missing")) };
        let since = read_time(text(stored, "/metadata/creationTimestamp"));
        if made.is_some() && made < since {
            return Some(format!("{kind} {POLICY} was made after the job"));
        }
        let [stored, shipped] = [stored, shipped].map(|one| one.get("spec").unwrap_or(&Value::Null));
        (!is_as_strict(stored, shipped)).then(|| format!("{kind} {POLICY} is not the one of this version"))
    })
}

/// True of a spec that has all of the shipped one, and beside it nothing but what the API server fills in.
fn is_as_strict(stored: &Value, shipped: &Value) -> bool {
    let rules = stored.get("matchConstraints").unwrap_or(&Value::Null);
    let selects = ["namespaceSelector", "objectSelector"].iter().filter_map(|field| rules.get(field));
    let selects_all = selects.into_iter().all(|selector| selector.as_object().is_some_and(serde_json::Map::is_empty));
    let exempts = [list(stored, "/matchConditions"), list(rules, "/excludeResourceRules")];
    let narrows = ["paramKind", "paramRef", "matchResources"].iter().any(|field| stored.get(field).is_some());
    has(stored, shipped) && selects_all && exempts.iter().all(|list| list.is_empty()) && !narrows
}

/// True of a value that has everything that another one has.
fn has(stored: &Value, wanted: &Value) -> bool {
    match (stored, wanted) {
        (Value::Object(stored), Value::Object(wanted)) => {
            wanted.iter().all(|(field, wanted)| stored.get(field).is_some_and(|stored| has(stored, wanted)))
        }
        (Value::Array(stored), Value::Array(wanted)) => {
            stored.len() == wanted.len() && stored.iter().zip(wanted).all(|(stored, wanted)| has(stored, wanted))
        }
        _ => stored == wanted,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(second: i64) -> Option<Timestamp> {
        Timestamp::from_second(1_767_225_600 + second).ok()
    }

    fn shipped() -> [Value; 2] {
        policy_of(&serde_saphyr::from_multiple::<Value>(oarlock_api::OPS_ADMISSION).unwrap())
    }

    /// Both as the API server stores them.
    fn stored() -> [Option<Value>; 2] {
        let mut stored = shipped();
        for one in &mut stored {
            one["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let rules = stored[0].pointer_mut("/spec/matchConstraints").unwrap().as_object_mut().unwrap();
        let filled = json!({"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}});
        rules.extend(filled.as_object().unwrap().clone());
        stored[0]["spec"]["matchConstraints"]["resourceRules"][0]["scope"] = json!("*");
        stored.map(Some)
    }

    fn told(change: impl FnOnce(&mut [Option<Value>; 2])) -> Option<String> {
        let mut stored = stored();
        change(&mut stored);
        gap(&stored, &shipped(), at(5))
    }

    #[test]
    fn what_the_api_server_fills_in_makes_it_no_weaker() {
        assert_eq!(told(|_| {}), None);
    }

    #[test]
    fn whatever_lets_a_job_through_unasked_is_told() {
        assert_eq!(told(|stored| stored[0] = None).unwrap(), "ValidatingAdmissionPolicy opsjob.oarlock.dev is missing");
        assert!(told(|stored| stored[1] = None).unwrap().contains("Binding opsjob.oarlock.dev is missing"));
        assert!(gap(&stored(), &shipped(), at(-1)).unwrap().contains("was made after the job"));
        let changes: [(usize, &str, Value); 9] = [
            (0, "/spec/failurePolicy", json!("Ignore")),
            (0, "/spec/validations", json!([])),
            (0, "/spec/matchConstraints/objectSelector", json!({"matchLabels": {"a": "b"}})),
            (0, "/spec/matchConstraints/resourceRules/0/operations", json!(["UPDATE"])),
            (0, "/spec/variables/1/expression", json!("true")),
            (0, "/spec/validations/0/expression", json!("true")),
            (0, "/spec/matchConditions", json!([{"name": "a", "expression": "false"}])),
            (1, "/spec/validationActions", json!(["Audit"])),
            (1, "/spec/matchResources", json!({"objectSelector": {}})),
        ];
        for (document, pointer, value) in changes {
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            let told = told(|stored| {
                stored[document].as_mut().unwrap().pointer_mut(parent).unwrap()[field] = value;
            });
            assert!(told.is_some_and(|told| told.contains("is not the one")), "{pointer}");
        }
    }
}
