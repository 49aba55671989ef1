//! One pass over an OpsJob: what its status says next, and what is to be done. Source: docs/opsjob.md 4 and 6.
//!
//! Takes what is stored and seen at one time; yields a status and effects. An effect is asked for until it is seen to be made, so a
//! pass that is lost costs nothing. May not start anything before the status says that the targets are resolved: it is the claim.

use std::collections::{BTreeSet, HashMap};

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::job::bound::shown_cause;
use crate::job::time::{after_seconds, earliest, read_time};
use crate::ops_job::addon::{AddonStep, StepsRefused};
use crate::ops_job::child::child_of;
use crate::ops_job::export::ExportedImage;
use crate::ops_job::holders::Holders;
use crate::ops_job::inputs::Scope;
use crate::ops_job::outcomes::{JobFile, Outcomes, OutputFacts, explained, outputs};
use crate::ops_job::phases::{OpsStatus, Phase, Why};
use crate::ops_job::pod_targets::{PodFacts, WorkloadPods, resolve_pods};
use crate::ops_job::spec::{OpsSpec, OpsType, RuleBroken};
use crate::ops_job::targets::{Filters, Here, NodeFacts, Resolved, Selectors, Unresolved, resolve};
use crate::ops_job::told::{busy_words, skipped_output, unresolved_words};
use crate::ops_job::view::{AVAILABLE, OpsChild, OpsJobView, TargetCounts};
use crate::ops_job::workload::missing_words;

/// The finalizer of a job that may have targets.
pub const FINALIZER: &str = "oarlock.dev/opsjob";
/// The finalizer of a job whose last state the history is to have.
pub const HISTORY: &str = "oarlock.dev/history";
/// The condition that says that the targets are known, and belong to the job.
pub const RESOLVED: &str = "TargetsResolved";
/// The condition of a job whose child was refused.
const CREATED: &str = "OperationJobCreated";
/// The condition of a job for whose file the volume had no room.
const FILES: &str = "FilesWritable";
/// The condition that says that what became of the targets is stored, and whether all have ended.
const ENDED: &str = "TargetsEnded";
/// The condition of a job that is ended by force.
const STOPPING: &str = "Stopping";
/// Why a host without files collects no logs.
pub const NO_FILES: &str =
    "this host keeps no files: an admin has to start it with `--data DIR` or `--artefacts s3://BUCKET`";
/// Why a host exports no image.
pub const NO_REGISTRY: &str =
    "this host has no registry to export to: an admin has to start it with `--export-registry HOST`";
/// What a child waits for that the host itself has paused.
const PAUSED: &str = "Paused";
/// Seconds that the release of targets may take before a job has ended all the same.
const CANCEL_GRACE: i64 = 120;
/// Seconds after which it is asked again how far a file is, and after which one that failed is made anew.
const FILE_AGAIN: i64 = 10;
/// Most bytes of a job with its targets. etcd takes 1.5 MiB; the rest is for its status, and for what the API server notes of fields.
pub(super) const ROOM: usize = 1_056 * 1024;

/// What is to be done for a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Put these finalizers on it.
    AddFinalizers(Vec<&'static str>),
    /// Store its targets in its spec, and the workspace that they share.
    StoreTargets(Resolved, Option<String>),
    /// Store the script that its child names by its digest.
    StoreScript(String),
    /// Create its child.
    CreateChild(Value),
    /// Let its child start targets, once a live read of the job says that nobody stopped it.
    UnpauseChild,
    /// Let its child start nothing any more.
    PauseChild,
    /// Delete its child, which releases what it holds.
    DeleteChild,
    /// Take this finalizer off it.
    DropFinalizer(&'static str),
    /// Delete it: its time is over.
    DeleteSelf,
}

impl Effect {
    /// What it does, after `failed to`.
    pub const fn words(&self) -> &'static str {
        match self {
            Self::AddFinalizers(_) => "put the finalizers on the job",
            Self::StoreTargets(..) => "store the targets",
            Self::StoreScript(_) => "store the script",
            Self::CreateChild(_) => "create the OperationJob",
            Self::UnpauseChild => "let the OperationJob begin",
            Self::PauseChild => "pause the OperationJob",
            Self::DeleteChild => "delete the OperationJob",
            Self::DropFinalizer(_) => "take the finalizer off the job",
            Self::DeleteSelf => "delete the job",
        }
    }

    /// True where it changes the job itself, and not its child.
    pub const fn is_on_job(&self) -> bool {
        matches!(self, Self::AddFinalizers(_) | Self::StoreTargets(..) | Self::DropFinalizer(_) | Self::DeleteSelf)
    }
}

/// What a pass comes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpsPlan {
    /// The status to be written, if it differs.
    pub status: Option<OpsStatus>,
    /// What is to be done now.
    pub effects: Vec<Effect>,
    /// What is to be looked up, and the pass made again with it.
    pub needs: Option<OpsNeed>,
    /// When another pass is due though nothing happens.
    pub wake: Option<Timestamp>,
}

/// What the history has of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowState {
    /// There is no history.
    #[default]
    NotKept,
    /// Not all that is known.
    InPart,
    /// All that is known.
    Whole,
}

/// What a pass cannot go on without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpsNeed {
    /// What its targets are found by.
    Targets,
    /// What became of them.
    Outcomes,
    /// The file that it leaves, which is to be published.
    File,
}

/// Everything that is known, at one time.
#[derive(Clone, Copy)]
pub struct OpsObservation<'a> {
    /// The job.
    pub job: &'a OpsJobView,
    /// Its spec with types.
    pub spec: Result<&'a OpsSpec, &'a RuleBroken>,
    /// Its child, where one is there.
    pub child: Option<&'a OpsChild>,
    /// What its targets are found by, where that was looked up.
    pub found: Option<&'a Found>,
    /// What became of them, where that was read.
    pub outcomes: Option<&'a Outcomes>,
    /// The file that it leaves.
    pub file: JobFile<'a>,
    /// What the history has of it.
    pub recorded: RowState,
    /// The registry that the host exports to, `host[:port]`, where it has one.
    pub exports: Option<&'a str>,
    /// Says what the spec asks for and the grant of its plugin does not cover.
    pub ungranted: Option<&'a str>,
    /// This cluster.
    pub here: Here<'a>,
    /// The time.
    pub now: Timestamp,
}

/// What was looked up for a job whose targets are to be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// All nodes.
    pub nodes: Vec<NodeFacts>,
    /// The nodes of the unfinished pods of its workloads, where it names some.
    pub of_workloads: Option<BTreeSet<String>>,
    /// The pods of its workload, where it works on pods.
    pub pods: Option<WorkloadPods>,
    /// A workload that it names and that is not there.
    pub missing: Option<String>,
    /// What an addon runs; nothing of other types.
    pub steps: Result<Vec<AddonStep>, StepsRefused>,
    /// Why its writer may not have been asked for his rights.
    pub gap: Option<String>,
}

impl Default for Found {
    fn default() -> Self {
        Self { nodes: Vec::new(), of_workloads: None, pods: None, missing: None, steps: Ok(Vec::new()), gap: None }
    }
}

impl Found {
    /// The targets of a job that asks for this.
    ///
    /// # Errors
    /// The reason why it has none, of which its owner is told.
    pub fn resolve(&self, asked: &OpsSpec, filters: &Filters, here: Here<'_>) -> Result<Resolved, Unresolved> {
        let Scope { nodes, hosts, workspace, cluster, workloads: _ } = &asked.scope;
        let selectors = Selectors {
            nodes: nodes.clone(),
            hosts: hosts.clone(),
            of_workload: self.of_workloads.clone(),
            workspace: workspace.clone(),
            cluster: cluster.clone(),
        };
        match &self.pods {
            Some(pods) => resolve_pods(&selectors, filters, (pods, &self.nodes), here),
            None => resolve(&selectors, filters, &self.nodes, here),
        }
    }

    /// The pod among these targets whose image is exported.
    pub fn exported_pod(&self, resolved: &Resolved) -> Option<&PodFacts> {
        let (_, target) = resolved.targets.first()?;
        self.pods.iter().flat_map(|found| &found.pods).find(|pod| pod.uid == *target)
    }

    /// The image that a job exports which asks for this; `None` of other types.
    ///
    /// # Errors
    /// Why there is none.
    pub fn exported(&self, asked: &OpsSpec, resolved: &Resolved) -> Result<Option<ExportedImage>, String> {
        if asked.kind != OpsType::Exportimage {
            return Ok(None);
        }
        let pod = self.exported_pod(resolved).ok_or_else(|| "its pod is gone".to_owned())?;
        let namespace = resolved.namespace.as_deref().unwrap_or_default();
        let may_use = |name: &str| asked.pull_secrets.iter().any(|(of, own)| of == namespace && own == name);
        let container = asked.container.as_deref();
        let exported = match asked.commits {
            true => ExportedImage::committed(&pod.images, container),
            false => {
                ExportedImage::of(&pod.images, container, may_use).map(|image| image.if_available(asked.available))
            }
        };
        exported.map(Some).map_err(|why| format!("pod {} {why}", pod.name))
    }

    /// The label of workspaces that all of these targets share.
    pub fn shared_workspace(&self, resolved: &Resolved) -> Option<String> {
        let of: HashMap<&str, Option<&String>> =
            self.nodes.iter().map(|node| (node.uid.as_str(), node.workspace.as_ref())).collect();
        let mut all = resolved.targets.iter().map(|(_, uid)| of.get(uid.as_str()).copied().flatten());
        let first = all.next()??;
        all.all(|other| other == Some(first)).then(|| first.clone())
    }
}

/// What the API server may refuse.
#[derive(Clone, Copy, Debug)]
pub enum Attempt<'a> {
    /// To make an effect.
    Make(&'a Effect),
    /// To look something up.
    LookUp(OpsNeed),
}

/// The status that says what the API server refuses, which is tried again.
pub fn with_refusal(status: &OpsStatus, attempt: Attempt<'_>, message: &str, now: Timestamp) -> OpsStatus {
    let mut told = status.clone();
    let (condition, what) = match attempt {
        Attempt::LookUp(OpsNeed::Targets) => (Some(RESOLVED), "find the targets"),
        Attempt::LookUp(OpsNeed::Outcomes) => (None, "read what became of the targets"),
        Attempt::LookUp(OpsNeed::File) => (None, "publish the file"),
        Attempt::Make(effect @ Effect::StoreTargets(..)) => (Some(RESOLVED), effect.words()),
        Attempt::Make(effect @ (Effect::StoreScript(_) | Effect::CreateChild(_))) => (Some(CREATED), effect.words()),
        Attempt::Make(effect) => (None, effect.words()),
    };
    if let Some(condition) = condition {
        told.say(condition, false, &Why::new("Refused", message), now);
    }
    told.rest.insert("waitingFor".to_owned(), json!([shown_cause(&format!("failed to {what}: {message}"), 256)]));
    told
}

/// Plans what is next for a job.
pub fn plan(observed: OpsObservation<'_>, holders: &mut Holders) -> OpsPlan {
    let status = observed.job.status.clone();
    let mut pass = Pass { observed, status, effects: Vec::new(), needs: None, wake: None };
    if pass.status.has_ended() {
        pass.settle();
    } else if !observed.job.deleting && (!observed.job.is_kept || lacks_history(&observed)) {
        let names = [(!observed.job.is_kept).then_some(FINALIZER), lacks_history(&observed).then_some(HISTORY)];
        pass.effects.push(Effect::AddFinalizers(names.into_iter().flatten().collect()));
    } else {
        pass.status.enter(Phase::Pending, &Why::new("Created", ""), None, observed.now);
        // The place of a job in its second orders the jobs of that second for as long as they are known.
        pass.status.rest.entry("seq").or_insert_with(|| json!(observed.job.place_in_second()));
        pass.go_on(holders);
    }
    if !observed.job.is_kept && (observed.job.deleting || pass.status.has_ended()) {
        holders.give_back(&observed.job.uid);
    }
    let Pass { status, effects, needs, wake, .. } = pass;
    OpsPlan { status: status.changed_from(&observed.job.status), effects, needs, wake }
}

/// True where its last state would be lost.
fn lacks_history(observed: &OpsObservation<'_>) -> bool {
    observed.recorded != RowState::NotKept && !observed.job.is_recorded
}

struct Pass<'a> {
    observed: OpsObservation<'a>,
    status: OpsStatus,
    effects: Vec<Effect>,
    needs: Option<OpsNeed>,
    wake: Option<Timestamp>,
}

impl<'a> Pass<'a> {
    fn wake_at(&mut self, time: Timestamp) {
        self.wake = earliest([self.wake, Some(time)]);
    }

    fn fail(&mut self, why: &Why) {
        // The targets in work come to nothing. They count as failed, unless the outputs are stored already.
        let is_told = self.status.has(ENDED);
        if let Some(progress) = self.status.rest.get_mut("progress") {
            let mut counts = TargetCounts::read(Some(progress));
            let interrupted = std::mem::take(&mut counts.processing);
            counts.failed += if is_told { 0 } else { interrupted };
            *progress = counts.write();
        }
        let began = self.observed.child.and_then(|child| child.began);
        self.status.enter(Phase::Failed, why, began, self.observed.now);
    }

    /// What is left to do for a job that has ended.
    fn settle(&mut self) {
        let OpsObservation { job, child, now, .. } = self.observed;
        if let Some(child) = child {
            if !child.deleting {
                self.effects.push(Effect::DeleteChild);
            }
            return;
        }
        if job.is_kept {
            self.effects.push(Effect::DropFinalizer(FINALIZER));
            return;
        }
        // Until then it can be read here.
        if job.deleting && job.is_recorded && self.observed.recorded != RowState::InPart {
            self.effects.push(Effect::DropFinalizer(HISTORY));
        }
        let due = job.ttl.zip(self.status.finished).map(|(seconds, finished)| after_seconds(finished, seconds));
        match due.filter(|_| !job.deleting) {
            // One that ended before there was a history is not held by it.
            Some(due) if due <= now && !job.is_recorded && self.observed.recorded == RowState::InPart => {}
            Some(due) if due <= now => self.effects.push(Effect::DeleteSelf),
            Some(due) => self.wake_at(due),
            None => {}
        }
    }

    fn go_on(&mut self, holders: &mut Holders) {
        let job = self.observed.job;
        let spec = self.spec_that_goes_on();
        if !job.status.is(RESOLVED) {
            return match spec {
                Err(why) => self.fail(&why),
                Ok(spec) => self.resolve(spec, holders),
            };
        }
        // Whoever is told so by a status of another process holds as well.
        if !self.takes_targets(holders) {
            return;
        }
        match self.observed.child {
            Some(child) => self.follow(child, spec.err()),
            None => self.without_child(spec),
        }
    }

    /// Its spec; or why it is ended by force.
    fn spec_that_goes_on(&mut self) -> Result<&'a OpsSpec, Why> {
        let OpsObservation { job, spec, now, .. } = self.observed;
        let spec = spec.map_err(|broken| Why::new("Invalid", broken.message()))?;
        if job.deleting {
            return Err(Why::new("Stopped", "the job was deleted, and so it was stopped"));
        }
        if job.stops {
            return Err(Why::new("Stopped", "the job was stopped"));
        }
        let Some((seconds, created)) = spec.timeout.zip(job.created) else { return Ok(spec) };
        let due = after_seconds(created, seconds);
        if due > now {
            self.wake_at(due);
            return Ok(spec);
        }
        Err(Why::new("Timeout", format!("timed out after {seconds} s")))
    }

    /// False where another job has one of its targets, and it has failed.
    fn takes_targets(&mut self, holders: &mut Holders) -> bool {
        let job = self.observed.job;
        let taken = holders.take(&job.uid, &job.name, &job.places());
        if let Err(busy) = &taken {
            let targets = job.targets.as_ref().map_or(&[][..], |resolved| &resolved.targets);
            self.fail(&busy_words(busy, targets));
        }
        taken.is_ok()
    }

    fn resolve(&mut self, spec: &OpsSpec, holders: &mut Holders) {
        let OpsObservation { job, here, now, found, file, exports, .. } = self.observed;
        if spec.kind == OpsType::Dumplog && file == JobFile::NotKept {
            return self.fail(&Why::new("NotServed", NO_FILES));
        }
        if !self.has_room_for_file(spec) {
            return;
        }
        if spec.kind == OpsType::Exportimage && exports.is_none() {
            return self.fail(&Why::new("NotServed", NO_REGISTRY));
        }
        if self.is_forbidden() {
            return;
        }
        let Some(found) = found else {
            self.needs = Some(OpsNeed::Targets);
            return;
        };
        // Without its policies, anybody may have written targets as well.
        if let Some(gap) = &found.gap {
            let words = format!("{gap}: have a cluster admin apply `oarlock manifests --ops`, and make this job anew");
            return self.fail(&Why::new("PolicyMissing", words));
        }
        let Some(resolved) = &job.targets else {
            if let Some(broken) = spec.refused_anew() {
                return self.fail(&Why::new("Invalid", broken.message()));
            }
            if let Some(missing) = &found.missing {
                return self.fail(&Why::new("WorkloadNotFound", missing_words(missing)));
            }
            if let Err(refused) = &found.steps {
                return self.fail(&of_steps(refused));
            }
            let resolved = found.resolve(spec, &spec.filters, here);
            return match resolved.and_then(|resolved| resolved.within(ROOM.saturating_sub(job.bytes))) {
                Ok(resolved) => {
                    if let Err(why) = found.exported(spec, &resolved) {
                        return self.fail(&Why::new("Invalid", format!("spec.inputs: {why}")));
                    }
                    let shared = found.shared_workspace(&resolved);
                    self.effects.push(Effect::StoreTargets(resolved, shared));
                }
                Err(unresolved) => self.fail(&unresolved_words(&unresolved)),
            };
        };
        if !self.takes_targets(holders) {
            return;
        }
        match found.exported(spec, resolved) {
            Err(why) => return self.fail(&Why::new("PodNotFound", why)),
            Ok(Some(exported)) => {
                self.status.rest.insert("addedInputs".to_owned(), exported.added_inputs());
                self.status.rest.insert("export".to_owned(), exported.status());
            }
            Ok(None) => {}
        }
        let skipped = resolved.skipped.len();
        let rest = if skipped == 0 { String::new() } else { format!(", {skipped} skipped") };
        let count = resolved.targets.len();
        let words = format!("{count} {}{rest}", if count == 1 { "target" } else { "targets" });
        self.status.say(RESOLVED, true, &Why::new("Resolved", words), now);
        self.status.rest.insert("outputs".to_owned(), json!(skipped_output(&resolved.skipped)));
        let counts = TargetCounts { total: resolved.targets.len(), ..TargetCounts::default() };
        self.status.rest.insert("progress".to_owned(), counts.write());
        self.status.rest.remove("waitingFor");
    }

    /// True unless it leaves a file for which the volume has no room: it waits, and says so.
    fn has_room_for_file(&mut self, spec: &OpsSpec) -> bool {
        let (JobFile::NoRoom(why), OpsType::Dumplog) = (self.observed.file, spec.kind) else {
            if self.status.has(FILES) {
                self.status.say(FILES, true, &Why::new("HasRoom", ""), self.observed.now);
            }
            return true;
        };
        self.status.say(FILES, false, &Why::new("VolumeFull", why), self.observed.now);
        self.status.rest.insert("waitingFor".to_owned(), json!([shown_cause(why, 256)]));
        self.wake_at(after_seconds(self.observed.now, FILE_AGAIN));
        false
    }

    /// True where its plugin is granted less than its spec asks for, and it has failed. REST answers the same by 403.
    fn is_forbidden(&mut self) -> bool {
        let Some(ungranted) = self.observed.ungranted else { return false };
        self.fail(&Why::new("Forbidden", format!("spec.{ungranted}")));
        true
    }

    /// A job whose child is not there: it was not made yet, it has done its work, or somebody deleted it.
    fn without_child(&mut self, spec: Result<&OpsSpec, Why>) {
        let job = self.observed.job;
        let was_there = self.status.rest.contains_key("operationJob");
        if was_there && self.status.is(ENDED) {
            return self.conclude("");
        }
        match (was_there, self.stopping().map_or(spec, Err)) {
            (_, Err(why)) => self.fail(&why),
            (true, Ok(_)) => {
                let (namespace, name) = (job.child_namespace(), &job.name);
                let words = format!("OperationJob {namespace}/{name} was deleted by somebody else");
                self.fail(&Why::new("ChildLost", words));
            }
            (false, Ok(spec)) => self.create_child(spec),
        }
    }

    /// Its scripts are as they are at this moment, whatever becomes of their templates.
    fn create_child(&mut self, spec: &OpsSpec) {
        // Its grant may be in force only now.
        if self.is_forbidden() {
            return;
        }
        let steps = match self.observed.found {
            _ if spec.steps.is_empty() => &[][..],
            None => {
                self.needs = Some(OpsNeed::Targets);
                return;
            }
            Some(Found { steps: Err(refused), .. }) => return self.fail(&of_steps(refused)),
            Some(Found { steps: Ok(steps), .. }) => steps,
        };
        let of_export = match self.export_parameters(spec) {
            Ok(parameters) => parameters,
            Err(why) => return self.fail(&Why::new("Invalid", why)),
        };
        let scripts = spec.script.iter().chain(steps.iter().map(|step| &step.script));
        self.effects.extend(scripts.cloned().map(Effect::StoreScript));
        self.effects.push(Effect::CreateChild(child_of(self.observed.job, spec, steps, of_export)));
    }

    /// What the child of an export is told, of what the status says.
    fn export_parameters(&self, spec: &OpsSpec) -> Result<Map<String, Value>, String> {
        if spec.kind != OpsType::Exportimage {
            return Ok(Map::new());
        }
        let exported = ExportedImage::read(&self.observed.job.status.rest).zip(self.observed.job.created);
        let (exported, created) = exported.ok_or_else(|| "its status does not say what is exported".to_owned())?;
        exported.parameters(created, &self.observed.job.uid, self.observed.job.child_namespace())
    }

    /// What the condition of a job that is ended by force says.
    fn stopping(&self) -> Option<Why> {
        let condition = self.status.condition(STOPPING).filter(|one| one.status == "True")?;
        let reason = ["Timeout", "Invalid"].into_iter().find(|reason| condition.reason == *reason).unwrap_or("Stopped");
        Some(Why::new(reason, condition.message.clone()))
    }

    /// Mirrors a child, ends it by force, or takes what it came to.
    fn follow(&mut self, child: &OpsChild, cancelled: Option<Why>) {
        let now = self.observed.now;
        let recorded = json!({"name": self.observed.job.name, "uid": child.uid});
        self.status.rest.insert("operationJob".to_owned(), recorded);
        if child.began.is_some() {
            self.status.enter(Phase::Running, &Why::new("Started", ""), child.began, now);
        }
        let refused = || child.refused.as_ref().filter(|_| child.began.is_none()).map(|why| Why::new("Invalid", why));
        let stopping = self.stopping().or(cancelled).or_else(refused);
        // One that is being deleted ends its targets, whatever they would have come to.
        if !child.deleting && !self.status.has(ENDED) {
            self.status.rest.insert("progress".to_owned(), child.counts.write());
            if child.has_ended && self.stopping().is_none() {
                self.take_outcomes(true);
                // Where that cannot be read, or its file takes long, a stop is not to wait for it.
                if stopping.is_none() || self.status.has(ENDED) {
                    return;
                }
            }
        }
        if self.status.has(CREATED) {
            self.status.say(CREATED, true, &Why::new("Created", ""), now);
        }
        match child.refused.as_ref().or(child.unserved.as_ref()) {
            Some(why) => self.status.say(AVAILABLE, false, &Why::new("NotServed", why.clone()), now),
            None if self.status.has(AVAILABLE) => self.status.say(AVAILABLE, true, &Why::new("Serving", ""), now),
            None => {}
        }
        let waits: Vec<&String> = match child.has_ended || child.paused {
            true => Vec::new(),
            false => child.waits_for.iter().filter(|word| *word != PAUSED).chain(&child.obstacles).collect(),
        };
        self.status.rest.insert("waitingFor".to_owned(), json!(waits));
        if self.status.is(ENDED) {
            self.delete_child(child);
            if self.has_waited_since(ENDED) {
                self.conclude("; what is still held is released as soon as that can be");
            }
            return;
        }
        let Some(why) = stopping else {
            // Once it is recorded, it is never made again.
            let is_recorded = self.observed.job.status.rest.get("operationJob") == self.status.rest.get("operationJob");
            if is_recorded && child.paused && !child.deleting {
                self.effects.push(Effect::UnpauseChild);
            }
            return;
        };
        if !self.status.is(STOPPING) {
            self.status.say(STOPPING, true, &why, now);
        }
        match (child.deleting, child.paused) {
            (true, _) => {}
            (false, false) => self.effects.push(Effect::PauseChild),
            (false, true) if self.status.has(ENDED) => self.delete_child(child),
            (false, true) => self.take_outcomes(false),
        }
        self.give_up_waiting(&why, child);
    }

    /// Has it said what became of the targets. The child goes once that is stored: until then it is the record of it.
    fn take_outcomes(&mut self, has_ended: bool) {
        let Some(outcomes) = self.observed.outcomes else {
            self.needs = Some(OpsNeed::Outcomes);
            return;
        };
        let kind = self.observed.spec.ok().map(|spec| spec.kind);
        // What was collected of a job that is ended by force is not put together.
        let leaves_file = kind == Some(OpsType::Preflight) || kind == Some(OpsType::Dumplog) && has_ended;
        match self.observed.file {
            JobFile::Due if leaves_file => {
                self.needs = Some(OpsNeed::File);
                return;
            }
            JobFile::Underway(how) if leaves_file => {
                self.status.rest.insert("waitingFor".to_owned(), json!([shown_cause(how, 256)]));
                self.wake_at(after_seconds(self.observed.now, FILE_AGAIN));
                return;
            }
            _ => {}
        }
        let (now, mut counts) = (self.observed.now, outcomes.counts);
        if kind == Some(OpsType::Preflight) && !has_ended {
            // Its result names every node as failed that no check has found healthy.
            let failed = counts.total.saturating_sub(counts.succeeded);
            counts = TargetCounts { failed, processing: 0, skipped: 0, ..counts };
        }
        self.status.rest.insert("progress".to_owned(), counts.write());
        let facts = self.output_facts();
        let mut outputs = self.observed.spec.map_or_else(|_| Vec::new(), |spec| outputs(spec.kind, outcomes, &facts));
        outputs.extend(self.observed.file.outputs(kind).into_iter().filter(|_| leaves_file));
        outputs.extend(skipped_output(self.observed.job.targets.as_ref().map_or(&[], |resolved| &resolved.skipped)));
        self.status.rest.insert("outputs".to_owned(), json!(outputs));
        self.status.rest.insert("waitingFor".to_owned(), json!([]));
        for (name, reason, message) in explained(&outcomes.targets) {
            self.status.say_of_target(name, reason, message, now);
        }
        let words = format!("{} of {} succeeded, {} failed", counts.succeeded, counts.total, counts.failed);
        self.status.say(ENDED, has_ended, &Why::new("OutputsStored", words), now);
        let succeeds = self.observed.spec.is_ok_and(|spec| counts.failed <= spec.tolerated(counts.total));
        if let (JobFile::Lost(why), Some(OpsType::Dumplog), true) = (self.observed.file, kind, leaves_file && succeeds)
        {
            // It is all that the job is for.
            self.fail(&Why::new("FileLost", format!("the logs could not be stored: {why}")));
        }
    }

    /// Returns the facts that the host itself has decided and the outputs show beside the outcomes.
    fn output_facts(&self) -> OutputFacts {
        let OpsObservation { job, exports, .. } = self.observed;
        let names = ExportedImage::read(&job.status.rest)
            .zip(job.created)
            .and_then(|(image, created)| image.names(created, &job.uid, job.child_namespace()).ok())
            .unwrap_or_default();
        let images = |registry: &str| names.iter().map(|name| format!("{registry}/{name}")).collect::<Vec<_>>();
        OutputFacts {
            left_out: job.targets.as_ref().map_or(0, |resolved| resolved.skipped.len()),
            images: exports.map(images).unwrap_or_default(),
        }
    }

    fn delete_child(&mut self, child: &OpsChild) {
        // What became of it is to be stored before: nothing else says it afterwards.
        if !child.deleting && self.observed.job.status.has(ENDED) {
            self.effects.push(Effect::DeleteChild);
        }
    }

    /// True once the release of targets has taken too long since the condition of this type was said.
    fn has_waited_since(&mut self, condition: &str) -> bool {
        let since = self.status.condition(condition).map(|one| one.last_transition_time.as_str());
        let Some(due) = read_time(since).map(|since| after_seconds(since, CANCEL_GRACE)) else { return false };
        if due > self.observed.now {
            self.wake_at(due);
        }
        due <= self.observed.now
    }

    /// The release of targets goes on, and the job does not wait for it for ever.
    fn give_up_waiting(&mut self, why: &Why, child: &OpsChild) {
        if self.has_waited_since(STOPPING) {
            let held = child.counts.processing;
            let message =
                format!("{}; {held} targets are still held, and are released as soon as that can be", why.message);
            self.fail(&Why::new(why.reason, message));
        }
    }

    /// The outcome, once what became of all targets is stored.
    fn conclude(&mut self, more: &str) {
        let OpsObservation { spec, now, .. } = self.observed;
        let spec = match spec {
            Ok(spec) => spec,
            Err(broken) => return self.fail(&Why::new("Invalid", broken.message())),
        };
        let TargetCounts { total, succeeded, failed, .. } = TargetCounts::read(self.status.rest.get("progress"));
        let tolerated = spec.tolerated(total);
        let began = self.status.started;
        if failed > tolerated {
            let words = format!("{failed} of {total} targets failed, and {tolerated} may{more}");
            self.status.enter(Phase::Failed, &Why::new("ToleranceExceeded", words), began, now);
        } else {
            let words = format!("{succeeded} of {total} targets succeeded{more}");
            self.status.enter(Phase::Succeeded, &Why::new("Succeed", words), began, now);
        }
    }
}

/// Why an addon cannot run what it names.
fn of_steps(refused: &StepsRefused) -> Why {
    let reason = if matches!(refused, StepsRefused::NotFound(..)) { "TemplateNotFound" } else { "Invalid" };
    Why::new(reason, refused.words())
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
