//! One round of a JobFlow or DaemonJob: observe, plan, create and record, then settle.
//!
//! A create needs no record before it: its name follows from the unit and the attempt, and an object of that name which
//! carries the owner's UID is the child. A time to live and a deletion wait until the outcome is durable.

use std::collections::HashSet;

use futures::StreamExt;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_core::child::closing::new_retry;
use oarlock_core::child::header::Header;
use oarlock_core::child::parent::{Parent, ParentKind};
use oarlock_core::child::plan::{ChildChange, Memory, Observation, ParentPlan};
use oarlock_core::child::pods::{PodReport, report as report_pods};
use oarlock_core::child::told::cleaned_up;
use oarlock_core::child::unit::Unit;
use oarlock_core::job::time::after;
use oarlock_kube::flows::cache::ParentView;
use oarlock_kube::flows::{FlowKey, ReadFailed};
use tokio::time::{Duration, Instant};

use crate::flows::memory::{FlowMemory, Stored};
use crate::flows::reporting::Written;
use crate::flows::trouble::RoundTrouble;
use crate::flows::{FlowTerm, template};
use crate::metrics::flows::{FlowFigures, KindMetrics};

/// Creates of one round: a large DaemonJob takes several, so that its status goes on meanwhile.
const CREATES: usize = oarlock_core::daemon::plan::CREATES;
/// Requests of one round in flight; the limiter of the port bounds those of all.
pub(super) const AT_ONCE: usize = 32;
/// Lists of pods in one round.
const READS: usize = 64;
/// How far the clocks of the API server and of this host may be apart.
const SKEW: SignedDuration = SignedDuration::from_secs(30);

/// What follows a round.
pub(crate) enum NextRound {
    /// The object is gone.
    Gone,
    /// The next round is due after this time, if nothing happens before.
    After(Option<Duration>),
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

pub(super) struct Round<'a> {
    pub(super) term: &'a FlowTerm,
    pub(super) metrics: &'a KindMetrics,
    pub(super) view: ParentView,
    pub(super) now: Timestamp,
}

impl Round<'_> {
    pub(super) fn parent(&self) -> &Parent {
        &self.view.parent
    }

    /// Reads the memory of an object that this term has not met yet, from the status that the last one left; and looks what is
    /// stored after a write of that without answer. Watches that are late are waited for: by an old view, what was done since
    /// would be done again.
    async fn recall(&self, memory: &mut FlowMemory) -> Result<(), RoundTrouble> {
        let parent = self.parent();
        let is_read = memory.read_from.as_ref().is_none_or(|version| *version == parent.version);
        if memory.uid == parent.uid && is_read {
            if memory.stored == Stored::InDoubt {
                self.must_be_current().await?;
                memory.stored = Stored::Seen;
                memory.records_hold = false;
            }
            return Ok(());
        }
        let header = Header::read(&parent.status);
        let may_move = self.may_have_moved(&header);
        if may_move {
            self.must_be_current().await?;
        }
        let records = if header.is_truncated { self.term.flows.read_records(parent).await? } else { Vec::new() };
        let stored = Memory::recalled(parent, &records);
        if may_move && self.misses_children(&stored.units).await? {
            return Err(RoundTrouble::old_view());
        }
        let (uid, read_from) = (parent.uid.clone(), Some(parent.version.clone()));
        *memory = FlowMemory { uid, read_from, plan: stored.clone(), reported: stored, ..FlowMemory::default() };
        Ok(())
    }

    /// Whether a term before may have done what the view of its watch does not show: no term before knew a new object, and
    /// nothing moves in one that is over.
    fn may_have_moved(&self, header: &Header) -> bool {
        let parent = self.parent();
        let is_new = parent.created.is_some_and(|created| created > after(self.term.began, SKEW));
        let is_over = header.completion_time.is_some()
            && header.observed_generation == Some(parent.generation)
            && new_retry(parent, header).is_none();
        !is_new && !is_over
    }

    async fn must_be_current(&self) -> Result<(), RoundTrouble> {
        let is_current = self.term.flows.is_current(self.parent()).await?;
        is_current.then_some(()).ok_or_else(RoundTrouble::old_view)
    }

    /// Whether a child that runs is stored and was not seen: it would count as deleted.
    async fn misses_children(&self, units: &[Unit]) -> Result<bool, ReadFailed> {
        let running = units.iter().filter(|unit| unit.has_child() && !unit.state.is_terminal());
        let mut unseen: HashSet<&str> = running.map(|unit| unit.job_uid.as_str()).collect();
        for child in self.view.children.iter() {
            unseen.remove(child.uid.as_str());
        }
        Ok(!unseen.is_empty() && self.term.flows.is_stored(self.parent(), &unseen).await?)
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
                Err(failed) if !failed.is_refused => return Err(failed.into()),
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
        let mut again = plan.more || plan.creates.len() > CREATES;
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
        let due_changes = self.due_changes(&plan.changes, memory);
        let (created, changed, written) =
            tokio::join!(self.create_all(&plan.creates, &starts), self.change_all(due_changes), async {
                if first { Ok(Written::Now) } else { self.write_status(&plan, memory, false).await }
            },);
        memory.starts = starts;
        let trouble = self.note_refusals(created, memory).err();
        let trouble = trouble.or(self.note_changes(changed, memory).err());
        let due = match written? {
            written @ (Written::Now | Written::Before) => {
                // It is deleted as it was seen, and a status that was just written makes it another version.
                if matches!(written, Written::Now) && plan.settled.contains(&ChildChange::DeleteSelf) {
                    plan.settled.retain(|change| *change != ChildChange::DeleteSelf);
                    again = true;
                }
                let gone: Vec<String> =
                    self.view.children.iter().filter(|child| child.gone).map(|child| child.uid.clone()).collect();
                self.term.flows.cache().forget_gone(&parent.uid, &gone);
                let settled = self.change_all(self.due_changes(&plan.settled, memory)).await;
                let done = settled.iter().filter(|(_, made)| made.is_ok()).map(|(change, _)| *change);
                let notes = cleaned_up(parent, plan.units.len(), done);
                if !notes.is_empty() {
                    self.term.flows.cluster().emit(notes);
                }
                self.note_changes(settled, memory)?;
                None
            }
            Written::Later(due) => Some(due.saturating_duration_since(Instant::now())),
        };
        // Only now: what one child meets holds up nothing of the others.
        trouble.map_or(Ok(()), Err)?;
        let planned = plan.due.map(|due| Duration::try_from(due.duration_since(self.now)).unwrap_or_default());
        let refused = memory.plan.refused.values().chain(memory.held_changes.values());
        let refused = refused
            .filter(|refused| refused.until > self.now)
            .map(|refused| Duration::try_from(refused.until.duration_since(self.now)).unwrap_or_default())
            .min();
        let again = again.then_some(Duration::ZERO);
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
            let units: HashSet<&str> = plan.units.iter().map(|unit| unit.job_uid.as_str()).collect();
            waiting.pods.retain(|uid, _| units.contains(uid.as_str()));
        }
        if !waiting.refused.is_empty() {
            let wanted: HashSet<&str> = plan
                .units
                .iter()
                .filter(|unit| !unit.has_child() && !unit.state.is_terminal())
                .map(|unit| unit.name.as_str())
                .collect();
            waiting.refused.retain(|unit, _| wanted.contains(unit.as_str()));
        }
        if !memory.held_changes.is_empty() {
            let own = &self.parent().uid;
            let there: HashSet<&str> =
                self.view.children.iter().map(|child| child.uid.as_str()).chain([own.as_str()]).collect();
            memory.held_changes.retain(|(uid, _), _| there.contains(uid.as_str()));
        }
    }
}
