//! Which jobs want a round, and when.
//!
//! Takes changes, times and finished rounds; yields the jobs that are due. One job never has two rounds at once: what
//! happens to it meanwhile waits in its inbox. May not run a round.

use std::collections::{BTreeSet, HashMap};

use k8s_openapi::jiff::Timestamp;
use oarlock_core::job::key::JobKey;
use oarlock_core::round::memory::JobMemory;
use tokio::time::{Duration, Instant};

/// First wait after a round that could not be judged; doubles.
const FIRST_WAIT: Duration = Duration::from_millis(50);
/// Longest such wait.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// What happened to a job since its last round began.
#[derive(Debug, Default)]
pub struct Inbox {
    /// Targets that something happened to.
    pub dirty: BTreeSet<u32>,
    /// Targets whose object goes or is gone, with its UID and the time it was asked to go.
    pub departed: Vec<(u32, String, Timestamp)>,
    /// The stored state is to be read anew.
    pub resync: bool,
    /// When the first of it was seen.
    pub since: Option<Instant>,
}

impl Inbox {
    /// Puts everything where the round finds it.
    pub fn empty_into(self, memory: &mut JobMemory) {
        memory.dirty.extend(self.dirty);
        for (index, uid, time) in self.departed {
            if memory.latest(index).is_some_and(|target| target.uid.as_deref() == Some(&uid)) {
                memory.target(index).asked_to_go(time);
            }
        }
        if self.resync {
            memory.version = None;
        }
    }
}

#[derive(Debug, Default)]
struct Slot {
    /// `None` while its round runs.
    memory: Option<Box<JobMemory>>,
    inbox: Inbox,
    due: Option<Instant>,
    tries: u32,
}

/// Which jobs want a round.
#[derive(Debug, Default)]
pub struct Queue {
    slots: HashMap<JobKey, Slot>,
    due: BTreeSet<(Instant, JobKey)>,
    /// Jobs that are due and whose round runs: again as soon as it is over.
    missed: BTreeSet<JobKey>,
}

impl Queue {
    /// Something happened to the job: it is due now, and `note` says what.
    pub fn happened(&mut self, key: &JobKey, note: impl FnOnce(&mut Inbox)) {
        let now = Instant::now();
        let slot =
            self.slots.entry(key.clone()).or_insert_with(|| Slot { memory: Some(Box::default()), ..Slot::default() });
        note(&mut slot.inbox);
        slot.inbox.since.get_or_insert(now);
        self.at(key, now);
    }

    /// Every job that is known.
    pub fn keys(&self) -> Vec<JobKey> {
        self.slots.keys().cloned().collect()
    }

    /// The job is due at `time`, or before.
    fn at(&mut self, key: &JobKey, time: Instant) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        if slot.memory.is_none() {
            self.missed.insert(key.clone());
            return;
        }
        if slot.due.is_some_and(|due| due <= time) {
            return;
        }
        if let Some(due) = slot.due.replace(time) {
            self.due.remove(&(due, key.clone()));
        }
        self.due.insert((time, key.clone()));
    }

    /// When the next job is due.
    pub fn next(&self) -> Option<Instant> {
        self.due.first().map(|(time, _)| *time)
    }

    /// Takes the next job that is due, with its memory and what happened to it.
    pub fn take(&mut self, now: Instant) -> Option<(JobKey, Box<JobMemory>, Inbox)> {
        if self.next()? > now {
            return None;
        }
        let (_, key) = self.due.pop_first()?;
        let slot = self.slots.get_mut(&key)?;
        slot.due = None;
        let memory = slot.memory.take()?;
        Some((key, memory, std::mem::take(&mut slot.inbox)))
    }

    /// A round is over. The next one is due after `wait`.
    pub fn done(&mut self, key: &JobKey, memory: Box<JobMemory>, wait: Option<Duration>) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        slot.memory = Some(memory);
        slot.tries = 0;
        if let Some(wait) = wait {
            self.at(key, Instant::now() + wait);
        }
        self.catch_up(key);
    }

    /// A round could not be judged. It is made again after a wait, which is returned.
    pub fn failed(&mut self, key: &JobKey, memory: Box<JobMemory>) -> Duration {
        let Some(slot) = self.slots.get_mut(key) else { return FIRST_WAIT };
        slot.memory = Some(memory);
        let wait = (FIRST_WAIT * 2u32.saturating_pow(slot.tries.min(12))).min(LONGEST_WAIT);
        slot.tries = slot.tries.saturating_add(1);
        self.missed.remove(key);
        self.at(key, Instant::now() + wait);
        wait
    }

    /// The job is gone. Where something happened to that name meanwhile, it is looked at once more, as another job.
    pub fn gone(&mut self, key: &JobKey) {
        if let Some(slot) = self.slots.remove(key)
            && let Some(due) = slot.due
        {
            self.due.remove(&(due, key.clone()));
        }
        if self.missed.remove(key) {
            self.happened(key, |_| {});
        }
    }

    fn catch_up(&mut self, key: &JobKey) {
        if self.missed.remove(key) {
            self.at(key, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> JobKey {
        JobKey { namespace: "d".into(), name: "j".into() }
    }

    #[tokio::test(start_paused = true)]
    async fn what_happens_during_a_round_is_seen_by_the_next() {
        let mut queue = Queue::default();
        queue.happened(&key(), |inbox| inbox.dirty.extend([1]));
        let (_, memory, inbox) = queue.take(Instant::now()).unwrap();
        assert!(inbox.dirty.contains(&1));
        queue.happened(&key(), |inbox| inbox.dirty.extend([2]));
        assert!(queue.take(Instant::now()).is_none(), "one job never has two rounds at once");
        queue.done(&key(), memory, None);
        assert!(queue.take(Instant::now()).unwrap().2.dirty.contains(&2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_that_fails_is_made_again_later_and_later() {
        let mut queue = Queue::default();
        queue.happened(&key(), |_| {});
        let mut waits = Vec::new();
        for _ in 0..3 {
            let due = queue.next().unwrap();
            let (key, memory, _) = queue.take(due).unwrap();
            waits.push(queue.failed(&key, memory));
        }
        assert!(waits[0] < waits[1] && waits[1] < waits[2]);
    }
}
