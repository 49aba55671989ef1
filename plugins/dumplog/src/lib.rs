//! dumplog: lets the host collect the logs of a pod.
//!
//! The host itself runs the task, and may start it again. It does not read the run of a container twice. The collected logs go
//! into the one file of the OpsJob. The plugin must not change the pod.

use core::time::Duration;

use oarlock_sdk::{Action, Job, Proposal, Report, Result, Target, TaskRequest, export};

/// The name of the task. The host reads the report of the task under this name.
pub const TASK: &str = "logs";

/// The longest time between two visits of a pod whose logs are read.
const CHECK: Duration = Duration::from_secs(60);

/// The action of this plugin.
#[derive(Debug)]
pub struct Dumplog;

impl Action for Dumplog {
    fn operate(_: &Job, target: &Target) -> Result<Proposal> {
        if target.task(TASK).is_some() {
            return Ok(Proposal::new());
        }
        let (name, kind) = (TASK.to_owned(), "collect-logs".to_owned());
        Ok(Proposal::new().task(TaskRequest { name, kind, arguments: "{}".to_owned() }))
    }

    fn progress(_: &Job, target: &Target) -> Result<Report> {
        let Some(task) = target.task(TASK) else { return Ok(Report::processing().check_after(CHECK)) };
        Ok(match task.state.as_str() {
            "Succeeded" => Report::succeeded(),
            "Failed" => {
                let why = task.message.trim();
                Report::failed("LogUnavailable", format!("The logs of pod {} cannot be read: {why}.", target.name()))
            }
            _ => Report::processing().check_after(CHECK),
        })
    }
}

export!(Dumplog, manifest = include_str!("../manifest.json"));
