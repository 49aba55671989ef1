//! A plugin without a manifest, which does nothing. A host must refuse it. Tests can insert any manifest.

use oarlock_sdk::{Action, Job, Proposal, Report, Result, Target};

/// The action `NoManifest`.
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
