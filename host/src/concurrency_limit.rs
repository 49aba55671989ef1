//! Limits how many long tasks run at once, overall and per owner. An owner is a namespace or the requester of an
//! OpsJob.
//!
//! The last free slot is reserved for an owner without a slot, so that no owner blocks all others.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures::FutureExt as _;
use oarlock_core::object::quota_key::QuotaKey;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The slots for long tasks. Clones share one limit.
#[derive(Clone)]
pub(crate) struct ConcurrencyLimit(Arc<Shared>);

struct Shared {
    places: Mutex<SlotState>,
    changed: Notify,
}

/// The owners with slots, and the waiting owners.
struct SlotState {
    most: usize,
    of_one: usize,
    taken: HashMap<QuotaKey, usize>,
    /// The waiting owners, in the order of their arrival.
    waiting: BTreeMap<u64, QuotaKey>,
    next: u64,
}

impl SlotState {
    fn may_begin(&self, owner: &QuotaKey) -> bool {
        let all: usize = self.taken.values().sum();
        let own = self.taken.get(owner).copied().unwrap_or(0);
        // If there is only one slot, every owner may have it.
        let is_last = self.most > 1 && all.saturating_add(1) == self.most;
        all < self.most && own < self.of_one && (own == 0 || !is_last)
    }

    fn wait(&mut self, owner: &QuotaKey) -> u64 {
        self.next = self.next.saturating_add(1);
        self.waiting.insert(self.next, owner.clone());
        self.next
    }

    /// Takes a slot. Returns false if there is none, or if an earlier owner may have it.
    fn take(&mut self, ticket: u64) -> bool {
        let first = self.waiting.iter().find(|(_, owner)| self.may_begin(owner));
        let Some(owner) = first.filter(|(number, _)| **number == ticket).map(|(_, owner)| owner.clone()) else {
            return false;
        };
        self.waiting.remove(&ticket);
        let own = self.taken.entry(owner).or_default();
        *own = own.saturating_add(1);
        true
    }

    fn give_back(&mut self, owner: &QuotaKey) {
        if let Some(own) = self.taken.get_mut(owner) {
            *own = own.saturating_sub(1);
        }
        self.taken.retain(|_, count| *count > 0);
    }
}

/// A slot until it is dropped, or the place in the queue for one.
pub(crate) struct ConcurrencySlot {
    of: Arc<Shared>,
    owner: QuotaKey,
    ticket: u64,
    is_taken: bool,
}

impl Drop for ConcurrencySlot {
    fn drop(&mut self) {
        let mut places = self.of.places.lock();
        match self.is_taken {
            true => places.give_back(&self.owner),
            false => drop(places.waiting.remove(&self.ticket)),
        }
        drop(places);
        self.of.changed.notify_waiters();
    }
}

impl ConcurrencyLimit {
    /// Makes a limit of `most` slots, of which one owner gets at most `of_one`.
    pub(crate) fn new(most: usize, of_one: usize) -> Self {
        let (taken, waiting) = Default::default();
        let places = Mutex::new(SlotState { most, of_one, taken, waiting, next: 0 });
        Self(Arc::new(Shared { places, changed: Notify::new() }))
    }

    /// Waits for a slot. Calls `tell` first if there is none now.
    pub(crate) async fn take_or_report(&self, owner: &QuotaKey, tell: impl FnOnce()) -> ConcurrencySlot {
        let mut taking = std::pin::pin!(self.take(owner));
        if let Some(place) = taking.as_mut().now_or_never() {
            return place;
        }
        tell();
        taking.await
    }

    /// Waits for a slot.
    pub(crate) async fn take(&self, owner: &QuotaKey) -> ConcurrencySlot {
        let ticket = self.0.places.lock().wait(owner);
        let mut place = ConcurrencySlot { of: self.0.clone(), owner: owner.clone(), ticket, is_taken: false };
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            // From here on, the task misses no change.
            changed.as_mut().enable();
            if self.0.places.lock().take(ticket) {
                place.is_taken = true;
                // The next owner in the queue may start too.
                self.0.changed.notify_waiters();
                return place;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn owner(name: &str) -> QuotaKey {
        QuotaKey::User(name.to_owned())
    }

    #[tokio::test]
    async fn the_last_place_is_for_who_has_none() {
        let places = ConcurrencyLimit::new(4, 3);
        let held: Vec<_> =
            [places.take(&owner("a")).await, places.take(&owner("a")).await, places.take(&owner("a")).await].into();
        assert!(places.take(&owner("a")).now_or_never().is_none());
        let other = places.take(&owner("b")).await;
        assert!(places.take(&owner("c")).now_or_never().is_none(), "there is no other one");
        drop(held);
        let again = [places.take(&owner("b")).await, places.take(&owner("a")).await];
        assert!(places.take(&owner("b")).now_or_never().is_none(), "it has two");
        let _last = places.take(&owner("c")).await;
        drop((other, again));
    }

    #[tokio::test]
    async fn places_go_round_and_who_stops_waiting_is_in_nobodys_way() {
        let places = ConcurrencyLimit::new(1, 1);
        let (a, b) = (owner("a"), owner("b"));
        let first = places.take(&a).await;
        let mut second = Box::pin(places.take(&a));
        let mut third = Box::pin(places.take(&b));
        assert!(second.as_mut().now_or_never().is_none() && third.as_mut().now_or_never().is_none());
        drop(first);
        assert!(third.as_mut().now_or_never().is_none(), "the second one came before");
        drop(second);
        let third = third.await;
        drop(third);
        assert!(places.take(&a).now_or_never().is_some());
        assert!(places.0.places.lock().waiting.is_empty() && places.0.places.lock().taken.is_empty());
    }
}
