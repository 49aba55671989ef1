//! The objects that a controller has made as successors of those that it lost.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
pub use oarlock_contract::successors::CANDIDATES;
use oarlock_contract::successors::{controller, keeps_node};

use crate::cache::store::{RootUid, Store};
use crate::object::api_object::{Kind, Object};
use crate::operation_job::holds;
use crate::operation_job::state::{TargetState, extras};

/// Number of siblings that the host takes from the cache at once. Most of them are free.
pub(crate) const SIBLINGS: usize = 64;

/// The root controller that a target had when it started; for a DaemonSet, on one node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RootController {
    /// Kind of the controller, such as `Deployment`.
    pub kind: String,
    /// Namespace of the controller's objects.
    pub namespace: String,
    /// UID of the controller.
    pub uid: String,
    /// The node, for a DaemonSet's pods.
    pub node: Option<String>,
}

impl RootController {
    /// Returns the controller that is recorded for a target of a namespace.
    pub fn of(namespace: &str, state: &TargetState) -> Option<Self> {
        let (kind, uid) = controller(state.extra(extras::OWNER)?)?;
        let node = state.extra(extras::NODE).map(str::to_owned);
        Some(Self { kind: kind.to_owned(), namespace: namespace.to_owned(), uid: uid.to_owned(), node })
    }

    /// Returns at most [`CANDIDATES`] objects of the controller that were made at `since` or later, oldest first.
    /// `free` leaves out the objects that the target cannot have.
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
        let root = RootUid { namespace: &self.namespace, uid: &self.uid };
        let mut from = (Some(since), String::new());
        let mut found = Vec::new();
        while found.len() < CANDIDATES {
            let next = store.siblings(kind, root, &from, SIBLINGS);
            let Some(last) = next.last() else { break };
            from = (last.created, last.key.name.clone());
            let whole = next.len() == SIBLINGS;
            found.extend(free(
                next.into_iter().filter(|object| here(object) && !holds::is_marked_not_a_successor(object)).collect(),
            ));
            if !whole {
                break;
            }
        }
        found.truncate(CANDIDATES);
        found
    }
}
