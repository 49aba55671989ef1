//! The task of a process that takes, renews and releases the lease.

mod stored;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep, timeout};

use self::stored::{duration_of, holder, this_process};
use crate::error_chain::error_chain;
use crate::lease::config::{LeaseConfig, LeaseError, NOTE, window};
use crate::lease::fence::Leadership;
use crate::lease::trouble::{LeaseTrouble, Operation};
use crate::transport::call::{RequestError, Transport};

/// The annotation of the lease that distinguishes processes with one identity.
const PROCESS: &str = "oarlock.dev/process";

/// The task that stands for election until it is told to resign.
pub(crate) struct LeaseHolder {
    transport: Transport,
    config: LeaseConfig,
    /// The text that distinguishes this process from other processes with its identity.
    process: String,
    leadership: watch::Sender<Leadership>,
    role: Role,
    trouble: LeaseTrouble,
    /// The value of the annotation [`NOTE`] while this process holds the lease. The next renewal writes a change.
    note: watch::Receiver<Option<String>>,
}

enum Role {
    /// The last observed version of the lease, and the time since which it is unchanged.
    Following(Option<ObservedLease>),
    Leading(Box<Lease>),
}

#[derive(Clone)]
struct ObservedLease {
    version: Option<String>,
    since: Instant,
}

impl LeaseHolder {
    /// Returns the task of a process that does not lead yet.
    pub(crate) fn new(
        transport: Transport,
        config: LeaseConfig,
        leadership: watch::Sender<Leadership>,
        note: watch::Receiver<Option<String>>,
    ) -> Self {
        let process = this_process(transport.clock.local());
        let trouble = LeaseTrouble::new(&config);
        Self { transport, config, process, leadership, role: Role::Following(None), trouble, note }
    }

    /// Returns the failed operation and its cause while no process is known to hold the lease, and otherwise `None`.
    pub(crate) fn unheld(&self) -> watch::Receiver<Option<String>> {
        self.trouble.unheld()
    }

    /// Follows and leads until `resigned`. The latest value of `over` is the last term that has ended. A notification of `look` renews a
    /// held lease at once.
    pub(crate) async fn run(
        mut self,
        mut resigned: oneshot::Receiver<()>,
        mut over: watch::Receiver<u64>,
        look: Arc<Notify>,
    ) -> Result<(), LeaseError> {
        loop {
            let Some(wait) = self.step_until(&mut resigned).await? else { break };
            tokio::select! {
                () = sleep(wait) => {}
                Ok(()) = over.changed() => {}
                () = look.notified() => {}
                _ = &mut resigned => break,
            }
            let now = *self.leadership.borrow();
            if now.leading && now.term == *over.borrow_and_update() {
                self.step_down("the host ended its term");
            }
        }
        self.release().await;
        Ok(())
    }

    /// Runs a step. Returns `None` once the process resigns. A request that is already sent may still change the lease, so the process
    /// waits for the reply. Without the reply, the release would fail with a conflict.
    async fn step_until(&mut self, resigned: &mut oneshot::Receiver<()>) -> Result<Option<Duration>, LeaseError> {
        let longest = self.transport.timeout;
        let step = self.step();
        tokio::pin!(step);
        tokio::select! {
            wait = &mut step => return wait.map(Some),
            _ = resigned => {}
        }
        match timeout(longest, step).await {
            Ok(Err(error)) => Err(error),
            Ok(Ok(_)) | Err(_) => Ok(None),
        }
    }

    /// Reads the lease or renews it. Returns the wait until the next step.
    async fn step(&mut self) -> Result<Duration, LeaseError> {
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

    /// Returns the time between two reads of the lease. It is short, so that a process takes a released lease within two seconds.
    fn poll(&self) -> Duration {
        self.config.duration / 15
    }

    async fn follow(&mut self, seen: Option<ObservedLease>) -> Result<Duration, LeaseError> {
        let lease = match self.read().await {
            Ok(lease) => lease,
            Err(error) if error.is(404) => return Ok(self.take(Lease::default()).await),
            Err(error) => {
                self.trouble.failed(Operation::Read, &error);
                return Ok(self.poll());
            }
        };
        self.refuse_namesake(&lease)?;
        let holder = holder(&lease);
        if holder.is_empty() || holder == self.config.identity {
            return Ok(self.take(lease).await);
        }
        let version = lease.metadata.resource_version.clone();
        let since = match seen {
            Some(seen) if seen.version == version => seen.since,
            _ => Instant::now(),
        };
        let left = duration_of(&lease, self.config.duration).saturating_sub(since.elapsed());
        if left.is_zero() {
            if !self.trouble.is_logged() {
                tracing::info!(lease = %self.config, holder, "the holder did not renew the lease in time; taking the lease");
            }
            return Ok(self.take(lease).await);
        }
        self.trouble.held_until(Instant::now() + left);
        self.role = Role::Following(Some(ObservedLease { version, since }));
        Ok(left.min(self.poll()))
    }

    /// Returns an error if a process that has led finds its own identity in the lease, written by another process. A process that has not
    /// led yet takes the lease, as it must after a restart. The other process then ends.
    fn refuse_namesake(&mut self, lease: &Lease) -> Result<(), LeaseError> {
        let other = lease.metadata.annotations.as_ref().and_then(|all| all.get(PROCESS));
        let (Some(other), true) = (other, holder(lease) == self.config.identity) else { return Ok(()) };
        if *other == self.process || self.leadership.borrow().term == 0 {
            return Ok(());
        }
        self.leadership.send_modify(|now| now.leading = false);
        Err(LeaseError::TakenByNamesake {
            lease: self.config.to_string(),
            identity: self.config.identity.clone(),
            own: self.process.clone(),
            other: other.clone(),
        })
    }

    /// Returns the time on both clocks of the host.
    fn now(&self) -> (Instant, Timestamp) {
        (Instant::now(), self.transport.clock.local())
    }

    /// Begins a term with `lease`, unless another process takes the lease first.
    async fn take(&mut self, mut lease: Lease) -> Duration {
        let now = MicroTime(self.transport.clock.now());
        let spec = lease.spec.get_or_insert_default();
        // Each term raises this number, so that a process that finds its own identity can distinguish its own terms.
        spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0).saturating_add(1));
        spec.acquire_time = Some(now);
        let (sent, sent_at) = self.now();
        match self.write(&mut lease).await {
            Ok(()) => {
                let term = self.leadership.borrow().term.saturating_add(1);
                self.trouble.held_until(sent + self.config.duration);
                tracing::info!(lease = %self.config, identity = self.config.identity, term, "took the lease; leading");
                self.role = Role::Leading(Box::new(lease));
                self.leadership.send_replace(Leadership { leading: true, term, renewed: sent, renewed_at: sent_at });
                self.config.duration / 5
            }
            Err(error) => {
                // The observation of the lease stays, because an expired lease has not begun to run again.
                self.write_failed(Operation::Take, &error);
                self.poll()
            }
        }
    }

    async fn renew(&mut self, mut lease: Lease) -> Result<Duration, LeaseError> {
        let (sent, sent_at) = self.now();
        let error = match self.write(&mut lease).await {
            Ok(()) => {
                self.role = Role::Leading(Box::new(lease));
                self.leadership.send_modify(|now| (now.renewed, now.renewed_at) = (sent, sent_at));
                self.trouble.held_until(sent + self.config.duration);
                return Ok(self.config.duration / 5);
            }
            Err(error) => error,
        };
        self.write_failed(Operation::Renew, &error);
        let renewed = self.leadership.borrow().renewed;
        if renewed.elapsed() >= window(self.config.duration) {
            return Ok(self.step_down("no renewal succeeded in time"));
        }
        // The outcome of an earlier renewal may be unknown, but the lease names its holder.
        Ok(match self.read().await {
            Ok(now) if self.still_ours(&now, &lease) => {
                self.role = Role::Leading(Box::new(now));
                if error.is(409) { Duration::ZERO } else { self.poll() }
            }
            Ok(now) => {
                self.refuse_namesake(&now)?;
                self.step_down("another process holds it")
            }
            Err(error) if error.is(404) => self.step_down("the lease was deleted"),
            Err(_) => self.poll(),
        })
    }

    fn write_failed(&mut self, operation: Operation, error: &RequestError) {
        if error.is(409) {
            self.trouble.conflicted(operation, error);
        } else {
            self.trouble.failed(operation, error);
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
        let annotations = lease.metadata.annotations.get_or_insert_default();
        annotations.remove(PROCESS);
        annotations.remove(NOTE);
        if let Some(spec) = lease.spec.as_mut() {
            spec.holder_identity = Some(String::new());
            spec.renew_time = Some(MicroTime(self.transport.clock.now()));
        }
        if let Err(error) = self.put(&mut lease).await {
            tracing::warn!(lease = %self.config, error = %error_chain(&error), "failed to release the lease; another host can take it once it expires");
        }
    }
}
