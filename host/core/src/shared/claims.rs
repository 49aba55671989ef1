//! Claims: the target that a replacement belongs to, across the jobs of a namespace.
//!
//! A claim is on one object, by kind, name and UID: a later object of that name is free. No claim is granted in a
//! namespace before each of its jobs was read in this term, since one of them may have stored the object that another
//! is about to claim. Source: docs/operationjob.md 3.7.

use std::collections::{BTreeMap, BTreeSet};

use crate::job::key::JobKey;
use crate::plugin::manifest::TargetKind;

/// An object that is claimed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimedObject {
    /// Its kind, such as `Pod`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its UID; empty while the object was never seen, which means every object of that name.
    pub uid: String,
}

/// The holder of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The job.
    pub job: JobKey,
    /// Index of the target in it.
    pub index: u32,
    /// UID of the target: two jobs may share an object for one and the same target.
    pub target_uid: String,
}

type Place = (String, String, String);

/// The claims of one term.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Claims {
    held: BTreeMap<Place, Vec<(String, Claim)>>,
    by_job: BTreeMap<JobKey, BTreeMap<u32, BTreeSet<ClaimedObject>>>,
    /// Replacements claimed by deleted jobs, with the UID each replaced. They stay taken until they are gone
    /// themselves.
    retired: BTreeMap<Place, Vec<(String, String)>>,
    unread: BTreeMap<String, BTreeSet<JobKey>>,
    /// Those that may work on nodes, which are in no namespace.
    unread_of_nodes: BTreeSet<JobKey>,
}

fn place(namespace: &str, object: &ClaimedObject) -> Place {
    // A node is in no namespace.
    let namespace = if object.kind == TargetKind::Node.word() { "" } else { namespace };
    (namespace.to_owned(), object.kind.clone(), object.name.clone())
}

/// True if two UIDs may name the same object.
fn same(a: &str, b: &str) -> bool {
    a.is_empty() || b.is_empty() || a == b
}

impl Claims {
    /// Notes a job that this term has not read yet.
    pub fn expect(&mut self, job: &JobKey) {
        self.unread.entry(job.namespace.clone()).or_default().insert(job.clone());
    }

    /// Notes a job that this term has not read yet, and that may work on nodes.
    pub fn expect_nodes(&mut self, job: &JobKey) {
        self.unread_of_nodes.insert(job.clone());
    }

    /// Notes that this term has read the job, or that it is gone.
    pub fn read(&mut self, job: &JobKey) {
        self.unread_of_nodes.remove(job);
        let Some(unread) = self.unread.get_mut(&job.namespace) else { return };
        unread.remove(job);
        if unread.is_empty() {
            self.unread.remove(&job.namespace);
        }
    }

    /// True if claims may be granted in `namespace`.
    pub fn ready(&self, namespace: &str) -> bool {
        !self.unread.contains_key(namespace)
    }

    /// True if targets of this kind may be started for a job of `namespace`: of nodes, also once all jobs that may work on
    /// them were read, whatever their namespace.
    pub fn may_start(&self, kind: TargetKind, namespace: &str) -> bool {
        self.ready(namespace) && (kind == TargetKind::Pod || self.unread_of_nodes.is_empty())
    }

    /// The objects that the job holds.
    pub fn objects(&self, job: &JobKey) -> impl Iterator<Item = &ClaimedObject> {
        self.by_job.get(job).into_iter().flat_map(BTreeMap::values).flatten()
    }

    /// True if any job holds the object.
    pub fn is_held(&self, namespace: &str, object: &ClaimedObject) -> bool {
        let held = self.held.get(&place(namespace, object));
        held.is_some_and(|held| held.iter().any(|(uid, _)| same(uid, &object.uid)))
    }

    /// True if a target of another UID holds the object, or held it when its job was deleted.
    pub fn taken(&self, namespace: &str, object: &ClaimedObject, target_uid: &str) -> bool {
        let place = place(namespace, object);
        let held = self.held.get(&place).into_iter().flatten();
        let retired = self.retired.get(&place).into_iter().flatten();
        let mut holders = held.map(|(uid, claim)| (uid, &claim.target_uid)).chain(retired.map(|(uid, by)| (uid, by)));
        holders.any(|(uid, by)| same(uid, &object.uid) && by != target_uid)
    }

    /// Grants the object. `false` if a target of another UID holds it.
    pub fn claim(&mut self, object: &ClaimedObject, claim: Claim) -> bool {
        if self.taken(&claim.job.namespace, object, &claim.target_uid) {
            return false;
        }
        let own = self.by_job.entry(claim.job.clone()).or_default();
        own.entry(claim.index).or_default().insert(object.clone());
        let holders = self.held.entry(place(&claim.job.namespace, object)).or_default();
        let entry = (object.uid.clone(), claim);
        if !holders.contains(&entry) {
            holders.push(entry);
        }
        true
    }

    /// Gives up the claims of one target of the job, except `kept`.
    pub fn release_except(&mut self, job: &JobKey, index: u32, kept: &[ClaimedObject]) {
        let Some(own) = self.by_job.get_mut(job).and_then(|own| own.get_mut(&index)) else { return };
        let released: Vec<_> = own.iter().filter(|object| !kept.contains(object)).cloned().collect();
        own.retain(|object| kept.contains(object));
        released.iter().for_each(|object| self.drop_claim(job, index, object));
    }

    /// Forgets a deleted job. Those of its replacements that are still there stay taken, lest they be counted twice, until
    /// they are gone too.
    pub fn forget(&mut self, job: &JobKey, is_there: impl Fn(&ClaimedObject) -> bool) {
        for (index, objects) in self.by_job.remove(job).unwrap_or_default() {
            for object in objects {
                let place = place(&job.namespace, &object);
                let mut held = self.held.get(&place).into_iter().flatten();
                let own = held.find(|(_, claim)| claim.job == *job && claim.index == index);
                let target = own.map(|(_, claim)| claim.target_uid.clone());
                self.drop_claim(job, index, &object);
                if let Some(target) = target.filter(|_| is_there(&object)) {
                    self.retired.entry(place).or_default().push((object.uid.clone(), target));
                }
            }
        }
        self.read(job);
    }

    /// Notes that the object is gone: any job may claim another one of its name.
    pub fn gone(&mut self, namespace: &str, object: &ClaimedObject) {
        if self.retired.is_empty() {
            return;
        }
        let place = place(namespace, object);
        if let Some(retired) = self.retired.get_mut(&place) {
            retired.retain(|(uid, _)| !same(uid, &object.uid));
            if retired.is_empty() {
                self.retired.remove(&place);
            }
        }
    }

    fn drop_claim(&mut self, job: &JobKey, index: u32, object: &ClaimedObject) {
        let place = place(&job.namespace, object);
        let Some(holders) = self.held.get_mut(&place) else { return };
        holders.retain(|(uid, claim)| claim.job != *job || claim.index != index || *uid != object.uid);
        if holders.is_empty() {
            self.held.remove(&place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(job: &str, index: u32, uid: &str) -> Claim {
        Claim { job: JobKey { namespace: "d".into(), name: job.into() }, index, target_uid: uid.into() }
    }

    fn pod(name: &str, uid: &str) -> ClaimedObject {
        ClaimedObject { kind: "Pod".into(), name: name.into(), uid: uid.into() }
    }

    #[test]
    fn no_two_targets_hold_one_object_but_two_jobs_share_it_for_one_target() {
        let mut claims = Claims::default();
        let new = pod("new", "n");
        assert!(claims.claim(&new, claim("a", 0, "u1")));
        assert!(!claims.claim(&new, claim("a", 1, "u2")));
        assert!(claims.claim(&new, claim("b", 4, "u1")));
        claims.forget(&claim("a", 0, "").job, |_| true);
        assert!(claims.taken("d", &new, "u2"));
        claims.forget(&claim("b", 0, "").job, |_| true);
        assert!(!claims.claim(&new, claim("a", 1, "u2")), "it took the place of u1, whoever knows of that");
        assert!(claims.claim(&new, claim("c", 0, "u1")));
        claims.forget(&claim("c", 0, "").job, |_| true);
        claims.gone("d", &new);
        assert!(claims.claim(&new, claim("a", 1, "u2")));
    }

    #[test]
    fn a_new_pod_that_went_before_its_job_is_not_remembered() {
        let mut claims = Claims::default();
        assert!(claims.claim(&pod("new", "n"), claim("a", 0, "u1")));
        claims.forget(&claim("a", 0, "").job, |_| false);
        assert!(claims.retired.is_empty() && !claims.taken("d", &pod("new", "n"), "u2"));
    }

    #[test]
    fn a_later_object_of_the_same_name_is_free() {
        let mut claims = Claims::default();
        assert!(claims.claim(&pod("db-0", "u2"), claim("a", 0, "u1")));
        assert!(claims.claim(&pod("db-0", "u3"), claim("b", 0, "u2")));
        assert!(claims.taken("d", &pod("db-0", "u2"), "x"));
        claims.forget(&claim("a", 0, "").job, |_| true);
        assert!(!claims.taken("d", &pod("db-0", "u4"), "u3"));
    }

    #[test]
    fn nothing_is_granted_before_every_job_of_the_namespace_was_read() {
        let mut claims = Claims::default();
        let (a, b) = (claim("a", 0, "").job, claim("b", 0, "").job);
        claims.expect(&a);
        claims.expect(&b);
        claims.read(&a);
        assert!(!claims.ready("d"));
        claims.read(&b);
        assert!(claims.ready("d"));
    }

    #[test]
    fn nodes_wait_for_the_jobs_of_every_namespace_that_may_work_on_them_and_a_node_is_claimed_once() {
        let mut claims = Claims::default();
        let far = JobKey { namespace: "far".into(), name: "a".into() };
        claims.expect(&far);
        claims.expect_nodes(&far);
        assert!(claims.may_start(TargetKind::Pod, "d") && !claims.may_start(TargetKind::Node, "d"));
        claims.read(&far);
        assert!(claims.may_start(TargetKind::Node, "d"));
        let spare = ClaimedObject { kind: "Node".into(), name: "spare".into(), uid: "n".into() };
        assert!(claims.claim(&spare, Claim { job: far, index: 0, target_uid: "u1".into() }));
        assert!(!claims.claim(&spare, claim("b", 0, "u2")));
    }

    #[test]
    fn a_target_that_chooses_anew_gives_up_its_first_choice() {
        let mut claims = Claims::default();
        claims.claim(&pod("one", "1"), claim("a", 0, "u1"));
        claims.claim(&pod("two", "2"), claim("a", 0, "u1"));
        claims.release_except(&claim("a", 0, "").job, 0, &[pod("two", "2")]);
        assert!(!claims.taken("d", &pod("one", "1"), "x"));
        assert!(claims.taken("d", &pod("two", "2"), "x"));
    }
}
