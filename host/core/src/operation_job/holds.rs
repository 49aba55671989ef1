//! Holds: changes that a job makes on its targets and must undo.
//!
//! Builds the patch for a change of metadata, of a cordon or of a taint, if the patch would change anything. The patch
//! is a merge patch, or a JSON Patch to release a terminating object. The same patch writes the annotation
//! `hold.oarlock.dev/<job UID>`, which lists this job's marks. A mark names one change, such as `label:<key>`. The host
//! lists a mark only if it was absent or another job's hold lists it. The host removes a mark only if no other hold
//! lists it. Source: docs/operationjob.md 3.7.12.

mod nodes;
mod without;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use oarlock_contract::marks::{CORDON, Marks, listed};
pub use oarlock_contract::marks::{HELD, HOLD, IS_HELD, listed as marks_in};

use crate::object::api_object::{Kind, MOST_REFERENCES, Object, ObjectKey, Strings};
use crate::object::node::NodeSpec;
use crate::plugin::proposal::MetadataChange;
use crate::requests::writes::Write;
pub use nodes::{give_up_lost_marks, schedulable, tainted};
pub use without::without;

/// Mark of an object that replaced a target of a deleted job: no other target may take the object as its successor.
const NOT_A_SUCCESSOR: &str = "barred";

/// Prefix of the annotations that list the marks which the cleanup of an orphaned hold left on an object.
const LEFT: &str = "left.oarlock.dev/";

/// Returns the key of the annotation that holds a job's marks.
pub fn annotation(job_uid: &str) -> String {
    format!("{HOLD}{job_uid}")
}

/// Returns true if `object` carries a hold of the job, even an empty hold.
pub fn held(object: &Object, job_uid: &str) -> bool {
    object.annotations.contains_key(&annotation(job_uid))
}

/// Returns true if a write puts a hold of the job on the object.
pub fn is_put_by(write: &Write, object: &ObjectKey, job_uid: &str) -> bool {
    let Write::Patch { object: patched, body, .. } = write else { return false };
    let annotations = body.pointer("/metadata/annotations");
    patched == object && annotations.is_some_and(|map| map.get(annotation(job_uid)).is_some_and(Value::is_string))
}

/// Returns the UIDs of the jobs that hold `object`.
pub fn holders(object: &Object) -> impl Iterator<Item = &str> {
    object.annotations.keys().filter_map(|key| key.strip_prefix(HOLD))
}

fn marks(object: &Object, key: &str) -> BTreeSet<String> {
    object.annotations.get(key).map(listed).unwrap_or_default()
}

/// An object, with the changes that a patch will make to it.
struct HoldDraft<'a> {
    object: &'a Object,
    marks: Marks,
    labels: Map<String, Value>,
    annotations: Map<String, Value>,
    finalizers: Vec<String>,
    node: Option<Box<NodeSpec>>,
    /// True if another client removed the job's hold, so that the object itself may lack the hold.
    is_restored: bool,
}

impl<'a> HoldDraft<'a> {
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
        // The API server refuses new finalizers on an object that is being deleted. No other job may start to hold the
        // object by a finalizer that is there, because the job that releases the object relies on that.
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
        if self.marks.release(&format!("finalizer:{name}")) {
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
        // The host may not see all keys of an object that it does not hold as a whole.
        let there = held.contains_key(key) || !self.object.is_whole();
        if self.marks.release(&format!("{word}:{key}")) && there {
            let draft = if label { &mut self.labels } else { &mut self.annotations };
            draft.insert(key.to_owned(), Value::Null);
        }
    }

    /// Returns the object after the patch, still at the resourceVersion that the host saw.
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

    /// Returns the patch, and the object after it. `None` if nothing changes, or if the host does not hold the whole
    /// object and so does not know its earlier state.
    fn done(self, job_uid: &str) -> Option<(Value, Object)> {
        self.object.is_whole().then_some(())?;
        let outcome = self.outcome(job_uid);
        Some((self.patch(job_uid)?, outcome))
    }

    /// Returns the patch with its preconditions; `None` if nothing changes.
    fn patch(mut self, job_uid: &str) -> Option<Value> {
        let key = annotation(job_uid);
        let before = self.object.annotations.get(&key);
        let (after, spec) = (self.marks.list(), self.spec_patch());
        if let Some(patch) = self.terminating_patch(&key, after.as_deref()) {
            return Some(patch);
        }
        self.labels.extend(self.held_label(&key, after.is_some()));
        if after.is_some() {
            self.annotations.extend(without_stray_hold_annotations(self.object));
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
        // The host does not write a truncated list, because the write would remove finalizers of other clients.
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

impl HoldDraft<'_> {
    /// Returns the change of the label for held pods, if the label must change. `is_held` says whether the object will
    /// have the job's hold `key`.
    fn held_label(&self, key: &str, is_held: bool) -> Option<(String, Value)> {
        let others = || self.object.annotations.keys().any(|other| other.starts_with(HOLD) && other != key);
        let (there, wanted) = (self.object.labels.get(HELD) == Some(IS_HELD), is_held || others());
        // For a host of an earlier version, the label would turn annotations that this host has not seen into holds.
        let may_be_put_on = self.object.is_whole() || !wanted;
        let changes = self.object.key.kind == Kind::pod() && there != wanted && may_be_put_on;
        changes.then(|| (HELD.to_owned(), if wanted { json!(IS_HELD) } else { Value::Null }))
    }

    /// Returns the JSON Patch that removes finalizers and the hold from a terminating object, and nothing else. The
    /// object's controller and kubelet write to the object until it is gone, and their writes must not make this patch
    /// fail. The patch therefore tests only the positions of the finalizers and the job's hold. A patch that
    /// invalidates the version changes the hold, so it still makes this patch fail.
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
        // From the last finalizer to the first, so that the positions of the others stay valid.
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

/// Returns the JSON Pointer of the annotation with this key.
pub fn annotation_pointer(key: &str) -> String {
    format!("/metadata/annotations/{}", escaped(key))
}

/// Returns a key, escaped as a part of a JSON Pointer.
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// Returns the strings as a merge patch leaves them.
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

/// Returns the patch that makes `change` on `object` for the job, and the object after it. `None` if nothing changes,
/// or if the host does not hold the whole object.
pub fn change(object: &Object, change: &MetadataChange, job_uid: &str) -> Option<(Value, Object)> {
    let mut draft = HoldDraft::new(object, job_uid, change.keep);
    change.set_labels.iter().for_each(|(key, value)| draft.set(true, key, value));
    change.remove_labels.iter().for_each(|key| draft.remove(true, key));
    change.set_annotations.iter().for_each(|(key, value)| draft.set(false, key, value));
    change.remove_annotations.iter().for_each(|key| draft.remove(false, key));
    change.add_finalizers.iter().for_each(|name| draft.set_finalizer(name));
    change.remove_finalizers.iter().for_each(|name| draft.remove_finalizer(name));
    draft.done(job_uid)
}

/// Returns the patch that removes all holds of the job from `object`. `None` if the job has no hold on it.
pub fn release(object: &Object, job_uid: &str) -> Option<Value> {
    released(object, job_uid)?.patch(job_uid)
}

/// Returns the patch that removes all holds of the job and also `marks`, which the hold listed before another client
/// removed or changed it. `None` if nothing of this is left on the object.
pub fn release_marks(object: &Object, job_uid: &str, marks: &BTreeSet<String>) -> Option<Value> {
    let key = annotation(job_uid);
    let listed = self::marks(object, &key);
    if marks.is_subset(&listed) {
        return release(object, job_uid);
    }
    let list = json!(listed.union(marks).collect::<BTreeSet<_>>()).to_string();
    let label = (object.key.kind == Kind::pod()).then(|| (HELD.to_owned(), json!(IS_HELD)));
    let restored = Object {
        labels: merged(&object.labels, label),
        annotations: merged(&object.annotations, [(key.clone(), json!(list))]),
        ..object.clone()
    };
    let mut draft = HoldDraft { is_restored: true, ..HoldDraft::new(&restored, job_uid, false) };
    draft.take_off_marks();
    // A mark that another hold lists stays on the object.
    let takes_off = !draft.labels.is_empty()
        || !draft.annotations.is_empty()
        || draft.finalizers != object.finalizers
        || draft.node != object.node;
    let is_hold_there = object.annotations.contains_key(&key) || object.stray_holds.contains(&key);
    (takes_off || is_hold_there).then(|| draft.patch(job_uid)).flatten()
}

/// Returns the job's marks that are on an object: those that its hold lists, and those of `known` that another client
/// removed from the hold.
pub fn still_there(object: &Object, job_uid: &str, mut known: BTreeSet<String>) -> BTreeSet<String> {
    known.extend(marks(object, &annotation(job_uid)));
    known.retain(|mark| match mark.split_once(':') {
        Some(("label", key)) => object.labels.contains_key(key),
        Some(("annotation", key)) => object.annotations.contains_key(key),
        Some(("finalizer", name)) => object.finalizers.iter().any(|there| there == name),
        _ => object.node.as_deref().is_none_or(|node| !nodes::is_lost(mark, node)) && mark != NOT_A_SUCCESSOR,
    });
    known
}

/// Returns the patch that removes the hold of a deleted job with the marks that `may_be_ours` allows, and the marks
/// that stay. A forged hold must not make the host remove other marks. `None` if the job has no hold.
pub fn release_orphan(
    object: &Object,
    job_uid: &str,
    may_be_ours: impl Fn(&str) -> bool,
) -> Option<(Value, Vec<String>)> {
    let mut draft = Some(HoldDraft::new(object, job_uid, false)).filter(|_| held(object, job_uid))?;
    let is_foreign = |mark: &String| mark != NOT_A_SUCCESSOR && !may_be_ours(mark);
    let foreign: Vec<String> = draft.marks.own.extract_if(.., is_foreign).collect();
    if !foreign.is_empty() {
        // A person who looks for the remaining marks finds them by this annotation. The host does not act on it.
        draft.annotations.insert(format!("{LEFT}{job_uid}"), json!(json!(foreign).to_string()));
    }
    draft.take_off_marks();
    Some((draft.patch(job_uid)?, foreign))
}

/// Returns the draft that removes all holds of the job. `None` if the job has no hold.
fn released<'a>(object: &'a Object, job_uid: &str) -> Option<HoldDraft<'a>> {
    let mut draft = Some(HoldDraft::new(object, job_uid, false)).filter(|_| held(object, job_uid))?;
    draft.take_off_marks();
    Some(draft)
}

impl HoldDraft<'_> {
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

/// Returns the patch that marks `object` as nobody's successor, in the hold of this job. `None` if the hold has the
/// mark already.
pub fn mark_not_a_successor(object: &Object, job_uid: &str) -> Option<Value> {
    let mut draft = HoldDraft::new(object, job_uid, false);
    draft.marks.own.insert(NOT_A_SUCCESSOR.to_owned());
    draft.patch(job_uid)
}

/// Returns true if no target may take `object` as its successor, because only a deleted job knew the object's target.
pub fn is_marked_not_a_successor(object: &Object) -> bool {
    object.annotations.iter().any(|(key, _)| key.starts_with(HOLD) && marks(object, key).contains(NOT_A_SUCCESSOR))
}

/// Returns a patch that changes only the resourceVersion, so that a write in flight fails its precondition. The patch
/// writes the job's hold in another form, and the release removes the hold again.
pub fn invalidate_version(object: &Object, job_uid: &str) -> Value {
    let key = annotation(job_uid);
    let list = json!(marks(object, &key)).to_string();
    let is_plain = object.annotations.get(&key).is_some_and(|text| !text.starts_with(' '));
    let text = if is_plain { format!(" {list}") } else { list };
    let label = HoldDraft::new(object, job_uid, false).held_label(&key, true);
    let annotations: Map<String, Value> = without_stray_hold_annotations(object).chain([(key, json!(text))]).collect();
    let mut metadata = Map::new();
    metadata.extend(label.map(|label| ("labels".to_owned(), Value::Object([label].into_iter().collect()))));
    metadata.insert("annotations".to_owned(), Value::Object(annotations));
    metadata.insert("uid".to_owned(), json!(object.uid));
    metadata.insert("resourceVersion".to_owned(), json!(object.resource_version));
    json!({ "metadata": metadata })
}

/// Returns the change that removes the annotations which the label for held pods would turn into holds.
fn without_stray_hold_annotations(object: &Object) -> impl Iterator<Item = (String, Value)> {
    object.stray_holds.iter().map(|stray| (stray.clone(), Value::Null))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::api_object::Kind;
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
        let gone = release(&held, "j").unwrap();
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
        let first = release(&shared, "a").unwrap();
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
            release(&object, "j").unwrap(),
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
        assert_eq!(release(&object, "other"), None);
    }

    #[test]
    fn a_bump_changes_the_version_though_the_hold_stays_as_it_is() {
        let object = pod(json!({"labels": {HELD: IS_HELD}, "annotations": {"hold.oarlock.dev/j": "[]"}}));
        assert_eq!(invalidate_version(&object, "j")["metadata"]["annotations"]["hold.oarlock.dev/j"], json!(" []"));
        assert!(release(&object, "j").is_some());
        let invalidated = invalidate_version(&pod(json!({})), "j");
        assert_eq!(invalidated["metadata"]["labels"], json!({HELD: IS_HELD}), "it counts as a hold, to be released");
    }

    #[test]
    fn a_hold_that_was_written_without_the_label_is_none_and_becomes_none_by_the_label() {
        let forged = json!({"hold.oarlock.dev/gone": "[\"label:mine\"]", "hold.oarlock.dev/j": "[\"label:mine\"]"});
        let object = pod(json!({"labels": {"mine": "x"}, "annotations": forged}));
        assert!(
            holders(&object).next().is_none() && release(&object, "j").is_none() && release(&object, "gone").is_none()
        );
        let only_ours = json!({"hold.oarlock.dev/gone": null, "hold.oarlock.dev/j": r#"["finalizer:f","label:l"]"#});
        let (patch, after) = change(&object, &mark(), "j").unwrap();
        assert_eq!(patch["metadata"]["annotations"], only_ours);
        assert_eq!((holders(&after).collect::<Vec<_>>(), after.stray_holds.len()), (vec!["j"], 0));
        let invalidated = invalidate_version(&object, "j");
        assert_eq!(
            invalidated["metadata"]["annotations"],
            json!({"hold.oarlock.dev/gone": null, "hold.oarlock.dev/j": "[]"})
        );
    }

    #[test]
    fn the_label_of_held_pods_stays_until_the_last_hold_goes() {
        let object = pod(
            json!({"labels": {HELD: IS_HELD}, "annotations": {"hold.oarlock.dev/a": "[]", "hold.oarlock.dev/b": "[]"}}),
        );
        assert_eq!(release(&object, "a").unwrap()["metadata"].get("labels"), None);
        let last = pod(json!({"labels": {HELD: IS_HELD}, "annotations": {"hold.oarlock.dev/b": "[]"}}));
        assert_eq!(release(&last, "b").unwrap()["metadata"]["labels"], json!({HELD: null}));
    }
}
