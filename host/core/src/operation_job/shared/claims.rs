//! Claims: the target that a replacement belongs to, across the jobs of a namespace.
//!
//! A claim is on one object, by kind, name and UID, so a later object of that name is free. The host grants no claim in
//! a namespace before this term has read each of its jobs, because one of them may have stored the object that another
//! job is about to claim. The host stops waiting for a job whose rounds fail. Source: docs/operationjob.md 3.7.

use std::collections::{BTreeMap, BTreeSet};

use crate::object::api_object::Kind;
use crate::object::key::JobKey;
use crate::operation_job::state::{TargetState, extras};
use crate::plugin::manifest::TargetKind;
use crate::plugin::proposal::Registration;

/// An object that is claimed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimedObject {
    /// Kind of the object, such as `Pod`.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// UID of the object. Empty if the host never saw the object, which means every object of that name.
    pub uid: String,
}

/// The holder of a claimed object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The job that holds the object.
    pub job: JobKey,
    /// Index of the target in the job.
    pub index: u32,
    /// UID of the target. Two jobs may share an object for one and the same target.
    pub target_uid: String,
}

type ClaimKey = (String, String, String);

/// The claims of one term.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Claims {
    held: BTreeMap<ClaimKey, Vec<(String, Claim)>>,
    by_job: BTreeMap<JobKey, BTreeMap<u32, BTreeSet<ClaimedObject>>>,
    /// Replacements that deleted jobs claimed, with the UID of the target that each one replaced. They stay taken until
    /// they are gone themselves.
    retired: BTreeMap<ClaimKey, Vec<(String, String)>>,
    unread: BTreeMap<String, BTreeSet<JobKey>>,
    /// Unread jobs that may work on nodes, which are in no namespace.
    unread_of_nodes: BTreeSet<JobKey>,
}

fn claim_key(namespace: &str, object: &ClaimedObject) -> ClaimKey {
    // A node is in no namespace.
    let namespace = if object.kind == TargetKind::Node.word() { "" } else { namespace };
    (namespace.to_owned(), object.kind.clone(), object.name.clone())
}

/// Returns true if two UIDs may name the same object.
fn same(a: &str, b: &str) -> bool {
    a.is_empty() || b.is_empty() || a == b
}

impl Claims {
    /// Records a job that this term has not read yet.
    pub fn expect(&mut self, job: &JobKey) {
        self.unread.entry(job.namespace.clone()).or_default().insert(job.clone());
    }

    /// Records a job that this term has not read yet and that may work on nodes.
    pub fn expect_nodes(&mut self, job: &JobKey) {
        self.unread_of_nodes.insert(job.clone());
    }

    /// Stops the wait for a job: this term has read the job, the job is gone, or its rounds fail.
    pub fn read(&mut self, job: &JobKey) {
        self.unread_of_nodes.remove(job);
        let Some(unread) = self.unread.get_mut(&job.namespace) else { return };
        unread.remove(job);
        if unread.is_empty() {
            self.unread.remove(&job.namespace);
        }
    }

    /// Returns true if the host may grant claims in `namespace`.
    pub fn ready(&self, namespace: &str) -> bool {
        !self.unread.contains_key(namespace)
    }

    /// Returns true if targets of this kind may start for a job of `namespace`. Nodes may start only once this term has
    /// also read all jobs that may work on nodes, in any namespace.
    pub fn may_start(&self, kind: TargetKind, namespace: &str) -> bool {
        self.ready(namespace) && (kind == TargetKind::Pod || self.unread_of_nodes.is_empty())
    }

    /// Returns the objects that the job has claimed.
    pub fn objects(&self, job: &JobKey) -> impl Iterator<Item = &ClaimedObject> {
        self.by_job.get(job).into_iter().flat_map(BTreeMap::values).flatten()
    }

    /// Returns true if any job has claimed the object.
    pub fn is_held(&self, namespace: &str, object: &ClaimedObject) -> bool {
        let held = self.held.get(&claim_key(namespace, object));
        held.is_some_and(|held| held.iter().any(|(uid, _)| same(uid, &object.uid)))
    }

    /// Returns true if a target of another UID holds the object, or held it when its job was deleted.
    pub fn is_claimed_by_another(&self, namespace: &str, object: &ClaimedObject, target_uid: &str) -> bool {
        let claim_key = claim_key(namespace, object);
        let held = self.held.get(&claim_key).into_iter().flatten();
        let retired = self.retired.get(&claim_key).into_iter().flatten();
        let mut holders = held.map(|(uid, claim)| (uid, &claim.target_uid)).chain(retired.map(|(uid, by)| (uid, by)));
        holders.any(|(uid, by)| same(uid, &object.uid) && by != target_uid)
    }

    /// Records the claim. Returns false if a target with another UID holds the object.
    pub fn claim(&mut self, object: &ClaimedObject, claim: Claim) -> bool {
        if self.is_claimed_by_another(&claim.job.namespace, object, &claim.target_uid) {
            return false;
        }
        let own = self.by_job.entry(claim.job.clone()).or_default();
        own.entry(claim.index).or_default().insert(object.clone());
        let holders = self.held.entry(claim_key(&claim.job.namespace, object)).or_default();
        let entry = (object.uid.clone(), claim);
        if !holders.contains(&entry) {
            holders.push(entry);
        }
        true
    }

    /// Releases the claims of one target of the job, except `kept`.
    pub fn release_except(&mut self, job: &JobKey, index: u32, kept: &[ClaimedObject]) {
        let Some(own) = self.by_job.get_mut(job).and_then(|own| own.get_mut(&index)) else { return };
        let released: Vec<_> = own.iter().filter(|object| !kept.contains(object)).cloned().collect();
        own.retain(|object| kept.contains(object));
        released.iter().for_each(|object| self.drop_claim(job, index, object));
    }

    /// Forgets a deleted job. Its replacements that still exist stay taken until they are gone too, so that no other
    /// target counts them again.
    pub fn forget(&mut self, job: &JobKey, is_there: impl Fn(&ClaimedObject) -> bool) {
        for (index, objects) in self.by_job.remove(job).unwrap_or_default() {
            for object in objects {
                let claim_key = claim_key(&job.namespace, &object);
                let mut held = self.held.get(&claim_key).into_iter().flatten();
                let own = held.find(|(_, claim)| claim.job == *job && claim.index == index);
                let target = own.map(|(_, claim)| claim.target_uid.clone());
                self.drop_claim(job, index, &object);
                if let Some(target) = target.filter(|_| is_there(&object)) {
                    self.retired.entry(claim_key).or_default().push((object.uid.clone(), target));
                }
            }
        }
        self.read(job);
    }

    /// Records that the object is gone: any job may claim another object of its name.
    pub fn gone(&mut self, namespace: &str, object: &ClaimedObject) {
        if self.retired.is_empty() {
            return;
        }
        let claim_key = claim_key(namespace, object);
        if let Some(retired) = self.retired.get_mut(&claim_key) {
            retired.retain(|(uid, _)| !same(uid, &object.uid));
            if retired.is_empty() {
                self.retired.remove(&claim_key);
            }
        }
    }

    fn drop_claim(&mut self, job: &JobKey, index: u32, object: &ClaimedObject) {
        let claim_key = claim_key(&job.namespace, object);
        let Some(holders) = self.held.get_mut(&claim_key) else { return };
        holders.retain(|(uid, claim)| claim.job != *job || claim.index != index || *uid != object.uid);
        if holders.is_empty() {
            self.held.remove(&claim_key);
        }
    }
}

/// Returns the objects that a target has claimed, as they are stored.
pub fn stored_claims(target: &TargetState, registration: Option<&Registration>) -> Vec<ClaimedObject> {
    let noted = target.extra(extras::CLAIMED_UID).unwrap_or_default();
    let noted: Vec<(&str, &str, &str)> = noted
        .split(',')
        .filter_map(|entry| {
            let (extra, object) = entry.split_once('=')?;
            let (kind, uid) = object.split_once('/')?;
            Some((extra, kind, uid))
        })
        .collect();
    let mut claims: Vec<ClaimedObject> = noted
        .iter()
        .filter_map(|(extra, kind, uid)| {
            let name = target.extra(extra)?.to_owned();
            Some(ClaimedObject { kind: (*kind).to_owned(), name, uid: (*uid).to_owned() })
        })
        .collect();
    let exclusive = registration.into_iter().flat_map(|registration| {
        registration.exclusive_extras.iter().map(|key| (key, registration.kind_of_extra(key)))
    });
    for (key, kind) in exclusive.filter(|(key, _)| noted.iter().all(|(extra, ..)| extra != key)) {
        let name = target.extra(key).map(str::to_owned);
        claims.extend(name.map(|name| ClaimedObject { kind: kind.kind.clone(), name, uid: String::new() }));
    }
    claims
}

/// Returns the host's extra that lists the objects named by the exclusive extras of `target`. `seen` finds the UID of
/// an object by kind and name.
pub fn note_claims(
    target: &TargetState,
    registration: &Registration,
    seen: impl Fn(&Kind, &str) -> Option<String>,
) -> Option<String> {
    let known = stored_claims(target, Some(registration));
    let entries = registration.exclusive_extras.iter().filter_map(|key| {
        let (kind, name) = (registration.kind_of_extra(key), target.extra(key)?);
        let before = known.iter().find(|claim| claim.kind == kind.kind && claim.name == name);
        let uid = seen(&kind, name).or_else(|| before.map(|claim| claim.uid.clone())).unwrap_or_default();
        Some(format!("{key}={}/{uid}", kind.kind))
    });
    let text = entries.collect::<Vec<_>>().join(",");
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::proposal::{Relation, RelationKey};

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
        assert!(claims.is_claimed_by_another("d", &new, "u2"));
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
        assert!(claims.retired.is_empty() && !claims.is_claimed_by_another("d", &pod("new", "n"), "u2"));
    }

    #[test]
    fn a_later_object_of_the_same_name_is_free() {
        let mut claims = Claims::default();
        assert!(claims.claim(&pod("db-0", "u2"), claim("a", 0, "u1")));
        assert!(claims.claim(&pod("db-0", "u3"), claim("b", 0, "u2")));
        assert!(claims.is_claimed_by_another("d", &pod("db-0", "u2"), "x"));
        claims.forget(&claim("a", 0, "").job, |_| true);
        assert!(!claims.is_claimed_by_another("d", &pod("db-0", "u4"), "u3"));
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
        assert!(!claims.is_claimed_by_another("d", &pod("one", "1"), "x"));
        assert!(claims.is_claimed_by_another("d", &pod("two", "2"), "x"));
    }

    fn registration() -> Registration {
        let relation = Relation { name: "r".into(), kind: Kind::pod(), by: RelationKey::Extra("NewPod".into()) };
        Registration { relations: vec![relation], exclusive_extras: vec!["NewPod".into()] }
    }

    #[test]
    fn a_claim_is_stored_with_kind_and_uid_and_read_back_without_its_plugin() {
        let mut target = TargetState::default();
        target.extra.insert("NewPod".into(), "db-0".into());
        let noted = note_claims(&target, &registration(), |_, _| Some("u2".into())).unwrap();
        assert_eq!(noted, "NewPod=Pod/u2");
        target.extra.insert(extras::CLAIMED_UID.into(), noted);
        let claim = ClaimedObject { kind: "Pod".into(), name: "db-0".into(), uid: "u2".into() };
        assert_eq!(stored_claims(&target, None), [claim]);
    }

    #[test]
    fn a_claim_of_an_earlier_version_of_the_host_is_one_of_every_object_of_that_name() {
        let mut target = TargetState::default();
        target.extra.insert("NewPod".into(), "a".into());
        let claims = stored_claims(&target, Some(&registration()));
        assert_eq!(claims, [ClaimedObject { kind: "Pod".into(), name: "a".into(), uid: String::new() }]);
        assert!(stored_claims(&target, None).is_empty());
    }
}
