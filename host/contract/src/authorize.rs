//! The only check that authorizes proposals.
//!
//! [`authorize`] takes a proposal, the manifest, the grant and the target. It returns nothing, or the reason why it refuses the whole
//! proposal. Every mutation of every contract version passes this check. The check may not change a proposal.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use thiserror::Error;

use crate::extras;
use crate::grant::{Grant, TaskRule, Verb, WriteRule, matches};
use crate::manifest::Manifest;
use crate::marks::CORDON;
use crate::names::{is_api_version, is_dns_label, is_kind, is_label_value, is_qualified_name, is_subdomain};
use crate::object_key::{Kind, ObjectKey, Owner};
use crate::proposal::{MetadataChange, Mutation, ObjectRef, Proposal, TaintChange, TaskRequest};
use crate::sighting::Sighting;
use crate::task::{COMMITS, MAX_TASKS, RunOnNode, Task, plugin_folder};

/// The most mutations in one proposal. Replace proposes one mutation. A plugin that needs more mutations gets further visits.
pub const MAX_MUTATIONS: usize = 64;
/// The most events in one proposal.
pub const MAX_EVENTS: usize = 16;
/// The most bytes of all extras of a target, counting keys and values. The job's status stores the extras.
pub const MAX_EXTRA_BYTES: usize = 1024;

/// The domains of keys that only the host sets: its own domain, which has the holds, and the domain of the pod lifecycle that it drives.
const HOST_DOMAINS: [&str; 2] = ["oarlock.dev", "podopslifecycle.kusionstack.io"];
/// The domain of taints that show the condition of a node. The controllers of nodes add and remove these taints.
const NODE_DOMAIN: &str = "node.kubernetes.io/";
/// The effects of a taint on pods.
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
/// The group and kind of a job.
const JOB: (&str, &str) = ("apps.kusionstack.io/", "OperationJob");
/// The group of the other kinds of the host, including grants.
const HOST_GROUP: &str = "oarlock.dev/";

/// A refusal of a proposal.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{sentence}")]
pub struct Denied {
    /// The refused mutation and the change that would allow it.
    pub sentence: String,
}

/// The facts against which the host checks a proposal.
#[derive(Clone, Copy)]
pub struct Authority<'a> {
    /// The requests of the plugin.
    pub manifest: &'a Manifest,
    /// The grant of the plugin.
    pub grant: &'a Grant,
    /// The namespace of the job.
    pub namespace: &'a str,
    /// The UID of the job.
    pub job_uid: &'a str,
    /// The target.
    pub target: &'a ObjectKey,
    /// The recorded UID of the target, or `None` if it never had a UID.
    pub target_uid: Option<&'a str>,
    /// The extras that are stored for the target.
    pub extras: &'a BTreeMap<String, String>,
    /// Returns the owners of an object, as far as the host knows them.
    pub seen: &'a dyn Fn(&ObjectKey) -> Sighting<Vec<Owner>>,
}

/// Allows all of `proposal` or nothing. One refused mutation refuses the whole proposal.
pub fn authorize(proposal: &Proposal, authority: &Authority<'_>) -> Result<(), Denied> {
    if !proposal.mutations.is_empty() && !authority.grant.allows_namespace(authority.namespace) {
        return denied(format!(
            "plugin {} is not granted namespace {}: add it to `namespaces` of its grant",
            authority.manifest.name, authority.namespace
        ));
    }
    if proposal.mutations.len() > MAX_MUTATIONS {
        return denied(format!(
            "{} mutations in one proposal; at most {MAX_MUTATIONS} are taken",
            proposal.mutations.len()
        ));
    }
    if proposal.events.len() > MAX_EVENTS {
        return denied(format!("{} events in one proposal; at most {MAX_EVENTS} are taken", proposal.events.len()));
    }
    proposal.mutations.iter().try_for_each(|mutation| authority.mutation(mutation))?;
    check_tasks(proposal, authority.extras)?;
    check_extras(proposal, authority.extras)
}

fn denied(sentence: String) -> Result<(), Denied> {
    Err(Denied { sentence })
}

impl Authority<'_> {
    fn mutation(&self, mutation: &Mutation) -> Result<(), Denied> {
        match mutation {
            Mutation::Metadata(change) => self.metadata(change),
            Mutation::Create(document) => self.create(document),
            Mutation::Patch { object, subresource, patch } => self.patch(object, subresource.as_deref(), patch),
            Mutation::Evict { pod, grace_seconds } => {
                if pod.key.kind != Kind::pod() {
                    return denied(format!("evict of {}: only pods can be evicted", show(&pod.key)));
                }
                self.object(Verb::Evict, pod)?;
                self.grace(Verb::Evict, &pod.key, *grace_seconds)
            }
            Mutation::Delete { object, propagation, grace_seconds } => {
                let words = [None, Some("Background"), Some("Foreground"), Some("Orphan")];
                if !words.contains(&propagation.as_deref()) {
                    return denied(format!("delete of {}: unknown propagation", show(&object.key)));
                }
                self.object(Verb::Delete, object)?;
                let of_pod = grace_seconds.filter(|_| object.key.kind == Kind::pod());
                self.grace(Verb::Delete, &object.key, of_pod)
            }
            Mutation::Schedulable { node, .. } => self.node(Verb::Schedulable, node),
            Mutation::Taint(taint) => self.taint(taint),
            Mutation::Drain(drain) => {
                self.node(Verb::Drain, &drain.node)?;
                self.grace(Verb::Drain, self.target, drain.grace_seconds)
            }
            Mutation::Task(task) => self.task(task),
            Mutation::Other { verb } => denied(format!("this host does not carry out `{}`", printable(verb))),
        }
    }

    /// Refuses a grace period of pods that is shorter than the grant allows. With no grace period, a new pod of the same name may run next
    /// to processes of the old pod that have not ended.
    fn grace(&self, verb: Verb, key: &ObjectKey, seconds: Option<u32>) -> Result<(), Denied> {
        let least = self.grant.least_grace_seconds();
        match seconds.filter(|seconds| *seconds < least) {
            Some(seconds) => denied(format!(
                "{} of {}: a grace period of {seconds} s is shorter than the {least} s that are granted to plugin {}; ask for \
                 more, or lower `minGracePeriodSeconds` of its grant",
                verb.word(),
                show(key),
                self.manifest.name
            )),
            None => Ok(()),
        }
    }

    /// Allows changes that undo themselves only on the target, because a hold ends when its target is released.
    fn node(&self, verb: Verb, name: &str) -> Result<(), Denied> {
        let key = ObjectKey::node(name);
        if key != *self.target {
            return denied(format!("{} of {}: the target is {}", verb.word(), show(&key), show(self.target)));
        }
        self.object(verb, &ObjectRef { key, uid: None })
    }

    /// Allows a task that the manifest requests and the grant covers, on a target of a suitable kind.
    fn task(&self, request: &TaskRequest) -> Result<(), Denied> {
        let (name, kind) = (printable(&request.name), printable(&request.kind));
        self.both_tasks(&name, &TaskRule::bare(&kind))?;
        let task = match request.task() {
            Ok(task) => task,
            Err(why) => return denied(format!("task {name}: {}", printable_line(&why))),
        };
        let place = task.target();
        if self.target.kind != place {
            let places = if place == Kind::pod() { "for pods" } else { "on nodes" };
            return denied(format!("task {name}: {kind} is done {places}, and the target is {}", show(self.target)));
        }
        if let Err(why) = self.place_of(&task) {
            return denied(format!("task {name}: {why}"));
        }
        self.both_tasks(&name, &TaskRule::needed_by(&task, &kind))
    }

    /// Checks that a task writes only into its folder of the registry. The folder of a name shows who chose the image.
    fn place_of(&self, task: &Task) -> Result<(), String> {
        let namespace = self.target.namespace.as_deref().unwrap_or_default();
        let (target, folder, what) = match task {
            // A user who may run a pod decides what the commit contains. A separate folder distinguishes it from images that a registry
            // served.
            Task::RunOnNode(RunOnNode { commit: Some(commit), .. }) => {
                (&commit.target, format!("{COMMITS}{namespace}/"), "commit")
            }
            Task::CopyImage(copy) => (&copy.target, plugin_folder(&self.manifest.name, namespace), "copy"),
            _ => return Ok(()),
        };
        match target.starts_with(&folder) {
            true => Ok(()),
            false => Err(format!("the `target` {} of a {what} is not below {folder}", printable(target))),
        }
    }

    /// Checks that the needs of a task are both requested and granted. The message names the missing line.
    fn both_tasks(&self, name: &str, needed: &TaskRule) -> Result<(), Denied> {
        match needed.missing(&self.manifest.name, [&self.manifest.tasks, &self.grant.tasks]) {
            Some(why) => denied(format!("task {name}: {why}")),
            None => Ok(()),
        }
    }

    fn taint(&self, taint: &TaintChange) -> Result<(), Denied> {
        let TaintChange { node, key, value, effect, present: _ } = taint;
        self.node(Verb::Taint, node)?;
        if !is_qualified_name(key) {
            return denied(format!("taint {:?} is not a qualified name", printable(key)));
        }
        if key.starts_with(NODE_DOMAIN) {
            return denied(format!("taint {key} belongs to the controllers of nodes"));
        }
        if !is_label_value(value) {
            return denied(format!("taint {key}: {:?} is not a value of a taint", printable(value)));
        }
        if !EFFECTS.contains(&effect.as_str()) {
            let effect = printable(effect);
            return denied(format!("taint {key}: {effect:?} is no effect; it is one of {}", EFFECTS.join(", ")));
        }
        Ok(())
    }

    fn metadata(&self, change: &MetadataChange) -> Result<(), Denied> {
        self.object(Verb::Metadata, &change.object)?;
        let kind = &change.object.key.kind;
        let set = |pairs: &[(String, String)]| pairs.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>();
        let parts: [(&str, Vec<String>, Keys); 3] = [
            ("label", [set(&change.set_labels), change.remove_labels.clone()].concat(), |rule| &rule.labels),
            ("annotation", [set(&change.set_annotations), change.remove_annotations.clone()].concat(), |rule| {
                &rule.annotations
            }),
            ("finalizer", [change.add_finalizers.clone(), change.remove_finalizers.clone()].concat(), |rule| {
                &rule.finalizers
            }),
        ];
        for (what, keys, of) in parts {
            for key in keys {
                self.key(kind, what, &key, of)?;
            }
        }
        match change.set_labels.iter().find(|(_, value)| !is_label_value(value)) {
            Some((key, value)) => denied(format!("label {key}: {:?} is not a label value", printable(value))),
            None => Ok(()),
        }
    }

    fn key(&self, kind: &Kind, what: &str, key: &str, of: Keys) -> Result<(), Denied> {
        if !is_qualified_name(key) {
            return denied(format!("{what} {:?} is not a qualified name", printable(key)));
        }
        if is_host_key(key) {
            return denied(format!("{what} {key} belongs to the host"));
        }
        let has = |rules: &[WriteRule]| {
            let mut rules = rules.iter().filter(|rule| rule.concerns(Verb::Metadata, kind));
            rules.any(|rule| of(rule).iter().any(|pattern| matches(pattern, key)))
        };
        self.both(has, || format!("metadata of {}: {what} {key}", kind.kind))
    }

    fn create(&self, document: &Value) -> Result<(), Denied> {
        let text = |pointer| document.pointer(pointer).and_then(Value::as_str);
        let (Some(api_version), Some(kind)) = (text("/apiVersion"), text("/kind")) else {
            return denied("create: the object has no `apiVersion` or no `kind`".to_owned());
        };
        let Some(name) = text("/metadata/name") else {
            return denied(format!("create of {}: the object has no name", printable(kind)));
        };
        // Only the host sets the owner and the identity.
        for field in ["generateName", "ownerReferences", "uid", "resourceVersion", "finalizers", "managedFields"] {
            if document.pointer(&format!("/metadata/{field}")).is_some() {
                return denied(format!("create of {}: leave out metadata.{field}", printable(kind)));
            }
        }
        let keys =
            ["labels", "annotations"].into_iter().filter_map(|map| document.pointer(&format!("/metadata/{map}")));
        for key in keys.filter_map(Value::as_object).flat_map(|map| map.keys()) {
            if is_host_key(key) {
                return denied(format!("create of {}: {key} belongs to the host", printable(kind)));
            }
        }
        let namespace = text("/metadata/namespace").map(str::to_owned);
        let key = ObjectKey { kind: Kind::new(api_version, kind), namespace, name: name.to_owned() };
        if key == *self.target {
            return denied(format!("create of {}: that is the target", show(&key)));
        }
        self.object(Verb::Create, &ObjectRef { key, uid: None })
    }

    fn patch(&self, object: &ObjectRef, subresource: Option<&str>, patch: &Value) -> Result<(), Denied> {
        self.object(Verb::Patch, object)?;
        let kind = &object.key.kind;
        let Some(fields) = patch.as_object() else {
            return denied(format!("patch of {}: the patch is not a JSON object", show(&object.key)));
        };
        if let Some(field) = ["metadata", "apiVersion", "kind"].into_iter().find(|field| fields.contains_key(*field)) {
            return denied(format!(
                "patch of {}: it may not change `{field}`; use a metadata change",
                show(&object.key)
            ));
        }
        let Some(subresource) = subresource else { return Ok(()) };
        if !is_dns_label(subresource) {
            return denied(format!("patch: {:?} is not a subresource", printable(subresource)));
        }
        let has = |rules: &[WriteRule]| {
            let mut rules = rules.iter().filter(|rule| rule.concerns(Verb::Patch, kind));
            rules.any(|rule| rule.subresources.iter().any(|pattern| matches(pattern, subresource)))
        };
        self.both(has, || format!("patch of {}: subresource {subresource}", kind.kind))
    }

    /// Checks that `verb` is allowed on this kind, and that the job may change this object.
    fn object(&self, verb: Verb, object: &ObjectRef) -> Result<(), Denied> {
        let key = &object.key;
        if !is_api_version(&key.kind.api_version) || !is_kind(&key.kind.kind) {
            let (api_version, kind) = (printable(&key.kind.api_version), printable(&key.kind.kind));
            return denied(format!("{}: {api_version:?} {kind:?} is not a kind", verb.word()));
        }
        if !is_subdomain(&key.name) {
            return denied(format!("{}: {:?} is not the name of an object", verb.word(), printable(&key.name)));
        }
        if key.kind.api_version.starts_with(HOST_GROUP) || is_job(&key.kind) {
            return denied(format!("{} of {}: objects of this kind belong to the host", verb.word(), show(key)));
        }
        self.both(
            |rules| rules.iter().any(|rule| rule.concerns(verb, &key.kind)),
            || format!("{} of {} {}", verb.word(), key.kind.api_version, key.kind.kind),
        )?;
        if key.namespace.as_deref().is_some_and(|namespace| namespace != self.namespace) {
            return denied(format!("{} of {}: the job is in namespace {}", verb.word(), show(key), self.namespace));
        }
        if verb == Verb::Create { Ok(()) } else { self.whose(verb, object) }
    }

    /// Allows only the target among the objects of the target's kind. Among objects of other kinds, refuses an object that another job made
    /// or that the host does not know.
    fn whose(&self, verb: Verb, object: &ObjectRef) -> Result<(), Denied> {
        let key = &object.key;
        if key.kind == self.target.kind {
            if key != self.target {
                return denied(format!("{} of {}: the target is {}", verb.word(), show(key), show(self.target)));
            }
            let other = object.uid.as_deref().is_some_and(|uid| self.target_uid.is_none_or(|recorded| recorded != uid));
            if other {
                return denied(format!("{} of {}: it has another UID than the target", verb.word(), show(key)));
            }
            return Ok(());
        }
        let owners = match (self.seen)(key) {
            Sighting::Absent => return Ok(()),
            Sighting::Unread => {
                let sentence =
                    format!("{} of {}: the plugin has not seen it; read it with `get` first", verb.word(), show(key));
                return denied(sentence);
            }
            Sighting::Found(owners) => owners,
        };
        match owners.iter().find(|owner| is_job(&owner.kind) && owner.uid != self.job_uid) {
            Some(owner) => denied(format!("{} of {}: it belongs to job {}", verb.word(), show(key), owner.name)),
            None => Ok(()),
        }
    }

    /// Checks that the manifest requests a right and that the grant gives it. The message names the missing part.
    fn both(&self, has: impl Fn(&[WriteRule]) -> bool, what: impl Fn() -> String) -> Result<(), Denied> {
        let name = &self.manifest.name;
        if !has(&self.manifest.writes) {
            return denied(format!(
                "{}: the manifest of plugin {name} does not ask for it; add it to its `writes`",
                what()
            ));
        }
        if !has(&self.grant.writes) {
            return denied(format!("{}: not granted to plugin {name}; add it to `writes` of its grant", what()));
        }
        Ok(())
    }
}

fn is_job(kind: &Kind) -> bool {
    kind.api_version.starts_with(JOB.0) && kind.kind == JOB.1
}

fn is_host_key(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else { return false };
    domain == HOST_DOMAINS[0]
        || HOST_DOMAINS.iter().any(|own| domain.strip_suffix(own).is_some_and(|sub| sub.ends_with('.')))
}

/// Returns true if a plugin with one of `grants` may have let the host put this mark (`marks.rs`) on an object of this kind.
#[must_use]
pub fn may_be_put(mark: &str, kind: &Kind, grants: &[Grant]) -> bool {
    let rules = || grants.iter().flat_map(|grant| &grant.writes);
    let granted = |verb: Verb| rules().any(|rule| rule.concerns(verb, kind));
    let by_key = |of: Keys, key: &str| {
        let names = |rule: &WriteRule| of(rule).iter().any(|pattern| matches(pattern, key));
        !is_host_key(key) && rules().any(|rule| rule.concerns(Verb::Metadata, kind) && names(rule))
    };
    match mark.split_once(':') {
        None => mark == CORDON && (granted(Verb::Schedulable) || granted(Verb::Drain)),
        Some(("label", key)) => by_key(|rule| &rule.labels, key),
        Some(("annotation", key)) => by_key(|rule| &rule.annotations, key),
        Some(("finalizer", name)) => by_key(|rule| &rule.finalizers, name),
        Some(("taint", taint)) => !taint.starts_with(NODE_DOMAIN) && granted(Verb::Taint),
        Some(_) => false,
    }
}

type Keys = fn(&WriteRule) -> &Vec<String>;

fn check_extras(proposal: &Proposal, stored: &BTreeMap<String, String>) -> Result<(), Denied> {
    let touched = proposal.remove_extra.iter().chain(proposal.set_extra.iter().map(|(key, _)| key));
    for key in touched {
        if extras::is_host(key) {
            return denied(format!("extra {key} belongs to the host"));
        }
        if key.is_empty() || key.len() > 63 || !key.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./".contains(&b)) {
            return denied(format!(
                "extra {:?}: a key has at most 63 letters, digits, `-`, `_`, `.` and `/`",
                printable(key)
            ));
        }
    }
    if let Some((key, _)) = proposal.set_extra.iter().find(|(_, value)| value.chars().any(char::is_control)) {
        return denied(format!("extra {key}: its value has control characters"));
    }
    if proposal.set_extra.is_empty() {
        return Ok(());
    }
    let mut after: BTreeMap<&str, &str> = stored.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    for key in &proposal.remove_extra {
        after.remove(key.as_str());
    }
    after.extend(proposal.set_extra.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    let own = after.iter().filter(|(key, _)| !extras::is_host(key));
    let bytes: usize = own.map(|(key, value)| key.len() + value.len()).sum();
    if bytes > MAX_EXTRA_BYTES {
        return denied(format!(
            "the extras of the target would have {bytes} bytes; at most {MAX_EXTRA_BYTES} are stored"
        ));
    }
    Ok(())
}

fn show(key: &ObjectKey) -> String {
    format!("{} {}", printable(&key.kind.kind), printable(&key.name))
}

/// Limits the tasks of a target, because the status stores the state of each task with the target.
fn check_tasks(proposal: &Proposal, stored: &BTreeMap<String, String>) -> Result<(), Denied> {
    let begun = stored.keys().filter_map(|key| key.strip_prefix(extras::TASK));
    let asked = proposal.mutations.iter().filter_map(|mutation| match mutation {
        Mutation::Task(task) => Some(task.name.as_str()),
        _ => None,
    });
    let tasks = begun.chain(asked).collect::<BTreeSet<_>>().len();
    if tasks > MAX_TASKS {
        return denied(format!("the target would have {tasks} tasks; it may have {MAX_TASKS}"));
    }
    Ok(())
}

/// Returns a message that may quote a plugin in a form that is safe to show.
pub fn printable_line(text: &str) -> String {
    text.chars().take(200).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Returns the text of a plugin in a form that is safe to show: without control characters and shortened.
pub fn printable(text: &str) -> String {
    text.chars().take(80).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
#[path = "authorize_tests.rs"]
mod tests;
