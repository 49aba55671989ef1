//! The writes of one term that wait or are on the wire. Plain data: nothing here sends.
//!
//! Of a target at most one entry waits, and at most one is on the wire. A target whose entry is on the wire is *busy*.
//! Bumps go first, then writes of targets that started in an earlier round, then those of targets that start; within each
//! priority the jobs alternate.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::cluster::writes::{Entry, Priority};
use crate::job::key::JobKey;

/// Number of waiting entries of one job at which it starts no more targets.
pub const ENOUGH_WAITING: usize = 64;
/// Most targets of one job that have entries.
pub const MOST_ENTRIES: usize = 250;

/// The writes of one term.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct WriteQueue {
    jobs: BTreeMap<String, JobEntries>,
    turns: [VecDeque<String>; 3],
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct JobEntries {
    key: JobKey,
    waiting: BTreeMap<Option<u32>, Entry>,
    /// The waiting entries in the order in which they came, by priority.
    order: [VecDeque<Option<u32>>; 3],
    sending: BTreeSet<Option<u32>>,
}

impl WriteQueue {
    /// Adds an entry. It replaces a waiting one of the same target.
    pub fn push(&mut self, entry: Entry) {
        let place = place(entry.priority);
        let (uid, index) = (entry.job.uid.clone(), entry.index);
        let job = self.jobs.entry(uid.clone()).or_default();
        job.key.clone_from(&entry.job.key);
        job.take_back(index);
        if let Some(order) = job.order.get_mut(place) {
            order.push_back(index);
        }
        job.waiting.insert(index, entry);
        if let Some(turns) = self.turns.get_mut(place)
            && !turns.contains(&uid)
        {
            turns.push_back(uid);
        }
    }

    /// Takes a target's waiting entry back. Returns true if the target may be decided again: not while it is busy.
    pub fn withdraw(&mut self, job_uid: &str, index: u32) -> bool {
        let Some(job) = self.jobs.get_mut(job_uid) else { return true };
        job.take_back(Some(index));
        let free = !job.sending.contains(&Some(index));
        self.tidy(job_uid);
        free
    }

    /// Takes all waiting entries of a job back. Returns true if none of its entries is on the wire.
    pub fn withdraw_job(&mut self, job_uid: &str) -> bool {
        let Some(job) = self.jobs.get_mut(job_uid) else { return true };
        job.waiting.clear();
        job.order.iter_mut().for_each(VecDeque::clear);
        self.tidy(job_uid);
        !self.jobs.contains_key(job_uid)
    }

    /// Takes all waiting entries of every job of that key back, for there is none any more. Yields whether nothing of
    /// them is on the wire.
    pub fn withdraw_key(&mut self, key: &JobKey) -> bool {
        let uids = self.jobs.iter().filter(|(_, job)| job.key == *key).map(|(uid, _)| uid.clone());
        let uids: Vec<String> = uids.collect();
        let quiet = uids.iter().filter(|uid| self.withdraw_job(uid)).count();
        quiet == uids.len()
    }

    /// Drops all waiting entries.
    pub fn withdraw_all(&mut self) {
        let jobs: Vec<String> = self.jobs.keys().cloned().collect();
        for uid in &jobs {
            self.withdraw_job(uid);
        }
    }

    /// The next entry to send, of a namespace that has room; it is on the wire from now on.
    pub fn take_next(&mut self, has_room: impl Fn(&str) -> bool) -> Option<Entry> {
        (0..self.turns.len()).find_map(|place| self.take_of(place, &has_room))
    }

    fn take_of(&mut self, place: usize, has_room: impl Fn(&str) -> bool) -> Option<Entry> {
        let turns = self.turns.get_mut(place)?;
        let mut passed_over = VecDeque::new();
        let mut next = None;
        while next.is_none()
            && let Some(uid) = turns.pop_front()
        {
            let Some(job) = self.jobs.get_mut(&uid) else { continue };
            if !has_room(&job.key.namespace) {
                passed_over.push_back(uid);
                continue;
            }
            next = job.first(place);
            if next.is_some() && job.order.get(place).is_some_and(|order| !order.is_empty()) {
                turns.push_back(uid);
            }
        }
        // They keep their turn.
        passed_over.append(turns);
        *turns = passed_over;
        next
    }

    /// Removes an entry that has its result from the wire: of a target, or of the job itself.
    pub fn finished(&mut self, job_uid: &str, index: Option<u32>) {
        if let Some(job) = self.jobs.get_mut(job_uid) {
            job.sending.remove(&index);
            for (order, turns) in job.order.iter().zip(&mut self.turns) {
                if !order.is_empty() && !turns.iter().any(|uid| uid == job_uid) {
                    turns.push_back(job_uid.to_owned());
                }
            }
        }
        self.tidy(job_uid);
    }

    /// True if a request of the target is on the wire.
    pub fn is_busy(&self, job_uid: &str, index: u32) -> bool {
        self.jobs.get(job_uid).is_some_and(|job| job.sending.contains(&Some(index)))
    }

    /// True if the target has an entry, waiting or on the wire.
    pub fn has_entry(&self, job_uid: &str, index: u32) -> bool {
        let has = |job: &JobEntries| job.waiting.contains_key(&Some(index)) || job.sending.contains(&Some(index));
        self.jobs.get(job_uid).is_some_and(has)
    }

    /// True if the job itself has an entry.
    pub fn has_job_entry(&self, job_uid: &str) -> bool {
        self.jobs.get(job_uid).is_some_and(|job| job.sending.contains(&None) || job.waiting.contains_key(&None))
    }

    /// The number of waiting entries of the job.
    pub fn waiting(&self, job_uid: &str) -> usize {
        self.jobs.get(job_uid).map_or(0, |job| job.waiting.len())
    }

    /// The number of waiting entries of all jobs.
    pub fn all_waiting(&self) -> usize {
        self.jobs.values().map(|job| job.waiting.len()).sum()
    }

    /// The number of entries of the job, waiting or on the wire.
    pub fn entries(&self, job_uid: &str) -> usize {
        self.jobs.get(job_uid).map_or(0, |job| job.waiting.len() + job.sending.len())
    }

    /// True if an entry of a namespace that has room may be sent.
    pub fn has_next(&self, has_room: impl Fn(&str) -> bool) -> bool {
        let ready = |job: &JobEntries| job.waiting.keys().any(|index| !job.sending.contains(index));
        self.jobs.values().any(|job| has_room(&job.key.namespace) && ready(job))
    }

    /// True if nothing waits and nothing is on the wire.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    fn tidy(&mut self, job_uid: &str) {
        if self.jobs.get(job_uid).is_some_and(|job| job.waiting.is_empty() && job.sending.is_empty()) {
            self.jobs.remove(job_uid);
        }
    }
}

impl JobEntries {
    fn take_back(&mut self, index: Option<u32>) {
        if let Some(entry) = self.waiting.remove(&index)
            && let Some(order) = self.order.get_mut(place(entry.priority))
        {
            order.retain(|other| *other != index);
        }
    }

    /// The oldest entry of a priority whose target is not busy.
    fn first(&mut self, place: usize) -> Option<Entry> {
        let order = self.order.get_mut(place)?;
        let at = order.iter().position(|index| !self.sending.contains(index))?;
        let index = order.remove(at)?;
        let entry = self.waiting.remove(&index)?;
        self.sending.insert(index);
        Some(entry)
    }
}

fn place(priority: Priority) -> usize {
    match priority {
        Priority::Bump => 0,
        Priority::Operated => 1,
        Priority::First => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::key::JobRef;

    fn entry(job: &str, index: u32, priority: Priority) -> Entry {
        let key = JobKey { namespace: "d".into(), name: job.into() };
        Entry {
            job: JobRef { key, uid: job.into() },
            index: Some(index),
            target_uid: format!("{job}-{index}"),
            attempt: 1,
            epoch: 1,
            priority,
            writes: vec![],
            events: vec![],
            since: None,
            dry_run: false,
        }
    }

    fn sent(queue: &mut WriteQueue) -> Vec<String> {
        std::iter::from_fn(|| queue.take_next(|_| true)).map(|entry| entry.target_uid).collect()
    }

    #[test]
    fn bumps_go_before_further_writes_and_those_before_first_ones() {
        let mut queue = WriteQueue::default();
        queue.push(entry("a", 0, Priority::First));
        queue.push(entry("a", 1, Priority::Operated));
        queue.push(entry("a", 2, Priority::Bump));
        assert_eq!(sent(&mut queue), ["a-2", "a-1", "a-0"]);
    }

    #[test]
    fn a_small_job_does_not_wait_for_a_large_one() {
        let mut queue = WriteQueue::default();
        (0..3).for_each(|index| queue.push(entry("a", index, Priority::First)));
        (0..2).for_each(|index| queue.push(entry("b", index, Priority::First)));
        assert_eq!(sent(&mut queue), ["a-0", "b-0", "a-1", "b-1", "a-2"]);
    }

    #[test]
    fn a_newer_decision_replaces_the_one_that_waits() {
        let mut queue = WriteQueue::default();
        queue.push(entry("a", 0, Priority::First));
        queue.push(Entry { attempt: 2, ..entry("a", 0, Priority::Operated) });
        assert_eq!((queue.waiting("a"), queue.take_next(|_| true).map(|entry| entry.attempt)), (1, Some(2)));
        assert_eq!(queue.take_next(|_| true), None);
    }

    #[test]
    fn what_waits_is_withdrawn_and_what_is_on_the_wire_keeps_its_target_busy() {
        let mut queue = WriteQueue::default();
        queue.push(entry("a", 0, Priority::First));
        assert!(queue.withdraw("a", 0), "nothing of it was sent");
        assert!(queue.is_empty());
        queue.push(entry("a", 0, Priority::First));
        assert!(queue.take_next(|_| true).is_some());
        assert!(!queue.withdraw("a", 0) && queue.is_busy("a", 0));
        assert!(!queue.withdraw_job("a"));
        queue.finished("a", Some(0));
        assert!(queue.withdraw_job("a") && queue.is_empty());
    }

    #[test]
    fn a_job_that_is_gone_is_known_by_its_key_though_its_memory_was_lost() {
        let mut queue = WriteQueue::default();
        queue.push(entry("a", 0, Priority::First));
        queue.push(entry("a", 1, Priority::First));
        assert!(queue.take_next(|_| true).is_some());
        let key = JobKey { namespace: "d".into(), name: "a".into() };
        assert!(!queue.withdraw_key(&key), "one request is on the wire");
        assert_eq!(queue.take_next(|_| true), None);
        queue.finished("a", Some(0));
        assert!(queue.withdraw_key(&key));
    }

    #[test]
    fn an_entry_never_overtakes_the_one_of_its_target_that_is_on_the_wire() {
        let mut queue = WriteQueue::default();
        queue.push(entry("a", 0, Priority::First));
        assert!(queue.take_next(|_| true).is_some());
        queue.push(Entry { attempt: 2, ..entry("a", 0, Priority::Operated) });
        assert_eq!(queue.take_next(|_| true), None);
        queue.finished("a", Some(0));
        assert_eq!(queue.take_next(|_| true).map(|entry| entry.attempt), Some(2));
    }

    #[test]
    fn a_namespace_without_room_is_passed_over_and_keeps_its_turn() {
        let mut queue = WriteQueue::default();
        let mut elsewhere = entry("b", 0, Priority::First);
        elsewhere.job.key.namespace = "e".into();
        queue.push(entry("a", 0, Priority::Bump));
        queue.push(entry("c", 0, Priority::First));
        queue.push(elsewhere);
        let full = |namespace: &str| namespace != "d";
        assert!(queue.has_next(full));
        assert_eq!(queue.take_next(full).map(|entry| entry.target_uid), Some("b-0".to_owned()));
        assert!(!queue.has_next(full) && queue.take_next(full).is_none());
        assert_eq!(sent(&mut queue), ["a-0", "c-0"]);
    }
}
