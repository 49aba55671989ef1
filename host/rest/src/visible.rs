//! The job that a path names, as far as somebody may see it. Source: docs/opsjob-rest.md 2.

use kube::api::DynamicObject;
use oarlock_core::ops_job::access::Access;
use oarlock_core::ops_job::refusal::{Code, OpsRefusal};
use oarlock_core::ops_job::spec::OpsType;
use oarlock_core::ops_job::stored::StoredOps;
use oarlock_core::shared::quota_key::QuotaKey;
use serde_json::Value;

use crate::Parts;
use crate::audit::Noted;
use crate::caller::Caller;
use crate::errors::{of_history, of_request};
use crate::turns::JobTurn;

/// A job that somebody may see.
pub(crate) struct Visible {
    pub(crate) job: StoredOps,
    pub(crate) document: Value,
    /// It is not in the cluster any more: this is what the history has of it.
    pub(crate) is_gone: bool,
    /// He asked for it himself.
    is_own: bool,
}

/// The questions whether somebody may do this to jobs of a type.
pub(crate) fn on_type(verb: &'static str, kind: &str) -> Vec<Access> {
    let of_type = OpsType::read(kind).map(|kind| Access::to_ops_jobs(verb, kind.word()));
    std::iter::once(Access::to_ops_jobs(verb, "")).chain(of_type).collect()
}

/// What is said of a job that is not there, and of one that is nobody's business.
pub(crate) fn not_found(id: &str) -> OpsRefusal {
    let shown: String = id.chars().filter(|c| !c.is_control()).take(64).collect();
    OpsRefusal::new(Code::NotFound, format!("there is no OpsJob {shown}"))
}

impl Parts {
    /// The job of this id, if the caller may see it.
    pub(crate) async fn visible(&self, caller: &Caller, id: &str) -> Result<Visible, OpsRefusal> {
        if !oarlock_core::job::spec::is_object_name(id) {
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

    /// The same, if the caller may do this to it.
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
        let words = format!("you may not {verb} opsjobs of oarlock.dev, nor opsjobs/{}", visible.job.summary.kind);
        Err(OpsRefusal::new(Code::Forbidden, words))
    }
    /// The same, with the turn of the change, which lasts as long as the job is in memory. Notes whether the caller has some right on
    /// OpsJobs.
    pub(crate) async fn changed(
        &self,
        caller: &Caller,
        verb: &'static str,
        noted: &mut Noted,
    ) -> Result<(Visible, JobTurn), OpsRefusal> {
        let turn = self.changes.take(&QuotaKey::of(&caller.name)).await?;
        let visible = self.changeable(caller, &noted.job, verb).await;
        noted.is_entitled = match &visible {
            // A caller who is told that he may not do it may see it.
            Ok(_) | Err(OpsRefusal { code: Code::Forbidden, .. }) => true,
            Err(OpsRefusal { code: Code::NotFound, .. }) => self.rights.has_some(caller, "get").await.unwrap_or(false),
            Err(_) => false,
        };
        Ok((visible?, turn))
    }
}
