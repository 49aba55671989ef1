//! The write batches of one term that wait or are in flight. Plain data: this module sends nothing.
//!
//! Each target has at most one waiting batch and at most one batch in flight. A target with a batch in flight is
//! *busy*. Invalidations of a resourceVersion go first, then writes of targets that started in an earlier round, then
//! writes of targets that start. Within each priority, the jobs alternate.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::object::key::JobKey;
use crate::requests::writes::{Priority, WriteBatch};

/// Number of waiting batches at which a job starts no more targets.
pub const ENOUGH_WAITING: usize = 64;
/// Most targets of one job that have write batches.
pub const MOST_BATCHES: usize = 250;

/// The write batches of one term.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct WriteQueue {
    jobs: BTreeMap<String, JobBatches>,
    job_order: [VecDeque<String>; 3],
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct JobBatches {
    key: JobKey,
    waiting: BTreeMap<Option<u32>, WriteBatch>,
    /// The waiting batches by priority, in the order in which they came.
    order: [VecDeque<Option<u32>>; 3],
    sending: BTreeSet<Option<u32>>,
}

impl WriteQueue {
    /// Adds a batch. The batch replaces a waiting batch of the same target.
    pub fn push(&mut self, entry: WriteBatch) {
        let priority_index = priority_index(entry.priority);
        let (uid, index) = (entry.job.uid.clone(), entry.index);
        let job = self.jobs.entry(uid.clone()).or_default();
        job.key.clone_from(&entry.job.key);
        job.remove_waiting(index);
        if let Some(order) = job.order.get_mut(priority_index) {
            order.push_back(index);
        }
        job.waiting.insert(index, entry);
        if let Some(job_order) = self.job_order.get_mut(priority_index)
            && !job_order.contains(&uid)
        {
            job_order.push_back(uid);
        }
    }

    /// Removes a target's waiting batch. Returns true if the host may decide again about the target, which it may not
    /// while the target is busy.
    pub fn withdraw(&mut self, job_uid: &str, index: u32) -> bool {
        let Some(job) = self.jobs.get_mut(job_uid) else { return true };
        job.remove_waiting(Some(index));
        let free = !job.sending.contains(&Some(index));
        self.tidy(job_uid);
        free
    }

    /// Removes all waiting batches of a job. Returns true if no batch of the job is in flight.
    pub fn withdraw_job(&mut self, job_uid: &str) -> bool {
        let Some(job) = self.jobs.get_mut(job_uid) else { return true };
        job.waiting.clear();
        job.order.iter_mut().for_each(VecDeque::clear);
        self.tidy(job_uid);
        !self.jobs.contains_key(job_uid)
    }

    /// Removes all waiting batches of every job with this key, because no such job exists any more. Returns true if
    /// none of their batches is in flight.
    pub fn withdraw_key(&mut self, key: &JobKey) -> bool {
        let uids = self.jobs.iter().filter(|(_, job)| job.key == *key).map(|(uid, _)| uid.clone());
        let uids: Vec<String> = uids.collect();
        let quiet = uids.iter().filter(|uid| self.withdraw_job(uid)).count();
        quiet == uids.len()
    }

    /// Removes all waiting batches.
    pub fn withdraw_all(&mut self) {
        let jobs: Vec<String> = self.jobs.keys().cloned().collect();
        for uid in &jobs {
            self.withdraw_job(uid);
        }
    }

    /// Returns the next batch to send, from a namespace that has capacity. The batch is in flight from then on.
    pub fn take_next(&mut self, has_room: impl Fn(&str) -> bool) -> Option<WriteBatch> {
        (0..self.job_order.len()).find_map(|priority_index| self.take_of(priority_index, &has_room))
    }

    fn take_of(&mut self, priority_index: usize, has_room: impl Fn(&str) -> bool) -> Option<WriteBatch> {
        let job_order = self.job_order.get_mut(priority_index)?;
        let mut passed_over = VecDeque::new();
        let mut next = None;
        while next.is_none()
            && let Some(uid) = job_order.pop_front()
        {
            let Some(job) = self.jobs.get_mut(&uid) else { continue };
            if !has_room(&job.key.namespace) {
                passed_over.push_back(uid);
                continue;
            }
            next = job.first(priority_index);
            if next.is_some() && job.order.get(priority_index).is_some_and(|order| !order.is_empty()) {
                job_order.push_back(uid);
            }
        }
        // The jobs that were passed over keep their places.
        passed_over.append(job_order);
        *job_order = passed_over;
        next
    }

    /// Removes a batch that has its result from those in flight. `index` is `None` for a batch of the job itself.
    pub fn finished(&mut self, job_uid: &str, index: Option<u32>) {
        if let Some(job) = self.jobs.get_mut(job_uid) {
            job.sending.remove(&index);
            for (order, job_order) in job.order.iter().zip(&mut self.job_order) {
                if !order.is_empty() && !job_order.iter().any(|uid| uid == job_uid) {
                    job_order.push_back(job_uid.to_owned());
                }
            }
        }
        self.tidy(job_uid);
    }

    /// Returns true if a batch of the target is in flight.
    pub fn is_in_flight(&self, job_uid: &str, index: u32) -> bool {
        self.jobs.get(job_uid).is_some_and(|job| job.sending.contains(&Some(index)))
    }

    /// Returns true if the target has a batch, waiting or in flight.
    pub fn has_batch(&self, job_uid: &str, index: u32) -> bool {
        let has = |job: &JobBatches| job.waiting.contains_key(&Some(index)) || job.sending.contains(&Some(index));
        self.jobs.get(job_uid).is_some_and(has)
    }

    /// Returns true if the job itself has a batch, waiting or in flight.
    pub fn has_job_batch(&self, job_uid: &str) -> bool {
        self.jobs.get(job_uid).is_some_and(|job| job.sending.contains(&None) || job.waiting.contains_key(&None))
    }

    /// Returns the number of waiting batches of the job.
    pub fn waiting(&self, job_uid: &str) -> usize {
        self.jobs.get(job_uid).map_or(0, |job| job.waiting.len())
    }

    /// Returns the number of waiting batches of all jobs.
    pub fn all_waiting(&self) -> usize {
        self.jobs.values().map(|job| job.waiting.len()).sum()
    }

    /// Returns the number of batches of the job, waiting or in flight.
    pub fn entries(&self, job_uid: &str) -> usize {
        self.jobs.get(job_uid).map_or(0, |job| job.waiting.len() + job.sending.len())
    }

    /// Returns true if a batch may be sent from a namespace that has capacity.
    pub fn has_next(&self, has_room: impl Fn(&str) -> bool) -> bool {
        let ready = |job: &JobBatches| job.waiting.keys().any(|index| !job.sending.contains(index));
        self.jobs.values().any(|job| has_room(&job.key.namespace) && ready(job))
    }

    /// Returns true if no batch waits and no batch is in flight.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    fn tidy(&mut self, job_uid: &str) {
        if self.jobs.get(job_uid).is_some_and(|job| job.waiting.is_empty() && job.sending.is_empty()) {
            self.jobs.remove(job_uid);
        }
    }
}

impl JobBatches {
    fn remove_waiting(&mut self, index: Option<u32>) {
        if let Some(entry) = self.waiting.remove(&index)
            && let Some(order) = self.order.get_mut(priority_index(entry.priority))
        {
            order.retain(|other| *other != index);
        }
    }

    /// Removes and returns the oldest batch of a priority whose target is not busy. The batch is in flight from then
    /// on.
    fn first(&mut self, priority_index: usize) -> Option<WriteBatch> {
        let order = self.order.get_mut(priority_index)?;
        let at = order.iter().position(|index| !self.sending.contains(index))?;
        let index = order.remove(at)?;
        let entry = self.waiting.remove(&index)?;
        self.sending.insert(index);
        Some(entry)
    }
}

fn priority_index(priority: Priority) -> usize {
    match priority {
        Priority::Invalidate => 0,
        Priority::Operated => 1,
        Priority::First => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::key::JobRef;

    fn entry(job: &str, index: u32, priority: Priority) -> WriteBatch {
        let key = JobKey { namespace: "d".into(), name: job.into() };
        WriteBatch {
            job: JobRef { key, uid: job.into() },
            index: Some(index),
            target_uid: format!("{job}-{index}"),
            attempt: 1,
            epoch: 1,
            priority,
            writes: vec![],
            made_as: None,
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
        queue.push(entry("a", 2, Priority::Invalidate));
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
        queue.push(WriteBatch { attempt: 2, ..entry("a", 0, Priority::Operated) });
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
        assert!(!queue.withdraw("a", 0) && queue.is_in_flight("a", 0));
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
        queue.push(WriteBatch { attempt: 2, ..entry("a", 0, Priority::Operated) });
        assert_eq!(queue.take_next(|_| true), None);
        queue.finished("a", Some(0));
        assert_eq!(queue.take_next(|_| true).map(|entry| entry.attempt), Some(2));
    }

    #[test]
    fn a_namespace_without_room_is_passed_over_and_keeps_its_turn() {
        let mut queue = WriteQueue::default();
        let mut elsewhere = entry("b", 0, Priority::First);
        elsewhere.job.key.namespace = "e".into();
        queue.push(entry("a", 0, Priority::Invalidate));
        queue.push(entry("c", 0, Priority::First));
        queue.push(elsewhere);
        let full = |namespace: &str| namespace != "d";
        assert!(queue.has_next(full));
        assert_eq!(queue.take_next(full).map(|entry| entry.target_uid), Some("b-0".to_owned()));
        assert!(!queue.has_next(full) && queue.take_next(full).is_none());
        assert_eq!(sent(&mut queue), ["a-0", "c-0"]);
    }
}
