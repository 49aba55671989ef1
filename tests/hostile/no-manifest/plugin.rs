//! A plugin without a manifest. Takes a pod and yields nothing. May not be served; a test can put any manifest into it.

use oarlock_sdk::{Action, Job, Proposal, Report, Result, Target};

/// The action.
#[derive(Debug)]
pub struct NoManifest;

impl Action for NoManifest {
    fn operate(_: &Job, _: &Target) -> Result<Proposal> {
        Ok(Proposal::new())
    }

    fn progress(_: &Job, _: &Target) -> Result<Report> {
        Ok(Report::succeeded())
    }
}

oarlock_sdk::__export_action!(NoManifest);
