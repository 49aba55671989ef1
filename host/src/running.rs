//! The rounds that run, and whose next round may begin.
//!
//! Takes what began and what ended; yields the places that are free. A round that takes long gives its place to another: what
//! it waits for, such as a webhook that hangs on the statuses of one namespace, is nobody else's concern.

use std::collections::{BTreeSet, HashMap};

use oarlock_core::job::key::JobKey;
use parking_lot::Mutex;
use tokio::task::Id;
use tokio::time::{Duration, Instant};

/// Jobs whose rounds run at once. Rounds are short, and writes are bounded elsewhere.
const AT_ONCE: usize = 8;
/// Of these, rounds of jobs of one action: a slow plugin leaves the others their places.
const OF_AN_ACTION: usize = AT_ONCE / 2;
/// After this time a round keeps no place any more, unless it still calls its plugin: it waits for the API server.
const LONG: Duration = Duration::from_secs(1);
/// How soon a round that takes long and calls its plugin is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Rounds that take long, in one namespace: while so many do, no other of that namespace begins.
const LONG_OF_A_NAMESPACE: usize = 4;
/// All rounds, those that take long included.
const IN_ALL: usize = 32;

#[derive(Debug)]
struct Running {
    key: JobKey,
    action: Option<String>,
    began: Instant,
}

/// The jobs whose rounds call their plugins just now.
#[derive(Debug, Default)]
pub(crate) struct Calling {
    jobs: Mutex<BTreeSet<JobKey>>,
}

impl Calling {
    /// The round of this job calls its plugin until what is returned is dropped.
    pub(crate) fn begin(&self, key: &JobKey) -> impl Drop + use<'_> {
        self.jobs.lock().insert(key.clone());
        CallsEnd { calling: self, key: key.clone() }
    }

    /// True if the round of this job does.
    pub(crate) fn includes(&self, key: &JobKey) -> bool {
        self.jobs.lock().contains(key)
    }
}

struct CallsEnd<'a> {
    calling: &'a Calling,
    key: JobKey,
}

impl Drop for CallsEnd<'_> {
    fn drop(&mut self) {
        self.calling.jobs.lock().remove(&self.key);
    }
}

/// The rounds that run.
#[derive(Debug, Default)]
pub(crate) struct RunningRounds {
    rounds: HashMap<Id, Running>,
}

/// Who may have a round.
#[derive(Debug)]
pub(crate) struct Places {
    /// Actions of which no further job may have one now.
    pub(crate) full_actions: Vec<String>,
    full_namespaces: Vec<String>,
    /// No job may have one.
    pub(crate) is_full: bool,
    /// When the next round that runs gives up its place.
    pub(crate) next: Option<Instant>,
}

impl Places {
    /// True if a job of this namespace may have a round, as far as its action allows.
    pub(crate) fn has_room(&self, key: &JobKey) -> bool {
        !self.is_full && !self.full_namespaces.contains(&key.namespace)
    }
}

impl RunningRounds {
    /// The number of all that run.
    pub(crate) fn len(&self) -> usize {
        self.rounds.len()
    }

    /// A round of this job has begun.
    pub(crate) fn begin(&mut self, id: Id, key: JobKey, action: Option<String>) {
        self.rounds.insert(id, Running { key, action, began: Instant::now() });
    }

    /// A round has ended. Yields its job.
    pub(crate) fn end(&mut self, id: Id) -> Option<JobKey> {
        self.rounds.remove(&id).map(|running| running.key)
    }

    /// The places that are free at `now`.
    pub(crate) fn places(&self, now: Instant, calling: &Calling) -> Places {
        let (mut actions, mut namespaces) = (HashMap::<&str, usize>::new(), HashMap::<&str, usize>::new());
        let (mut short, mut next) = (0_usize, None::<Instant>);
        for running in self.rounds.values() {
            let long_at = running.began.checked_add(LONG).unwrap_or(now);
            let gives_up = match now.checked_add(LOOK_AGAIN).filter(|_| calling.includes(&running.key)) {
                Some(look) => long_at.max(look),
                None => long_at,
            };
            let count = if gives_up <= now {
                Some(namespaces.entry(&running.key.namespace).or_default())
            } else {
                short = short.saturating_add(1);
                next = Some(next.map_or(gives_up, |earliest| earliest.min(gives_up)));
                running.action.as_deref().map(|action| actions.entry(action).or_default())
            };
            if let Some(count) = count {
                *count = count.saturating_add(1);
            }
        }
        let full = |counts: HashMap<&str, usize>, most: usize| {
            counts.into_iter().filter(|(_, count)| *count >= most).map(|(word, _)| word.to_owned()).collect()
        };
        Places {
            full_actions: full(actions, OF_AN_ACTION),
            full_namespaces: full(namespaces, LONG_OF_A_NAMESPACE),
            is_full: short >= AT_ONCE || self.rounds.len() >= IN_ALL,
            next,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(namespace: &str, name: usize) -> JobKey {
        JobKey { namespace: namespace.into(), name: name.to_string() }
    }

    /// So many rounds of a namespace, each of an action of its own.
    fn begin(rounds: &mut RunningRounds, namespace: &str, count: usize) {
        for number in 0..count {
            // Only a task has an id, and it need not do anything.
            let id = tokio::spawn(async {}).id();
            rounds.begin(id, job(namespace, number), Some(format!("{namespace}-{number}")));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_that_takes_long_gives_its_place_to_another_namespace() {
        let mut rounds = RunningRounds::default();
        begin(&mut rounds, "hung", AT_ONCE);
        let places = rounds.places(Instant::now(), &Calling::default());
        assert!(places.is_full && places.next == Some(Instant::now() + LONG));
        tokio::time::advance(LONG).await;
        let places = rounds.places(Instant::now(), &Calling::default());
        assert!(places.has_room(&job("other", 0)) && !places.has_room(&job("hung", 99)));
        for number in 0..10 {
            begin(&mut rounds, &format!("hung-{number}"), AT_ONCE);
            tokio::time::advance(LONG).await;
        }
        assert!(rounds.places(Instant::now(), &Calling::default()).is_full, "there is an end to it");
    }

    #[tokio::test(start_paused = true)]
    async fn an_action_keeps_its_bound_while_its_rounds_are_short() {
        let mut rounds = RunningRounds::default();
        for number in 0..OF_AN_ACTION {
            let id = tokio::spawn(async {}).id();
            rounds.begin(id, job("a", number), Some("Slow".into()));
        }
        assert_eq!(rounds.places(Instant::now(), &Calling::default()).full_actions, ["Slow"]);
        assert!(!rounds.places(Instant::now(), &Calling::default()).is_full);
        tokio::time::advance(LONG).await;
        assert!(rounds.places(Instant::now(), &Calling::default()).full_actions.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_that_calls_its_plugin_keeps_its_place_however_long_that_takes() {
        let (mut rounds, calling) = (RunningRounds::default(), Calling::default());
        let ends: Vec<_> = (0..OF_AN_ACTION).map(|number| calling.begin(&job("a", number))).collect();
        for number in 0..OF_AN_ACTION {
            let id = tokio::spawn(async {}).id();
            rounds.begin(id, job("a", number), Some("Slow".into()));
        }
        tokio::time::advance(5 * LONG).await;
        let places = rounds.places(Instant::now(), &calling);
        assert_eq!(places.full_actions, ["Slow"]);
        assert!(places.has_room(&job("a", 99)), "another action's job of the namespace goes on");
        assert!(places.next.is_some_and(|next| next > Instant::now()), "it is looked at again");
        drop(ends);
        let places = rounds.places(Instant::now(), &calling);
        assert!(places.full_actions.is_empty() && !places.has_room(&job("a", 99)), "now it waits for the API server");
    }
}
