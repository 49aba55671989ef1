//! Live reads that a round asked for.
//!
//! Takes looks; yields what the API server answered, and puts what it showed into the store. Looks are made together:
//! several objects of one kind and namespace become one list where that costs the server less. May not answer a look
//! from memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::StreamExt;
use kube::core::params::GetParams;
use oarlock_core::cluster::object::{Kind, Object, ObjectKey, Owner};
use oarlock_core::plugin::visit::{Look, Looked};
use serde_json::Value;

use crate::address::Resource;
use crate::call::{Call, CallError};
use crate::cluster::Link;
use crate::list::{Collection, Listed};
use crate::outcome::sentence;

/// Reads in flight for one round.
const AT_ONCE: usize = 8;
/// From this many objects on a list is considered.
const MANY: usize = 9;
/// A page of 500 objects costs the server about as much as this many single reads.
const READS_PER_PAGE: usize = 25;
const PAGE: usize = 500;

/// One or more looks that one read answers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Errand {
    Get(ObjectKey),
    List { kind: Kind, namespace: Option<String>, looks: BTreeSet<Look> },
    Labelled(Look),
    Controllers { namespace: String },
}

/// Puts looks together. `held` tells how many objects of a kind there are, as far as is known.
fn errands(looks: &[Look], held: impl Fn(&Kind) -> usize) -> Vec<Errand> {
    let mut errands = BTreeSet::new();
    let mut groups: BTreeMap<(Kind, Option<String>), BTreeSet<Look>> = BTreeMap::new();
    for look in looks {
        match look {
            Look::Object(key) => {
                groups.entry((key.kind.clone(), key.namespace.clone())).or_default().insert(look.clone());
            }
            Look::All { kind, namespace } => {
                groups.entry((kind.clone(), Some(namespace.clone()))).or_default().insert(look.clone());
            }
            Look::Labelled { .. } => {
                errands.insert(Errand::Labelled(look.clone()));
            }
            Look::Controllers { namespace } => {
                errands.insert(Errand::Controllers { namespace: namespace.clone() });
            }
        }
    }
    for ((kind, namespace), looks) in groups {
        let whole = looks.iter().any(|look| matches!(look, Look::All { .. }));
        let pages = held(&kind).div_ceil(PAGE);
        if whole || (looks.len() >= MANY && looks.len() >= pages * READS_PER_PAGE) {
            errands.insert(Errand::List { kind, namespace, looks });
        } else {
            let keys = looks.into_iter().filter_map(|look| if let Look::Object(key) = look { Some(key) } else { None });
            errands.extend(keys.map(Errand::Get));
        }
    }
    errands.into_iter().collect()
}

impl Errand {
    fn looks(&self) -> Vec<Look> {
        match self {
            Self::Get(key) => vec![Look::Object(key.clone())],
            Self::List { looks, .. } => looks.iter().cloned().collect(),
            Self::Labelled(look) => vec![look.clone()],
            Self::Controllers { namespace } => vec![Look::Controllers { namespace: namespace.clone() }],
        }
    }
}

type Seen = BTreeMap<ObjectKey, Option<Arc<Object>>>;

/// Why a look has no answer; the sentence is for people.
type Unanswered = String;

impl Link {
    /// Makes all looks.
    pub(crate) async fn look(&self, looks: &[Look]) -> Looked {
        let errands = errands(looks, |kind| self.objects.store.count(kind));
        let answers = futures::stream::iter(errands).map(|errand| async move {
            let found = self.run(&errand).await;
            (errand, found)
        });
        let answers: Vec<_> = answers.buffer_unordered(AT_ONCE).collect().await;
        let mut looked = Looked::default();
        for (errand, found) in answers {
            match found {
                Ok(seen) => {
                    looked.answered.extend(errand.looks());
                    looked.objects.extend(seen);
                }
                Err(message) => looked.failed.extend(errand.looks().into_iter().map(|look| (look, message.clone()))),
            }
        }
        looked
    }

    async fn run(&self, errand: &Errand) -> Result<Seen, Unanswered> {
        match errand {
            Errand::Get(key) => self.get(key).await.map(|object| Seen::from([(key.clone(), object)])),
            Errand::List { kind, namespace, looks } => self.sweep(kind, namespace.as_deref(), looks).await,
            Errand::Labelled(look) => self.labelled(look).await,
            Errand::Controllers { namespace } => self.controllers(namespace).await,
        }
    }

    /// One object; `None` where the server has none of that name.
    async fn get(&self, key: &ObjectKey) -> Result<Option<Arc<Object>>, Unanswered> {
        let shown = self.objects.store.get(key);
        let document = match self.read(key).await? {
            Ok(document) => document,
            Err(error) if absent(&error, &key.name) => {
                if let Some(shown) = shown {
                    self.objects.tell(self.objects.store.confirm_gone(key, &shown.uid));
                }
                return Ok(None);
            }
            Err(error) => return Err(sentence(&error)),
        };
        let object = self.objects.slim(&document, &key.kind).ok_or("the API server's reply is no object")?;
        self.objects.take(object.clone());
        Ok(Some(Arc::new(object)))
    }

    /// The document of one object.
    pub(crate) async fn read(&self, key: &ObjectKey) -> Result<Result<Value, CallError>, Unanswered> {
        let resource = self.resource(&key.kind).await?;
        let home = resource.home(key.namespace.as_deref(), &key.name).map_err(|e| sentence(&e))?;
        let request = kube::core::Request::new(home).get(&key.name, &GetParams::default());
        Ok(self.caller.fetch(Call { verb: "get", resource: &resource.plural, request }).await)
    }

    async fn resource(&self, kind: &Kind) -> Result<Resource, Unanswered> {
        self.served.resource(&self.caller, kind).await.map_err(|error| sentence(&error))
    }

    /// All objects of a kind in a namespace. What the store showed before and the list lacks is gone.
    async fn sweep(&self, kind: &Kind, namespace: Option<&str>, looks: &BTreeSet<Look>) -> Result<Seen, Unanswered> {
        let shown = self.objects.store.all(kind, namespace);
        let listed = self.list_slim(kind, namespace, None).await?;
        let version = listed.number();
        let mut found: BTreeMap<ObjectKey, Arc<Object>> = BTreeMap::new();
        for object in listed.items {
            self.objects.take(object.clone());
            found.insert(object.key.clone(), Arc::new(object));
        }
        let missing = |old: &&Arc<Object>| found.get(&old.key).is_none_or(|new| new.uid != old.uid);
        for old in shown.iter().filter(|old| old.version() <= version).filter(missing) {
            self.objects.tell(self.objects.store.confirm_gone(&old.key, &old.uid));
        }
        let named = looks.iter().filter_map(|look| if let Look::Object(key) = look { Some(key) } else { None });
        let mut seen: Seen = named.map(|key| (key.clone(), found.get(key).cloned())).collect();
        if !self.objects.store.keeps(kind) {
            seen.extend(found.into_iter().map(|(key, object)| (key, Some(object))));
        }
        Ok(seen)
    }

    /// All objects with a label. What the store shows with it and the list lacks is read by name: it may be gone or
    /// have lost the label.
    async fn labelled(&self, look: &Look) -> Result<Seen, Unanswered> {
        let Look::Labelled { kind, namespace, label, value } = look else { return Ok(Seen::new()) };
        let shown = self.objects.store.labelled(kind, namespace, label, value);
        let listed = self.list_slim(kind, Some(namespace), Some(&format!("{label}={value}"))).await?;
        let mut seen = Seen::new();
        for object in listed.items {
            self.objects.take(object.clone());
            seen.insert(object.key.clone(), Some(Arc::new(object)));
        }
        for old in shown {
            if !seen.contains_key(&old.key) {
                let now = self.get(&old.key).await?;
                seen.insert(old.key.clone(), now);
            }
        }
        Ok(seen)
    }

    /// Learns to which Deployment each ReplicaSet of a namespace belongs.
    async fn controllers(&self, namespace: &str) -> Result<Seen, Unanswered> {
        let store = &self.objects.store;
        let replica_sets = Kind::new("apps/v1", "ReplicaSet");
        // A ReplicaSet that is made while the list is under way is not in it, and must be looked at again.
        let pods = store.all(&Kind::pod(), Some(namespace));
        let unknown: BTreeMap<String, Owner> = pods
            .iter()
            .filter(|pod| store.root(pod).is_err())
            .filter_map(|pod| pod.controller().map(|owner| (owner.uid.clone(), owner.clone())))
            .collect();
        let listed = self.list_slim(&replica_sets, Some(namespace), None).await?;
        let mut learned = BTreeSet::new();
        for set in listed.items {
            let itself = Owner {
                kind: replica_sets.clone(),
                name: set.key.name.clone(),
                uid: set.uid.clone(),
                controller: true,
            };
            store.learn_root(&set.uid, set.controller().cloned().unwrap_or(itself));
            learned.insert(set.uid);
        }
        // The others are gone, and nobody can tell any more whose they were.
        for (uid, owner) in unknown.into_iter().filter(|(uid, _)| !learned.contains(uid)) {
            store.learn_root(&uid, owner);
        }
        Ok(Seen::new())
    }

    async fn list_slim(
        &self,
        kind: &Kind,
        namespace: Option<&str>,
        labels: Option<&str>,
    ) -> Result<Listed<Object>, Unanswered> {
        let resource = self.resource(kind).await?;
        let from = Collection { resource: &resource, namespace, labels };
        let listed = self.caller.list(from, &self.objects.sieve(kind), |item| self.objects.slim(&item, kind)).await;
        listed.map_err(|error| sentence(&error))
    }
}

/// Whether the server said that there is no object of this name, and not that it does not know the kind.
pub(crate) fn absent(error: &CallError, name: &str) -> bool {
    match error {
        CallError::Refused(refusal) if refusal.code == 404 => {
            refusal.status.details.as_ref().is_some_and(|details| details.name == name)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(n: usize) -> Look {
        Look::Object(ObjectKey::pod("d", format!("p{n}")))
    }

    #[test]
    fn a_few_objects_are_read_by_name_and_many_by_a_list() {
        let few: Vec<Look> = (0..8).map(look).collect();
        assert_eq!(errands(&few, |_| 10).len(), 8);
        let many: Vec<Look> = (0..30).map(look).collect();
        assert!(matches!(errands(&many, |_| 400).as_slice(), [Errand::List { looks, .. }] if looks.len() == 30));
        assert_eq!(errands(&many, |_| 10_000).len(), 30, "twenty pages cost more than thirty reads");
    }

    #[test]
    fn a_list_that_is_made_anyway_answers_for_single_objects_too() {
        let all = Look::All { kind: Kind::pod(), namespace: "d".into() };
        let looks = [look(1), all.clone(), look(1)];
        let errands = errands(&looks, |_| 10_000);
        assert!(matches!(errands.as_slice(), [Errand::List { .. }]));
        assert_eq!(errands[0].looks().len(), 2);
    }

    #[test]
    fn namespaces_and_kinds_are_read_apart() {
        let nodes = Look::Object(ObjectKey { kind: Kind::new("v1", "Node"), namespace: None, name: "n".into() });
        let mut looks: Vec<Look> = (0..9).map(look).collect();
        looks.extend([nodes, Look::Controllers { namespace: "d".into() }]);
        assert_eq!(errands(&looks, |_| 0).len(), 3);
    }
}
