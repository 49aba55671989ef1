//! A plugin that reads the file that its target is named after, and reports the content as an event. A host must refuse
//! it, because it imports a file system, or deny the read, if the manifest knows of the denial.

use oarlock_sdk::{Action, Job, Proposal, Report, Result, Target, export};

/// The action `Files`.
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
