//! A job on a bench: rounds made as `host/src/round.rs` makes them, with a plugin that is a closure and a cluster that is
//! a few maps.
//!
//! Takes a spec, or a whole job as somebody stored it; yields rounds, one after the other, under a clock that a test
//! moves. What goes wrong on the way is the [`Weather`]. May not decide anything.

#![allow(clippy::arithmetic_side_effects, reason = "a test moves its own clock")]

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use oarlock_api::{OperationJob, OperationRecord};
use oarlock_core::cluster::live_reads::{LiveRead, LiveReads, ReadFailure};
use oarlock_core::cluster::object::{Kind, Object, ObjectKey};
use oarlock_core::cluster::store::{Change, Indexed, Store};
use oarlock_core::cluster::writes::{EntryResult, Record, Stopped, StoredShard, Write};
use oarlock_core::job::key::JobKey;
use oarlock_core::job::time::{after_millis, after_seconds};
use oarlock_core::plugin::grant::Grant;
use oarlock_core::plugin::lookup::{PluginInfo, PluginLookup};
use oarlock_core::plugin::manifest::Manifest;
use oarlock_core::plugin::proposal::{Registration, Relation, RelationKey};
use oarlock_core::plugin::visit::{Answer, Visit};
use oarlock_core::round::calls::PlannedCall;
use oarlock_core::round::context::{Observed, Round};
use oarlock_core::round::decide::{commit, conclude};
use oarlock_core::round::memory::JobMemory;
use oarlock_core::round::plan::prepare;
use oarlock_core::round::refresh::{Refresh, refresh};
use oarlock_core::shared::reads::ServedKinds;
use oarlock_core::shared::tables::{SharedTables, lock};
use oarlock_core::shared::write_queue::WriteQueue;
use serde_json::{Value, json};

/// When a bench begins.
pub(crate) const START: &str = "2026-01-01T00:00:00Z";
/// The UID of the job.
pub(crate) const JOB_UID: &str = "job-uid";

/// What becomes of a write.
#[derive(Clone, Debug)]
pub(crate) enum Fate {
    /// It is done, and the reply comes.
    Done,
    /// It is not done.
    Stopped(Stopped),
    /// It is done, and the reply is lost.
    Lost,
}

/// What becomes of a live read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// It is answered.
    Answered,
    /// No answer comes.
    Silent,
    /// It is refused.
    Refused,
}

/// What becomes of a pod whose eviction was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Going {
    /// Nothing is seen of it.
    Stays,
    /// It has this grace period.
    Terminates(i64),
    /// It is gone at once.
    Gone,
}

/// What goes wrong between the host and its cluster.
pub(crate) trait Weather {
    /// What becomes of a write to a target or to the job itself.
    fn write(&mut self, _: &Write) -> Fate {
        Fate::Done
    }

    /// Whether a round's record is written.
    fn records(&mut self) -> bool {
        true
    }

    /// What becomes of a live read.
    fn look(&mut self, _: &LiveRead) -> Look {
        Look::Answered
    }

    /// What becomes of a pod whose eviction was accepted.
    fn goes(&mut self) -> Going {
        Going::Stays
    }
}

/// Nothing goes wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fine;

impl Weather for Fine {}

/// A job on a bench.
pub(crate) struct Bench {
    /// The time.
    pub(crate) now: Timestamp,
    /// The job as it was stored last.
    pub(crate) job: Value,
    /// It is gone.
    pub(crate) job_is_gone: bool,
    /// The stored OperationRecords, by shard.
    pub(crate) records: BTreeMap<u32, Value>,
    /// The host's memory of the job.
    pub(crate) memory: JobMemory,
    /// The host's view of the cluster.
    pub(crate) store: Arc<Store>,
    /// What the jobs of the term share.
    pub(crate) tables: SharedTables,
    /// The writes of the term.
    pub(crate) queue: WriteQueue,
    /// The plugin.
    pub(crate) found: PluginLookup,
    /// The kinds that the cluster serves.
    pub(crate) served: ServedKinds,
    /// The newest resourceVersion.
    pub(crate) version: u64,
    /// The reasons of all events.
    pub(crate) told: Vec<String>,
    /// The writes.
    pub(crate) sent: Vec<String>,
    /// The outcomes that were counted.
    pub(crate) ended: Vec<String>,
    /// How often the status was written.
    pub(crate) status_writes: usize,
    /// Verbs that are refused.
    pub(crate) refuse: BTreeMap<&'static str, Stopped>,
    /// What goes wrong.
    pub(crate) weather: Box<dyn Weather>,
    /// When the next round is due.
    pub(crate) next: Option<Timestamp>,
    /// The namespace is being deleted.
    pub(crate) namespace_terminating: bool,
    /// Rounds in a row whose record was not written.
    pub(crate) tries: u32,
    /// Entries that leave at once; the others wait for [`Bench::send`].
    pub(crate) wire: usize,
    /// Terms that ended because a record had a higher epoch.
    pub(crate) terms_lost: usize,
}

/// The plugin of all benches: evicts and marks pods, and follows their controllers.
pub(crate) fn plugin() -> PluginLookup {
    plugin_with(&json!({"type": "object", "additionalProperties": false}))
}

/// The same plugin, with this schema of its parameters.
pub(crate) fn plugin_with(parameters: &Value) -> PluginLookup {
    let manifest = json!({"schema": 1, "name": "replace", "version": "0.1.0", "action": "Replace", "target": ["Pod"],
        "reads": [{"apiVersion": "v1", "kind": "Pod", "fields": ["/status/conditions"], "reason": "r"}],
        "writes": [{"verb": "evict", "apiVersion": "v1", "kind": "Pod", "reason": "r"},
            {"verb": "metadata", "apiVersion": "v1", "kind": "Pod", "labels": ["mark"], "finalizers": ["f.io/f"], "reason": "r"}],
        "parameters": parameters});
    let grant = json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "ActionPlugin", "metadata": {"name": "replace"},
        "spec": {"anyVersion": true, "namespaces": ["*"],
            "reads": [{"apiVersion": "v1", "kind": "Pod", "fields": ["/status/conditions"]}],
            "writes": [{"verb": "evict", "apiVersion": "v1", "kind": "Pod"},
                {"verb": "metadata", "apiVersion": "v1", "kind": "Pod", "labels": ["mark"], "finalizers": ["f.io/f"]}]}});
    let relations = vec![Relation { name: "successors".into(), kind: Kind::pod(), by: RelationKey::SameController }];
    PluginLookup::Serving(Arc::new(PluginInfo {
        manifest: Manifest::parse(manifest.to_string().as_bytes()).unwrap(),
        grant: Grant::parse(&grant).unwrap(),
        registration: Registration { relations, exclusive_extras: vec!["NewPod".into()] },
        digest: "sha256:1".into(),
    }))
}

impl Bench {
    /// A bench with a job of this spec, which nobody has seen yet.
    pub(crate) fn new(spec: Value) -> Self {
        Self::stored(json!({"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob",
            "metadata": {"name": "j", "namespace": "d", "uid": JOB_UID, "resourceVersion": "1", "generation": 1},
            "spec": spec}))
    }

    /// A bench with a job as somebody has stored it.
    pub(crate) fn stored(job: Value) -> Self {
        let store = Store::default();
        store.keep(&Kind::pod(), Indexed::default());
        Self {
            now: START.parse().unwrap(),
            job,
            job_is_gone: false,
            records: BTreeMap::new(),
            memory: JobMemory::default(),
            store: Arc::new(store),
            tables: SharedTables::default(),
            queue: WriteQueue::default(),
            found: plugin(),
            served: Arc::new(|_| true),
            version: 1,
            told: vec![],
            sent: vec![],
            ended: vec![],
            status_writes: 0,
            refuse: BTreeMap::new(),
            weather: Box::new(Fine),
            next: None,
            namespace_terminating: false,
            tries: 0,
            wire: usize::MAX,
            terms_lost: 0,
        }
    }

    /// A spec that replaces these pods.
    pub(crate) fn targets(names: &[&str]) -> Value {
        json!({"action": "Replace", "targets": names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>()})
    }

    /// A bench with a job of one target `a`, whose pod is there, and these fields of its spec.
    pub(crate) fn of_one(fields: &Value) -> Self {
        let mut spec = Self::targets(&["a"]);
        merge(&mut spec, fields);
        let mut bench = Self::new(spec);
        bench.pod("a", "1");
        bench
    }

    /// The key of the job.
    pub(crate) fn key() -> JobKey {
        JobKey { namespace: "d".into(), name: "j".into() }
    }

    /// A pod that is there; nobody is told of it.
    pub(crate) fn pod(&mut self, name: &str, uid: &str) {
        self.version += 1;
        let document = json!({"metadata": {"name": name, "namespace": "d", "uid": uid, "creationTimestamp": self.now.to_string(),
            "resourceVersion": self.version.to_string(), "ownerReferences": [{"apiVersion": "apps/v1", "kind": "CloneSet",
                "name": "s", "uid": "set", "controller": true}]}});
        self.store.apply(Object::slim(&document, &Kind::pod(), &[]).unwrap());
    }

    /// An object of another kind is there, and the host watches them; nobody is told of it.
    pub(crate) fn other(&mut self, kind: &Kind, name: &str) {
        self.store.keep(kind, Indexed::default());
        self.version += 1;
        let document = json!({"metadata": {"name": name, "namespace": "d", "uid": name,
            "resourceVersion": self.version.to_string()}});
        self.store.apply(Object::slim(&document, kind, &[]).unwrap());
    }

    /// A pod goes; nobody is told of it.
    pub(crate) fn gone(&mut self, name: &str) {
        let object = self.store.get(&ObjectKey::pod("d", name)).unwrap();
        self.version += 1;
        self.store.remove(Object { resource_version: self.version.to_string(), ..Object::clone(&object) });
    }

    /// A pod, as a document without a version, is there or has changed: the targets that it concerns are turned to.
    pub(crate) fn show(&mut self, mut document: Value) {
        self.version += 1;
        document["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let Some(object) = Object::slim(&document, &Kind::pod(), &["/status/conditions".to_owned()]) else { return };
        if let Some(known) = self.store.get(&object.key).filter(|known| known.uid != object.uid) {
            let removed = self.store.remove(Object::clone(&known));
            self.hear(removed);
        }
        let change = self.store.apply(object);
        self.hear(change);
    }

    /// A pod is gone: the targets that it concerns are turned to.
    pub(crate) fn vanish(&mut self, name: &str) {
        let Some(object) = self.store.get(&ObjectKey::pod("d", name)) else { return };
        self.version += 1;
        let last = Object { resource_version: self.version.to_string(), ..Object::clone(&object) };
        let change = self.store.remove(last);
        self.hear(change);
    }

    /// What `Lead::hear_object` does.
    fn hear(&mut self, change: Option<Change>) {
        let Some(change) = change else { return };
        let woken = {
            let mut tables = lock(&self.tables);
            tables.heard(&change);
            tables.concerned(&change, &self.store)
        };
        for (job, index) in woken.into_iter().filter(|(job, _)| job.uid == JOB_UID) {
            debug_assert_eq!(job.key, Self::key());
            let views = [&change.new, &change.old].into_iter().flatten();
            let asked = views.filter_map(|object| Some((object.uid.clone(), object.asked_to_go()?))).next();
            match change.is_of_version_only() {
                true => self.memory.seen_anew(index),
                false => self.memory.turn_to(index),
            }
            if let Some((uid, time)) = asked
                && self.memory.latest(index).is_some_and(|target| target.uid.as_ref() == Some(&uid))
            {
                self.memory.target(index).expects.asked_to_go(time);
            }
            self.next = Some(Timestamp::UNIX_EPOCH);
        }
    }

    /// A new leader: nothing is remembered.
    pub(crate) fn crash(&mut self) {
        self.memory = JobMemory::default();
        self.tables = SharedTables::default();
        self.queue = WriteQueue::default();
        self.tries = 0;
        self.next = Some(Timestamp::UNIX_EPOCH);
    }

    /// Somebody changes the job; it is due.
    pub(crate) fn edit(&mut self, patch: &Value) {
        merge(&mut self.job, patch);
        self.moved();
        self.next = Some(Timestamp::UNIX_EPOCH);
    }

    fn moved(&mut self) {
        self.version += 1;
        self.job["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let meta = &self.job["metadata"];
        let held = meta["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        if meta["deletionTimestamp"].is_string() && !held {
            self.job_is_gone = true;
        }
    }

    /// Something happened to every target.
    pub(crate) fn touch_all(&mut self) {
        (0..self.memory.state.targets.len() as u32).for_each(|index| self.memory.turn_to(index));
    }

    /// Time passes.
    pub(crate) fn later(&mut self, seconds: i64) {
        self.now = after_seconds(self.now, seconds);
    }

    /// The stored status.
    pub(crate) fn status(&self) -> &Value {
        &self.job["status"]
    }

    /// Progress and error reason of a target.
    pub(crate) fn word(&self, index: usize) -> String {
        let detail = &self.status()["targetDetails"][index];
        let text = |field: &str| detail[field].as_str().unwrap_or("-").to_owned();
        match detail["error"]["reason"].as_str() {
            Some(reason) => format!("{}/{reason}", text("progress")),
            None => text("progress"),
        }
    }

    /// How often a write was sent.
    pub(crate) fn times(&self, write: &str) -> usize {
        self.sent.iter().filter(|sent| *sent == write).count()
    }

    fn read_live(&mut self) -> LiveReads {
        let mut live = LiveReads::default();
        for read in self.memory.live_reads() {
            let failed = match self.weather.look(&read) {
                Look::Answered => None,
                Look::Silent => Some(false),
                Look::Refused => Some(true),
            };
            let Some(refused) = failed else {
                if let LiveRead::Controllers { namespace } = &read {
                    let unresolved = self.store.unresolved(&Kind::pod(), namespace);
                    unresolved.iter().for_each(|owner| self.store.learn_root(&owner.uid, owner));
                }
                live.answered.insert(read);
                continue;
            };
            live.failed.insert(read, ReadFailure { message: "the weather is bad".into(), refused });
        }
        live
    }

    /// The records as the host lists them.
    pub(crate) fn read_records(&self) -> Vec<OperationRecord> {
        let stored = self.records.values().filter_map(|record| serde_json::from_value(record.clone()).ok());
        let mut records: Vec<OperationRecord> = stored.collect();
        records.sort_by_key(|record| record.record.shard);
        records
    }

    /// One round. `answer` is the plugin.
    pub(crate) fn round(&mut self, answer: &mut dyn FnMut(&Visit) -> Answer) {
        self.next = None;
        if self.job_is_gone {
            return;
        }
        let job: OperationJob = serde_json::from_value(self.job.clone()).unwrap();
        let records = self.memory.shards.wanted.then(|| self.read_records());
        let observed = Observed {
            now: self.now,
            job: Some(Arc::new(job.clone())),
            records,
            live: self.read_live(),
            served: self.served.clone(),
            namespace_terminating: self.namespace_terminating,
        };
        let (found, store, tables) = (self.found.clone(), self.store.clone(), self.tables.clone());
        let refreshed = refresh(&mut self.memory, &job, &observed);
        if refreshed == Refresh::NeedsRecords {
            self.next = Some(self.now);
            return;
        }
        if refreshed == Refresh::Superseded {
            self.terms_lost += 1;
            return self.crash();
        }
        let round = Round::begin(&Self::key(), &observed, &found, &store, &mut self.memory).unwrap();
        let (plan, events) = prepare(&round, &mut self.memory, refreshed, &tables, &mut self.queue);
        self.told.extend(events.into_iter().map(|event| event.reason));
        let facts = round.job_facts(&self.memory);
        let mut verdicts = Vec::new();
        for (index, planned) in &plan.visits {
            let mut known = self.memory.targets.remove(index).unwrap_or_default();
            let call = PlannedCall { target: round.target(*index, &self.memory).unwrap(), planned };
            let verdict = if round.serving().is_some() && call.wants_plugin(&known) {
                let (visit, reads) = call.input(&facts, &self.memory, &known, &tables);
                let answered = answer(&visit);
                call.judge(Some((answered, &reads)), &mut known, &mut lock(&tables))
            } else {
                call.judge(None, &mut known, &mut lock(&tables))
            };
            verdicts.push((*index, verdict));
            self.memory.targets.insert(*index, known);
        }
        let mut decision = conclude(&round, plan, verdicts, &mut self.memory, &tables);
        if !decision.record.is_empty() && !self.weather.records() {
            self.memory.forget_plan();
            let wait = 50i64.saturating_mul(1 << self.tries.min(9));
            self.tries += 1;
            self.next = Some(after_millis(self.now, wait));
            return;
        }
        self.tries = 0;
        decision.commit.shards = self.store_record(&decision.record);
        for target in self.memory.ended_by(&decision.commit) {
            let reason = target.error.as_ref().map(|error| format!("/{}", error.reason));
            self.ended.push(target.progress.word().to_owned() + &reason.unwrap_or_default());
        }
        let events = commit(&round, decision.commit, &mut self.memory, &tables, (self.now, self.now));
        self.told.extend(events.into_iter().map(|event| event.reason));
        decision.entries.into_iter().for_each(|entry| self.queue.push(entry));
        self.next = self.memory.next(decision.requeue, decision.rests);
        self.send();
    }

    fn store_record(&mut self, record: &Record) -> BTreeMap<u32, StoredShard> {
        if let Some(finalizer) = &record.finalizer {
            self.sent.push("finalizer".into());
            merge(&mut self.job, finalizer);
            self.moved();
        }
        let mut replies = BTreeMap::new();
        for write in &record.shards {
            self.version += 1;
            let stored = self.records.entry(write.shard).or_insert(Value::Null);
            match &write.patch {
                Some(patch) if !stored.is_null() => merge(stored, patch),
                _ => {
                    *stored = serde_json::to_value(&write.record).unwrap();
                    stored["metadata"]["uid"] = json!(format!("record-{}", write.shard));
                }
            }
            stored["metadata"]["resourceVersion"] = json!(self.version.to_string());
            let reply = StoredShard {
                uid: stored["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
                resource_version: self.version.to_string(),
                epoch: stored["epoch"].as_i64().unwrap_or(0),
            };
            replies.insert(write.shard, reply);
        }
        if let Some(status) = &record.status {
            self.sent.push("status".into());
            self.status_writes += 1;
            merge(&mut self.job, status);
            self.moved();
        }
        replies
    }

    /// Sends what waits, as much as leaves at once. The results are news to the next round.
    pub(crate) fn send(&mut self) {
        for _ in 0..self.wire {
            let Some(mut entry) = self.queue.take_next() else { return };
            let (mut stopped, mut done) = (None, 0);
            while let Some(write) = entry.writes.get(done).cloned() {
                stopped = self.wire_does(&write);
                if stopped.is_some() {
                    break;
                }
                done += 1;
                if let Some(shown) = self.store.get(write.object()).filter(|_| !write.departs()) {
                    entry.made(done, &shown.resource_version);
                }
            }
            self.queue.finished(JOB_UID, entry.index);
            self.memory.results.push(EntryResult { entry, sent: Some(self.now), at: self.now, done, stopped });
            self.next = Some(Timestamp::UNIX_EPOCH);
        }
    }

    /// The way of a write to the cluster and back.
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

    /// The cluster's part of a write.
    pub(crate) fn accept(&mut self, write: &Write) -> Option<Stopped> {
        self.version += 1;
        match write {
            Write::Patch { object, body, .. } if self.store.keeps(&object.kind) => {
                let Some(seen) = self.store.get(object) else { return Some(Stopped::Gone) };
                if !write.fits(Some(&seen)) {
                    return Some(Stopped::Conflict);
                }
                let mut document = json!({"metadata": {"labels": seen.labels, "annotations": seen.annotations,
                    "finalizers": seen.finalizers, "name": object.name, "uid": seen.uid}});
                match body.as_array() {
                    Some(operations) if !apply(&mut document, operations) => return Some(Stopped::Conflict),
                    Some(_) => {}
                    None => merge(&mut document, body),
                }
                let Some(new) = Object::slim(&document, &object.kind, &[]) else { return Some(Stopped::Conflict) };
                let now = Object {
                    labels: new.labels,
                    annotations: new.annotations,
                    finalizers: new.finalizers,
                    resource_version: self.version.to_string(),
                    ..Object::clone(&seen)
                };
                self.store.apply(now);
                None
            }
            Write::Patch { object, body, .. } => {
                if *object != ObjectKey::job(&Self::key()) || self.job_is_gone {
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
                match self.weather.goes() {
                    Going::Stays => {}
                    Going::Terminates(grace) => {
                        let deleted = after_seconds(self.now, grace);
                        let resource_version = self.version.to_string();
                        let (deleted, grace_seconds) = (Some(deleted), Some(grace));
                        self.store.apply(Object { deleted, grace_seconds, resource_version, ..Object::clone(&seen) });
                    }
                    Going::Gone => self.vanish(&pod.name),
                }
                None
            }
            Write::Delete { object, .. } if *object == ObjectKey::job(&Self::key()) => {
                if self.job_is_gone {
                    return Some(Stopped::Gone);
                }
                self.job["metadata"]["deletionTimestamp"] = json!(self.now.to_string());
                self.moved();
                None
            }
            Write::Delete { .. } | Write::Create { .. } => None,
        }
    }

    /// Rounds until nothing is due at once.
    pub(crate) fn settle(&mut self, answer: &mut dyn FnMut(&Visit) -> Answer) {
        for _ in 0..50 {
            self.round(answer);
            if self.next.is_none_or(|time| time > self.now) {
                return;
            }
        }
        panic!("the job never comes to rest: {:#?}", self.memory);
    }
}

/// A JSON Merge Patch.
pub(crate) fn merge(into: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (key, value) in fields {
        match value {
            Value::Null => drop(into.as_object_mut().unwrap().remove(key)),
            value => merge(&mut into[key], value),
        }
    }
}

/// A JSON Patch of the operations that the host uses. Yields whether it fits.
pub(crate) fn apply(document: &mut Value, operations: &[Value]) -> bool {
    operations.iter().all(|operation| {
        let path = operation["path"].as_str().unwrap();
        match operation["op"].as_str().unwrap() {
            "test" => document.pointer(path) == Some(&operation["value"]),
            "replace" => document.pointer_mut(path).map(|slot| *slot = operation["value"].clone()).is_some(),
            "remove" => {
                let (parent, last) = path.rsplit_once('/').unwrap();
                match document.pointer_mut(parent) {
                    Some(Value::Object(fields)) => fields.remove(&last.replace("~1", "/").replace("~0", "~")).is_some(),
                    Some(Value::Array(list)) => {
                        last.parse().is_ok_and(|at: usize| at < list.len() && list.remove(at) != Value::Null)
                    }
                    _ => false,
                }
            }
            other => panic!("the host uses no {other}"),
        }
    })
}
