//! Admits writes: 32 in flight at once, and fewer while the API server refuses for load.
//!
//! More than about 32 writes only add latency. Reads are not limited. Waiting owners take turns within their shares, so an owner bears the
//! cost of its own slow replies (`crate::transport::shares`). A long write gives its slot to another write, because a write that waits for
//! a webhook costs the API server nothing.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::transport::shares::{Shares, WriteOwner};

/// The most writes in flight that keep their slots. Source: docs/operationjob.md 10.
const MOST: usize = 32;
/// The most writes in flight, including long writes.
const IN_ALL: usize = 2 * MOST;
/// The time after which a write no longer keeps its slot.
const LONG: Duration = Duration::from_secs(1);
/// The interval at which a waiting write checks whether another write gave up its slot.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// The shortest time between two reductions of a limit. Replies to writes that were already in flight say nothing new.
pub(crate) const SETTLING: Duration = Duration::from_secs(1);

/// The side that was too busy for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Busy {
    /// No side was too busy.
    Nobody,
    /// A webhook that handles the writes of the owner.
    Owner,
    /// The API server.
    Server,
}

/// The limiter that admits writes.
#[derive(Default)]
pub(crate) struct WriteLimiter {
    state: Mutex<State>,
}

type PermitSender = oneshot::Sender<WritePermit>;

struct State {
    limit: f64,
    lowered: Option<Instant>,
    /// The start times of the writes in flight, by number.
    in_flight: BTreeMap<u64, Instant>,
    number: u64,
    shares: Shares,
    /// The waiting writes of each owner, in the order of their arrival.
    lines: HashMap<WriteOwner, VecDeque<PermitSender>>,
    /// The owners of the waiting writes, in the order of their turns.
    turns: VecDeque<WriteOwner>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            limit: MOST as f64,
            lowered: None,
            in_flight: BTreeMap::new(),
            number: 0,
            shares: Shares::default(),
            lines: HashMap::new(),
            turns: VecDeque::new(),
        }
    }
}

/// The permit of one write in flight. Dropping the permit ends the write.
pub(crate) struct WritePermit {
    limiter: Arc<WriteLimiter>,
    owner: WriteOwner,
    number: u64,
}

impl WriteLimiter {
    /// Waits until one more write of this owner may be sent.
    pub(crate) async fn enter(self: &Arc<Self>, owner: WriteOwner) -> WritePermit {
        let (place, mut granted) = oneshot::channel();
        self.state.lock().wait(owner, place);
        loop {
            self.admit_waiting();
            match timeout(LOOK_AGAIN, &mut granted).await {
                Ok(Ok(permit)) => return permit,
                // The limiter drops only waiters that no longer wait, so this case does not occur.
                Ok(Err(_)) => std::future::pending().await,
                Err(_) => {}
            }
        }
    }

    /// Returns the number of writes that may be in flight now.
    pub(crate) fn limit(&self) -> usize {
        whole(self.state.lock().limit)
    }

    fn admit_waiting(self: &Arc<Self>) {
        while let Some((owner, number, place)) = self.next() {
            // If the waiter stopped waiting just now, dropping the permit frees the slot.
            let _gone = place.send(WritePermit { limiter: self.clone(), owner, number }).is_err();
        }
    }

    fn next(&self) -> Option<(WriteOwner, u64, PermitSender)> {
        self.state.lock().take_next()
    }
}

impl State {
    fn wait(&mut self, owner: WriteOwner, place: PermitSender) {
        let line = self.lines.entry(owner.clone()).or_default();
        if line.is_empty() {
            self.turns.push_back(owner);
        }
        line.push_back(place);
    }

    /// Takes the first waiting write of the next owner that has room. The write is in flight from now on.
    fn take_next(&mut self) -> Option<(WriteOwner, u64, PermitSender)> {
        let now = Instant::now();
        let keeps_place = |since: &&Instant| now.duration_since(**since) < LONG;
        // The writes are in the order of their start times.
        let short = self.in_flight.values().rev().take_while(keeps_place).count();
        let free = whole(self.limit).saturating_sub(short).min(IN_ALL.saturating_sub(self.in_flight.len()));
        loop {
            // Owners without room keep their turn.
            let at = self.turns.iter().position(|owner| self.shares.has_room(owner, free))?;
            let owner = self.turns.remove(at)?;
            let line = self.lines.get_mut(&owner)?;
            let next = std::iter::from_fn(|| line.pop_front()).find(|place| !place.is_closed());
            if line.is_empty() {
                self.lines.remove(&owner);
            } else {
                self.turns.push_back(owner.clone());
            }
            if let Some(place) = next {
                self.number = self.number.wrapping_add(1);
                self.in_flight.insert(self.number, now);
                self.shares.enter(&owner);
                return Some((owner, self.number, place));
            }
        }
    }

    fn learn(&mut self, busy: Busy) {
        if busy != Busy::Server {
            self.limit = (self.limit + 1.0 / self.limit).min(MOST as f64);
        } else if self.lowered.is_none_or(|at| at.elapsed() >= SETTLING) {
            self.limit = (self.limit * 0.5).max(1.0);
            self.lowered = Some(Instant::now());
        }
    }
}

/// Returns the whole number of slots of a limit, at least one.
pub(crate) fn whole(limit: f64) -> usize {
    limit.floor().max(1.0) as usize
}

impl WritePermit {
    /// Records that the request ended after `took`.
    pub(crate) fn leave(self, took: Duration, busy: Busy) {
        let mut state = self.limiter.state.lock();
        state.learn(busy);
        state.shares.replied(&self.owner, took, busy);
    }
}

impl Drop for WritePermit {
    fn drop(&mut self) {
        let mut state = self.limiter.state.lock();
        state.in_flight.remove(&self.number);
        state.shares.leave(&self.owner);
        drop(state);
        self.limiter.admit_waiting();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Duration = Duration::from_millis(5);

    fn owner(number: usize) -> WriteOwner {
        WriteOwner::Namespace(number.to_string())
    }

    /// Returns a slot for this owner, if one is free now.
    async fn place(limiter: &Arc<WriteLimiter>, owner: WriteOwner) -> Option<WritePermit> {
        tokio::time::timeout(Duration::from_millis(1), limiter.enter(owner)).await.ok()
    }

    /// Takes all slots that new owners get.
    async fn fill(limiter: &Arc<WriteLimiter>) -> Vec<WritePermit> {
        let mut inside = Vec::new();
        while let Some(permit) = place(limiter, owner(inside.len())).await {
            inside.push(permit);
        }
        inside
    }

    #[tokio::test(start_paused = true)]
    async fn at_most_thirty_two_writes_are_on_the_wire() {
        let limiter = Arc::new(WriteLimiter::default());
        let mut inside = fill(&limiter).await;
        assert_eq!(inside.len(), 32);
        inside.pop();
        assert!(place(&limiter, owner(99)).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn writes_that_take_long_give_their_places_to_others_up_to_an_end() {
        let limiter = Arc::new(WriteLimiter::default());
        let mut inside = fill(&limiter).await;
        let (waiting, begun) = (limiter.enter(owner(99)), Instant::now());
        inside.push(waiting.await);
        assert!(begun.elapsed() <= LONG + LOOK_AGAIN, "it waits for none of the replies");
        tokio::time::advance(LONG).await;
        inside.extend(fill(&limiter).await);
        tokio::time::advance(LONG).await;
        inside.extend(fill(&limiter).await);
        assert_eq!(inside.len(), IN_ALL);
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_server_gets_fewer_writes_and_more_again_later() {
        let limiter = Arc::new(WriteLimiter::default());
        limiter.enter(WriteOwner::Host).await.leave(FAST, Busy::Server);
        limiter.enter(WriteOwner::Host).await.leave(FAST, Busy::Server);
        assert_eq!(limiter.limit(), 16, "the limit falls once per settling time");
        for _ in 0..1_000 {
            limiter.enter(WriteOwner::Host).await.leave(FAST, Busy::Nobody);
        }
        assert_eq!(limiter.limit(), 32);
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_webhook_of_one_owner_leaves_the_limit_of_all_as_it_is() {
        let limiter = Arc::new(WriteLimiter::default());
        for _ in 0..10 {
            limiter.enter(owner(0)).await.leave(FAST, Busy::Owner);
            tokio::time::advance(SETTLING).await;
        }
        assert_eq!(limiter.limit(), 32);
        let (_one, another) = (limiter.enter(owner(0)).await, place(&limiter, owner(0)).await);
        assert!(another.is_none(), "its own share is down to one");
        assert!(place(&limiter, owner(1)).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn writes_on_the_wire_when_the_limit_falls_leave_no_place_behind() {
        let limiter = Arc::new(WriteLimiter::default());
        let mut inside = fill(&limiter).await;
        inside.pop().unwrap().leave(FAST, Busy::Server);
        inside.drain(..).for_each(|permit| permit.leave(FAST, Busy::Nobody));
        assert_eq!(fill(&limiter).await.len(), limiter.limit());
    }

    #[tokio::test(start_paused = true)]
    async fn owners_that_wait_have_their_turns_one_after_the_other() {
        let limiter = Arc::new(WriteLimiter::default());
        let inside = fill(&limiter).await;
        let (told, mut entered) = tokio::sync::mpsc::unbounded_channel();
        for (number, writes) in [(100, 3), (101, 1), (102, 2)] {
            for _ in 0..writes {
                let (limiter, told) = (limiter.clone(), told.clone());
                tokio::spawn(async move {
                    let permit = limiter.enter(owner(number)).await;
                    told.send(number).unwrap();
                    // The permit stays until the test ends.
                    std::mem::forget(permit);
                });
                tokio::task::yield_now().await;
            }
        }
        drop((inside, told));
        let mut order = Vec::new();
        while let Some(number) = entered.recv().await {
            order.push(number);
        }
        assert_eq!(order, [100, 101, 102, 100, 102, 100]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_stops_waiting_takes_no_place() {
        let limiter = Arc::new(WriteLimiter::default());
        let inside = fill(&limiter).await;
        for _ in 0..100 {
            assert!(place(&limiter, owner(0)).await.is_none());
        }
        drop(inside);
        assert_eq!(fill(&limiter).await.len(), 32);
    }
}
