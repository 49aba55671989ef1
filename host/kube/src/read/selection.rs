//! Live reads of the objects that the selector of a job selects.
//!
//! A read takes a query and returns the names and UIDs of the objects that are not being deleted, sorted by name. The list names no
//! resourceVersion, so that it is consistent. It ends once it has found more objects than a job may have. Source: docs/operationjob.md 3.2.

use std::collections::{BTreeMap, BTreeSet};

use oarlock_core::object::api_object::{Kind, Object};
use oarlock_core::operation_job::spec::MOST_TARGETS;
use oarlock_core::requests::live_reads::{FoundTarget, ReadFailure};
use oarlock_core::requests::selector::TargetQuery;
use serde_json::Value;

use crate::link::Link;
use crate::read::live_reads::failure;
use crate::transport::list::Collection;
use crate::transport::projection::Projection;

/// The UIDs of ReplicaSets, each with the UID of the controller that the query names.
type ReplicaSets = BTreeMap<String, String>;

impl Link {
    /// Lists the objects that `query` selects in a namespace, or among cluster-scoped objects.
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
        let controllers: BTreeSet<&String> = found.iter().filter_map(|(_, controller)| controller.as_ref()).collect();
        one_controller(controllers.len(), query)?;
        let mut found: Vec<FoundTarget> = found.into_iter().map(|(target, _)| target).collect();
        found.sort();
        Ok(found)
    }

    /// Lists the ReplicaSets of the controller that the query names.
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

/// Returns the UID of the controller that the query names, if that controller owns the object.
fn controller(object: &Object, query: &TargetQuery, sets: Option<&ReplicaSets>) -> Option<String> {
    let owner = object.controller()?;
    match sets {
        Some(sets) => sets.get(&owner.uid).cloned(),
        None => query.is_controller(owner).then(|| owner.uid.clone()),
    }
}

/// Refuses objects of two controllers with one name. One of the controllers was deleted, and the garbage collector soon deletes its
/// objects.
fn one_controller(controllers: usize, query: &TargetQuery) -> Result<(), ReadFailure> {
    match query {
        TargetQuery::Controller { kind, name } if controllers > 1 => {
            let message = format!(
                "failed to tell which pods are those of {} {name}: there are still some of an earlier one of this name; delete those, or select by label",
                kind.kind
            );
            Err(ReadFailure { message, refused: true })
        }
        _ => Ok(()),
    }
}
