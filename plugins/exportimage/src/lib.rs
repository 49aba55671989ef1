//! exportimage: has the image that a pod runs copied into another registry, or one of its containers committed.
//!
//! The OpsJob says what that is, and its name there. A copy is done by the host itself, which takes all of it from the status of the OpsJob:
//! this plugin says no more than that it is to begin. The host may begin it again, and what the registry has is not sent twice. A commit is done on the node of the pod, once. May not change the pod.

use core::time::Duration;
use std::collections::BTreeMap;

use oarlock_sdk::{Action, Job, Proposal, Report, Result, Target, TaskRequest, Value, export, json};

/// The task. The host looks for what it says under this name.
pub const TASK: &str = "export";

/// The reasons for which an export fails: the first word of what the task says.
const REASONS: [&str; 7] =
    ["PullFailed", "PushFailed", "Unauthorized", "DigestMismatch", "ToolMissing", "ContainerGone", "CommandFailed"];

/// The longest time between two visits of a pod whose image is exported.
const CHECK: Duration = Duration::from_secs(60);

/// Time after which a commit is ended, in seconds.
const COMMIT_SECONDS: u32 = 3600;

/// The action.
#[derive(Debug)]
pub struct Exportimage;

impl Action for Exportimage {
    fn operate(job: &Job, target: &Target) -> Result<Proposal> {
        if target.task(TASK).is_some() {
            return Ok(Proposal::new());
        }
        // The parameters of a commit, without the mode, are the arguments of the task.
        let mut asked = job.parameter::<BTreeMap<String, Value>>("")?.unwrap_or_default();
        let (kind, arguments) = match asked.remove("mode") {
            None => ("copy-image", json!({})),
            Some(_) => ("run-on-node", json!({"builtin": "commit", "timeoutSeconds": COMMIT_SECONDS, "commit": asked})),
        };
        let (name, kind, arguments) = (TASK.to_owned(), kind.to_owned(), arguments.to_string());
        Ok(Proposal::new().task(TaskRequest { name, kind, arguments }))
    }

    fn progress(job: &Job, target: &Target) -> Result<Report> {
        let Some(task) = target.task(TASK) else { return Ok(Report::processing().check_after(CHECK)) };
        Ok(match task.state.as_str() {
            "Succeeded" => Report::succeeded(),
            "Failed" => {
                let (reason, why) = task.message.split_once(": ").unwrap_or(("", &task.message));
                let known = REASONS.into_iter().find(|known| *known == reason);
                let why = if known.is_some() { why } else { &task.message };
                let words = format!("The image of pod {} was not exported: {}.", target.name(), why.trim());
                let commits = job.parameter::<String>("/mode")?.is_some();
                Report::failed(known.unwrap_or(if commits { "CommandFailed" } else { "PushFailed" }), words)
            }
            _ => Report::processing().check_after(CHECK),
        })
    }
}

export!(Exportimage, manifest = include_str!("../manifest.json"));
