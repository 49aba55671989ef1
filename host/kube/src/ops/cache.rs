//! OpsJobs in memory, with their children.
//!
//! Takes what lists, watches and replies show, the newest of each; yields views, and which jobs changed.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use oarlock_core::cluster::memory::{NamespaceShares, Room};
use oarlock_core::ops_job::stored::StoredOps;
use oarlock_core::ops_job::view::OpsChild;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// OpsJobs in memory.
#[derive(Default)]
pub struct OpsCache {
    held: Mutex<Held>,
    changed: Notify,
}

#[derive(Default)]
struct Held {
    /// Jobs by name.
    jobs: HashMap<String, Arc<StoredOps>>,
    /// The name of each, by UID.
    names: HashMap<String, String>,
    /// Children by the UID of their job: each has one.
    children: HashMap<String, Arc<OpsChild>>,
    dirty: BTreeSet<String>,
    shares: NamespaceShares,
}

/// Jobs are in no namespace.
const NO_NAMESPACE: &str = "";

fn number(job: &StoredOps) -> u64 {
    job.view.version.parse().unwrap_or(0)
}

impl Held {
    fn put(&mut self, job: StoredOps) {
        let before = self.jobs.get(&job.view.name);
        if before.is_some_and(|before| before.view.uid == job.view.uid && number(before) >= number(&job)) {
            return;
        }
        let bytes = before.map_or(0, |before| before.bytes());
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
        let name = job.view.name.clone();
        self.names.insert(job.view.uid.clone(), name.clone());
        let (uid, before) = (job.view.uid.clone(), self.jobs.insert(name.clone(), Arc::new(job)));
        if let Some(before) = before.filter(|before| before.view.uid != uid) {
            self.names.remove(&before.view.uid);
        }
        self.dirty.insert(name);
    }

    fn drop(&mut self, job: &StoredOps) {
        let is_held = |held: &&Arc<StoredOps>| held.view.uid == job.view.uid;
        let Some(held) = self.jobs.get(&job.view.name).filter(is_held).cloned() else { return };
        self.jobs.remove(&held.view.name);
        self.names.remove(&held.view.uid);
        self.shares.count(NO_NAMESPACE, held.bytes(), 0);
        self.dirty.insert(held.view.name.clone());
    }

    fn soil_owner(&mut self, owner: &str) {
        self.dirty.extend(self.names.get(owner).cloned());
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
        Self { held: Mutex::new(held), changed: Notify::new() }
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

    /// Has the job of this UID looked at again.
    pub fn soil(&self, uid: &str) {
        self.hold(|held| held.dirty.extend(held.names.get(uid).cloned()));
    }

    /// The names of jobs that changed since the last call.
    pub fn take_dirty(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.held.lock().dirty)
    }

    /// Resolves once something may have changed.
    pub async fn dirtied(&self) {
        self.changed.notified().await;
    }

    pub(super) fn reset_jobs(&self, jobs: Vec<StoredOps>) {
        self.hold(|held| {
            let listed: BTreeSet<&String> = jobs.iter().map(|job| &job.view.uid).collect();
            let gone: Vec<_> = held.jobs.values().filter(|job| !listed.contains(&job.view.uid)).cloned().collect();
            gone.iter().for_each(|job| held.drop(job));
            jobs.into_iter().for_each(|job| held.put(job));
        });
    }

    pub(super) fn put_job(&self, job: StoredOps) {
        self.hold(|held| held.put(job));
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
