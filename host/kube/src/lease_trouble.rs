//! Whether it is known who holds the lease, and what stands in the way of that: for `/readyz` and for the log.

use tokio::sync::watch;
use tokio::time::Instant;

use crate::lease::LeaseConfig;
use crate::outcome::sentence;
use crate::transport::call::RequestError;

/// A request for the lease that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Reading it, to see who holds it.
    Read,
    /// Creating it, or taking it over.
    Take,
    /// Renewing it.
    Renew,
}

impl Operation {
    fn words(self) -> &'static str {
        match self {
            Self::Read => "read the lease",
            Self::Take => "take the lease",
            Self::Renew => "renew the lease",
        }
    }

    /// What follows from its failure, and what may help.
    fn advice(self) -> &'static str {
        match self {
            Self::Read => "; no job goes on while that lasts",
            Self::Take => {
                "; no job goes on while that lasts: does the namespace exist, and does the host's role allow it (see `oarlock manifests`)?"
            }
            Self::Renew => "",
        }
    }
}

/// The trouble with the lease, from the first request that failed until a holder is known again.
pub(crate) struct LeaseTrouble {
    /// Namespace and name of the lease.
    lease: String,
    /// The end of the time for which the last known holder has it; `None` before the first.
    known_until: Option<Instant>,
    /// The time at which the trouble began; it was logged then.
    began: Option<Instant>,
    unheld: watch::Sender<Option<String>>,
}

impl LeaseTrouble {
    /// No request was sent yet.
    pub(crate) fn new(config: &LeaseConfig) -> Self {
        let unheld = watch::Sender::new(Some("the lease was not read yet".to_owned()));
        Self { lease: config.to_string(), known_until: None, began: None, unheld }
    }

    /// The operation that failed and its cause, while no process is known to hold the lease; else `None`.
    pub(crate) fn unheld(&self) -> watch::Receiver<Option<String>> {
        self.unheld.subscribe()
    }

    /// This process wrote the lease, or another one holds it; either has it until then. A mere read shows neither that it can
    /// be written nor that somebody holds it, so it ends no trouble.
    pub(crate) fn held_until(&mut self, end: Instant) {
        self.known_until = Some(end);
        self.unheld.send_if_modified(|known| known.take().is_some());
        if let Some(began) = self.began.take() {
            let seconds = began.elapsed().as_secs();
            tracing::info!(lease = self.lease, seconds, "the trouble with the lease is over");
        }
    }

    /// The trouble was logged and is not over.
    pub(crate) fn is_logged(&self) -> bool {
        self.began.is_some()
    }

    /// A request failed. That is logged where it begins the trouble.
    pub(crate) fn failed(&mut self, operation: Operation, error: &RequestError) {
        self.explain(operation, error);
        if self.began.is_none() {
            self.began = Some(Instant::now());
            let (words, advice) = (operation.words(), operation.advice());
            tracing::warn!(lease = self.lease, error = sentence(error), "failed to {words}{advice}");
        }
    }

    /// A request failed since another process was faster or the view was old, which a lease has to live with.
    pub(crate) fn conflicted(&mut self, operation: Operation, error: &RequestError) {
        self.explain(operation, error);
    }

    fn explain(&self, operation: Operation, error: &RequestError) {
        if self.known_until.is_none_or(|end| Instant::now() >= end) {
            let why = format!("failed to {}: {}", operation.words(), sentence(error));
            self.unheld.send_if_modified(|known| known.replace(why.clone()) != Some(why));
        }
    }
}
