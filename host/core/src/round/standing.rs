//! What one round knows of its job, put together once for all its steps.
//!
//! Takes the observation, the checked spec and the plugin; lends the steps what they need. May not decide about a
//! target.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use oarlock_api::OperationJob;

use crate::cluster::store::Store;
use crate::cluster::writes::{JobKey, Observed, Write};
use crate::job::spec::{Invalid, ValidSpec};
use crate::plugin::lookup::{Found, PluginInfo};
use crate::plugin::visit::{JobFacts, Looked};
use crate::round::decide::Grounds;
use crate::round::memory::JobMemory;
use crate::round::plan::Gate;
use crate::round::target::Common;
use crate::shared::claims::Claims;

/// What one round knows of its job.
pub struct Standing<'a> {
    pub(crate) key: &'a JobKey,
    job: &'a OperationJob,
    pub(crate) now: Timestamp,
    checked: &'a Result<Arc<ValidSpec>, Invalid>,
    found: &'a Found,
    pub(crate) store: &'a Arc<Store>,
    pub(crate) looked: Arc<Looked>,
}

/// What a job is judged by beside what was observed of it.
#[derive(Clone, Copy)]
pub struct Means<'a> {
    /// The check of its spec.
    pub checked: &'a Result<Arc<ValidSpec>, Invalid>,
    /// Its plugin.
    pub found: &'a Found,
    /// The objects.
    pub store: &'a Arc<Store>,
}

impl<'a> Standing<'a> {
    /// What one round knows of its job.
    pub fn new(key: &'a JobKey, job: &'a OperationJob, observed: &Observed, means: Means<'a>) -> Self {
        let Means { checked, found, store } = means;
        let looked = Arc::new(observed.looked.clone());
        Self { key, job, now: observed.now, checked, found, store, looked }
    }

    /// UID of the job.
    pub fn uid(&self) -> &str {
        self.job.metadata.uid.as_deref().unwrap_or_default()
    }

    /// `spec.action`, empty where it is not given.
    pub fn action(&self) -> &str {
        action(self.job)
    }

    fn plugin(&self) -> Option<&PluginInfo> {
        match self.found {
            Found::Serving(plugin) => Some(plugin),
            _ => None,
        }
    }

    /// What its targets have in common.
    pub fn common(&self) -> Common<'_> {
        let spec = self.job.spec.as_ref();
        let deadline = spec.and_then(|spec| spec.active_deadline_seconds).filter(|seconds| *seconds > 0);
        Common {
            key: self.key,
            job_uid: self.uid(),
            now: self.now,
            spec: self.checked.as_deref().ok(),
            deadline_seconds: i64::from(deadline.unwrap_or(10_800)),
            plugin: self.plugin(),
            deleting: self.job.metadata.deletion_timestamp.is_some(),
            store: self.store,
            looked: &self.looked,
        }
    }

    /// What the decision is made from.
    pub fn grounds<'b>(&'b self, farewell: &'b dyn Fn() -> Vec<Write>) -> Grounds<'b> {
        let invalid = self.checked.as_ref().err();
        Grounds { job: self.job, common: self.common(), found: self.found, invalid, farewell }
    }
}

/// Whether targets may be started and visited in this round.
pub fn gate(claims: &mut Claims, standing: &Standing<'_>, memory: &JobMemory) -> Gate {
    let ended = memory.state.end.is_some();
    let read = memory.fenced || ended;
    if read {
        claims.read(standing.key);
    }
    if !read && memory.state.start.is_some() || !claims.ready(&standing.key.namespace) {
        return Gate::Shut;
    }
    match (standing.checked, standing.found) {
        (Ok(_), Found::Serving(_)) => Gate::Open,
        _ => Gate::NoStarts,
    }
}

/// `spec.action`, empty where it is not given.
pub fn action(job: &OperationJob) -> &str {
    job.spec.as_ref().and_then(|spec| spec.action.as_deref()).unwrap_or_default()
}

/// What its plugin is told of the job.
pub fn facts(standing: &Standing<'_>, memory: &JobMemory) -> Arc<JobFacts> {
    let parameters = standing.checked.as_ref().map_or_else(|_| serde_json::json!({}), |spec| spec.parameters.clone());
    Arc::new(JobFacts {
        namespace: standing.key.namespace.clone(),
        name: standing.key.name.clone(),
        uid: standing.uid().to_owned(),
        action: standing.action().to_owned(),
        now_ms: milliseconds(standing.now),
        parameters,
        target_count: u32::try_from(memory.state.targets.len()).unwrap_or(u32::MAX),
        cancelled: standing.job.metadata.deletion_timestamp.is_some(),
    })
}

/// Milliseconds since 1970.
pub(crate) fn milliseconds(time: Timestamp) -> u64 {
    u64::try_from(time.as_millisecond()).unwrap_or(0)
}
