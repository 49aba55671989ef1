//! A plugin that reads files. Takes a path from the target's name and yields what it found there as an event. May not be
//! served: it imports a file system, which no host offers.

use oarlock_sdk::{Action, Job, Proposal, Report, Result, Target, export};

/// The action.
#[derive(Debug)]
pub struct Files;

impl Action for Files {
    fn operate(_: &Job, target: &Target) -> Result<Proposal> {
        let found = std::fs::read_to_string(target.name());
        Ok(Proposal::new().event("Found", format!("{found:?}")))
    }

    fn progress(_: &Job, _: &Target) -> Result<Report> {
        Ok(Report::succeeded())
    }
}

export!(
    Files,
    manifest = r#"{"schema": 1, "name": "files", "version": "0.1.0", "action": "Files", "target": ["Pod"]}"#
);
