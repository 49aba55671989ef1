//! The objects that a job's selector asks for, as the API server has them now.
//!
//! Takes a query; yields names and UIDs, by name, of those that are not being deleted. A list names no resourceVersion, so
//! that it is consistent, and ends once more were found than any job may have. Source: docs/operationjob.md 3.2.

use std::collections::{BTreeMap, BTreeSet};

use oarlock_core::cluster::live_reads::{FoundTarget, ReadFailure};
use oarlock_core::cluster::object::{Kind, Object};
use oarlock_core::job::selector::TargetQuery;
use oarlock_core::job::spec::MOST_TARGETS;
use serde_json::Value;

use crate::cluster::Link;
use crate::live_reads::failure;
use crate::transport::list::Collection;
use crate::watch::projection::Projection;

/// The UIDs of ReplicaSets, each with that of the controller asked for.
type ReplicaSets = BTreeMap<String, String>;

impl Link {
    /// What `query` finds in a namespace, or among objects that are in none.
    pub(crate) async fn select(
        &self,
        kind: &Kind,
        namespace: Option<&str>,
        query: &TargetQuery,
    ) -> Result<Vec<FoundTarget>, ReadFailure> {
        let sets = match namespace.filter(|_| query.through_replica_sets()) {
            Some(namespace) => Some(self.replica_sets_of(namespace, query).await?),
            None => None,
        };
        let labels = match query {
            TargetQuery::Labels(labels) => Some(labels.as_str()),
            TargetQuery::Controller { .. } => None,
        };
        let pick = |item: Value| {
            let object = Object::slim(&item, kind, &[]).filter(|object| !object.terminating())?;
            let controller = match query {
                TargetQuery::Labels(_) => None,
                TargetQuery::Controller { .. } => Some(controller(&object, query, sets.as_ref())?),
            };
            Some((FoundTarget { name: object.key.name, uid: object.uid }, controller))
        };
        let resource = self.resource(kind).await?;
        let from = Collection { resource: &resource, namespace, labels, fields: None };
        let listed = self.transport.list_until(from, &Projection::of_object(&[]), pick, MOST_TARGETS).await;
        let found = listed.map_err(|error| failure(&error, error.is_refused()))?.items;
        one_controller(&found, query)?;
        let mut found: Vec<FoundTarget> = found.into_iter().map(|(target, _)| target).collect();
        found.sort();
        Ok(found)
    }

    /// The ReplicaSets of the controller asked for.
    async fn replica_sets_of(&self, namespace: &str, query: &TargetQuery) -> Result<ReplicaSets, ReadFailure> {
        let kind = Kind::new("apps/v1", "ReplicaSet");
        let resource = self.resource(&kind).await?;
        let from = Collection { resource: &resource, namespace: Some(namespace), labels: None, fields: None };
        let pick = |item: Value| {
            let set = Object::slim(&item, &kind, &[])?;
            let owner = set.controller().filter(|owner| query.is_controller(owner))?.uid.clone();
            Some((set.uid, owner))
        };
        let listed = self.transport.list(from, &Projection::of_object(&[]), pick).await;
        Ok(listed.map_err(|error| failure(&error, error.is_refused()))?.items.into_iter().collect())
    }
}

/// The UID of the controller asked for, if the object is its own.
fn controller(object: &Object, query: &TargetQuery, sets: Option<&ReplicaSets>) -> Option<String> {
    let owner = object.controller()?;
    match sets {
        Some(sets) => sets.get(&owner.uid).cloned(),
        None => query.is_controller(owner).then(|| owner.uid.clone()),
    }
}

/// Refuses objects of two controllers of one name: one of them is gone, and its objects go soon.
fn one_controller(found: &[(FoundTarget, Option<String>)], query: &TargetQuery) -> Result<(), ReadFailure> {
    let controllers: BTreeSet<&String> = found.iter().filter_map(|(_, controller)| controller.as_ref()).collect();
    match query {
        TargetQuery::Controller { kind, name } if controllers.len() > 1 => {
            let message = format!(
                "failed to tell which pods are those of {} {name}: there are still some of an earlier one of this name; delete those, or select by label",
                kind.kind
            );
            Err(ReadFailure { message, refused: true })
        }
        _ => Ok(()),
    }
}
