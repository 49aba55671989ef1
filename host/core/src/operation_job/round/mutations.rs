//! Proposals as requests: each mutation that would change something becomes a write with its preconditions.
//!
//! A mutation that is made already, or whose object is gone, becomes no write. The proposal was authorized before. A
//! change of metadata starts from the object as the earlier changes of its proposal leave it. A patch writes the lists
//! of holds and finalizers as a whole, so a patch that starts from an older view would undo the earlier changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::object::api_object::{Kind, Object, ObjectKey};
use crate::operation_job::holds;
use crate::operation_job::round::context::Target;
use crate::operation_job::round::visit::PlannedVisit;
use crate::operation_job::state::TargetState;
use crate::plugin::proposal::{MetadataChange, Mutation, ObjectRef, Proposal};
use crate::requests::writes::Write;

impl Target<'_> {
    /// Returns the writes that make the mutations of a proposal.
    pub(crate) fn writes(&self, planned: &PlannedVisit, proposal: &Proposal) -> Vec<Write> {
        let mut origin = self.origin(planned);
        let mut writes = Vec::new();
        for mutation in &proposal.mutations {
            let Some(write) = origin.write(mutation) else { continue };
            if let Mutation::Task(task) = mutation {
                writes.extend(self.make_script(task));
            }
            writes.push(write);
        }
        writes.extend(origin.without_lost_marks());
        writes
    }

    /// Returns the positions of the writes that make mutations of a plugin. The host makes tasks as itself, because their pods, scripts and
    /// objects in memory are its own.
    pub(crate) fn of_plugin(&self, writes: &[Write]) -> BTreeSet<usize> {
        let is_task = |write: &Write| {
            let object = write.object();
            object.kind == Kind::host_task() || object.namespace.as_ref() == Some(&self.round.tasks.namespace)
        };
        writes.iter().enumerate().filter(|(_, write)| !is_task(write)).map(|(position, _)| position).collect()
    }

    /// Returns the write of each mutation, in order; `None` for a mutation that changes nothing.
    pub(super) fn each_write<'m>(
        &self,
        planned: &PlannedVisit,
        mutations: impl IntoIterator<Item = &'m Mutation>,
    ) -> Vec<Option<Write>> {
        let mut origin = self.origin(planned);
        mutations.into_iter().map(|mutation| origin.write(mutation)).collect()
    }

    fn origin<'a>(&'a self, planned: &'a PlannedVisit) -> Origin<'a> {
        Origin { target: self, state: &planned.state, object: planned.object.as_ref(), changed: BTreeMap::new() }
    }
}

/// The views against which the host resolves mutations.
struct Origin<'a> {
    target: &'a Target<'a>,
    /// State of the target, before the extras that the proposal sets.
    state: &'a TargetState,
    /// The object of the target's recorded UID.
    object: Option<&'a Arc<Object>>,
    /// The objects as earlier changes of the proposal leave them, at the versions that were seen.
    changed: BTreeMap<ObjectKey, Arc<Object>>,
}

impl Origin<'_> {
    fn write(&mut self, mutation: &Mutation) -> Option<Write> {
        match mutation {
            Mutation::Metadata(change) => self.metadata(change),
            Mutation::Create(body) => self.create(body),
            Mutation::Patch { object, subresource, patch } => self.patch(object, subresource.as_deref(), patch),
            Mutation::Evict { pod, grace_seconds } => self.evict(pod, *grace_seconds),
            Mutation::Delete { object, grace_seconds, propagation } => {
                let seen = self.seen(object)?;
                if seen.terminating() {
                    return None;
                }
                // An invalidation must refuse a deletion of the target that is still under way.
                let own = object.key == self.target.key;
                Some(Write::Delete {
                    object: object.key.clone(),
                    uid: seen.uid.clone(),
                    resource_version: own.then(|| seen.resource_version.clone()),
                    grace_seconds: *grace_seconds,
                    propagation: propagation.clone(),
                })
            }
            Mutation::Schedulable { schedulable, .. } => {
                self.held(|own, job| holds::schedulable(own, *schedulable, job))
            }
            Mutation::Taint(change) => self.held(|own, job| holds::tainted(own, change, job)),
            // The evictions of the drain follow one by one, once the host sees the node cordoned.
            Mutation::Drain(_) => self.held(|own, job| holds::schedulable(own, false, job)),
            Mutation::Task(task) => self.target.begin_task(task, self.state),
            Mutation::Other { .. } => None,
        }
    }

    /// Returns the target's own object.
    fn own(&self) -> Option<Arc<Object>> {
        self.changed.get(&self.target.key).or(self.object).cloned()
    }

    /// Returns the write for a change of the target's own object that the release undoes.
    fn held(&mut self, change: impl FnOnce(&Object, &str) -> Option<(Value, Object)>) -> Option<Write> {
        let (body, outcome) = change(&*self.own()?, &self.target.round.job.uid)?;
        self.changed.insert(self.target.key.clone(), Arc::new(outcome));
        Some(Write::patch(&self.target.key, body))
    }

    /// Returns the write that drops marks which another client removed from a node. A mark that a client adds later
    /// then stays.
    fn without_lost_marks(&self) -> Option<Write> {
        let body = holds::give_up_lost_marks(&*self.own()?, &self.target.round.job.uid)?;
        Some(Write::patch(&self.target.key, body))
    }

    /// Returns the object that a reference names, as a watch or a live read of this round shows it. A namesake with
    /// another UID does not count.
    fn seen(&self, reference: &ObjectRef) -> Option<Arc<Object>> {
        let found = match self.changed.get(&reference.key) {
            Some(changed) => Some(changed.clone()),
            None if reference.key == self.target.key => self.object.cloned(),
            None => self.target.round.sighting(&reference.key).found(),
        };
        found.filter(|object| reference.uid.as_ref().is_none_or(|uid| *uid == object.uid))
    }

    fn metadata(&mut self, change: &MetadataChange) -> Option<Write> {
        let seen = self.seen(&change.object)?;
        // Only targets have holds: a job's changes of other objects stay.
        let keep = change.keep || change.object.key != self.target.key;
        let change = MetadataChange { keep, ..change.clone() };
        let (body, outcome) = holds::change(&seen, &change, &self.target.round.job.uid)?;
        self.changed.insert(change.object.key.clone(), Arc::new(outcome));
        Some(Write::patch(&change.object.key, body))
    }

    fn evict(&self, pod: &ObjectRef, grace_seconds: Option<u32>) -> Option<Write> {
        let seen = self.seen(pod).filter(|seen| !seen.terminating())?;
        Some(Write::Evict {
            pod: pod.key.clone(),
            uid: seen.uid.clone(),
            resource_version: Some(seen.resource_version.clone()),
            grace_seconds,
        })
    }

    fn patch(&self, object: &ObjectRef, subresource: Option<&str>, patch: &Value) -> Option<Write> {
        let seen = self.seen(object)?;
        let mut body = patch.clone();
        let fields = body.as_object_mut()?;
        let metadata = fields.entry("metadata").or_insert_with(|| json!({})).as_object_mut()?;
        metadata.insert("uid".into(), json!(seen.uid));
        // The API server does not check the UID in a patch of a custom resource's subresource.
        if subresource.is_some() {
            metadata.insert("resourceVersion".into(), json!(seen.resource_version));
        }
        Some(Write::Patch { object: object.key.clone(), subresource: subresource.map(str::to_owned), body })
    }

    fn create(&self, body: &Value) -> Option<Write> {
        let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str);
        let kind = Kind::new(text("/apiVersion")?, text("/kind")?);
        let name = text("/metadata/name")?.to_owned();
        let object = ObjectKey { kind, namespace: Some(self.target.round.job.key.namespace.clone()), name };
        let seen = self.target.round.sighting(&object).found();
        if seen.is_some_and(|seen| seen.owners.iter().any(|owner| owner.uid == self.target.round.job.uid)) {
            return None;
        }
        let mut body = body.clone();
        let metadata = body.get_mut("metadata")?.as_object_mut()?;
        metadata.insert("namespace".into(), json!(self.target.round.job.key.namespace));
        metadata.insert("ownerReferences".into(), json!([self.target.round.job.owner_reference()]));
        let labels = metadata.entry("labels").or_insert_with(|| json!({}));
        labels.as_object_mut()?.insert("oarlock.dev/job-uid".into(), json!(self.target.round.job.uid));
        Some(Write::Create { object, body, owner_uid: self.target.round.job.uid.clone() })
    }
}
