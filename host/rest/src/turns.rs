//! Limits how much of one kind is done at once for one namespace, or for a user without one. Source: docs/opsjob-rest.md 2.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::ops_job::refusal::{Code, OpsRefusal};
use oarlock_core::shared::quota_key::QuotaKey;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::keyed::KeyedSemaphores;
use crate::room::Sharer;

/// Requests of one key that wait for a turn: each of them keeps a connection.
const QUEUE: usize = 8;
/// Lists of one key at a time. The history reads three at a time.
const LISTS: usize = 2;
/// Single jobs that are read at a time: of one key, and of all.
const JOBS_OF_KEY: usize = 4;
pub(crate) const JOBS: usize = 8;
/// Thousands of jobs in all lists that are being made, without the long ones: the jobs of a list are in memory twice before they are sent.
const THOUSANDS: usize = 8;
/// A longer list is a long one. One is made at a time.
const SHORT: usize = 4;
/// Thousands of jobs of the longest list: the 10,000 that a client may ask for, and the jobs that live beside them.
const LONGEST: usize = 14;
/// The most jobs in lists that are being made at one moment, of a long list and of all others.
pub(crate) const MOST_JOBS: usize = 1_000 * (THOUSANDS + LONGEST);
/// Requests for which objects are looked up at a time: of one key, and of all. One is for callers with rights in the whole cluster.
/// A key has only one, so that nobody waits for two look-ups of the same key.
const LOOKUPS_OF_KEY: usize = 1;
pub(crate) const LOOKUPS: usize = 7;
/// Longest time of one look-up. A request waits longer than that for its turn, so a slow look-up of a few others refuses nobody.
const LOOKUP_TIME: Duration = Duration::from_secs(15);
const LOOKUP_WAITS: Duration = Duration::from_secs(16);
/// Longest time that a list waits for others, and that a read waits for others of its key.
const WAITS: Duration = Duration::from_secs(10);
const READ_WAITS: Duration = Duration::from_secs(2);

/// The turns of all keys.
pub(crate) struct Turns {
    waits: Duration,
    /// The noun for the requests in refusals.
    what: &'static str,
    turns: KeyedSemaphores,
    /// The places of those who wait for a turn.
    queue: KeyedSemaphores,
}

impl Turns {
    /// Makes turns of which each key has so many at a time.
    pub(crate) fn of(most: usize, waits: Duration, what: &'static str) -> Self {
        Self { waits, what, turns: KeyedSemaphores::of(most), queue: KeyedSemaphores::of(QUEUE) }
    }

    /// Waits for a turn, which lasts until it is dropped.
    ///
    /// # Errors
    /// Others of the key did not end in time, or too many of them wait already.
    pub(crate) async fn take(&self, key: &QuotaKey) -> Result<OwnedSemaphorePermit, OpsRefusal> {
        let turns = self.turns.of_key(key);
        if let Ok(turn) = turns.clone().try_acquire_owned() {
            return Ok(turn);
        }
        let busy = || {
            let words = format!("{} that {key} sent or asked for before are still being read: try again", self.what);
            OpsRefusal::new(Code::TooMany, words).after(1)
        };
        let _place = self.queue.of_key(key).try_acquire_owned().map_err(|_| busy())?;
        within(self.waits, turns.acquire_owned()).await.ok_or_else(busy)
    }
}

/// Waits so long for a permit; none if others have all of them.
async fn within(
    waits: Duration,
    permit: impl Future<Output = Result<OwnedSemaphorePermit, AcquireError>>,
) -> Option<OwnedSemaphorePermit> {
    timeout(waits, permit).await.ok()?.ok()
}

/// A turn of one key, and one of all.
pub(crate) type JobTurn = (OwnedSemaphorePermit, OwnedSemaphorePermit);

/// The turns of requests that read one job. Its text is in memory several times until it is answered.
pub(crate) struct JobTurns {
    turns: Turns,
    all: Arc<Semaphore>,
}

impl Default for JobTurns {
    fn default() -> Self {
        Self { turns: Turns::of(JOBS_OF_KEY, READ_WAITS, "jobs"), all: Arc::new(Semaphore::new(JOBS)) }
    }
}

impl JobTurns {
    /// Waits for a turn, which lasts until it is dropped.
    ///
    /// # Errors
    /// Other requests did not end in time.
    pub(crate) async fn take(&self, key: &QuotaKey) -> Result<JobTurn, OpsRefusal> {
        let own = self.turns.take(key).await?;
        let busy = || OpsRefusal::new(Code::Unreachable, "jobs of others are still being read: try again").after(1);
        Ok((own, within(READ_WAITS, self.all.clone().acquire_owned()).await.ok_or_else(busy)?))
    }
}

/// The turns of requests for which objects of the cluster are looked up. Writers choose how large these objects are.
pub(crate) struct Lookups {
    turns: Turns,
    others: Arc<Semaphore>,
    /// The place of callers with rights in the whole cluster.
    wide: Arc<Semaphore>,
}

impl Default for Lookups {
    fn default() -> Self {
        let [others, wide] = [LOOKUPS - 1, 1].map(|permits| Arc::new(Semaphore::new(permits)));
        Self { turns: Turns::of(LOOKUPS_OF_KEY, LOOKUP_WAITS, "requests"), others, wide }
    }
}

impl Lookups {
    /// Waits for a turn, which lasts until it is dropped.
    ///
    /// # Errors
    /// Other requests did not end in time.
    async fn take(&self, sharer: &Sharer) -> Result<(OwnedSemaphorePermit, OwnedSemaphorePermit), OpsRefusal> {
        let own = self.turns.take(&sharer.key).await?;
        let busy =
            || OpsRefusal::new(Code::Unreachable, "requests of others are still being looked at: try again").after(1);
        let others = self.others.clone().acquire_owned();
        let turn = async {
            if !sharer.is_wide {
                return others.await;
            }
            tokio::select! {
                turn = self.wide.clone().acquire_owned() => turn,
                turn = others => turn,
            }
        };
        Ok((own, within(LOOKUP_WAITS, turn).await.ok_or_else(busy)?))
    }

    /// Does a look-up, in a turn.
    ///
    /// # Errors
    /// It fails, no turn came in time, or the API server did not answer in time.
    pub(crate) async fn look_up<T>(
        &self,
        sharer: &Sharer,
        looking: impl Future<Output = Result<T, OpsRefusal>>,
    ) -> Result<T, OpsRefusal> {
        let _turn = self.take(sharer).await?;
        let late = || {
            let words = format!("the API server did not tell all that this asks for in {} s", LOOKUP_TIME.as_secs());
            OpsRefusal::new(Code::Unreachable, words).after(1)
        };
        timeout(LOOKUP_TIME, looking).await.map_err(|_| late())?
    }
}

/// The turns of lists. A list that looks for a part of a name may look at every row, and nobody has all connections of the history.
pub(crate) struct Lists {
    turns: Turns,
    short: Arc<Semaphore>,
    long: Arc<Semaphore>,
}

/// The turn of one list.
pub(crate) struct ListTurn {
    /// The turn of its key, which lasts until its answer has a place.
    pub(crate) own: OwnedSemaphorePermit,
    /// The turn of its length, which lasts until it is made.
    pub(crate) length: OwnedSemaphorePermit,
}

impl Default for Lists {
    fn default() -> Self {
        let [short, long] = [THOUSANDS, 1].map(|permits| Arc::new(Semaphore::new(permits)));
        Self { turns: Turns::of(LISTS, WAITS, "lists"), short, long }
    }
}

impl Lists {
    /// Waits for the turn of a list for which at most so many jobs are looked at or shown.
    ///
    /// # Errors
    /// Other lists did not end in time.
    pub(crate) async fn take(&self, key: &QuotaKey, jobs: usize) -> Result<ListTurn, OpsRefusal> {
        let own = self.turns.take(key).await?;
        let (lengths, permits) = match jobs.div_ceil(1_000) {
            thousands @ 0..=SHORT => (&self.short, u32::try_from(thousands.max(1)).unwrap_or(1)),
            _ => (&self.long, 1),
        };
        let length = within(WAITS, lengths.clone().acquire_many_owned(permits)).await;
        let busy = || {
            let words = "lists of others are still being made: try again, or ask for fewer jobs with limit";
            OpsRefusal::new(Code::Unreachable, words).after(1)
        };
        Ok(ListTurn { own, length: length.ok_or_else(busy)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn all_accounts_of_a_namespace_have_two_lists_at_a_time_and_nobody_else_waits_for_them() {
        let (lists, key) = (Lists::default(), |account: &str| QuotaKey::of(account));
        let mut held = Vec::new();
        for account in 0..2 {
            held.push(lists.take(&key(&format!("system:serviceaccount:team:a{account}")), 100).await.unwrap());
        }
        let team = key("system:serviceaccount:team:b");
        let refused = lists.take(&team, 100).await.map(drop).unwrap_err();
        assert!(refused.code == Code::TooMany && refused.message.contains("namespace team"), "{}", refused.message);
        assert!(lists.take(&key("system:serviceaccount:other:b"), 100).await.is_ok());
        let waits = lists.take(&team, 100);
        held.pop();
        assert!(waits.await.is_ok());
        held.clear();
        let _carol = lists.take(&key("carol"), 100).await.unwrap();
        assert_eq!(lists.turns.turns.known(), 1, "who asks no more is forgotten");
    }

    fn sharer(name: &str, is_wide: bool) -> Sharer {
        Sharer { key: QuotaKey::of(name), is_wide }
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_has_one_request_looked_up_at_a_time_and_all_have_six() {
        let (lookups, alice) = (Lookups::default(), sharer("alice", false));
        let mut held = vec![lookups.take(&alice).await.unwrap()];
        assert_eq!(lookups.take(&alice).await.map(drop).unwrap_err().code, Code::TooMany);
        for name in ["bob", "carol", "dave", "erin", "grace"] {
            held.push(lookups.take(&sharer(name, false)).await.unwrap());
        }
        assert_eq!(lookups.take(&sharer("frank", false)).await.map(drop).unwrap_err().code, Code::Unreachable);
        let admin = lookups.take(&sharer("admin", true)).await.unwrap();
        assert!(lookups.take(&sharer("other", true)).await.is_err(), "a place is for callers of the whole cluster");
        held.clear();
        assert!(lookups.take(&sharer("other", true)).await.is_ok(), "and so are all others");
        drop(admin);
        assert!(lookups.take(&sharer("frank", false)).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_look_up_ends_before_others_stop_waiting_for_it() {
        let lookups = Lookups::default();
        let never = || std::future::pending::<Result<(), OpsRefusal>>();
        let slow = async {
            let names = ["alice", "bob", "carol", "erin", "frank", "grace"].map(|name| sharer(name, false));
            // Each of them sends a second one, which waits behind `dave`.
            let all =
                names.iter().flat_map(|sharer| [lookups.look_up(sharer, never()), lookups.look_up(sharer, never())]);
            futures::future::join_all(all).await
        };
        let dave = sharer("dave", false);
        let (slow, other) = tokio::join!(slow, lookups.look_up(&dave, async { Ok(()) }));
        assert!(slow.iter().all(|ended| ended.as_ref().is_err_and(|why| why.code == Code::Unreachable)));
        assert!(other.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_reads_four_jobs_at_a_time_and_all_read_eight() {
        let (reads, mut held) = (JobTurns::default(), Vec::new());
        for name in ["alice", "bob", "carol"] {
            for _ in 0..JOBS_OF_KEY.min(JOBS - held.len()) {
                held.push(reads.take(&QuotaKey::of(name)).await.unwrap());
            }
        }
        assert_eq!(reads.take(&QuotaKey::of("alice")).await.map(drop).unwrap_err().code, Code::TooMany);
        assert_eq!(reads.take(&QuotaKey::of("dave")).await.map(drop).unwrap_err().code, Code::Unreachable);
        held.pop();
        assert!(reads.take(&QuotaKey::of("dave")).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn eight_requests_of_a_key_wait_and_one_more_is_refused_at_once() {
        let (turns, key) = (Turns::of(2, READ_WAITS, "jobs"), QuotaKey::of("alice"));
        let mut held = vec![turns.take(&key).await.unwrap(), turns.take(&key).await.unwrap()];
        let mut waiting: Vec<_> = (0..QUEUE).map(|_| Box::pin(turns.take(&key))).collect();
        for wait in &mut waiting {
            assert!(futures::poll!(wait.as_mut()).is_pending());
        }
        let began = tokio::time::Instant::now();
        assert_eq!(turns.take(&key).await.map(drop).unwrap_err().code, Code::TooMany);
        assert_eq!(began.elapsed(), Duration::ZERO);
        held.clear();
        for wait in waiting {
            drop(wait.await.unwrap());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn long_lists_are_made_one_after_the_other_and_short_ones_beside_them() {
        let lists = Lists::default();
        let long = lists.take(&QuotaKey::of("alice"), 10_000).await.unwrap();
        let refused = lists.take(&QuotaKey::of("bob"), 10_000).await.map(drop).unwrap_err();
        assert_eq!(refused.code, Code::Unreachable, "{}", refused.message);
        assert!(lists.take(&QuotaKey::of("bob"), 4_000).await.is_ok());
        drop(long);
        assert!(lists.take(&QuotaKey::of("bob"), 10_000).await.is_ok());
    }
}
