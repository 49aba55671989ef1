//! Labels each target, and has succeeded once the label is there.

use oarlock_sdk::{Action, Change, Job, Proposal, Report, Result, Target, export};

/// The label that is set.
const LABEL: &str = "example.com/quarantine";

/// The action.
pub struct Quarantine;

impl Action for Quarantine {
    fn operate(_: &Job, target: &Target) -> Result<Proposal> {
        let Some(pod) = target.object() else { return Ok(Proposal::new()) };
        // `keep`: the label is the purpose of the action, and stays when the target is released.
        let mark = Change::of(&pod).ensure_label(&pod, LABEL, "true").keep();
        Ok(Proposal::new().change(mark))
    }

    fn progress(_: &Job, target: &Target) -> Result<Report> {
        Ok(match target.object() {
            None => Report::failed("PodNotFound", "The pod is gone; there is nothing to quarantine."),
            Some(pod) if pod.has_label(LABEL) => Report::succeeded(),
            Some(_) => Report::processing(),
        })
    }
}

export!(Quarantine, manifest = include_str!("../manifest.json"));

#[cfg(test)]
mod tests {
    use oarlock_sdk::kit::{Visit, pod};

    use super::*;

    #[test]
    fn a_pod_is_marked_and_then_succeeds() {
        let first = Visit::to(&pod("web-1"));
        let mark = first.operate::<Quarantine>().unwrap();
        assert_eq!(mark.mutations().len(), 1);
        let second = first.after(&mark);
        assert_eq!(second.operate::<Quarantine>().unwrap(), Proposal::new());
        assert_eq!(second.progress::<Quarantine>().unwrap(), Report::succeeded());
    }

    #[test]
    fn a_pod_that_is_gone_fails() {
        let report = Visit::to_gone("web-1").progress::<Quarantine>().unwrap();
        assert_ne!(report, Report::succeeded());
    }
}
