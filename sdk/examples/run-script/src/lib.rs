//! Runs a script as root on each node, once. A target succeeds if the script
//! ends with exit code 0. The host does the work: it makes a pod that runs the
//! script, and reports the state of the task.

use oarlock_sdk::{Action, Job, Proposal, Report, Result, Target, TaskRequest, export, json};

/// The name of the task. A target keeps the task of this name, and never starts
/// it again.
const TASK: &str = "script";
/// The default timeout of a script, in seconds.
const TIMEOUT: u32 = 600;

/// The action of this plugin.
#[derive(Debug)]
pub struct RunScript;

impl Action for RunScript {
    fn operate(job: &Job, target: &Target) -> Result<Proposal> {
        if target.task(TASK).is_some() || target.object().is_none() {
            return Ok(Proposal::new());
        }
        let script: String = job.parameter("/script")?.unwrap_or_default();
        let timeout = job.parameter("/timeoutSeconds")?.unwrap_or(TIMEOUT);
        let arguments = json!({"script": {"text": script}, "timeoutSeconds": timeout}).to_string();
        let (name, kind) = (TASK.to_owned(), "run-on-node".to_owned());
        Ok(Proposal::new().task(TaskRequest { name, kind, arguments }))
    }

    fn progress(_: &Job, target: &Target) -> Result<Report> {
        let Some(task) = target.task(TASK) else {
            return Ok(match target.object() {
                Some(_) => Report::processing(),
                None => Report::failed("NodeGone", "The node is gone, or another one has its name."),
            });
        };
        Ok(match (task.state.as_str(), task.exit_code) {
            ("Succeeded", _) => Report::succeeded(),
            ("Failed", Some(code)) => {
                Report::failed("ScriptFailed", format!("The script ended with exit code {code}."))
            }
            ("Failed", None) => Report::failed("ScriptLost", task.message),
            _ => Report::processing(),
        })
    }
}

export!(RunScript, manifest = include_str!("../manifest.json"));

#[cfg(test)]
mod tests {
    use oarlock_sdk::TaskStatus;
    use oarlock_sdk::kit::{Visit, node};

    use super::*;

    fn task(state: &str, exit_code: Option<i32>) -> Visit {
        let (output, message) = (String::new(), "lost".to_owned());
        let status = TaskStatus { state: state.to_owned(), exit_code, output, message };
        Visit::to(&node("n")).parameters(json!({"script": "true"})).task(TASK, status)
    }

    #[test]
    fn a_script_is_asked_for_until_it_is_seen() {
        let first = Visit::to(&node("n")).parameters(json!({"script": "true"}));
        assert_eq!(first.operate::<RunScript>().unwrap().mutations().len(), 1);
        assert_eq!(task("Running", None).operate::<RunScript>().unwrap(), Proposal::new());
    }

    #[test]
    fn a_node_ends_as_its_script_did() {
        assert_eq!(task("Running", None).progress::<RunScript>().unwrap(), Report::processing());
        assert_eq!(task("Succeeded", Some(0)).progress::<RunScript>().unwrap(), Report::succeeded());
        let failed = Report::failed("ScriptFailed", "The script ended with exit code 3.");
        assert_eq!(task("Failed", Some(3)).progress::<RunScript>().unwrap(), failed);
        assert_eq!(task("Failed", None).progress::<RunScript>().unwrap(), Report::failed("ScriptLost", "lost"));
    }
}
