//! The controller: leads one term after the other, as long as the election allows it.

use std::sync::Arc;

use oarlock_core::object::api_object::Kind;
use oarlock_core::object::key::JobRef;
use oarlock_core::requests::writes::BatchResult;
use oarlock_kube::flows::Flows;
use oarlock_kube::lease::config::LeaseError;
use oarlock_kube::lease::elector::LeaderElector;
use oarlock_kube::lease::fence::Fence;
use oarlock_kube::ops::Ops;
use oarlock_kube::watch::objects::WatchEvent;
use oarlock_kube::{HoldKeysError, KEYS_EVERY};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Duration, Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::flows::FlowTerm;
use crate::host_place::{HostHome, HostLocation};
use crate::images::Images;
use crate::kinds::ServedKind;
use crate::lead::TermController;
use crate::logs::Logs;
use crate::ops_job::OpsKind;
use crate::ports::Ports;
use crate::published::Publisher;
use crate::reconcilers;
pub use crate::reconcilers::RESYNC;
use crate::tasks::TaskRunner;

/// The wait before the next attempt to list the jobs, if a list failed at the start of a term.
const LIST_AGAIN: Duration = Duration::from_secs(1);
/// The longest time for the last check of the hold keys, when this process stops.
const LAST_KEYS: Duration = Duration::from_secs(2);

/// The reason why a process can no longer lead.
#[derive(Debug, thiserror::Error)]
pub enum CannotLead {
    /// The election ended by itself.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// This process does not know the current hold keys, so it could not recognise the holds of another process.
    #[error(transparent)]
    HoldKeys(#[from] HoldKeysError),
}

/// The controller: makes a round of each changed job while this process leads.
pub struct Controller {
    ports: Arc<Ports>,
    events: UnboundedReceiver<WatchEvent>,
    resync: Duration,
    flows: Option<Flows>,
    kinds: Vec<Arc<dyn ServedKind>>,
    /// The OpsJobs and the place that the host publishes.
    ops: Option<(Ops, HostLocation)>,
    home: Option<HostHome>,
}

impl Controller {
    /// Makes a controller that receives `events`, and lists everything again every [`RESYNC`].
    pub fn new(ports: Arc<Ports>, events: UnboundedReceiver<WatchEvent>) -> Self {
        Self { ports, events, resync: RESYNC, flows: None, kinds: Vec::new(), ops: None, home: None }
    }

    /// Returns the controller with another interval between two complete lists.
    #[must_use]
    pub fn resync_every(self, resync: Duration) -> Self {
        Self { resync, ..self }
    }

    /// Returns the controller with JobFlows, JobTemplates and DaemonJobs in addition to the jobs.
    #[must_use]
    pub fn with_flows(self, flows: Flows) -> Self {
        self.ports.metrics.shows_flows(&flows);
        Self { flows: Some(flows), ..self }
    }

    /// Returns the controller with OpsJobs. `place` describes where this host runs.
    #[must_use]
    pub fn with_ops(self, ops: Ops, place: HostLocation) -> Self {
        let cluster = &self.ports.cluster;
        let logs = place
            .artefacts
            .clone()
            .map(|artefacts| self.ports.logs.get_or_init(|| Logs::new(cluster.clone(), artefacts)).clone());
        let images = place.exports.clone().map(|exports| Images::new(cluster.clone(), exports));
        cluster.do_tasks(Arc::new(TaskRunner { logs, images }));
        let kind = OpsKind { ops: ops.clone(), place: place.clone() };
        Self { ops: Some((ops, place)), ..self }.with_kind(Arc::new(kind))
    }

    /// Returns the controller with one more kind. Watch the kind before the controller runs.
    #[must_use]
    pub fn with_kind(mut self, kind: Arc<dyn ServedKind>) -> Self {
        let shown = kind.clone();
        self.ports.metrics.shows_kind(move || shown.health());
        self.kinds.push(kind);
        self
    }

    /// Returns the kinds beside jobs and flows.
    pub fn kinds(&self) -> &[Arc<dyn ServedKind>] {
        &self.kinds
    }

    /// Returns the controller, which publishes the served actions in the host's namespace.
    #[must_use]
    pub fn publishing_in(self, home: HostHome) -> Self {
        Self { home: Some(home), ..self }
    }

    /// Leads whenever `election` allows it, until `stop`. Releases the lease at the end.
    ///
    /// # Errors
    ///
    /// If the election ended by itself, because another process runs under the same identity. If the hold keys are not
    /// those that this process knows.
    pub async fn run(mut self, election: LeaderElector, stop: CancellationToken) -> Result<(), CannotLead> {
        let mut leadership = election.leadership();
        self.ports.metrics.shows_lease(election.leadership());
        let (ports, ends) = (self.ports.clone(), stop.clone());
        let declaring = tokio::spawn(async move { ports.kinds.keep(&ports.cluster, &ports.plugins, &ends).await });
        let mut last_term = None;
        while !stop.is_cancelled() {
            let now = *leadership.borrow_and_update();
            if now.leading && last_term != Some(now.term) {
                last_term = Some(now.term);
                if let Err(changed) = self.lead(&election, now.term, &stop).await {
                    declaring.abort();
                    election.resign().await?;
                    return Err(changed.into());
                }
                // A term never resumes, even if the lease was renewed late: the next term starts afresh.
                if !stop.is_cancelled() {
                    election.begin_anew(now.term);
                }
                continue;
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.ports.heart.beat() => {}
                changed = leadership.changed() => if changed.is_err() { break },
                // The port keeps the caches up to date, and a term reads everything when it begins.
                heard = self.events.recv() => if heard.is_none() { break },
            }
        }
        declaring.abort();
        Ok(election.resign().await?)
    }

    /// Leads for one term.
    ///
    /// # Errors
    /// If the hold keys changed, so that this process may no longer lead.
    async fn lead(
        &mut self,
        election: &LeaderElector,
        number: u64,
        stop: &CancellationToken,
    ) -> Result<(), HoldKeysError> {
        let fence = election.fence();
        let (mut lead, mut results) = TermController::begin(self.ports.clone(), fence.clone());
        // These tasks end with the term, and do not wait for the first list of jobs.
        let metrics = self.ports.metrics.clone();
        let flows = self.flows.clone().map(|flows| FlowTerm::begin(flows, fence.clone(), metrics));
        let publishing = self.ops.clone().zip(self.home.clone()).map(|((ops, place), home)| {
            let (plugins, fence) = (self.ports.plugins.clone(), fence.clone());
            AbortOnDropHandle::new(tokio::spawn(Publisher { ops, plugins, place, home, fence }.run()))
        });
        let kinds = self.kinds.iter().map(|kind| AbortOnDropHandle::new(kind.lead(fence.clone(), &self.ports)));
        let (_kinds, _publishing) = (kinds.collect::<Vec<_>>(), publishing);
        let _flows = flows.map(|term| AbortOnDropHandle::new(tokio::spawn(reconcilers::lead(term))));
        let jobs = match self.first_jobs(&mut lead, &fence, number, stop).await {
            Ok(Some(jobs)) => jobs,
            ended => {
                lead.end().await;
                return ended.map(drop);
            }
        };
        self.ports.metrics.leads(true);
        lead.expect(jobs);
        lead.sweep();
        let ended = self.follow(&mut lead, &mut results, &fence, stop).await;
        lead.end().await;
        self.ports.metrics.leads(false);
        tracing::info!(term = number, "the term of leadership ended");
        if ended.is_ok() && stop.is_cancelled() {
            // Stores the keys again if they are missing, because the next host reads them before this process is back.
            let _ = timeout(LAST_KEYS, self.ports.cluster.keep_hold_keys()).await;
        }
        ended
    }

    /// Reconciles the jobs of a term until the term ends.
    ///
    /// # Errors
    /// If the hold keys changed, so that this process may no longer lead.
    async fn follow(
        &mut self,
        lead: &mut TermController,
        results: &mut UnboundedReceiver<BatchResult>,
        fence: &Fence,
        stop: &CancellationToken,
    ) -> Result<(), HoldKeysError> {
        let mut plugins = self.ports.kinds.listed();
        let mut resync = Instant::now() + self.resync;
        let mut keys = AbortOnDropHandle::new(tokio::spawn(keys_changed(self.ports.clone())));
        let mut ended = Ok(());
        let closed = fence.closed();
        tokio::pin!(closed);
        while !stop.is_cancelled() && fence.allows() && ended.is_ok() {
            // Takes all pending events first, so that they cause only one round of each affected job.
            while let Ok(event) = self.events.try_recv() {
                lead.handle_event(event);
            }
            while let Ok(result) = results.try_recv() {
                lead.take(result);
            }
            lead.start_due();
            let due = lead.next_due().unwrap_or(resync).min(resync);
            tokio::select! {
                () = stop.cancelled() => {}
                () = &mut closed => {}
                () = self.ports.heart.beat() => {}
                Some(event) = self.events.recv() => lead.handle_event(event),
                Some(result) = results.recv() => lead.take(result),
                changed = &mut keys => ended = Err(changed.unwrap_or_else(|panic| HoldKeysError::Unknown(panic.to_string()))),
                () = lead.round_ended() => {}
                Ok(()) = plugins.changed() => {
                    lead.wake_all(|changes| changes.revisit = true);
                    // The new plugins may list another kind.
                    lead.sweep_views();
                }
                () = sleep_until(due) => if Instant::now() >= resync {
                    resync = Instant::now() + self.resync;
                    lead.wake_all(|changes| changes.resync = true);
                    lead.sweep();
                },
            }
        }
        ended
    }

    /// Returns the jobs at the start of a term, after the first list of pods and namespaces. Returns `None` if the term
    /// ends before.
    ///
    /// # Errors
    /// If the hold keys changed.
    async fn first_jobs(
        &mut self,
        lead: &mut TermController,
        fence: &Fence,
        number: u64,
        stop: &CancellationToken,
    ) -> Result<Option<Vec<JobRef>>, HoldKeysError> {
        let ports = self.ports.clone();
        let ready = async {
            // No pod is read before the keys. With old keys, this host would take the holds of a newer host for
            // forgeries.
            while let Err(error) = ports.cluster.keep_hold_keys().await {
                if error == HoldKeysError::Changed {
                    return Err(error);
                }
                tracing::warn!(term = number, %error, "failed to read the keys of holds; retrying");
                sleep(LIST_AGAIN).await;
            }
            // Only the jobs of a plugin wait for the kinds that this plugin declares.
            ports.cluster.synced(&[Kind::pod(), Kind::namespace()]).await;
            while let Err(failed) = ports.cluster.adopt_holds(fence).await {
                tracing::warn!(term = number, error = failed.message, "failed to list the holds to adopt; retrying");
                sleep(LIST_AGAIN).await;
            }
            loop {
                match ports.cluster.list_jobs().await {
                    Ok(jobs) => return Ok(Some(jobs)),
                    Err(error) => tracing::warn!(term = number, error, "failed to list the jobs; retrying"),
                }
                sleep(LIST_AGAIN).await;
            }
        };
        tokio::pin!(ready);
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(None),
                () = fence.closed() => return Ok(None),
                () = ports.heart.beat() => {}
                jobs = &mut ready => return jobs,
                // Takes events during the start too, so that they do not pile up.
                Some(event) = self.events.recv() => lead.handle_event(event),
            }
        }
    }
}

/// Checks the hold keys every [`KEYS_EVERY`]. Returns when they changed.
async fn keys_changed(ports: Arc<Ports>) -> HoldKeysError {
    loop {
        sleep(KEYS_EVERY).await;
        match ports.cluster.keep_hold_keys().await {
            Ok(()) => {}
            Err(HoldKeysError::Changed) => return HoldKeysError::Changed,
            Err(error) => tracing::warn!(%error, "failed to read the keys of holds; retrying"),
        }
    }
}
