//! The state of each watch: whether the kind is listed and served, the last failure, and the age of the last reply.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oarlock_core::object::api_object::Kind;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::watch::objects::WatchedKind;

/// The state of the watch of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct KindHealth {
    /// The kind.
    pub kind: Kind,
    /// The declaration of the fields that the watch keeps. The kind has two watches while the host lists a wider declaration.
    pub declared: WatchedKind,
    /// True if the kind was listed with these fields.
    pub synced: bool,
    /// True if the API server serves the kind.
    pub served: bool,
    /// True if the API server serves the kind but the host could not list it yet. The objects of the kind are unknown, although it may have
    /// counted as not served, and so as synced, before.
    pub unread: bool,
    /// True if the API server refused the last list, because this account may not list the kind.
    pub refused: bool,
    /// The time since the last reply or frame of the watch.
    pub replied: Option<Duration>,
    /// The time since the last list.
    pub listed: Option<Duration>,
    /// The number of successful lists.
    pub lists: u64,
    /// The last failure, unless a reply or frame came after it.
    pub error: Option<String>,
}

/// The state of the watch of one kind, as the watch records it.
#[derive(Clone)]
pub(crate) struct WatchHealth {
    synced: Arc<AtomicBool>,
    last: Arc<Mutex<LastSeen>>,
    /// A counter that rises with each change that other tasks wait for.
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct LastSeen {
    unserved: bool,
    unread: bool,
    refused: bool,
    replied: Option<Instant>,
    listed: Option<Instant>,
    lists: u64,
    error: Option<String>,
    /// The start of an outage that was logged and is not over.
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
            replied: Some(now),
            listed: Some(now),
            lists,
            error: None,
            outage,
        };
        drop(last);
        self.synced.store(true, Ordering::Release);
        self.raise();
    }

    /// Records that the watch had a reply or an event. Returns the length of the outage that this ends. A list alone ends no outage,
    /// because the list of a kind may succeed while its watch fails.
    #[must_use]
    pub(crate) fn replied(&self) -> Option<Duration> {
        let mut last = self.last.lock();
        last.replied = Some(Instant::now());
        last.error = None;
        last.outage.take().map(|began| began.elapsed())
    }

    /// Records failed requests. Returns true if the outage begins now.
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

    /// Records that the API server serves the kind but its list failed. `refused` is true if this account may not list the kind.
    pub(crate) fn unlisted(&self, refused: bool) {
        let mut last = self.last.lock();
        (last.unread, last.refused) = (last.listed.is_none(), refused);
    }

    /// Records that the API server does not serve the kind. The kind counts as synced, because it has no objects.
    pub(crate) fn unserved(&self) {
        let mut last = self.last.lock();
        (last.unserved, last.unread, last.refused) = (true, false, false);
        drop(last);
        self.synced.store(true, Ordering::Release);
        self.raise();
    }

    /// Returns true if the kind was listed or is not served.
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
            replied: last.replied.map(|at| at.elapsed()),
            listed: last.listed.map(|at| at.elapsed()),
            lists: last.lists,
            error: last.error.clone(),
        }
    }
}
