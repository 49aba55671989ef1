//! exportimage: lets the host copy the image of a pod into another registry, or commit one of its containers.
//!
//! The OpsJob names the image and its target. The host itself makes a copy, from the status of the OpsJob. So this plugin only
//! starts it. The host may start a copy again, and does not send data twice that the registry already has. A commit runs once, on
//! the node of the pod. The plugin must not change the pod.

use core::time::Duration;
use std::collections::BTreeMap;

use oarlock_sdk::{Action, Job, Proposal, Report, Result, Target, TaskRequest, Value, export, json};

/// The name of the task. The host reads the report of the task under this name.
pub const TASK: &str = "export";

/// The reasons of a failed export. Each is the first word of the task's message.
const REASONS: [&str; 7] =
    ["PullFailed", "PushFailed", "Unauthorized", "DigestMismatch", "ToolMissing", "ContainerGone", "CommandFailed"];

/// The longest time between two visits of a pod whose image is exported.
const CHECK: Duration = Duration::from_secs(60);

/// The timeout of a commit, in seconds.
const COMMIT_SECONDS: u32 = 3600;

/// The action of this plugin.
#[derive(Debug)]
pub struct Exportimage;

impl Action for Exportimage {
    fn operate(job: &Job, target: &Target) -> Result<Proposal> {
        if target.task(TASK).is_some() {
            return Ok(Proposal::new());
        }
        // The arguments of a commit are the parameters of the job without the mode.
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
