//! Finds the job that a path names, if the caller may see it. Source: docs/opsjob-rest.md 2.

use kube::api::DynamicObject;
use oarlock_core::object::quota_key::QuotaKey;
use oarlock_core::ops_job::access::Access;
use oarlock_core::ops_job::refusal::{Code, OpsRefusal};
use oarlock_core::ops_job::spec::OpsType;
use oarlock_core::ops_job::stored::StoredOps;
use serde_json::Value;

use crate::audit::Noted;
use crate::caller::Caller;
use crate::errors::{of_history, of_request};
use crate::state::RestState;
use crate::turns::JobTurn;

/// A job that the caller may see.
pub(crate) struct Visible {
    pub(crate) job: StoredOps,
    pub(crate) document: Value,
    /// True if the job exists only in the history, no longer in the cluster.
    pub(crate) is_gone: bool,
    /// True if the caller requested the job.
    is_own: bool,
}

/// Returns the rights that each allow a verb on jobs of a type.
pub(crate) fn on_type(verb: &'static str, kind: &str) -> Vec<Access> {
    let of_type = OpsType::read(kind).map(|kind| Access::to_ops_jobs(verb, kind.word()));
    std::iter::once(Access::to_ops_jobs(verb, "")).chain(of_type).collect()
}

/// Returns the refusal for a job that does not exist, or that the caller may not see.
pub(crate) fn not_found(id: &str) -> OpsRefusal {
    let shown: String = id.chars().filter(|c| !c.is_control()).take(64).collect();
    OpsRefusal::new(Code::NotFound, format!("there is no OpsJob {shown}"))
}

impl RestState {
    /// Returns the job of this id, if the caller may see it.
    pub(crate) async fn visible(&self, caller: &Caller, id: &str) -> Result<Visible, OpsRefusal> {
        if !oarlock_core::object::key::is_object_name(id) {
            return Err(not_found(id));
        }
        let stored = self.jobs().get_opt(id).await.map_err(|error| of_request(&error, "read the OpsJob"))?;
        let mut document = stored.map(|stored: DynamicObject| serde_json::to_value(stored).unwrap_or_default());
        let is_gone = document.is_none();
        if let Some(history) = self.history.as_ref().filter(|_| is_gone) {
            let gone = history.job(id).await.map_err(|failed| of_history(&failed))?;
            document = gone.map(|gone| gone.document);
        }
        let job = document.as_ref().and_then(|document| StoredOps::read(document, self.ops.defaults()));
        let Some((job, document)) = job.zip(document) else { return Err(not_found(id)) };
        let is_own = job.summary.is_of(caller.id(), &caller.name);
        if !is_own && !self.rights.has_any(caller, &on_type("get", &job.summary.kind)).await? {
            return Err(not_found(id));
        }
        Ok(Visible { job, document, is_gone, is_own })
    }

    /// Returns the job of this id, if the caller may do this to it.
    pub(crate) async fn changeable(
        &self,
        caller: &Caller,
        id: &str,
        verb: &'static str,
    ) -> Result<Visible, OpsRefusal> {
        let visible = self.visible(caller, id).await?;
        if visible.is_own || self.rights.has_any(caller, &on_type(verb, &visible.job.summary.kind)).await? {
            return Ok(visible);
        }
        let message = format!("you may not {verb} opsjobs of oarlock.dev, nor opsjobs/{}", visible.job.summary.kind);
        Err(OpsRefusal::new(Code::Forbidden, message))
    }
    /// Returns the job of this id for a change, with the turn of the change. The turn lasts as long as the job is in memory. Records in
    /// `noted` whether the caller has some right on OpsJobs.
    pub(crate) async fn changed(
        &self,
        caller: &Caller,
        verb: &'static str,
        noted: &mut Noted,
    ) -> Result<(Visible, JobTurn), OpsRefusal> {
        let turn = self.changes.take(&QuotaKey::of(&caller.name)).await?;
        let visible = self.changeable(caller, &noted.job, verb).await;
        noted.is_entitled = match &visible {
            // A caller who is refused as forbidden may still see the job.
            Ok(_) | Err(OpsRefusal { code: Code::Forbidden, .. }) => true,
            Err(OpsRefusal { code: Code::NotFound, .. }) => self.rights.has_some(caller, "get").await.unwrap_or(false),
            Err(_) => false,
        };
        Ok((visible?, turn))
    }
}
