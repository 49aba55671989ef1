//! One round of an OpsJob: observe, plan, write its status, make the effects.
//!
//! Its status is the claim on its targets and the record of what came of them, so an effect is asked for only once the status says
//! what it rests on. What a term knows of who has which target is read from these statuses when it begins.

use std::sync::Arc;

use oarlock_core::cluster::object::ObjectKey;
use oarlock_core::cluster::writes::Stopped;
use oarlock_core::ops_job::child::ops_key;
use oarlock_core::ops_job::events::events;
use oarlock_core::ops_job::holders::Holders;
use oarlock_core::ops_job::outcomes::TargetOutcome;
use oarlock_core::ops_job::plan::{Effect, Found, OpsObservation, OpsPlan, plan, with_refusal};
use oarlock_core::ops_job::stored::StoredOps;
use oarlock_core::ops_job::targets::{Here, NodeFacts};
use oarlock_core::ops_job::view::OpsChild;
use oarlock_core::round::task_settings::TASKS_NAMESPACE;
use oarlock_kube::ReadFailed;
use oarlock_kube::lease::Fence;
use oarlock_kube::ops::Ops;
use parking_lot::Mutex;
use tokio::time::{Duration, Instant, sleep};

use crate::manifests::HOST_NAMESPACE;
use crate::metrics::Metrics;
use crate::reconcilers::{NextRound, Reconcile};
use crate::round_trouble::RoundTrouble;
use crate::status_pace::{Pace, Together};

/// Wait before the jobs are read again if that failed at the start of a term.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// Where a host runs.
#[derive(Clone, Debug)]
pub struct HostPlace {
    /// The id of its cluster.
    pub cluster: String,
    /// The node of its pod, where it is known.
    pub node: Option<String>,
}

/// What all rounds of one term share.
pub(crate) struct OpsTerm {
    ops: Ops,
    fence: Fence,
    place: HostPlace,
    metrics: Arc<Metrics>,
    holders: Mutex<Holders>,
    together: Together<ObjectKey>,
}

/// What a term remembers of a job between two rounds.
#[derive(Debug, Default)]
pub(crate) struct OpsMemory {
    /// The UID that it is of.
    uid: String,
    pace: Pace,
}

/// What a round sees: a job, its child, and what its targets are found by.
struct Seen {
    job: Arc<StoredOps>,
    child: Option<Arc<OpsChild>>,
    found: Found,
    nodes: Vec<NodeFacts>,
}

/// The namespaces whose pods make no node busy.
const SYSTEM: [&str; 3] = ["kube-system", HOST_NAMESPACE, TASKS_NAMESPACE];

impl Default for HostPlace {
    fn default() -> Self {
        Self { cluster: "local".to_owned(), node: None }
    }
}

impl OpsTerm {
    /// The term that `fence` stands for.
    pub(crate) fn begin(ops: Ops, place: HostPlace, fence: Fence, metrics: Arc<Metrics>) -> Self {
        Self { ops, fence, place, metrics, holders: Mutex::default(), together: Together::default() }
    }
}

impl Reconcile for OpsTerm {
    type Key = ObjectKey;
    type Memory = OpsMemory;

    async fn ready(&self) {
        self.ops.synced().await;
        while let Err(failed) = self.ops.read_all().await {
            tracing::warn!(error = failed.message, "failed to list the OpsJobs; trying again");
            sleep(READ_AGAIN).await;
        }
        let jobs = self.ops.cache().jobs();
        let mut holders = self.holders.lock();
        jobs.iter().for_each(|job| job.view.take_held(&mut holders));
    }

    fn all(&self) -> Vec<ObjectKey> {
        self.ops.cache().jobs().iter().map(|job| ops_key(&job.view.name)).collect()
    }

    fn take_changed(&self) -> Vec<ObjectKey> {
        self.ops.cache().take_dirty().iter().map(|name| ops_key(name)).collect()
    }

    async fn changed(&self) {
        self.ops.cache().dirtied().await;
    }

    async fn round(
        &self,
        key: &ObjectKey,
        memory: &mut OpsMemory,
        _since: Option<Instant>,
    ) -> Result<NextRound, RoundTrouble> {
        let job = self.ops.cache().job(&key.name);
        let uid = job.as_ref().map_or("", |job| &job.view.uid);
        if uid != memory.uid || uid.is_empty() {
            // This term may never have had a round of one that is gone.
            self.holders.lock().forget_others(&key.name, uid);
            *memory = OpsMemory::default();
        }
        let Some(job) = job else { return Ok(NextRound::Gone) };
        memory.uid.clone_from(&job.view.uid);
        let seen = self.see(job).await.map_err(RoundTrouble::of_read)?;
        let mut plan = self.plan(&seen, None);
        if let Some(child) = seen.child.as_ref().filter(|_| plan.needs_outcomes) {
            let outcomes = self.ops.read_outcomes(&seen.job, child).await.map_err(RoundTrouble::of_read)?;
            plan = self.plan(&seen, Some(&outcomes));
        }
        self.carry_out(key, &seen, plan, memory).await
    }

    fn ended(&self, _key: &ObjectKey, _memory: &mut OpsMemory, _took: Duration) {}

    fn is_gone(&self, _key: &ObjectKey) {}
}

impl OpsTerm {
    /// Sees a job with its child, and looks up what its targets are found by, until they are.
    async fn see(&self, job: Arc<StoredOps>) -> Result<Seen, ReadFailed> {
        let (cache, status) = (self.ops.cache(), &job.view.status);
        let mut child = cache.child(&job.view.uid);
        // One that is recorded and not seen may only not be seen yet.
        if child.is_none() && status.rest.contains_key("operationJob") && !status.has_ended() {
            self.ops.read_child(&job).await?;
            child = cache.child(&job.view.uid);
        }
        let is_due = job.view.is_kept && job.view.targets.is_none() && !status.has_ended();
        let (mut found, mut nodes) = (Found::default(), Vec::new());
        if let Some(spec) = job.spec.as_ref().ok().filter(|_| is_due) {
            (found, nodes) = (self.ops.find(&spec.scope.workloads).await?, cache.nodes());
            if spec.filters.spares_busy {
                let busy = self.ops.busy_nodes(&SYSTEM).await?;
                nodes.iter_mut().for_each(|node| node.is_busy = busy.contains(&node.name));
            }
        }
        Ok(Seen { job, child, found, nodes })
    }

    fn plan(&self, seen: &Seen, outcomes: Option<&[TargetOutcome]>) -> OpsPlan {
        let Seen { job, child, found, nodes } = seen;
        let observed = OpsObservation {
            job: &job.view,
            spec: job.spec.as_ref(),
            child: child.as_deref(),
            nodes,
            outcomes,
            found,
            here: Here { cluster: &self.place.cluster, node: self.place.node.as_deref() },
            now: self.ops.cluster().clock().now(),
        };
        plan(observed, &mut self.holders.lock())
    }

    async fn carry_out(
        &self,
        key: &ObjectKey,
        seen: &Seen,
        plan: OpsPlan,
        memory: &mut OpsMemory,
    ) -> Result<NextRound, RoundTrouble> {
        let Seen { job, child, .. } = seen;
        for effect in &plan.effects {
            let made = self.ops.make(effect, job, child.as_deref(), &self.fence).await;
            if let (Effect::CreateChild(_), Err(Stopped::Refused { message })) = (effect, &made) {
                self.tell_refusal(job, message).await?;
            }
            made.map_err(|stopped| RoundTrouble::of(effect.words(), &stopped))?;
        }
        let now = self.ops.cluster().clock().now();
        let wake = plan.wake.map(|due| Duration::try_from(due.duration_since(now)).unwrap_or_default());
        // An effect on the job itself made another version of it, and another round is due.
        let Some(status) = plan.status.filter(|_| !plan.effects.iter().any(Effect::is_on_job)) else {
            return Ok(NextRound::After(wake));
        };
        let waits = memory.pace.next(false, status.has_ended()).filter(|_| !status.is_news_to(&job.view.status));
        if let Some(due) = waits {
            let slot = due.saturating_duration_since(Instant::now());
            return Ok(NextRound::After(Some(wake.map_or(slot, |wake| wake.min(slot)))));
        }
        let began = Instant::now();
        let written = self.ops.write_status(job, &status.write(), &self.fence).await;
        memory.pace.wrote(key, &self.together, (self.ops.cluster().clock().now(), began.elapsed()));
        written.map_err(|stopped| RoundTrouble::of("write the status", &stopped))?;
        let kind = job.spec.as_ref().map_or("", |spec| spec.kind.word());
        self.metrics.ops.reported(kind, &job.view.status, &status);
        let notes = events(&job.view, &status);
        if !notes.is_empty() {
            self.ops.cluster().emit(notes);
        }
        Ok(NextRound::After(wake))
    }

    /// Says on the job why it has no child yet.
    async fn tell_refusal(&self, job: &StoredOps, message: &str) -> Result<(), RoundTrouble> {
        let before = &job.view.status;
        let told = with_refusal(before, message, self.ops.cluster().clock().now()).changed_from(before);
        let Some(status) = told else { return Ok(()) };
        let written = self.ops.write_status(job, &status.write(), &self.fence).await;
        written.map_err(|stopped| RoundTrouble::of("write the status", &stopped))
    }
}
