use oarlock_contract::visit_record::{PluginRead, ReadAnswer, RecordedObject, RecordedVerdict, VisitRecord};
use serde_json::json;

use super::*;
use crate::object::api_object::{Kind, Object, ObjectKey};
use crate::plugin::grant::Grant;
use crate::plugin::manifest::Manifest;
use crate::plugin::proposal::{CallFailure, Proposal, Registration, Relation, RelationKey};
use crate::plugin::replay_reads::ReplayReads;
use crate::plugin::visit::{Call, JobFacts, ReadRefusal, Reads, TargetFacts, TaskStatus, Visit, VisitUse};

/// Reads with two Pods in the relation `pods`, one Secret, and no live answers.
struct Some2;

fn pod(name: &str) -> Arc<Object> {
    let document = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "shop", "uid": format!("u-{name}"),
        "resourceVersion": "7", "labels": {"app": "web"}, "annotations": {"hold.oarlock.dev/j": "[]", "a": "\u{1b}[2J"},
        "finalizers": ["f/x"], "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-01T00:01:00Z",
        "deletionGracePeriodSeconds": 30, "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r",
            "uid": "r", "controller": true}]}, "status": {"phase": "Running"}, "spec": {"nodeName": "n1"}});
    let pointers = ["/status/phase".to_owned(), "/spec/nodeName".to_owned()];
    let mut object = Object::slim(&document, &Kind::pod(), &pointers).unwrap();
    object.annotations = [("a", "\u{1b}[2J"), ("hold.oarlock.dev/j", "[]")].into_iter().collect();
    Arc::new(object)
}

fn secret_key() -> ObjectKey {
    ObjectKey { kind: Kind::new("v1", "Secret"), namespace: Some("shop".into()), name: "key".into() }
}

impl Reads for Some2 {
    fn related(&self, relation: &str, live: bool) -> Result<Vec<Arc<Object>>, ReadRefusal> {
        match (relation, live) {
            ("pods", false) => Ok(vec![pod("web-2"), pod("web-1")]),
            ("pods", true) => Err(ReadRefusal::Unavailable),
            _ => Err(ReadRefusal::NotDeclared("no such relation".into())),
        }
    }

    fn get(&self, key: &ObjectKey, _: bool) -> Result<Option<Arc<Object>>, ReadRefusal> {
        let document = json!({"metadata": {"name": "key", "namespace": "shop", "uid": "s", "labels": {"a": "hidden"}},
            "data": {"password": "hidden"}});
        let secret = || Object::slim(&document, &key.kind, &["/data".into()]).map(Arc::new);
        Ok(if *key == secret_key() { secret() } else { None })
    }

    fn serves(&self, _: &Kind) -> Result<bool, ReadRefusal> {
        Ok(true)
    }
}

fn plugin(name: &str) -> Arc<PluginInfo> {
    let manifest = json!({"schema": 1, "name": name, "version": "1.0.0", "action": "X", "target": ["Pod"], "reads": [
        {"apiVersion": "v1", "kind": "Pod", "fields": ["/status/phase"], "reason": "r"},
        {"apiVersion": "v1", "kind": "Secret", "fields": ["/data"], "reason": "r"}]});
    let manifest = Manifest::parse(manifest.to_string().as_bytes()).unwrap();
    let relation = Relation { name: "pods".into(), kind: Kind::pod(), by: RelationKey::SameController };
    let config = Some(json!({"password": "hidden"}));
    Arc::new(PluginInfo {
        grant: Grant { config, ..Grant::of_all(&manifest) },
        manifest,
        registration: Registration { relations: vec![relation], ..Registration::default() },
        digest: "sha256:00".into(),
    })
}

fn visit(namespace: &str, index: u32) -> Visit {
    let job = JobFacts {
        namespace: namespace.into(),
        name: "job".into(),
        uid: format!("uid-{namespace}"),
        action: "X".into(),
        now_ms: 5,
        parameters: json!({"a": [1]}),
        target_count: 3,
        cancelled: false,
    };
    let task = TaskStatus { state: "Failed", exit_code: Some(3), output: "o".into(), message: "m".into() };
    let target = TargetFacts {
        name: "web-1".into(),
        index,
        kind: "Pod".into(),
        uid: Some("u-web-1".into()),
        object: Some(pod("web-1")),
        containers: vec!["c".into()],
        extras: [("k".to_owned(), "v".to_owned())].into(),
        attempt: 2,
        call_try: 3,
        started_ms: 1,
        deadline_ms: Some(9),
        tasks: [("t".to_owned(), task)].into(),
    };
    Visit { job: Arc::new(job), target, call: Call::OperateThenProgress, reads: Arc::new(Some2) }
}

fn proposed(extra: &str) -> Answer {
    Answer::Proposed(Proposal { set_extra: vec![("k".into(), extra.into())], ..Proposal::default() })
}

fn outputs(answer: Answer) -> VisitOutputs {
    let cost = VisitUse { host_calls: 4, memory_bytes: 1 << 20, answer_bytes: 10, position: 2 };
    VisitOutputs { answer, cost, microseconds: 20, verdict: RecordedVerdict::Taken }
}

/// Records one visit with this answer, which reads nothing.
fn add(recorder: &VisitRecorder, plugin: &Arc<PluginInfo>, mut visit: Visit, answer: Answer) {
    let round = recorder.round(plugin, false).unwrap();
    let begun = BegunNote::begin(&mut visit);
    round.end(begun, outputs(answer));
}

/// Makes the reads of a plugin, twice, and returns the record.
fn recorded() -> VisitRecord {
    let recorder = VisitRecorder::new(RecorderBounds { visits: 9, ..RecorderBounds::default() });
    let plugin = plugin("x");
    let mut visit = visit("shop", 0);
    let begun = BegunNote::begin(&mut visit);
    for _ in 0..2 {
        assert_eq!(visit.reads.related("pods", false).unwrap().len(), 2);
        assert_eq!(visit.reads.related("pods", true), Err(ReadRefusal::Unavailable));
        assert!(visit.reads.related("other", false).is_err());
        assert!(visit.reads.get(&secret_key(), false).unwrap().is_some());
        assert_eq!(visit.reads.get(&ObjectKey::pod("shop", "gone"), true), Ok(None));
        assert_eq!(visit.reads.serves(&Kind::node()), Ok(true));
        let refusal = ReadRefusal::NotGranted("namespace \"ops\" is not granted".into());
        visit.reads.note_refused(&ObjectKey::pod("ops", "a"), false, &refusal);
    }
    recorder.round(&plugin, false).unwrap().end(begun, outputs(proposed("1")));
    let [note] = recorder.of_job("shop", "job").try_into().ok().unwrap();
    note.record()
}

#[test]
fn a_record_has_each_read_once_and_each_object_once_and_no_field_of_other_plugins() {
    let record = recorded();
    let answers: Vec<ReadAnswer> = record.reads.iter().map(|read| read.answer.clone()).collect();
    assert_eq!(answers.len(), 7);
    assert_eq!(answers[0], ReadAnswer::Objects(vec![1, 0]));
    assert_eq!(answers[1], ReadAnswer::Unavailable);
    assert_eq!(answers[2], ReadAnswer::NotDeclared("no such relation".into()));
    assert_eq!(answers[6], ReadAnswer::NotGranted("namespace \"ops\" is not granted".into()));
    let line = record.line().unwrap();
    assert!(line.contains("Running") && !line.contains("nodeName"), "{line}");
    assert_eq!((record.position, record.cost.host_calls, record.round), (2, 4, 1));
    assert_eq!(VisitRecord::parse(&line).unwrap(), record);
}

#[test]
fn a_record_never_has_the_contents_of_secrets_or_the_settings() {
    let record = recorded();
    assert!(matches!(&record.objects[2], RecordedObject::Withheld(key) if *key == secret_key()));
    assert!(!record.line().unwrap().contains("hidden"));
    assert!(record.plugin.config_digest.unwrap().starts_with("sha256:"));
}

#[test]
fn a_replay_has_the_inputs_of_the_visit_and_refuses_reads_that_the_record_lacks() {
    let reads = Arc::new(ReplayReads::new(Arc::new(recorded()), plugin("x")));
    let (before, again) = (visit("shop", 0), reads.visit());
    assert_eq!((again.job, again.call), (before.job, before.call));
    let manifest = &plugin("x").manifest;
    let seen = |target: &TargetFacts| object_json_of(target, manifest);
    assert_eq!(seen(&again.target), seen(&before.target));
    assert_eq!(TargetFacts { object: None, ..again.target }, TargetFacts { object: None, ..before.target });
    let found = again.reads.related("pods", false).unwrap();
    assert_eq!(found.iter().map(|pod| pod.key.name.as_str()).collect::<Vec<_>>(), ["web-2", "web-1"]);
    assert_eq!(again.reads.related("pods", true), Err(ReadRefusal::Unavailable));
    assert_eq!(again.reads.get(&ObjectKey::pod("shop", "gone"), true), Ok(None));
    assert!(again.reads.shows(&found[0], Some("/status/phase")));
    assert_eq!(reads.unrecorded(), None);
    assert_eq!(again.reads.get(&ObjectKey::pod("shop", "gone"), false), Err(ReadRefusal::Unrecorded));
    assert!(!again.reads.shows(&found[0], Some("/spec/nodeName")));
    assert_eq!(reads.unrecorded().unwrap().read, "get(v1 Pod shop/gone, watched)");
}

fn object_json_of(target: &TargetFacts, manifest: &Manifest) -> serde_json::Value {
    crate::plugin::object_json::whole(target.object.as_ref().unwrap(), manifest)
}

#[test]
fn a_secret_ends_a_replay() {
    let reads = Arc::new(ReplayReads::new(Arc::new(recorded()), plugin("x")));
    assert_eq!(reads.get(&secret_key(), false), Err(ReadRefusal::Unrecorded));
    assert!(reads.unrecorded().unwrap().why.contains("Secrets"));
}

#[test]
fn the_last_visits_are_kept_and_those_that_failed_or_changed_the_answer() {
    let recorder = VisitRecorder::new(RecorderBounds { visits: 2, ..RecorderBounds::default() });
    let x = plugin("x");
    let failed = || {
        let (reason, message) = ("Odd".to_owned(), "m".to_owned());
        Answer::Failed(CallFailure { retryable: true, reason, message, retry_after_ms: None })
    };
    add(&recorder, &x, visit("shop", 0), proposed("1"));
    add(&recorder, &x, visit("shop", 0), proposed("2"));
    add(&recorder, &x, visit("shop", 1), failed());
    for _ in 0..50 {
        add(&recorder, &x, visit("shop", 2), proposed("1"));
    }
    let answers: Vec<Answer> = recorder.of_plugin("x").iter().map(|note| note.outputs().answer.clone()).collect();
    assert_eq!(answers, [proposed("2"), failed(), proposed("1"), proposed("1")]);
    assert_eq!((recorder.counts().recorded, recorder.take_finished().len()), (53, 0));
}

#[test]
fn a_job_with_the_annotation_is_recorded_and_no_other_unless_visits_are_asked_for() {
    let recorder = VisitRecorder::default();
    assert!(recorder.round(&plugin("x"), false).is_none());
    let x = plugin("x");
    for index in 0..9 {
        let mut visit = visit("shop", index);
        let begun = BegunNote::begin(&mut visit);
        recorder.round(&x, true).unwrap().end(begun, outputs(proposed("1")));
    }
    assert_eq!(recorder.of_job("shop", "job").len(), 9);
    assert!(recorder.of_job("other", "job").is_empty() && recorder.of_plugin("y").is_empty());
}

#[test]
fn the_bytes_of_a_plugin_and_of_a_namespace_are_bounded_and_the_oldest_go_first() {
    let one = {
        let recorder = VisitRecorder::new(RecorderBounds { visits: 1, ..RecorderBounds::default() });
        add(&recorder, &plugin("x"), visit("shop", 0), proposed("1"));
        recorder.of_plugin("x")[0].bytes()
    };
    let bounds = RecorderBounds { visits: 100, plugin_bytes: one * 6, namespace_bytes: one * 4, stores: true };
    let recorder = VisitRecorder::new(bounds);
    let (x, y) = (plugin("x"), plugin("y"));
    for index in 0..10 {
        add(&recorder, &x, visit("a", index), proposed("1"));
    }
    let kept: Vec<u32> = recorder.of_job("a", "job").iter().map(|note| note.target().1).collect();
    assert_eq!(kept, [6, 7, 8, 9]);
    add(&recorder, &x, visit("b", 0), proposed("1"));
    assert_eq!((recorder.of_job("a", "job").len(), recorder.of_job("b", "job").len()), (4, 1));
    // Another plugin's notes hold the room of the namespace.
    add(&recorder, &y, visit("a", 0), proposed("1"));
    assert_eq!((recorder.of_plugin("y").len(), recorder.counts().no_room > 0), (0, true));
    for index in 0..10 {
        add(&recorder, &x, visit(&format!("n{index}"), 0), proposed("1"));
    }
    assert_eq!(recorder.of_plugin("x").len(), 6);
    assert!(recorder.take_finished().len() <= 6 && recorder.take_finished().is_empty());
    let mut large = outputs(proposed("1"));
    large.cost.answer_bytes = 1 << 30;
    let begun = BegunNote::begin(&mut visit("a", 0));
    recorder.round(&x, false).unwrap().end(begun, large);
    assert_eq!(recorder.counts().too_large, 1);
}

#[test]
fn a_visit_with_too_many_reads_is_counted_and_not_recorded() {
    let recorder = VisitRecorder::new(RecorderBounds { visits: 9, ..RecorderBounds::default() });
    let mut visit = visit("shop", 0);
    let begun = BegunNote::begin(&mut visit);
    for number in 0..2_000 {
        let _ = visit.reads.get(&ObjectKey::pod("shop", format!("p{number}")), false);
    }
    recorder.round(&plugin("x"), false).unwrap().end(begun, outputs(proposed("1")));
    assert_eq!((recorder.counts().too_large, recorder.of_plugin("x").len()), (1, 0));
}

#[test]
fn names_of_any_characters_come_through_a_record() {
    let mut record = recorded();
    let key = ObjectKey::pod("n\u{0}", "\u{202e}\u{1b}]0;x\u{7}\"\\\n");
    record.reads[4].read = PluginRead::Get { object: key.clone(), live: true };
    let record = VisitRecord::parse(&record.line().unwrap()).unwrap();
    let reads = ReplayReads::new(Arc::new(record), plugin("x"));
    assert_eq!(reads.get(&key, true), Ok(None));
}
