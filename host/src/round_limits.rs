//! Limits the running rounds, of jobs or of flows, and decides whose next round may start.
//!
//! A round that takes long gives its slot to another. Such a round may wait for something that affects only its
//! namespace, such as a hanging webhook on the namespace's statuses.

use std::collections::{BTreeSet, HashMap};

use oarlock_core::object::key::JobKey;
use parking_lot::Mutex;
use tokio::task::Id;
use tokio::time::{Duration, Instant};

/// The limits of running rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundBounds {
    /// The number of short rounds.
    at_once: usize,
    /// The number of short rounds of one action, so that a slow plugin leaves slots to others. Without it, the jobs of one slow plugin wait for its
    /// call slots in all round slots, and no other job has a round.
    of_an_action: usize,
    /// The number of short rounds of one share, which is a namespace or what stands for one.
    of_a_share: usize,
    /// The number of long rounds of one share. At this limit, no further round of the share starts.
    long_of_a_share: usize,
    /// The number of all rounds, including the long ones.
    in_all: usize,
}

impl RoundBounds {
    /// The limits for jobs. Their rounds are short, and another limit bounds their writes.
    pub(crate) const JOBS: Self = Self { at_once: 8, of_an_action: 4, of_a_share: 8, long_of_a_share: 4, in_all: 32 };
    /// The limits for flows. Their rounds mostly wait for replies.
    pub(crate) const FLOWS: Self =
        Self { at_once: 32, of_an_action: 32, of_a_share: 24, long_of_a_share: 8, in_all: 96 };
}

/// The time after which a round gives up its slot, unless it still calls its plugin. A round that takes longer waits
/// for the API server.
const LONG: Duration = Duration::from_secs(1);
/// The wait before a long round that calls its plugin is checked again.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

#[derive(Debug)]
struct Running<K> {
    key: K,
    share: String,
    action: Option<String>,
    began: Instant,
}

/// The jobs whose rounds call their plugins now. Such a round keeps its slot however long it takes. If it counted as long,
/// the next job of the slow plugin would take the slot, and so on up to the limit of all rounds.
#[derive(Debug, Default)]
pub(crate) struct Calling {
    jobs: Mutex<BTreeSet<JobKey>>,
}

impl Calling {
    /// Marks the round of this job as calling its plugin, until the returned guard is dropped.
    pub(crate) fn begin(&self, key: &JobKey) -> impl Drop + use<'_> {
        self.jobs.lock().insert(key.clone());
        CallsEnd { calling: self, key: key.clone() }
    }

    /// Returns true if the round of this job calls its plugin.
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

/// The limits that a round counts against.
#[derive(Debug)]
pub(crate) struct CountsFor {
    /// The share of the object.
    pub(crate) share: String,
    /// The action of a job, if a plugin serves it.
    pub(crate) action: Option<String>,
}

/// The running rounds.
#[derive(Debug)]
pub(crate) struct RunningRounds<K> {
    bounds: RoundBounds,
    rounds: HashMap<Id, Running<K>>,
}

/// The free slots for rounds.
#[derive(Debug)]
pub(crate) struct FreeSlots {
    /// The actions without a free slot.
    pub(crate) full_actions: Vec<String>,
    full_shares: BTreeSet<String>,
    /// True if no round may start.
    pub(crate) is_full: bool,
    /// The time at which the next running round gives up its slot.
    pub(crate) next: Option<Instant>,
}

impl FreeSlots {
    /// Returns true if this share has a free slot. The action of the object may still be full.
    pub(crate) fn has_room(&self, share: &str) -> bool {
        !self.is_full && !self.full_shares.contains(share)
    }
}

impl<K> RunningRounds<K> {
    /// Makes an empty set with these limits.
    pub(crate) fn within(bounds: RoundBounds) -> Self {
        Self { bounds, rounds: HashMap::new() }
    }

    /// Returns the number of all running rounds.
    pub(crate) fn len(&self) -> usize {
        self.rounds.len()
    }

    /// Adds a round of the object with this key.
    pub(crate) fn begin(&mut self, id: Id, key: K, counts: CountsFor) {
        let CountsFor { share, action } = counts;
        self.rounds.insert(id, Running { key, share, action, began: Instant::now() });
    }

    /// Removes a round. Returns the key of its object.
    pub(crate) fn end(&mut self, id: Id) -> Option<K> {
        self.rounds.remove(&id).map(|running| running.key)
    }

    /// Returns the free slots at `now`. `calls` tells whose round calls its plugin.
    pub(crate) fn free_slots(&self, now: Instant, calls: impl Fn(&K) -> bool) -> FreeSlots {
        let (mut actions, mut short_ones, mut long_ones) = (Counts::new(), Counts::new(), Counts::new());
        let (mut short, mut next) = (0_usize, None::<Instant>);
        for running in self.rounds.values() {
            let long_at = running.began.checked_add(LONG).unwrap_or(now);
            let gives_up = match now.checked_add(LOOK_AGAIN).filter(|_| calls(&running.key)) {
                Some(look) => long_at.max(look),
                None => long_at,
            };
            if gives_up <= now {
                count(&mut long_ones, &running.share);
                continue;
            }
            short = short.saturating_add(1);
            next = Some(next.map_or(gives_up, |earliest| earliest.min(gives_up)));
            count(&mut short_ones, &running.share);
            running.action.iter().for_each(|action| count(&mut actions, action));
        }
        let RoundBounds { at_once, of_an_action, of_a_share, long_of_a_share, in_all } = self.bounds;
        let full_shares = full(short_ones, of_a_share).chain(full(long_ones, long_of_a_share)).collect();
        FreeSlots {
            full_actions: full(actions, of_an_action).collect(),
            full_shares,
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

/// Returns the words with at least `most` rounds.
fn full(counts: Counts<'_>, most: usize) -> impl Iterator<Item = String> {
    counts.into_iter().filter(move |(_, count)| *count >= most).map(|(word, _)| word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_ONCE: usize = RoundBounds::JOBS.at_once;
    const OF_AN_ACTION: usize = RoundBounds::JOBS.of_an_action;

    fn none(_: &JobKey) -> bool {
        false
    }

    fn job(namespace: &str, name: usize) -> JobKey {
        JobKey { namespace: namespace.into(), name: name.to_string() }
    }

    /// Begins `count` rounds of a namespace, each of an action of its own.
    fn begin(rounds: &mut RunningRounds<JobKey>, namespace: &str, count: usize) {
        for number in 0..count {
            // Only a task has an id, so the test spawns an empty one.
            let id = tokio::spawn(async {}).id();
            let counts = CountsFor { share: namespace.into(), action: Some(format!("{namespace}-{number}")) };
            rounds.begin(id, job(namespace, number), counts);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_that_takes_long_gives_its_place_to_another_namespace() {
        let mut rounds = RunningRounds::within(RoundBounds::JOBS);
        begin(&mut rounds, "hung", AT_ONCE);
        let free_slots = rounds.free_slots(Instant::now(), none);
        assert!(free_slots.is_full && free_slots.next == Some(Instant::now() + LONG));
        tokio::time::advance(LONG).await;
        let free_slots = rounds.free_slots(Instant::now(), none);
        assert!(free_slots.has_room("other") && !free_slots.has_room("hung"));
        for number in 0..10 {
            begin(&mut rounds, &format!("hung-{number}"), AT_ONCE);
            tokio::time::advance(LONG).await;
        }
        assert!(rounds.free_slots(Instant::now(), none).is_full, "there is an end to it");
    }

    #[tokio::test(start_paused = true)]
    async fn an_action_keeps_its_bound_while_its_rounds_are_short() {
        let mut rounds = RunningRounds::within(RoundBounds::JOBS);
        for number in 0..OF_AN_ACTION {
            let id = tokio::spawn(async {}).id();
            rounds.begin(id, job("a", number), CountsFor { share: "a".into(), action: Some("Slow".into()) });
        }
        assert_eq!(rounds.free_slots(Instant::now(), none).full_actions, ["Slow"]);
        assert!(!rounds.free_slots(Instant::now(), none).is_full);
        tokio::time::advance(LONG).await;
        assert!(rounds.free_slots(Instant::now(), none).full_actions.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_that_calls_its_plugin_keeps_its_place_however_long_that_takes() {
        let (mut rounds, calling) = (RunningRounds::within(RoundBounds::JOBS), Calling::default());
        let ends: Vec<_> = (0..OF_AN_ACTION).map(|number| calling.begin(&job("a", number))).collect();
        for number in 0..OF_AN_ACTION {
            let id = tokio::spawn(async {}).id();
            rounds.begin(id, job("a", number), CountsFor { share: "a".into(), action: Some("Slow".into()) });
        }
        tokio::time::advance(5 * LONG).await;
        let free_slots = rounds.free_slots(Instant::now(), |job| calling.includes(job));
        assert_eq!(free_slots.full_actions, ["Slow"]);
        assert!(free_slots.has_room("a"), "another action's job of the namespace goes on");
        assert!(free_slots.next.is_some_and(|next| next > Instant::now()), "it is looked at again");
        drop(ends);
        let free_slots = rounds.free_slots(Instant::now(), |job| calling.includes(job));
        assert!(free_slots.full_actions.is_empty() && !free_slots.has_room("a"), "now it waits for the API server");
    }

    #[tokio::test(start_paused = true)]
    async fn one_share_leaves_places_for_rounds_to_the_others() {
        let mut rounds = RunningRounds::within(RoundBounds::FLOWS);
        begin(&mut rounds, "crowded", RoundBounds::FLOWS.of_a_share);
        let free_slots = rounds.free_slots(Instant::now(), none);
        assert!(free_slots.has_room("other") && !free_slots.has_room("crowded"));
    }
}
