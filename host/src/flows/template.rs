//! One round of a JobTemplate: writes its status, which names the Jobs made from it.

use oarlock_core::job_template::template::status;
use oarlock_core::kind::plan::{NewStatus, StoreTime};
use oarlock_core::object::api_object::ObjectKey;
use oarlock_core::object::quota_key::QuotaKey;
use tokio::time::Instant;

use crate::flows::FlowTerm;
use crate::flows::memory::FlowMemory;
use crate::reconcilers::NextRound;
use crate::round_trouble::RoundTrouble;
use crate::status_rate_limit::StatusWrite;

/// Runs one round of the template with this key.
pub(crate) async fn run(term: &FlowTerm, key: &ObjectKey, memory: &mut FlowMemory) -> Result<NextRound, RoundTrouble> {
    let FlowTerm { flows, fence, shared_limit, .. } = term;
    let seen = flows.certain_template(key).await.map_err(RoundTrouble::of_read)?;
    let Some((template, jobs)) = seen else { return Ok(NextRound::Gone) };
    let clock = flows.cluster().clock();
    let status = NewStatus { body: status(&template, jobs.iter(), clock.now()), when: StoreTime::InTurn(None) };
    if status.body == template.status {
        return Ok(NextRound::After(None));
    }
    if let Some(due) = memory.pace.next(false, false) {
        return Ok(NextRound::After(Some(due.saturating_duration_since(Instant::now()))));
    }
    let began = Instant::now();
    let persisted = flows.persist_template(&template, &status, fence).await;
    let owner = QuotaKey::Namespace(template.namespace.clone());
    memory.pace.wrote(StatusWrite { key, owner, ended: clock.now(), took: began.elapsed() }, shared_limit);
    persisted.map_err(|stopped| RoundTrouble::of("write the status", &stopped))?;
    Ok(NextRound::After(None))
}
