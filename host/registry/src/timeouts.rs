//! The timeouts and retries of a copy.

use std::time::Duration;

use tokio::time::sleep;

use crate::failed::CopyFailed;

/// The timeouts and retries of a copy. Tests use shorter ones.
#[derive(Clone, Debug)]
pub struct Timeouts {
    /// The longest time to connect.
    pub connect: Duration,
    /// The longest time until the head of an answer.
    pub head: Duration,
    /// The longest time without a byte in either direction.
    pub stall: Duration,
    /// The longest time to collect all signatures of a plugin.
    pub signatures: Duration,
    /// The pause after the first failed try. It doubles after each further try.
    pub pause: Duration,
    /// The longest pause between two tries. It also limits `Retry-After`.
    pub longest_pause: Duration,
    /// The most tries of one request or one blob.
    pub tries: u32,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            head: Duration::from_secs(60),
            stall: Duration::from_secs(60),
            signatures: Duration::from_secs(300),
            pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(60),
            tries: 5,
        }
    }
}

impl Timeouts {
    /// Returns the tries of one request or one blob.
    pub(crate) fn tries(&self) -> Tries<'_> {
        Tries { timeouts: self, left: self.tries.saturating_sub(1), pause: self.pause }
    }
}

/// The remaining tries.
pub(crate) struct Tries<'a> {
    timeouts: &'a Timeouts,
    left: u32,
    pause: Duration,
}

impl Tries<'_> {
    /// Waits before the next try.
    ///
    /// # Errors
    /// If no try is left, or the failure is permanent. The error is the failure of the last try.
    pub(crate) async fn after(&mut self, failed: CopyFailed) -> Result<(), CopyFailed> {
        if !failed.is_for_now() || self.left == 0 {
            return Err(failed);
        }
        sleep(failed.asked_pause().unwrap_or(self.pause).min(self.timeouts.longest_pause)).await;
        self.left = self.left.saturating_sub(1);
        self.pause = self.pause.saturating_mul(2);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::failed::Fault;

    #[tokio::test(start_paused = true)]
    async fn pauses_double_until_the_tries_are_used_up() {
        let (timeouts, began) = (Timeouts::default(), Instant::now());
        let mut tries = timeouts.tries();
        let mut count = 1;
        while tries.after(CopyFailed::for_now(Fault::Pull, "busy")).await.is_ok() {
            count += 1;
        }
        assert_eq!((count, began.elapsed().as_millis() / 100), (5, 75));
    }

    #[tokio::test(start_paused = true)]
    async fn asked_pause_is_kept_up_to_a_minute() {
        for (asked, paused) in [(0, 0), (7, 7), (86_400, 60)] {
            let (timeouts, began) = (Timeouts::default(), Instant::now());
            let failed = CopyFailed::for_now(Fault::Push, "slow down").after(Some(Duration::from_secs(asked)));
            assert!(timeouts.tries().after(failed).await.is_ok());
            assert_eq!(began.elapsed().as_secs(), paused);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_for_good_is_tried_once() {
        let timeouts = Timeouts::default();
        assert!(timeouts.tries().after(CopyFailed::for_good(Fault::Pull, "no")).await.is_err());
    }
}
