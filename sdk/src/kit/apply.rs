//! Computes the next visit after the host has applied a proposal. The call that
//! proposed it has already checked it.

use oarlock_contract::extras::EVICTED_AT;
use serde_json::{Map, Value, json};

use super::call_data::key_of;
use super::hold::Hold;
use super::relation::NAMESPACE;
use super::sample::{child, put};
use super::visit::Visit;
use crate::instant::format_instant;
use crate::wit::{Deletion, Eviction, MergePatch, Mutation, ObjectRef};
use crate::{HOLD_PREFIX, Proposal};

/// The grace period of a Pod without one of its own, in seconds.
const GRACE_SECONDS: u32 = 30;

impl Visit {
    /// Returns the next visit, after the host has applied `proposal`. It has
    /// the stored extras, and the mutations that this kit supports. The kit
    /// skips tasks, drains and events. A Pod that was evicted or deleted still
    /// exists and is terminating. Remove it with [`Visit::gone`], and let time
    /// pass with [`Visit::now_ms`].
    pub fn after(&self, proposal: &Proposal) -> Self {
        let mut next = self.clone();
        next.target.note_start(&next.live);
        let proposal = &proposal.0;
        proposal.remove_extra.iter().for_each(|key| drop(next.target.extras.remove(key)));
        next.target.extras.extend(proposal.set_extra.iter().cloned());
        proposal.mutations.iter().for_each(|mutation| next.make(mutation));
        next.target.call_try = 1;
        next
    }

    /// Removes the target's object.
    pub fn gone(mut self) -> Self {
        self.target.note_start(&self.live);
        if let Some(object) = self.target.object.take() {
            let key = key_of(&object);
            self.watched.retain(|other| key_of(other) != key);
            self.live.retain(|other| key_of(other) != key);
        }
        self
    }

    fn make(&mut self, mutation: &Mutation) {
        match mutation {
            Mutation::Metadata(change) => {
                let own = self.target.object.as_ref().is_some_and(|target| names(&change.object, target));
                let change = crate::wit::MetadataChange { keep: change.keep || !own, ..change.clone() };
                let job = self.job.uid.clone();
                self.edit(&change.object, |object| {
                    Hold::of(object, &format!("{HOLD_PREFIX}{job}"), change.keep).make(&change, object)
                });
            }
            Mutation::Schedulable(change) => {
                let annotation = format!("{HOLD_PREFIX}{}", self.job.uid);
                self.edit(&ObjectRef::new("v1", "Node", None, &change.node), |object| {
                    Hold::of(object, &annotation, false).schedulable(change.schedulable, object)
                });
            }
            Mutation::Taint(taint) => {
                let annotation = format!("{HOLD_PREFIX}{}", self.job.uid);
                self.edit(&ObjectRef::new("v1", "Node", None, &taint.node), |object| {
                    Hold::of(object, &annotation, false).taint(taint, object)
                });
            }
            Mutation::Create(text) => self.create(text),
            Mutation::Patch(MergePatch { object, patch, .. }) => {
                let patch = serde_json::from_str(patch).unwrap_or_default();
                self.edit(object, |object| merge(object, &patch));
            }
            Mutation::Evict(Eviction { pod, grace_period_seconds }) => self.ask_to_go(pod, *grace_period_seconds),
            Mutation::Delete(Deletion { object, grace_period_seconds, .. }) => {
                self.ask_to_go(object, *grace_period_seconds);
            }
            _ => {}
        }
    }

    /// Changes an object in all places of the visit, and raises its resource
    /// version.
    fn edit(&mut self, named: &ObjectRef, change: impl Fn(&mut Value)) {
        let all = self.watched.iter_mut().chain(&mut self.live).chain(&mut self.target.object);
        for object in all.filter(|object| names(named, object)) {
            change(object);
            let version = object.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default();
            let next = version.parse::<u64>().unwrap_or_default().saturating_add(1);
            put(child(object, &["metadata"]), "resourceVersion", json!(next.to_string()));
        }
    }

    /// Adds an object with the fields that the host and the API server set,
    /// unless an object of its name exists.
    fn create(&mut self, text: &str) {
        let Ok(mut object) = serde_json::from_str::<Value>(text) else { return };
        let name = key_of(&object).name;
        let metadata = child(&mut object, &["metadata"]);
        put(metadata, "namespace", json!(NAMESPACE));
        put(metadata, "uid", json!(format!("uid-of-{name}")));
        put(metadata, "resourceVersion", json!("1"));
        put(metadata, "creationTimestamp", json!(format_instant(self.job.now_ms)));
        let owner = json!({"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob", "name": "job",
            "uid": self.job.uid, "controller": true});
        put(metadata, "ownerReferences", json!([owner]));
        let key = key_of(&object);
        if self.live.iter().all(|other| key_of(other) != key) {
            self.watched.push(object.clone());
            self.live.push(object);
        }
    }

    /// Deletes an object. A Pod gets its grace period. Any other object is
    /// removed at once, unless it has a finalizer.
    fn ask_to_go(&mut self, named: &ObjectRef, grace_seconds: Option<u32>) {
        let now = self.job.now_ms;
        let stays = |object: &Value| {
            let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
            named.kind == "Pod" || finalizers.is_some_and(|list| !list.is_empty())
        };
        self.watched.retain(|object| !names(named, object) || stays(object));
        self.live.retain(|object| !names(named, object) || stays(object));
        let own = grace_seconds.filter(|_| named.kind == "Pod");
        self.edit(named, |object| {
            let of_pod = object.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_u64);
            let default = if named.kind == "Pod" { of_pod.unwrap_or(GRACE_SECONDS.into()) } else { 0 };
            let grace = own.map_or(default, u64::from);
            let metadata = child(object, &["metadata"]);
            if metadata.get("deletionTimestamp").is_none() {
                put(
                    metadata,
                    "deletionTimestamp",
                    json!(format_instant(now.saturating_add(grace.saturating_mul(1000)))),
                );
                put(metadata, "deletionGracePeriodSeconds", json!(grace));
            }
        });
        if self.target.object.as_ref().is_some_and(|target| names(named, target)) {
            self.target.extras.entry(EVICTED_AT.to_owned()).or_insert_with(|| format_instant(now));
        }
    }
}

/// Returns true if a reference means this object.
fn names(named: &ObjectRef, object: &Value) -> bool {
    let key = key_of(object);
    let uid = object.pointer("/metadata/uid").and_then(Value::as_str);
    key.kind.api_version == named.api_version
        && key.kind.kind == named.kind
        && key.namespace == named.namespace
        && key.name == named.name
        && named.uid.as_deref().is_none_or(|wanted| Some(wanted) == uid)
}

/// Applies a JSON Merge Patch (RFC 7396).
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else { return };
    for (key, value) in fields {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.as_str()).or_insert(Value::Null), value);
        }
    }
}
