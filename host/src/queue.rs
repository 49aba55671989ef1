//! The queue of jobs that are due for a round.
//!
//! A job never has two rounds at once. Changes during a round wait beside the job. Shares with due jobs take turns. The
//! share of an object is its namespace, or what stands for a namespace.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use oarlock_core::object::key::JobKey;
use oarlock_core::operation_job::round::memory::JobMemory;
use oarlock_core::requests::backoff::Backoff;
use oarlock_core::requests::writes::BatchResult;
use tokio::time::{Duration, Instant};

/// The backoff after failed rounds.
pub const FAILED: Backoff = Backoff::from_millis(50, 30_000);
/// The shortest time between two rounds of a job, so that simultaneous changes lead to one round.
const GATHERING: Duration = Duration::from_millis(5);

/// The changes of a job since its last round began.
#[derive(Debug, Default)]
pub struct JobChanges {
    /// Targets that another client changed, or for which an object was freed.
    pub changed: BTreeSet<u32>,
    /// Targets with an object of which only the resourceVersion changed.
    pub requeue_on_new_version: BTreeSet<u32>,
    /// Targets with a terminating or deleted object, its UID, and the time of the request to terminate.
    pub departed: Vec<(u32, String, Timestamp)>,
    /// The results of writes.
    pub results: Vec<BatchResult>,
    /// True to visit every unfinished target.
    pub revisit: bool,
    /// True to read the stored records again.
    pub resync: bool,
    /// The time of the first of these changes.
    pub since: Option<Instant>,
}

impl JobChanges {
    /// Moves all changes into the memory of the round.
    pub fn move_into(self, memory: &mut JobMemory) {
        self.changed.into_iter().for_each(|index| memory.work.requeue(index, &mut memory.targets));
        self.requeue_on_new_version
            .into_iter()
            .for_each(|index| memory.work.requeue_on_new_version(index, &mut memory.targets));
        for (index, uid, time) in self.departed {
            if memory.decisions.latest(&memory.stored, index).is_some_and(|target| target.uid.as_deref() == Some(&uid))
            {
                memory.targets.memory_of(index).expects.asked_to_go(time);
            }
        }
        memory.work.results.extend(self.results);
        if self.revisit {
            memory.requeue_all();
        }
        if self.resync {
            memory.resync();
        }
    }
}

/// Returns the share that the rounds of an object count against: its namespace, or what stands for a namespace. Shares
/// get rounds in turn.
pub type ShareOf<K> = Arc<dyn Fn(&K) -> String + Send + Sync>;

/// The changes that wait for a round.
pub trait PendingChanges: Default {
    /// Records the time of the first change.
    fn note_change(&mut self, now: Instant);
}

impl PendingChanges for JobChanges {
    fn note_change(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }
}

impl PendingChanges for Option<Instant> {
    fn note_change(&mut self, now: Instant) {
        self.get_or_insert(now);
    }
}

#[derive(Debug)]
struct QueueEntry<M, I> {
    /// The share of the object, as of the time when it became due.
    share: String,
    /// The memory of the job; `None` while its round runs.
    memory: Option<Box<M>>,
    changes: I,
    due: Option<Instant>,
    /// The time before which no round starts.
    backs_off_until: Option<Instant>,
    tries: u32,
    /// The start of the last round.
    began: Option<Instant>,
    /// The start of the first round in the current series of failures.
    failing_since: Option<Instant>,
}

/// A job whose round is due, or another object with rounds.
#[derive(Debug)]
pub struct DueRound<K, M, I> {
    /// The key of the object.
    pub key: K,
    /// The share that the round counts against.
    pub share: String,
    /// The memory of the object.
    pub memory: Box<M>,
    /// The changes since the last round began.
    pub changes: I,
}

/// The queue of jobs, or of other objects with rounds.
pub struct Queue<K = JobKey, M = JobMemory, I = JobChanges> {
    share_of: ShareOf<K>,
    queued: HashMap<K, QueueEntry<M, I>>,
    /// Objects with a due time in the future, or due since the last call of `promote_due`.
    due: BTreeSet<(Instant, K)>,
    /// The due objects, by share.
    ready: BTreeMap<String, BTreeSet<(Instant, K)>>,
    /// The shares of the due objects, in the order of their turns.
    turns: VecDeque<String>,
    /// Jobs that became due during their round. They are due again when it ends.
    missed: BTreeSet<K>,
}

impl<M: Default, I: PendingChanges> Default for Queue<JobKey, M, I> {
    /// Returns an empty queue of jobs. The jobs of a namespace share its turns.
    fn default() -> Self {
        Self::shared_by(Arc::new(|job: &JobKey| job.namespace.clone()))
    }
}

impl<K: Clone + Ord + Hash, M: Default, I: PendingChanges> Queue<K, M, I> {
    /// Returns an empty queue whose objects have these shares.
    pub fn shared_by(share_of: ShareOf<K>) -> Self {
        Self {
            share_of,
            queued: HashMap::new(),
            due: BTreeSet::new(),
            ready: BTreeMap::new(),
            turns: VecDeque::new(),
            missed: BTreeSet::new(),
        }
    }

    /// Returns the share of a known object.
    fn share(&self, key: &K) -> &str {
        self.queued.get(key).map_or("", |queued| queued.share.as_str())
    }

    /// Adds a pending change to a job, and makes the job due.
    pub fn enqueue(&mut self, key: &K, note: impl FnOnce(&mut I)) {
        self.note(key, note);
        self.at(key, Instant::now());
    }

    /// Adds a pending change to a job, for its next round.
    pub fn note(&mut self, key: &K, note: impl FnOnce(&mut I)) {
        let fresh = || QueueEntry {
            share: String::new(),
            memory: Some(Box::default()),
            changes: I::default(),
            due: None,
            backs_off_until: None,
            tries: 0,
            began: None,
            failing_since: None,
        };
        let queued_job = self.queued.entry(key.clone()).or_insert_with(fresh);
        note(&mut queued_job.changes);
        queued_job.changes.note_change(Instant::now());
    }

    /// Returns all known jobs.
    pub fn keys(&self) -> Vec<K> {
        self.queued.keys().cloned().collect()
    }

    /// Returns the number of jobs that are due at `now`.
    pub fn due(&self, now: Instant) -> usize {
        let ready: usize = self.ready.values().map(BTreeSet::len).sum();
        ready + self.due.iter().take_while(|(time, _)| *time <= now).count()
    }

    /// Makes the job due at `time` or earlier.
    fn at(&mut self, key: &K, time: Instant) {
        let Some(queued_job) = self.queued.get_mut(key) else { return };
        if queued_job.memory.is_none() {
            self.missed.insert(key.clone());
            return;
        }
        let time = queued_job.backs_off_until.map_or(time, |rest| rest.max(time));
        if queued_job.due.is_some_and(|due| due <= time) {
            return;
        }
        match queued_job.due.replace(time) {
            Some(due) => self.remove_due(due, key),
            // The share does not change while an entry of the object is in `due` or `ready`.
            None => queued_job.share = (self.share_of)(key),
        }
        self.due.insert((time, key.clone()));
    }

    /// Removes an entry for the time at which a job is due.
    fn remove_due(&mut self, due: Instant, key: &K) {
        let entry = (due, key.clone());
        if self.due.remove(&entry) {
            return;
        }
        let Some(share) = self.queued.get(key).map(|queued_job| &queued_job.share) else { return };
        if let Some(ready) = self.ready.get_mut(share)
            && ready.remove(&entry)
            && ready.is_empty()
        {
            self.ready.remove(share);
            self.turns.retain(|turn| turn != share);
        }
    }

    /// Moves the objects that became due to their shares.
    fn promote_due(&mut self, now: Instant) {
        while let Some(entry) = self.due.pop_first() {
            if entry.0 > now {
                self.due.insert(entry);
                break;
            }
            let share = self.share(&entry.1).to_owned();
            if !self.ready.contains_key(&share) {
                self.turns.push_back(share.clone());
            }
            self.ready.entry(share).or_default().insert(entry);
        }
    }

    /// Returns the due time of the next job. Skips due jobs that may not have a round. `may` gets the share and the key.
    pub fn next(&self, may: impl Fn(&str, &K) -> bool) -> Option<Instant> {
        let now = Instant::now();
        let mut ready = self.ready.iter().flat_map(|(share, due)| due.iter().map(move |entry| (share, entry)));
        let ready = ready.find(|(share, (_, key))| may(share, key)).map(|(_, entry)| entry);
        let next = ready.or_else(|| self.due.iter().find(|(time, key)| *time > now || may(self.share(key), key)));
        next.map(|(time, _)| *time)
    }

    /// Takes the next due job that may have a round, with its memory and its pending changes. A share without such a job
    /// keeps its turn. `may` gets the share and the key.
    pub fn take(&mut self, now: Instant, may: impl Fn(&str, &K) -> bool) -> Option<DueRound<K, M, I>> {
        self.promote_due(now);
        let first = |share: &String| self.ready.get(share)?.iter().find(|(_, key)| may(share, key)).cloned();
        let (turn, entry) = self.turns.iter().enumerate().find_map(|(turn, share)| Some((turn, first(share)?)))?;
        let share = self.turns.remove(turn)?;
        let ready = self.ready.get_mut(&share)?;
        ready.remove(&entry);
        if ready.is_empty() {
            self.ready.remove(&share);
        } else {
            self.turns.push_back(share.clone());
        }
        let (_, key) = entry;
        let queued_job = self.queued.get_mut(&key)?;
        queued_job.due = None;
        queued_job.began = Some(now);
        let memory = queued_job.memory.take()?;
        Some(DueRound { share, memory, changes: std::mem::take(&mut queued_job.changes), key })
    }

    /// Ends a round that needs further reads. The next round is due at once, and counts as the same round.
    pub fn requeue_now(&mut self, key: &K, memory: Box<M>) {
        self.ended(key, memory, Some(Duration::ZERO));
    }

    /// Ends a successful round. The next round is due after `wait`.
    pub fn done(&mut self, key: &K, memory: Box<M>, wait: Option<Duration>) {
        if let Some(queued_job) = self.queued.get_mut(key) {
            queued_job.tries = 0;
            queued_job.failing_since = None;
        }
        self.ended(key, memory, wait);
    }

    fn ended(&mut self, key: &K, memory: Box<M>, wait: Option<Duration>) {
        let Some(queued_job) = self.queued.get_mut(key) else { return };
        let now = Instant::now();
        queued_job.memory = Some(memory);
        queued_job.backs_off_until = now.checked_add(GATHERING);
        if let Some(due) = wait.and_then(|wait| now.checked_add(wait)) {
            self.at(key, due);
        }
        if self.missed.remove(key) {
            self.at(key, now);
        }
    }

    /// Ends a failed round. Returns the wait before the next one, which is at least `at_least`. Changes of the job do
    /// not shorten the wait.
    pub fn failed(&mut self, key: &K, memory: Box<M>, at_least: Option<Duration>) -> Duration {
        self.failed_within(key, memory, at_least, FAILED.longest())
    }

    /// Ends a failed round with another longest wait, unless `at_least` is longer.
    pub fn failed_within(&mut self, key: &K, memory: Box<M>, at_least: Option<Duration>, most: Duration) -> Duration {
        let Some(queued_job) = self.queued.get_mut(key) else { return FAILED.wait(0) };
        let now = Instant::now();
        queued_job.memory = Some(memory);
        let doubled = FAILED.wait(queued_job.tries).min(most);
        let wait = doubled.max(at_least.unwrap_or_default()).min(FAILED.longest());
        queued_job.tries = queued_job.tries.saturating_add(1);
        queued_job.failing_since = queued_job.failing_since.or(queued_job.began);
        queued_job.backs_off_until = now.checked_add(wait);
        self.missed.remove(key);
        self.at(key, now);
        wait
    }

    /// Returns the time for which every round of a job has failed.
    pub fn fails_for(&self, key: &K) -> Duration {
        let since = self.queued.get(key).and_then(|queued_job| queued_job.failing_since);
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Removes a deleted job. If its name changed meanwhile, the name gets a round as a new job.
    pub fn gone(&mut self, key: &K) {
        if let Some(due) = self.queued.get(key).and_then(|queued_job| queued_job.due) {
            self.remove_due(due, key);
        }
        self.queued.remove(key);
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

    fn any(_: &str, _: &JobKey) -> bool {
        true
    }

    #[test]
    fn objects_without_a_namespace_take_turns_by_their_shares_and_not_by_their_names() {
        let of_first_letter = |key: &JobKey| key.name.chars().take(1).collect();
        let mut queue: Queue<JobKey, (), Option<Instant>> = Queue::shared_by(Arc::new(of_first_letter));
        let key = |name: &str| JobKey { namespace: String::new(), name: name.into() };
        (0..9).for_each(|number| queue.enqueue(&key(&format!("a{number}")), |_| {}));
        queue.enqueue(&key("z"), |_| {});
        let mut next = || queue.take(Instant::now(), any).unwrap().key.name;
        assert_eq!([next(), next()], ["a0", "z"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_during_a_round_is_seen_by_the_next() {
        let mut queue: Queue = Queue::default();
        queue.enqueue(&key(), |changes| changes.changed.extend([1]));
        let DueRound { memory, changes, .. } = queue.take(Instant::now(), any).unwrap();
        assert!(changes.changed.contains(&1));
        queue.enqueue(&key(), |changes| changes.changed.extend([2]));
        assert!(queue.take(Instant::now(), any).is_none(), "one job never has two rounds at once");
        queue.done(&key(), memory, None);
        let due = queue.next(any).unwrap();
        assert!(due <= Instant::now() + GATHERING);
        assert!(queue.take(due, any).unwrap().changes.changed.contains(&2));
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_the_first_change_of_a_round_is_kept_also_while_another_one_runs() {
        let mut queue: Queue<JobKey, JobMemory, Option<Instant>> = Queue::default();
        let begun = Instant::now();
        queue.enqueue(&key(), |_| {});
        tokio::time::advance(Duration::from_secs(1)).await;
        queue.enqueue(&key(), |_| {});
        let DueRound { memory, changes: since, .. } = queue.take(Instant::now(), any).unwrap();
        assert_eq!(since, Some(begun));
        queue.enqueue(&key(), |_| {});
        tokio::time::advance(Duration::from_secs(1)).await;
        queue.done(&key(), memory, None);
        let due = queue.next(any).unwrap();
        tokio::time::advance(due.saturating_duration_since(Instant::now())).await;
        let DueRound { memory, changes: since, .. } = queue.take(due, any).unwrap();
        assert_eq!(since, Some(begun + Duration::from_secs(1)));
        queue.done(&key(), memory, Some(Duration::ZERO));
        let due = queue.next(any).unwrap();
        tokio::time::advance(due.saturating_duration_since(Instant::now())).await;
        assert_eq!(queue.take(due, any).unwrap().changes, None, "its time came, and nothing else");
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
                let DueRound { key, memory, .. } = queue.take(due, any).unwrap();
                if asks {
                    queue.requeue_now(&key, memory);
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
            let DueRound { key, memory, .. } = queue.take(due, any).unwrap();
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
            let DueRound { key, memory, .. } = queue.take(due, any).unwrap();
            tokio::time::advance(Duration::from_secs(10)).await;
            queue.failed(&key, memory, None);
            assert_eq!(queue.fails_for(&key).as_secs(), expected);
        }
        let due = queue.next(any).unwrap();
        let DueRound { key, memory, .. } = queue.take(due, any).unwrap();
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
            let DueRound { key, memory, .. } = queue.take(due, any).unwrap();
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
        let mays = |_: &str, named: &JobKey| named.name == "other";
        assert_eq!(queue.next(mays), Some(Instant::now()));
        assert_eq!(queue.take(Instant::now(), mays).unwrap().key, other);
        assert_eq!((queue.next(mays), queue.take(Instant::now(), mays).is_none()), (None, true));
        assert_eq!(queue.take(Instant::now(), any).unwrap().key, key(), "it has kept its place");
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
        let mays = |_: &str, key: &JobKey| key.namespace != "full";
        let taken: Vec<String> =
            std::iter::from_fn(|| queue.take(Instant::now(), mays)).take(5).map(|due| due.key.to_string()).collect();
        assert_eq!(taken, ["crowded/0", "small/0", "crowded/1", "small/1", "crowded/10"]);
        assert_eq!(queue.take(Instant::now(), any).unwrap().key, of("full", 0), "it has kept its turn");
        assert_eq!(queue.due(Instant::now()), 96);
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_server_is_given_the_time_it_asks_for() {
        let mut queue: Queue = Queue::default();
        queue.enqueue(&key(), |_| {});
        let DueRound { key, memory, .. } = queue.take(Instant::now(), any).unwrap();
        assert_eq!(queue.failed(&key, memory, Some(Duration::from_secs(7))), Duration::from_secs(7));
        assert!(queue.next(any).unwrap() >= Instant::now() + Duration::from_secs(7));
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_whose_round_lost_its_memory_goes_on_with_an_empty_one() {
        let mut queue: Queue = Queue::default();
        queue.enqueue(&key(), |_| {});
        let DueRound { key, memory, .. } = queue.take(Instant::now(), any).unwrap();
        drop(memory);
        queue.failed(&key, Box::default(), None);
        let due = queue.next(any).unwrap();
        assert!(queue.take(due, any).is_some());
    }
}
