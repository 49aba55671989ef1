//! A plugin whose manifest asks for more than its jobs need, so that it waits for a grant. It does nothing and succeeds
//! at once. A host must not serve it with a grant that leaves out a line of the manifest.

use oarlock_sdk::{Action, Job, Proposal, Report, Result, Target, export};

/// The action `Greedy`.
#[derive(Debug)]
pub struct Greedy;

impl Action for Greedy {
    fn operate(_: &Job, _: &Target) -> Result<Proposal> {
        Ok(Proposal::new())
    }

    fn progress(_: &Job, _: &Target) -> Result<Report> {
        Ok(Report::succeeded())
    }
}

export!(Greedy, manifest = include_str!("manifest.json"));
