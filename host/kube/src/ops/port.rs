//! The OpsJobs of a cluster, with the meter of their written bytes.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::cache::object_cache::CachedObject as _;
use oarlock_core::kind::plan_kind::PlanKind as _;
use oarlock_core::object::fields::text;
use oarlock_core::object::own::SYSTEM_NAMESPACES;
use oarlock_core::ops_job::kind::OpsJobs;
use oarlock_core::ops_job::names::{ops_key, ops_kind};
use oarlock_core::ops_job::spec::Defaults;
use oarlock_core::ops_job::stored::StoredOps;
use oarlock_core::ops_job::write_meter::{MeteredJob, WriteMeter};
use oarlock_core::requests::reads::ReadFailed;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::kinds::{KindObserver, KindPort, LearnedFrom};
use crate::ops::shipped_policies;
use crate::read::past_cache::{ListPick, ListSelection};
use crate::transport::projection::Projection;
use crate::watch::health::KindHealth;

/// The meter of the written bytes of OpsJobs. It passes all news on to another observer.
struct OpsMeter {
    meter: Mutex<WriteMeter>,
    began: Instant,
    next: Arc<dyn KindObserver<StoredOps>>,
}

impl KindObserver<StoredOps> for OpsMeter {
    fn seen(&self, document: &Value) {
        self.next.seen(document);
    }

    fn takes(&self, job: &StoredOps, from: LearnedFrom) {
        if let Some(key) = &job.counts_for {
            let of = MeteredJob { key, user_name: &job.summary.user_name, bytes: job.stored_bytes };
            let mut meter = self.meter.lock();
            if from == LearnedFrom::List {
                meter.found(&job.view.uid, job.version(), &of);
            }
            meter.wrote(&job.view.uid, job.version(), &of, self.began.elapsed());
        }
        self.next.takes(job, from);
    }

    fn gone(&self, uid: &str) {
        self.meter.lock().gone(uid);
        self.next.gone(uid);
    }

    fn listed(&self, uids: Vec<String>) {
        self.next.listed(uids);
    }
}

/// The OpsJobs of a cluster. It is cheap to clone.
#[derive(Clone)]
pub struct Ops {
    port: KindPort<OpsJobs>,
    meter: Arc<OpsMeter>,
}

impl Ops {
    /// Watches OpsJobs as long as the returned value lives, and reports them to `observer`. Call it before [`Cluster::declare`].
    pub fn watch(cluster: Cluster, defaults: Defaults, observer: Arc<dyn KindObserver<StoredOps>>) -> Self {
        let kind = OpsJobs { defaults, shipped: shipped_policies().into(), system: &SYSTEM_NAMESPACES };
        let meter = Arc::new(OpsMeter { meter: Mutex::default(), began: Instant::now(), next: observer });
        Self { port: KindPort::watch(cluster, kind, meter.clone()), meter }
    }

    /// Returns the objects, watches and requests of the kind.
    pub fn port(&self) -> &KindPort<OpsJobs> {
        &self.port
    }

    /// Returns the cluster.
    pub fn cluster(&self) -> &Cluster {
        self.port.cluster()
    }

    /// Returns all known jobs.
    pub fn jobs(&self) -> Vec<Arc<StoredOps>> {
        self.port.cache().all()
    }

    /// Calls `use_it` with the meter of written bytes and the current time.
    pub fn meter<T>(&self, use_it: impl FnOnce(&mut WriteMeter, Duration) -> T) -> T {
        use_it(&mut self.meter.meter.lock(), self.meter.began.elapsed())
    }

    /// Puts a job from a reply of the API server into the cache.
    pub fn take(&self, job: &Value) {
        self.port.kind().read(job).into_iter().for_each(|job| self.port.cache().put(job));
    }

    /// Returns the defaults of the host for jobs that do not set a value.
    pub fn defaults(&self) -> Defaults {
        self.port.kind().defaults
    }

    /// Returns the state of each watch.
    pub fn health(&self) -> Vec<KindHealth> {
        self.port.health()
    }

    /// Checks that all jobs are listed, so that the cache has them.
    ///
    /// # Errors
    /// If the jobs are not listed yet, with the reason.
    pub fn is_listed(&self) -> Result<(), String> {
        match self.health().into_iter().find(|health| !health.synced || !health.served) {
            None => Ok(()),
            Some(KindHealth { synced: true, .. }) => {
                Err("the API server does not serve OpsJobs: a cluster admin applies `oarlock manifests --ops`"
                    .to_owned())
            }
            Some(KindHealth { error, .. }) => {
                let why = error.unwrap_or_else(|| "the API server has not answered yet".to_owned());
                Err(format!("the OpsJobs are not listed: {why}"))
            }
        }
    }

    /// Returns the UIDs of all stored jobs from a live read.
    ///
    /// # Errors
    /// If the list fails or the API server does not serve OpsJobs, with its message.
    pub async fn stored_uids(&self) -> Result<Vec<String>, ReadFailed> {
        let pick = |document: Value| text(&document, "/metadata/uid").map(str::to_owned);
        let kept = ListPick { projection: &Projection::of_parts(&[]), pick, most: usize::MAX };
        let link = &self.cluster().link;
        link.all_stored(&ops_kind(), ListSelection::default(), kept).await
    }

    /// Reads a job live, puts it into the cache and reports it to the observer.
    ///
    /// # Errors
    /// If the read fails, with the message of the API server.
    pub async fn read_again(&self, name: &str) -> Result<(), ReadFailed> {
        self.port.read_again(&ops_key(name)).await.map(drop)
    }
}
