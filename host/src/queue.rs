//! The jobs that are due for a round, and their due times.
//!
//! One job never has two rounds at once: changes that come meanwhile wait in its inbox. Namespaces with jobs that are due have
//! their turns one after the other.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::Hash;

use k8s_openapi::jiff::Timestamp;
use oarlock_core::cluster::writes::EntryResult;
use oarlock_core::job::key::JobKey;
use oarlock_core::round::memory::JobMemory;
use oarlock_kube::flows::FlowKey;
use oarlock_kube::ops::OpsKey;
use tokio::time::{Duration, Instant};

/// First wait after a failed round; doubles.
const FIRST_WAIT: Duration = Duration::from_millis(50);
/// Longest such wait.
pub const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Shortest time from the end of a round of a job to the next one, so that changes that come together are one round.
const GATHERING: Duration = Duration::from_millis(5);

/// The changes of a job since its last round began.
#[derive(Debug, Default)]
pub struct Inbox {
    /// Targets changed by something other than this host, or for which an object was found to be free.
    pub changed: BTreeSet<u32>,
    /// Targets with an object of which only the version changed.
    pub seen_anew: BTreeSet<u32>,
    /// Targets with a terminating or deleted object, its UID and the time at which it was asked to terminate.
    pub departed: Vec<(u32, String, Timestamp)>,
    /// Results of writes.
    pub results: Vec<EntryResult>,
    /// Every target that is not at rest is to be visited.
    pub revisit: bool,
    /// Reads the stored records again.
    pub resync: bool,
    /// The time of the first of these.
    pub since: Option<Instant>,
}

impl Inbox {
    /// Moves everything into the memory for the round.
    pub fn empty_into(self, memory: &mut JobMemory) {
        self.changed.into_iter().for_each(|index| memory.turn_to(index));
        self.seen_anew.into_iter().for_each(|index| memory.seen_anew(index));
        for (index, uid, time) in self.departed {
            if memory.latest(index).is_some_and(|target| target.uid.as_deref() == Some(&uid)) {
                memory.target(index).expects.asked_to_go(time);
            }
        }
        memory.results.extend(self.results);
        if self.revisit {
            memory.turn_to_all();
        }
        if self.resync {
            memory.resync();
        }
    }
}

/// What has rounds.
pub trait HasRounds: Clone + Ord + Hash {
    /// The namespace that it is in, to which rounds are given fairly, or whose share stands for one.
    fn namespace(&self) -> &str;
}

impl HasRounds for JobKey {
    fn namespace(&self) -> &str {
        &self.namespace
    }
}

impl HasRounds for FlowKey {
    fn namespace(&self) -> &str {
        match self {
            Self::Parent(_, namespace, _) | Self::Template(namespace, _) => namespace,
        }
    }
}

/// OpsJobs are in no namespace, so those of one requester count as one.
impl HasRounds for OpsKey {
    fn namespace(&self) -> &str {
        &self.share
    }
}

/// What waits for a round.
pub trait Waiting: Default {
    /// Notes the time of the first thing that came.
    fn came(&mut self, now: Instant);
}

impl Waiting for Inbox {
    fn came(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }
}

impl Waiting for Option<Instant> {
    fn came(&mut self, now: Instant) {
        self.get_or_insert(now);
    }
}

#[derive(Debug)]
struct Slot<M, I> {
    /// `None` while its round runs.
    memory: Option<Box<M>>,
    inbox: I,
    due: Option<Instant>,
    /// No round begins before this time.
    rests_until: Option<Instant>,
    tries: u32,
    /// When the last round began.
    began: Option<Instant>,
    /// When the first of the rounds in a row that failed began.
    failing_since: Option<Instant>,
}

/// The jobs that are due for a round, or other objects that have rounds.
#[derive(Debug)]
pub struct Queue<K = JobKey, M = JobMemory, I = Inbox> {
    slots: HashMap<K, Slot<M, I>>,
    /// Those with a due time to come, or that has come since the last look.
    due: BTreeSet<(Instant, K)>,
    /// Those whose time has come, by namespace.
    ready: BTreeMap<String, BTreeSet<(Instant, K)>>,
    /// The namespaces of those, in turn.
    turns: VecDeque<String>,
    /// Jobs that became due while their round runs: due again once it ends.
    missed: BTreeSet<K>,
}

impl<K, M, I> Default for Queue<K, M, I> {
    fn default() -> Self {
        Self {
            slots: HashMap::new(),
            due: BTreeSet::new(),
            ready: BTreeMap::new(),
            turns: VecDeque::new(),
            missed: BTreeSet::new(),
        }
    }
}

impl<K: HasRounds, M: Default, I: Waiting> Queue<K, M, I> {
    /// Notes a change in a job's inbox, and makes the job due.
    pub fn enqueue(&mut self, key: &K, note: impl FnOnce(&mut I)) {
        self.note(key, note);
        self.at(key, Instant::now());
    }

    /// Notes a change in a job's inbox, for its next round.
    pub fn note(&mut self, key: &K, note: impl FnOnce(&mut I)) {
        let fresh = || Slot {
            memory: Some(Box::default()),
            inbox: I::default(),
            due: None,
            rests_until: None,
            tries: 0,
            began: None,
            failing_since: None,
        };
        let slot = self.slots.entry(key.clone()).or_insert_with(fresh);
        note(&mut slot.inbox);
        slot.inbox.came(Instant::now());
    }

    /// Every job that is known.
    pub fn keys(&self) -> Vec<K> {
        self.slots.keys().cloned().collect()
    }

    /// The number of jobs that are due at `now`.
    pub fn due(&self, now: Instant) -> usize {
        let ready: usize = self.ready.values().map(BTreeSet::len).sum();
        ready + self.due.iter().take_while(|(time, _)| *time <= now).count()
    }

    /// Makes the job due at `time`, or before.
    fn at(&mut self, key: &K, time: Instant) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        if slot.memory.is_none() {
            self.missed.insert(key.clone());
            return;
        }
        let time = slot.rests_until.map_or(time, |rest| rest.max(time));
        if slot.due.is_some_and(|due| due <= time) {
            return;
        }
        if let Some(due) = slot.due.replace(time) {
            self.take_back(due, key);
        }
        self.due.insert((time, key.clone()));
    }

    /// Takes back that the job is due at this time.
    fn take_back(&mut self, due: Instant, key: &K) {
        let entry = (due, key.clone());
        if self.due.remove(&entry) {
            return;
        }
        let namespace = key.namespace();
        if let Some(ready) = self.ready.get_mut(namespace)
            && ready.remove(&entry)
            && ready.is_empty()
        {
            self.ready.remove(namespace);
            self.turns.retain(|turn| turn != namespace);
        }
    }

    /// Moves those whose time has come to their namespaces.
    fn look(&mut self, now: Instant) {
        while let Some(entry) = self.due.pop_first() {
            if entry.0 > now {
                self.due.insert(entry);
                break;
            }
            let namespace = entry.1.namespace();
            if !self.ready.contains_key(namespace) {
                self.turns.push_back(namespace.to_owned());
            }
            self.ready.entry(namespace.to_owned()).or_default().insert(entry);
        }
    }

    /// The due time of the next job: of those that are due now, one that may have a round.
    pub fn next(&self, may: impl Fn(&K) -> bool) -> Option<Instant> {
        let now = Instant::now();
        let ready = self.ready.values().flatten().find(|(_, key)| may(key));
        let next = ready.or_else(|| self.due.iter().find(|(time, key)| *time > now || may(key)));
        next.map(|(time, _)| *time)
    }

    /// Takes the next job that is due and may have a round, with its memory and its inbox. Namespaces without one keep their
    /// turn.
    pub fn take(&mut self, now: Instant, may: impl Fn(&K) -> bool) -> Option<(K, Box<M>, I)> {
        self.look(now);
        let first = |namespace: &String| self.ready.get(namespace)?.iter().find(|(_, key)| may(key)).cloned();
        let (turn, entry) =
            self.turns.iter().enumerate().find_map(|(turn, namespace)| Some((turn, first(namespace)?)))?;
        let namespace = self.turns.remove(turn)?;
        let ready = self.ready.get_mut(&namespace)?;
        ready.remove(&entry);
        if ready.is_empty() {
            self.ready.remove(&namespace);
        } else {
            self.turns.push_back(namespace);
        }
        let (_, key) = entry;
        let slot = self.slots.get_mut(&key)?;
        slot.due = None;
        slot.began = Some(now);
        let memory = slot.memory.take()?;
        Some((key, memory, std::mem::take(&mut slot.inbox)))
    }

    /// Ends a round that lacked something to be read. The next one is due at once, and counts as the same one.
    pub fn again(&mut self, key: &K, memory: Box<M>) {
        self.ended(key, memory, Some(Duration::ZERO));
    }

    /// Ends a round that was made. The next one is due after `wait`.
    pub fn done(&mut self, key: &K, memory: Box<M>, wait: Option<Duration>) {
        if let Some(slot) = self.slots.get_mut(key) {
            slot.tries = 0;
            slot.failing_since = None;
        }
        self.ended(key, memory, wait);
    }

    fn ended(&mut self, key: &K, memory: Box<M>, wait: Option<Duration>) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        let now = Instant::now();
        slot.memory = Some(memory);
        slot.rests_until = now.checked_add(GATHERING);
        if let Some(due) = wait.and_then(|wait| now.checked_add(wait)) {
            self.at(key, due);
        }
        if self.missed.remove(key) {
            self.at(key, now);
        }
    }

    /// Repeats a failed round after a wait, which is returned: at least `at_least`, regardless of changes of the job
    /// meanwhile.
    pub fn failed(&mut self, key: &K, memory: Box<M>, at_least: Option<Duration>) -> Duration {
        self.failed_within(key, memory, at_least, LONGEST_WAIT)
    }

    /// The same with another longest wait, unless `at_least` is longer.
    pub fn failed_within(&mut self, key: &K, memory: Box<M>, at_least: Option<Duration>, most: Duration) -> Duration {
        let Some(slot) = self.slots.get_mut(key) else { return FIRST_WAIT };
        let now = Instant::now();
        slot.memory = Some(memory);
        let doubled = FIRST_WAIT.saturating_mul(2u32.saturating_pow(slot.tries.min(12))).min(most);
        let wait = doubled.max(at_least.unwrap_or_default()).min(LONGEST_WAIT);
        slot.tries = slot.tries.saturating_add(1);
        slot.failing_since = slot.failing_since.or(slot.began);
        slot.rests_until = now.checked_add(wait);
        self.missed.remove(key);
        self.at(key, now);
        wait
    }

    /// The time for which every round of a job has failed.
    pub fn fails_for(&self, key: &K) -> Duration {
        let since = self.slots.get(key).and_then(|slot| slot.failing_since);
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Removes a deleted job. If a change of that name came meanwhile, the name has a round as another job.
    pub fn gone(&mut self, key: &K) {
        if let Some(slot) = self.slots.remove(key)
            && let Some(due) = slot.due
        {
            self.take_back(due, key);
        }
        if self.missed.remove(key) {
            self.enqueue(key, |_| {});
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> JobKey {
        JobKey { namespace: "d".into(), name: "j".into() }
    }

    fn any(_: &JobKey) -> bool {
        true
    }

    #[test]
    fn rounds_of_ops_jobs_are_shared_by_their_requesters_and_not_by_their_names() {
        let key = |share: &str, name: &str| OpsKey { share: share.into(), name: name.into() };
        let mut queue: Queue<OpsKey, (), Option<Instant>> = Queue::default();
        (0..9).for_each(|number| queue.enqueue(&key("namespace/crowded", &format!("a{number}")), |_| {}));
        queue.enqueue(&key("namespace/other", "z"), |_| {});
        let mut next = || queue.take(Instant::now(), |_| true).unwrap().0;
        let (first, second) = (next(), next());
        assert_eq!((first.name.as_str(), second.name.as_str()), ("a0", "z"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_during_a_round_is_seen_by_the_next() {
        let mut queue: Queue = Queue::default();
        queue.enqueue(&key(), |inbox| inbox.changed.extend([1]));
        let (_, memory, inbox) = queue.take(Instant::now(), any).unwrap();
        assert!(inbox.changed.contains(&1));
        queue.enqueue(&key(), |inbox| inbox.changed.extend([2]));
        assert!(queue.take(Instant::now(), any).is_none(), "one job never has two rounds at once");
        queue.done(&key(), memory, None);
        let due = queue.next(any).unwrap();
        assert!(due <= Instant::now() + GATHERING);
        assert!(queue.take(due, any).unwrap().2.changed.contains(&2));
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_the_first_change_of_a_round_is_kept_also_while_another_one_runs() {
        let mut queue: Queue<JobKey, JobMemory, Option<Instant>> = Queue::default();
        let begun = Instant::now();
        queue.enqueue(&key(), |_| {});
        tokio::time::advance(Duration::from_secs(1)).await;
        queue.enqueue(&key(), |_| {});
        let (_, memory, since) = queue.take(Instant::now(), any).unwrap();
        assert_eq!(since, Some(begun));
        queue.enqueue(&key(), |_| {});
        tokio::time::advance(Duration::from_secs(1)).await;
        queue.done(&key(), memory, None);
        let due = queue.next(any).unwrap();
        tokio::time::advance(due.saturating_duration_since(Instant::now())).await;
        let (_, memory, since) = queue.take(due, any).unwrap();
        assert_eq!(since, Some(begun + Duration::from_secs(1)));
        queue.done(&key(), memory, Some(Duration::ZERO));
        let due = queue.next(any).unwrap();
        tokio::time::advance(due.saturating_duration_since(Instant::now())).await;
        assert_eq!(queue.take(due, any).unwrap().2, None, "its time came, and nothing else");
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_that_only_asks_for_the_records_ends_no_row_of_failures() {
        let mut queue: Queue = Queue::default();
        queue.enqueue(&key(), |_| {});
        let mut waits = Vec::new();
        for _ in 0..4 {
            for asks in [true, false] {
                let due = queue.next(any).unwrap();
                tokio::time::advance(due.saturating_duration_since(Instant::now())).await;
                let (key, memory, _) = queue.take(due, any).unwrap();
                if asks {
                    queue.again(&key, memory);
                } else {
                    waits.push(queue.failed(&key, memory, None).as_millis());
                }
            }
        }
        assert_eq!(waits, [50, 100, 200, 400]);
        assert!(queue.fails_for(&key()) > Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_that_is_to_be_made_again_soon_waits_no_longer_than_that() {
        let mut queue: Queue = Queue::default();
        queue.enqueue(&key(), |_| {});
        let most = Duration::from_millis(150);
        let mut waits = Vec::new();
        for at_least in [None, None, None, Some(Duration::from_secs(2))] {
            let due = queue.next(any).unwrap();
            tokio::time::advance(due.saturating_duration_since(Instant::now())).await;
            let (key, memory, _) = queue.take(due, any).unwrap();
            waits.push(queue.failed_within(&key, memory, at_least, most).as_millis());
        }
        assert_eq!(waits, [50, 100, 150, 2_000]);
    }

    #[tokio::test(start_paused = true)]
    async fn rounds_that_fail_are_counted_from_the_beginning_of_the_first() {
        let mut queue: Queue = Queue::default();
        queue.enqueue(&key(), |_| {});
        for expected in [10, 20] {
            let due = queue.next(any).unwrap();
            tokio::time::advance(due.saturating_duration_since(Instant::now())).await;
            let (key, memory, _) = queue.take(due, any).unwrap();
            tokio::time::advance(Duration::from_secs(10)).await;
            queue.failed(&key, memory, None);
            assert_eq!(queue.fails_for(&key).as_secs(), expected);
        }
        let due = queue.next(any).unwrap();
        let (key, memory, _) = queue.take(due, any).unwrap();
        queue.done(&key, memory, None);
        assert_eq!(queue.fails_for(&key), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_that_fails_is_made_again_later_and_later_whatever_happens() {
        let mut queue: Queue = Queue::default();
        queue.enqueue(&key(), |_| {});
        let mut waits = Vec::new();
        for _ in 0..3 {
            let due = queue.next(any).unwrap();
            let (key, memory, _) = queue.take(due, any).unwrap();
            waits.push(queue.failed(&key, memory, None));
            queue.enqueue(&key, |_| {});
            assert!(queue.take(Instant::now(), any).is_none());
        }
        assert!(waits[0] < waits[1] && waits[1] < waits[2]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_that_may_have_no_round_now_lets_the_others_go_first() {
        let mut queue: Queue = Queue::default();
        let other = JobKey { name: "other".into(), ..key() };
        queue.enqueue(&key(), |_| {});
        tokio::time::advance(Duration::from_secs(1)).await;
        queue.enqueue(&other, |_| {});
        let mays = |named: &JobKey| named.name == "other";
        assert_eq!(queue.next(mays), Some(Instant::now()));
        assert_eq!(queue.take(Instant::now(), mays).unwrap().0, other);
        assert_eq!((queue.next(mays), queue.take(Instant::now(), mays).is_none()), (None, true));
        assert_eq!(queue.take(Instant::now(), any).unwrap().0, key(), "it has kept its place");
    }

    #[tokio::test(start_paused = true)]
    async fn namespaces_have_their_rounds_in_turn_however_many_of_one_are_due() {
        let mut queue: Queue = Queue::default();
        let of = |namespace: &str, name: usize| JobKey { namespace: namespace.into(), name: name.to_string() };
        for number in 0..100 {
            queue.enqueue(&of("crowded", number), |_| {});
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        queue.enqueue(&of("small", 0), |_| {});
        queue.enqueue(&of("full", 0), |_| {});
        queue.enqueue(&of("small", 1), |_| {});
        queue.gone(&of("crowded", 2));
        let mays = |key: &JobKey| key.namespace != "full";
        let taken: Vec<String> =
            std::iter::from_fn(|| queue.take(Instant::now(), mays)).take(5).map(|(key, ..)| key.to_string()).collect();
        assert_eq!(taken, ["crowded/0", "small/0", "crowded/1", "small/1", "crowded/10"]);
        assert_eq!(queue.take(Instant::now(), any).unwrap().0, of("full", 0), "it has kept its turn");
        assert_eq!(queue.due(Instant::now()), 96);
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_server_is_given_the_time_it_asks_for() {
        let mut queue: Queue = Queue::default();
        queue.enqueue(&key(), |_| {});
        let (key, memory, _) = queue.take(Instant::now(), any).unwrap();
        assert_eq!(queue.failed(&key, memory, Some(Duration::from_secs(7))), Duration::from_secs(7));
        assert!(queue.next(any).unwrap() >= Instant::now() + Duration::from_secs(7));
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_whose_round_lost_its_memory_goes_on_with_an_empty_one() {
        let mut queue: Queue = Queue::default();
        queue.enqueue(&key(), |_| {});
        let (key, memory, _) = queue.take(Instant::now(), any).unwrap();
        drop(memory);
        queue.failed(&key, Box::default(), None);
        let due = queue.next(any).unwrap();
        assert!(queue.take(due, any).is_some());
    }
}
