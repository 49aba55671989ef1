//! exportimage: has the host copy the image that a pod runs into another registry.
//!
//! Which image that is, and its name there, the OpsJob says. The task is done by the host itself, which may begin it again: what the registry
//! has is not sent twice. May not change the pod.

use core::time::Duration;

use oarlock_sdk::{Action, Job, Proposal, Report, Result, Target, TaskRequest, Value, export};

/// The task. The host looks for what it says under this name.
pub const TASK: &str = "copy";

/// The reasons for which a copy fails: the first word of what the host says.
const REASONS: [&str; 4] = ["PullFailed", "PushFailed", "Unauthorized", "DigestMismatch"];

/// The longest time between two visits of a pod whose image is copied.
const CHECK: Duration = Duration::from_secs(60);

/// The action.
#[derive(Debug)]
pub struct Exportimage;

impl Action for Exportimage {
    fn operate(job: &Job, target: &Target) -> Result<Proposal> {
        if target.task(TASK).is_some() {
            return Ok(Proposal::new());
        }
        // The parameters are what the task is told.
        let (name, kind, arguments) =
            (TASK.to_owned(), "copy-image".to_owned(), job.parameter::<Value>("")?.unwrap_or_default().to_string());
        Ok(Proposal::new().task(TaskRequest { name, kind, arguments }))
    }

    fn progress(_: &Job, target: &Target) -> Result<Report> {
        let Some(task) = target.task(TASK) else { return Ok(Report::processing().check_after(CHECK)) };
        Ok(match task.state.as_str() {
            "Succeeded" => Report::succeeded(),
            "Failed" => {
                let (reason, why) = task.message.split_once(": ").unwrap_or(("", &task.message));
                let known = REASONS.into_iter().find(|known| *known == reason);
                let why = if known.is_some() { why } else { &task.message };
                let words = format!("The image of pod {} was not exported: {}.", target.name(), why.trim());
                Report::failed(known.unwrap_or("PushFailed"), words)
            }
            _ => Report::processing().check_after(CHECK),
        })
    }
}

export!(Exportimage, manifest = include_str!("../manifest.json"));
