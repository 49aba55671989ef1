//! Records of visits, and their replays.

use std::sync::Arc;

use oarlock_contract::replayed::differences;
use oarlock_contract::visit_record::{RecordedAnswer, RecordedVerdict, VisitRecord};
use oarlock_core::plugin::lookup::PluginInfo;
use oarlock_core::plugin::visit::{Call, Visit};
use oarlock_core::plugin::visit_note::{BegunNote, VisitOutputs};
use oarlock_core::plugin::visit_recorder::{RecorderBounds, VisitRecorder};
use oarlock_wasm::{Plugins, ReplayVerdict, ReplayedVisit, Replayer, Session};
use serde_json::json;

use crate::components::{World, component, options, pod, serving, visit};

/// Makes a visit and returns its record, as a store would give it back.
async fn record(session: &mut Session, info: &Arc<PluginInfo>, mut visit: Visit) -> Arc<VisitRecord> {
    let recorder = VisitRecorder::new(RecorderBounds { visits: 1, ..RecorderBounds::default() });
    let round = recorder.round(info, false).unwrap();
    let begun = BegunNote::begin(&mut visit);
    let answer = session.call(visit).await;
    let outputs = VisitOutputs { answer, cost: session.last_use(), microseconds: 1, verdict: RecordedVerdict::Taken };
    round.end(begun, outputs);
    let line = recorder.of_job("shop", "job")[0].record().line().unwrap();
    Arc::new(VisitRecord::parse(&line).unwrap())
}

fn session(plugins: &Plugins, info: &PluginInfo) -> Session {
    plugins.wave(&info.digest).unwrap()
}

async fn replayer(name: &str) -> Replayer {
    Replayer::load(component(name), None, options()).await.unwrap()
}

async fn play(name: &str, record: &Arc<VisitRecord>) -> ReplayedVisit {
    replayer(name).await.play(record).await.unwrap()
}

/// Returns a visit of `replace` whose pod is gone, so that it reads relations.
fn of_replaced(not_read_live: bool) -> Visit {
    let mut gone = visit("Replace", Call::OperateThenProgress, json!({}));
    gone.target.object = None;
    for (key, value) in [("Mode", "Evict"), ("NewPod", "web-2"), ("Owner", "ReplicaSet/web-1/rs-1")] {
        gone.target.extras.insert(key.into(), value.into());
    }
    let related = [("new-pod", vec![pod("web-2", json!({}))]), ("partners", vec![]), ("successors", vec![])];
    let related = related.into_iter().map(|(name, pods)| (name.to_owned(), pods)).collect();
    gone.reads = Arc::new(World { related, not_read_live, ..World::default() });
    gone
}

#[tokio::test]
async fn a_visit_is_the_same_in_its_replay_with_its_reads_and_without_a_cluster() {
    let (plugins, info) = serving("replace").await;
    for visit in [visit("Replace", Call::OperateThenProgress, json!({})), of_replaced(false), of_replaced(true)] {
        let record = record(&mut session(&plugins, &info), &info, visit).await;
        let replayed = play("replace", &record).await;
        assert_eq!((replayed.verdict, replayed.notes), (ReplayVerdict::Same, Vec::<String>::new()), "{record:?}");
        assert!(record.cost.host_calls > 0 && record.cost.memory_bytes >= 1 << 16, "{:?}", record.cost);
    }
}

#[tokio::test]
async fn a_read_that_the_record_lacks_ends_the_replay_and_is_named() {
    let (plugins, info) = serving("replace").await;
    let full = record(&mut session(&plugins, &info), &info, of_replaced(false)).await;
    let mut less = VisitRecord::clone(&full);
    let lost = less.reads.remove(0);
    let verdict = play("replace", &Arc::new(less)).await.verdict;
    let ReplayVerdict::AskedForSomethingElse { read, why } = verdict else { panic!("{verdict:?}") };
    assert_eq!((read, why.as_str()), (lost.read.to_string(), "the recorded plugin did not make this read"));
    // The objects of a version that declared no field do not answer for the field.
    let mut less = VisitRecord::clone(&full);
    less.fields.iter_mut().for_each(|fields| fields.pointers.clear());
    let verdict = play("replace", &Arc::new(less)).await.verdict;
    assert!(
        matches!(&verdict, ReplayVerdict::AskedForSomethingElse { read, .. } if read.contains("/status/conditions")),
        "{verdict:?}"
    );
}

#[tokio::test]
async fn another_answer_is_shown_where_it_differs() {
    let (plugins, info) = serving("replace").await;
    let same =
        record(&mut session(&plugins, &info), &info, visit("Replace", Call::OperateThenProgress, json!({}))).await;
    let mut other = VisitRecord::clone(&same);
    let RecordedAnswer::Proposed(proposal) = &mut other.answer else { panic!("{other:?}") };
    proposal.set_extra[0].1 = "CollaSet".into();
    let verdict = play("replace", &Arc::new(other)).await.verdict;
    let ReplayVerdict::DifferentAnswer { differences } = verdict else { panic!("{verdict:?}") };
    let told: Vec<String> = differences.iter().map(ToString::to_string).collect();
    assert_eq!(told, [r#"/proposed/setExtra/Mode: recorded "CollaSet", replayed "Evict""#]);
}

#[tokio::test]
async fn refusals_failures_and_traps_are_the_same_in_their_replay() {
    let (plugins, info) = serving("hostile").await;
    for what in [
        "undeclared-field",
        "undeclared-kind",
        "undeclared-relation",
        "trap",
        "fail",
        "retry",
        "many-mutations",
        "control-characters",
        "huge-extra",
        "call-flood",
        "memory-bomb",
        "clock",
        "garbled-json",
    ] {
        let asked = visit("Hostile", Call::OperateThenProgress, json!({"do": format!("{what}-in-operate")}));
        let record = record(&mut session(&plugins, &info), &info, asked).await;
        let replayed = play("hostile", &record).await;
        assert_eq!(replayed.verdict, ReplayVerdict::Same, "{what}: {:?}", record.answer);
    }
}

#[tokio::test]
async fn a_warm_instance_is_a_hidden_input_which_a_fresh_one_shows() {
    let (plugins, info) = serving("hostile").await;
    let asked = || visit("Hostile", Call::OperateThenProgress, json!({"do": "nondeterministic-in-operate"}));
    let mut session = session(&plugins, &info);
    let first = record(&mut session, &info, asked()).await;
    let second = record(&mut session, &info, asked()).await;
    assert_eq!((first.position, second.position > 0), (0, true));
    let replayer = replayer("hostile").await;
    assert_eq!(replayer.play(&first).await.unwrap().verdict, ReplayVerdict::Same);
    assert!(matches!(replayer.play(&second).await.unwrap().verdict, ReplayVerdict::DifferentAnswer { .. }));
    // The conformance check of `oarlock plugin vet --replay`.
    let mut warm = replayer.warm(&first.plugin.limits);
    warm.play(&first).await.unwrap();
    let (fresh, used) = (replayer.play(&first).await.unwrap(), warm.play(&first).await.unwrap());
    assert!(!differences(&fresh.answer, &used.answer).is_empty());
}

#[tokio::test]
async fn a_recorded_timeout_and_other_settings_are_told() {
    let (plugins, info) = serving("replace").await;
    let same =
        record(&mut session(&plugins, &info), &info, visit("Replace", Call::OperateThenProgress, json!({}))).await;
    let mut timed = VisitRecord::clone(&same);
    let message = "operate exceeded a limit: it ran longer than 50 ms".to_owned();
    timed.answer = RecordedAnswer::Trapped { reason: "PluginLimitExceeded".into(), message };
    timed.plugin.config_digest = Some("sha256:00".into());
    let replayed = play("replace", &Arc::new(timed)).await;
    assert!(matches!(replayed.verdict, ReplayVerdict::DifferentAnswer { .. }));
    assert!(replayed.notes[0].contains("exceeded its limit on time"), "{:?}", replayed.notes);
    assert!(replayed.notes[1].contains("--config"), "{:?}", replayed.notes);
}

#[tokio::test]
async fn a_record_of_another_plugin_and_a_file_that_is_no_plugin_are_refused() {
    let (plugins, info) = serving("replace").await;
    let same =
        record(&mut session(&plugins, &info), &info, visit("Replace", Call::OperateThenProgress, json!({}))).await;
    let error = replayer("hostile").await.play(&same).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "the record is of the plugin replace, and the file is the plugin hostile; name the file of replace"
    );
    let error = Replayer::load(b"\0asm".to_vec(), None, options()).await.err().unwrap();
    assert!(!error.to_string().is_empty());
}
