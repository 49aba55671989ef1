//! The cache of OpsJobs and their children.
//!
//! The cache takes the newest version of each object from lists, watches and replies. It returns views, and the jobs that changed.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::object::memory::{MemoryBudget, NamespaceShares};
use oarlock_core::object::quota_key::QuotaKey;
use oarlock_core::ops_job::stored::StoredOps;
use oarlock_core::ops_job::view::OpsChild;
use oarlock_core::ops_job::write_meter::{MeteredJob, WriteMeter};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::ops::key::OpsKey;

/// The cache of OpsJobs and their children.
#[derive(Default)]
pub struct OpsCache {
    state: Mutex<OpsCacheState>,
    changed: Notify,
    began: Began,
}

/// The time at which a cache began.
struct Began(Instant);

impl Default for Began {
    fn default() -> Self {
        Self(Instant::now())
    }
}

#[derive(Default)]
struct OpsCacheState {
    /// The jobs by name.
    jobs: HashMap<String, Arc<StoredOps>>,
    /// The name of each job, by UID.
    names: HashMap<String, String>,
    /// The children by the UID of their job. Each job has at most one child.
    children: HashMap<String, Arc<OpsChild>>,
    dirty: BTreeSet<OpsKey>,
    shares: NamespaceShares,
    meter: WriteMeter,
}

/// The source from which the cache learned of a job.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    /// A list. The job may have been written long ago.
    Listed,
    /// A watch event or a reply. The job was written just now.
    Told,
}

/// The namespace of OpsJobs, which are cluster-scoped.
const NO_NAMESPACE: &str = "";

fn number(job: &StoredOps) -> u64 {
    job.view.version.parse().unwrap_or(0)
}

impl OpsCacheState {
    /// Counts the written bytes for the key that the job counts against.
    fn meter(&mut self, job: &StoredOps, known: Known, now: Duration) {
        let Some(key) = &job.counts_for else { return };
        let of = MeteredJob { key, user_name: &job.summary.user_name, bytes: job.stored_bytes };
        if known == Known::Listed {
            self.meter.found(&job.view.uid, number(job), &of);
        }
        self.meter.wrote(&job.view.uid, number(job), &of, now);
    }

    fn put(&mut self, mut job: StoredOps, known: Known, now: Duration) {
        let before = self.jobs.get(&job.view.name);
        if let Some(before) = before.filter(|before| before.view.uid == job.view.uid) {
            if number(before) >= number(&job) {
                return;
            }
            job.view.first_version = before.view.first_version;
        }
        let bytes = before.map_or(0, |before| before.bytes());
        self.meter(&job, known, now);
        let before = self.jobs.get(&job.view.name);
        // An admitted job must not end because the host itself adds to it.
        let was_in = before.is_some_and(|before| before.view.uid == job.view.uid && before.spec.is_ok());
        let is_in = was_in || job.is_admitted();
        let admitted = if is_in {
            self.shares.count(NO_NAMESPACE, bytes, job.bytes());
            Ok(())
        } else {
            self.shares.admit(NO_NAMESPACE, bytes, job.bytes())
        };
        let job = match admitted {
            Ok(()) => job,
            Err(why) => job.without_spec(&why),
        };
        let key = OpsKey::of(&job);
        self.names.insert(job.view.uid.clone(), key.name.clone());
        let (uid, before) = (job.view.uid.clone(), self.jobs.insert(key.name.clone(), Arc::new(job)));
        if let Some(before) = before.filter(|before| before.view.uid != uid) {
            self.names.remove(&before.view.uid);
            self.meter.gone(&before.view.uid);
            self.dirty.insert(OpsKey::of(&before));
        }
        self.dirty.insert(key);
    }

    fn drop(&mut self, job: &StoredOps) {
        let is_same = |known: &&Arc<StoredOps>| known.view.uid == job.view.uid;
        let Some(known) = self.jobs.get(&job.view.name).filter(is_same).cloned() else { return };
        self.jobs.remove(&known.view.name);
        self.names.remove(&known.view.uid);
        self.meter.gone(&known.view.uid);
        self.shares.count(NO_NAMESPACE, known.bytes(), 0);
        self.dirty.insert(OpsKey::of(&known));
    }

    fn mark_owner_dirty(&mut self, owner: &str) {
        let job = self.names.get(owner).and_then(|name| self.jobs.get(name));
        self.dirty.extend(job.map(|job| OpsKey::of(job)));
    }
}

impl OpsCache {
    fn hold<T>(&self, change: impl FnOnce(&mut OpsCacheState) -> T) -> T {
        let result = change(&mut self.state.lock());
        self.changed.notify_one();
        result
    }

    /// Returns an empty cache whose objects count in this room.
    pub(super) fn within(room: &MemoryBudget) -> Self {
        let state = OpsCacheState { shares: NamespaceShares::within(room), ..OpsCacheState::default() };
        Self { state: Mutex::new(state), ..Self::default() }
    }

    fn now(&self) -> Duration {
        self.began.0.elapsed()
    }

    /// Calls `use_it` with the meter of written bytes and the current time.
    pub fn meter<T>(&self, use_it: impl FnOnce(&mut WriteMeter, Duration) -> T) -> T {
        let now = self.now();
        use_it(&mut self.state.lock().meter, now)
    }

    /// Returns the job of this name.
    pub fn job(&self, name: &str) -> Option<Arc<StoredOps>> {
        self.state.lock().jobs.get(name).cloned()
    }

    /// Returns all jobs.
    pub fn jobs(&self) -> Vec<Arc<StoredOps>> {
        self.state.lock().jobs.values().cloned().collect()
    }

    /// Returns the child of the job with this UID.
    pub fn child(&self, owner: &str) -> Option<Arc<OpsChild>> {
        let state = self.state.lock();
        let job = state.jobs.get(state.names.get(owner)?)?;
        state.children.get(owner).filter(|child| child.is_of(&job.view)).cloned()
    }

    /// Returns the owner whose slots the tasks of the child with this UID take: the requester of its job.
    pub fn owner_of(&self, child: &str) -> Option<QuotaKey> {
        let state = self.state.lock();
        let (owner, known) = state.children.iter().find(|(_, known)| known.uid == child)?;
        let job = state.jobs.get(state.names.get(owner)?)?;
        known.is_of(&job.view).then(|| job.view.owner())
    }

    /// Marks the job with this UID dirty.
    pub fn mark_dirty(&self, uid: &str) {
        self.hold(|state| state.mark_owner_dirty(uid));
    }

    /// Takes the keys of the jobs that changed since the last call.
    pub fn take_dirty(&self) -> BTreeSet<OpsKey> {
        std::mem::take(&mut self.state.lock().dirty)
    }

    /// Waits until a job may have changed.
    pub async fn until_dirty(&self) {
        self.changed.notified().await;
    }

    pub(super) fn reset_jobs(&self, jobs: Vec<StoredOps>) {
        let now = self.now();
        self.hold(|state| {
            let listed: BTreeSet<&String> = jobs.iter().map(|job| &job.view.uid).collect();
            let gone: Vec<_> = state.jobs.values().filter(|job| !listed.contains(&job.view.uid)).cloned().collect();
            gone.iter().for_each(|job| state.drop(job));
            jobs.into_iter().for_each(|job| state.put(job, Known::Listed, now));
        });
    }

    pub(super) fn put_job(&self, job: StoredOps) {
        let now = self.now();
        self.hold(|state| state.put(job, Known::Told, now));
    }

    pub(super) fn drop_job(&self, job: &StoredOps) {
        self.hold(|state| state.drop(job));
    }

    pub(crate) fn reset_children(&self, children: HashMap<String, OpsChild>) {
        self.hold(|state| {
            let owners: Vec<String> = state.children.keys().cloned().collect();
            owners.iter().for_each(|owner| state.mark_owner_dirty(owner));
            state.children = children.into_iter().map(|(owner, child)| (owner, Arc::new(child))).collect();
            let owners: Vec<String> = state.children.keys().cloned().collect();
            owners.iter().for_each(|owner| state.mark_owner_dirty(owner));
        });
    }

    pub(crate) fn put_child(&self, owner: String, child: OpsChild) {
        self.hold(|state| {
            if state.children.get(&owner).is_some_and(|known| known.uid == child.uid && known.version >= child.version)
            {
                return;
            }
            // An OperationJob with another name or namespace is not the job's child, whatever owner it names.
            let job = state.names.get(&owner).and_then(|name| state.jobs.get(name));
            if job.is_some_and(|job| !child.is_of(&job.view)) {
                return;
            }
            state.mark_owner_dirty(&owner);
            state.children.insert(owner, Arc::new(child));
        });
    }

    pub(crate) fn drop_child(&self, owner: &str, child: &OpsChild) {
        self.hold(|state| {
            if state.children.get(owner).is_some_and(|known| known.uid == child.uid) {
                state.children.remove(owner);
                state.mark_owner_dirty(owner);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use oarlock_core::ops_job::spec::Defaults;
    use serde_json::json;

    use super::*;

    #[test]
    fn jobs_of_one_second_keep_the_order_in_which_they_were_made_however_they_change() {
        let cache = OpsCache::default();
        let put = |name: &str, version: &str, uid: &str| {
            let document =
                json!({"metadata": {"name": name, "uid": uid, "resourceVersion": version}, "spec": {"type": "reboot"}});
            cache.put_job(StoredOps::read(&document, Defaults::default()).unwrap());
        };
        let places = || ["a", "b"].map(|name| cache.job(name).unwrap().view.place_in_second());
        put("a", "3", "1");
        put("b", "4", "2");
        // The host adds its finalizers to the later job first.
        put("b", "5", "2");
        put("a", "9", "1");
        assert_eq!(places(), [3, 4]);
        put("a", "12", "another");
        assert_eq!(places(), [12, 4], "a namesake was made later");
    }
}
