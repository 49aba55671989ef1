//! Waits for a condition with a deadline. It does not poll: it evaluates the condition at the start and after each
//! burst of changes.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

/// The length of a burst of changes. A condition can read the whole cluster, so it is evaluated once per burst.
const MOMENT: Duration = Duration::from_millis(1);

/// The error of a condition that did not hold in time.
#[derive(Debug, thiserror::Error)]
#[error("waited {waited:?} for {what}, in vain")]
pub struct Overdue {
    /// Description of the condition.
    pub what: String,
    /// The time that was waited.
    pub waited: Duration,
}

/// Waits until the condition holds or the deadline passes.
pub(crate) async fn wait_until<T>(
    what: &str,
    deadline: Duration,
    mut changes: watch::Receiver<T>,
    mut condition: impl FnMut() -> bool,
) -> Result<(), Overdue> {
    let end = Instant::now() + deadline;
    loop {
        changes.mark_unchanged();
        if condition() {
            return Ok(());
        }
        // A closed channel means that nothing changes any more, so the deadline need not be waited for.
        match timeout_at(end, changes.changed()).await {
            Ok(Ok(())) => sleep(MOMENT).await,
            Ok(Err(_)) | Err(_) => return Err(Overdue { what: what.to_owned(), waited: deadline }),
        }
    }
}
