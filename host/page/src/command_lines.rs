//! The commands that read, plan or change a shown object. The page only reads: you copy a command and run it with your own rights.

use maud::{Markup, html};
use oarlock_view::{FlowKind, FlowView, JobView, TargetView, UnitView};

use crate::address::ObjectKind;
use crate::log_page::ShownLog;
use crate::shell_word::shell_word;

/// A command, and what it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommandLine {
    /// The effect, as the beginning of a sentence.
    pub(crate) effect: &'static str,
    /// The command, as one line for a shell.
    pub(crate) line: String,
}

impl CommandLine {
    fn new(effect: &'static str, line: String) -> Self {
        Self { effect, line }
    }
}

/// Returns the section with the commands, or nothing if there are none. The section is a fragment with the id `commands`.
pub(crate) fn section(commands: &[CommandLine]) -> Markup {
    html! {
        section id="commands" class="panel" aria-labelledby="commands-title" {
            h2 id="commands-title" { "Commands" }
            p class="muted" { "This page only reads. Copy a command, and run it with your own rights." }
            @for command in commands { (copyable(command)) }
        }
    }
}

/// Returns one command with its effect. Without the script, a click selects the whole line.
pub(crate) fn copyable(command: &CommandLine) -> Markup {
    html! {
        div class="command" {
            span class="effect" { (command.effect) }
            code { (command.line) }
            button type="button" class="copy" data-copy aria-label={ "Copy: " (command.effect) } { "Copy" }
        }
    }
}

/// Returns the commands for an OperationJob or an OpsJob.
pub(crate) fn of_job(job: &JobView) -> Vec<CommandLine> {
    let name = shell_word(&job.name);
    if job.is_ops() {
        let mut lines = vec![CommandLine::new("Follow it in a terminal", format!("oarlock watch ops/{name}"))];
        if !job.progress.is_terminal() {
            let patch = patch("", &format!("ops/{name}"), r#"{"spec":{"stop":true}}"#);
            lines.push(CommandLine::new("Stop it for good", patch));
        }
        lines.push(CommandLine::new("Delete it", format!("kubectl delete ops/{name}")));
        return lines;
    }
    let space = shell_word(&job.namespace);
    let handle = format!("opj/{name}");
    let patch = |spec: &str| patch(&space, &handle, spec);
    let mut lines = vec![
        CommandLine::new("Follow it in a terminal", format!("oarlock watch {handle} -n {space}")),
        CommandLine::new(
            "Plan the same operation again, without a change",
            format!("kubectl -n {space} get {handle} -o yaml | oarlock plan - -n {space} --plugins ./plugins"),
        ),
    ];
    if !job.progress.is_terminal() {
        lines.push(if job.is_paused() {
            CommandLine::new("Go on", patch(r#"{"spec":{"paused":false}}"#))
        } else {
            CommandLine::new("Pause it: no further target starts", patch(r#"{"spec":{"paused":true}}"#))
        });
        if let Some(partition) = job.partition.filter(|partition| *partition < job.counts.total) {
            let more = partition.max(1).saturating_mul(2).min(job.counts.total);
            lines.push(CommandLine::new(
                "Let more targets start",
                patch(&format!(r#"{{"spec":{{"partition":{more}}}}}"#)),
            ));
        }
    }
    lines.push(CommandLine::new("Delete it, and release its targets", format!("kubectl -n {space} delete {handle}")));
    lines
}

/// Returns the commands for a JobFlow or a DaemonJob.
pub(crate) fn of_flow(flow: &FlowView) -> Vec<CommandLine> {
    let space = shell_word(&flow.namespace);
    let handle = format!("{}/{}", flow.kind.short(), shell_word(&flow.name));
    let mut lines = vec![CommandLine::new("Follow it in a terminal", format!("oarlock watch {handle} -n {space}"))];
    if flow.kind == FlowKind::JobFlow {
        lines.push(CommandLine::new("Draw it as text", format!("oarlock graph {handle} -n {space}")));
    }
    if flow.counts.failed.saturating_add(flow.counts.omitted) > 0 {
        let retry = format!("oarlock retry {handle} -n {space}");
        lines.push(CommandLine::new("Run again what failed or was omitted", retry));
    }
    if !flow.has_ended {
        let is_paused = flow.notices.iter().any(|notice| notice.condition == "Paused");
        let spec = match flow.kind {
            FlowKind::JobFlow => format!(r#"{{"spec":{{"suspend":{}}}}}"#, !is_paused),
            FlowKind::DaemonJob => format!(r#"{{"spec":{{"rollout":{{"paused":{}}}}}}}"#, !is_paused),
        };
        let effect = if is_paused { "Go on" } else { "Pause it: nothing new starts" };
        lines.push(CommandLine::new(effect, patch(&space, &handle, &spec)));
    }
    lines.push(CommandLine::new("Delete it", format!("kubectl -n {space} delete {handle}")));
    lines
}

/// Returns the commands for one target of a job.
pub(crate) fn of_target(job: &JobView, target: &TargetView) -> Vec<CommandLine> {
    let name = shell_word(&target.name);
    let line = match (job.has_nodes, job.is_ops()) {
        _ if target.name.is_empty() => None,
        (true, _) => Some(CommandLine::new("Describe the node", format!("kubectl describe node/{name}"))),
        (false, false) => {
            let space = shell_word(&job.namespace);
            Some(CommandLine::new("Describe the pod", format!("kubectl -n {space} describe pod/{name}")))
        }
        (false, true) => None,
    };
    line.into_iter().collect()
}

/// Returns the commands for a step or a node that needs a person.
pub(crate) fn of_unit(flow: &FlowView, unit: &UnitView) -> Vec<CommandLine> {
    let space = shell_word(&flow.namespace);
    let mut lines = Vec::new();
    if !unit.job.is_empty() && !unit.is_operation {
        let logs = format!("kubectl -n {space} logs job/{} --all-containers", shell_word(&unit.job));
        lines.push(CommandLine::new("Read its log", logs));
    }
    let handle = format!("{}/{}", flow.kind.short(), shell_word(&flow.name));
    let retry = format!("oarlock retry {handle} -n {space} --{} {}", flow.kind.unit(), shell_word(&unit.name));
    lines.push(CommandLine::new("Run it again", retry));
    lines
}

/// Returns the command that reads the whole log of which a page shows the end.
pub(crate) fn whole_log(namespace: &str, log: &ShownLog) -> CommandLine {
    let [space, pod, container] = [namespace, &log.pod, &log.container].map(shell_word);
    CommandLine::new("Read the whole log", format!("kubectl -n {space} logs pod/{pod} -c {container}"))
}

/// Returns the command that shows where the files of an OpsJob can be loaded.
pub(crate) fn artifacts(job: &JobView) -> CommandLine {
    let line = format!("oarlock ops get {} --server \"$OARLOCK_SERVER\" --token-file token", shell_word(&job.name));
    CommandLine::new("Ask the REST API for the address of a file", line)
}

/// Returns the command that creates the first object of a kind.
pub(crate) fn first(kind: Option<ObjectKind>) -> CommandLine {
    let line = match kind {
        None | Some(ObjectKind::OperationJob) => "oarlock run Replace -l app=web --partition 1",
        Some(ObjectKind::JobFlow) => "kubectl apply -f flow.yaml",
        Some(ObjectKind::DaemonJob) => "kubectl apply -f daemonjob.yaml",
        Some(ObjectKind::OpsJob) => "oarlock ops create reboot --name reboot-a --node NODE --drain",
    };
    CommandLine::new("Create one", line.to_owned())
}

fn patch(space: &str, handle: &str, patch: &str) -> String {
    let space = if space.is_empty() { String::new() } else { format!(" -n {space}") };
    format!("kubectl{space} patch {handle} --type merge -p '{patch}'")
}
