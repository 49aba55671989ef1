//! The nodes of jobs that are being made, and of those that live. Source: docs/opsjob-rest.md 4.
//!
//! The controller alone decides who has a node. This answers the loser at once, where it can be known here.

use std::collections::{HashMap, HashSet};

use oarlock_core::ops_job::holders::{HeldPlace, PlaceTaken};
use oarlock_kube::ops::OpsCache;
use parking_lot::Mutex;

/// The nodes of jobs that this process is making, by UID, each with the name of the job.
#[derive(Default)]
pub(crate) struct NodeClaims(Mutex<HashMap<String, String>>);

/// Keeps nodes until it is dropped: by then the job is in the cache, or was not made.
pub(crate) struct NodeClaim<'a> {
    claims: &'a NodeClaims,
    nodes: Vec<String>,
}

impl Drop for NodeClaim<'_> {
    fn drop(&mut self) {
        let mut held = self.claims.0.lock();
        self.nodes.iter().for_each(|node| drop(held.remove(node)));
    }
}

impl NodeClaims {
    /// Takes these nodes for a job of this name, or yields the first one that another job has.
    pub(crate) fn take(
        &self,
        job: &str,
        nodes: &[(String, String)],
        cache: &OpsCache,
    ) -> Result<NodeClaim<'_>, PlaceTaken> {
        let mut held = self.0.lock();
        let taken = |node: &str, holder: &str| PlaceTaken {
            place: HeldPlace::Node(node.to_owned()),
            holder: holder.to_owned(),
        };
        if let Some((uid, holder)) = nodes.iter().find_map(|(_, uid)| Some((uid, held.get(uid)?))) {
            return Err(taken(uid, holder));
        }
        if let Some((uid, holder)) = holder(nodes, cache) {
            return Err(taken(&uid, &holder));
        }
        held.extend(nodes.iter().map(|(_, uid)| (uid.clone(), job.to_owned())));
        Ok(NodeClaim { claims: self, nodes: nodes.iter().map(|(_, uid)| uid.clone()).collect() })
    }
}

/// The first of these nodes that a job has which lives, and that job.
fn holder(nodes: &[(String, String)], cache: &OpsCache) -> Option<(String, String)> {
    let wanted: HashSet<&str> = nodes.iter().map(|(_, uid)| uid.as_str()).collect();
    cache.jobs().into_iter().filter(|job| job.is_live()).find_map(|job| {
        let mut targets = job.view.targets.iter().flat_map(|resolved| &resolved.targets);
        let (_, uid) = targets.find(|(_, uid)| wanted.contains(uid.as_str()))?;
        Some((uid.clone(), job.view.name.clone()))
    })
}
