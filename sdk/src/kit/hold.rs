//! Takes an object and a change of its metadata and yields the object with the
//! change made, and with the list of what this job holds on it.
//! Source: docs/operationjob.md 3.7.12.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::sample::{child, put};
use crate::HOLD_PREFIX;
use crate::wit::MetadataChange;

/// The marks on an object that this job holds, and those that others hold.
pub(super) struct Marks {
    annotation: String,
    own: BTreeSet<String>,
    others: BTreeSet<String>,
    keep: bool,
}

impl Marks {
    /// Those on `object`, where this job lists its own in the annotation.
    pub(super) fn of(object: &Value, annotation: &str) -> Self {
        let listed = |own: bool| {
            let all = object.pointer("/metadata/annotations").and_then(Value::as_object).into_iter().flatten();
            let holds = all.filter(move |(key, _)| key.starts_with(HOLD_PREFIX) && (key.as_str() == annotation) == own);
            let texts = holds.filter_map(|(_, text)| serde_json::from_str::<Vec<String>>(text.as_str()?).ok());
            texts.flatten().collect::<BTreeSet<String>>()
        };
        Self { annotation: annotation.to_owned(), own: listed(true), others: listed(false), keep: false }
    }

    /// Makes the change.
    pub(super) fn make(mut self, change: &MetadataChange, object: &mut Value) {
        self.keep = change.keep;
        for (field, word, set, remove) in [
            ("labels", "label", &change.set_labels, &change.remove_labels),
            ("annotations", "annotation", &change.set_annotations, &change.remove_annotations),
        ] {
            for (key, value) in set {
                let there = object.pointer("/metadata").and_then(|m| m.get(field)?.get(key)).is_some();
                self.take(format!("{word}:{key}"), there);
                put(child(object, &["metadata", field]), key, json!(value));
            }
            for key in remove {
                if self.let_go(&format!("{word}:{key}")) {
                    remove_key(object, field, key);
                }
            }
        }
        self.change_finalizers(change, object);
        if self.own.is_empty() {
            remove_key(object, "annotations", &self.annotation);
        } else {
            put(child(object, &["metadata", "annotations"]), &self.annotation, json!(json!(self.own).to_string()));
        }
    }

    fn change_finalizers(&mut self, change: &MetadataChange, object: &mut Value) {
        let terminating = object.pointer("/metadata/deletionTimestamp").is_some();
        let list = object.pointer("/metadata/finalizers").and_then(Value::as_array);
        let mut names: Vec<String> = list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
        // The API server refuses new finalizers on an object that is being deleted.
        for name in change.add_finalizers.iter().filter(|_| !terminating) {
            let there = names.contains(name);
            self.take(format!("finalizer:{name}"), there);
            if !there {
                names.push(name.clone());
            }
        }
        for name in &change.remove_finalizers {
            if self.let_go(&format!("finalizer:{name}")) {
                names.retain(|other| other != name);
            }
        }
        put(child(object, &["metadata"]), "finalizers", json!(names));
    }

    /// The job holds a mark that it put on, or that another job holds.
    fn take(&mut self, mark: String, was_there: bool) {
        if !self.keep && (!was_there || self.others.contains(&mark)) {
            self.own.insert(mark);
        }
    }

    /// Whether the mark goes with this job's hold of it.
    fn let_go(&mut self, mark: &str) -> bool {
        let ours = self.own.remove(mark);
        (ours || self.keep) && !self.others.contains(mark)
    }
}

fn remove_key(object: &mut Value, field: &str, key: &str) {
    let map = object.get_mut("metadata").and_then(|metadata| metadata.get_mut(field)).and_then(Value::as_object_mut);
    if let Some(map) = map {
        map.remove(key);
    }
}
