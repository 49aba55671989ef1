//! The rounds that run, of jobs or of flows, and whose next round may begin.
//!
//! Takes what began and what ended; yields the places that are free. A round that takes long gives its place to another: what
//! it waits for, such as a webhook that hangs on the statuses of one namespace, is nobody else's concern.

use std::collections::{BTreeSet, HashMap};

use oarlock_core::job::key::JobKey;
use parking_lot::Mutex;
use tokio::task::Id;
use tokio::time::{Duration, Instant};

use crate::queue::HasRounds;

/// How many rounds may run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundBounds {
    /// At once, but for those that take long.
    at_once: usize,
    /// Of these, of jobs of one action: a slow plugin leaves the others their places.
    of_an_action: usize,
    /// Of these, in one namespace.
    of_a_namespace: usize,
    /// That take long, in one namespace: while so many do, no other of that namespace begins.
    long_of_a_namespace: usize,
    /// All of them, those that take long included.
    in_all: usize,
}

impl RoundBounds {
    /// Of jobs. Their rounds are short, and writes are bounded elsewhere.
    pub(crate) const JOBS: Self =
        Self { at_once: 8, of_an_action: 4, of_a_namespace: 8, long_of_a_namespace: 4, in_all: 32 };
    /// Of flows. Their rounds wait for replies most of the time.
    pub(crate) const FLOWS: Self =
        Self { at_once: 32, of_an_action: 32, of_a_namespace: 24, long_of_a_namespace: 8, in_all: 96 };
}

/// After this time a round keeps no place any more, unless it still calls its plugin: it waits for the API server.
const LONG: Duration = Duration::from_secs(1);
/// How soon a round that takes long and calls its plugin is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

#[derive(Debug)]
struct Running<K> {
    key: K,
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
#[derive(Debug)]
pub(crate) struct RunningRounds<K> {
    bounds: RoundBounds,
    rounds: HashMap<Id, Running<K>>,
}

/// Who may have a round.
#[derive(Debug)]
pub(crate) struct Places {
    /// Actions of which no further job may have one now.
    pub(crate) full_actions: Vec<String>,
    full_namespaces: BTreeSet<String>,
    /// Nothing may have one.
    pub(crate) is_full: bool,
    /// When the next round that runs gives up its place.
    pub(crate) next: Option<Instant>,
}

impl Places {
    /// True if something in the namespace of `key` may have a round, as far as its action allows.
    pub(crate) fn has_room(&self, key: &impl HasRounds) -> bool {
        !self.is_full && !self.full_namespaces.contains(key.namespace())
    }
}

impl<K: HasRounds> RunningRounds<K> {
    /// None yet, and at most these.
    pub(crate) fn within(bounds: RoundBounds) -> Self {
        Self { bounds, rounds: HashMap::new() }
    }

    /// The number of all that run.
    pub(crate) fn len(&self) -> usize {
        self.rounds.len()
    }

    /// A round has begun.
    pub(crate) fn begin(&mut self, id: Id, key: K, action: Option<String>) {
        self.rounds.insert(id, Running { key, action, began: Instant::now() });
    }

    /// A round has ended. Yields what it was of.
    pub(crate) fn end(&mut self, id: Id) -> Option<K> {
        self.rounds.remove(&id).map(|running| running.key)
    }

    /// The places that are free at `now`. `calls` says whose round calls its plugin just now.
    pub(crate) fn places(&self, now: Instant, calls: impl Fn(&K) -> bool) -> Places {
        let (mut actions, mut short_ones, mut long_ones) = (Counts::new(), Counts::new(), Counts::new());
        let (mut short, mut next) = (0_usize, None::<Instant>);
        for running in self.rounds.values() {
            let long_at = running.began.checked_add(LONG).unwrap_or(now);
            let gives_up = match now.checked_add(LOOK_AGAIN).filter(|_| calls(&running.key)) {
                Some(look) => long_at.max(look),
                None => long_at,
            };
            let namespace = running.key.namespace();
            if gives_up <= now {
                count(&mut long_ones, namespace);
                continue;
            }
            short = short.saturating_add(1);
            next = Some(next.map_or(gives_up, |earliest| earliest.min(gives_up)));
            count(&mut short_ones, namespace);
            running.action.iter().for_each(|action| count(&mut actions, action));
        }
        let RoundBounds { at_once, of_an_action, of_a_namespace, long_of_a_namespace, in_all } = self.bounds;
        let full_namespaces = full(short_ones, of_a_namespace).chain(full(long_ones, long_of_a_namespace)).collect();
        Places {
            full_actions: full(actions, of_an_action).collect(),
            full_namespaces,
            is_full: short >= at_once || self.rounds.len() >= in_all,
            next,
        }
    }
}

type Counts<'a> = HashMap<&'a str, usize>;

fn count<'a>(counts: &mut Counts<'a>, word: &'a str) {
    let count = counts.entry(word).or_default();
    *count = count.saturating_add(1);
}

/// The words with so many rounds or more.
fn full(counts: Counts<'_>, most: usize) -> impl Iterator<Item = String> {
    counts.into_iter().filter(move |(_, count)| *count >= most).map(|(word, _)| word.to_owned())
}

#[cfg(test)]
mod tests {
    use oarlock_kube::ops::OpsKey;

    use super::*;

    const AT_ONCE: usize = RoundBounds::JOBS.at_once;
    const OF_AN_ACTION: usize = RoundBounds::JOBS.of_an_action;

    fn none(_: &JobKey) -> bool {
        false
    }

    fn job(namespace: &str, name: usize) -> JobKey {
        JobKey { namespace: namespace.into(), name: name.to_string() }
    }

    /// So many rounds of a namespace, each of an action of its own.
    fn begin(rounds: &mut RunningRounds<JobKey>, namespace: &str, count: usize) {
        for number in 0..count {
            // Only a task has an id, and it need not do anything.
            let id = tokio::spawn(async {}).id();
            rounds.begin(id, job(namespace, number), Some(format!("{namespace}-{number}")));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_that_takes_long_gives_its_place_to_another_namespace() {
        let mut rounds = RunningRounds::within(RoundBounds::JOBS);
        begin(&mut rounds, "hung", AT_ONCE);
        let places = rounds.places(Instant::now(), none);
        assert!(places.is_full && places.next == Some(Instant::now() + LONG));
        tokio::time::advance(LONG).await;
        let places = rounds.places(Instant::now(), none);
        assert!(places.has_room(&job("other", 0)) && !places.has_room(&job("hung", 99)));
        for number in 0..10 {
            begin(&mut rounds, &format!("hung-{number}"), AT_ONCE);
            tokio::time::advance(LONG).await;
        }
        assert!(rounds.places(Instant::now(), none).is_full, "there is an end to it");
    }

    #[tokio::test(start_paused = true)]
    async fn an_action_keeps_its_bound_while_its_rounds_are_short() {
        let mut rounds = RunningRounds::within(RoundBounds::JOBS);
        for number in 0..OF_AN_ACTION {
            let id = tokio::spawn(async {}).id();
            rounds.begin(id, job("a", number), Some("Slow".into()));
        }
        assert_eq!(rounds.places(Instant::now(), none).full_actions, ["Slow"]);
        assert!(!rounds.places(Instant::now(), none).is_full);
        tokio::time::advance(LONG).await;
        assert!(rounds.places(Instant::now(), none).full_actions.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_that_calls_its_plugin_keeps_its_place_however_long_that_takes() {
        let (mut rounds, calling) = (RunningRounds::within(RoundBounds::JOBS), Calling::default());
        let ends: Vec<_> = (0..OF_AN_ACTION).map(|number| calling.begin(&job("a", number))).collect();
        for number in 0..OF_AN_ACTION {
            let id = tokio::spawn(async {}).id();
            rounds.begin(id, job("a", number), Some("Slow".into()));
        }
        tokio::time::advance(5 * LONG).await;
        let places = rounds.places(Instant::now(), |job| calling.includes(job));
        assert_eq!(places.full_actions, ["Slow"]);
        assert!(places.has_room(&job("a", 99)), "another action's job of the namespace goes on");
        assert!(places.next.is_some_and(|next| next > Instant::now()), "it is looked at again");
        drop(ends);
        let places = rounds.places(Instant::now(), |job| calling.includes(job));
        assert!(places.full_actions.is_empty() && !places.has_room(&job("a", 99)), "now it waits for the API server");
    }

    #[tokio::test(start_paused = true)]
    async fn one_requester_leaves_places_for_rounds_of_ops_jobs_to_the_others() {
        let key = |share: &str, name: usize| OpsKey { share: share.into(), name: name.to_string() };
        let mut rounds = RunningRounds::within(RoundBounds::FLOWS);
        for number in 0..RoundBounds::FLOWS.of_a_namespace {
            rounds.begin(tokio::spawn(async {}).id(), key("namespace/crowded", number), None);
        }
        let places = rounds.places(Instant::now(), |_| false);
        assert!(places.has_room(&key("namespace/other", 0)) && !places.has_room(&key("namespace/crowded", 99)));
    }

    #[tokio::test(start_paused = true)]
    async fn one_namespace_leaves_places_for_rounds_of_flows_to_the_others() {
        let mut rounds = RunningRounds::within(RoundBounds::FLOWS);
        begin(&mut rounds, "crowded", RoundBounds::FLOWS.of_a_namespace);
        let places = rounds.places(Instant::now(), none);
        assert!(places.has_room(&job("other", 0)) && !places.has_room(&job("crowded", 99)));
    }
}
