//! The cache of ContainerRecreateRequests, and the watch that fills it.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use kube::runtime::watcher::Event;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;

use super::pod_facts::version_of;
use super::rounds::WorkKey;
use super::store::Place;
use super::watches::Watches;

/// The label with the uid of the request's pod, which OpenKruise's webhook sets.
pub(crate) const POD_UID: &str = "crr.apps.kruise.io/pod-uid";

/// The phases of a request and of its containers.
pub(crate) const PENDING: &str = "Pending";
pub(crate) const RECREATING: &str = "Recreating";
pub(crate) const SUCCEEDED: &str = "Succeeded";
pub(crate) const FAILED: &str = "Failed";
pub(crate) const COMPLETED: &str = "Completed";

/// A request, reduced to the fields that its decider reads.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RecreateRequest {
    pub(crate) place: Place,
    pub(crate) uid: String,
    pub(crate) version: u64,
    pub(crate) created: Option<Timestamp>,
    pub(crate) is_terminating: bool,
    /// The uid of the pod, none until the simulated webhook has accepted the request.
    pub(crate) pod_uid: Option<String>,
    pub(crate) spec: RecreateSpec,
    pub(crate) status: RecreateStatus,
}

/// The spec of a request.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RecreateSpec {
    pub(crate) pod_name: String,
    pub(crate) containers: Vec<RecreateContainer>,
    pub(crate) strategy: RecreateStrategy,
}

/// A container of a request, with its state when the request was accepted.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RecreateContainer {
    pub(crate) name: String,
    pub(crate) status_context: Option<StatusContext>,
}

/// The state of a container when its request was accepted.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct StatusContext {
    pub(crate) restart_count: i32,
}

/// The strategy of a request.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RecreateStrategy {
    pub(crate) failure_policy: Option<String>,
    pub(crate) ordered_recreate: bool,
    pub(crate) min_started_seconds: u32,
}

/// The status of a request.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RecreateStatus {
    pub(crate) phase: String,
    pub(crate) container_recreate_states: Vec<RecreateState>,
}

/// The state of one container of a request.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct RecreateState {
    pub(crate) name: String,
    pub(crate) phase: String,
    pub(crate) message: String,
}

impl RecreateRequest {
    /// Reads a request from an object. Returns none if the object has no uid or cannot be parsed.
    pub(crate) fn read(object: &DynamicObject) -> Option<Self> {
        let meta = &object.metadata;
        let status = object.data.get("status").cloned().unwrap_or_else(|| Value::Object(Default::default()));
        Some(Self {
            place: (meta.namespace.clone()?, meta.name.clone()?),
            uid: meta.uid.clone()?,
            version: version_of(meta),
            created: meta.creation_timestamp.as_ref().map(|time| time.0),
            is_terminating: meta.deletion_timestamp.is_some(),
            pod_uid: meta.labels.as_ref().and_then(|labels| labels.get(POD_UID).cloned()),
            spec: serde_json::from_value(object.data.get("spec")?.clone()).ok()?,
            status: serde_json::from_value(status).ok()?,
        })
    }

    /// Returns true if the request has ended or is being deleted.
    pub(crate) fn is_over(&self) -> bool {
        self.is_terminating || [COMPLETED, SUCCEEDED, FAILED].contains(&self.status.phase.as_str())
    }

    /// Returns the position of the request among the requests for its pod. The daemon works only on the first one.
    fn turn(&self) -> (u8, Option<Timestamp>, &Place) {
        let weight = match self.status.phase.as_str() {
            RECREATING => 0,
            PENDING => 1,
            _ => 2,
        };
        (weight, self.created, &self.place)
    }
}

/// The last observed requests.
#[derive(Debug, Default)]
pub(crate) struct RecreateRequests {
    all: Mutex<BTreeMap<Place, Arc<RecreateRequest>>>,
}

impl RecreateRequests {
    /// Stores a version of a request, unless the cache has a newer one.
    pub(crate) fn put(&self, request: RecreateRequest) {
        let mut all = self.all.lock();
        if all.get(&request.place).is_none_or(|known| known.version <= request.version) {
            all.insert(request.place.clone(), Arc::new(request));
        }
    }

    pub(crate) fn get(&self, place: &Place) -> Option<Arc<RecreateRequest>> {
        self.all.lock().get(place).cloned()
    }

    pub(crate) fn places(&self) -> Vec<Place> {
        self.all.lock().keys().cloned().collect()
    }

    /// Returns the requests for a pod.
    pub(crate) fn about(&self, (namespace, pod): &Place) -> Vec<Place> {
        let all = self.all.lock();
        let own = all.values().filter(|request| request.place.0 == *namespace && request.spec.pod_name == *pod);
        own.map(|request| request.place.clone()).collect()
    }

    /// Returns true if no other open request for the same pod comes first.
    pub(crate) fn has_its_turn(&self, request: &RecreateRequest) -> bool {
        let all = self.all.lock();
        let of_pod = |other: &&Arc<RecreateRequest>| {
            other.place.0 == request.place.0 && other.spec.pod_name == request.spec.pod_name && other.uid != request.uid
        };
        !all.values().filter(of_pod).any(|other| !other.is_over() && other.turn() < request.turn())
    }

    fn remove(&self, request: &RecreateRequest) {
        let mut all = self.all.lock();
        if all.get(&request.place).is_some_and(|known| known.uid == request.uid) {
            all.remove(&request.place);
        }
    }

    fn only_these_exist(&self, uids: &HashSet<String>) {
        self.all.lock().retain(|_, request| uids.contains(&request.uid));
    }
}

/// The state of the watch of requests.
pub(crate) struct RequestWatch {
    watches: Watches,
    seen: HashSet<String>,
}

impl RequestWatch {
    pub(crate) fn new(watches: Watches) -> Self {
        Self { watches, seen: HashSet::new() }
    }

    /// Handles a watch event.
    pub(crate) fn saw(&mut self, event: Event<DynamicObject>) {
        let requests = &self.watches.rounds.requests;
        match event {
            Event::Init => self.seen.clear(),
            Event::InitDone => requests.only_these_exist(&self.seen),
            Event::InitApply(object) | Event::Apply(object) => {
                self.seen.extend(object.metadata.uid.clone());
                let read = RecreateRequest::read(&object);
                if let Some(request) = read.filter(|request| self.watches.looks_after(&request.place.0)) {
                    requests.put(request.clone());
                    self.look_again(&request);
                }
            }
            Event::Delete(object) => {
                if let Some(request) = RecreateRequest::read(&object) {
                    requests.remove(&request);
                    self.look_again(&request);
                }
            }
        }
    }

    /// Wakes all requests for the pod, since another one may now be the first.
    fn look_again(&self, request: &RecreateRequest) {
        let about = (request.place.0.clone(), request.spec.pod_name.clone());
        for place in self.watches.rounds.requests.about(&about) {
            self.watches.queue.add(WorkKey::Request(place), Duration::ZERO);
        }
    }
}
