//! A plugin that proposes a label outside its manifest. The host must refuse the whole proposal with `MutationDenied`,
//! including the label that the manifest asks for, so that neither label is set.

use oarlock_sdk::{Action, Change, Job, Proposal, Report, Result, Target, export};

/// The label that the manifest asks for.
const DONE: &str = "overreach.test/done";
/// A label outside the manifest.
const MORE: &str = "app.kubernetes.io/managed-by";

/// The action `Overreach`.
#[derive(Debug)]
pub struct Overreach;

impl Action for Overreach {
    fn operate(_: &Job, target: &Target) -> Result<Proposal> {
        let pod = target.object().filter(|pod| !pod.has_label(DONE));
        Ok(pod.map_or_else(Proposal::new, |pod| {
            Proposal::new().change(Change::of(&pod).set_label(DONE, "true").set_label(MORE, "overreach").keep())
        }))
    }

    fn progress(_: &Job, target: &Target) -> Result<Report> {
        let done = target.object().is_some_and(|pod| pod.has_label(DONE));
        Ok(if done { Report::succeeded() } else { Report::processing() })
    }
}

export!(Overreach, manifest = include_str!("manifest.json"));
