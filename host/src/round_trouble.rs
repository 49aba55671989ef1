//! The reason why a round is repeated, and the wait before.

use oarlock_core::requests::reads::ReadFailed;
use oarlock_core::requests::writes::Stopped;
use tokio::time::Duration;

/// The reason why a round is repeated.
#[derive(Debug)]
pub(crate) struct RoundTrouble {
    pub(crate) message: String,
    /// True if a newer view will arrive soon.
    pub(crate) is_old_view: bool,
    retry_after: Option<u32>,
}

impl RoundTrouble {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_old_view: false, retry_after: None }
    }

    /// Returns the reason for a cached object that is older than the stored one.
    pub(crate) fn old_view() -> Self {
        Self::of("read the object", &Stopped::Conflict)
    }

    /// Returns the reason for a failed read.
    pub(crate) fn of_read(ReadFailed { message, retry_after, .. }: ReadFailed) -> Self {
        Self { message, is_old_view: false, retry_after }
    }

    /// Returns the wait that the API server asks for.
    pub(crate) fn at_least(&self) -> Option<Duration> {
        self.retry_after.map(|seconds| Duration::from_secs(seconds.into()))
    }

    pub(crate) fn of(what: &str, stopped: &Stopped) -> Self {
        let (message, retry_after) = match stopped {
            Stopped::Refused { message } | Stopped::Forbidden { message, .. } | Stopped::Unknown { message } => {
                (message.clone(), None)
            }
            Stopped::Blocked { message, retry_after } => (message.clone(), *retry_after),
            Stopped::Throttled { retry_after } => {
                ("the API server is too busy or cannot be reached".to_owned(), *retry_after)
            }
            Stopped::Conflict => ("the view is out of date".to_owned(), None),
            Stopped::Gone => ("the object, its namespace or its kind is gone".to_owned(), None),
            Stopped::NotSent => ("it was not sent, for the view is out of date".to_owned(), None),
            Stopped::LostLease => ("this host leads no more".to_owned(), None),
        };
        let message = format!("failed to {what}: {message}");
        Self { message, is_old_view: *stopped == Stopped::Conflict, retry_after }
    }
}
