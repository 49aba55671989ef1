//! The interface between the engine and a kind: how the host keeps the objects of the kind, and what an object needs next.
//!
//! A plan is a pure function of what was seen. The engine (`host/src/engine.rs`) watches the kind, calls the plan, makes the reads that it asks for,
//! sends its writes and stores its status. OperationJob is no such kind, because it calls plugins.

use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::cache::object_cache::CachedObject;
use crate::kind::locks::{ClaimOrder, TargetLock, TargetLocks};
use crate::kind::plan::KindPlan;
use crate::object::api_object::{Kind, ObjectKey};
use crate::object::quota_key::QuotaKey;
use crate::requests::reads::{Answers, Pending};
use crate::requests::writes::FailedWrite;

/// The objects of a kind that the host watches, and the fields of them that it keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedObjects {
    /// The kind.
    pub kind: Kind,
    /// The only fields that the host parses beside the metadata (RFC 6901, such as `/spec`).
    pub fields: &'static [&'static str],
}

/// A kind whose objects the engine reconciles.
pub trait PlanKind: Send + Sync + Sized + 'static {
    /// An object of the kind, as the cache keeps it.
    type Object: CachedObject + Debug;
    /// An object that an object of the kind owns, as the cache keeps it. [`NoChild`] if the kind watches none.
    type Child: CachedObject + Debug;
    /// The memory of a plan for the next plan of the same object. It is lost when a term ends or a round panics, and a plan whose writes change the object
    /// stores none. So a plan must do without it.
    type Memory: Clone + Default + Debug + Send + Sync + 'static;

    /// Returns the CustomResourceDefinition of the kind, as YAML. The host takes the kind's names from it.
    fn definition(&self) -> &'static str;

    /// Returns the kind, with the fields that [`PlanKind::read`] needs.
    fn objects(&self) -> WatchedObjects;

    /// Reads a stored object. Returns `None` only if the document has no name or no UID. Return an object also if its spec is invalid, because otherwise
    /// the cache keeps the view from before an edit.
    fn read(&self, document: &Value) -> Option<Self::Object>;

    /// Returns the kind of the owned objects that the host watches, with the fields that [`PlanKind::read_child`] needs.
    fn children(&self) -> Option<WatchedObjects> {
        None
    }

    /// Reads an owned object. Returns `None` if no object of this kind owns it.
    fn read_child(&self, document: &Value) -> Option<Self::Child> {
        let _ = document;
        None
    }

    /// Returns true if this is a child of the object. Anyone who may write a child decides which owner it names.
    fn is_child(&self, object: &Self::Object, child: &Self::Child) -> bool {
        let _ = (object, child);
        true
    }

    /// Returns whose shares of rounds and writes an object uses: by default those of its namespace. All objects of a cluster-scoped kind have one share by
    /// default.
    fn share(&self, object: &Self::Object) -> QuotaKey {
        QuotaKey::Namespace(object.key().namespace.unwrap_or_default())
    }

    /// Returns whose quotas the tasks and the status of an object use: by default those of its share.
    fn quota(&self, object: &Self::Object) -> QuotaKey {
        self.share(object)
    }

    /// Returns the place of an object in the order in which a term restores the locks.
    fn claim_order(&self, object: &Self::Object) -> ClaimOrder {
        let _ = object;
        ClaimOrder::default()
    }

    /// Returns the locks that the stored status of an object claims. A term restores them before its first round.
    fn stored_locks(&self, object: &Self::Object) -> Vec<TargetLock> {
        let _ = object;
        Vec::new()
    }

    /// Returns what the object needs next. The same inputs give the same plan.
    ///
    /// # Errors
    /// If the plan needs reads first: the engine makes them and plans again. If a read failed: the engine repeats the round later.
    fn plan(&self, seen: &Seen<'_, Self>) -> Result<KindPlan<Self::Memory>, Pending>;
}

/// The inputs of a plan.
#[derive(Debug)]
pub struct Seen<'a, K: PlanKind> {
    /// The object.
    pub object: &'a K::Object,
    /// The children of the object, in the order of their keys.
    pub children: &'a [Arc<K::Child>],
    /// The memory from the last plan.
    pub memory: &'a K::Memory,
    /// The answers to the reads of this round. They are older than the writes of the round, and may be older than `now`.
    pub answers: &'a Answers,
    /// The write of this round that failed, if one did. The engine makes no `writes` of a plan that sees it. It changes the locks, stores the status, and
    /// does what follows the status.
    pub failed: &'a [FailedWrite],
    /// Which object has which lock.
    pub locks: &'a TargetLocks,
    /// The current time.
    pub now: Timestamp,
}

/// The child of a kind that watches none.
#[derive(Debug)]
pub enum NoChild {}

impl CachedObject for NoChild {
    fn key(&self) -> ObjectKey {
        match *self {}
    }

    fn uid(&self) -> &str {
        match *self {}
    }

    fn version(&self) -> u64 {
        match *self {}
    }
}
