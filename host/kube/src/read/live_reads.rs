//! The live reads that a round requests.
//!
//! The host puts their answers into the store and answers no read from the cache. It combines reads: several objects of one kind and
//! namespace become one list if the list costs the API server less.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::StreamExt;
use kube::core::params::GetParams;
use oarlock_core::object::api_object::{Kind, Object, ObjectKey, Owner};
use oarlock_core::object::key::JobRef;
use oarlock_core::object::task_pod::{JOB_UID, TASK};
use oarlock_core::requests::live_reads::{FoundTarget, LiveRead, LiveReads, ReadFailure};
use oarlock_core::requests::selector::TargetQuery;
use oarlock_core::requests::writes::Write;
use serde_json::Value;

use crate::error_chain::error_chain;
use crate::link::Link;
use crate::transport::call::{ApiCall, RequestError, absent, refused};
use crate::transport::discovery::DiscoverError;
use crate::transport::list::{Collection, Listed};
use crate::transport::path::Resource;
use crate::transport::projection::Projection;
use crate::watch::jobs::read_job;

/// The number of reads in flight for one round.
const AT_ONCE: usize = 8;
/// The fewest objects for which the host considers a list.
const MANY: usize = 9;
/// The number of single reads that cost the API server about as much as a page of 500 objects.
const READS_PER_PAGE: usize = 25;
const PAGE: usize = 500;

/// A request that answers one or more reads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ReadRequest {
    Get(ObjectKey),
    List { kind: Kind, namespace: Option<String>, reads: BTreeSet<LiveRead> },
    Labelled(LiveRead),
    OnNode { node: String },
    Served(Kind),
    Controllers { namespace: String },
    Selection { kind: Kind, namespace: Option<String>, query: Box<TargetQuery> },
}

/// Combines reads into requests. `held` returns the known number of objects of a kind.
fn read_requests(reads: &[LiveRead], held: impl Fn(&Kind) -> usize) -> Vec<ReadRequest> {
    let mut requests = BTreeSet::new();
    let mut groups: BTreeMap<(Kind, Option<String>), BTreeSet<LiveRead>> = BTreeMap::new();
    for read in reads {
        match read {
            LiveRead::Object(key) => {
                groups.entry((key.kind.clone(), key.namespace.clone())).or_default().insert(read.clone());
            }
            LiveRead::All { kind, namespace } => {
                groups.entry((kind.clone(), Some(namespace.clone()))).or_default().insert(read.clone());
            }
            LiveRead::Labelled { .. } => {
                requests.insert(ReadRequest::Labelled(read.clone()));
            }
            LiveRead::OnNode { node } => {
                requests.insert(ReadRequest::OnNode { node: node.clone() });
            }
            LiveRead::Served(kind) => {
                requests.insert(ReadRequest::Served(kind.clone()));
            }
            LiveRead::Controllers { namespace } => {
                requests.insert(ReadRequest::Controllers { namespace: namespace.clone() });
            }
            LiveRead::Selection { kind, namespace, query } => {
                let (kind, namespace, query) = (kind.clone(), namespace.clone(), query.clone());
                requests.insert(ReadRequest::Selection { kind, namespace, query });
            }
        }
    }
    for ((kind, namespace), reads) in groups {
        let whole = reads.iter().any(|read| matches!(read, LiveRead::All { .. }));
        let pages = held(&kind).div_ceil(PAGE);
        if whole || (reads.len() >= MANY && reads.len() >= pages * READS_PER_PAGE) {
            requests.insert(ReadRequest::List { kind, namespace, reads });
        } else {
            let keys =
                reads.into_iter().filter_map(|read| if let LiveRead::Object(key) = read { Some(key) } else { None });
            requests.extend(keys.map(ReadRequest::Get));
        }
    }
    requests.into_iter().collect()
}

impl ReadRequest {
    fn reads(&self) -> Vec<LiveRead> {
        match self {
            Self::Get(key) => vec![LiveRead::Object(key.clone())],
            Self::List { reads, .. } => reads.iter().cloned().collect(),
            Self::Labelled(read) => vec![read.clone()],
            Self::OnNode { node } => vec![LiveRead::OnNode { node: node.clone() }],
            Self::Served(kind) => vec![LiveRead::Served(kind.clone())],
            Self::Controllers { namespace } => vec![LiveRead::Controllers { namespace: namespace.clone() }],
            Self::Selection { kind, namespace, query } => {
                let (kind, namespace, query) = (kind.clone(), namespace.clone(), query.clone());
                vec![LiveRead::Selection { kind, namespace, query }]
            }
        }
    }
}

type ReadObjects = BTreeMap<ObjectKey, Option<Arc<Object>>>;

/// The answer to a request.
enum ReadAnswer {
    /// The objects that the request read.
    ReadObjects(ReadObjects),
    /// The targets that a selector found.
    Found(Vec<FoundTarget>),
}

impl Link {
    /// Makes all reads.
    pub(crate) async fn read_live(&self, reads: &[LiveRead]) -> LiveReads {
        let requests = read_requests(reads, |kind| self.objects.store.count(kind));
        let answers = futures::stream::iter(requests).map(|request| async move {
            let found = self.run(&request).await;
            (request, found)
        });
        let answers: Vec<_> = answers.buffer_unordered(AT_ONCE).collect().await;
        let mut live = LiveReads::default();
        for (request, found) in answers {
            match found {
                Ok(ReadAnswer::ReadObjects(seen)) => {
                    live.answered.extend(request.reads());
                    live.objects.extend(seen);
                }
                Ok(ReadAnswer::Found(found)) => {
                    live.answered.extend(request.reads());
                    live.selections.extend(request.reads().into_iter().map(|read| (read, found.clone())));
                }
                Err(failure) => live.failed.extend(request.reads().into_iter().map(|read| (read, failure.clone()))),
            }
        }
        live
    }

    async fn run(&self, request: &ReadRequest) -> Result<ReadAnswer, ReadFailure> {
        let seen = match request {
            ReadRequest::Get(key) => self.get(key).await.map(|object| ReadObjects::from([(key.clone(), object)])),
            ReadRequest::List { kind, namespace, reads } => self.sweep(kind, namespace.as_deref(), reads).await,
            ReadRequest::Labelled(read) => self.labelled(read).await,
            ReadRequest::OnNode { node } => self.on_node(node).await.map(|()| ReadObjects::new()),
            ReadRequest::Served(kind) => self.ask_for(kind).await.map(|()| ReadObjects::new()),
            ReadRequest::Controllers { namespace } => self.controllers(namespace).await,
            ReadRequest::Selection { kind, namespace, query } => {
                return self.select(kind, namespace.as_deref(), query).await.map(ReadAnswer::Found);
            }
        };
        seen.map(ReadAnswer::ReadObjects)
    }

    /// Reads one object. Returns `None` if the API server has no object of this name.
    async fn get(&self, key: &ObjectKey) -> Result<Option<Arc<Object>>, ReadFailure> {
        let shown = self.objects.store.get(key);
        let document = match self.read(key).await? {
            Ok(document) => document,
            Err(error) if absent(&error, &key.name) => {
                if let Some(shown) = shown {
                    self.objects.send(self.objects.store.confirm_gone(key, &shown.uid), None);
                }
                return Ok(None);
            }
            Err(error) => return Err(failure(&error, refused(&error))),
        };
        let odd =
            || ReadFailure { message: "the API server's reply is no Kubernetes object".to_owned(), refused: false };
        let object = self.objects.project(&document, &key.kind).ok_or_else(odd)?;
        self.objects.take(object.clone());
        Ok(Some(Arc::new(object)))
    }

    /// Lists all jobs that the API server has now.
    pub(crate) async fn list_jobs(&self) -> Result<Vec<JobRef>, String> {
        let resource = self.resource(&Kind::job()).await.map_err(|failure| failure.message)?;
        let from = Collection { resource: &resource, namespace: None, labels: None, fields: None };
        let job = |item: Value| read_job(&item).map(|held| JobRef { key: held.key, uid: held.uid });
        let listed = self.transport.list(from, &Projection::of_object(&[]), job).await;
        listed.map(|listed| listed.items).map_err(|error| error_chain(&error))
    }

    /// Returns the writes that delete the outputs of tasks whose job no longer exists. The host lists the jobs after the outputs, because
    /// the cache may not have a job of an earlier leader yet.
    pub(crate) async fn orphaned_outputs(&self, namespace: &str) -> Result<Vec<Write>, String> {
        let kind = Kind::new("v1", "ConfigMap");
        let resource = self.resource(&kind).await.map_err(|failure| failure.message)?;
        let from = Collection { resource: &resource, namespace: Some(namespace), labels: Some(TASK), fields: None };
        let read = |item: Value| Object::slim(&item, &kind, &[]);
        let listed = self.transport.list(from, &Projection::of_object(&[]), read).await;
        let jobs = self.jobs.uids();
        let mut outputs = listed.map_err(|error| error_chain(&error))?.items;
        outputs.retain(|output| output.labels.get(JOB_UID).is_some_and(|uid| !jobs.contains(uid)));
        if outputs.is_empty() {
            return Ok(Vec::new());
        }
        let there: BTreeSet<String> = self.list_jobs().await?.into_iter().map(|job| job.uid).collect();
        outputs.retain(|output| output.labels.get(JOB_UID).is_none_or(|uid| !there.contains(uid)));
        let delete = |Object { key: object, uid, .. }| Write::Delete {
            object,
            uid,
            resource_version: None,
            grace_seconds: None,
            propagation: None,
        };
        Ok(outputs.into_iter().map(delete).collect())
    }

    /// Reads the document of one object.
    pub(crate) async fn read(&self, key: &ObjectKey) -> Result<Result<Value, RequestError>, ReadFailure> {
        self.read_fields(key, &Projection::everything()).await
    }

    /// Reads these fields of one object.
    pub(crate) async fn read_fields(
        &self,
        key: &ObjectKey,
        fields: &Projection,
    ) -> Result<Result<Value, RequestError>, ReadFailure> {
        let resource = self.resource(&key.kind).await?;
        let home = resource.home(key.namespace.as_deref(), &key.name).map_err(|error| failure(&error, true))?;
        let request = kube::core::Request::new(home).get(&key.name, &GetParams::default());
        let reply = self.transport.send(ApiCall { verb: "get", resource: &resource.plural, request }).await;
        Ok(reply.and_then(|text| fields.read(&text).map_err(RequestError::Unreadable)))
    }

    /// Finds out whether the API server serves a kind. The answer that it does not serve the kind is no error.
    async fn ask_for(&self, kind: &Kind) -> Result<(), ReadFailure> {
        match self.discovery.resource(&self.transport, kind).await {
            Ok(_) | Err(DiscoverError::NotServed { .. }) => Ok(()),
            Err(error) => Err(failure(&error, error.is_refused())),
        }
    }

    pub(crate) async fn resource(&self, kind: &Kind) -> Result<Resource, ReadFailure> {
        let found = self.discovery.resource(&self.transport, kind).await;
        found.map_err(|error| failure(&error, error.is_refused()))
    }

    /// Lists all objects of a kind in a namespace. An object that the store showed before and that the list lacks has been deleted.
    async fn sweep(
        &self,
        kind: &Kind,
        namespace: Option<&str>,
        reads: &BTreeSet<LiveRead>,
    ) -> Result<ReadObjects, ReadFailure> {
        let shown = self.objects.store.all(kind, namespace);
        let listed = self.list_objects(kind, namespace, None).await?;
        let version = listed.number();
        let mut found: BTreeMap<ObjectKey, Arc<Object>> = BTreeMap::new();
        for object in listed.items {
            self.objects.take(object.clone());
            found.insert(object.key.clone(), Arc::new(object));
        }
        let missing = |old: &&Arc<Object>| found.get(&old.key).is_none_or(|new| new.uid != old.uid);
        for old in shown.iter().filter(|old| old.version() <= version).filter(missing) {
            self.objects.send(self.objects.store.confirm_gone(&old.key, &old.uid), None);
        }
        let named = reads.iter().filter_map(|read| if let LiveRead::Object(key) = read { Some(key) } else { None });
        let mut seen: ReadObjects = named.map(|key| (key.clone(), found.get(key).cloned())).collect();
        if !self.objects.store.keeps(kind) {
            seen.extend(found.into_iter().map(|(key, object)| (key, Some(object))));
        }
        Ok(seen)
    }

    /// Lists the pods of a node in all namespaces. A pod that the store showed on the node before and that the list lacks has been deleted,
    /// because pods do not move to other nodes.
    async fn on_node(&self, node: &str) -> Result<(), ReadFailure> {
        let pods = Kind::pod();
        let shown = self.objects.store.on_node(node);
        let resource = self.resource(&pods).await?;
        let on_node = format!("spec.nodeName={node}");
        let from = Collection { resource: &resource, namespace: None, labels: None, fields: Some(&on_node) };
        let listed =
            self.transport.list(from, &self.objects.projection(&pods), |item| self.objects.project(&item, &pods)).await;
        let listed = listed.map_err(|error| failure(&error, error.is_refused()))?;
        let version = listed.number();
        let found: BTreeSet<String> = listed.items.iter().map(|pod| pod.uid.clone()).collect();
        listed.items.into_iter().for_each(|pod| self.objects.take(pod));
        for old in shown.iter().filter(|old| old.version() <= version && !found.contains(&old.uid)) {
            self.objects.send(self.objects.store.confirm_gone(&old.key, &old.uid), None);
        }
        Ok(())
    }

    /// Lists all objects with a label. The host reads an object by name if the store shows it with the label but the list lacks it. Such an
    /// object may be deleted or may have lost the label.
    async fn labelled(&self, read: &LiveRead) -> Result<ReadObjects, ReadFailure> {
        let LiveRead::Labelled { kind, namespace, label, value } = read else { return Ok(ReadObjects::new()) };
        let shown = self.objects.store.labelled(kind, namespace, label, value);
        let listed = self.list_objects(kind, Some(namespace), Some(&format!("{label}={value}"))).await?;
        let mut seen = ReadObjects::new();
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

    /// Learns the Deployment of each ReplicaSet of a namespace.
    async fn controllers(&self, namespace: &str) -> Result<ReadObjects, ReadFailure> {
        let store = &self.objects.store;
        let replica_sets = Kind::new("apps/v1", "ReplicaSet");
        // A ReplicaSet that is created during the list is not in the list, so the host must read it again.
        let unresolved = store.unresolved(&Kind::pod(), namespace);
        let listed = self.list_objects(&replica_sets, Some(namespace), None).await?;
        let mut learned = BTreeSet::new();
        for set in listed.items {
            let itself = Owner {
                kind: replica_sets.clone(),
                name: set.key.name.clone(),
                uid: set.uid.clone(),
                controller: true,
            };
            store.learn_root(namespace, &set.uid, set.controller().unwrap_or(&itself));
            learned.insert(set.uid);
        }
        // The other ReplicaSets are deleted, so their Deployments cannot be found any more.
        for owner in unresolved.iter().filter(|owner| !learned.contains(&owner.uid)) {
            store.learn_root(namespace, &owner.uid, owner);
        }
        Ok(ReadObjects::new())
    }

    async fn list_objects(
        &self,
        kind: &Kind,
        namespace: Option<&str>,
        labels: Option<&str>,
    ) -> Result<Listed<Object>, ReadFailure> {
        let resource = self.resource(kind).await?;
        let from = Collection { resource: &resource, namespace, labels, fields: None };
        let listed =
            self.transport.list(from, &self.objects.projection(kind), |item| self.objects.project(&item, kind)).await;
        listed.map_err(|error| failure(&error, error.is_refused()))
    }
}

pub(crate) fn failure(error: &dyn std::error::Error, refused: bool) -> ReadFailure {
    ReadFailure { message: error_chain(error), refused }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(n: usize) -> LiveRead {
        LiveRead::Object(ObjectKey::pod("d", format!("p{n}")))
    }

    #[test]
    fn a_few_objects_are_read_by_name_and_many_by_a_list() {
        let few: Vec<LiveRead> = (0..8).map(read).collect();
        assert_eq!(read_requests(&few, |_| 10).len(), 8);
        let many: Vec<LiveRead> = (0..30).map(read).collect();
        assert!(
            matches!(read_requests(&many, |_| 400).as_slice(), [ReadRequest::List { reads, .. }] if reads.len() == 30)
        );
        assert_eq!(read_requests(&many, |_| 10_000).len(), 30, "twenty pages cost more than thirty reads");
    }

    #[test]
    fn a_list_that_is_made_anyway_answers_for_single_objects_too() {
        let all = LiveRead::All { kind: Kind::pod(), namespace: "d".into() };
        let reads = [read(1), all.clone(), read(1)];
        let requests = read_requests(&reads, |_| 10_000);
        assert!(matches!(requests.as_slice(), [ReadRequest::List { .. }]));
        assert_eq!(requests[0].reads().len(), 2);
    }

    #[test]
    fn namespaces_and_kinds_are_read_apart() {
        let nodes = LiveRead::Object(ObjectKey { kind: Kind::new("v1", "Node"), namespace: None, name: "n".into() });
        let mut reads: Vec<LiveRead> = (0..9).map(read).collect();
        reads.extend([nodes, LiveRead::Controllers { namespace: "d".into() }]);
        assert_eq!(read_requests(&reads, |_| 0).len(), 3);
    }
}
