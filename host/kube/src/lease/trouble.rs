//! Failures to find or become the holder of the lease, for `/readyz` and for the log.

use tokio::sync::watch;
use tokio::time::Instant;

use crate::error_chain::error_chain;
use crate::lease::config::LeaseConfig;
use crate::transport::call::RequestError;

/// A request for the lease, which can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// A read of the lease, to see which process holds it.
    Read,
    /// A write that creates the lease or takes it over.
    Take,
    /// A renewal of the lease.
    Renew,
}

impl Operation {
    fn describe(self) -> &'static str {
        match self {
            Self::Read => "read the lease",
            Self::Take => "take the lease",
            Self::Renew => "renew the lease",
        }
    }

    /// Returns the consequence of a failure of this operation, and a remedy.
    fn advice(self) -> &'static str {
        match self {
            Self::Read => "; all jobs wait until then",
            Self::Take => {
                "; all jobs wait until then: does the namespace exist, and does the host's role allow it (see `oarlock manifests`)?"
            }
            Self::Renew => "",
        }
    }
}

/// The trouble with the lease, from the first failed request until a holder is known again.
pub(crate) struct LeaseTrouble {
    /// The namespace and name of the lease.
    lease: String,
    /// The end of the time for which the last known holder has the lease. It is `None` before the first holder.
    known_until: Option<Instant>,
    /// The time at which the trouble began and was logged.
    began: Option<Instant>,
    unheld: watch::Sender<Option<String>>,
}

impl LeaseTrouble {
    /// Returns the state before the first request.
    pub(crate) fn new(config: &LeaseConfig) -> Self {
        let unheld = watch::Sender::new(Some("the lease was not read yet".to_owned()));
        Self { lease: config.to_string(), known_until: None, began: None, unheld }
    }

    /// Returns the failed operation and its cause while no process is known to hold the lease, and otherwise `None`.
    pub(crate) fn unheld(&self) -> watch::Receiver<Option<String>> {
        self.unheld.subscribe()
    }

    /// Records that a process holds the lease until this time: this process wrote the lease, or another process holds it. A mere read ends
    /// no trouble, because it shows neither a holder nor that the lease is writable.
    pub(crate) fn held_until(&mut self, end: Instant) {
        self.known_until = Some(end);
        self.unheld.send_if_modified(|known| known.take().is_some());
        if let Some(began) = self.began.take() {
            let seconds = began.elapsed().as_secs();
            tracing::info!(lease = self.lease, seconds, "requests for the lease succeed again");
        }
    }

    /// Returns true if the trouble was logged and is not over.
    pub(crate) fn is_logged(&self) -> bool {
        self.began.is_some()
    }

    /// Records a failed request, and logs it if it begins the trouble.
    pub(crate) fn failed(&mut self, operation: Operation, error: &RequestError) {
        self.explain(operation, error);
        if self.began.is_none() {
            self.began = Some(Instant::now());
            let (operation, advice) = (operation.describe(), operation.advice());
            tracing::warn!(lease = self.lease, error = error_chain(error), "failed to {operation}{advice}");
        }
    }

    /// Records a request that failed because another process was faster or the observed lease was stale. Such conflicts are normal.
    pub(crate) fn conflicted(&mut self, operation: Operation, error: &RequestError) {
        self.explain(operation, error);
    }

    fn explain(&self, operation: Operation, error: &RequestError) {
        if self.known_until.is_none_or(|end| Instant::now() >= end) {
            let why = format!("failed to {}: {}", operation.describe(), error_chain(error));
            self.unheld.send_if_modified(|known| known.replace(why.clone()) != Some(why));
        }
    }
}
