//! Reads that go past the cache. A step names the reads, and the next round makes them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use oarlock_contract::sighting::Sighting;

use crate::cache::store::Store;
use crate::object::api_object::{Kind, Object, ObjectKey};
use crate::requests::selector::TargetQuery;

/// One read that the next round makes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LiveRead {
    /// One object by its key.
    Object(ObjectKey),
    /// All objects of a kind in a namespace that carry this label with this value.
    Labelled {
        /// Kind of the objects.
        kind: Kind,
        /// Namespace of the objects.
        namespace: String,
        /// Key of the label.
        label: String,
        /// Value of the label.
        value: String,
    },
    /// All objects of a kind in a namespace.
    All {
        /// Kind of the objects.
        kind: Kind,
        /// Namespace of the objects.
        namespace: String,
    },
    /// The pods of a node in all namespaces.
    OnNode {
        /// Name of the node.
        node: String,
    },
    /// The check whether the cluster serves a kind.
    Served(Kind),
    /// The ReplicaSets of a namespace, which name their Deployments.
    Controllers {
        /// Namespace of the ReplicaSets.
        namespace: String,
    },
    /// The objects that a job's selector matches, by one consistent list.
    Selection {
        /// Kind of the objects.
        kind: Kind,
        /// Namespace of the objects. `None` for cluster-scoped objects.
        namespace: Option<String>,
        /// The query that the objects match.
        query: Box<TargetQuery>,
    },
}

/// One object that a selector found.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FoundTarget {
    /// Name of the object.
    pub name: String,
    /// UID of the object.
    pub uid: String,
}

/// A read that got no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadFailure {
    /// The message for people.
    pub message: String,
    /// True if the API server refused the read, and will refuse it again. False if the API server did not answer.
    pub refused: bool,
}

/// Results of the reads of one round. Objects of watched kinds are already in the store.
#[derive(Clone, Debug, Default)]
pub struct LiveReads {
    /// The reads that the API server answered in this round.
    pub answered: BTreeSet<LiveRead>,
    /// Objects that were read by name, including objects of kinds that the host does not watch.
    pub objects: BTreeMap<ObjectKey, Option<Arc<Object>>>,
    /// The objects that selectors found, by read, sorted by name and without terminating objects. If there are more than 10,000, the list has only a
    /// part of them.
    pub selections: BTreeMap<LiveRead, Vec<FoundTarget>>,
    /// The reads that failed.
    pub failed: BTreeMap<LiveRead, ReadFailure>,
}

impl LiveReads {
    /// Returns what the host knows about an object. For a watched kind, that is the view in `store`. For another kind, it is the live read of this
    /// round.
    pub fn sighting(&self, key: &ObjectKey, store: &Store) -> Sighting<Arc<Object>> {
        let known = match store.get(key) {
            None if !store.keeps(&key.kind) => self.objects.get(key).cloned(),
            shown => Some(shown),
        };
        match known {
            None => Sighting::Unread,
            Some(None) => Sighting::Absent,
            Some(Some(object)) => Sighting::Found(object),
        }
    }

    /// Returns true if the API server answered `read` in this round.
    pub fn has(&self, read: &LiveRead) -> bool {
        self.answered.contains(read)
    }

    /// Returns true if the API server refused `read` in this round.
    pub fn refused(&self, read: &LiveRead) -> bool {
        self.failed.get(read).is_some_and(|failure| failure.refused)
    }
}
