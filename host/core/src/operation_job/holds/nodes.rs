//! Marks on nodes: the cordon and the taints, which are fields of `spec`.

use oarlock_contract::marks::{CORDON, taint};
use serde_json::{Map, Value, json};

use super::HoldDraft;
use crate::object::api_object::Object;
use crate::object::node::NodeSpec;
use crate::plugin::proposal::TaintChange;

/// Returns true if the mark is a cordon or a taint that the node no longer has, because another client removed it.
pub(crate) fn is_lost(mark: &str, node: &NodeSpec) -> bool {
    match mark.split_once(':') {
        None if mark == CORDON => !node.cordoned,
        Some(("taint", rest)) => rest.split_once(':').is_some_and(|(key, effect)| node.taint(key, effect).is_none()),
        _ => false,
    }
}

impl HoldDraft<'_> {
    /// Drops the marks that another client removed. A cordon or taint that comes later is not the job's.
    pub(crate) fn give_up_lost_marks(&mut self) {
        if let Some(node) = &self.node {
            self.marks.own.retain(|mark| !is_lost(mark, node));
        }
    }

    pub(crate) fn set_schedulable(&mut self, schedulable: bool) {
        let Some(node) = self.node.as_mut() else { return };
        if !schedulable {
            self.marks.take(CORDON.to_owned(), node.cordoned);
            node.cordoned = true;
        } else if self.marks.release(CORDON) {
            node.cordoned = false;
        }
    }

    /// Adds a taint, or changes the value of the job's own taint. A taint of another client with the same key and
    /// effect stays as it is, with its value.
    pub(crate) fn set_taint(&mut self, change: &TaintChange) {
        let TaintChange { key, value, effect, .. } = change;
        let Some(node) = self.node.as_mut() else { return };
        let (mark, place) = (taint(key, effect), node.taint(key, effect));
        self.marks.take(mark.clone(), place.is_some());
        let wanted = json!({"key": key, "value": value, "effect": effect});
        match place.and_then(|place| node.taints.get_mut(place)) {
            None => node.taints.push(wanted),
            Some(there) if self.marks.own.contains(&mark) && there.get("value") != wanted.get("value") => {
                *there = wanted
            }
            Some(_) => {}
        }
    }

    pub(crate) fn remove_taint(&mut self, key: &str, effect: &str) {
        let Some(node) = self.node.as_mut() else { return };
        if self.marks.release(&taint(key, effect))
            && let Some(place) = node.taint(key, effect)
        {
            node.taints.remove(place);
        }
    }

    /// Returns the changes of `spec`; `None` if there are none.
    pub(crate) fn spec_patch(&self) -> Option<Value> {
        let (before, after) = (self.object.node.as_deref()?, self.node.as_deref()?);
        let mut spec = Map::new();
        if before.cordoned != after.cordoned {
            spec.insert("unschedulable".to_owned(), if after.cordoned { json!(true) } else { Value::Null });
        }
        if before.taints != after.taints {
            let taints = if after.taints.is_empty() { Value::Null } else { json!(after.taints) };
            spec.insert("taints".to_owned(), taints);
        }
        (!spec.is_empty()).then_some(Value::Object(spec))
    }
}

/// Returns the patch that cordons or uncordons `object` for the job, and the object after it. `None` if nothing
/// changes.
pub fn schedulable(object: &Object, schedulable: bool, job_uid: &str) -> Option<(Value, Object)> {
    let mut draft = HoldDraft::new(object, job_uid, false);
    draft.set_schedulable(schedulable);
    draft.done(job_uid)
}

/// Returns the patch that adds a taint to `object` for the job or removes it, and the object after it. `None` if
/// nothing changes.
pub fn tainted(object: &Object, change: &TaintChange, job_uid: &str) -> Option<(Value, Object)> {
    let mut draft = HoldDraft::new(object, job_uid, false);
    match change.present {
        true => draft.set_taint(change),
        false => draft.remove_taint(&change.key, &change.effect),
    }
    draft.done(job_uid)
}

/// Returns the patch that drops the job's marks which another client removed from `object`. `None` if there are none.
pub fn give_up_lost_marks(object: &Object, job_uid: &str) -> Option<Value> {
    object.node.as_ref()?;
    HoldDraft::new(object, job_uid, false).patch(job_uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::api_object::Kind;
    use crate::operation_job::holds::release;

    const HOLD: &str = "hold.oarlock.dev/j";

    fn node(hold: &Value, spec: &Value) -> Object {
        let annotations = if hold.is_null() { json!({}) } else { json!({HOLD: hold.to_string()}) };
        let metadata = json!({"name": "n", "uid": "u", "resourceVersion": "5", "annotations": annotations});
        Object::slim(&json!({"metadata": metadata, "spec": spec}), &Kind::node(), &[]).unwrap()
    }

    fn taint_of(value: &str, present: bool) -> TaintChange {
        let (node, key, effect) = ("n".into(), "x.io/a".into(), "NoSchedule".into());
        TaintChange { node, key, value: value.into(), effect, present }
    }

    fn other() -> Value {
        json!({"key": "theirs", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"})
    }

    fn own(value: &str) -> Value {
        json!({"key": "x.io/a", "value": value, "effect": "NoSchedule"})
    }

    #[test]
    fn a_cordon_and_its_mark_go_out_in_one_patch_and_come_off_in_one() {
        let (patch, after) = schedulable(&node(&Value::Null, &json!({})), false, "j").unwrap();
        assert_eq!(
            patch,
            json!({"metadata": {"annotations": {HOLD: "[\"cordon\"]"}, "uid": "u", "resourceVersion": "5"},
                "spec": {"unschedulable": true}})
        );
        assert!(schedulable(&after, false, "j").is_none());
        for patch in [schedulable(&after, true, "j").map(|(patch, _)| patch), release(&after, "j")] {
            let patch = patch.unwrap();
            assert_eq!(
                (&patch["spec"], &patch["metadata"]["annotations"]),
                (&json!({"unschedulable": null}), &json!({HOLD: null}))
            );
        }
    }

    #[test]
    fn a_cordon_that_was_there_is_nobodys_and_is_not_taken_off() {
        let cordoned = node(&Value::Null, &json!({"unschedulable": true}));
        assert!(schedulable(&cordoned, false, "j").is_none() && schedulable(&cordoned, true, "j").is_none());
        let labelled = node(&json!(["label:l"]), &json!({"unschedulable": true}));
        assert_eq!(release(&labelled, "j").unwrap().get("spec"), None);
    }

    #[test]
    fn a_cordon_that_somebody_took_off_is_no_longer_the_jobs() {
        let gone = node(&json!(["cordon", "label:l"]), &json!({}));
        let patch = give_up_lost_marks(&gone, "j").unwrap();
        assert_eq!(patch["metadata"]["annotations"], json!({HOLD: "[\"label:l\"]"}));
        assert_eq!(release(&gone, "j").unwrap().get("spec"), None);
        let there = node(&json!(["cordon"]), &json!({"unschedulable": true}));
        assert!(give_up_lost_marks(&there, "j").is_none());
        let (again, _) = schedulable(&gone, false, "j").unwrap();
        assert_eq!(again["spec"], json!({"unschedulable": true}), "a plugin may ask for it again");
    }

    #[test]
    fn a_taint_leaves_those_of_others_as_they_are() {
        let object = node(&Value::Null, &json!({"taints": [other()]}));
        let (patch, after) = tainted(&object, &taint_of("1", true), "j").unwrap();
        assert_eq!(patch["spec"]["taints"], json!([other(), own("1")]));
        assert_eq!(patch["metadata"]["annotations"], json!({HOLD: "[\"taint:x.io/a:NoSchedule\"]"}));
        let (patch, _) = tainted(&after, &taint_of("2", true), "j").unwrap();
        assert_eq!(patch["spec"]["taints"], json!([other(), own("2")]), "its own value may change");
        for patch in [tainted(&after, &taint_of("", false), "j").map(|(patch, _)| patch), release(&after, "j")] {
            let patch = patch.unwrap();
            assert_eq!(
                (&patch["spec"]["taints"], &patch["metadata"]["annotations"]),
                (&json!([other()]), &json!({HOLD: null}))
            );
        }
    }

    #[test]
    fn a_taint_of_somebody_else_keeps_its_value_and_stays() {
        let theirs = node(&Value::Null, &json!({"taints": [own("theirs")]}));
        assert!(tainted(&theirs, &taint_of("1", true), "j").is_none());
        assert!(tainted(&theirs, &taint_of("1", false), "j").is_none());
        let lost = node(&json!(["taint:x.io/a:NoSchedule"]), &json!({}));
        assert!(give_up_lost_marks(&lost, "j").is_some());
    }

    #[test]
    fn the_last_taint_leaves_no_empty_list() {
        let alone = node(&json!(["taint:x.io/a:NoSchedule"]), &json!({"taints": [own("1")]}));
        assert_eq!(release(&alone, "j").unwrap()["spec"], json!({"taints": null}));
    }

    #[test]
    fn no_other_object_has_marks_of_nodes() {
        let pod = Object::slim(&json!({"metadata": {"name": "a", "uid": "u"}}), &Kind::pod(), &[]).unwrap();
        assert!(schedulable(&pod, false, "j").is_none() && tainted(&pod, &taint_of("1", true), "j").is_none());
        assert!(give_up_lost_marks(&pod, "j").is_none());
    }
}
