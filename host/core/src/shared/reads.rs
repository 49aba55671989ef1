//! What one visit may read, answered from the store.
//!
//! Takes the store, the claims and the looks of this round; yields objects, and notes each look that is missing so that
//! the next round makes it. May not wait.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use k8s_openapi::jiff::Timestamp;

use crate::cluster::object::{Kind, Object, ObjectKey};
use crate::cluster::store::Store;
use crate::plugin::proposal::{Registration, Relation, RelationKey};
use crate::plugin::visit::{Look, Looked, ReadRefusal, Reads};
use crate::shared::claims::Claims;
use crate::shared::holds;

/// Most candidates that a plugin is shown by the relation `same-controller`.
const CANDIDATES: usize = 16;

/// What one visit may read.
pub struct VisitReads {
    /// The objects.
    pub store: Arc<Store>,
    /// The claims, shared by all jobs.
    pub claims: Arc<RwLock<Claims>>,
    /// What the looks of this round found.
    pub looked: Arc<Looked>,
    /// What `setup` declared.
    pub registration: Arc<Registration>,
    /// The target.
    pub subject: Subject,
    /// Every read is live: this is a last look.
    pub all_live: bool,
    /// The looks that were missing.
    pub missing: Mutex<BTreeSet<Look>>,
}

/// The target a visit is about.
#[derive(Clone, Debug, Default)]
pub struct Subject {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The recorded UID.
    pub uid: String,
    /// Its extras, as durably stored.
    pub extras: BTreeMap<String, String>,
    /// UID of the job.
    pub job_uid: String,
    /// Since when an object may be its successor.
    pub since: Timestamp,
    /// Name of the controller, for a StatefulSet's pods whose names come again.
    pub owner: Option<(String, String)>,
    /// The node, for a DaemonSet's pods.
    pub node: Option<String>,
}

impl VisitReads {
    /// The looks that were missing in this visit.
    pub fn missing(&self) -> BTreeSet<Look> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether `look` was answered; where it was not, it is noted.
    fn seen(&self, look: Look) -> Result<(), ReadRefusal> {
        if self.looked.has(&look) {
            return Ok(());
        }
        self.missing.lock().unwrap_or_else(PoisonError::into_inner).insert(look);
        Err(ReadRefusal::Unavailable)
    }

    fn free(&self, object: &Object) -> bool {
        let claims = self.claims.read().unwrap_or_else(PoisonError::into_inner);
        !claims.taken(&self.subject.namespace, &object.key.name, &self.subject.uid)
    }

    fn own(&self, object: &Object) -> bool {
        self.registration.exclusive_extras.iter().any(|key| self.subject.extras.get(key) == Some(&object.key.name))
    }

    /// Names by which a label may point to this target.
    fn names(&self) -> Vec<&str> {
        let extras = self.registration.exclusive_extras.iter().filter_map(|key| self.subject.extras.get(key));
        std::iter::once(self.subject.name.as_str()).chain(extras.map(String::as_str)).collect()
    }

    fn by_label(&self, kind: &Kind, label: &str, live: bool) -> Result<Vec<Arc<Object>>, ReadRefusal> {
        let mut found = Vec::new();
        let mut refused = None;
        for value in self.names() {
            let (namespace, label, value) = (self.subject.namespace.clone(), label.to_owned(), value.to_owned());
            if live {
                let look = Look::Labelled { kind: kind.clone(), namespace, label: label.clone(), value: value.clone() };
                refused = self.seen(look).err().or(refused);
            }
            found.extend(self.store.labelled(kind, &self.subject.namespace, &label, &value));
        }
        refused.map_or(Ok(found), Err)
    }

    fn same_controller(&self, kind: &Kind, live: bool) -> Result<Vec<Arc<Object>>, ReadRefusal> {
        let namespace = &self.subject.namespace;
        if live {
            self.seen(Look::All { kind: kind.clone(), namespace: namespace.clone() })?;
        }
        if self.store.unresolved(kind, namespace) {
            self.seen(Look::Controllers { namespace: namespace.clone() })?;
        }
        let Some((owner_kind, root)) = &self.subject.owner else { return Ok(Vec::new()) };
        let fits = |object: &Object| {
            object.uid != self.subject.uid
                && (owner_kind != "StatefulSet" || object.key.name == self.subject.name)
                && (owner_kind != "DaemonSet"
                    || object.text("/spec/nodeName").as_deref() == self.subject.node.as_deref())
                && !holds::barred(object)
                && self.free(object)
        };
        let mut found: Vec<Arc<Object>> = Vec::new();
        self.store.siblings(kind, root, self.subject.since, |object| {
            if fits(object) {
                found.push(object.clone());
            }
            found.len() < CANDIDATES
        });
        // What the target has claimed itself belongs to it, whatever its age and place in the order.
        for key in &self.registration.exclusive_extras {
            let Some(name) = self.subject.extras.get(key) else { continue };
            let claimed = ObjectKey { kind: kind.clone(), namespace: Some(namespace.clone()), name: name.clone() };
            if found.iter().all(|object| object.key.name != *name) {
                found.extend(self.store.get(&claimed).filter(|object| object.uid != self.subject.uid));
            }
        }
        Ok(found)
    }

    fn by_extra(&self, kind: &Kind, extra: &str, live: bool) -> Result<Vec<Arc<Object>>, ReadRefusal> {
        let Some(name) = self.subject.extras.get(extra) else { return Ok(Vec::new()) };
        let namespace = Some(self.subject.namespace.clone());
        let key = ObjectKey { kind: kind.clone(), namespace, name: name.clone() };
        Ok(self.lookup(&key, live)?.into_iter().collect())
    }

    fn lookup(&self, key: &ObjectKey, live: bool) -> Result<Option<Arc<Object>>, ReadRefusal> {
        let watched = self.store.keeps(&key.kind);
        if live || !watched {
            self.seen(Look::Object(key.clone()))?;
        }
        if watched {
            return Ok(self.store.get(key));
        }
        Ok(self.looked.objects.get(key).cloned().flatten())
    }
}

impl Reads for VisitReads {
    fn related(&self, relation: &str, live: bool) -> Result<Vec<Arc<Object>>, ReadRefusal> {
        let live = live || self.all_live;
        let declared = self.registration.relations.iter().find(|declared| declared.name == relation);
        let Some(Relation { kind, by, .. }) = declared else {
            return Err(ReadRefusal::NotDeclared(format!("`setup` declared no relation {relation:?}")));
        };
        let namespace = self.subject.namespace.clone();
        let all = || Look::All { kind: kind.clone(), namespace: namespace.clone() };
        let found = match by {
            RelationKey::SameController => return self.same_controller(kind, live),
            RelationKey::Label(label) => self.by_label(kind, label, live)?,
            RelationKey::Extra(extra) => self.by_extra(kind, extra, live)?,
            RelationKey::Field(pointer) => {
                if live {
                    self.seen(all())?;
                }
                self.store.with_field(kind, &namespace, pointer, &self.subject.name)
            }
            RelationKey::OwnerIsJob | RelationKey::OwnerIsTarget => {
                if live {
                    self.seen(all())?;
                }
                let owner = if *by == RelationKey::OwnerIsJob { &self.subject.job_uid } else { &self.subject.uid };
                self.store.owned(kind, &namespace, owner)
            }
        };
        Ok(found.into_iter().filter(|object| self.own(object) || self.free(object)).collect())
    }

    fn get(&self, key: &ObjectKey, live: bool) -> Result<Option<Arc<Object>>, ReadRefusal> {
        self.lookup(key, live || self.all_live)
    }

    fn serves(&self, kind: &Kind) -> bool {
        self.store.keeps(kind)
    }
}
