//! WorkPlaces for long work: so many at once, and so many of one namespace.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// WorkPlaces. Clones share them.
#[derive(Clone)]
pub(crate) struct WorkPlaces {
    all: Arc<Semaphore>,
    of_one: usize,
    namespaces: Arc<Mutex<HashMap<String, Weak<Semaphore>>>>,
}

/// A place, as long as it lives.
pub(crate) struct WorkPlace(#[expect(dead_code, reason = "held")] [Option<OwnedSemaphorePermit>; 2]);

impl WorkPlaces {
    /// So many, and of one namespace no more than that.
    pub(crate) fn new(at_once: usize, of_one: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(at_once)), of_one, namespaces: Arc::default() }
    }

    /// Waits for a place of a namespace.
    pub(crate) async fn take(&self, namespace: &str) -> WorkPlace {
        let own = self.of_namespace(namespace);
        // A semaphore that is never closed always has one in the end.
        WorkPlace([own.acquire_owned().await.ok(), self.all.clone().acquire_owned().await.ok()])
    }

    /// The places of a namespace, which are there as long as somebody wants one.
    fn of_namespace(&self, namespace: &str) -> Arc<Semaphore> {
        let mut all = self.namespaces.lock();
        all.retain(|_, places| places.strong_count() > 0);
        let known = all.get(namespace).and_then(Weak::upgrade);
        let places = known.unwrap_or_else(|| Arc::new(Semaphore::new(self.of_one)));
        all.insert(namespace.to_owned(), Arc::downgrade(&places));
        places
    }
}
