//! OpsJobs in memory, with their children.
//!
//! Takes what lists, watches and replies show, the newest of each; yields views, and which jobs changed.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::cluster::memory::{NamespaceShares, Room};
use oarlock_core::ops_job::stored::StoredOps;
use oarlock_core::ops_job::view::OpsChild;
use oarlock_core::ops_job::write_meter::{MeteredJob, WriteMeter};
use oarlock_core::shared::quota_key::QuotaKey;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::ops::key::OpsKey;

/// OpsJobs in memory.
#[derive(Default)]
pub struct OpsCache {
    held: Mutex<Held>,
    changed: Notify,
    began: Began,
}

/// When a cache began.
struct Began(Instant);

impl Default for Began {
    fn default() -> Self {
        Self(Instant::now())
    }
}

#[derive(Default)]
struct Held {
    /// Jobs by name.
    jobs: HashMap<String, Arc<StoredOps>>,
    /// The name of each, by UID.
    names: HashMap<String, String>,
    /// Children by the UID of their job: each has one.
    children: HashMap<String, Arc<OpsChild>>,
    dirty: BTreeSet<OpsKey>,
    shares: NamespaceShares,
    meter: WriteMeter,
}

/// The way in which the cache learned of a job.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    /// By a list: it may have been written long ago.
    Listed,
    /// By what happened just now.
    Told,
}

/// Jobs are in no namespace.
const NO_NAMESPACE: &str = "";

fn number(job: &StoredOps) -> u64 {
    job.view.version.parse().unwrap_or(0)
}

impl Held {
    /// Counts what was written, for the key that the job counts against.
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
        // What the host itself adds to a job that has been let in is no reason to end it.
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
        let is_held = |held: &&Arc<StoredOps>| held.view.uid == job.view.uid;
        let Some(held) = self.jobs.get(&job.view.name).filter(is_held).cloned() else { return };
        self.jobs.remove(&held.view.name);
        self.names.remove(&held.view.uid);
        self.meter.gone(&held.view.uid);
        self.shares.count(NO_NAMESPACE, held.bytes(), 0);
        self.dirty.insert(OpsKey::of(&held));
    }

    fn soil_owner(&mut self, owner: &str) {
        let job = self.names.get(owner).and_then(|name| self.jobs.get(name));
        self.dirty.extend(job.map(|job| OpsKey::of(job)));
    }
}

impl OpsCache {
    fn hold<T>(&self, change: impl FnOnce(&mut Held) -> T) -> T {
        let result = change(&mut self.held.lock());
        self.changed.notify_one();
        result
    }

    /// Nothing yet, within this room.
    pub(super) fn within(room: &Room) -> Self {
        let held = Held { shares: NamespaceShares::within(room), ..Held::default() };
        Self { held: Mutex::new(held), ..Self::default() }
    }

    fn now(&self) -> Duration {
        self.began.0.elapsed()
    }

    /// Asks or tells what counts the bytes that are written, at this time.
    pub fn meter<T>(&self, use_it: impl FnOnce(&mut WriteMeter, Duration) -> T) -> T {
        let now = self.now();
        use_it(&mut self.held.lock().meter, now)
    }

    /// A job.
    pub fn job(&self, name: &str) -> Option<Arc<StoredOps>> {
        self.held.lock().jobs.get(name).cloned()
    }

    /// All jobs.
    pub fn jobs(&self) -> Vec<Arc<StoredOps>> {
        self.held.lock().jobs.values().cloned().collect()
    }

    /// The child of the job of this UID.
    pub fn child(&self, owner: &str) -> Option<Arc<OpsChild>> {
        let held = self.held.lock();
        let job = held.jobs.get(held.names.get(owner)?)?;
        held.children.get(owner).filter(|child| child.is_of(&job.view)).cloned()
    }

    /// Returns the owner whose slots the tasks of the child of this UID take: the requester of its job.
    pub fn owner_of(&self, child: &str) -> Option<QuotaKey> {
        let held = self.held.lock();
        let (owner, known) = held.children.iter().find(|(_, known)| known.uid == child)?;
        let job = held.jobs.get(held.names.get(owner)?)?;
        known.is_of(&job.view).then(|| job.view.owner())
    }

    /// Has the job of this UID looked at again.
    pub fn soil(&self, uid: &str) {
        self.hold(|held| held.soil_owner(uid));
    }

    /// The jobs that changed since the last call.
    pub fn take_dirty(&self) -> BTreeSet<OpsKey> {
        std::mem::take(&mut self.held.lock().dirty)
    }

    /// Resolves once something may have changed.
    pub async fn dirtied(&self) {
        self.changed.notified().await;
    }

    pub(super) fn reset_jobs(&self, jobs: Vec<StoredOps>) {
        let now = self.now();
        self.hold(|held| {
            let listed: BTreeSet<&String> = jobs.iter().map(|job| &job.view.uid).collect();
            let gone: Vec<_> = held.jobs.values().filter(|job| !listed.contains(&job.view.uid)).cloned().collect();
            gone.iter().for_each(|job| held.drop(job));
            jobs.into_iter().for_each(|job| held.put(job, Known::Listed, now));
        });
    }

    pub(super) fn put_job(&self, job: StoredOps) {
        let now = self.now();
        self.hold(|held| held.put(job, Known::Told, now));
    }

    pub(super) fn drop_job(&self, job: &StoredOps) {
        self.hold(|held| held.drop(job));
    }

    pub(crate) fn reset_children(&self, children: Vec<(String, OpsChild)>) {
        self.hold(|held| {
            let owners: Vec<String> = held.children.keys().cloned().collect();
            owners.iter().for_each(|owner| held.soil_owner(owner));
            held.children = children.into_iter().map(|(owner, child)| (owner, Arc::new(child))).collect();
            let owners: Vec<String> = held.children.keys().cloned().collect();
            owners.iter().for_each(|owner| held.soil_owner(owner));
        });
    }

    pub(crate) fn put_child(&self, owner: String, child: OpsChild) {
        self.hold(|held| {
            if held.children.get(&owner).is_some_and(|known| known.uid == child.uid && known.version >= child.version) {
                return;
            }
            // An OperationJob of another name or place is none of its own, whoever it says is its owner.
            let job = held.names.get(&owner).and_then(|name| held.jobs.get(name));
            if job.is_some_and(|job| !child.is_of(&job.view)) {
                return;
            }
            held.soil_owner(&owner);
            held.children.insert(owner, Arc::new(child));
        });
    }

    pub(crate) fn drop_child(&self, owner: &str, child: &OpsChild) {
        self.hold(|held| {
            if held.children.get(owner).is_some_and(|known| known.uid == child.uid) {
                held.children.remove(owner);
                held.soil_owner(owner);
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
        // The host puts its finalizers on the later one first.
        put("b", "5", "2");
        put("a", "9", "1");
        assert_eq!(places(), [3, 4]);
        put("a", "12", "another");
        assert_eq!(places(), [12, 4], "a namesake was made later");
    }
}
