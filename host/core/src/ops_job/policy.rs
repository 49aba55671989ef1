//! Checks that the policies of OpsJobs were in force when a job was created. Source: docs/opsjob.md 8.
//!
//! Takes the stored policies and bindings; yields the reason why they may let through more than the shipped policies. Only the policies check who may
//! create a job of which type. So without them the host does nothing for a job.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::object::fields::text;
use crate::object::time::read_time;

/// The names of the policies, each with a binding of the same name. The policies decide who may create OpsJobs and their OperationJobs.
pub const POLICIES: [&str; 3] = ["opsjob.oarlock.dev", "oarlock-ops.oarlock.dev", "oarlock-ops-pods.oarlock.dev"];
/// The kinds of a policy and of its binding.
pub const POLICY_KINDS: [&str; 2] = ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"];

/// Returns why the shipped policies may not have checked a job with this creation time, or `None` if they did. `stored` returns the stored document
/// of a kind and name.
pub fn gap<'a>(
    stored: impl Fn(&str, &str) -> Option<&'a Value>,
    shipped: &[Value],
    made: Option<Timestamp>,
) -> Option<String> {
    let of_shipped = |kind: &str, name: &str| {
        let is = |one: &&Value| text(one, "/kind") == Some(kind) && text(one, "/metadata/name") == Some(name);
        shipped.iter().find(is)
    };
    let all = POLICIES.iter().flat_map(|name| POLICY_KINDS.map(|kind| (kind, *name)));
    all.into_iter().find_map(|(kind, name)| {
        let Some(found) = stored(kind, name) else { return Some(format!("{kind} {name} is missing")) };
        let since = read_time(text(found, "/metadata/creationTimestamp"));
        if made.is_some() && made < since {
            return Some(format!("{kind} {name} was created after the job"));
        }
        let wanted = of_shipped(kind, name).and_then(|shipped| shipped.get("spec"));
        let is_same = found.get("spec").map(bare) == wanted.map(bare);
        (!is_same).then(|| format!("{kind} {name} belongs to another version of Oarlock"))
    })
}

/// Returns a spec without the defaults that the API server fills in.
fn bare(spec: &Value) -> Value {
    let mut spec = spec.clone();
    let Some(rules) = spec.get_mut("matchConstraints").and_then(Value::as_object_mut) else { return spec };
    let filled =
        [("matchPolicy", json!("Equivalent")), ("namespaceSelector", json!({})), ("objectSelector", json!({}))];
    for (field, value) in filled {
        if rules.get(field) == Some(&value) {
            rules.remove(field);
        }
    }
    let rules = rules.get_mut("resourceRules").and_then(Value::as_array_mut).into_iter().flatten();
    for rule in rules.filter_map(Value::as_object_mut) {
        if rule.get("scope") == Some(&json!("*")) {
            rule.remove("scope");
        }
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Option<Timestamp> {
        Timestamp::from_second(1_767_225_600 + second).ok()
    }

    fn shipped() -> Vec<Value> {
        serde_saphyr::from_multiple(oarlock_api::OPS_ADMISSION).unwrap()
    }

    /// Returns all policies and bindings as the API server stores them.
    fn stored() -> Vec<Value> {
        let mut stored = shipped();
        for one in &mut stored {
            one["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
            if let Some(rules) = one.pointer_mut("/spec/matchConstraints").and_then(Value::as_object_mut) {
                rules.insert("matchPolicy".to_owned(), json!("Equivalent"));
                rules.entry("namespaceSelector").or_insert(json!({}));
                rules.insert("objectSelector".to_owned(), json!({}));
            }
            one.pointer_mut("/spec/matchConstraints/resourceRules/0")
                .into_iter()
                .for_each(|rule| rule["scope"] = json!("*"));
        }
        stored
    }

    fn told_of(stored: &[Value], made: i64) -> Option<String> {
        let of =
            |kind: &str, name: &str| stored.iter().find(|one| one["kind"] == kind && one["metadata"]["name"] == name);
        gap(of, &shipped(), at(made))
    }

    #[test]
    fn what_the_api_server_fills_in_makes_it_no_weaker() {
        assert_eq!(told_of(&stored(), 5), None);
    }

    #[test]
    fn whatever_lets_a_job_through_unasked_is_told() {
        assert!(told_of(&stored(), -1).unwrap().contains("was created after the job"));
        for missing in 0..4 {
            let mut rest = stored();
            rest.remove(missing);
            assert!(told_of(&rest, 5).unwrap().ends_with("is missing"));
        }
        let changes: [(usize, &str, Value); 13] = [
            (0, "/spec/failurePolicy", json!("Ignore")),
            (0, "/spec/validations", json!([])),
            (0, "/spec/matchConstraints/objectSelector", json!({"matchLabels": {"a": "b"}})),
            (0, "/spec/matchConstraints/excludeResourceRules", json!([{"resources": ["*"]}])),
            (0, "/spec/matchConstraints/resourceRules/0/operations", json!(["UPDATE"])),
            (0, "/spec/matchConstraints/resourceRules/0/scope", json!("Namespaced")),
            (0, "/spec/matchConstraints/resourceRules/0/resourceNames", json!(["a"])),
            (0, "/spec/variables/1/expression", json!("true")),
            (0, "/spec/validations/0/expression", json!("true")),
            (0, "/spec/matchConditions", json!([{"name": "a", "expression": "false"}])),
            (1, "/spec/validationActions", json!(["Audit"])),
            (1, "/spec/matchResources", json!({"objectSelector": {}})),
            (2, "/spec/matchConstraints/namespaceSelector", json!({})),
        ];
        for (document, pointer, value) in changes {
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            let mut changed = stored();
            changed[document].pointer_mut(parent).unwrap()[field] = value;
            assert!(told_of(&changed, 5).is_some_and(|told| told.contains("belongs to another version")), "{pointer}");
        }
    }
}
