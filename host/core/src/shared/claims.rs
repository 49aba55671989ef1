//! Claims: which target holds the value of an exclusive extra, across jobs.
//!
//! One table for a term of leadership. Takes what jobs have stored and what rounds decide; says who holds a value, and
//! whether claims may be granted in a namespace yet: not before each of its jobs was read in this term, since one of
//! them may hold what another is about to take. Source: spec/operationjob.md §3.7, "Claims".

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::cluster::writes::JobKey;

/// Who holds a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The job.
    pub job: JobKey,
    /// Index of the target in it.
    pub index: u32,
    /// UID of the target: two jobs may share a value for one and the same target.
    pub target_uid: String,
}

/// The table.
#[derive(Debug, Default)]
pub struct Claims {
    held: HashMap<(String, String), Vec<Claim>>,
    by_job: HashMap<JobKey, BTreeMap<u32, BTreeSet<String>>>,
    /// What jobs held that are gone, with the UID of the target whose place it took: it took that place for good.
    left: HashMap<(String, String), String>,
    unread: HashMap<String, BTreeSet<JobKey>>,
}

impl Claims {
    /// A job that this term has not read yet.
    pub fn expect(&mut self, job: &JobKey) {
        self.unread.entry(job.namespace.clone()).or_default().insert(job.clone());
    }

    /// This term has read the job, or it is gone. Yields whether its namespace became ready by that.
    pub fn read(&mut self, job: &JobKey) -> bool {
        let Some(unread) = self.unread.get_mut(&job.namespace) else { return false };
        unread.remove(job);
        if unread.is_empty() {
            self.unread.remove(&job.namespace);
            return true;
        }
        false
    }

    /// Whether claims may be granted in `namespace`.
    pub fn ready(&self, namespace: &str) -> bool {
        !self.unread.contains_key(namespace)
    }

    /// What the job holds.
    pub fn values(&self, job: &JobKey) -> impl Iterator<Item = &String> {
        self.by_job.get(job).into_iter().flat_map(BTreeMap::values).flatten()
    }

    /// Who holds `value`: the first of those who share it.
    pub fn holder(&self, namespace: &str, value: &str) -> Option<&Claim> {
        self.held.get(&(namespace.to_owned(), value.to_owned()))?.first()
    }

    /// All who share `value`.
    pub fn holders(&self, namespace: &str, value: &str) -> &[Claim] {
        self.held.get(&(namespace.to_owned(), value.to_owned())).map_or(&[], Vec::as_slice)
    }

    /// Whether a target of another UID holds `value`, or held it when its job went.
    pub fn taken(&self, namespace: &str, value: &str, target_uid: &str) -> bool {
        let left = || self.left.get(&(namespace.to_owned(), value.to_owned()));
        match self.holder(namespace, value) {
            Some(claim) => claim.target_uid != target_uid,
            None => !self.left.is_empty() && left().is_some_and(|uid| uid != target_uid),
        }
    }

    /// Grants `value`. `false` where a target of another UID holds it.
    pub fn claim(&mut self, value: &str, claim: Claim) -> bool {
        if self.taken(&claim.job.namespace, value, &claim.target_uid) {
            return false;
        }
        let own = self.by_job.entry(claim.job.clone()).or_default();
        own.entry(claim.index).or_default().insert(value.to_owned());
        let holders = self.held.entry((claim.job.namespace.clone(), value.to_owned())).or_default();
        if !holders.contains(&claim) {
            holders.push(claim);
        }
        true
    }

    /// Lets go of what one target of the job holds, but for `kept`.
    pub fn lapse(&mut self, job: &JobKey, index: u32, kept: &[&str]) {
        let Some(values) = self.by_job.get_mut(job).and_then(|own| own.get_mut(&index)) else { return };
        let lapsed: Vec<_> = values.iter().filter(|value| !kept.contains(&value.as_str())).cloned().collect();
        values.retain(|value| kept.contains(&value.as_str()));
        lapsed.iter().for_each(|value| self.drop_value(job, index, value));
    }

    /// The job is gone and holds nothing any more. What took a target's place stays taken, lest it be counted twice,
    /// until it has vanished too.
    pub fn forget(&mut self, job: &JobKey) {
        for (index, values) in self.by_job.remove(job).unwrap_or_default() {
            for value in &values {
                let key = (job.namespace.clone(), value.clone());
                let own = |claim: &&Claim| claim.job == *job && claim.index == index;
                let uid = self.held.get(&key).into_iter().flatten().find(own).map(|claim| claim.target_uid.clone());
                self.drop_value(job, index, value);
                self.left.extend(uid.map(|uid| (key, uid)));
            }
        }
        self.read(job);
    }

    /// The object of that name is gone; another one of its name may be claimed by anybody.
    pub fn vanished(&mut self, namespace: &str, name: &str) {
        if !self.left.is_empty() {
            self.left.remove(&(namespace.to_owned(), name.to_owned()));
        }
    }

    fn drop_value(&mut self, job: &JobKey, index: u32, value: &str) {
        let key = (job.namespace.clone(), value.to_owned());
        let Some(holders) = self.held.get_mut(&key) else { return };
        holders.retain(|claim| claim.job != *job || claim.index != index);
        if holders.is_empty() {
            self.held.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(job: &str, index: u32, uid: &str) -> Claim {
        Claim { job: JobKey { namespace: "d".into(), name: job.into() }, index, target_uid: uid.into() }
    }

    #[test]
    fn no_two_targets_hold_one_value_but_two_jobs_share_it_for_one_target() {
        let mut claims = Claims::default();
        assert!(claims.claim("new", claim("a", 0, "u1")));
        assert!(!claims.claim("new", claim("a", 1, "u2")));
        assert!(claims.claim("new", claim("b", 4, "u1")));
        claims.forget(&claim("a", 0, "").job);
        assert!(claims.taken("d", "new", "u2"));
        claims.forget(&claim("b", 0, "").job);
        assert!(!claims.claim("new", claim("a", 1, "u2")), "it took the place of u1, whoever knows of that");
        assert!(claims.claim("new", claim("c", 0, "u1")));
        claims.forget(&claim("c", 0, "").job);
        claims.vanished("d", "new");
        assert!(claims.claim("new", claim("a", 1, "u2")));
    }

    #[test]
    fn nothing_is_granted_before_every_job_of_the_namespace_was_read() {
        let mut claims = Claims::default();
        let (a, b) = (claim("a", 0, "").job, claim("b", 0, "").job);
        claims.expect(&a);
        claims.expect(&b);
        assert!(!claims.read(&a));
        assert!(!claims.ready("d"));
        assert!(claims.read(&b));
        assert!(claims.ready("d"));
    }

    #[test]
    fn a_target_that_chooses_anew_lets_its_first_choice_go() {
        let mut claims = Claims::default();
        claims.claim("one", claim("a", 0, "u1"));
        claims.claim("two", claim("a", 0, "u1"));
        claims.lapse(&claim("a", 0, "").job, 0, &["two"]);
        assert!(!claims.taken("d", "one", "x"));
        assert!(claims.taken("d", "two", "x"));
    }
}
