//! The objects that a controller has made, as successors of those that it lost.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
pub use oarlock_contract::successors::CANDIDATES;
use oarlock_contract::successors::{controller, keeps_node};

use crate::cluster::object::{Kind, Object};
use crate::cluster::store::Store;
use crate::job::state::{TargetState, extras};
use crate::shared::holds;

/// Siblings that are taken from the store at once; most are free.
pub(crate) const SIBLINGS: usize = 64;

/// The root controller that a target had when it started; of a DaemonSet, on one node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RootController {
    /// Its kind, such as `Deployment`.
    pub kind: String,
    /// The namespace of its objects.
    pub namespace: String,
    /// Its UID.
    pub uid: String,
    /// The node, for a DaemonSet's pods.
    pub node: Option<String>,
}

impl RootController {
    /// The one that is recorded for a target of a namespace.
    pub fn of(namespace: &str, state: &TargetState) -> Option<Self> {
        let (kind, uid) = controller(state.extra(extras::OWNER)?)?;
        let node = state.extra(extras::NODE).map(str::to_owned);
        Some(Self { kind: kind.to_owned(), namespace: namespace.to_owned(), uid: uid.to_owned(), node })
    }

    /// At most [`CANDIDATES`] of its objects that were made at `since` or later, oldest first. `free` leaves out those
    /// that are not to be had.
    pub fn made_since(
        &self,
        store: &Store,
        kind: &Kind,
        since: Timestamp,
        free: impl Fn(Vec<Arc<Object>>) -> Vec<Arc<Object>>,
    ) -> Vec<Arc<Object>> {
        let here = |object: &Object| {
            !keeps_node(&self.kind) || object.text("/spec/nodeName").as_deref() == self.node.as_deref()
        };
        let mut from = (Some(since), String::new());
        let mut found = Vec::new();
        while found.len() < CANDIDATES {
            let next = store.siblings(kind, (&self.namespace, &self.uid), &from, SIBLINGS);
            let Some(last) = next.last() else { break };
            from = (last.created, last.key.name.clone());
            let whole = next.len() == SIBLINGS;
            found.extend(free(next.into_iter().filter(|object| here(object) && !holds::barred(object)).collect()));
            if !whole {
                break;
            }
        }
        found.truncate(CANDIDATES);
        found
    }
}
