//! Leadership: one lease, renewed on the host's monotonic clock.
//!
//! A process that finds its own identity in the lease takes it at once, so that a restart costs no lease time; others wait
//! until the lease was unchanged for its whole duration on their own clock. Wall clocks of two machines are never compared.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::core::params::{GetParams, PostParams};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::cluster::Cluster;
use crate::outcome::sentence;
use crate::transport::call::{ApiCall, RequestError, Transport};
use crate::transport::path::Resource;

/// The lease and the identity of a process that wants to lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseConfig {
    /// Namespace of the lease.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The name of this process; no two that run at once may share one.
    pub identity: String,
    /// Time for which a lease counts that is not renewed. 15 s unless there is a reason.
    pub duration: Duration,
}

impl std::fmt::Display for LeaseConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The leadership of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// It held the lease at its last read or write of it.
    pub leading: bool,
    /// The number of its latest term, from 1; 0 before the first.
    pub term: u64,
    /// The time at which it sent the last renewal that was accepted.
    pub renewed: Instant,
}

/// Says, before each request, whether one term still allows it.
#[derive(Clone, Debug)]
pub struct Fence {
    bound: Option<Bound>,
    closed: watch::Sender<bool>,
}

#[derive(Clone, Debug)]
struct Bound {
    leadership: watch::Receiver<Leadership>,
    term: u64,
    window: Duration,
}

impl Fence {
    /// A fence that is always open, for a process that alone can act.
    pub fn open() -> Self {
        Self { bound: None, closed: watch::Sender::new(false) }
    }

    /// True while this term leads and its last renewal is younger than two thirds of the lease's duration. A fence that
    /// has closed stays closed, also if a late renewal succeeds: the next term finds the writes that it stopped.
    pub fn allows(&self) -> bool {
        if *self.closed.borrow() {
            return false;
        }
        let leads = self.bound.as_ref().is_none_or(|bound| {
            let now = *bound.leadership.borrow();
            now.leading && now.term == bound.term && now.renewed.elapsed() < bound.window
        });
        if !leads {
            self.close();
        }
        leads
    }

    /// Ends the term: nothing more is sent in it.
    pub fn close(&self) {
        self.closed.send_replace(true);
    }

    /// Resolves once the fence has closed: by [`Fence::close`], by the loss of the lease, or at the end of the window of
    /// the last renewal.
    pub async fn closed(&self) {
        let mut closed = self.closed.subscribe();
        let Some(mut bound) = self.bound.clone() else {
            let _closed = closed.wait_for(|closed| *closed).await.is_ok();
            return;
        };
        while self.allows() {
            let left = bound.window.saturating_sub(bound.leadership.borrow_and_update().renewed.elapsed());
            tokio::select! {
                changed = closed.changed() => if changed.is_err() { return },
                // Where the elector is gone, nothing renews the lease any more.
                changed = bound.leadership.changed() => if changed.is_err() { self.close() },
                () = sleep(left.max(Duration::from_millis(1))) => {}
            }
        }
    }
}

/// The election of this process, from its start until it resigns.
pub struct LeaderElector {
    leadership: watch::Receiver<Leadership>,
    window: Duration,
    /// The last term that is over though the lease may still be held.
    over: watch::Sender<u64>,
    resign: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl LeaderElector {
    /// Stands for election from now on.
    pub fn stand(cluster: &Cluster, config: LeaseConfig) -> Self {
        let window = window(config.duration);
        let begun = Leadership { leading: false, term: 0, renewed: Instant::now() };
        let (sender, leadership) = watch::channel(begun);
        let (resign, resigned) = oneshot::channel();
        // A renewal that hangs must end while another one still fits into the window.
        let transport = Transport { timeout: config.duration / 3, ..cluster.link.transport.clone() };
        let holder = LeaseHolder { transport, config, leadership: sender, role: Role::Following(None) };
        let (over, ended) = watch::channel(0);
        Self { leadership, window, over, resign, task: tokio::spawn(holder.run(resigned, ended)) }
    }

    /// The leadership as it changes.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.clone()
    }

    /// The fence of the term that is now; closed for good once that term is over.
    pub fn fence(&self) -> Fence {
        let term = self.leadership.borrow().term;
        let bound = Bound { leadership: self.leadership.clone(), term, window: self.window };
        let over = *self.over.borrow() >= term;
        Fence { bound: Some(bound), closed: watch::Sender::new(over) }
    }

    /// The term of this number is over: the next one begins as soon as the lease is taken again, by this process or by
    /// another one.
    pub fn begin_anew(&self, term: u64) {
        self.over.send_replace(term);
    }

    /// Gives the lease back, so that another process need not wait. Everything that acts must have stopped.
    pub async fn resign(self) {
        let Self { resign, task, .. } = self;
        // Where the task is gone already, there is nothing to give back.
        let _gone = resign.send(()).is_err();
        let _failed = task.await.is_err();
    }
}

struct LeaseHolder {
    transport: Transport,
    config: LeaseConfig,
    leadership: watch::Sender<Leadership>,
    role: Role,
}

enum Role {
    /// The last view of the lease, and the time since which it is unchanged.
    Following(Option<Seen>),
    Leading(Box<Lease>),
}

#[derive(Clone)]
struct Seen {
    version: Option<String>,
    since: Instant,
}

impl LeaseHolder {
    async fn run(mut self, mut resigned: oneshot::Receiver<()>, mut over: watch::Receiver<u64>) {
        loop {
            let wait = tokio::select! {
                wait = self.step() => wait,
                _ = &mut resigned => break,
            };
            tokio::select! {
                () = sleep(wait) => {}
                Ok(()) = over.changed() => {}
                _ = &mut resigned => break,
            }
            let now = *self.leadership.borrow();
            if now.leading && now.term == *over.borrow_and_update() {
                self.step_down("the host ended its term");
            }
        }
        self.release().await;
    }

    /// One read or one renewal; yields the wait until the next.
    async fn step(&mut self) -> Duration {
        match &self.role {
            Role::Leading(lease) => {
                let lease = Lease::clone(lease);
                self.renew(lease).await
            }
            Role::Following(seen) => {
                let seen = seen.clone();
                self.follow(seen).await
            }
        }
    }

    /// Follows closely: a lease that was given back is taken within two seconds.
    fn poll(&self) -> Duration {
        self.config.duration / 15
    }

    async fn follow(&mut self, seen: Option<Seen>) -> Duration {
        let lease = match self.read().await {
            Ok(lease) => lease,
            Err(error) if error.is(404) => return self.take(Lease::default()).await,
            Err(error) => {
                tracing::warn!(lease = %self.config, error = %sentence(&error), "failed to read the lease");
                return self.poll();
            }
        };
        let holder = holder(&lease);
        if holder.is_empty() || holder == self.config.identity {
            return self.take(lease).await;
        }
        let version = lease.metadata.resource_version.clone();
        let since = match seen {
            Some(seen) if seen.version == version => seen.since,
            _ => Instant::now(),
        };
        let left = duration_of(&lease, self.config.duration).saturating_sub(since.elapsed());
        if left.is_zero() {
            tracing::info!(lease = %self.config, holder, "the holder did not renew the lease in time; taking it");
            return self.take(lease).await;
        }
        self.role = Role::Following(Some(Seen { version, since }));
        left.min(self.poll())
    }

    /// Begins a term with `lease`, unless another process is faster.
    async fn take(&mut self, mut lease: Lease) -> Duration {
        let now = MicroTime(self.transport.clock.now());
        let spec = lease.spec.get_or_insert_default();
        // Raised in each term, so that a process which finds its own identity can tell its own terms apart.
        spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0).saturating_add(1));
        spec.acquire_time = Some(now);
        let sent = Instant::now();
        match self.write(&mut lease).await {
            Ok(()) => {
                let term = self.leadership.borrow().term.saturating_add(1);
                tracing::info!(lease = %self.config, identity = self.config.identity, term, "took the lease; leading");
                self.role = Role::Leading(Box::new(lease));
                self.leadership.send_replace(Leadership { leading: true, term, renewed: sent });
                self.config.duration / 5
            }
            Err(error) => {
                tracing::debug!(lease = %self.config, error = %sentence(&error), "failed to take the lease");
                self.role = Role::Following(None);
                self.poll()
            }
        }
    }

    async fn renew(&mut self, mut lease: Lease) -> Duration {
        let sent = Instant::now();
        let error = match self.write(&mut lease).await {
            Ok(()) => {
                self.role = Role::Leading(Box::new(lease));
                self.leadership.send_modify(|now| now.renewed = sent);
                return self.config.duration / 5;
            }
            Err(error) => error,
        };
        tracing::warn!(lease = %self.config, error = %sentence(&error), "failed to renew the lease");
        let renewed = self.leadership.borrow().renewed;
        if renewed.elapsed() >= window(self.config.duration) {
            return self.step_down("no renewal succeeded in time");
        }
        // The outcome of an earlier renewal may be unknown: the lease names its holder.
        match self.read().await {
            Ok(now) if self.still_ours(&now, &lease) => {
                self.role = Role::Leading(Box::new(now));
                if error.is(409) { Duration::ZERO } else { self.poll() }
            }
            Ok(_) => self.step_down("another process holds it"),
            Err(error) if error.is(404) => self.step_down("the lease was deleted"),
            Err(_) => self.poll(),
        }
    }

    fn still_ours(&self, now: &Lease, ours: &Lease) -> bool {
        let transitions = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
        holder(now) == self.config.identity && transitions(now) == transitions(ours)
    }

    fn step_down(&mut self, why: &str) -> Duration {
        tracing::warn!(lease = %self.config, identity = self.config.identity, why, "lost the lease");
        self.role = Role::Following(None);
        self.leadership.send_modify(|now| now.leading = false);
        Duration::ZERO
    }

    async fn release(&mut self) {
        let Role::Leading(lease) = &self.role else { return };
        let mut lease = Lease::clone(lease);
        self.leadership.send_modify(|now| now.leading = false);
        if let Some(spec) = lease.spec.as_mut() {
            spec.holder_identity = Some(String::new());
            spec.renew_time = Some(MicroTime(self.transport.clock.now()));
        }
        if let Err(error) = self.put(&mut lease).await {
            tracing::warn!(lease = %self.config, error = %sentence(&error), "failed to give the lease back; it runs out by itself");
        }
    }

    fn home(&self) -> Result<kube::core::Request, RequestError> {
        let resource =
            Resource { api_version: "coordination.k8s.io/v1".into(), plural: "leases".into(), namespaced: true };
        let LeaseConfig { namespace, name, .. } = &self.config;
        let invalid = |error| RequestError::Build(kube::core::request::Error::Validation(sentence(&error)));
        resource.home(Some(namespace), name).map(kube::core::Request::new).map_err(invalid)
    }

    async fn read(&self) -> Result<Lease, RequestError> {
        let request = self.home()?.get(&self.config.name, &GetParams::default());
        self.transport.fetch(ApiCall { verb: "get", resource: "leases", request }).await
    }

    /// Writes the lease as held by this process from now on.
    async fn write(&self, lease: &mut Lease) -> Result<(), RequestError> {
        let spec: &mut LeaseSpec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(self.config.identity.clone());
        spec.lease_duration_seconds = Some(i32::try_from(self.config.duration.as_secs()).unwrap_or(i32::MAX).max(1));
        spec.renew_time = Some(MicroTime(self.transport.clock.now()));
        self.put(lease).await
    }

    /// Creates the lease where it has no version yet, and replaces that version otherwise.
    async fn put(&self, lease: &mut Lease) -> Result<(), RequestError> {
        let home = self.home()?;
        let params = PostParams::default();
        let LeaseConfig { namespace, name, .. } = &self.config;
        let created = lease.metadata.resource_version.is_none();
        if created {
            let meta =
                ObjectMeta { name: Some(name.clone()), namespace: Some(namespace.clone()), ..ObjectMeta::default() };
            lease.metadata = meta;
        }
        let body = serde_json::to_vec(lease).map_err(RequestError::Unreadable)?;
        let (verb, request) = match created {
            true => ("create", home.create(&params, body)),
            false => ("update", home.replace(name, &params, body)),
        };
        *lease = self.transport.fetch(ApiCall { verb, resource: "leases", request }).await?;
        Ok(())
    }
}

/// Time after a renewal in which writes may be sent.
fn window(duration: Duration) -> Duration {
    duration.saturating_mul(2) / 3
}

fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

/// The duration that the holder wrote into the lease.
fn duration_of(lease: &Lease, otherwise: Duration) -> Duration {
    let named = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
    named.and_then(|seconds| u64::try_from(seconds).ok()).map_or(otherwise, Duration::from_secs)
}
