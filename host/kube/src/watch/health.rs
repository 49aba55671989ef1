//! The state of each watch: listed, served, failing, and how old its last reply is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oarlock_core::cluster::object::Kind;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::watch::watches::WatchedKind;

/// The state of one kind's watch.
#[derive(Clone, Debug, PartialEq)]
pub struct KindHealth {
    /// The kind.
    pub kind: Kind,
    /// What it keeps of the objects. While a wider declaration is being listed, the kind has two watches.
    pub declared: WatchedKind,
    /// It was listed with these fields.
    pub synced: bool,
    /// The API server serves it.
    pub served: bool,
    /// The API server knows it, and it could not be listed yet: nothing is known of its objects, though it may have counted
    /// as not served, and so as synced, before.
    pub unread: bool,
    /// The last list was refused: this account may not list it.
    pub refused: bool,
    /// Time since the last reply or frame of the watch.
    pub heard: Option<Duration>,
    /// Time since the last list.
    pub listed: Option<Duration>,
    /// The number of lists that succeeded.
    pub lists: u64,
    /// The last failure, unless a reply or frame came after it.
    pub error: Option<String>,
}

/// The state of one kind's watch, as the watch itself notes it.
#[derive(Clone)]
pub(crate) struct WatchHealth {
    synced: Arc<AtomicBool>,
    last: Arc<Mutex<LastSeen>>,
    /// Rises with each change that others wait for.
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct LastSeen {
    unserved: bool,
    unread: bool,
    refused: bool,
    heard: Option<Instant>,
    listed: Option<Instant>,
    lists: u64,
    error: Option<String>,
    /// The time at which the outage began that was logged and is not over.
    outage: Option<Instant>,
}

impl WatchHealth {
    pub(crate) fn new(changes: watch::Sender<u64>) -> Self {
        Self { synced: Arc::default(), last: Arc::default(), changes }
    }

    fn raise(&self) {
        self.changes.send_modify(|number| *number = number.wrapping_add(1));
    }

    pub(crate) fn listed(&self) {
        let now = Instant::now();
        let mut last = self.last.lock();
        let lists = last.lists.saturating_add(1);
        let outage = last.outage;
        *last = LastSeen {
            unserved: false,
            unread: false,
            refused: false,
            heard: Some(now),
            listed: Some(now),
            lists,
            error: None,
            outage,
        };
        drop(last);
        self.synced.store(true, Ordering::Release);
        self.raise();
    }

    /// The watch was answered, or had an event. Yields the length of the outage that ends with it: a list alone ends none,
    /// since a kind may be listed and not watched.
    #[must_use]
    pub(crate) fn heard(&self) -> Option<Duration> {
        let mut last = self.last.lock();
        last.heard = Some(Instant::now());
        last.error = None;
        last.outage.take().map(|began| began.elapsed())
    }

    /// Requests fail. Returns `true` where the outage begins with this one.
    #[must_use]
    pub(crate) fn begin_outage(&self) -> bool {
        let mut last = self.last.lock();
        let begins = last.outage.is_none();
        last.outage.get_or_insert_with(Instant::now);
        begins
    }

    pub(crate) fn failed(&self, message: String) {
        self.last.lock().error = Some(message);
        if !self.synced.load(Ordering::Acquire) {
            self.raise();
        }
    }

    /// The kind is served, and a list of it failed, or was `refused` for want of a right.
    pub(crate) fn unlisted(&self, refused: bool) {
        let mut last = self.last.lock();
        (last.unread, last.refused) = (last.listed.is_none(), refused);
    }

    /// The kind is not served. It counts as synced: it has no objects.
    pub(crate) fn unserved(&self) {
        let mut last = self.last.lock();
        (last.unserved, last.unread, last.refused) = (true, false, false);
        drop(last);
        self.synced.store(true, Ordering::Release);
        self.raise();
    }

    /// The kind was listed, or is not served.
    pub(crate) fn is_synced(&self) -> bool {
        self.synced.load(Ordering::Acquire)
    }

    pub(crate) fn of(&self, kind: &Kind, declared: WatchedKind) -> KindHealth {
        let last = self.last.lock();
        KindHealth {
            kind: kind.clone(),
            declared,
            synced: self.synced.load(Ordering::Acquire),
            served: !last.unserved,
            unread: last.unread,
            refused: last.refused,
            heard: last.heard.map(|at| at.elapsed()),
            listed: last.listed.map(|at| at.elapsed()),
            lists: last.lists,
            error: last.error.clone(),
        }
    }
}
