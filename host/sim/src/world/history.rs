//! Records every version of the objects of some kinds in the order of resource versions, and checks invariants at
//! each version.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kube::api::{ApiResource, DynamicObject};
use kube::runtime::watcher::Event;
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::pod_facts::version_of;
use super::wait_until::{Overdue, wait_until};
use super::watch_stream::deliver;

/// One version of one object.
#[derive(Clone, Debug, PartialEq)]
pub struct Version {
    /// Resource version. The versions of all kinds share one order.
    pub resource_version: u64,
    /// Plural name of the object's kind, such as `pods`.
    pub plural: String,
    /// Namespace of the object, empty for cluster-wide kinds.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// UID of the object.
    pub uid: String,
    /// The whole object. At a deletion, its last version.
    pub object: Arc<Value>,
    /// Whether the object was deleted at this version.
    pub is_end: bool,
}

impl Version {
    /// Returns a value in the object by JSON pointer, such as `/status/progress`. Returns null if it is absent.
    #[must_use]
    pub fn at(&self, pointer: &str) -> &Value {
        self.object.pointer(pointer).unwrap_or(&Value::Null)
    }
}

/// The state of the cluster right after a version: the last version of each existing object, by plural, namespace and name.
pub type Snapshot = BTreeMap<(String, String, String), Version>;

/// A violation of an invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// Resource version at which the invariant was violated.
    pub resource_version: u64,
    /// The object whose version violated the invariant.
    pub object: String,
    /// Reason that the check returned.
    pub reason: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {} {}: {}", self.resource_version, self.object, self.reason)
    }
}

/// Missing versions of one kind: a watch broke, and the next list shows that there were changes in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Plural name of the kind.
    pub plural: String,
    /// The last resource version before the gap.
    pub after: u64,
    /// The first resource version after the gap.
    pub before: u64,
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "versions of {} between {} and {} may be missing", self.plural, self.after, self.before)
    }
}

/// A recorder of versions. It records until it is dropped.
pub struct History {
    versions: Arc<Mutex<Vec<Version>>>,
    gaps: Arc<Mutex<Vec<Gap>>>,
    length: Arc<watch::Sender<usize>>,
    _tasks: JoinSet<()>,
}

impl History {
    /// Starts to record all objects of some kinds.
    #[must_use]
    pub fn record(client: &Client, kinds: Vec<ApiResource>) -> Self {
        let (versions, length) = (Arc::new(Mutex::new(Vec::new())), Arc::new(watch::Sender::new(0)));
        let gaps = Arc::default();
        let mut tasks = JoinSet::new();
        for kind in kinds {
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
            let mut recorder = Recorder::new(kind.plural.clone(), versions.clone(), length.clone());
            recorder.gaps = Arc::clone(&gaps);
            tasks.spawn(deliver(api, move |event| recorder.saw(event)));
        }
        Self { versions, gaps, length, _tasks: tasks }
    }

    /// Returns the gaps in which versions may be missing.
    #[must_use]
    pub fn gaps(&self) -> Vec<Gap> {
        self.gaps.lock().clone()
    }

    /// Returns all recorded versions in the order of resource versions.
    #[must_use]
    pub fn versions(&self) -> Vec<Version> {
        let mut versions = self.versions.lock().clone();
        versions.sort_by_key(|version| version.resource_version);
        versions
    }

    /// Waits until the versions, in the order of arrival, satisfy a condition.
    ///
    /// # Errors
    /// If the condition does not hold before the deadline.
    pub async fn until(
        &self,
        what: &str,
        deadline: Duration,
        condition: impl FnMut(&[Version]) -> bool,
    ) -> Result<(), Overdue> {
        let mut condition = condition;
        let held = || condition(&self.versions.lock());
        wait_until(what, deadline, self.length.subscribe(), held).await
    }

    /// Runs a check on each version, with the state of the cluster right before and right after it. Returns the violations.
    #[must_use]
    pub fn sweep(&self, check: impl FnMut(&Snapshot, &Version, &Snapshot) -> Result<(), String>) -> Vec<Breach> {
        sweep(&self.versions(), check)
    }
}

/// Runs a check on sorted versions.
fn sweep(
    versions: &[Version],
    mut check: impl FnMut(&Snapshot, &Version, &Snapshot) -> Result<(), String>,
) -> Vec<Breach> {
    let (mut before, mut after) = (Snapshot::new(), Snapshot::new());
    let mut breaches = Vec::new();
    for version in versions {
        enter(&mut after, version);
        if let Err(reason) = check(&before, version, &after) {
            let object = format!("{} {}/{}", version.plural, version.namespace, version.name);
            breaches.push(Breach { resource_version: version.resource_version, object, reason });
        }
        enter(&mut before, version);
    }
    breaches
}

fn enter(cluster: &mut Snapshot, version: &Version) {
    let key = (version.plural.clone(), version.namespace.clone(), version.name.clone());
    if !version.is_end {
        cluster.insert(key, version.clone());
    } else if cluster.get(&key).is_some_and(|known| known.uid == version.uid) {
        cluster.remove(&key);
    }
}

/// Records the watch events of one kind.
struct Recorder {
    plural: String,
    versions: Arc<Mutex<Vec<Version>>>,
    gaps: Arc<Mutex<Vec<Gap>>>,
    length: Arc<watch::Sender<usize>>,
    alive: BTreeMap<String, Version>,
    listed: HashSet<String>,
    newest: u64,
    /// Whether a list was completed. After that, a new version in a list means that the watch may have missed versions.
    has_listed: bool,
    /// The newest version before the current list, if this is not the first list.
    listed_after: Option<u64>,
}

impl Recorder {
    fn new(plural: String, versions: Arc<Mutex<Vec<Version>>>, length: Arc<watch::Sender<usize>>) -> Self {
        Self {
            plural,
            versions,
            gaps: Arc::default(),
            length,
            alive: BTreeMap::new(),
            listed: HashSet::new(),
            newest: 0,
            has_listed: false,
            listed_after: None,
        }
    }

    fn saw(&mut self, event: Event<DynamicObject>) {
        match event {
            Event::Init => {
                self.listed.clear();
                self.listed_after = self.has_listed.then_some(self.newest);
            }
            Event::InitApply(object) => {
                self.listed.extend(object.metadata.uid.clone());
                self.note(object, false);
            }
            Event::Apply(object) => self.note(object, false),
            Event::Delete(object) => self.note(object, true),
            Event::InitDone => {
                self.end_unlisted();
                (self.has_listed, self.listed_after) = (true, None);
            }
        }
    }

    fn note(&mut self, object: DynamicObject, is_end: bool) {
        let Ok(value) = serde_json::to_value(&object) else { return };
        let meta = object.metadata;
        let version = Version {
            resource_version: version_of(&meta),
            plural: self.plural.clone(),
            namespace: meta.namespace.unwrap_or_default(),
            name: meta.name.unwrap_or_default(),
            uid: meta.uid.unwrap_or_default(),
            object: Arc::new(value),
            is_end,
        };
        self.append(version);
    }

    /// Ends the objects that a list after a gap lacks. The time of their deletion is unknown.
    fn end_unlisted(&mut self) {
        let missing: Vec<Version> =
            self.alive.values().filter(|version| !self.listed.contains(&version.uid)).cloned().collect();
        for version in missing {
            self.append(Version { is_end: true, resource_version: self.newest, ..version });
        }
    }

    fn append(&mut self, version: Version) {
        self.newest = self.newest.max(version.resource_version);
        let known = self.alive.get(&version.uid).map(|known| known.resource_version);
        if !version.is_end && known == Some(version.resource_version) {
            return;
        }
        if version.is_end {
            self.alive.remove(&version.uid);
        } else {
            self.alive.insert(version.uid.clone(), version.clone());
        }
        if let Some(after) = self.listed_after.take() {
            self.gaps.lock().push(Gap { plural: self.plural.clone(), after, before: version.resource_version });
        }
        let mut versions = self.versions.lock();
        versions.push(version);
        let length = versions.len();
        drop(versions);
        self.length.send_replace(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn version(number: u64, name: &str, is_end: bool) -> Version {
        let object = Arc::new(json!({ "status": { "n": number } }));
        let (plural, namespace) = ("pods".to_owned(), "demo".to_owned());
        Version { resource_version: number, plural, namespace, name: name.into(), uid: name.into(), object, is_end }
    }

    fn pod(number: u64, name: &str) -> DynamicObject {
        let mut pod = DynamicObject::new(name, &ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&()));
        pod.metadata.resource_version = Some(number.to_string());
        pod.metadata.uid = Some(name.to_owned());
        pod
    }

    fn recorder() -> Recorder {
        Recorder::new("pods".into(), Arc::default(), Arc::new(watch::Sender::new(0)))
    }

    #[test]
    fn a_first_list_that_is_repeated_amid_its_pages_leaves_no_gap() {
        let mut recorder = recorder();
        recorder.saw(Event::Init);
        recorder.saw(Event::InitApply(pod(9, "a")));
        recorder.saw(Event::Init);
        for pod in [pod(9, "a"), pod(5, "b")] {
            recorder.saw(Event::InitApply(pod));
        }
        recorder.saw(Event::InitDone);
        assert_eq!(*recorder.gaps.lock(), []);
    }

    #[test]
    fn a_list_that_shows_what_no_watch_did_is_a_gap_and_one_that_shows_nothing_new_is_none() {
        let mut recorder = recorder();
        let gaps = recorder.gaps.clone();
        let list = |recorder: &mut Recorder, pods: Vec<DynamicObject>| {
            recorder.saw(Event::Init);
            pods.into_iter().for_each(|pod| recorder.saw(Event::InitApply(pod)));
            recorder.saw(Event::InitDone);
        };
        list(&mut recorder, vec![pod(1, "a"), pod(2, "b")]);
        recorder.saw(Event::Apply(pod(3, "a")));
        list(&mut recorder, vec![pod(3, "a"), pod(2, "b")]);
        assert_eq!(*gaps.lock(), []);
        list(&mut recorder, vec![pod(7, "a"), pod(8, "b")]);
        let gap = Gap { plural: "pods".into(), after: 3, before: 7 };
        assert_eq!(*gaps.lock(), std::slice::from_ref(&gap));
        list(&mut recorder, vec![pod(8, "b")]);
        assert_eq!(*gaps.lock(), [gap, Gap { plural: "pods".into(), after: 8, before: 8 }]);
    }

    #[test]
    fn a_sweep_shows_the_cluster_before_and_after_each_version() {
        let versions = [version(1, "a", false), version(2, "b", false), version(3, "a", true)];
        let mut sizes = Vec::new();
        let breaches = sweep(&versions, |before, version, after| {
            sizes.push((before.len(), after.len()));
            if after.len() > 1 { Err(format!("two at {}", version.at("/status/n"))) } else { Ok(()) }
        });
        assert_eq!(sizes, [(0, 1), (1, 2), (2, 1)]);
        assert_eq!(breaches.iter().map(ToString::to_string).collect::<Vec<_>>(), ["at 2 pods demo/b: two at 2"]);
    }
}
