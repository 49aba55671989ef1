//! The objects that a controller has made, as successors of those that it lost.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use crate::cluster::object::{Kind, Object};
use crate::cluster::store::Store;
use crate::job::state::{TargetState, extras};
use crate::shared::holds;

/// Most candidates that the relation `same-controller` shows to a plugin.
pub const CANDIDATES: usize = 16;
/// Siblings that are taken from the store at once; most are free.
pub(crate) const SIBLINGS: usize = 64;

/// The root controller that a target had when it started; of a DaemonSet, on one node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RootController {
    /// Its kind, such as `Deployment`.
    pub kind: String,
    /// Its UID.
    pub uid: String,
    /// The node, for a DaemonSet's pods.
    pub node: Option<String>,
}

impl RootController {
    /// The one that is recorded for a target.
    pub fn of(state: &TargetState) -> Option<Self> {
        let (kind, name_and_uid) = state.extra(extras::OWNER)?.split_once('/')?;
        let uid = name_and_uid.rsplit('/').next()?.to_owned();
        Some(Self { kind: kind.to_owned(), uid, node: state.extra(extras::NODE).map(str::to_owned) })
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
            self.kind != "DaemonSet" || object.text("/spec/nodeName").as_deref() == self.node.as_deref()
        };
        let mut from = (Some(since), String::new());
        let mut found = Vec::new();
        while found.len() < CANDIDATES {
            let next = store.siblings(kind, &self.uid, &from, SIBLINGS);
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
