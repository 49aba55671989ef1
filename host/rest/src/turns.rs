//! Whose turn it is to read a list of the history. Source: docs/opsjob-rest.md 2.
//!
//! A list that looks for a part of a name may look at every row. Nobody has all the connections of the history: each user has two
//! lists at a time, and all accounts of a namespace have three.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::ops_job::refusal::{Code, OpsRefusal};
use oarlock_core::shared::quota_key::QuotaKey;
use parking_lot::Mutex;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Lists of one user at a time, and of one namespace.
const LISTS: usize = 2;
const OF_NAMESPACE: usize = 3;
/// Longest time that a list waits for those of the same user or namespace.
const WAITS: Duration = Duration::from_secs(10);

/// The turns of all users, and of all namespaces.
#[derive(Default)]
pub(crate) struct Turns(Mutex<HashMap<String, Arc<Semaphore>>>);

impl Turns {
    /// Waits for the turn of a user, which lasts until what this yields is dropped.
    pub(crate) async fn take(&self, caller: &str) -> Result<[OwnedSemaphorePermit; 2], OpsRefusal> {
        let key = QuotaKey::of(caller);
        let (own, of_key) = {
            let mut turns = self.0.lock();
            // Those whom nobody has or waits for.
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            let mut turn =
                |of: String, lists: usize| turns.entry(of).or_insert_with(|| Arc::new(Semaphore::new(lists))).clone();
            // No key of a namespace begins so.
            (turn(format!("name/{caller}"), LISTS), turn(key.text(), OF_NAMESPACE))
        };
        let busy = || {
            let words = format!("lists that {key} asked for before are still being read: try again");
            OpsRefusal::new(Code::TooMany, words).after(1)
        };
        let both = async { Ok::<_, AcquireError>([own.acquire_owned().await?, of_key.acquire_owned().await?]) };
        timeout(WAITS, both).await.map_err(|_| busy())?.map_err(|_| busy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_user_has_two_lists_at_a_time_and_waits_for_nobody_else() {
        let turns = Turns::default();
        let (first, other_first) = (turns.take("alice").await.unwrap(), turns.take("alice").await);
        assert!(other_first.is_ok());
        let other = turns.take("bob").await;
        assert!(other.is_ok(), "nobody waits for alice");
        assert_eq!(turns.take("alice").await.map(drop).unwrap_err().code, Code::TooMany);
        let second = tokio::spawn(async move { (turns.take("alice").await.is_ok(), turns) });
        drop(first);
        let (is_taken, turns) = second.await.unwrap();
        assert!(is_taken);
        drop((other, other_first));
        let last = turns.take("carol").await;
        assert!(last.is_ok());
        assert_eq!(turns.0.lock().len(), 2, "who asks no more is forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn all_accounts_of_a_namespace_have_three_lists_at_a_time() {
        let turns = Turns::default();
        let mut held = Vec::new();
        for account in 0..3 {
            held.push(turns.take(&format!("system:serviceaccount:team:a{account}")).await.unwrap());
        }
        let refused = turns.take("system:serviceaccount:team:b").await.unwrap_err();
        assert!(refused.message.contains("namespace team"), "{}", refused.message);
        assert!(turns.take("system:serviceaccount:other:b").await.is_ok());
        held.pop();
        assert!(turns.take("system:serviceaccount:team:b").await.is_ok());
    }
}
