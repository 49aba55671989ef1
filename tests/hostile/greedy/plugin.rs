//! A plugin whose manifest asks for more than any job of its needs, so that it waits for a grant. Takes a pod and yields
//! nothing: it has succeeded at once. May not be served with a grant that leaves out a line.

use oarlock_sdk::{Action, Job, Proposal, Report, Result, Target, export};

/// The action.
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
