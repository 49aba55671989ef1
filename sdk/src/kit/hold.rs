//! Applies changes of metadata, cordons and taints to an object, and updates
//! the list of marks that this job holds on it. Source: docs/operationjob.md
//! 3.7.12.

use oarlock_contract::marks::{CORDON, HELD, HOLD, IS_HELD, Marks, taint};
use serde_json::{Value, json};

use super::sample::{child, put};
use crate::wit::{MetadataChange, NodeTaint};

/// A change of one object by this job.
pub(super) struct Hold<'a> {
    annotation: &'a str,
    marks: Marks,
}

impl<'a> Hold<'a> {
    /// Begins a change of `object`. The job lists its marks in `annotation`.
    pub(super) fn of(object: &Value, annotation: &'a str, keep: bool) -> Self {
        let all = object.pointer("/metadata/annotations").and_then(Value::as_object).into_iter().flatten();
        let texts = all.filter_map(|(key, text)| Some((key.as_str(), text.as_str()?)));
        Self { annotation, marks: Marks::of(texts, annotation, keep) }
    }

    /// Applies a change of metadata.
    pub(super) fn make(mut self, change: &MetadataChange, object: &mut Value) {
        for (field, word, set, remove) in [
            ("labels", "label", &change.set_labels, &change.remove_labels),
            ("annotations", "annotation", &change.set_annotations, &change.remove_annotations),
        ] {
            for (key, value) in set {
                let there = object.pointer("/metadata").and_then(|m| m.get(field)?.get(key)).is_some();
                self.marks.take(format!("{word}:{key}"), there);
                put(child(object, &["metadata", field]), key, json!(value));
            }
            for key in remove {
                if self.marks.release(&format!("{word}:{key}")) {
                    remove_key(object, field, key);
                }
            }
        }
        self.change_finalizers(change, object);
        self.write(object);
    }

    /// Cordons or uncordons a Node.
    pub(super) fn schedulable(mut self, schedulable: bool, object: &mut Value) {
        let cordoned = object.pointer("/spec/unschedulable").is_some_and(|value| value == true);
        if !schedulable {
            self.marks.take(CORDON.to_owned(), cordoned);
            put(child(object, &["spec"]), "unschedulable", json!(true));
        } else if self.marks.release(CORDON) {
            put(child(object, &["spec"]), "unschedulable", json!(false));
        }
        self.write(object);
    }

    /// Adds a taint to a Node, or removes it.
    pub(super) fn taint(mut self, change: &NodeTaint, object: &mut Value) {
        let NodeTaint { key, value, effect, .. } = change;
        let mut taints = object.pointer("/spec/taints").and_then(Value::as_array).cloned().unwrap_or_default();
        let own = |one: &Value| one.get("key") == Some(&json!(key)) && one.get("effect") == Some(&json!(effect));
        let mark = taint(key, effect);
        if change.present {
            let there = taints.iter().any(own);
            self.marks.take(mark.clone(), there);
            if self.marks.own.contains(&mark) {
                taints.retain(|one| !own(one));
                taints.push(json!({"key": key, "value": value, "effect": effect}));
            }
        } else if self.marks.release(&mark) {
            taints.retain(|one| !own(one));
        }
        put(child(object, &["spec"]), "taints", json!(taints));
        self.write(object);
    }

    /// Writes the list of held marks, and labels a held Pod.
    fn write(self, object: &mut Value) {
        match self.marks.list() {
            Some(list) => put(child(object, &["metadata", "annotations"]), self.annotation, json!(list)),
            None => remove_key(object, "annotations", self.annotation),
        }
        label(object);
    }

    fn change_finalizers(&mut self, change: &MetadataChange, object: &mut Value) {
        let terminating = object.pointer("/metadata/deletionTimestamp").is_some();
        let list = object.pointer("/metadata/finalizers").and_then(Value::as_array);
        let mut names: Vec<String> = list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
        // The API server refuses new finalizers on an object that is being deleted.
        for name in change.add_finalizers.iter().filter(|_| !terminating) {
            let there = names.contains(name);
            self.marks.take(format!("finalizer:{name}"), there);
            if !there {
                names.push(name.clone());
            }
        }
        for name in &change.remove_finalizers {
            if self.marks.release(&format!("finalizer:{name}")) {
                names.retain(|other| other != name);
            }
        }
        put(child(object, &["metadata"]), "finalizers", json!(names));
    }
}

/// Labels a Pod as held, or removes the label, as the host does.
pub(super) fn label(object: &mut Value) {
    if object.get("kind").is_none_or(|kind| kind != "Pod") {
        return;
    }
    let annotations = object.pointer("/metadata/annotations").and_then(Value::as_object);
    if annotations.into_iter().flatten().any(|(key, _)| key.starts_with(HOLD)) {
        put(child(object, &["metadata", "labels"]), HELD, json!(IS_HELD));
    } else {
        remove_key(object, "labels", HELD);
    }
}

fn remove_key(object: &mut Value, field: &str, key: &str) {
    let map = object.get_mut("metadata").and_then(|metadata| metadata.get_mut(field)).and_then(Value::as_object_mut);
    if let Some(map) = map {
        map.remove(key);
    }
}
