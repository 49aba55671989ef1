//! One plugin that serves: its code, its terms and what it asked for in `setup`.
//!
//! Takes a compiled component and a grant; yields waves of calls. May not change once it is made.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::cluster::object::Kind;
use oarlock_core::cluster::store::Indexed;
use oarlock_core::plugin::lookup::PluginInfo;
use oarlock_core::plugin::manifest::{Manifest, TargetKind};
use oarlock_core::plugin::proposal::RelationKey;

use crate::run::bindings::ActionPre;
use crate::run::engine::Engine;
use crate::run::guest::{Guest, Terms};
use crate::run::warm_instance::Setting;

/// A component that is ready to be instantiated, whatever it is granted.
pub(crate) struct Compiled {
    pub digest: String,
    pub manifest: Arc<Manifest>,
    pub pre: ActionPre<Guest>,
}

/// One plugin that serves.
pub(crate) struct Plugin {
    pub(crate) compiled: Arc<Compiled>,
    pub(crate) terms: Arc<Terms>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) info: Arc<PluginInfo>,
    pub(crate) wall_timeout: Option<Duration>,
}

/// What plugins want to see of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclaredKind {
    /// JSON Pointers of the fields to keep.
    pub fields: BTreeSet<String>,
    /// What relations match by.
    pub indexed: Indexed,
    /// Whether it is a target or in a relation, and so has to be watched. Others are read live, by name.
    pub watched: bool,
}

/// What plugins want to see.
pub type Declared = BTreeMap<Kind, DeclaredKind>;

impl Plugin {
    /// Its manifest.
    pub(crate) fn manifest(&self) -> &Arc<Manifest> {
        &self.compiled.manifest
    }

    /// `sha256:...` of its file.
    pub(crate) fn digest(&self) -> &str {
        &self.compiled.digest
    }

    /// What it wants to see.
    pub(crate) fn declared(&self) -> Declared {
        let mut declared = Declared::new();
        for rule in &self.manifest().reads {
            let kind = declared.entry(Kind::new(&rule.api_version, &rule.kind)).or_default();
            kind.fields.extend(rule.fields.iter().map(|field| field.trim_end_matches("/*").to_owned()));
        }
        for target in &self.manifest().target {
            let kind = match target {
                TargetKind::Pod => Kind::pod(),
                TargetKind::Node => Kind::new("v1", "Node"),
            };
            declared.entry(kind).or_default().watched = true;
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

    pub(crate) fn setting(&self) -> Setting<'_> {
        Setting { engine: &self.engine, compiled: &self.compiled, terms: &self.terms, wall_timeout: self.wall_timeout }
    }
}

/// Everything that any of these plugins wants to see.
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
