//! The world's memory of ContainerRecreateRequests, and the watch that fills it.

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

/// Label: the identity of the pod that a request is about. Kruise's webhook puts it.
pub(crate) const POD_UID: &str = "crr.apps.kruise.io/pod-uid";

/// The phases of a request.
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
    /// None until the world has accepted the request.
    pub(crate) pod_uid: Option<String>,
    pub(crate) spec: RecreateSpec,
    pub(crate) status: RecreateStatus,
}

/// Spec of a request.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RecreateSpec {
    pub(crate) pod_name: String,
    pub(crate) containers: Vec<RecreateContainer>,
    pub(crate) strategy: RecreateStrategy,
}

/// One container of a request, and how often it was restarted before.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RecreateContainer {
    pub(crate) name: String,
    pub(crate) status_context: Option<StatusContext>,
}

/// State of a container when its request was accepted.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct StatusContext {
    pub(crate) restart_count: i32,
}

/// Strategy of a request.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RecreateStrategy {
    pub(crate) failure_policy: Option<String>,
    pub(crate) ordered_recreate: bool,
    pub(crate) min_started_seconds: u32,
}

/// Status of a request.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RecreateStatus {
    pub(crate) phase: String,
    pub(crate) container_recreate_states: Vec<RecreateState>,
}

/// State of one container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct RecreateState {
    pub(crate) name: String,
    pub(crate) phase: String,
    pub(crate) message: String,
}

impl RecreateRequest {
    /// Reads a request off an object; none if it has no identity or cannot be read.
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

    /// True once nothing more follows of it.
    pub(crate) fn is_over(&self) -> bool {
        self.is_terminating || [COMPLETED, SUCCEEDED, FAILED].contains(&self.status.phase.as_str())
    }

    /// Where it stands among the requests about its pod: the daemon works on the first one alone.
    fn turn(&self) -> (u8, Option<Timestamp>, &Place) {
        let weight = match self.status.phase.as_str() {
            RECREATING => 0,
            PENDING => 1,
            _ => 2,
        };
        (weight, self.created, &self.place)
    }
}

/// The requests as last seen.
#[derive(Debug, Default)]
pub(crate) struct RecreateRequests {
    all: Mutex<BTreeMap<Place, Arc<RecreateRequest>>>,
}

impl RecreateRequests {
    /// Stores a version of a request, unless a newer one is known.
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

    /// The requests about a pod.
    pub(crate) fn about(&self, (namespace, pod): &Place) -> Vec<Place> {
        let all = self.all.lock();
        let own = all.values().filter(|request| request.place.0 == *namespace && request.spec.pod_name == *pod);
        own.map(|request| request.place.clone()).collect()
    }

    /// Whether no other request about its pod is before it.
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

    /// Handles one event.
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

    /// It and, since their turn may have come, the others about its pod.
    fn look_again(&self, request: &RecreateRequest) {
        let about = (request.place.0.clone(), request.spec.pod_name.clone());
        for place in self.watches.rounds.requests.about(&about) {
            self.watches.queue.add(WorkKey::Request(place), Duration::ZERO);
        }
    }
}
