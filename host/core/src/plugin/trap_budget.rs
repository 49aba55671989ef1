//! The budget of traps after which a new version of a plugin goes back to the version before.
//!
//! One user can make any plugin trap on targets of his own. So traps count only if they concern several jobs of several owners, and if they are more than a
//! small part of all visits.

use std::collections::{BTreeMap, VecDeque};

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::object::key::JobKey;
use crate::object::quota_key::QuotaKey;

/// The time that the budget looks back, in minutes.
const MINUTES: i64 = 10;
/// The least number of traps.
const TRAPS: usize = 5;
/// The least number of jobs.
const JOBS: usize = 3;
/// The least number of owners.
const OWNERS: usize = 2;
/// The share of visits that may trap, as `1 / SHARE`.
const SHARE: u64 = 20;
/// The most owners, and the most jobs of an owner, that the budget keeps.
const MOST_KEPT: usize = 16;

/// A visit of a target.
#[derive(Clone, Copy, Debug)]
pub struct NotedVisit<'a> {
    /// The job of the target.
    pub job: &'a JobKey,
    /// The key that the job counts against.
    pub owner: &'a QuotaKey,
    /// True if the plugin trapped or exceeded a limit.
    pub trapped: bool,
    /// The time of the visit.
    pub now: Timestamp,
}

/// The visits of one minute.
#[derive(Clone, Copy, Debug, Default)]
struct Minute {
    number: i64,
    visits: u64,
    traps: u64,
}

/// The visits and traps of one version of a plugin in the last minutes.
#[derive(Debug, Default)]
pub struct TrapBudget {
    minutes: VecDeque<Minute>,
    /// The times of the last traps of each job, by owner.
    traps: BTreeMap<QuotaKey, BTreeMap<JobKey, VecDeque<Timestamp>>>,
}

impl TrapBudget {
    /// Counts a visit. Returns true if the version has used up its budget.
    pub fn note(&mut self, visit: NotedVisit<'_>) -> bool {
        let number = visit.now.as_second().div_euclid(60);
        self.minutes.retain(|minute| minute.number > number - MINUTES);
        if self.minutes.back().is_none_or(|last| last.number != number) {
            self.minutes.push_back(Minute { number, ..Minute::default() });
        }
        if let Some(minute) = self.minutes.back_mut() {
            minute.visits += 1;
            minute.traps += u64::from(visit.trapped);
        }
        visit.trapped && self.note_trap(visit)
    }

    fn note_trap(&mut self, visit: NotedVisit<'_>) -> bool {
        let oldest = visit.now.checked_sub(SignedDuration::from_mins(MINUTES)).unwrap_or(Timestamp::MIN);
        for jobs in self.traps.values_mut() {
            jobs.values_mut().for_each(|times| times.retain(|time| *time > oldest));
            jobs.retain(|_, times| !times.is_empty());
        }
        self.traps.retain(|_, jobs| !jobs.is_empty());
        if self.traps.len() < MOST_KEPT || self.traps.contains_key(visit.owner) {
            let jobs = self.traps.entry(visit.owner.clone()).or_default();
            if jobs.len() < MOST_KEPT || jobs.contains_key(visit.job) {
                let times = jobs.entry(visit.job.clone()).or_default();
                times.push_back(visit.now);
                // One job alone never uses up the budget.
                if times.len() > TRAPS {
                    times.pop_front();
                }
            }
        }
        self.is_used_up()
    }

    fn is_used_up(&self) -> bool {
        let jobs = || self.traps.values().flat_map(BTreeMap::values);
        let (visits, traps) =
            self.minutes.iter().fold((0, 0), |(visits, traps), one| (visits + one.visits, traps + one.traps));
        self.traps.len() >= OWNERS
            && jobs().count() >= JOBS
            && jobs().map(VecDeque::len).sum::<usize>() >= TRAPS
            && traps * SHARE > visits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 * 60 + second).unwrap()
    }

    /// Visits targets of these jobs, each `OWNER/JOB`, at a second. Returns true if the budget is used up after one of them.
    fn visits(budget: &mut TrapBudget, jobs: &[&str], trapped: bool, second: i64) -> bool {
        let mut note = |job: &&str| {
            let (owner, name) = job.split_once('/').unwrap();
            let key = JobKey { namespace: owner.to_owned(), name: name.to_owned() };
            let owner = QuotaKey::Namespace(owner.to_owned());
            budget.note(NotedVisit { job: &key, owner: &owner, trapped, now: at(second) })
        };
        // Each visit counts, also those after the first that uses the budget up.
        jobs.iter().filter(|job| note(job)).count() > 0
    }

    #[test]
    fn five_traps_of_three_jobs_of_two_owners_use_the_budget_up() {
        let mut budget = TrapBudget::default();
        assert!(!visits(&mut budget, &["a/1", "a/2", "b/1", "b/1"], true, 0));
        assert!(visits(&mut budget, &["a/1"], true, 1));
    }

    #[test]
    fn one_owner_or_two_jobs_never_use_the_budget_up() {
        let mut budget = TrapBudget::default();
        let one_owner: Vec<String> = (0..100).map(|job| format!("a/{job}")).collect();
        let one_owner: Vec<&str> = one_owner.iter().map(String::as_str).collect();
        assert!(!visits(&mut budget, &one_owner, true, 0), "one user makes any plugin trap");
        let mut budget = TrapBudget::default();
        for second in 0..60 {
            assert!(!visits(&mut budget, &["a/1", "b/1"], true, second));
        }
    }

    #[test]
    fn traps_that_are_a_twentieth_of_the_visits_or_older_than_ten_minutes_do_not_count() {
        let jobs = ["a/1", "a/2", "b/1", "b/2", "c/1"];
        let mut budget = TrapBudget::default();
        visits(&mut budget, &["a/9"; 95], false, 0);
        assert!(!visits(&mut budget, &jobs, true, 1), "5 of 100");
        assert!(visits(&mut budget, &["a/1"], true, 2), "6 of 101");
        let mut budget = TrapBudget::default();
        assert!(!visits(&mut budget, &jobs[..4], true, 0));
        assert!(!visits(&mut budget, &jobs[4..], true, 601));
    }

    #[test]
    fn a_flood_of_owners_and_jobs_costs_bounded_memory() {
        let mut budget = TrapBudget::default();
        for number in 0..10_000 {
            visits(&mut budget, &[&format!("o{number}/j"), &format!("a/{number}")], true, 0);
        }
        assert!(budget.traps.len() <= MOST_KEPT && budget.traps.values().all(|jobs| jobs.len() <= MOST_KEPT));
    }
}
