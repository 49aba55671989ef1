//! Holds one semaphore for each namespace, or for each user without a namespace.

use std::collections::HashMap;
use std::sync::Arc;

use oarlock_core::object::quota_key::QuotaKey;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

/// The semaphores of all keys. A key is forgotten while no request holds or awaits its permits.
pub(crate) struct KeyedSemaphores {
    permits: usize,
    of_keys: Mutex<HashMap<QuotaKey, Arc<Semaphore>>>,
}

impl KeyedSemaphores {
    /// Makes semaphores with this many permits each.
    pub(crate) fn of(permits: usize) -> Self {
        Self { permits, of_keys: Mutex::default() }
    }

    /// Returns the number of permits of each key.
    pub(crate) fn permits(&self) -> usize {
        self.permits
    }

    /// Returns the semaphore of a key.
    pub(crate) fn of_key(&self, key: &QuotaKey) -> Arc<Semaphore> {
        let mut of_keys = self.of_keys.lock();
        // An owned permit holds its semaphore, and so does a request that awaits a permit.
        of_keys.retain(|_, semaphore| Arc::strong_count(semaphore) > 1);
        of_keys.entry(key.clone()).or_insert_with(|| Arc::new(Semaphore::new(self.permits))).clone()
    }

    #[cfg(test)]
    pub(crate) fn known(&self) -> usize {
        self.of_keys.lock().len()
    }
}
