//! The cache of pods and sets, filled by the watches and by the replies to the simulation's writes. An older version
//! never overwrites a newer one, and a deleted pod does not come back.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::action::Member;
use super::pod_facts::{PodFacts, version_of};
use super::sets::{SetKey, SetKind, SetView};

/// Namespace and name of a pod.
pub(crate) type Place = (String, String);

/// The last observed pods and sets.
pub(crate) struct WorldStore {
    memory: Mutex<PodTable>,
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct PodTable {
    pods: BTreeMap<Place, Known<Pod>>,
    /// The pods by their controller's uid, so that a set's round need not search for its pods.
    owned: HashMap<String, BTreeMap<Place, Arc<Pod>>>,
    sets: BTreeMap<SetKey, Known<SetView>>,
    set_of: HashMap<String, SetKey>,
    /// Pods for which a delete was accepted, although the watch may not show it yet.
    leaving: HashSet<String>,
    gone: HashSet<String>,
    /// The number of the current list. Objects that a list lacks keep an older number, and are dropped when the list ends.
    round: u64,
}

/// Proof that the store has the change of a pod. Only such a pod can be woken. Otherwise its round could read the version
/// before the change, find nothing to do, and never run again.
pub(crate) struct StoredPod {
    pub(crate) place: Place,
    /// The uid of the pod's controller.
    pub(crate) owner: Option<String>,
}

struct Known<T> {
    object: Arc<T>,
    round: u64,
}

impl Default for WorldStore {
    fn default() -> Self {
        Self { memory: Mutex::default(), changes: watch::Sender::new(0) }
    }
}

impl WorldStore {
    /// Returns a receiver that notices each change.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Stores a version of a pod.
    pub(crate) fn put_pod(&self, pod: Pod) -> StoredPod {
        let stored = StoredPod::of(&pod);
        self.change(|memory| memory.put_pod(pod));
        stored
    }

    /// Records that a pod is gone.
    pub(crate) fn remove_pod(&self, pod: &Pod) -> StoredPod {
        self.change(|memory| {
            memory.gone.insert(pod.uid().to_owned());
            memory.drop_pod(&place_of(pod), pod.uid());
        });
        StoredPod::of(pod)
    }

    /// Records that the API server accepted a pod's deletion.
    pub(crate) fn mark_leaving(&self, uid: &str) {
        self.change(|memory| {
            memory.leaving.insert(uid.to_owned());
        });
    }

    /// Stores a version of a set.
    pub(crate) fn put_set(&self, view: SetView) {
        self.change(|memory| {
            let known = memory.sets.get(&view.key);
            let is_older = known.is_some_and(|known| {
                known.object.version > view.version
                    || known.object.uid != view.uid && known.object.version == view.version
            });
            if !is_older {
                memory.set_of.insert(view.uid.clone(), view.key.clone());
                let round = memory.round;
                memory.sets.insert(view.key.clone(), Known { object: Arc::new(view), round });
            }
        });
    }

    /// Records that a set is gone.
    pub(crate) fn remove_set(&self, key: &SetKey, uid: &str) {
        self.change(|memory| {
            memory.set_of.remove(uid);
            if memory.sets.get(key).is_some_and(|known| known.object.uid == uid) {
                memory.sets.remove(key);
            }
        });
    }

    /// Starts a full list. Returns the number with which to end it.
    pub(crate) fn begin_list(&self) -> u64 {
        let mut memory = self.memory.lock();
        memory.round += 1;
        memory.round
    }

    /// Ends a full list of pods. Drops the pods that were not observed since its start.
    pub(crate) fn end_pod_list(&self, round: u64) {
        self.change(|memory| {
            let stale = memory.pods.iter().filter(|(_, known)| known.round < round);
            let stale: Vec<(Place, String)> =
                stale.map(|(p, known)| (p.clone(), known.object.uid().to_owned())).collect();
            stale.iter().for_each(|(place, uid)| memory.drop_pod(place, uid));
        });
    }

    /// Ends a full list of one kind of set. Drops the sets that were not observed since its start.
    pub(crate) fn end_set_list(&self, kind: SetKind, round: u64) {
        self.change(|memory| memory.sets.retain(|key, known| key.kind != kind || known.round >= round));
    }

    pub(crate) fn pod(&self, place: &Place) -> Option<Arc<Pod>> {
        self.memory.lock().pods.get(place).map(|known| known.object.clone())
    }

    pub(crate) fn pods(&self) -> Vec<Arc<Pod>> {
        self.memory.lock().pods.values().map(|known| known.object.clone()).collect()
    }

    pub(crate) fn set(&self, key: &SetKey) -> Option<Arc<SetView>> {
        self.memory.lock().sets.get(key).map(|known| known.object.clone())
    }

    pub(crate) fn set_keys(&self) -> Vec<SetKey> {
        self.memory.lock().sets.keys().cloned().collect()
    }

    /// Returns the pods of a namespace whose controller has this uid, sorted by name.
    pub(crate) fn members(&self, namespace: &str, owner: &str) -> Vec<Member> {
        let memory = self.memory.lock();
        let pods = memory.owned.get(owner).into_iter().flatten();
        let pods = pods.filter(|((place, _), _)| place == namespace).map(|(_, pod)| pod);
        let member = |pod: &Arc<Pod>| Member { is_leaving: memory.is_leaving(pod), pod: pod.clone() };
        pods.map(member).collect()
    }

    /// Returns the ReplicaSets whose controller has this uid.
    pub(crate) fn replica_sets(&self, owner: &str) -> Vec<SetView> {
        let memory = self.memory.lock();
        let all = memory.sets.values().filter(|known| known.object.key.kind == SetKind::ReplicaSet);
        all.filter(|known| known.object.controller.as_deref() == Some(owner))
            .map(|known| (*known.object).clone())
            .collect()
    }

    /// Returns the set with this uid and its own controller, nearest first.
    pub(crate) fn lineage(&self, owner: Option<&str>) -> Vec<SetKey> {
        let memory = self.memory.lock();
        let mut line = Vec::new();
        let mut uid = owner.map(str::to_owned);
        while let Some(key) = uid.and_then(|uid| memory.set_of.get(&uid)) {
            uid = memory.sets.get(key).and_then(|known| known.object.controller.clone());
            line.push(key.clone());
        }
        line
    }

    fn change(&self, change: impl FnOnce(&mut PodTable)) {
        change(&mut self.memory.lock());
        self.changes.send_modify(|count| *count += 1);
    }
}

impl PodTable {
    fn put_pod(&mut self, pod: Pod) {
        let place = place_of(&pod);
        if self.gone.contains(pod.uid()) {
            return;
        }
        if let Some(known) = self.pods.get(&place) {
            if version_of(&known.object.metadata) > version_of(&pod.metadata) {
                return;
            }
            let old = known.object.uid().to_owned();
            if old != pod.uid() {
                self.drop_pod(&place, &old);
            }
        }
        if pod.is_terminating() {
            self.leaving.remove(pod.uid());
        }
        let pod = Arc::new(pod);
        if let Some(owner) = pod.controller() {
            self.owned.entry(owner.uid.clone()).or_default().insert(place.clone(), pod.clone());
        }
        self.pods.insert(place, Known { object: pod, round: self.round });
    }

    fn is_leaving(&self, pod: &Pod) -> bool {
        pod.is_terminating() || !self.leaving.is_empty() && self.leaving.contains(pod.uid())
    }

    fn drop_pod(&mut self, place: &Place, uid: &str) {
        self.leaving.remove(uid);
        if self.pods.get(place).is_none_or(|known| known.object.uid() != uid) {
            return;
        }
        let owner = self.pods.remove(place).and_then(|known| known.object.controller().map(|o| o.uid.clone()));
        if let Some(places) = owner.and_then(|owner| self.owned.get_mut(&owner)) {
            places.remove(place);
        }
    }
}

impl StoredPod {
    fn of(pod: &Pod) -> Self {
        Self { place: place_of(pod), owner: pod.controller().map(|owner| owner.uid.clone()) }
    }
}

/// Returns namespace and name of a pod.
pub(crate) fn place_of(pod: &Pod) -> Place {
    (pod.pod_namespace().to_owned(), pod.pod_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::samples::{pod, set_of};

    fn names(store: &WorldStore, owner: &str) -> Vec<String> {
        store.members("demo", owner).iter().map(|member| member.pod.pod_name().to_owned()).collect()
    }

    #[test]
    fn an_older_version_and_a_ghost_are_not_taken_in() {
        let store = WorldStore::default();
        let owned = |version| pod("a").owner("ReplicaSet", "rs").version(version);
        store.put_pod(owned(5).label("x", "new").0);
        store.put_pod(owned(4).0);
        assert!(store.pods().first().unwrap().bears("x"));
        store.remove_pod(&owned(6).0);
        store.put_pod(owned(5).0);
        assert_eq!(names(&store, "rs"), Vec::<String>::new());
    }

    #[test]
    fn a_pod_made_anew_under_its_name_belongs_to_its_new_owner_alone() {
        let store = WorldStore::default();
        store.put_pod(pod("a").owner("ReplicaSet", "rs").version(1).0);
        store.put_pod(pod("a").owner("ReplicaSet", "other").uid("second").version(2).0);
        store.remove_pod(&pod("a").owner("ReplicaSet", "rs").version(3).0);
        assert_eq!((names(&store, "rs"), names(&store, "other")), (vec![], vec!["a".to_owned()]));
    }

    #[test]
    fn a_sent_deletion_counts_before_the_watch_shows_it() {
        let store = WorldStore::default();
        store.put_pod(pod("a").owner("ReplicaSet", "rs").0);
        store.mark_leaving("uid-a");
        assert!(store.members("demo", "rs").iter().all(|member| member.is_leaving));
    }

    #[test]
    fn a_full_list_drops_what_it_does_not_show() {
        let store = WorldStore::default();
        store.put_pod(pod("a").owner("ReplicaSet", "rs").0);
        let round = store.begin_list();
        store.put_pod(pod("b").owner("ReplicaSet", "rs").0);
        store.end_pod_list(round);
        assert_eq!(names(&store, "rs"), ["b"]);
    }

    #[test]
    fn a_lineage_leads_from_a_pod_to_its_deployment() {
        let store = WorldStore::default();
        let web = set_of(SetKind::Deployment, "web", 1);
        let mut child = set_of(SetKind::ReplicaSet, "web-x", 1);
        child.controller = Some(web.uid.clone());
        store.put_set(web.clone());
        store.put_set(child.clone());
        assert_eq!(store.lineage(Some(&child.uid)), [child.key, web.key]);
    }
}
