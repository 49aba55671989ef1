//! Reads that go past the cache: a step names them, the next round makes them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use oarlock_contract::sighting::Sighting;

use crate::cluster::object::{Kind, Object, ObjectKey};
use crate::cluster::store::Store;
use crate::job::selector::TargetQuery;

/// One read that the next round makes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LiveRead {
    /// One object.
    Object(ObjectKey),
    /// All objects of a kind in a namespace that carry this label with this value.
    Labelled {
        /// Their kind.
        kind: Kind,
        /// Their namespace.
        namespace: String,
        /// Key of the label.
        label: String,
        /// Its value.
        value: String,
    },
    /// All objects of a kind in a namespace.
    All {
        /// Their kind.
        kind: Kind,
        /// Their namespace.
        namespace: String,
    },
    /// The pods of a node in all namespaces.
    OnNode {
        /// Name of the node.
        node: String,
    },
    /// Whether the cluster serves a kind.
    Served(Kind),
    /// The ReplicaSets of a namespace, to learn the Deployment of each.
    Controllers {
        /// The namespace.
        namespace: String,
    },
    /// The objects that a job's selector asks for, by one consistent list.
    Selection {
        /// Their kind.
        kind: Kind,
        /// Their namespace; `None` for objects that are in none.
        namespace: Option<String>,
        /// Which of them.
        query: Box<TargetQuery>,
    },
}

/// One object that a selector found.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FoundTarget {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// A read without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadFailure {
    /// The sentence for people.
    pub message: String,
    /// The API server refused the read, and will again; otherwise it did not answer.
    pub refused: bool,
}

/// Results of the reads of one round. Objects of watched kinds are in the store already.
#[derive(Clone, Debug, Default)]
pub struct LiveReads {
    /// The reads that the API server answered in this round.
    pub answered: BTreeSet<LiveRead>,
    /// Objects that were read by name, of kinds that are not watched too.
    pub objects: BTreeMap<ObjectKey, Option<Arc<Object>>>,
    /// What selectors found, by read: none of them terminating, by name; more than 10,000 are not all listed.
    pub selections: BTreeMap<LiveRead, Vec<FoundTarget>>,
    /// The reads that failed.
    pub failed: BTreeMap<LiveRead, ReadFailure>,
}

impl LiveReads {
    /// What is known of an object: of a watched kind what `store` shows, of another what was read live in this round.
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

    /// True if the API server answered `read` in this round.
    pub fn has(&self, read: &LiveRead) -> bool {
        self.answered.contains(read)
    }

    /// True if the API server refused `read` in this round.
    pub fn refused(&self, read: &LiveRead) -> bool {
        self.failed.get(read).is_some_and(|failure| failure.refused)
    }
}
