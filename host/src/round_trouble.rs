//! Why a round is made again, and when.

use oarlock_core::cluster::writes::Stopped;
use oarlock_kube::ReadFailed;
use tokio::time::Duration;

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

    /// What is seen is not what is stored any more.
    pub(crate) fn old_view() -> Self {
        Self::of("read the object", &Stopped::Conflict)
    }

    /// A read that failed.
    pub(crate) fn of_read(ReadFailed { message, retry_after, .. }: ReadFailed) -> Self {
        Self { message, is_old_view: false, retry_after }
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
            Stopped::Gone => ("the object, its namespace or its kind is gone".to_owned(), None),
            Stopped::NotSent => ("it was not sent, for the view is out of date".to_owned(), None),
            Stopped::LostLease => ("this host leads no more".to_owned(), None),
        };
        let message = format!("failed to {what}: {message}");
        Self { message, is_old_view: *stopped == Stopped::Conflict, retry_after }
    }
}
