//! The share of each owner of writes in the slots of the limiter: at most three quarters of the slots that the others leave. The share
//! shrinks while replies do not come, or while a webhook of the owner answers that it is busy.
//!
//! A webhook that hangs in one namespace slows down only that namespace. Slow replies do not shrink the share, because fewer requests would
//! not make a slow API server or webhook faster.

use std::collections::HashMap;
use std::time::Duration;

use oarlock_core::object::api_object::ObjectKey;
use oarlock_core::object::key::JobKey;
use tokio::time::Instant;

use crate::transport::call::REQUEST_TIMEOUT;
use crate::transport::limiter::{Busy, SETTLING, whole};

/// The most slots of one owner. Source: docs/operationjob.md 3.15.3.
const MOST_OF_ONE: usize = 24;
/// The number of slots that an owner may have for each free slot.
const FOR_EACH_FREE: usize = 3;
/// The time without writes after which the limiter forgets an owner and its limit.
const REMEMBERED: Duration = Duration::from_secs(600);

/// The owner whose share a write uses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WriteOwner {
    /// The users of a namespace.
    Namespace(String),
    /// The requester of an OpsJob, by the key of its quota. OpsJobs are cluster-scoped.
    Requester(String),
    /// The host, for writes to cluster-scoped objects that belong to no existing job.
    Host,
}

impl WriteOwner {
    /// Returns the owner of the writes for a job.
    pub(crate) fn of_job(job: &JobKey) -> Self {
        Self::Namespace(job.namespace.clone())
    }

    /// Returns the owner of a write that belongs to no particular job.
    pub(crate) fn of_object(object: &ObjectKey) -> Self {
        object.namespace.clone().map_or(Self::Host, Self::Namespace)
    }
}

/// The shares of the owners of writes in flight.
pub(crate) struct Shares {
    owners: HashMap<WriteOwner, Share>,
    /// The time at which forgotten owners were last removed.
    swept: Instant,
}

impl Default for Shares {
    fn default() -> Self {
        Self { owners: HashMap::new(), swept: Instant::now() }
    }
}

struct Share {
    in_flight: usize,
    limit: f64,
    lowered: Option<Instant>,
    /// The time at which the last request of the owner ended.
    replied: Option<Instant>,
}

impl Default for Share {
    fn default() -> Self {
        Self { in_flight: 0, limit: MOST_OF_ONE as f64, lowered: None, replied: None }
    }
}

impl Shares {
    /// Returns true if one more write of the owner may be sent while this number of slots is free.
    pub(crate) fn has_room(&self, owner: &WriteOwner, free: usize) -> bool {
        let (in_flight, limit) =
            self.owners.get(owner).map_or((0, MOST_OF_ONE), |share| (share.in_flight, whole(share.limit)));
        in_flight < limit.min(free.saturating_mul(FOR_EACH_FREE))
    }

    /// Records that a write of the owner is in flight.
    pub(crate) fn enter(&mut self, owner: &WriteOwner) {
        let share = self.owners.entry(owner.clone()).or_default();
        share.in_flight = share.in_flight.saturating_add(1);
    }

    /// Records that a request of the owner ended after `took`.
    pub(crate) fn replied(&mut self, owner: &WriteOwner, took: Duration, busy: Busy) {
        self.owners.entry(owner.clone()).or_default().learn(took, busy);
    }

    /// Records that a write of the owner is no longer in flight.
    pub(crate) fn leave(&mut self, owner: &WriteOwner) {
        let Some(share) = self.owners.get_mut(owner) else { return };
        share.in_flight = share.in_flight.saturating_sub(1);
        if self.swept.elapsed() >= REMEMBERED {
            self.swept = Instant::now();
            let recent = |share: &Share| share.replied.is_some_and(|at| at.elapsed() < REMEMBERED);
            self.owners.retain(|_, share| share.in_flight > 0 || recent(share));
        }
    }
}

impl Share {
    fn learn(&mut self, took: Duration, busy: Busy) {
        self.replied = Some(Instant::now());
        if took < REQUEST_TIMEOUT && busy != Busy::Owner {
            self.limit = (self.limit + 1.0 / self.limit).min(MOST_OF_ONE as f64);
        } else if self.lowered.is_none_or(|at| at.elapsed() >= SETTLING) {
            self.limit = (self.limit * 0.5).max(1.0);
            self.lowered = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: usize = 32;

    fn owner(namespace: &str) -> WriteOwner {
        WriteOwner::Namespace(namespace.to_owned())
    }

    /// Enters writes of the owner until it has no room, while `taken` slots are in use. Returns their number.
    fn fill(shares: &mut Shares, namespace: &str, taken: usize) -> usize {
        let mut entered = 0;
        while shares.has_room(&owner(namespace), PLACES - taken - entered) {
            shares.enter(&owner(namespace));
            entered += 1;
        }
        entered
    }

    #[tokio::test(start_paused = true)]
    async fn one_owner_takes_three_quarters_of_what_the_others_leave() {
        let mut shares = Shares::default();
        assert_eq!(fill(&mut shares, "a", 0), 24);
        assert_eq!(fill(&mut shares, "b", 24), 6, "however many hang, there is room for the next one");
        assert_eq!(fill(&mut shares, "c", 30), 2);
        shares.leave(&owner("a"));
        assert!(!shares.has_room(&owner("a"), 1), "it has more than its part");
        assert!(shares.has_room(&owner("c"), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn an_owner_whose_requests_time_out_gets_fewer_places_and_more_again_later() {
        let mut shares = Shares::default();
        for _ in 0..10 {
            shares.enter(&owner("a"));
            tokio::time::advance(REQUEST_TIMEOUT).await;
            shares.replied(&owner("a"), REQUEST_TIMEOUT, Busy::Nobody);
            shares.leave(&owner("a"));
        }
        assert_eq!((fill(&mut shares, "a", 0), fill(&mut shares, "b", 0)), (1, 24));
        for _ in 0..1_000 {
            shares.replied(&owner("a"), Duration::from_millis(5), Busy::Nobody);
        }
        assert_eq!(fill(&mut shares, "a", 1), 23);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_replies_leave_the_places_as_they_are() {
        let mut shares = Shares::default();
        for _ in 0..100 {
            shares.enter(&owner("a"));
            tokio::time::advance(Duration::from_secs(2)).await;
            shares.replied(&owner("a"), Duration::from_secs(2), Busy::Nobody);
            shares.leave(&owner("a"));
        }
        assert_eq!((fill(&mut shares, "a", 0), fill(&mut shares, "b", 24)), (24, 6));
    }

    #[tokio::test(start_paused = true)]
    async fn an_owner_without_writes_is_forgotten() {
        let mut shares = Shares::default();
        for number in 0..1_000 {
            shares.enter(&owner(&number.to_string()));
            shares.replied(&owner(&number.to_string()), REQUEST_TIMEOUT, Busy::Nobody);
            shares.leave(&owner(&number.to_string()));
        }
        tokio::time::advance(REMEMBERED).await;
        shares.enter(&owner("a"));
        shares.leave(&owner("a"));
        assert!(shares.owners.is_empty());
    }
}
