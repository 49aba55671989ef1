//! The reads of one visit, answered from the cache.
//!
//! A read that needs the API server's own answer is noted, so that the next round makes it. No read waits here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::jiff::Timestamp;
use oarlock_contract::successors::{candidates, keeps_name};

use crate::cache::store::Store;
use crate::object::api_object::{Kind, Object, ObjectKey};
use crate::operation_job::shared::successors::RootController;
use crate::operation_job::shared::tables::{SharedTables, lock};
use crate::operation_job::shared::wake_index::claimed;
use crate::plugin::lookup::PluginInfo;
use crate::plugin::manifest::TargetKind;
use crate::plugin::names::is_subdomain;
use crate::plugin::proposal::{Registration, Relation, RelationKey};
use crate::plugin::visit::{ReadRefusal, Reads};
use crate::requests::live_reads::{LiveRead, LiveReads};

/// Function that returns true if the cluster is known to serve a kind. Otherwise the cluster does not serve the kind,
/// or the host has to ask.
pub type ServedKinds = Arc<dyn Fn(&Kind) -> bool + Send + Sync>;

/// The reads of one visit.
pub struct VisitReads {
    /// The cached objects.
    pub store: Arc<Store>,
    /// The shared tables of the term.
    pub tables: SharedTables,
    /// Results of the live reads of this round.
    pub live: Arc<LiveReads>,
    /// The kinds that the cluster serves.
    pub served: ServedKinds,
    /// The plugin, if one serves.
    pub plugin: Option<Arc<PluginInfo>>,
    /// The target that the visit is about.
    pub subject: Subject,
    /// True if every read is live: this is the final check at a deadline.
    pub all_live: bool,
    /// True if live reads have failed for so long that the host makes the final check without them.
    pub given_up: bool,
    /// The live reads that were missing.
    pub missing: Mutex<BTreeSet<LiveRead>>,
}

/// The target that a visit is about.
#[derive(Clone, Debug, Default)]
pub struct Subject {
    /// Kind of the target.
    pub kind: TargetKind,
    /// Namespace of the target; for a node, the namespace of its job.
    pub namespace: String,
    /// Name of the target.
    pub name: String,
    /// The recorded UID.
    pub uid: String,
    /// Extras of the target, as they are durably stored.
    pub extras: BTreeMap<String, String>,
    /// The names of objects in the job's parameters, by the pointer of their relation.
    pub parameters: BTreeMap<String, String>,
    /// UID of the job.
    pub job_uid: String,
    /// Earliest creation time of an object that may be the target's successor.
    pub since: Timestamp,
    /// Time at which the target started.
    pub started: Timestamp,
    /// Earliest creation time of a successor, if no object is younger than `since`.
    pub surplus_since: Option<Timestamp>,
    /// Root controller of the target.
    pub controller: Option<RootController>,
}

impl VisitReads {
    /// Returns the live reads that were missing in this visit.
    pub fn missing(&self) -> BTreeSet<LiveRead> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn registration(&self) -> Option<&Registration> {
        self.plugin.as_deref().map(|plugin| &plugin.registration)
    }

    fn exclusive_extras(&self) -> impl Iterator<Item = &String> {
        self.registration().into_iter().flat_map(|registration| &registration.exclusive_extras)
    }

    /// Succeeds if `read` was answered; otherwise notes it for the next round.
    fn seen(&self, read: LiveRead) -> Result<(), ReadRefusal> {
        // At a deadline, the host does not repeat a read that the API server refuses or never answers. The read would
        // delay the end forever.
        if self.live.has(&read) || self.all_live && (self.given_up || self.live.refused(&read)) {
            return Ok(());
        }
        self.missing.lock().unwrap_or_else(PoisonError::into_inner).insert(read);
        Err(ReadRefusal::Unavailable)
    }

    /// Returns the objects without those that other targets have claimed.
    fn free(&self, mut objects: Vec<Arc<Object>>) -> Vec<Arc<Object>> {
        let Subject { namespace, uid, .. } = &self.subject;
        let tables = lock(&self.tables);
        objects.retain(|object| {
            self.own(object) || !tables.claims.is_claimed_by_another(namespace, &claimed(object), uid)
        });
        objects
    }

    fn own(&self, object: &Object) -> bool {
        self.exclusive_extras().any(|key| self.subject.extras.get(key) == Some(&object.key.name))
    }

    /// Returns the names by which a label may point to this target.
    fn names(&self) -> Vec<&str> {
        let extras = self.exclusive_extras().filter_map(|key| self.subject.extras.get(key));
        std::iter::once(self.subject.name.as_str()).chain(extras.map(String::as_str)).collect()
    }

    fn by_label(&self, kind: &Kind, label: &str, live: bool) -> Result<Vec<Arc<Object>>, ReadRefusal> {
        let mut found = Vec::new();
        let mut refused = None;
        for value in self.names() {
            let namespace = self.subject.namespace.clone();
            if live {
                let (kind, label, value) = (kind.clone(), label.to_owned(), value.to_owned());
                refused = self.seen(LiveRead::Labelled { kind, namespace, label, value }).err().or(refused);
            }
            found.extend(self.store.labelled(kind, &self.subject.namespace, label, value));
        }
        refused.map_or(Ok(found), Err)
    }

    fn same_controller(&self, kind: &Kind, live: bool) -> Result<Vec<Arc<Object>>, ReadRefusal> {
        let namespace = &self.subject.namespace;
        if live {
            self.seen(LiveRead::All { kind: kind.clone(), namespace: namespace.clone() })?;
        }
        if self.store.has_unresolved(kind, namespace) {
            self.seen(LiveRead::Controllers { namespace: namespace.clone() })?;
        }
        let mut found = self.candidates(kind);
        // The object that the target has claimed belongs to it, regardless of its age and order.
        for key in self.exclusive_extras() {
            let Some(name) = self.subject.extras.get(key) else { continue };
            let key = ObjectKey { kind: kind.clone(), namespace: Some(namespace.clone()), name: name.clone() };
            if found.iter().all(|object| object.key.name != *name) {
                found.extend(self.store.get(&key).filter(|object| object.uid != self.subject.uid));
            }
        }
        Ok(found)
    }

    /// Returns the free objects of the target's controller that are young enough, oldest first.
    fn candidates(&self, kind: &Kind) -> Vec<Arc<Object>> {
        let Subject { since, surplus_since, .. } = self.subject;
        candidates(since, surplus_since, |since| self.candidates_since(kind, since))
    }

    fn candidates_since(&self, kind: &Kind, since: Timestamp) -> Vec<Arc<Object>> {
        let Subject { name, uid, controller, started, .. } = &self.subject;
        let Some(controller) = controller else { return Vec::new() };
        let other = |object: &Object| object.uid != *uid && (!keeps_name(&controller.kind) || object.key.name == *name);
        let free = |objects: Vec<Arc<Object>>| {
            let mut free = self.free(objects.into_iter().filter(|object| other(object)).collect());
            // `since` may be earlier than the moment at which the target was asked to terminate. The cache may not show
            // yet that another target's object was asked to terminate too. An object with the target's own name belongs
            // to no other target.
            let disrupted = &lock(&self.tables).disrupted;
            free.retain(|object| object.key.name == *name || !disrupted.was_there(&object.key, *started));
            free
        };
        controller.made_since(&self.store, kind, since, free)
    }

    fn by_name(&self, kind: &Kind, name: Option<&String>, live: bool) -> Result<Vec<Arc<Object>>, ReadRefusal> {
        // Names become parts of URLs. No object has an invalid name.
        let Some(name) = name.filter(|name| is_subdomain(name)) else { return Ok(Vec::new()) };
        let key = ObjectKey::seen_from(&self.subject.namespace, kind, name);
        Ok(self.lookup(&key, live)?.into_iter().collect())
    }

    fn lookup(&self, key: &ObjectKey, live: bool) -> Result<Option<Arc<Object>>, ReadRefusal> {
        if live || !self.store.keeps(&key.kind) {
            self.seen(LiveRead::Object(key.clone()))?;
        }
        Ok(self.live.sighting(key, &self.store).found())
    }

    fn all_of(&self, kind: &Kind, live: bool) -> Result<(), ReadRefusal> {
        if !live {
            return Ok(());
        }
        self.seen(LiveRead::All { kind: kind.clone(), namespace: self.subject.namespace.clone() })
    }
}

impl Reads for VisitReads {
    fn related(&self, relation: &str, live: bool) -> Result<Vec<Arc<Object>>, ReadRefusal> {
        let live = live || self.all_live;
        let relations = self.registration().into_iter().flat_map(|registration| &registration.relations);
        let Some(declared) = relations.into_iter().find(|declared| declared.name == relation) else {
            return Err(ReadRefusal::NotDeclared(format!("`setup` declared no relation {relation:?}")));
        };
        let Relation { kind, by, .. } = declared;
        let Subject { namespace, name, uid, job_uid, .. } = &self.subject;
        if self.subject.kind == TargetKind::Node && declared.is_on_node() {
            // The cache answers, because no plugin may make the host list all pods for each node.
            return Ok(self.store.on_node(name));
        }
        let found = match by {
            RelationKey::SameController => return self.same_controller(kind, live),
            RelationKey::Label(label) => self.by_label(kind, label, live)?,
            RelationKey::Extra(extra) => self.by_name(kind, self.subject.extras.get(extra), live)?,
            RelationKey::Parameter(pointer) => self.by_name(kind, self.subject.parameters.get(pointer), live)?,
            RelationKey::Field(pointer) => {
                self.all_of(kind, live)?;
                self.store.with_field(kind, namespace, pointer, name)
            }
            RelationKey::OwnerIsJob | RelationKey::OwnerIsTarget => {
                self.all_of(kind, live)?;
                self.store.owned(kind, namespace, if *by == RelationKey::OwnerIsJob { job_uid } else { uid })
            }
        };
        Ok(self.free(found))
    }

    fn get(&self, key: &ObjectKey, live: bool) -> Result<Option<Arc<Object>>, ReadRefusal> {
        self.lookup(key, live || self.all_live)
    }

    fn serves(&self, kind: &Kind) -> Result<bool, ReadRefusal> {
        let served = (self.served)(kind);
        if !served {
            self.seen(LiveRead::Served(kind.clone()))?;
        }
        Ok(served)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cache::store::{Indexed, RootUid};
    use crate::object::key::JobKey;
    use crate::operation_job::shared::claims::Claim;
    use crate::operation_job::shared::successors::{CANDIDATES, SIBLINGS};
    use crate::operation_job::shared::tables::SharedTables;

    const ALL: u32 = 10_000;

    fn sibling(number: u32) -> Object {
        let document = json!({"metadata": {"name": format!("p{number:04}"), "namespace": "d", "uid": format!("u{number}"),
            "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:05Z", "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "CloneSet", "name": "s", "uid": "set", "controller": true}]}});
        Object::slim(&document, &Kind::pod(), &[]).unwrap()
    }

    /// Returns the reads of a target with 10,000 siblings. Other targets have claimed the siblings that are not `free`.
    fn reads(free: impl Fn(u32) -> bool) -> VisitReads {
        let (store, tables) = (Store::default(), SharedTables::default());
        store.keep(&Kind::pod(), Indexed::default());
        for number in 0..ALL {
            let object = sibling(number);
            if !free(number) {
                let job = JobKey { namespace: "d".into(), name: "other".into() };
                let claim = Claim { job, index: number, target_uid: format!("t{number}") };
                assert!(lock(&tables).claims.claim(&claimed(&object), claim));
            }
            store.apply(object);
        }
        let since = "2026-01-01T00:00:00Z".parse().unwrap();
        let controller =
            Some(RootController { kind: "CloneSet".into(), namespace: "d".into(), uid: "set".into(), node: None });
        VisitReads {
            store: Arc::new(store),
            tables,
            live: Arc::default(),
            served: Arc::new(|_| true),
            plugin: None,
            subject: Subject { namespace: "d".into(), uid: "t".into(), since, controller, ..Subject::default() },
            all_live: false,
            given_up: false,
            missing: Mutex::default(),
        }
    }

    fn names(reads: &VisitReads) -> Vec<String> {
        let found = reads.same_controller(&Kind::pod(), false).unwrap();
        found.iter().map(|object| object.key.name.clone()).collect()
    }

    #[test]
    fn of_many_siblings_the_free_ones_are_found_wherever_they_stand() {
        // In the first batch, in a middle batch and in the last batch, and one alone in its batch.
        let free = [0, 63, 64, 4_999, 5_000, 5_001, 9_000, 9_997, 9_998, 9_999];
        let expected: Vec<String> = free.iter().map(|number| format!("p{number:04}")).collect();
        assert_eq!(names(&reads(|number| free.contains(&number))), expected);
        assert_eq!(names(&reads(|_| false)), Vec::<String>::new());
    }

    #[test]
    fn an_object_made_before_the_target_was_asked_to_go_is_shown_late_and_only_where_none_was_made_since() {
        let mut reads = reads(|number| number == 7);
        let (asked, started) = ("2026-01-01T00:00:06Z".parse().unwrap(), "2026-01-01T00:00:04Z".parse().unwrap());
        reads.subject.since = asked;
        assert!(names(&reads).is_empty());
        reads.subject.surplus_since = Some(started);
        assert_eq!(names(&reads), ["p0007"]);
        let mut younger = sibling(ALL);
        younger.created = Some(asked);
        reads.store.apply(younger);
        assert_eq!(names(&reads), ["p10000"]);
    }

    #[test]
    fn of_many_free_siblings_the_oldest_are_shown_and_no_more_are_taken_from_the_store_than_are_looked_at() {
        let reads = reads(|_| true);
        let expected: Vec<String> = (0..CANDIDATES).map(|number| format!("p{number:04}")).collect();
        assert_eq!(names(&reads), expected);
        let from = (Some(reads.subject.since), String::new());
        let root = RootUid { namespace: "d", uid: "set" };
        assert_eq!(reads.store.siblings(&Kind::pod(), root, &from, SIBLINGS).len(), SIBLINGS);
    }
}
