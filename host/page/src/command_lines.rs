//! The commands that read, plan or change a shown object. The page only reads: you copy a command and run it with your own rights.

use maud::{Markup, html};
use oarlock_view::{FlowKind, FlowView, JobView, ShownProgress, TargetView, UnitView};

use crate::address::ObjectKind;
use crate::log_page::ShownLog;
use crate::shell_word::shell_word;

/// The most targets that a command names.
const MOST_NAMED: usize = 20;

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
        lines.extend(budgets(job));
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
            "Plan the same operation again, without a change. ./plugins is the folder with the plugin files",
            format!("kubectl -n {space} get {handle} -o yaml | oarlock plan - -n {space} --plugins ./plugins"),
        ),
    ];
    lines.extend(budgets(job));
    lines.extend(again(job));
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

/// Returns the commands that show the disruption budgets for which a job waits.
fn budgets(job: &JobView) -> impl Iterator<Item = CommandLine> {
    let waits = job.waits_for.as_deref().unwrap_or_default().split(", ");
    waits.filter_map(|wait| wait.strip_prefix("Budget ")).map(|name| budget(job, name))
}

/// Returns the command that shows a disruption budget. The pods of a node, and so their budgets, can be in any namespace.
fn budget(job: &JobView, name: &str) -> CommandLine {
    let line = if job.has_nodes || job.is_ops() {
        format!("kubectl get pdb -A --field-selector {}", shell_word(&format!("metadata.name={name}")))
    } else {
        format!("kubectl -n {} get pdb {}", shell_word(&job.namespace), shell_word(name))
    };
    CommandLine::new("Show the budget that allows no eviction", line)
}

/// Returns the command that creates a new job like an OperationJob with failed targets. The new job has only these, if all of them are known.
fn again(job: &JobView) -> Option<CommandLine> {
    let is_failed = |target: &&TargetView| target.progress == ShownProgress::Failed;
    let names: Vec<String> = job
        .targets()
        .iter()
        .filter(is_failed)
        .filter(|target| !target.name.is_empty())
        .map(|target| serde_json::Value::from(target.name.as_str()).to_string())
        .take(MOST_NAMED + 1)
        .collect();
    if !job.progress.is_terminal() || job.counts.failed == 0 {
        return None;
    }
    let kept = "{apiVersion, kind, metadata: {generateName: (.metadata.name + \"-\")}, spec}";
    let is_whole = names.len() == job.counts.failed && names.len() <= MOST_NAMED;
    let filter = if is_whole {
        // A job with a selector names no targets.
        let targets = "[(.spec.targets // ($failed | map({name: .})))[] | select(.name | IN($failed[]))]";
        let names = names.join(", ");
        format!("[{names}] as $failed | {kept} | .spec.targets = {targets} | del(.spec.selector)")
    } else {
        kept.to_owned()
    };
    let effect = if is_whole { "Run its failed targets again, in a new job" } else { "Run it again, as a new job" };
    let [space, handle, filter] = [&job.namespace, &format!("opj/{}", job.name), &filter].map(|text| shell_word(text));
    let line = format!("kubectl -n {space} get {handle} -o json | jq {filter} | kubectl -n {space} create -f -");
    Some(CommandLine::new(effect, line))
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
    let new = target.extra.get("NewPod").filter(|_| target.progress == ShownProgress::Succeeded);
    let [name, space] = [&target.name, &job.namespace].map(|text| shell_word(text));
    let mut lines = Vec::new();
    match (job.has_nodes, job.is_ops(), new) {
        (false, false, Some(new)) => {
            // The pod of the target is gone.
            let line = format!("kubectl -n {space} describe pod/{}", shell_word(new));
            lines.push(CommandLine::new("Describe the new pod", line));
        }
        _ if target.name.is_empty() => {}
        (true, ..) => lines.push(CommandLine::new("Describe the node", format!("kubectl describe node/{name}"))),
        (false, false, None) => {
            lines.push(CommandLine::new("Describe the pod", format!("kubectl -n {space} describe pod/{name}")));
        }
        (false, true, _) => {}
    }
    let error = target.error.as_ref().filter(|_| target.is_blocked());
    if job.has_nodes && error.is_some_and(|error| matches!(error.reason.as_str(), "EvictionBlocked" | "DrainWaits")) {
        let selector = shell_word(&format!("spec.nodeName={}", target.name));
        let line = format!("kubectl get pods -A --field-selector {selector}");
        lines.push(CommandLine::new("List the pods on the node", line));
    }
    lines.extend(error.and_then(|error| budget_in(&error.message)).map(|name| budget(job, name)));
    lines
}

/// Returns the name of the disruption budget that a message names.
fn budget_in(message: &str) -> Option<&str> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    let rest = message.split_once("disruption budget ")?.1;
    let name = rest.split(|c: char| !is_of_name(c)).next()?.trim_end_matches('.');
    Some(name).filter(|name| !name.is_empty())
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
    let line =
        format!("oarlock ops get {} --server \"$OARLOCK_SERVER\" --token-file FILE_WITH_TOKEN", shell_word(&job.name));
    CommandLine::new(
        "Ask the REST API for the address of a file. FILE_WITH_TOKEN has a token for the audience oarlock",
        line,
    )
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
