//! Decides whether an existing object is the one that a create would have made. If so, it counts as created.
//!
//! An object in the job's own namespace has the job as owner. An object in another namespace cannot have that owner, so labels name its job. The
//! other checks depend on who may make such an object.

use serde_json::Value;

use crate::object::task_pod::{JOB_UID, TASK, TaskPod, asked_node};
use crate::requests::scripts::is_script;

/// Returns why `there` is not the object that the create of `body` would have made for this owner. Returns `None` if it is.
pub fn why_foreign(body: &Value, there: &Value, owner_uid: &str) -> Option<String> {
    if TaskPod::read(body).is_some() {
        return pod_of_task(body, there);
    }
    if is_script(body) {
        return script(body, there);
    }
    let owners = there.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let owns = |owner: &Value| owner.get("uid").and_then(Value::as_str) == Some(owner_uid);
    // A label names the job only if the object could have no owner.
    let by_label = body.pointer("/metadata/ownerReferences").is_none() && label(there, JOB_UID) == Some(owner_uid);
    let is_own = by_label || owners.is_some_and(|owners| owners.iter().any(owns));
    (!is_own).then(|| "the object has another owner; remove or rename it".to_owned())
}

/// Checks the pod of a task. A kubelet can make a mirror pod on its own node with any name and labels.
fn pod_of_task(body: &Value, there: &Value) -> Option<String> {
    let is_for = |node| TaskPod::read(there).is_some_and(|seen| seen.is_for(Some(node)));
    let is_same = [JOB_UID, TASK].iter().all(|key| label(there, key) == label(body, key));
    if is_same && asked_node(body).is_some_and(is_for) {
        return None;
    }
    Some("that pod is not the task's: it is of another job or node, or a kubelet made it; remove it".to_owned())
}

/// Checks a script. Any job may use a script with the same text. Anyone who may write in the namespace could have made another script with this name.
fn script(body: &Value, there: &Value) -> Option<String> {
    if there.pointer("/metadata/deletionTimestamp").is_some() {
        return Some("that script is being removed".to_owned());
    }
    let is_same = ["data", "binaryData", "immutable"].iter().all(|field| there.get(field) == body.get(field));
    (!is_same).then(|| "it has another text than its name says, or can be changed; remove it".to_owned())
}

fn label<'a>(document: &'a Value, key: &str) -> Option<&'a str> {
    document.pointer("/metadata/labels")?.get(key)?.as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::requests::scripts;
    use crate::requests::writes::Write;

    fn labelled(labels: Value) -> Value {
        json!({"kind": "ConfigMap", "metadata": {"labels": labels}})
    }

    #[test]
    fn an_object_is_the_jobs_own_by_its_owner_and_by_its_label_where_it_can_have_no_owner() {
        let owned = json!({"metadata": {"ownerReferences": [{"uid": "other"}, {"uid": "job"}]}});
        let of_job = labelled(json!({JOB_UID: "job"}));
        for (body, there, is_own) in [
            (&owned, &owned, true),
            (&owned, &of_job, false),
            (&of_job, &of_job, true),
            (&of_job, &owned, true),
            (&of_job, &labelled(json!({JOB_UID: "other"})), false),
            (&of_job, &json!({"metadata": {"ownerReferences": [{"uid": "other"}]}}), false),
        ] {
            assert_eq!(why_foreign(body, there, "job").is_none(), is_own, "{body} {there}");
        }
    }

    #[test]
    fn the_pod_of_a_task_is_the_jobs_own_only_on_its_node_and_where_no_kubelet_made_it() {
        let pod = |labels: &Value, annotations: Value, spec: Value| json!({"metadata": {"labels": labels, "annotations": annotations}, "spec": spec});
        let own = json!({JOB_UID: "job", TASK: "run"});
        let values = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]);
        let terms = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": values}});
        let on = |node: &str| json!({"nodeName": node});
        for body in [pod(&own, json!({}), on("n")), pod(&own, json!({}), json!({"affinity": {"nodeAffinity": terms}}))]
        {
            for (there, is_own) in [
                (pod(&own, json!({}), on("n")), true),
                (pod(&own, json!({}), json!({})), true),
                (pod(&own, json!({}), on("m")), false),
                (pod(&own, json!({"kubernetes.io/config.mirror": "x"}), on("n")), false),
                (pod(&json!({JOB_UID: "other", TASK: "run"}), json!({}), on("n")), false),
                (pod(&json!({JOB_UID: "job", TASK: "other"}), json!({}), on("n")), false),
                (pod(&json!({JOB_UID: "job"}), json!({}), on("n")), false),
            ] {
                assert_eq!(why_foreign(&body, &there, "job").is_none(), is_own, "{body} {there}");
            }
        }
    }

    #[test]
    fn a_script_is_right_only_with_its_text_whoever_made_it() {
        let Write::Create { body, .. } = scripts::create("true", "t", "job") else { panic!("it is a create") };
        let with = |field: &str, value: Value| {
            let mut there = body.clone();
            there[field] = value;
            why_foreign(&body, &there, "job").is_none()
        };
        assert!(with("metadata", json!({"labels": {}, "uid": "u"})));
        assert!(!with("data", json!({"script": "reboot"})) && !with("data", Value::Null));
        assert!(!with("data", json!({"script": "true", "more": ""})));
        assert!(!with("immutable", json!(false)) && !with("binaryData", json!({"script": ""})));
        assert!(!with("metadata", json!({"deletionTimestamp": "2026-01-01T00:00:00Z"})));
    }
}
