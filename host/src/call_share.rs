//! Limits the concurrent calls of one plugin, so that a slow plugin does not take the host's threads from other jobs.
//!
//! Without this limit, jobs of a plugin that computes for seconds take every thread, and the lease is not renewed.
//! The calls of one plugin use at most half of the host's threads, at least one. After a long call, a slot stays taken
//! for as long as the call took.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};

/// The total duration of a round's calls below which they free their slot at once.
const SHORT: Duration = Duration::from_millis(20);

/// The call slots of all plugins, by plugin name.
#[derive(Debug, Default)]
pub(crate) struct PluginCallLimits {
    plugins: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// A call slot of one plugin. Dropping it frees the slot, after a rest if the call was long.
#[derive(Debug)]
pub(crate) struct CallSlot {
    began: Instant,
    place: Option<OwnedSemaphorePermit>,
}

impl PluginCallLimits {
    /// Waits for a free call slot of a plugin.
    pub(crate) async fn call_slot(&self, plugin: &str) -> CallSlot {
        let places = self.places(plugin);
        // Nothing closes the semaphore, so this cannot fail.
        let place = places.acquire_owned().await.ok();
        CallSlot { began: Instant::now(), place }
    }

    fn places(&self, plugin: &str) -> Arc<Semaphore> {
        let mut plugins = self.plugins.lock();
        if let Some(places) = plugins.get(plugin) {
            return places.clone();
        }
        // Removes plugins without a call, so that the map does not grow with the names of removed plugins.
        plugins.retain(|_, places| Arc::strong_count(places) > 1);
        let half = tokio::runtime::Handle::current().metrics().num_workers() / 2;
        plugins.entry(plugin.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(half.max(1)))).clone()
    }
}

impl Drop for CallSlot {
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
        let shares = PluginCallLimits::default();
        let begun = Instant::now();
        for _ in 0..3 {
            let call_slot = shares.call_slot("slow").await;
            sleep(Duration::from_millis(100)).await;
            drop(call_slot);
            drop(shares.call_slot("other").await);
        }
        assert_eq!(begun.elapsed(), Duration::from_millis(500), "of the third it did not wait for the rest");
    }

    #[tokio::test(start_paused = true)]
    async fn short_calls_need_no_rest() {
        let shares = PluginCallLimits::default();
        let begun = Instant::now();
        for _ in 0..100 {
            let call_slot = shares.call_slot("fast").await;
            sleep(Duration::from_millis(1)).await;
            drop(call_slot);
        }
        assert_eq!(begun.elapsed(), Duration::from_millis(100));
    }

    #[tokio::test(start_paused = true)]
    async fn plugins_that_are_gone_are_forgotten() {
        let shares = PluginCallLimits::default();
        for number in 0..100 {
            drop(shares.call_slot(&number.to_string()).await);
        }
        assert_eq!(shares.plugins.lock().len(), 1);
    }
}
