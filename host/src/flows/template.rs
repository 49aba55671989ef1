//! One round of a JobTemplate: writes its status, which names the Jobs made from it.

use oarlock_core::job_template::template::status;
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
    let Some((template, jobs)) = flows.cache().template(key) else { return Ok(NextRound::Gone) };
    let clock = flows.cluster().clock();
    let wanted = status(&template, jobs.iter(), clock.now());
    if wanted == template.status {
        return Ok(NextRound::After(None));
    }
    if let Some(due) = memory.pace.next(false, false) {
        return Ok(NextRound::After(Some(due.saturating_duration_since(Instant::now()))));
    }
    let began = Instant::now();
    let written = flows.write_template_status(&template, &wanted, fence).await;
    let owner = QuotaKey::Namespace(template.namespace.clone());
    memory.pace.wrote(StatusWrite { key, owner, ended: clock.now(), took: began.elapsed() }, shared_limit);
    written.map_err(|stopped| RoundTrouble::of("write the status", &stopped))?;
    Ok(NextRound::After(None))
}
