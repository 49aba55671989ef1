//! Limits how much of one kind is done at once for one namespace, or for a user without one. Source: docs/opsjob-rest.md 2.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::ops_job::refusal::{Code, OpsRefusal};
use oarlock_core::shared::quota_key::QuotaKey;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Lists of one key at a time. The history reads three at a time.
const LISTS: usize = 2;
/// Thousands of jobs in all lists that are being made: the jobs of a list are in memory twice before they are sent.
const THOUSANDS: usize = 12;
/// Longest time that a list waits for others.
const WAITS: Duration = Duration::from_secs(10);

/// The turns of all keys.
pub(crate) struct Turns {
    most: usize,
    waits: Duration,
    /// What the turns are for, in refusals.
    what: &'static str,
    of_keys: Mutex<HashMap<QuotaKey, Arc<Semaphore>>>,
}

impl Turns {
    /// Makes turns of which each key has so many at a time.
    pub(crate) fn of(most: usize, waits: Duration, what: &'static str) -> Self {
        Self { most, waits, what, of_keys: Mutex::default() }
    }

    /// Waits for a turn, which lasts until it is dropped.
    ///
    /// # Errors
    /// Others of the key did not end in time.
    pub(crate) async fn take(&self, key: &QuotaKey) -> Result<OwnedSemaphorePermit, OpsRefusal> {
        let own = {
            let mut of_keys = self.of_keys.lock();
            // Nobody has or waits for turns of these keys.
            of_keys.retain(|_, turns| Arc::strong_count(turns) > 1);
            of_keys.entry(key.clone()).or_insert_with(|| Arc::new(Semaphore::new(self.most))).clone()
        };
        let busy = || {
            let words = format!("{} that {key} sent or asked for before are still being read: try again", self.what);
            OpsRefusal::new(Code::TooMany, words).after(1)
        };
        timeout(self.waits, own.acquire_owned()).await.map_err(|_| busy())?.map_err(|_| busy())
    }
}

/// The turns of lists. A list that looks for a part of a name may look at every row, and nobody has all connections of the history.
pub(crate) struct Lists {
    turns: Turns,
    thousands: Arc<Semaphore>,
}

/// The turn of one list: of its key, and of its length.
pub(crate) struct ListTurn(#[expect(dead_code, reason = "they are held")] [OwnedSemaphorePermit; 2]);

impl Default for Lists {
    fn default() -> Self {
        Self { turns: Turns::of(LISTS, WAITS, "lists"), thousands: Arc::new(Semaphore::new(THOUSANDS)) }
    }
}

impl Lists {
    /// Waits for the turn of a list of at most so many jobs.
    ///
    /// # Errors
    /// Other lists did not end in time.
    pub(crate) async fn take(&self, key: &QuotaKey, limit: usize) -> Result<ListTurn, OpsRefusal> {
        let own = self.turns.take(key).await?;
        let thousands = u32::try_from(limit.div_ceil(1_000).clamp(1, THOUSANDS)).unwrap_or(1);
        let length = timeout(WAITS, self.thousands.clone().acquire_many_owned(thousands)).await;
        let busy =
            || OpsRefusal::new(Code::Unreachable, "long lists of others are still being made: try again").after(1);
        Ok(ListTurn([own, length.map_err(|_| busy())?.map_err(|_| busy())?]))
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
        assert_eq!(lists.turns.of_keys.lock().len(), 1, "who asks no more is forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn long_lists_are_made_one_after_the_other_and_short_ones_beside_them() {
        let lists = Lists::default();
        let long = lists.take(&QuotaKey::of("alice"), 10_000).await.unwrap();
        let refused = lists.take(&QuotaKey::of("bob"), 10_000).await.map(drop).unwrap_err();
        assert_eq!(refused.code, Code::Unreachable, "{}", refused.message);
        assert!(lists.take(&QuotaKey::of("bob"), 1_000).await.is_ok());
        drop(long);
        assert!(lists.take(&QuotaKey::of("bob"), 10_000).await.is_ok());
    }
}
