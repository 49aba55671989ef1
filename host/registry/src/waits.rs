//! How long a copy waits, and how often it tries.

use std::time::Duration;

use tokio::time::sleep;

use crate::failed::CopyFailed;

/// Times and tries of a copy. Tests have shorter ones.
#[derive(Clone, Debug)]
pub struct Waits {
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

impl Default for Waits {
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

impl Waits {
    /// Tries until it is done, fails for good, or was tried often enough.
    pub(crate) async fn patiently<T>(&self, attempt: impl AsyncFn() -> Result<T, CopyFailed>) -> Result<T, CopyFailed> {
        let mut pause = self.pause;
        for _ in 1..self.tries {
            match attempt().await {
                Err(failed) if failed.is_for_now() => {
                    sleep(failed.asked_pause().unwrap_or(pause).min(self.longest_pause)).await;
                    pause = pause.saturating_mul(2);
                }
                ended => return ended,
            }
        }
        attempt().await
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::Instant;

    use super::*;
    use crate::failed::Why;

    #[tokio::test(start_paused = true)]
    async fn pauses_double_until_the_tries_are_used_up() {
        let (tries, began) = (Cell::new(0), Instant::now());
        let ended: Result<(), _> = Waits::default()
            .patiently(async || {
                tries.set(tries.get() + 1);
                Err(CopyFailed::for_now(Why::Pull, "busy"))
            })
            .await;
        assert!(ended.unwrap_err().is_for_now());
        assert_eq!((tries.get(), began.elapsed().as_millis() / 100), (5, 75));
    }

    #[tokio::test(start_paused = true)]
    async fn asked_pause_is_kept_up_to_a_minute() {
        for (asked, paused) in [(0, 0), (7, 7), (86_400, 60)] {
            let (tries, began) = (Cell::new(0), Instant::now());
            let ended = Waits::default()
                .patiently(async || {
                    tries.set(tries.get() + 1);
                    if tries.get() > 1 {
                        return Ok(());
                    }
                    Err(CopyFailed::for_now(Why::Push, "slow down").after(Some(Duration::from_secs(asked))))
                })
                .await;
            assert!(ended.is_ok());
            assert_eq!(began.elapsed().as_secs(), paused);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_for_good_is_tried_once() {
        let tries = Cell::new(0);
        let ended: Result<(), _> = Waits::default()
            .patiently(async || {
                tries.set(tries.get() + 1);
                Err(CopyFailed::for_good(Why::Pull, "no"))
            })
            .await;
        assert!(ended.is_err());
        assert_eq!(tries.get(), 1);
    }
}
