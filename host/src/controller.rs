//! Leads whenever the election says so, one term after the other.

use std::sync::Arc;

use kube::Client;
use oarlock_core::cluster::object::Kind;
use oarlock_core::job::key::JobRef;
use oarlock_kube::flows::Flows;
use oarlock_kube::lease::{Fence, LeaderElector, LeaseError};
use oarlock_kube::ops::Ops;
use oarlock_kube::watch::watches::WatchEvent;
use oarlock_kube::{HoldKeysError, KEYS_EVERY};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Duration, Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::flows::FlowTerm;
use crate::images::Images;
use crate::lead::Lead;
use crate::logs::Logs;
use crate::ops_job::{HostPlace, OpsTerm};
use crate::ports::Ports;
use crate::published::Publisher;
use crate::reconcilers;
use crate::tasks::TaskRunner;

/// Usual interval between two complete reads, in case a change was missed.
pub const RESYNC: Duration = Duration::from_secs(600);
/// Wait before the jobs are listed again if that failed at the start of a term.
const LIST_AGAIN: Duration = Duration::from_secs(1);
/// Longest time of the last look, when this process stops.
const LAST_KEYS: Duration = Duration::from_secs(2);

/// The reason why a process leads no more.
#[derive(Debug, thiserror::Error)]
pub enum CannotLead {
    /// The election ended by itself.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The holds of another process are not known for what they are.
    #[error(transparent)]
    HoldKeys(#[from] HoldKeysError),
}

/// Turns changes into rounds while this process leads.
pub struct Controller {
    ports: Arc<Ports>,
    events: UnboundedReceiver<WatchEvent>,
    resync: Duration,
    flows: Option<Flows>,
    ops: Option<(Ops, HostPlace)>,
    home: Option<HostHome>,
}

/// The client and the namespace with which a host keeps its own objects.
#[derive(Clone)]
pub struct HostHome {
    /// A client of the API server.
    pub client: Client,
    /// The namespace of the host.
    pub namespace: String,
}

impl Controller {
    /// A controller on these ports, which receives these events and reads everything anew every [`RESYNC`].
    pub fn new(ports: Arc<Ports>, events: UnboundedReceiver<WatchEvent>) -> Self {
        Self { ports, events, resync: RESYNC, flows: None, ops: None, home: None }
    }

    /// The same with another interval between two complete reads.
    #[must_use]
    pub fn resync_every(self, resync: Duration) -> Self {
        Self { resync, ..self }
    }

    /// The same with JobFlows, JobTemplates and DaemonJobs beside the jobs.
    #[must_use]
    pub fn with_flows(self, flows: Flows) -> Self {
        self.ports.metrics.shows_flows(&flows);
        Self { flows: Some(flows), ..self }
    }

    /// The same with OpsJobs, for a host that runs there.
    #[must_use]
    pub fn with_ops(self, ops: Ops, place: HostPlace) -> Self {
        self.ports.metrics.shows_ops(&ops);
        let cluster = &self.ports.cluster;
        let logs = place
            .artefacts
            .clone()
            .map(|artefacts| self.ports.logs.get_or_init(|| Logs::new(cluster.clone(), artefacts)).clone());
        let images = place.exports.clone().map(|exports| Images::new(cluster.clone(), exports));
        cluster.do_tasks(Arc::new(TaskRunner { logs, images }));
        Self { ops: Some((ops, place)), ..self }
    }

    /// The same, and it publishes there what it serves.
    #[must_use]
    pub fn publishing_in(self, home: HostHome) -> Self {
        Self { home: Some(home), ..self }
    }

    /// Leads whenever `election` says so, until `stop`. Releases the lease at the end.
    ///
    /// # Errors
    ///
    /// If the election ended by itself: another process runs under the same identity; or if the keys of holds are others than this
    /// process knows.
    pub async fn run(mut self, election: LeaderElector, stop: CancellationToken) -> Result<(), CannotLead> {
        let mut leadership = election.leadership();
        self.ports.metrics.shows_lease(election.leadership());
        let declaring = tokio::spawn(self.ports.clone().keep_declared(stop.clone()));
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
                // A term never resumes, even if the lease was renewed late: the next one starts afresh.
                if !stop.is_cancelled() {
                    election.begin_anew(now.term);
                }
                continue;
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.ports.heart.beat() => {}
                changed = leadership.changed() => if changed.is_err() { break },
                // Caches are kept by the port; a term reads everything when it begins.
                heard = self.events.recv() => if heard.is_none() { break },
            }
        }
        declaring.abort();
        Ok(election.resign().await?)
    }

    /// Leads for one term.
    ///
    /// # Errors
    /// The keys of holds were changed, so this process may lead no more.
    async fn lead(
        &mut self,
        election: &LeaderElector,
        number: u64,
        stop: &CancellationToken,
    ) -> Result<(), HoldKeysError> {
        let fence = election.fence();
        let (mut lead, mut results) = Lead::begin(self.ports.clone(), fence.clone());
        // They end with the term, and wait for no job.
        let metrics = || self.ports.metrics.clone();
        let flows = self.flows.clone().map(|flows| FlowTerm::begin(flows, fence.clone(), metrics()));
        let publishing = self.ops.clone().zip(self.home.clone()).map(|((ops, place), home)| {
            let (plugins, fence) = (self.ports.plugins.clone(), fence.clone());
            AbortOnDropHandle::new(tokio::spawn(Publisher { ops, plugins, place, home, fence }.run()))
        });
        let ops = self.ops.clone().map(|(ops, place)| OpsTerm::begin(ops, place, fence.clone(), &self.ports));
        let flows = flows.map(|term| tokio::spawn(reconcilers::lead(term)));
        let ops = ops.map(|term| tokio::spawn(reconcilers::lead(term)));
        let (_flows, _ops, _publishing) =
            (flows.map(AbortOnDropHandle::new), ops.map(AbortOnDropHandle::new), publishing);
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
        let mut plugins = self.ports.listed();
        let mut resync = Instant::now() + self.resync;
        let mut keys = AbortOnDropHandle::new(tokio::spawn(keys_changed(self.ports.clone())));
        let mut ended = Ok(());
        let closed = fence.closed();
        tokio::pin!(closed);
        while !stop.is_cancelled() && fence.allows() && ended.is_ok() {
            // All pending events become one round of each job that they concern.
            while let Ok(event) = self.events.try_recv() {
                lead.hear(event);
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
                Some(event) = self.events.recv() => lead.hear(event),
                Some(result) = results.recv() => lead.take(result),
                changed = &mut keys => ended = Err(changed.unwrap_or_else(|panic| HoldKeysError::Unknown(panic.to_string()))),
                () = lead.round_ended() => {}
                Ok(()) = plugins.changed() => {
                    lead.wake_all(|inbox| inbox.revisit = true);
                    // Another kind may be listed now.
                    lead.sweep_views();
                }
                () = sleep_until(due) => if Instant::now() >= resync {
                    resync = Instant::now() + self.resync;
                    lead.wake_all(|inbox| inbox.resync = true);
                    lead.sweep();
                },
            }
        }
        lead.end().await;
        self.ports.metrics.leads(false);
        tracing::info!(term = number, "the term of leadership ended");
        if ended.is_ok() && stop.is_cancelled() {
            // The next host reads them before this one is back.
            let _ = timeout(LAST_KEYS, self.ports.cluster.keep_hold_keys()).await;
        }
        ended
    }

    /// The jobs that there are when the term begins, once pods and namespaces are known; none if the term ends before.
    ///
    /// # Errors
    /// The keys of holds were changed.
    async fn first_jobs(
        &mut self,
        lead: &mut Lead,
        fence: &Fence,
        number: u64,
        stop: &CancellationToken,
    ) -> Result<Option<Vec<JobRef>>, HoldKeysError> {
        let ports = self.ports.clone();
        let ready = async {
            // Pods are not looked at before. By old keys, holds of a host with new ones would be nobody's.
            while let Err(error) = ports.cluster.keep_hold_keys().await {
                if error == HoldKeysError::Changed {
                    return Err(error);
                }
                tracing::warn!(term = number, %error, "failed to read the keys of holds; trying again");
                sleep(LIST_AGAIN).await;
            }
            // Only a plugin's own jobs wait for the kinds that it declares.
            ports.cluster.synced(&[Kind::pod(), Kind::namespace()]).await;
            while let Err(failed) = ports.cluster.adopt_holds(fence).await {
                tracing::warn!(
                    term = number,
                    error = failed.message,
                    "failed to look for holds to adopt; trying again"
                );
                sleep(LIST_AGAIN).await;
            }
            loop {
                match ports.cluster.list_jobs().await {
                    Ok(jobs) => return Ok(Some(jobs)),
                    Err(error) => tracing::warn!(term = number, error, "failed to list the jobs; trying again"),
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
                // However long that takes, changes do not pile up.
                Some(event) = self.events.recv() => lead.hear(event),
            }
        }
    }
}

/// Looks at the keys of holds again and again, and ends when they were changed.
async fn keys_changed(ports: Arc<Ports>) -> HoldKeysError {
    loop {
        sleep(KEYS_EVERY).await;
        match ports.cluster.keep_hold_keys().await {
            Ok(()) => {}
            Err(HoldKeysError::Changed) => return HoldKeysError::Changed,
            Err(error) => tracing::warn!(%error, "failed to look at the keys of holds; trying again"),
        }
    }
}
