//! One round of a JobTemplate: its status names the Jobs that were made from it.

use oarlock_core::flow::template::status;
use oarlock_kube::flows::Flows;
use oarlock_kube::lease::Fence;

use crate::flows::round::{NextRound, RoundTrouble};

/// Runs one round of the template of this namespace and name.
pub(crate) async fn run(
    flows: &Flows,
    fence: &Fence,
    (namespace, name): (&str, &str),
) -> Result<NextRound, RoundTrouble> {
    let Some((template, jobs)) = flows.cache().template(namespace, name) else { return Ok(NextRound::Gone) };
    let wanted = status(&template, jobs.iter(), flows.cluster().clock().now());
    if wanted != template.status {
        let written = flows.write_template_status(&template, &wanted, fence).await;
        written.map_err(|stopped| RoundTrouble::of("write the status", &stopped))?;
    }
    Ok(NextRound::After(None))
}
