//! Holds: changes that a job makes on its targets and must undo.
//!
//! Builds the patch for a wanted change of metadata, or of what `nodes.rs` beside it says, if it would change anything: a merge patch, or a JSON Patch to
//! release a terminating object. The same patch writes the annotation `hold.oarlock.dev/<job UID>`, the list of this
//! job's marks: a mark is listed only if it was absent or another job's hold lists it, and is removed only if no other
//! hold lists it. Source: docs/operationjob.md 3.7.12.

mod nodes;
mod without;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use oarlock_contract::marks::{CORDON, Marks, listed};
pub use oarlock_contract::marks::{HELD, HOLD, IS_HELD, listed as marks_in};

use crate::cluster::node::NodeSpec;
use crate::cluster::object::{Kind, MOST_REFERENCES, Object, ObjectKey, Strings};
use crate::cluster::writes::Write;
use crate::plugin::proposal::MetadataChange;
pub use nodes::{give_up_lost_marks, schedulable, tainted};
pub use without::without;

/// The mark of an object that took the place of another job's target.
const BARRED: &str = "barred";

/// What the annotations begin with that list the marks which a sweep left.
const LEFT: &str = "left.oarlock.dev/";

/// The annotation of a job.
pub fn annotation(job_uid: &str) -> String {
    format!("{HOLD}{job_uid}")
}

/// True if `object` carries a hold of the job, be it empty.
pub fn held(object: &Object, job_uid: &str) -> bool {
    object.annotations.contains_key(&annotation(job_uid))
}

/// True if a write puts a hold of the job on the object.
pub fn is_put_by(write: &Write, object: &ObjectKey, job_uid: &str) -> bool {
    let Write::Patch { object: patched, body, .. } = write else { return false };
    let annotations = body.pointer("/metadata/annotations");
    patched == object && annotations.is_some_and(|map| map.get(annotation(job_uid)).is_some_and(Value::is_string))
}

/// The jobs, by UID, that hold `object`.
pub fn holders(object: &Object) -> impl Iterator<Item = &str> {
    object.annotations.keys().filter_map(|key| key.strip_prefix(HOLD))
}

fn marks(object: &Object, key: &str) -> BTreeSet<String> {
    object.annotations.get(key).map(listed).unwrap_or_default()
}

/// An object while a change is worked out.
struct Draft<'a> {
    object: &'a Object,
    marks: Marks,
    labels: Map<String, Value>,
    annotations: Map<String, Value>,
    finalizers: Vec<String>,
    node: Option<Box<NodeSpec>>,
    /// Its hold was taken off by somebody else: it may be gone from the object itself.
    is_restored: bool,
}

impl<'a> Draft<'a> {
    fn new(object: &'a Object, job_uid: &str, keep: bool) -> Self {
        let key = annotation(job_uid);
        let mut draft = Self {
            object,
            marks: Marks::of(object.annotations.iter(), &key, keep),
            labels: Map::new(),
            annotations: Map::new(),
            finalizers: object.finalizers.clone(),
            node: object.node.clone(),
            is_restored: false,
        };
        draft.give_up_lost_marks();
        draft
    }

    fn set_finalizer(&mut self, name: &str) {
        // The API server refuses new finalizers on an object that is being deleted. A job that releases such an object
        // relies on no other beginning to hold it by a finalizer that is there.
        if self.object.terminating() {
            return;
        }
        let was_there = self.finalizers.iter().any(|f| f == name);
        self.marks.take(format!("finalizer:{name}"), was_there);
        if !was_there {
            self.finalizers.push(name.to_owned());
        }
    }

    fn remove_finalizer(&mut self, name: &str) {
        if self.marks.let_go(&format!("finalizer:{name}")) {
            self.finalizers.retain(|f| f != name);
        }
    }

    fn set(&mut self, label: bool, key: &str, value: &str) {
        let (held, word) =
            if label { (&self.object.labels, "label") } else { (&self.object.annotations, "annotation") };
        let old = held.get(key);
        let changed = old != Some(value);
        self.marks.take(format!("{word}:{key}"), old.is_some());
        if changed {
            let draft = if label { &mut self.labels } else { &mut self.annotations };
            draft.insert(key.to_owned(), json!(value));
        }
    }

    fn remove(&mut self, label: bool, key: &str) {
        let (held, word) =
            if label { (&self.object.labels, "label") } else { (&self.object.annotations, "annotation") };
        // One that is not seen of an object that is not whole may be there.
        let there = held.contains_key(key) || !self.object.is_whole();
        if self.marks.let_go(&format!("{word}:{key}")) && there {
            let draft = if label { &mut self.labels } else { &mut self.annotations };
            draft.insert(key.to_owned(), Value::Null);
        }
    }

    /// The object once the patch is made, still at the version it was seen at.
    fn outcome(&self, job_uid: &str) -> Object {
        let hold = (annotation(job_uid), self.marks.list().map_or(Value::Null, Value::String));
        let held = self.held_label(&hold.0, hold.1.is_string());
        let annotations = self.annotations.iter().map(|(key, value)| (key.clone(), value.clone())).chain([hold]);
        Object {
            labels: merged(&self.object.labels, self.labels.clone().into_iter().chain(held)),
            stray_holds: if self.marks.list().is_some() { Box::default() } else { self.object.stray_holds.clone() },
            annotations: merged(&self.object.annotations, annotations),
            finalizers: self.finalizers.clone(),
            node: self.node.clone(),
            ..self.object.clone()
        }
    }

    /// The patch, and the object as it is then. None of an object that is not whole: nobody knows what was there before.
    fn done(self, job_uid: &str) -> Option<(Value, Object)> {
        self.object.is_whole().then_some(())?;
        let outcome = self.outcome(job_uid);
        Some((self.patch(job_uid)?, outcome))
    }

    /// The patch, with its preconditions.
    fn patch(mut self, job_uid: &str) -> Option<Value> {
        let key = annotation(job_uid);
        let before = self.object.annotations.get(&key);
        let (after, spec) = (self.marks.list(), self.spec_patch());
        if let Some(patch) = self.terminating_patch(&key, after.as_deref()) {
            return Some(patch);
        }
        self.labels.extend(self.held_label(&key, after.is_some()));
        if after.is_some() {
            self.annotations.extend(without_strays(self.object));
        }
        if before.map(listed) != after.as_deref().map(listed) {
            self.annotations.insert(key, after.map_or(Value::Null, Value::String));
        }
        let mut metadata = Map::new();
        for (field, map) in [("labels", self.labels), ("annotations", self.annotations)] {
            if !map.is_empty() {
                metadata.insert(field.to_owned(), Value::Object(map));
            }
        }
        // A list that was cut is not written: it would take off the finalizers of others.
        if self.finalizers != self.object.finalizers
            && (self.object.is_whole() || self.object.finalizers.len() < MOST_REFERENCES)
        {
            metadata.insert("finalizers".to_owned(), json!(self.finalizers));
        }
        if metadata.is_empty() && spec.is_none() {
            return None;
        }
        metadata.insert("uid".to_owned(), json!(self.object.uid));
        metadata.insert("resourceVersion".to_owned(), json!(self.object.resource_version));
        let mut patch = json!({ "metadata": metadata });
        if let (Some(spec), Some(fields)) = (spec, patch.as_object_mut()) {
            fields.insert("spec".to_owned(), spec);
        }
        Some(patch)
    }
}

impl Draft<'_> {
    /// The change of the label of held pods, where the job's hold `key` is to be there or not.
    fn held_label(&self, key: &str, is_held: bool) -> Option<(String, Value)> {
        let others = || self.object.annotations.keys().any(|other| other.starts_with(HOLD) && other != key);
        let (there, wanted) = (self.object.labels.get(HELD) == Some(IS_HELD), is_held || others());
        // The label would make holds, for a host of an earlier version, of annotations that were not seen.
        let may_be_put_on = self.object.is_whole() || !wanted;
        let changes = self.object.key.kind == Kind::pod() && there != wanted && may_be_put_on;
        changes.then(|| (HELD.to_owned(), if wanted { json!(IS_HELD) } else { Value::Null }))
    }

    /// The JSON Patch that removes finalizers and the hold from a terminating object, and nothing else. Its controller
    /// and its kubelet write to it until it is gone, so their writes must not refuse this: it tests only that the
    /// finalizers are at the places seen, and that the job's hold is unchanged, so that a bump still refuses it.
    fn terminating_patch(&self, key: &str, after: Option<&str>) -> Option<Value> {
        let before = self.object.annotations.get(key)?;
        let seen = &self.object.finalizers;
        let in_metadata = self.labels.is_empty() && self.annotations.is_empty();
        let only_lets_go = self.object.terminating() && in_metadata && self.node == self.object.node;
        if !only_lets_go || self.is_restored || self.finalizers.len() >= seen.len() {
            return None;
        }
        let hold = annotation_pointer(key);
        let mut patch = vec![
            json!({"op": "test", "path": "/metadata/uid", "value": self.object.uid}),
            json!({"op": "test", "path": hold, "value": before}),
        ];
        // From the last on, so that the places of the others stay.
        for (place, name) in seen.iter().enumerate().rev().filter(|(_, name)| !self.finalizers.contains(name)) {
            let path = format!("/metadata/finalizers/{place}");
            patch.push(json!({"op": "test", "path": path, "value": name}));
            patch.push(json!({"op": "remove", "path": path}));
        }
        patch.push(match after {
            Some(after) => json!({"op": "replace", "path": hold, "value": after}),
            None => json!({"op": "remove", "path": hold}),
        });
        if self.held_label(key, after.is_some()).is_some() {
            patch.push(json!({"op": "remove", "path": format!("/metadata/labels/{}", escaped(HELD))}));
        }
        Some(Value::Array(patch))
    }
}

/// The JSON Pointer of the annotation with this key.
pub fn annotation_pointer(key: &str) -> String {
    format!("/metadata/annotations/{}", escaped(key))
}

/// A key as a part of a JSON Pointer.
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// The strings as a merge patch leaves them.
fn merged(strings: &Strings, patch: impl IntoIterator<Item = (String, Value)>) -> Strings {
    let mut all: BTreeMap<String, String> =
        strings.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    for (key, value) in patch {
        match value {
            Value::String(value) => drop(all.insert(key, value)),
            _ => drop(all.remove(&key)),
        }
    }
    all.into_iter().collect()
}

/// The patch that makes `change` on `object` for the job, and the object as it is then. `None` if there is nothing to
/// change.
pub fn change(object: &Object, change: &MetadataChange, job_uid: &str) -> Option<(Value, Object)> {
    let mut draft = Draft::new(object, job_uid, change.keep);
    change.set_labels.iter().for_each(|(key, value)| draft.set(true, key, value));
    change.remove_labels.iter().for_each(|key| draft.remove(true, key));
    change.set_annotations.iter().for_each(|(key, value)| draft.set(false, key, value));
    change.remove_annotations.iter().for_each(|key| draft.remove(false, key));
    change.add_finalizers.iter().for_each(|name| draft.set_finalizer(name));
    change.remove_finalizers.iter().for_each(|name| draft.remove_finalizer(name));
    draft.done(job_uid)
}

/// The patch that removes all holds of the job from `object`. `None` if it has none.
pub fn let_go(object: &Object, job_uid: &str) -> Option<Value> {
    released(object, job_uid)?.patch(job_uid)
}

/// The same with `marks`, which the hold listed before somebody took it or a part of it off. `None` if none of that is left.
pub fn let_go_of(object: &Object, job_uid: &str, marks: &BTreeSet<String>) -> Option<Value> {
    let key = annotation(job_uid);
    let listed = self::marks(object, &key);
    if marks.is_subset(&listed) {
        return let_go(object, job_uid);
    }
    let list = json!(listed.union(marks).collect::<BTreeSet<_>>()).to_string();
    let label = (object.key.kind == Kind::pod()).then(|| (HELD.to_owned(), json!(IS_HELD)));
    let restored = Object {
        labels: merged(&object.labels, label),
        annotations: merged(&object.annotations, [(key.clone(), json!(list))]),
        ..object.clone()
    };
    let mut draft = Draft { is_restored: true, ..Draft::new(&restored, job_uid, false) };
    draft.take_off_marks();
    // What another hold lists as well stays.
    let takes_off = !draft.labels.is_empty()
        || !draft.annotations.is_empty()
        || draft.finalizers != object.finalizers
        || draft.node != object.node;
    let is_hold_there = object.annotations.contains_key(&key) || object.stray_holds.contains(&key);
    (takes_off || is_hold_there).then(|| draft.patch(job_uid)).flatten()
}

/// The marks of a job that are on an object: those that its hold lists, and of `known` those that somebody took out of it.
pub fn still_there(object: &Object, job_uid: &str, mut known: BTreeSet<String>) -> BTreeSet<String> {
    known.extend(marks(object, &annotation(job_uid)));
    known.retain(|mark| match mark.split_once(':') {
        Some(("label", key)) => object.labels.contains_key(key),
        Some(("annotation", key)) => object.annotations.contains_key(key),
        Some(("finalizer", name)) => object.finalizers.iter().any(|there| there == name),
        _ => object.node.as_deref().is_none_or(|node| !nodes::is_lost(mark, node)) && mark != BARRED,
    });
    known
}

/// The patch that removes the hold of a job that is gone with those of its marks that `may_be_ours` allows, and the marks that stay:
/// whoever forged the hold had the host take them off. `None` if the job has no hold.
pub fn let_go_of_orphan(
    object: &Object,
    job_uid: &str,
    may_be_ours: impl Fn(&str) -> bool,
) -> Option<(Value, Vec<String>)> {
    let mut draft = Some(Draft::new(object, job_uid, false)).filter(|_| held(object, job_uid))?;
    let is_foreign = |mark: &String| mark != BARRED && !may_be_ours(mark);
    let foreign: Vec<String> = draft.marks.own.extract_if(.., is_foreign).collect();
    if !foreign.is_empty() {
        // Who looks for what is left finds it, and nothing is done by it.
        draft.annotations.insert(format!("{LEFT}{job_uid}"), json!(json!(foreign).to_string()));
    }
    draft.take_off_marks();
    Some((draft.patch(job_uid)?, foreign))
}

/// The draft that removes all holds of the job. `None` if it has none.
fn released<'a>(object: &'a Object, job_uid: &str) -> Option<Draft<'a>> {
    let mut draft = Some(Draft::new(object, job_uid, false)).filter(|_| held(object, job_uid))?;
    draft.take_off_marks();
    Some(draft)
}

impl Draft<'_> {
    /// Removes all marks of the job.
    fn take_off_marks(&mut self) {
        for mark in self.marks.own.clone() {
            match mark.split_once(':') {
                Some(("label", key)) => self.remove(true, key),
                Some(("annotation", key)) => self.remove(false, key),
                Some(("finalizer", name)) => self.remove_finalizer(name),
                Some(("taint", rest)) => {
                    let (key, effect) = rest.split_once(':').unwrap_or((rest, ""));
                    self.remove_taint(key, effect);
                }
                None if mark == CORDON => self.set_schedulable(true),
                _ => {}
            }
        }
        self.marks.own.clear();
    }
}

/// The patch that bars `object` as a successor of any target of the job. `None` if it is barred already.
pub fn bar(object: &Object, job_uid: &str) -> Option<Value> {
    let mut draft = Draft::new(object, job_uid, false);
    draft.marks.own.insert(BARRED.to_owned());
    draft.patch(job_uid)
}

/// True if `object` may be no target's successor: only a deleted job knew the target it belongs to.
pub fn barred(object: &Object) -> bool {
    object.annotations.iter().any(|(key, _)| key.starts_with(HOLD) && marks(object, key).contains(BARRED))
}

/// A patch that changes only the resourceVersion, so that a write still under way fails its precondition: it writes the
/// job's hold in another form. The release removes it again.
pub fn bump_version(object: &Object, job_uid: &str) -> Value {
    let key = annotation(job_uid);
    let list = json!(marks(object, &key)).to_string();
    let is_plain = object.annotations.get(&key).is_some_and(|text| !text.starts_with(' '));
    let text = if is_plain { format!(" {list}") } else { list };
    let label = Draft::new(object, job_uid, false).held_label(&key, true);
    let annotations: Map<String, Value> = without_strays(object).chain([(key, json!(text))]).collect();
    let mut metadata = Map::new();
    metadata.extend(label.map(|label| ("labels".to_owned(), Value::Object([label].into_iter().collect()))));
    metadata.insert("annotations".to_owned(), Value::Object(annotations));
    metadata.insert("uid".to_owned(), json!(object.uid));
    metadata.insert("resourceVersion".to_owned(), json!(object.resource_version));
    json!({ "metadata": metadata })
}

/// The change that takes off what the label of held pods would make holds of.
fn without_strays(object: &Object) -> impl Iterator<Item = (String, Value)> {
    object.stray_holds.iter().map(|stray| (stray.clone(), Value::Null))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::object::Kind;
    use crate::plugin::proposal::ObjectRef;

    fn pod(metadata: Value) -> Object {
        let mut meta = json!({"name": "a", "namespace": "d", "uid": "u", "resourceVersion": "5"});
        meta.as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        Object::slim(&json!({ "metadata": meta }), &Kind::pod(), &[]).unwrap()
    }

    fn mark() -> MetadataChange {
        MetadataChange {
            object: ObjectRef { key: ObjectKey::pod("d", "a"), uid: None },
            set_labels: vec![("l".into(), "true".into())],
            remove_labels: vec![],
            set_annotations: vec![],
            remove_annotations: vec![],
            add_finalizers: vec!["f".into()],
            remove_finalizers: vec![],
            keep: false,
        }
    }

    #[test]
    fn marks_and_hold_go_out_in_one_patch() {
        let patch = change(&pod(json!({})), &mark(), "j").unwrap().0;
        let write = Write::patch(&ObjectKey::pod("d", "a"), patch.clone());
        let put = |name: &str, job: &str| is_put_by(&write, &ObjectKey::pod("d", name), job);
        assert!(put("a", "j") && !put("a", "k") && !put("b", "j"));
        let hold = r#"["finalizer:f","label:l"]"#;
        assert_eq!(
            patch,
            json!({"metadata": {"labels": {"l": "true", HELD: IS_HELD}, "annotations": {"hold.oarlock.dev/j": hold},
            "finalizers": ["f"], "uid": "u", "resourceVersion": "5"}})
        );
    }

    #[test]
    fn a_mark_that_a_user_set_is_not_ours_and_stays() {
        let object = pod(json!({"labels": {"l": "true"}}));
        let patch = change(&object, &mark(), "j").unwrap().0;
        assert_eq!(patch["metadata"]["annotations"]["hold.oarlock.dev/j"], json!(r#"["finalizer:f"]"#));
        let held = pod(json!({"labels": {"l": "true", HELD: IS_HELD}, "finalizers": ["f"],
            "annotations": {"hold.oarlock.dev/j": r#"["finalizer:f"]"#}}));
        let gone = let_go(&held, "j").unwrap();
        assert_eq!(gone["metadata"]["finalizers"], json!([]));
        assert_eq!(gone["metadata"]["labels"], json!({HELD: null}));
    }

    #[test]
    fn the_mark_of_two_jobs_goes_with_the_second() {
        let both = r#"["finalizer:f","label:l"]"#;
        let object = pod(
            json!({"labels": {"l": "true", HELD: IS_HELD}, "finalizers": ["f"], "annotations": {"hold.oarlock.dev/a": both}}),
        );
        let patch = change(&object, &mark(), "b").unwrap().0;
        assert_eq!(patch["metadata"]["annotations"]["hold.oarlock.dev/b"], json!(both));
        let shared = pod(json!({"labels": {"l": "true", HELD: IS_HELD}, "finalizers": ["f"],
            "annotations": {"hold.oarlock.dev/a": both, "hold.oarlock.dev/b": both}}));
        let first = let_go(&shared, "a").unwrap();
        assert_eq!((first["metadata"].get("labels"), first["metadata"].get("finalizers")), (None, None));
    }

    #[test]
    fn a_terminating_object_is_let_go_whatever_others_write_to_it() {
        let object = pod(
            json!({"finalizers": ["x", "f"], "labels": {HELD: IS_HELD}, "deletionTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"hold.oarlock.dev/j": r#"["finalizer:f"]"#}}),
        );
        let hold = "/metadata/annotations/hold.oarlock.dev~1j";
        assert_eq!(
            let_go(&object, "j").unwrap(),
            json!([
                {"op": "test", "path": "/metadata/uid", "value": "u"},
                {"op": "test", "path": hold, "value": r#"["finalizer:f"]"#},
                {"op": "test", "path": "/metadata/finalizers/1", "value": "f"},
                {"op": "remove", "path": "/metadata/finalizers/1"},
                {"op": "remove", "path": hold},
                {"op": "remove", "path": "/metadata/labels/oarlock.dev~1held"},
            ])
        );
    }

    #[test]
    fn nobody_begins_to_hold_a_terminating_object_by_a_finalizer() {
        let object = pod(json!({"labels": {"l": "true", HELD: IS_HELD}, "finalizers": ["f"],
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"hold.oarlock.dev/a": r#"["finalizer:f","label:l"]"#}}));
        let patch = change(&object, &mark(), "b").unwrap().0;
        assert_eq!(patch["metadata"]["annotations"]["hold.oarlock.dev/b"], json!(r#"["label:l"]"#));
    }

    #[test]
    fn nothing_is_written_where_nothing_changes() {
        let object = pod(json!({"labels": {"l": "true", HELD: IS_HELD}, "finalizers": ["f"],
            "annotations": {"hold.oarlock.dev/j": r#"["finalizer:f","label:l"]"#}}));
        assert_eq!(change(&object, &mark(), "j"), None);
        assert_eq!(let_go(&object, "other"), None);
    }

    #[test]
    fn a_bump_changes_the_version_though_the_hold_stays_as_it_is() {
        let object = pod(json!({"labels": {HELD: IS_HELD}, "annotations": {"hold.oarlock.dev/j": "[]"}}));
        assert_eq!(bump_version(&object, "j")["metadata"]["annotations"]["hold.oarlock.dev/j"], json!(" []"));
        assert!(let_go(&object, "j").is_some());
        let bumped = bump_version(&pod(json!({})), "j");
        assert_eq!(bumped["metadata"]["labels"], json!({HELD: IS_HELD}), "it counts as a hold, to be released");
    }

    #[test]
    fn a_hold_that_was_written_without_the_label_is_none_and_becomes_none_by_the_label() {
        let forged = json!({"hold.oarlock.dev/gone": "[\"label:mine\"]", "hold.oarlock.dev/j": "[\"label:mine\"]"});
        let object = pod(json!({"labels": {"mine": "x"}, "annotations": forged}));
        assert!(
            holders(&object).next().is_none() && let_go(&object, "j").is_none() && let_go(&object, "gone").is_none()
        );
        let only_ours = json!({"hold.oarlock.dev/gone": null, "hold.oarlock.dev/j": r#"["finalizer:f","label:l"]"#});
        let (patch, after) = change(&object, &mark(), "j").unwrap();
        assert_eq!(patch["metadata"]["annotations"], only_ours);
        assert_eq!((holders(&after).collect::<Vec<_>>(), after.stray_holds.len()), (vec!["j"], 0));
        let bumped = bump_version(&object, "j");
        assert_eq!(
            bumped["metadata"]["annotations"],
            json!({"hold.oarlock.dev/gone": null, "hold.oarlock.dev/j": "[]"})
        );
    }

    #[test]
    fn the_label_of_held_pods_stays_until_the_last_hold_goes() {
        let object = pod(
            json!({"labels": {HELD: IS_HELD}, "annotations": {"hold.oarlock.dev/a": "[]", "hold.oarlock.dev/b": "[]"}}),
        );
        assert_eq!(let_go(&object, "a").unwrap()["metadata"].get("labels"), None);
        let last = pod(json!({"labels": {HELD: IS_HELD}, "annotations": {"hold.oarlock.dev/b": "[]"}}));
        assert_eq!(let_go(&last, "b").unwrap()["metadata"]["labels"], json!({HELD: null}));
    }
}
