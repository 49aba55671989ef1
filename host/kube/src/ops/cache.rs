//! The cache of OpsJobs and their children.
//!
//! The cache takes the newest version of each object from lists, watches and replies. It returns views, and the jobs that changed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::cache::object_cache::{CachedObject as _, ObjectCache, Taken, View};
use oarlock_core::object::api_object::ObjectKey;
use oarlock_core::object::memory::MemoryBudget;
use oarlock_core::object::quota_key::QuotaKey;
use oarlock_core::ops_job::names::ops_key;
use oarlock_core::ops_job::stored::StoredOps;
use oarlock_core::ops_job::view::OpsChild;
use oarlock_core::ops_job::write_meter::{MeteredJob, WriteMeter};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

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
    jobs: ObjectCache<StoredOps>,
    /// The OperationJobs that an OpsJob owns.
    children: ObjectCache<OpsChild>,
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

impl OpsCacheState {
    /// Counts the written bytes for the key that the job counts against.
    fn meter(&mut self, job: &StoredOps, known: Known, now: Duration) {
        let Some(key) = &job.counts_for else { return };
        let of = MeteredJob { key, user_name: &job.summary.user_name, bytes: job.stored_bytes };
        if known == Known::Listed {
            self.meter.found(&job.view.uid, job.version(), &of);
        }
        self.meter.wrote(&job.view.uid, job.version(), &of, now);
    }

    fn put(&mut self, job: StoredOps, known: Known, now: Duration) {
        if !self.jobs.takes(&job) {
            return;
        }
        self.meter(&job, known, now);
        if let Taken::InPlaceOf(other) = self.jobs.put(job) {
            self.meter.gone(&other.view.uid);
        }
    }

    fn drop(&mut self, job: &StoredOps) {
        if self.jobs.remove(&job.key(), job.uid()).is_some() {
            self.meter.gone(job.uid());
        }
    }

    fn put_child(&mut self, child: OpsChild) {
        let owner = child.owner_uid.clone();
        if let Taken::Newer | Taken::InPlaceOf(_) = self.children.put(child) {
            self.jobs.mark_uid_dirty(&owner);
        }
        // Only jobs have rounds.
        self.children.take_dirty();
    }

    fn drop_child(&mut self, child: &OpsChild) {
        if self.children.remove(&child.key(), child.uid()).is_some() {
            self.jobs.mark_uid_dirty(&child.owner_uid);
        }
        self.children.take_dirty();
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
        let state = OpsCacheState { jobs: ObjectCache::within(room), ..OpsCacheState::default() };
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

    /// Returns the newest view of the job of this name, even if it is uncertain.
    pub fn job(&self, name: &str) -> Option<Arc<StoredOps>> {
        self.state.lock().jobs.get(&ops_key(name)).cloned()
    }

    /// Returns the view of the job of this name.
    pub fn view(&self, name: &str) -> View<StoredOps> {
        self.state.lock().jobs.view(&ops_key(name))
    }

    /// Returns all jobs.
    pub fn jobs(&self) -> Vec<Arc<StoredOps>> {
        self.state.lock().jobs.all().cloned().collect()
    }

    /// Returns the child of the job with this UID. An OperationJob with another name or namespace is not the job's child, whatever owner it
    /// names.
    pub fn child(&self, owner: &str) -> Option<Arc<OpsChild>> {
        let state = self.state.lock();
        let job = state.jobs.by_uid(owner)?;
        state.children.owned_by(owner).find(|child| child.is_of(&job.view)).cloned()
    }

    /// Returns the owner whose slots the tasks of the child with this UID take: the requester of its job.
    pub fn owner_of(&self, child: &str) -> Option<QuotaKey> {
        let state = self.state.lock();
        let child = state.children.by_uid(child)?;
        let job = state.jobs.by_uid(&child.owner_uid)?;
        child.is_of(&job.view).then(|| job.view.owner())
    }

    /// Marks the job with this UID dirty.
    pub fn mark_dirty(&self, uid: &str) {
        self.hold(|state| state.jobs.mark_uid_dirty(uid));
    }

    /// Takes the keys of the jobs that changed since the last call.
    pub fn take_dirty(&self) -> BTreeSet<ObjectKey> {
        self.state.lock().jobs.take_dirty()
    }

    /// Waits until a job may have changed.
    pub async fn until_dirty(&self) {
        self.changed.notified().await;
    }

    pub(super) fn reset_jobs(&self, jobs: Vec<StoredOps>, version: u64) {
        let now = self.now();
        self.hold(|state| {
            let listed = jobs.iter().map(|job| job.view.uid.clone()).collect();
            state.jobs.absent_from(&listed, version).iter().for_each(|job| state.drop(job));
            jobs.into_iter().for_each(|job| state.put(job, Known::Listed, now));
        });
    }

    pub(super) fn put_job(&self, job: StoredOps) {
        let now = self.now();
        self.hold(|state| state.put(job, Known::Told, now));
    }

    /// Takes the answer of the API server to a read of the job of this name. `before` is the job that the cache had before the read.
    pub(super) fn confirm_job(&self, name: &str, before: Option<&StoredOps>, answer: Option<StoredOps>) {
        let now = self.now();
        self.hold(|state| {
            before.filter(|_| answer.is_none()).into_iter().for_each(|before| state.drop(before));
            state.jobs.confirm(&ops_key(name));
            answer.into_iter().for_each(|job| state.put(job, Known::Told, now));
        });
    }

    /// Marks the view of the job of this name uncertain, after a write with an unknown outcome.
    pub(super) fn doubt_job(&self, name: &str) {
        self.hold(|state| state.jobs.doubt(&ops_key(name)));
    }

    pub(super) fn drop_job(&self, job: &StoredOps) {
        self.hold(|state| state.drop(job));
    }

    pub(crate) fn reset_children(&self, children: Vec<OpsChild>, version: u64) {
        self.hold(|state| {
            let listed = children.iter().map(|child| child.uid.clone()).collect();
            state.children.absent_from(&listed, version).iter().for_each(|child| state.drop_child(child));
            children.into_iter().for_each(|child| state.put_child(child));
        });
    }

    pub(crate) fn put_child(&self, child: OpsChild) {
        self.hold(|state| state.put_child(child));
    }

    pub(crate) fn drop_child(&self, child: &OpsChild) {
        self.hold(|state| state.drop_child(child));
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
