//! Outcomes of writes: the record of a round, and the batches that leave the queue.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use oarlock_core::object::api_object::Object;
use oarlock_core::object::own::TASKS_NAMESPACE;
use oarlock_core::object::time::after_seconds;
use oarlock_core::requests::writes::{BatchResult, Record, Stopped, StoredOperationRecord, Write};
use serde_json::{Value, json};

use crate::bench::patch::{apply, merge};
use crate::bench::weather::{Fate, Going};
use crate::bench::{Bench, JOB_UID};

impl Bench {
    pub(super) fn store_record(&mut self, record: &Record) -> BTreeMap<u32, StoredOperationRecord> {
        if let Some(finalizer) = &record.finalizer {
            self.sent.push("finalizer".into());
            merge(&mut self.job, finalizer);
            self.moved();
        }
        let mut replies = BTreeMap::new();
        // The port writes records in this order: first the records with no more targets in flight than before, in any order, then the others.
        let (growing, first): (Vec<_>, Vec<_>) = record.operation_records.iter().rev().partition(|write| write.grows);
        for write in first.into_iter().chain(growing) {
            self.version += 1;
            let stored = self.records.entry(write.record_number).or_insert(Value::Null);
            match &write.patch {
                Some(patch) if !stored.is_null() => merge(stored, patch),
                _ => {
                    *stored = serde_json::to_value(&write.record).unwrap();
                    stored["metadata"]["uid"] = json!(format!("record-{}", write.record_number));
                }
            }
            stored["metadata"]["resourceVersion"] = json!(self.version.to_string());
            let reply = StoredOperationRecord {
                uid: stored["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
                resource_version: self.version.to_string(),
                epoch: stored["epoch"].as_i64().unwrap_or(0),
            };
            replies.insert(write.record_number, reply);
            let in_flight = |record: &Value| record["processingPodCount"].as_u64().unwrap_or(0);
            self.most_in_flight = self.most_in_flight.max(self.records.values().map(in_flight).sum());
        }
        if let Some(status) = &record.status {
            self.sent.push("status".into());
            self.status_writes += 1;
            merge(&mut self.job, status);
            self.moved();
        }
        replies
    }

    /// Sends as many waiting batches as leave at once. The next round handles the results.
    pub(crate) fn send(&mut self) {
        for _ in 0..self.wire {
            let Some(mut entry) = self.queue.take_next(|_| true) else { return };
            let (mut stopped, mut done) = (None, 0);
            while let Some(write) = entry.writes.get(done).cloned() {
                let before = self.sent.len();
                stopped = if entry.dry_run { self.wire_tries(&write) } else { self.wire_does(&write) };
                if let Some(account) = entry.account(done) {
                    self.sent.iter_mut().skip(before).for_each(|line| line.push_str(&format!(" as {}", account.name)));
                }
                if stopped.is_some() {
                    break;
                }
                done += 1;
                if let Some(shown) = self.store.get(write.object()).filter(|_| !write.departs()) {
                    entry.made(done, &shown.resource_version);
                }
            }
            self.queue.finished(JOB_UID, entry.index);
            self.memory.work.results.push(BatchResult { entry, sent: Some(self.now), at: self.now, done, stopped });
            self.next = Some(Timestamp::UNIX_EPOCH);
        }
    }

    /// Sends a dry-run write and returns its failure, if any.
    fn wire_tries(&mut self, write: &Write) -> Option<Stopped> {
        self.sent.push(format!("try to {} {}", write.verb(), write.object().name));
        match self.refuse.get(write.verb()).cloned() {
            Some(stopped) => Some(stopped),
            None => match self.weather.write(write) {
                Fate::Stopped(stopped) => Some(stopped),
                Fate::Lost => Some(Stopped::Unknown { message: "the reply is lost".into() }),
                Fate::Done => match self.store.get(write.object()) {
                    None if write.uid().is_some() => Some(Stopped::Gone),
                    seen => (!write.fits(seen.as_deref())).then_some(Stopped::Conflict),
                },
            },
        }
    }

    /// Sends a write and returns its failure, if any.
    fn wire_does(&mut self, write: &Write) -> Option<Stopped> {
        self.sent.push(format!("{} {}", write.verb(), write.object().name));
        let refused = self.refuse.get(write.verb()).cloned().map(Fate::Stopped);
        match refused.unwrap_or_else(|| self.weather.write(write)) {
            Fate::Done => self.accept(write),
            Fate::Stopped(stopped) => Some(stopped),
            Fate::Lost => {
                let stopped = self.accept(write);
                stopped.or_else(|| Some(Stopped::Unknown { message: "the reply is lost".into() }))
            }
        }
    }

    /// Returns an object after a patch, or `None` if the patch does not fit.
    fn patched(&self, seen: &Object, body: &Value) -> Option<Object> {
        let mut document = json!({"metadata": {"labels": seen.labels, "annotations": seen.annotations,
            "finalizers": seen.finalizers, "name": seen.key.name, "uid": seen.uid}});
        if let Some(node) = &seen.node {
            document["spec"] = json!({"unschedulable": node.cordoned, "taints": node.taints});
        }
        match body.as_array() {
            Some(operations) if !apply(&mut document, operations) => return None,
            Some(_) => {}
            None => merge(&mut document, body),
        }
        let new = Object::slim(&document, &seen.key.kind, &[])?;
        let cordoned = |object: &Object| object.node.as_ref().is_some_and(|node| node.cordoned);
        Some(Object {
            available: (seen.available || cordoned(seen)) && !cordoned(&new),
            node: new.node,
            labels: new.labels,
            annotations: new.annotations,
            finalizers: new.finalizers,
            resource_version: self.version.to_string(),
            ..seen.clone()
        })
    }

    fn departs(&mut self, pod: &Object, going: Going) {
        match going {
            Going::Stays => {}
            Going::Terminates(grace) => {
                let deleted = after_seconds(self.now, grace);
                let resource_version = self.version.to_string();
                let (deleted, grace_seconds) = (Some(deleted), Some(grace));
                self.store.apply(Object { deleted, grace_seconds, resource_version, ..pod.clone() });
            }
            Going::Gone => self.vanish_of(&pod.key),
        }
    }

    /// Applies a write to the cluster and returns its failure, if any.
    pub(crate) fn accept(&mut self, write: &Write) -> Option<Stopped> {
        self.version += 1;
        match write {
            Write::Patch { object, body, .. } if self.store.keeps(&object.kind) => {
                let Some(seen) = self.store.get(object) else { return Some(Stopped::Gone) };
                if !write.fits(Some(&seen)) {
                    return Some(Stopped::Conflict);
                }
                let Some(now) = self.patched(&seen, body) else { return Some(Stopped::Conflict) };
                self.store.apply(now);
                None
            }
            Write::Patch { object, body, .. } if self.unwatched.contains_key(object) => {
                let now = self.unwatched.get(object).and_then(|seen| self.patched(seen, body));
                self.unwatched.extend(now.map(|now| (object.clone(), Arc::new(now))));
                None
            }
            Write::Patch { object, body, .. } => {
                if *object != Self::key().object() || self.job_is_gone {
                    return Some(Stopped::Gone);
                }
                merge(&mut self.job, body);
                self.moved();
                None
            }
            Write::Evict { pod, .. } => {
                let Some(seen) = self.store.get(pod) else { return Some(Stopped::Gone) };
                if !write.fits(Some(&seen)) {
                    return Some(Stopped::Conflict);
                }
                let going = self.weather.goes();
                self.departs(&seen, going);
                None
            }
            Write::Delete { object, .. } if *object == Self::key().object() => {
                if self.job_is_gone {
                    return Some(Stopped::Gone);
                }
                self.job["metadata"]["deletionTimestamp"] = json!(self.now.to_string());
                self.moved();
                None
            }
            Write::Create { object, body, .. } if object.namespace.as_deref() == Some(TASKS_NAMESPACE) => {
                let mut document = body.clone();
                document["metadata"]["uid"] = json!(format!("made-{}", self.version));
                document["metadata"]["resourceVersion"] = json!(self.version.to_string());
                document["metadata"]["creationTimestamp"] = json!(self.now.to_string());
                let made = Object::slim(&document, &object.kind, &[]).unwrap();
                if self.store.keeps(&object.kind) {
                    if self.store.get(object).is_none() {
                        self.store.apply(made);
                    }
                } else {
                    self.unwatched.insert(object.clone(), Arc::new(made));
                }
                None
            }
            Write::Delete { object, .. } if object.namespace.as_deref() == Some(TASKS_NAMESPACE) => {
                if self.store.keeps(&object.kind) {
                    let Some(seen) = self.store.get(object) else { return Some(Stopped::Gone) };
                    if !write.fits(Some(&seen)) {
                        return Some(Stopped::Conflict);
                    }
                    let going = self.weather.is_ended();
                    self.departs(&seen, going);
                    return None;
                }
                self.unwatched.remove(object).map_or(Some(Stopped::Gone), |_| None)
            }
            Write::Delete { .. } | Write::Create { .. } => None,
        }
    }
}
