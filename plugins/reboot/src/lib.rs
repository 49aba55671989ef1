//! reboot: reboots a node once.
//!
//! The plugin cordons and drains the node if the job asks for that. Then it stores the boot id and proposes the reboot, with a
//! task that does nothing on a node with another boot id. The host stores extras durably before it makes a change. So the node
//! reboots exactly once, however often the plugin proposes the task. The job can ask the plugin to wait with the drain for pods
//! of Jobs, and for pods that must not be disrupted. A node counts as rebooted only once it is Ready with another boot id.

use core::time::Duration;

use oarlock_sdk::{
    Action, DrainStatus, Failure, Freshness, Job, Mark, Mutation, NodeDrain, Object, Proposal, Registration, Relation,
    Report, Result, Target, TaskRequest, TaskStatus, WAITS_FOR, config, export, json,
};

/// The extra that says whether the node was cordoned when the work on it began: `true` or `false`.
pub const WAS_UNSCHEDULABLE: &str = "WasUnschedulable";
/// The extra with the time when the drain began, in milliseconds since 1970.
pub const DRAIN_SINCE: &str = "DrainSince";
/// The extra with the boot id of the node before the reboot.
pub const BOOT_ID: &str = "BootID";
/// The extra with the time when the reboot was first seen to have begun, in milliseconds since 1970.
pub const REBOOT_SINCE: &str = "RebootSince";
/// The name of the task.
pub const TASK: &str = "reboot";

/// The default timeouts in seconds: for the drain, and for the return of the node.
const DRAIN_TIMEOUT: u64 = 600;
const READY_DEADLINE: u64 = 1_800;
/// The longest time between two visits of a node that is awaited.
const CHECK: Duration = Duration::from_secs(30);
/// The word for a node that has to come back.
const AWAITED: &str = "Reboot";
/// The words with which the host begins the message of a task that never ran.
const NEVER_BEGUN: [&str; 4] = ["refused", "image", "unschedulable", "not started"];
/// The relation to the pods on the node.
const PODS: &str = "pods";
/// The annotations of pods that must not be disrupted, with their values. Autoscalers read them too.
const KEPT: [(&str, &str); 2] =
    [("karpenter.sh/do-not-disrupt", "true"), ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false")];
/// The annotation of pods that a kubelet makes from files on its node.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// The longest time between two checks of the pods that a drain waits for.
const LOOK: Duration = Duration::from_secs(5);
/// The most of these pods that a message names.
const NAMED: usize = 10;
/// The timeout of the command on the node, in seconds. The command only schedules the reboot.
const TASK_SECONDS: u32 = 300;

/// The action of this plugin.
#[derive(Debug)]
pub struct Reboot;

impl Action for Reboot {
    fn setup() -> Result<Registration> {
        Ok(Registration::new().relation(Relation::pods(PODS).by_field("/spec/nodeName")))
    }

    fn operate(job: &Job, target: &Target) -> Result<Proposal> {
        let Some(node) = target.object() else { return Ok(Proposal::new()) };
        if target.task(TASK).is_some() {
            return asked_before(target);
        }
        let case = Case { job, target, node };
        if target.extra(WAS_UNSCHEDULABLE).is_none() {
            return case.begin();
        }
        if case.has_rebooted()? {
            // The node has rebooted by itself, which counts too.
            return Ok(Proposal::new());
        }
        if case.drains()? && !case.is_empty()? {
            return case.drain();
        }
        case.reboot(Proposal::new())
    }

    fn progress(job: &Job, target: &Target) -> Result<Report> {
        let Some(node) = target.object() else { return Ok(gone(target)) };
        if target.extra(BOOT_ID).is_none() {
            return Ok(Report::processing().check_after(CHECK));
        }
        let case = Case { job, target, node };
        let rebooted = case.has_rebooted()?;
        if rebooted && case.node.is_ready()? {
            return Ok(case.done());
        }
        let task = target.task(TASK);
        match &task {
            Some(task) if !rebooted && is_refused(task) => Ok(Report::failed("CommandFailed", said(task))),
            _ if rebooted || task.as_ref().is_some_and(|task| task.state != "Waiting") => case.await_node(rebooted),
            // The task has not begun. The host limits that time, and the deadline for the node's return has not begun.
            _ => Ok(Report::processing().check_after(CHECK)),
        }
    }

    fn release(job: &Job, target: &Target) -> Result<Proposal> {
        let Some(node) = target.object() else { return Ok(Proposal::new()) };
        let proposal = Proposal::new().uncordon(node.name());
        let case = Case { job, target, node };
        let done = case.node.is_ready()? && case.boot_id()? != target.extra(BOOT_ID);
        Ok(match target.task(TASK).filter(|_| !done) {
            Some(_) => {
                let message = format!("{}: the reboot had been asked for; it is not taken back.", target.name());
                proposal.warning("RebootIssued", message)
            }
            None => proposal,
        })
    }
}

export!(Reboot, manifest = include_str!("../manifest.json"));

/// The input of one call.
struct Case<'a> {
    job: &'a Job,
    target: &'a Target,
    node: Object,
}

impl Case<'_> {
    fn begin(&self) -> Result<Proposal> {
        let cordoned = Mark::Cordon.is_on(&self.node)?;
        let proposal = Proposal::new().extra(WAS_UNSCHEDULABLE, cordoned.to_string());
        if self.drains()? {
            return self.cordoned(proposal.extra(DRAIN_SINCE, self.job.now_ms().to_string()));
        }
        self.reboot(proposal)
    }

    /// Adds a cordon to a proposal, unless the node is cordoned. Somebody may remove the cordon at any time.
    fn cordoned(&self, proposal: Proposal) -> Result<Proposal> {
        Ok(if Mark::Cordon.is_on(&self.node)? { proposal } else { proposal.cordon(self.node.name()) })
    }

    fn drains(&self) -> Result<bool> {
        Ok(self.job.parameter("/drain")?.unwrap_or(false))
    }

    fn is_drained(&self) -> bool {
        self.target.drain().is_some_and(|drain| drain.done)
    }

    /// Returns true if the node was drained and is still cordoned. Without the cordon, pods may have come back.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.is_drained() && Mark::Cordon.is_on(&self.node)?)
    }

    fn drain(&self) -> Result<Proposal> {
        let timeout = self.seconds("drainTimeoutSeconds", DRAIN_TIMEOUT)?;
        let waited = self.waited(DRAIN_SINCE);
        let kept = self.kept_pods()?;
        let proposal = match self.is_drained() {
            true => Proposal::new().extra(DRAIN_SINCE, self.job.now_ms().to_string()),
            false if waited >= timeout && !kept.is_empty() => {
                let message = format!("Pods were left after {timeout} s: {}. The node was not rebooted.", named(&kept));
                return Err(Failure::permanent("DrainTimeout", message));
            }
            false if waited >= timeout => return Err(drain_timeout(timeout, self.target.drain())),
            false => Proposal::new(),
        };
        if !kept.is_empty() {
            return self.await_pods(proposal, &kept, timeout.saturating_sub(waited));
        }
        let drain = NodeDrain {
            node: self.node.name(),
            grace_period_seconds: self.job.parameter("/gracePeriodSeconds")?,
            delete_empty_dir_data: self.job.parameter("/deleteEmptyDirData")?.unwrap_or(false),
            force: self.job.parameter("/force")?.unwrap_or(false),
        };
        Ok(proposal.mutation(Mutation::Drain(drain)))
    }

    /// Waits for the pods that delay the drain, behind the cordon. The drain may last this many seconds longer.
    fn await_pods(&self, proposal: Proposal, kept: &[String], left: u64) -> Result<Proposal> {
        let proposal = self.cordoned(proposal)?;
        if proposal != Proposal::new() {
            return Ok(proposal);
        }
        let message =
            format!("Node {} is not drained before these pods have ended: {}.", self.node.name(), named(kept));
        Err(Failure::retryable("DrainWaits", message).retry_after(LOOK.min(Duration::from_secs(left.max(1)))))
    }

    /// Returns the pods that the drain has to wait for, as `namespace/name`, each with its reason.
    fn kept_pods(&self) -> Result<Vec<String>> {
        let (respects, waits) = (self.flag("respectDoNotDisrupt")?, self.flag("waitForJobs")?);
        let mut kept = Vec::new();
        if !respects && !waits {
            return Ok(kept);
        }
        for pod in self.target.related(PODS, Freshness::Watched)? {
            let phase: String = pod.field("/status/phase")?.unwrap_or_default();
            let controller = pod.controller()?.map(|owner| owner.kind.clone()).unwrap_or_default();
            let is_over = matches!(phase.as_str(), "Succeeded" | "Failed") || pod.is_terminating();
            // A drain does not evict these pods.
            if is_over || controller == "DaemonSet" || pod.annotation(MIRROR).is_some() {
                continue;
            }
            let asks = KEPT.iter().find(|(key, value)| pod.annotation(key).is_some_and(|own| own == *value));
            let what = match asks.filter(|_| respects) {
                Some((key, value)) => format!("{key}: {value}"),
                None if waits && controller == "Job" => "of a Job".to_owned(),
                None => continue,
            };
            kept.push(format!("{}/{} ({what})", pod.namespace().unwrap_or_default(), pod.name()));
        }
        kept.sort();
        Ok(kept)
    }

    /// Returns a flag of the job, or else the flag of the operator's settings.
    fn flag(&self, name: &str) -> Result<bool> {
        let pointer = format!("/{name}");
        Ok(match self.job.parameter(&pointer)? {
            Some(flag) => flag,
            None => config(&pointer)?.unwrap_or(false),
        })
    }

    /// Adds the reboot to a proposal. The plugin proposes it until the host shows the task.
    fn reboot(&self, proposal: Proposal) -> Result<Proposal> {
        let Some(now) = self.boot_id()? else {
            let message = format!("Node {} shows no boot id, so a reboot could not be told.", self.node.name());
            return Err(Failure::retryable("BootIdUnknown", message));
        };
        let is_stored = self.target.extra(BOOT_ID).is_some();
        let proposal = if is_stored { proposal } else { proposal.extra(BOOT_ID, &now) };
        let arguments = json!({"builtin": "reboot", "expectBootId": now, "timeoutSeconds": TASK_SECONDS}).to_string();
        let task = TaskRequest { name: TASK.to_owned(), kind: "run-on-node".to_owned(), arguments };
        Ok(self.cordoned(proposal)?.task(task))
    }

    fn await_node(&self, rebooted: bool) -> Result<Report> {
        let deadline = self.seconds("readyDeadlineSeconds", READY_DEADLINE)?;
        let waited = self.waited(REBOOT_SINCE);
        if waited < deadline {
            let left = Duration::from_secs(deadline.saturating_sub(waited).max(1));
            let waits = Report::processing().check_after(left.min(CHECK));
            let is_first = self.target.extra(REBOOT_SINCE).is_none();
            let told = self.awaited(rebooted);
            return Ok(waits.with(match is_first {
                true => told.extra(REBOOT_SINCE, self.job.now_ms().to_string()),
                false => told,
            }));
        }
        let name = self.node.name();
        Ok(match rebooted {
            true => Report::failed("NotReady", format!("Node {name} rebooted and was not Ready within {deadline} s.")),
            false => {
                let message = format!("Node {name} had the same boot id {deadline} s after its reboot had begun.");
                Report::failed("NotRebooted", message)
            }
        })
    }

    /// Proposes to tell people why the node is not back, unless the target already says so.
    fn awaited(&self, rebooted: bool) -> Proposal {
        let awaited = match rebooted {
            true => format!("node {} has rebooted and is not Ready", self.node.name()),
            false => format!("node {} has not rebooted: its boot id is the same", self.node.name()),
        };
        let was_said = self.target.extra(WAITS_FOR).is_some_and(|said| said == format!("{AWAITED}: {awaited}"));
        if was_said { Proposal::new() } else { Proposal::new().waits_for(AWAITED, &awaited) }
    }

    /// Reports success for a node that is back. The cordon is removed first, unless the deadline of the target is over.
    fn done(&self) -> Report {
        let late = self.target.deadline_ms().is_some_and(|deadline| deadline <= self.job.now_ms());
        let held = self.node.holds(self.job).has(Mark::Cordon);
        match held && !late {
            true => Report::processing().with(Proposal::new().uncordon(self.node.name())).check_after(CHECK),
            false => Report::succeeded(),
        }
    }

    /// Returns true if the boot id of the node differs from the stored one.
    fn has_rebooted(&self) -> Result<bool> {
        let before = self.target.extra(BOOT_ID);
        Ok(self.boot_id()?.is_some_and(|now| before.is_some_and(|before| before != now)))
    }

    fn boot_id(&self) -> Result<Option<String>> {
        let boot_id: Option<String> = self.node.field("/status/nodeInfo/bootID")?;
        Ok(boot_id.filter(|id| !id.is_empty()))
    }

    /// Returns the seconds since the time in this extra, or 0 if the extra is not stored.
    fn waited(&self, extra: &str) -> u64 {
        let since: Option<u64> = self.target.extra(extra).and_then(|text| text.parse().ok());
        since.map_or(0, |since| self.job.now_ms().saturating_sub(since) / 1_000)
    }

    /// Returns a number of seconds of the job, or else of the operator's settings, or else the default.
    fn seconds(&self, name: &str, usual: u64) -> Result<u64> {
        let pointer = format!("/{name}");
        Ok(match self.job.parameter(&pointer)? {
            Some(seconds) => seconds,
            None => config(&pointer)?.unwrap_or(usual),
        })
    }
}

/// Refuses to repeat a task of an earlier attempt, because its result is no longer known.
fn asked_before(target: &Target) -> Result<Proposal> {
    if target.extra(BOOT_ID).is_some() {
        return Ok(Proposal::new());
    }
    let message =
        format!("An earlier attempt has asked for the reboot of node {}; no node is rebooted twice.", target.name());
    Err(Failure::permanent("RebootIssued", message))
}

/// Returns the first pods, and the number of further pods.
fn named(pods: &[String]) -> String {
    let first = pods.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match pods.len().saturating_sub(NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

fn drain_timeout(seconds: u64, drain: Option<DrainStatus>) -> Failure {
    let DrainStatus { blocked, more, terminating, .. } = drain.unwrap_or_default();
    let others = if more > 0 { format!(" and {more} more") } else { String::new() };
    let named = match terminating {
        _ if !blocked.is_empty() => format!(": {}{others}; the event EvictionBlocked says why", blocked.join(", ")),
        Some(pod) => format!(": {pod} still terminates"),
        None => String::new(),
    };
    Failure::permanent("DrainTimeout", format!("Pods were left after {seconds} s{named}. The node was not rebooted."))
}

fn gone(target: &Target) -> Report {
    let name = target.name();
    let asked = if target.task(TASK).is_some() { "after its reboot was asked for" } else { "before its reboot" };
    Report::failed("NodeGone", format!("Node {name} is gone {asked}, or another one has its name."))
}

/// Returns true if the command failed or never ran. The result of a task that was lost or timed out is unknown: its pod may have
/// ended with the node that it rebooted. If the task found the node already rebooted, the plugin waits for the node.
fn is_refused(task: &TaskStatus) -> bool {
    let never_begun = || NEVER_BEGUN.iter().any(|word| task.message.starts_with(word));
    task.state == "Failed" && (task.exit_code.is_some() || never_begun())
}

fn said(task: &TaskStatus) -> String {
    let parts = [task.message.trim(), task.output.trim()];
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    let code = task.exit_code.map(|code| format!(" (exit code {code})")).unwrap_or_default();
    format!("The command that reboots the node failed{code}: {}", parts.join(": "))
}
