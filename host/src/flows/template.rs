//! One round of a JobTemplate: its status names the Jobs that were made from it.

use oarlock_core::flow::template::status;
use oarlock_kube::flows::FlowKey;
use tokio::time::Instant;

use crate::flows::FlowTerm;
use crate::flows::memory::FlowMemory;
use crate::reconcilers::NextRound;
use crate::round_trouble::RoundTrouble;

/// Runs one round of the template of this namespace and name.
pub(crate) async fn run(
    FlowTerm { flows, fence, together, .. }: &FlowTerm,
    (namespace, name): (&str, &str),
    (key, memory): (&FlowKey, &mut FlowMemory),
) -> Result<NextRound, RoundTrouble> {
    let Some((template, jobs)) = flows.cache().template(namespace, name) else { return Ok(NextRound::Gone) };
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
    memory.pace.wrote(key, together, (clock.now(), began.elapsed()));
    written.map_err(|stopped| RoundTrouble::of("write the status", &stopped))?;
    Ok(NextRound::After(None))
}
