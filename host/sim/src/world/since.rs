//! The times since which steps have been possible, as the simulation observed them. Delays count from these times.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The times at which the steps of each object became possible.
#[derive(Debug)]
pub(crate) struct Since<K, S> {
    first: Mutex<HashMap<K, HashMap<S, Instant>>>,
}

impl<K, S> Default for Since<K, S> {
    fn default() -> Self {
        Self { first: Mutex::default() }
    }
}

impl<K: Eq + Hash, S: Clone + Ord + Hash> Since<K, S> {
    /// Records the steps that are possible now, and returns their times. All other steps are forgotten, and start over later.
    pub(crate) fn note(&self, key: K, steps: &BTreeSet<S>) -> HashMap<S, Instant> {
        let mut first = self.first.lock();
        if steps.is_empty() {
            first.remove(&key);
            return HashMap::new();
        }
        let known = first.entry(key).or_default();
        known.retain(|step, _| steps.contains(step));
        for step in steps {
            known.entry(step.clone()).or_insert_with(Instant::now);
        }
        known.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_step_counts_from_when_it_was_first_possible_and_anew_after_a_gap() {
        let since: Since<&str, &str> = Since::default();
        let start = Instant::now();
        since.note("pod", &BTreeSet::from(["a"]));
        tokio::time::advance(Duration::from_secs(1)).await;
        let both = since.note("pod", &BTreeSet::from(["a", "b"]));
        assert_eq!((both["a"], both["b"]), (start, start + Duration::from_secs(1)));
        since.note("pod", &BTreeSet::from(["b"]));
        assert_eq!(since.note("pod", &BTreeSet::from(["a"]))["a"], start + Duration::from_secs(1));
    }
}
