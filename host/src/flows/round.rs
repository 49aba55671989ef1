//! One round of a JobFlow or DaemonJob: observe, plan, create and record, then settle.
//!
//! A create needs no record before it: its name follows from the unit and the attempt, and an object of that name which
//! carries the owner's UID is the child. A time to live and a deletion wait until the outcome is durable.

use std::collections::HashMap;

use futures::StreamExt;
use k8s_openapi::jiff::Timestamp;
use oarlock_core::child::build::Cause;
use oarlock_core::child::header::Header;
use oarlock_core::child::parent::{Parent, ParentKind};
use oarlock_core::child::plan::{ChildChange, Create, Memory, Observation, ParentPlan};
use oarlock_core::child::pods::{PodReport, report as report_pods};
use oarlock_core::child::refused::Refused;
use oarlock_core::child::status::{Reported, StatusInput, report};
use oarlock_core::child::told::{cleaned_up, told};
use oarlock_core::child::unit::Unit;
use oarlock_core::cluster::writes::Stopped;
use oarlock_kube::flows::cache::ParentView;
use oarlock_kube::flows::{CreateError, FlowKey};
use tokio::time::{Duration, Instant};

use crate::flows::memory::FlowMemory;
use crate::flows::{FlowTerm, template};
use crate::metrics::flows::{FlowFigures, KindMetrics};

/// Creates of one round: a large DaemonJob takes several, so that its status goes on meanwhile.
const CREATES: usize = oarlock_core::daemon::plan::CREATES;
/// Requests of one round in flight; the limiter of the port bounds those of all.
const AT_ONCE: usize = 32;
/// Lists of pods in one round.
const READS: usize = 64;

/// What follows a round.
pub(crate) enum NextRound {
    /// The object is gone.
    Gone,
    /// The next round is due after this time, if nothing happens before.
    After(Option<Duration>),
}

/// The reason why a round is made again.
#[derive(Debug)]
pub(crate) struct RoundTrouble {
    pub(crate) message: String,
    /// A newer view is about to come.
    pub(crate) is_old_view: bool,
    retry_after: Option<u32>,
}

impl RoundTrouble {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_old_view: false, retry_after: None }
    }

    /// The time that the API server asks for.
    pub(crate) fn at_least(&self) -> Option<Duration> {
        self.retry_after.map(|seconds| Duration::from_secs(seconds.into()))
    }

    pub(crate) fn of(what: &str, stopped: &Stopped) -> Self {
        let (message, retry_after) = match stopped {
            Stopped::Refused { message } | Stopped::Unknown { message } => (message.clone(), None),
            Stopped::Blocked { message, retry_after } => (message.clone(), *retry_after),
            Stopped::Throttled { retry_after } => ("the API server is too busy".to_owned(), *retry_after),
            Stopped::Conflict => ("the view is out of date".to_owned(), None),
            other => (format!("{other:?}"), None),
        };
        let message = format!("failed to {what}: {message}");
        Self { message, is_old_view: *stopped == Stopped::Conflict, retry_after }
    }
}

/// Runs one round.
pub(crate) async fn run(term: &FlowTerm, key: &FlowKey, memory: &mut FlowMemory) -> Result<NextRound, RoundTrouble> {
    if let FlowKey::Template(namespace, name) = key {
        return template::run(term, (namespace, name), (key, memory)).await;
    }
    let flows = &term.flows;
    let Some(view) = flows.cache().view(key) else { return Ok(NextRound::Gone) };
    let metrics = term.metrics.flows.of(view.parent.kind);
    let round = Round { term, metrics, view, now: flows.cluster().clock().now() };
    round.recall(memory).await?;
    if flows.cache().take_healed(key) {
        memory.plan.refused.retain(|_, refused| refused.refusal.reason != "NameConflict");
    }
    let plan = round.plan(memory).await?;
    round.carry_out(plan, memory).await
}

struct Round<'a> {
    term: &'a FlowTerm,
    metrics: &'a KindMetrics,
    view: ParentView,
    now: Timestamp,
}

impl Round<'_> {
    fn parent(&self) -> &Parent {
        &self.view.parent
    }

    /// Reads the memory of an object that this term has not met yet.
    async fn recall(&self, memory: &mut FlowMemory) -> Result<(), RoundTrouble> {
        let parent = self.parent();
        if memory.uid == parent.uid {
            return Ok(());
        }
        let records = if Header::read(&parent.status).is_truncated {
            let records = self.term.flows.read_records(parent).await;
            records.map_err(|failed| RoundTrouble::new(failed.message))?
        } else {
            Vec::new()
        };
        let stored = Memory::recalled(parent, &records);
        *memory =
            FlowMemory { uid: parent.uid.clone(), plan: stored.clone(), reported: stored, ..FlowMemory::default() };
        Ok(())
    }

    /// Plans, once the pods of Jobs that just failed were listed.
    async fn plan(&self, memory: &mut FlowMemory) -> Result<ParentPlan, RoundTrouble> {
        let plan = self.plan_once(&memory.plan);
        let all = plan.reads.len() + plan.early_reads.len();
        if all == 0 {
            return Ok(plan);
        }
        let reads = plan.reads.iter().chain(&plan.early_reads).take(READS).cloned().map(|job| async move {
            let pods = self.term.flows.read_pods(&job).await;
            (job.uid.clone(), pods)
        });
        let reads: Vec<_> = reads.collect();
        let mut read = futures::stream::iter(reads).buffer_unordered(AT_ONCE);
        let is_node = |name: &str| self.view.nodes.contains_key(name);
        while let Some((uid, pods)) = read.next().await {
            let report = match pods {
                Ok(pods) => report_pods(&pods, is_node),
                // Another time it may be answered, and say that the infrastructure is to blame.
                Err(failed) if !failed.is_refused => return Err(RoundTrouble::new(failed.message)),
                Err(failed) => PodReport {
                    message: format!("its pods cannot be listed: {}", failed.message),
                    is_infrastructure: false,
                },
            };
            memory.plan.pods.insert(uid, report);
        }
        drop(read);
        let more = all > READS;
        let mut plan = self.plan_once(&memory.plan);
        if more {
            plan.wake_at(self.now);
        }
        Ok(plan)
    }

    fn plan_once(&self, memory: &Memory) -> ParentPlan {
        let ParentView { parent, children, templates, nodes } = &self.view;
        let observed = Observation { parent, memory, children, templates, nodes };
        match parent.kind {
            ParentKind::Flow => oarlock_core::flow::plan::plan(observed, self.now),
            ParentKind::Daemon => oarlock_core::daemon::plan::plan(observed, self.now),
        }
    }

    async fn carry_out(&self, mut plan: ParentPlan, memory: &mut FlowMemory) -> Result<NextRound, RoundTrouble> {
        let parent = self.parent();
        let more = plan.more || plan.creates.len() > CREATES;
        memory.figures = Some(FlowFigures::of(&plan));
        memory.note_due(&plan.creates);
        plan.creates.truncate(CREATES);
        self.take_over(&mut plan, memory);
        // Also where the write before failed.
        memory.durable_first |= plan.durable_first;
        let first = memory.durable_first;
        if first {
            self.write_status(&plan, memory, true).await?;
        }
        let starts = std::mem::take(&mut memory.starts);
        let (created, changed, written) =
            tokio::join!(self.create_all(&plan.creates, &starts), self.change_all(&plan.changes), async {
                if first { Ok(Written::Now) } else { self.write_status(&plan, memory, false).await }
            },);
        memory.starts = starts;
        let trouble = self.note_refusals(created, memory).err().or(changed.err());
        let due = match written? {
            Written::Now => {
                let gone: Vec<String> =
                    self.view.children.iter().filter(|child| child.gone).map(|child| child.uid.clone()).collect();
                self.term.flows.cache().forget_gone(&parent.uid, &gone);
                self.change_all(&plan.settled).await?;
                let notes = cleaned_up(parent, &plan);
                if !notes.is_empty() {
                    self.term.flows.cluster().emit(notes);
                }
                None
            }
            Written::Later(due) => Some(due.saturating_duration_since(Instant::now())),
        };
        // Only now: what one child meets holds up nothing of the others.
        trouble.map_or(Ok(()), Err)?;
        let planned = plan.due.map(|due| Duration::try_from(due.duration_since(self.now)).unwrap_or_default());
        let refused = memory
            .plan
            .refused
            .values()
            .filter(|refused| refused.until > self.now)
            .map(|refused| Duration::try_from(refused.until.duration_since(self.now)).unwrap_or_default())
            .min();
        let again = more.then_some(Duration::ZERO);
        Ok(NextRound::After([due, planned, again, refused].into_iter().flatten().min()))
    }

    /// The plan is what the next one begins with.
    fn take_over(&self, plan: &mut ParentPlan, memory: &mut FlowMemory) {
        // What has no effect is found once, and told with the next status, whenever that is written.
        plan.ignored.retain(|ignored| !memory.ignored.contains(ignored));
        memory.ignored.append(&mut plan.ignored);
        plan.ignored.clone_from(&memory.ignored);
        let mut header = plan.header.clone();
        header.state.clone_from(&plan.verdict.state);
        header.conditions.clone_from(&plan.verdict.conditions);
        header.observed_generation = Some(self.parent().generation);
        memory.plan.units.clone_from(&plan.units);
        memory.plan.header = header;
        let waiting = &mut memory.plan;
        if !waiting.pods.is_empty() {
            let units: std::collections::HashSet<&str> = plan.units.iter().map(|unit| unit.job_uid.as_str()).collect();
            waiting.pods.retain(|uid, _| units.contains(uid.as_str()));
        }
        if !waiting.refused.is_empty() {
            let wanted: std::collections::HashSet<&str> = plan
                .units
                .iter()
                .filter(|unit| !unit.has_child() && !unit.state.is_terminal())
                .map(|unit| unit.name.as_str())
                .collect();
            waiting.refused.retain(|unit, _| wanted.contains(unit.as_str()));
        }
    }

    async fn create_all(
        &self,
        creates: &[Create],
        starts: &HashMap<String, Instant>,
    ) -> Vec<(String, String, Result<(), CreateError>)> {
        let parent = self.parent();
        let created = creates.iter().map(|create| async move {
            let result = self.term.flows.create(parent, create, &self.term.fence).await;
            let since = starts.get(&create.unit).filter(|_| result.is_ok());
            since.into_iter().for_each(|since| self.metrics.started_after(since.elapsed()));
            (create.unit.clone(), create.revision.clone(), result)
        });
        let created: Vec<_> = created.collect();
        futures::stream::iter(created).buffer_unordered(AT_ONCE).collect().await
    }

    async fn change_all(&self, changes: &[ChildChange]) -> Result<(), RoundTrouble> {
        let parent = self.parent();
        let made = changes.iter().map(|change| self.term.flows.change(parent, change, &self.term.fence));
        let made: Vec<_> = made.collect();
        let results: Vec<_> = futures::stream::iter(made).buffer_unordered(AT_ONCE).collect().await;
        for stopped in results.into_iter().filter_map(Result::err) {
            // What is refused is tried again when something changes; it holds up nothing else.
            let Stopped::Refused { message } = &stopped else {
                return Err(RoundTrouble::of("change a child", &stopped));
            };
            tracing::warn!(of = %parent.name, error = message, "a change of a child was refused");
        }
        Ok(())
    }

    /// Remembers creates that brought no child until they are tried again.
    fn note_refusals(
        &self,
        created: Vec<(String, String, Result<(), CreateError>)>,
        memory: &mut FlowMemory,
    ) -> Result<(), RoundTrouble> {
        let (mut later, mut told_anew) = (None, false);
        for (unit, revision, result) in created {
            let (refusal, may_exist) = match result {
                Ok(()) => continue,
                Err(CreateError::Conflict(message)) => (Cause::new("NameConflict", message), false),
                Err(CreateError::Rejected(message)) => (Cause::new("Rejected", message), false),
                Err(CreateError::Later(Stopped::Unknown { message })) => (Cause::new("Rejected", message), true),
                // Nothing was made: it is tried again with the others.
                Err(CreateError::Later(stopped)) => {
                    later = Some(stopped);
                    continue;
                }
            };
            let before = memory.plan.refused.get(&unit);
            let refused = Refused::again(before, refusal, (revision, may_exist), self.now);
            let is_told = before.is_some_and(|before| before.blocks() && before.refusal == refused.refusal);
            told_anew |= refused.blocks() && !is_told;
            memory.plan.refused.insert(unit, refused);
        }
        if told_anew {
            // The units are blocked from now on, and the next plan says so.
            self.term.flows.cache().soil(FlowKey::of(self.parent()));
        }
        later.map_or(Ok(()), |stopped| Err(RoundTrouble::of("create a child", &stopped)))
    }

    /// Writes the status where it differs and its slot has come; at once if `now`.
    async fn write_status(
        &self,
        plan: &ParentPlan,
        memory: &mut FlowMemory,
        now: bool,
    ) -> Result<Written, RoundTrouble> {
        let parent = self.parent();
        let with_records = memory.plan.header.is_truncated;
        if let Some(due) = memory.pace.next(with_records, plan.verdict.has_completed).filter(|_| !now) {
            return Ok(Written::Later(due));
        }
        let ParentView { children, .. } = &self.view;
        let from = StatusInput { parent, units: &plan.units, header: &plan.header, verdict: &plan.verdict, children };
        let Reported { status, is_cut } = report(from);
        if is_cut {
            self.write_records(&plan.units, memory).await?;
        }
        if status != parent.status {
            let began = Instant::now();
            let written = self.term.flows.write_status(parent, &status, &self.term.fence).await;
            let ended = (self.term.flows.cluster().clock().now(), began.elapsed());
            memory.pace.wrote(&FlowKey::of(parent), &self.term.together, ended);
            written.map_err(|stopped| RoundTrouble::of("write the status", &stopped))?;
        }
        self.metrics.reported(&memory.reported.units, &plan.units);
        let notes = told(parent, &memory.reported, plan);
        if !notes.is_empty() {
            self.term.flows.cluster().emit(notes);
        }
        memory.plan.header.is_truncated = is_cut;
        memory.reported =
            Memory { units: memory.plan.units.clone(), header: memory.plan.header.clone(), ..Memory::default() };
        memory.records_hold = is_cut;
        memory.durable_first = false;
        memory.ignored.clear();
        Ok(Written::Now)
    }

    /// Writes the JobRecords that differ. Until the status counts them, it is not known what they hold.
    async fn write_records(&self, units: &[Unit], memory: &mut FlowMemory) -> Result<(), RoundTrouble> {
        let before = memory.reported.units.len();
        let mut changed = memory.changed_shards(units);
        memory.records_hold = false;
        // Entries that move to a later record are there before they leave the earlier one.
        if units.len() > before {
            changed.reverse();
        }
        let written =
            self.term.flows.write_records(self.parent(), changed, units.len() != before, &self.term.fence).await;
        written.map_err(|stopped| RoundTrouble::of("write a JobRecord", &stopped))
    }
}

/// Whether the status says what the plan says.
enum Written {
    /// It does.
    Now,
    /// It will.
    Later(Instant),
}
