//! Limits how many requests of one kind run at once, for each namespace, or for each user without a namespace. Source: docs/opsjob-rest.md
//! 2.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::object::quota_key::QuotaKey;
use oarlock_core::ops_job::refusal::{Code, OpsRefusal};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::keyed::KeyedSemaphores;
use crate::room::Sharer;

/// The most requests of one key that wait for a turn. Each of them keeps a connection.
const QUEUE: usize = 8;
/// The most concurrent lists of one key. The history reads three lists at a time.
const LISTS: usize = 2;
/// The most single jobs that are read at once, of one key and of all keys.
const JOBS_OF_KEY: usize = 4;
pub(crate) const JOBS: usize = 8;
/// The size of all lists in progress in thousands of jobs, without the long lists. The jobs of a list are in memory twice before they are
/// sent.
const THOUSANDS: usize = 8;
/// The size of a list in thousands of jobs above which it is a long list. One long list runs at a time.
const SHORT: usize = 4;
/// The size of the longest list in thousands of jobs: 10,000 that a client may ask for, and the live jobs beside them.
const LONGEST: usize = 14;
/// The most jobs in lists at one moment, of the long list and all others.
pub(crate) const MOST_JOBS: usize = 1_000 * (THOUSANDS + LONGEST);
/// The most concurrent lookup requests of one key and of all keys. One of them is for callers with rights in the whole cluster. A key has
/// only one, so that no request waits for two lookups of the same key.
const LOOKUPS_OF_KEY: usize = 1;
pub(crate) const LOOKUPS: usize = 7;
/// The longest time of one lookup, and the longest wait for a turn. The wait is longer, so slow lookups of a few other keys cause no
/// refusal.
const LOOKUP_TIME: Duration = Duration::from_secs(15);
const LOOKUP_WAITS: Duration = Duration::from_secs(16);
/// The longest wait of a list for other lists, and of a read for other reads of its key.
const WAITS: Duration = Duration::from_secs(10);
const READ_WAITS: Duration = Duration::from_secs(2);

/// The turns of all keys for one kind of request.
pub(crate) struct KeyedTurns {
    waits: Duration,
    /// The noun for the requests in refusals.
    what: &'static str,
    turns: KeyedSemaphores,
    /// The queue slots of the requests that wait for a turn.
    queue: KeyedSemaphores,
}

impl KeyedTurns {
    /// Makes turns of which each key gets this many at a time.
    pub(crate) fn of(most: usize, waits: Duration, what: &'static str) -> Self {
        Self { waits, what, turns: KeyedSemaphores::of(most), queue: KeyedSemaphores::of(QUEUE) }
    }

    /// Waits for a turn, which lasts until it is dropped.
    ///
    /// # Errors
    /// If other requests of the key do not end in time, or too many of them already wait.
    pub(crate) async fn take(&self, key: &QuotaKey) -> Result<OwnedSemaphorePermit, OpsRefusal> {
        let turns = self.turns.of_key(key);
        if let Ok(turn) = turns.clone().try_acquire_owned() {
            return Ok(turn);
        }
        let busy = || {
            let message = format!("earlier {} of {key} are still in progress: try again", self.what);
            OpsRefusal::new(Code::TooMany, message).after(1)
        };
        let _place = self.queue.of_key(key).try_acquire_owned().map_err(|_| busy())?;
        within(self.waits, turns.acquire_owned()).await.ok_or_else(busy)
    }
}

/// Waits this long for a permit. Returns `None` if others hold all permits.
async fn within(
    waits: Duration,
    permit: impl Future<Output = Result<OwnedSemaphorePermit, AcquireError>>,
) -> Option<OwnedSemaphorePermit> {
    timeout(waits, permit).await.ok()?.ok()
}

/// The turn of a request among its key, and its turn among all keys.
pub(crate) type JobTurn = (OwnedSemaphorePermit, OwnedSemaphorePermit);

/// The turns of requests that read one job. The text of a job is in memory several times until the request is answered.
pub(crate) struct JobTurns {
    turns: KeyedTurns,
    all: Arc<Semaphore>,
}

impl Default for JobTurns {
    fn default() -> Self {
        Self { turns: KeyedTurns::of(JOBS_OF_KEY, READ_WAITS, "jobs"), all: Arc::new(Semaphore::new(JOBS)) }
    }
}

impl JobTurns {
    /// Waits for a turn, which lasts until it is dropped.
    ///
    /// # Errors
    /// If other requests do not end in time.
    pub(crate) async fn take(&self, key: &QuotaKey) -> Result<JobTurn, OpsRefusal> {
        let own = self.turns.take(key).await?;
        let busy =
            || OpsRefusal::new(Code::Unreachable, "the server is busy with jobs of other callers: try again").after(1);
        Ok((own, within(READ_WAITS, self.all.clone().acquire_owned()).await.ok_or_else(busy)?))
    }
}

/// The turns of requests that look up objects of the cluster. The creators of these objects decide how large they are.
pub(crate) struct Lookups {
    turns: KeyedTurns,
    others: Arc<Semaphore>,
    /// The slot that only callers with rights in the whole cluster use.
    wide: Arc<Semaphore>,
}

impl Default for Lookups {
    fn default() -> Self {
        let [others, wide] = [LOOKUPS - 1, 1].map(|permits| Arc::new(Semaphore::new(permits)));
        Self { turns: KeyedTurns::of(LOOKUPS_OF_KEY, LOOKUP_WAITS, "requests"), others, wide }
    }
}

impl Lookups {
    /// Waits for a turn, which lasts until it is dropped.
    ///
    /// # Errors
    /// If other requests do not end in time.
    async fn take(&self, sharer: &Sharer) -> Result<(OwnedSemaphorePermit, OwnedSemaphorePermit), OpsRefusal> {
        let own = self.turns.take(&sharer.key).await?;
        let busy = || {
            OpsRefusal::new(Code::Unreachable, "the server is busy with requests of other callers: try again").after(1)
        };
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

    /// Runs a lookup in a turn.
    ///
    /// # Errors
    /// If the lookup fails, no turn is free in time, or the API server does not answer in time.
    pub(crate) async fn look_up<T>(
        &self,
        sharer: &Sharer,
        looking: impl Future<Output = Result<T, OpsRefusal>>,
    ) -> Result<T, OpsRefusal> {
        let _turn = self.take(sharer).await?;
        let late = || {
            let message =
                format!("the API server did not answer all reads of this request within {} s", LOOKUP_TIME.as_secs());
            OpsRefusal::new(Code::Unreachable, message).after(1)
        };
        timeout(LOOKUP_TIME, looking).await.map_err(|_| late())?
    }
}

/// The turns of lists. A search by a part of a name may read every row, so one caller must not use all connections of the history.
pub(crate) struct Lists {
    turns: KeyedTurns,
    short: Arc<Semaphore>,
    long: Arc<Semaphore>,
}

/// The turn of one list.
pub(crate) struct ListTurn {
    /// The turn of its key. It lasts until the answer has its reservation.
    pub(crate) own: OwnedSemaphorePermit,
    /// The turn of its length. It lasts until the list is made.
    pub(crate) length: OwnedSemaphorePermit,
}

impl Default for Lists {
    fn default() -> Self {
        let [short, long] = [THOUSANDS, 1].map(|permits| Arc::new(Semaphore::new(permits)));
        Self { turns: KeyedTurns::of(LISTS, WAITS, "lists"), short, long }
    }
}

impl Lists {
    /// Waits for the turn of a list that reads or shows at most this many jobs.
    ///
    /// # Errors
    /// If other lists do not end in time.
    pub(crate) async fn take(&self, key: &QuotaKey, jobs: usize) -> Result<ListTurn, OpsRefusal> {
        let own = self.turns.take(key).await?;
        let (lengths, permits) = match jobs.div_ceil(1_000) {
            thousands @ 0..=SHORT => (&self.short, u32::try_from(thousands.max(1)).unwrap_or(1)),
            _ => (&self.long, 1),
        };
        let length = within(WAITS, lengths.clone().acquire_many_owned(permits)).await;
        let busy = || {
            let message = "the server is busy with lists of other callers: try again, or ask for fewer jobs with limit";
            OpsRefusal::new(Code::Unreachable, message).after(1)
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
            // Each of them also sends a second request, which waits behind the request of `dave`.
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
        let (turns, key) = (KeyedTurns::of(2, READ_WAITS, "jobs"), QuotaKey::of("alice"));
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
