//! The state of an object after a job releases it, for callers that plan ahead.

use serde_json::{Map, Value};

use super::released;
use crate::object::api_object::Object;
use crate::object::node::NodeSpec;

/// Returns `object` after the removal of all holds of the job, still at the resourceVersion that the host saw. Its
/// availability also stays as the host saw it. `None` if the job has no hold.
pub fn without(object: &Object, job_uid: &str) -> Option<Object> {
    let mut after = released(object, job_uid)?.outcome(job_uid);
    if let Some(node) = after.node.as_deref() {
        let mut fields = after.fields.value();
        if let Some(spec) = fields.get_mut("spec").and_then(Value::as_object_mut) {
            show(node, spec);
        }
        after.fields = fields.into();
    }
    Some(after)
}

/// Updates the declared fields from the node. A field that is absent stays absent, because no plugin declared it or the
/// host did not see it.
fn show(node: &NodeSpec, spec: &mut Map<String, Value>) {
    if !node.cordoned {
        spec.remove("unschedulable");
    }
    if node.taints.is_empty() {
        spec.remove("taints");
    } else if let Some(taints) = spec.get_mut("taints") {
        *taints = Value::Array(node.taints.clone());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::object::api_object::Kind;

    #[test]
    fn a_node_that_a_job_let_go_of_shows_only_what_others_put_there() {
        let own = json!({"key": "x.io/a", "value": "1", "effect": "NoSchedule"});
        let other = json!({"key": "theirs", "effect": "NoExecute"});
        let hold = json!(["cordon", "label:l", "taint:x.io/a:NoSchedule"]).to_string();
        let document = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "5", "labels": {"l": "1", "m": "2"},
                "annotations": {"hold.oarlock.dev/j": hold}},
            "spec": {"unschedulable": true, "taints": [own, other]}});
        let pointers = ["/spec/unschedulable".to_owned(), "/spec/taints".to_owned()];
        let node = Object::slim(&document, &Kind::node(), &pointers).unwrap();
        let after = without(&node, "j").unwrap();
        assert_eq!(after.fields.value(), json!({"spec": {"taints": [other]}}));
        assert_eq!(after.labels.iter().collect::<Vec<_>>(), [("m", "2")]);
        assert!(after.annotations.is_empty() && after.version() == 5);
        assert_eq!(without(&node, "another"), None);
        assert_eq!(without(&after, "j"), None);
    }
}
