//! One round of a JobFlow or DaemonJob: observes, plans, creates children, records the status, then makes the changes
//! that wait for the status.
//!
//! A create needs no record before it. The child's name follows from the unit and the attempt, and an object of that
//! name with the owner's UID is the child. A time to live and a deletion wait until the outcome is durable.

use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_core::attempts::build::Cause;
use oarlock_core::attempts::live_reads::{failed_pods, wait_reason};
use oarlock_core::attempts::parent::{Parent, ParentKind};
use oarlock_core::attempts::plan::{ChildChange, Observation, ParentPlan, PlanMemory};
use oarlock_core::attempts::pods::{PodReport, report as report_pods};
use oarlock_core::attempts::refused::Refused;
use oarlock_core::attempts::transition_events::cleaned_up;
use oarlock_core::attempts::view::ChildView;
use oarlock_core::attempts::waiting::WaitCheck;
use oarlock_core::object::api_object::ObjectKey;
use oarlock_core::object::time::after;
use oarlock_core::requests::reads::ReadFailed;
use oarlock_core::requests::writes::Recorded;
use oarlock_kube::flows::cache::ParentView;
use tokio::time::{Duration, Instant, timeout};
use tracing::Instrument as _;

use crate::flows::memory::FlowMemory;
use crate::flows::reporting::{StatusWriteResult, StatusWriteTime};
use crate::flows::{FlowTerm, template};
use crate::metrics::flows::{FlowFigures, KindMetrics};
use crate::reconcilers::NextRound;
use crate::round_trouble::RoundTrouble;
use crate::traces::SPANS;

/// The number of concurrent requests of one round. The port's limiter bounds the requests of all rounds.
pub(super) const AT_ONCE: usize = 32;
/// The timeouts of the first lists of a Job's pods, by the number of failures. Later lists get the timeout of any
/// request.
const PATIENCE: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(4)];
/// The timeout for reading why Jobs wait.
const LOOK: Duration = Duration::from_secs(2);
/// The number of pod lists in one round.
const READS: usize = 64;

/// Runs one round.
pub(crate) async fn run(term: &FlowTerm, key: &ObjectKey, memory: &mut FlowMemory) -> Result<NextRound, RoundTrouble> {
    if ParentKind::of_key(key).is_none() {
        return template::run(term, key, memory).await;
    }
    let flows = &term.flows;
    let observing = flows.certain(key).instrument(tracing::trace_span!(target: SPANS, "observe"));
    let Some(view) = observing.await.map_err(RoundTrouble::of_read)? else { return Ok(NextRound::Gone) };
    let metrics = term.metrics.flows.of(view.parent.kind);
    let round = Round { term, metrics, view, now: flows.cluster().clock().now() };
    round.restore(memory).await?;
    if flows.cache().take_name_change(key) {
        memory.plan.refused.retain(|_, refused| refused.refusal.reason != "NameConflict");
    }
    let plan = round.plan(memory).instrument(tracing::trace_span!(target: SPANS, "plan")).await;
    round.carry_out(plan, memory).instrument(tracing::trace_span!(target: SPANS, "apply-and-record")).await
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

    /// Plans, after listing the pods of Jobs that just failed.
    async fn plan(&self, memory: &mut FlowMemory) -> ParentPlan {
        let plan = self.plan_once(&memory.plan);
        let waits = |job: &ChildView| memory.plan.unread.get(&job.uid).is_some_and(|unread| unread.until > self.now);
        let due: Vec<_> = plan.reads.iter().chain(&plan.early_reads).filter(|job| !waits(job)).cloned().collect();
        if due.is_empty() && plan.wait_checks.is_empty() {
            return plan;
        }
        let more = due.len() > READS;
        let (wait_checks, ()) =
            tokio::join!(self.check_waiting_jobs(plan.wait_checks), self.read_pods(due, &mut memory.plan));
        memory.plan.wait_check_window.count(wait_checks.len(), self.now);
        for (uid, message) in wait_checks {
            let look = WaitCheck::again(memory.plan.wait_checks.get(&uid), message, self.now);
            memory.plan.wait_checks.insert(uid, look);
        }
        let mut plan = self.plan_once(&memory.plan);
        if more {
            plan.requeue_by(self.now);
        }
        plan
    }

    /// Lists the pods of Jobs. A failed list is repeated later and does not delay the others.
    async fn read_pods(&self, due: Vec<Arc<ChildView>>, memory: &mut PlanMemory) {
        let reads = due.into_iter().take(READS).map(|job| {
            let failed = memory.unread.get(&job.uid).map_or(0, |unread| unread.tries.saturating_add(1));
            let patience = usize::try_from(failed).ok().and_then(|failed| PATIENCE.get(failed)).copied();
            async move {
                let pods = self.term.flows.cluster().ask(|answers| failed_pods(&job, patience, answers)).await;
                (job, pods)
            }
        });
        let reads: Vec<_> = reads.collect();
        let mut read = futures::stream::iter(reads).buffer_unordered(AT_ONCE);
        let is_node = |name: &str| self.view.nodes.contains_key(name);
        while let Some((job, pods)) = read.next().await {
            let before = memory.unread.remove(&job.uid);
            let report = match pods {
                Ok(pods) => report_pods(&pods, is_node),
                // A later list may succeed, and show that the infrastructure caused the failure.
                Err(failed) if !failed.is_refused => {
                    let cause = Cause::new("Unread", cannot_be_listed(&failed));
                    let answered = self.term.flows.cluster().clock().now();
                    let mut unread = Refused::again(before.as_ref(), cause, String::new(), true, answered);
                    let asked = SignedDuration::from_secs(failed.retry_after.unwrap_or(0).into());
                    unread.until = unread.until.max(after(answered, asked));
                    memory.unread.insert(job.uid.clone(), unread);
                    continue;
                }
                Err(failed) => PodReport { message: cannot_be_listed(&failed), is_infrastructure: false },
            };
            memory.pods.insert(job.uid.clone(), report);
        }
    }

    /// Reads why Jobs without a running pod wait. Returns the reasons by the Jobs' UIDs. The next check repeats a
    /// failed read.
    async fn check_waiting_jobs(&self, waiting: Vec<Arc<ChildView>>) -> Vec<(String, Option<String>)> {
        let wait_checks = waiting.iter().map(async |job| {
            let cluster = self.term.flows.cluster();
            let told = cluster.ask(|answers| wait_reason(job, cluster.clock().now(), answers));
            (job.uid.clone(), timeout(LOOK, told).await.ok().and_then(Result::ok))
        });
        futures::future::join_all(wait_checks).await
    }

    fn plan_once(&self, memory: &PlanMemory) -> ParentPlan {
        let ParentView { parent, children, templates, nodes } = &self.view;
        let observed = Observation { parent, memory, children, templates, nodes };
        match parent.kind {
            ParentKind::Flow => oarlock_core::job_flow::plan::plan(observed, self.now),
            ParentKind::Daemon => oarlock_core::daemon_job::plan::plan(observed, self.now),
        }
    }

    async fn carry_out(&self, mut plan: ParentPlan, memory: &mut FlowMemory) -> Result<NextRound, RoundTrouble> {
        let mut again = plan.more;
        memory.figures = Some(FlowFigures::of(&plan));
        memory.note_due(&plan.creates);
        again |= memory.take_over(&mut plan, self.parent());
        // A failed write keeps this flag set.
        memory.durable_first |= plan.durable_first;
        let written = match memory.durable_first {
            true => Some(self.write_status(&plan, memory, StatusWriteTime::AtOnce).await?),
            false => None,
        };
        let starts = std::mem::take(&mut memory.starts);
        let is_due = |change: &&ChildChange| memory.plan.is_due(change, self.parent(), self.now);
        let due_changes = plan.changes.iter().filter(is_due).collect();
        let (created, changed, written) =
            tokio::join!(self.create_all(&plan.creates, &starts), self.change_all(due_changes), async {
                match written {
                    Some(written) => Ok(written),
                    None => self.write_status(&plan, memory, StatusWriteTime::RateLimited).await,
                }
            },);
        memory.starts = starts;
        let trouble = self.keep_creates(created, memory).err();
        let trouble = trouble.or(self.keep_changes(changed, memory).err());
        let status_due = match written? {
            StatusWriteResult::Stored(recorded) => {
                self.finalize(&plan, recorded, memory).await?;
                None
            }
            StatusWriteResult::Later(due) => Some(due.saturating_duration_since(Instant::now())),
        };
        // Fails only now, so that the trouble of one child does not delay the others.
        trouble.map_or(Ok(()), Err)?;
        let due = [status_due, plan.due.map(|due| self.until(due)), again.then_some(Duration::ZERO)];
        Ok(NextRound::After(due.into_iter().flatten().chain(self.retries(memory)).min()))
    }

    /// Makes the changes that wait until the outcome is durable. The proof says that it is.
    async fn finalize(
        &self,
        plan: &ParentPlan,
        recorded: Recorded<Vec<&ChildChange>>,
        memory: &mut FlowMemory,
    ) -> Result<(), RoundTrouble> {
        let parent = self.parent();
        let gone: Vec<String> =
            self.view.children.iter().filter(|child| child.gone).map(|child| child.uid.clone()).collect();
        self.term.flows.cache().forget_gone(parent, &gone);
        let due = recorded.then.into_iter().filter(|change| memory.plan.is_due(change, parent, self.now)).collect();
        let changed = self.change_all(due).await;
        let done = changed.iter().filter(|tried| tried.result.is_ok()).map(|tried| tried.change);
        let notes = cleaned_up(parent, plan.units.len(), done);
        if !notes.is_empty() {
            self.term.flows.cluster().emit(notes);
        }
        self.keep_changes(changed, memory)
    }

    /// Returns the waits until the next attempts of refused requests.
    fn retries(&self, memory: &FlowMemory) -> impl Iterator<Item = Duration> {
        let PlanMemory { refused, refused_changes, unread, .. } = &memory.plan;
        let refused = refused.values().chain(refused_changes.values()).chain(unread.values());
        refused.filter(|refused| refused.until > self.now).map(|refused| self.until(refused.until))
    }

    /// Returns the time from now until `due`. The round itself may have taken long.
    fn until(&self, due: Timestamp) -> Duration {
        let now = self.term.flows.cluster().clock().now();
        Duration::try_from(due.duration_since(now)).unwrap_or_default()
    }
}

fn cannot_be_listed(failed: &ReadFailed) -> String {
    format!("its pods cannot be listed: {}", failed.message)
}
