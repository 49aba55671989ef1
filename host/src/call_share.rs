//! How much of the machine the calls of one plugin may use, so that one which computes for long takes it from no other job.
//!
//! Takes the name of a plugin; yields a turn. Calls of one plugin run in half of the host's threads, at least one; who has
//! computed for long rests as long before the next one has its turn.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};

/// Calls that take less in all need no rest.
const SHORT: Duration = Duration::from_millis(20);

/// The turns of all plugins, by name.
#[derive(Debug, Default)]
pub(crate) struct CallShares {
    plugins: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// A turn of a plugin: it lasts until it is dropped, and a rest after it.
#[derive(Debug)]
pub(crate) struct Turn {
    began: Instant,
    place: Option<OwnedSemaphorePermit>,
}

impl CallShares {
    /// Waits for a turn of a plugin.
    pub(crate) async fn turn(&self, plugin: &str) -> Turn {
        let places = self.places(plugin);
        // It is closed by nobody.
        let place = places.acquire_owned().await.ok();
        Turn { began: Instant::now(), place }
    }

    fn places(&self, plugin: &str) -> Arc<Semaphore> {
        let mut plugins = self.plugins.lock();
        if let Some(places) = plugins.get(plugin) {
            return places.clone();
        }
        // Names of plugins that are gone: nobody has a turn of them.
        plugins.retain(|_, places| Arc::strong_count(places) > 1);
        let half = tokio::runtime::Handle::current().metrics().num_workers() / 2;
        plugins.entry(plugin.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(half.max(1)))).clone()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        if took < SHORT {
            return;
        }
        let place = self.place.take();
        tokio::spawn(async move {
            sleep(took).await;
            drop(place);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_computes_for_long_rests_as_long_and_keeps_nobody_else_waiting() {
        let shares = CallShares::default();
        let begun = Instant::now();
        for _ in 0..3 {
            let turn = shares.turn("slow").await;
            sleep(Duration::from_millis(100)).await;
            drop(turn);
            drop(shares.turn("other").await);
        }
        assert_eq!(begun.elapsed(), Duration::from_millis(500), "of the third it did not wait for the rest");
    }

    #[tokio::test(start_paused = true)]
    async fn short_calls_need_no_rest() {
        let shares = CallShares::default();
        let begun = Instant::now();
        for _ in 0..100 {
            let turn = shares.turn("fast").await;
            sleep(Duration::from_millis(1)).await;
            drop(turn);
        }
        assert_eq!(begun.elapsed(), Duration::from_millis(100));
    }

    #[tokio::test(start_paused = true)]
    async fn plugins_that_are_gone_are_forgotten() {
        let shares = CallShares::default();
        for number in 0..100 {
            drop(shares.turn(&number.to_string()).await);
        }
        assert_eq!(shares.plugins.lock().len(), 1);
    }
}
