//! How long a copy waits, and how often it tries.

use std::time::Duration;

use tokio::time::sleep;

use crate::failed::CopyFailed;

/// Times and tries of a copy. Tests have shorter ones.
#[derive(Clone, Debug)]
pub struct Patience {
    /// Most time until there is a connection.
    pub connect: Duration,
    /// Most time until the head of an answer is there.
    pub head: Duration,
    /// Most time without a byte, in either direction.
    pub stall: Duration,
    /// The pause after the first try. It doubles with each.
    pub pause: Duration,
    /// Longest pause that a registry may ask for with `Retry-After`.
    pub longest_pause: Duration,
    /// Most tries of one request, or of one blob.
    pub tries: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            head: Duration::from_secs(60),
            stall: Duration::from_secs(60),
            pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(60),
            tries: 5,
        }
    }
}

impl Patience {
    /// The tries of one request, or of one blob.
    pub(crate) fn tries(&self) -> Tries<'_> {
        Tries { patience: self, left: self.tries.saturating_sub(1), pause: self.pause }
    }
}

/// The tries that are left.
pub(crate) struct Tries<'a> {
    patience: &'a Patience,
    left: u32,
    pause: Duration,
}

impl Tries<'_> {
    /// Waits after a try that failed, if another one is worth it.
    ///
    /// # Errors
    /// What the try failed with, if none is left or it failed for good.
    pub(crate) async fn after(&mut self, failed: CopyFailed) -> Result<(), CopyFailed> {
        if !failed.is_for_now() || self.left == 0 {
            return Err(failed);
        }
        sleep(failed.asked_pause().unwrap_or(self.pause).min(self.patience.longest_pause)).await;
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
        let (patience, began) = (Patience::default(), Instant::now());
        let mut tries = patience.tries();
        let mut count = 1;
        while tries.after(CopyFailed::for_now(Fault::Pull, "busy")).await.is_ok() {
            count += 1;
        }
        assert_eq!((count, began.elapsed().as_millis() / 100), (5, 75));
    }

    #[tokio::test(start_paused = true)]
    async fn asked_pause_is_kept_up_to_a_minute() {
        for (asked, paused) in [(0, 0), (7, 7), (86_400, 60)] {
            let (patience, began) = (Patience::default(), Instant::now());
            let failed = CopyFailed::for_now(Fault::Push, "slow down").after(Some(Duration::from_secs(asked)));
            assert!(patience.tries().after(failed).await.is_ok());
            assert_eq!(began.elapsed().as_secs(), paused);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_for_good_is_tried_once() {
        let patience = Patience::default();
        assert!(patience.tries().after(CopyFailed::for_good(Fault::Pull, "no")).await.is_err());
    }
}
