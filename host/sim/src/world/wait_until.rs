//! Waits for a condition, with a deadline. It never polls: the condition is evaluated at the start and after each
//! burst of changes.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

/// Changes come in bursts, and a condition may cost as much as the whole cluster: a burst is judged once.
const MOMENT: Duration = Duration::from_millis(1);

/// A condition did not come to hold in time.
#[derive(Debug, thiserror::Error)]
#[error("waited {waited:?} for {what}, in vain")]
pub struct Overdue {
    /// The condition, in words.
    pub what: String,
    /// The time waited.
    pub waited: Duration,
}

/// Waits until the condition holds.
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
        // A closed signal means that nothing changes any more, which is as good as the deadline.
        match timeout_at(end, changes.changed()).await {
            Ok(Ok(())) => sleep(MOMENT).await,
            Ok(Err(_)) | Err(_) => return Err(Overdue { what: what.to_owned(), waited: deadline }),
        }
    }
}
