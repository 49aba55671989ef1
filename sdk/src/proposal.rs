//! Builds proposals. A plugin only proposes changes: the host makes them, with
//! the rights that an admin granted.

use crate::{Object, wit};

/// The extra that says what a target waits for. See [`Proposal::waits_for`].
pub const WAITS_FOR: &str = "WaitsFor";

/// The types of the contract, for fields that the builders do not cover.
pub use crate::wit::{
    Deletion, Event, Eviction, MergePatch, MetadataChange, Mutation, NodeDrain, NodeSchedulable, NodeTaint as Taint,
    ObjectRef, Propagation, Severity, TaskRequest,
};

/// The changes that a plugin wants. An empty proposal is valid.
///
/// The host checks the whole proposal and stores the extras durably. Only then
/// it makes the mutations, in order, up to the first one that fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal(pub(crate) wit::Proposal);

impl Default for Proposal {
    fn default() -> Self {
        Self::new()
    }
}

impl Proposal {
    /// Returns an empty proposal.
    #[must_use]
    pub fn new() -> Self {
        let wit = wit::Proposal {
            mutations: Vec::new(),
            set_extra: Vec::new(),
            remove_extra: Vec::new(),
            events: Vec::new(),
        };
        Self(wit)
    }

    /// Changes labels, annotations or finalizers of one object. Adds nothing if
    /// the change is empty.
    #[must_use]
    pub fn change(self, change: Change) -> Self {
        if change.is_empty() { self } else { self.mutation(Mutation::Metadata(change.0)) }
    }

    /// Evicts a Pod. `grace_period_seconds` overrides the grace period of the
    /// Pod.
    #[must_use]
    pub fn evict(self, pod: impl Into<ObjectRef>, grace_period_seconds: Option<u32>) -> Self {
        self.mutation(Mutation::Evict(Eviction { pod: pod.into(), grace_period_seconds }))
    }

    /// Deletes an object.
    #[must_use]
    pub fn delete(self, object: impl Into<ObjectRef>) -> Self {
        let object = object.into();
        self.mutation(Mutation::Delete(Deletion { object, grace_period_seconds: None, propagation: None }))
    }

    /// Creates the object in this JSON text, unless it exists.
    #[must_use]
    pub fn create(self, json: impl Into<String>) -> Self {
        self.mutation(Mutation::Create(json.into()))
    }

    /// Changes an object by a JSON Merge Patch.
    #[must_use]
    pub fn patch(self, object: impl Into<ObjectRef>, patch: impl Into<String>) -> Self {
        let (object, patch) = (object.into(), patch.into());
        self.mutation(Mutation::Patch(wit::MergePatch { object, subresource: None, patch }))
    }

    /// Cordons a Node: new Pods cannot be scheduled there.
    #[must_use]
    pub fn cordon(self, node: impl Into<String>) -> Self {
        self.mutation(Mutation::Schedulable(NodeSchedulable { node: node.into(), schedulable: false }))
    }

    /// Uncordons a Node: new Pods can be scheduled there again.
    #[must_use]
    pub fn uncordon(self, node: impl Into<String>) -> Self {
        self.mutation(Mutation::Schedulable(NodeSchedulable { node: node.into(), schedulable: true }))
    }

    /// Adds a taint to a Node, or removes it.
    #[must_use]
    pub fn taint(self, taint: Taint) -> Self {
        self.mutation(Mutation::Taint(taint))
    }

    /// Cordons a Node and evicts its Pods. It spares Pods that would lose data,
    /// and Pods that no controller would replace.
    #[must_use]
    pub fn drain(self, node: impl Into<String>) -> Self {
        let node = node.into();
        let drain = NodeDrain { node, grace_period_seconds: None, delete_empty_dir_data: false, force: false };
        self.mutation(Mutation::Drain(drain))
    }

    /// Starts a task, unless a task of its name exists.
    #[must_use]
    pub fn task(self, task: TaskRequest) -> Self {
        self.mutation(Mutation::Task(task))
    }

    /// Adds any mutation.
    #[must_use]
    pub fn mutation(mut self, mutation: Mutation) -> Self {
        self.0.mutations.push(mutation);
        self
    }

    /// Stores a value for this target. The value has to state an observation or
    /// an intent. It must not state that a mutation of the same proposal was
    /// made.
    #[must_use]
    pub fn extra(mut self, key: &str, value: impl Into<String>) -> Self {
        self.0.set_extra.push((key.to_owned(), value.into()));
        self
    }

    /// Stores what the target waits for: a CamelCase word for a column, and a
    /// sentence. The sentence is cut to 200 characters. People see it while the
    /// job is held back, and in the error after a timeout.
    /// [`Proposal::waits_no_more`] removes it.
    #[must_use]
    pub fn waits_for(self, word: &str, sentence: &str) -> Self {
        let sentence: String = sentence.chars().take(200).collect();
        self.extra(WAITS_FOR, format!("{word}: {sentence}"))
    }

    /// Removes the stored text about what the target waits for.
    #[must_use]
    pub fn waits_no_more(self) -> Self {
        self.remove_extra(WAITS_FOR)
    }

    /// Removes the value that is stored under a key.
    #[must_use]
    pub fn remove_extra(mut self, key: &str) -> Self {
        self.0.remove_extra.push(key.to_owned());
        self
    }

    /// Records an event on the job, for information.
    #[must_use]
    pub fn event(self, reason: &str, message: impl Into<String>) -> Self {
        self.record(Severity::Normal, reason, message.into())
    }

    /// Records an event on the job, as a warning.
    #[must_use]
    pub fn warning(self, reason: &str, message: impl Into<String>) -> Self {
        self.record(Severity::Warning, reason, message.into())
    }

    /// Returns the mutations so far, in order.
    #[must_use]
    pub fn mutations(&self) -> &[Mutation] {
        &self.0.mutations
    }

    /// Returns the events so far.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.0.events
    }

    /// Returns the proposal without its events, for tests of its changes only.
    #[must_use]
    pub fn without_events(mut self) -> Self {
        self.0.events.clear();
        self
    }

    fn record(mut self, severity: Severity, reason: &str, message: String) -> Self {
        self.0.events.push(Event { severity, reason: reason.to_owned(), message });
        self
    }
}

impl From<Proposal> for wit::Proposal {
    fn from(proposal: Proposal) -> Self {
        proposal.0
    }
}

/// Labels, annotations and finalizers to set and remove on one object, in one
/// write. Each mark that is set becomes a hold. The host removes holds when it
/// releases the target, unless the change has [`Change::keep`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "give it to `Proposal::change`"]
pub struct Change(MetadataChange);

impl Change {
    /// Begins an empty change of this object.
    pub fn of(object: impl Into<ObjectRef>) -> Self {
        Self(MetadataChange {
            object: object.into(),
            set_labels: Vec::new(),
            remove_labels: Vec::new(),
            set_annotations: Vec::new(),
            remove_annotations: Vec::new(),
            add_finalizers: Vec::new(),
            remove_finalizers: Vec::new(),
            keep: false,
        })
    }

    /// Sets a label, unless `object` already has it with this value. `object`
    /// is the object to change.
    pub fn ensure_label(self, object: &Object, key: &str, value: &str) -> Self {
        if object.label(key).as_deref() == Some(value) { self } else { self.set_label(key, value) }
    }

    /// Sets an annotation, unless `object` already has it with this value.
    /// `object` is the object to change.
    pub fn ensure_annotation(self, object: &Object, key: &str, value: &str) -> Self {
        if object.annotation(key).as_deref() == Some(value) { self } else { self.set_annotation(key, value) }
    }

    /// Adds a finalizer, unless `object` already has it. `object` is the object
    /// to change.
    pub fn ensure_finalizer(self, object: &Object, name: &str) -> Self {
        if object.has_finalizer(name) { self } else { self.add_finalizer(name) }
    }

    /// Returns true if nothing is set or removed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let MetadataChange { object: _, set_labels, remove_labels, set_annotations, .. } = &self.0;
        let MetadataChange { remove_annotations, add_finalizers, remove_finalizers, keep: _, .. } = &self.0;
        let set = set_labels.is_empty() && set_annotations.is_empty() && add_finalizers.is_empty();
        set && remove_labels.is_empty() && remove_annotations.is_empty() && remove_finalizers.is_empty()
    }

    /// Sets a label.
    pub fn set_label(mut self, key: &str, value: impl Into<String>) -> Self {
        self.0.set_labels.push((key.to_owned(), value.into()));
        self
    }

    /// Removes a label. If this job holds the label, this releases the hold.
    pub fn remove_label(mut self, key: &str) -> Self {
        self.0.remove_labels.push(key.to_owned());
        self
    }

    /// Sets an annotation.
    pub fn set_annotation(mut self, key: &str, value: impl Into<String>) -> Self {
        self.0.set_annotations.push((key.to_owned(), value.into()));
        self
    }

    /// Removes an annotation. If this job holds the annotation, this releases
    /// the hold.
    pub fn remove_annotation(mut self, key: &str) -> Self {
        self.0.remove_annotations.push(key.to_owned());
        self
    }

    /// Adds a finalizer.
    pub fn add_finalizer(mut self, name: &str) -> Self {
        self.0.add_finalizers.push(name.to_owned());
        self
    }

    /// Removes a finalizer. If this job holds the finalizer, this releases the
    /// hold.
    pub fn remove_finalizer(mut self, name: &str) -> Self {
        self.0.remove_finalizers.push(name.to_owned());
        self
    }

    /// Keeps the marks after the release, because they are the purpose of the
    /// action.
    pub fn keep(mut self) -> Self {
        self.0.keep = true;
        self
    }
}
