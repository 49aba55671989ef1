//! The connection to the API server, with the caches and limits that the parts of the port share.

use std::sync::Arc;

use oarlock_core::object::memory::MemoryBudget;
use oarlock_core::operation_job::tasks::settings::TaskSettings;
use oarlock_core::requests::scripts::Scripts;
use parking_lot::{Mutex, RwLock};
use tokio::sync::mpsc::UnboundedSender;

use crate::send::known_keys::HoldProof;
use crate::send::plugin_accounts::PluginAccounts;
use crate::tasks::runner::HostTaskPort;
use crate::transport::call::Transport;
use crate::transport::discovery::Discovery;
use crate::transport::limiter::WriteLimiter;
use crate::watch::jobs::Jobs;
use crate::watch::objects::{Objects, WatchEvent};
use crate::watch::operation_jobs::OwnerCaches;

/// The state that the parts of the port share.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) transport: Transport,
    pub(crate) discovery: Arc<Discovery>,
    pub(crate) objects: Objects,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) owners: Arc<OwnerCaches>,
    pub(crate) limiter: Arc<WriteLimiter>,
    /// The limiter of writes of records and statuses. Its own slots keep these writes from waiting for a hanging write of a pod.
    pub(crate) record_limiter: Arc<WriteLimiter>,
    /// The namespace and the image for the pods of tasks.
    pub(crate) tasks: Arc<RwLock<Arc<TaskSettings>>>,
    /// The accounts as which the host makes the mutations of plugins.
    pub(crate) accounts: Arc<RwLock<Arc<PluginAccounts>>>,
    /// The memory for the cached objects.
    pub(crate) room: MemoryBudget,
    /// The memory for lists while the host reads them.
    pub(crate) listing: MemoryBudget,
    /// The scripts that exist, as far as this term knows.
    pub(crate) scripts: Arc<Mutex<Scripts>>,
    /// The tasks that the host itself performs.
    pub(crate) host_tasks: Arc<HostTaskPort>,
    /// The known keys that prove holds.
    pub(crate) hold_proof: Arc<HoldProof>,
}

impl Link {
    /// Returns a link with empty caches, whose watches send their events to `events`.
    pub(crate) fn new(transport: Transport, events: UnboundedSender<WatchEvent>) -> Self {
        let room = MemoryBudget::default();
        Self {
            transport,
            discovery: Arc::default(),
            objects: Objects::new(events.clone(), room.clone()),
            jobs: Arc::new(Jobs::new(events, &room)),
            owners: Arc::default(),
            limiter: Arc::default(),
            record_limiter: Arc::default(),
            tasks: Arc::default(),
            accounts: Arc::default(),
            room,
            listing: MemoryBudget::default(),
            scripts: Arc::default(),
            host_tasks: Arc::default(),
            hold_proof: Arc::default(),
        }
    }
}
