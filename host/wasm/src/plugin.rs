//! A plugin that serves: its code, its grant and the registration that `setup` returned. It never changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use oarlock_core::cache::store::{Indexed, NODE_NAME};
use oarlock_core::object::api_object::Kind;
use oarlock_core::object::task_pod::JOB_UID;
use oarlock_core::plugin::lookup::PluginInfo;
use oarlock_core::plugin::manifest::{Manifest, TargetKind};
use oarlock_core::plugin::proposal::RelationKey;
use oarlock_core::plugin::trap_budget::TrapBudget;
use parking_lot::Mutex;

use crate::run::bindings::ActionPre;
use crate::run::guest::Guest;
use crate::run::session::Session;
use crate::run::warm_instance::CallContext;

/// A vetted component. The host keeps no more of a component without a grant.
pub(crate) struct Vetted {
    pub digest: String,
    pub manifest: Arc<Manifest>,
}

/// A component that can be instantiated. It does not depend on grants.
pub(crate) struct Compiled {
    pub digest: String,
    pub manifest: Arc<Manifest>,
    pub pre: ActionPre<Guest>,
}

/// A plugin that serves.
pub(crate) struct Plugin {
    pub(crate) compiled: Arc<Compiled>,
    pub(crate) info: Arc<PluginInfo>,
    pub(crate) context: Arc<CallContext>,
    /// The visits that trapped lately. A new grant begins anew.
    pub(crate) traps: Arc<Mutex<TrapBudget>>,
}

/// The fields and indexes of one kind that plugins declare.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclaredKind {
    /// The JSON Pointers of the fields to keep.
    pub fields: BTreeSet<String>,
    /// The labels and fields by which relations match.
    pub indexed: Indexed,
    /// True if the kind is a target or in a relation, so that the host must watch it. The host reads other kinds live, by name.
    pub watched: bool,
}

/// The kinds that plugins declare.
pub type Declared = BTreeMap<Kind, DeclaredKind>;

impl Plugin {
    /// Returns the manifest of the plugin.
    pub(crate) fn manifest(&self) -> &Arc<Manifest> {
        &self.compiled.manifest
    }

    /// Returns the digest of the plugin's file, `sha256:...`.
    pub(crate) fn digest(&self) -> &str {
        &self.compiled.digest
    }

    /// Begins calls for one job in one round.
    pub(crate) fn session(&self) -> Session {
        Session::new(self.context.clone())
    }

    /// Returns the kinds that the plugin declares.
    pub(crate) fn declared(&self) -> Declared {
        let mut declared = Declared::new();
        for rule in &self.manifest().reads {
            let kind = declared.entry(Kind::new(&rule.api_version, &rule.kind)).or_default();
            kind.fields.extend(rule.fields.iter().map(|field| field.trim_end_matches("/*").to_owned()));
        }
        for target in &self.manifest().target {
            declared.entry(target.kind()).or_default().watched = true;
        }
        if self.manifest().drains() {
            let pods = declared.entry(Kind::pod()).or_default();
            pods.watched = true;
            pods.indexed.fields.insert(NODE_NAME.to_owned());
        }
        if self.manifest().tasks.iter().any(|task| !task.is_of_host()) {
            // The host finds the pods of tasks by their job.
            let pods = declared.entry(Kind::pod()).or_default();
            pods.watched = true;
            pods.indexed.labels.insert(JOB_UID.to_owned());
            if self.manifest().takes(TargetKind::Pod) {
                // A task for a pod runs on the node of that pod.
                pods.fields.insert(NODE_NAME.to_owned());
            }
        }
        for relation in &self.info.registration.relations {
            let kind = declared.entry(relation.kind.clone()).or_default();
            kind.watched = true;
            match &relation.by {
                RelationKey::Label(label) => drop(kind.indexed.labels.insert(label.clone())),
                RelationKey::Field(pointer) => {
                    kind.fields.insert(pointer.clone());
                    kind.indexed.fields.insert(pointer.clone());
                }
                _ => {}
            }
        }
        declared
    }
}

/// Returns the union of the declarations of these plugins.
pub(crate) fn union<'a>(plugins: impl Iterator<Item = &'a Arc<Plugin>>) -> Declared {
    let mut all = Declared::new();
    for (kind, declared) in plugins.flat_map(|plugin| plugin.declared()) {
        let slot = all.entry(kind).or_default();
        slot.fields.extend(declared.fields);
        slot.indexed.labels.extend(declared.indexed.labels);
        slot.indexed.fields.extend(declared.indexed.fields);
        slot.watched |= declared.watched;
    }
    all
}
