//! Jobs with a selector. The found targets are durable before any of them starts, and the list never changes afterwards.

use oarlock_core::plugin::lookup::PluginLookup;
use oarlock_core::plugin::visit::Visit;
use oarlock_core::requests::live_reads::LiveRead;
use serde_json::{Value, json};

use crate::answers::{evict_and_wait, waiting};
use crate::bench::plugin::plugin;
use crate::bench::weather::{Look, Weather};
use crate::bench::{Bench, START};

/// Returns a bench with a job for the pods labelled `app=web`.
fn bench(fields: &Value) -> Bench {
    let mut spec = json!({"action": "Replace", "selector": {"labelSelector": {"matchLabels": {"app": "web"}}}});
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    Bench::new(spec)
}

/// Adds a pod with the label and more metadata.
fn web_with(bench: &mut Bench, name: &str, uid: &str, more: &Value) {
    let mut meta = json!({"name": name, "namespace": "d", "uid": uid, "creationTimestamp": START,
        "labels": {"app": "web"}, "ownerReferences": [{"apiVersion": "apps/v1", "kind": "CloneSet", "name": "s",
            "uid": "set", "controller": true}]});
    meta.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    bench.show(json!({ "metadata": meta }));
}

fn web(bench: &mut Bench, name: &str, uid: &str) {
    web_with(bench, name, uid, &json!({}));
}

fn details(bench: &Bench) -> Vec<String> {
    let all = bench.status()["targetDetails"].as_array().cloned().unwrap_or_default();
    let text = |detail: &Value, field: &str| detail[field].as_str().unwrap_or("-").to_owned();
    all.iter()
        .map(|detail| format!("{} {} {}", text(detail, "name"), text(detail, "uid"), text(detail, "progress")))
        .collect()
}

fn valid(bench: &Bench) -> (String, String) {
    let all = bench.status()["conditions"].as_array().unwrap();
    let found = all.iter().find(|condition| condition["type"] == "Valid").unwrap();
    (found["reason"].as_str().unwrap().to_owned(), found["message"].as_str().unwrap().to_owned())
}

/// Runs rounds until the status was written once more.
fn until_written(bench: &mut Bench) {
    let before = bench.status_writes;
    for _ in 0..10 {
        bench.round(&mut evict_and_wait);
        if bench.status_writes > before {
            return;
        }
        bench.now = bench.next.filter(|next| *next > bench.now).unwrap_or(bench.now);
    }
    panic!("no status is written: {:#?}", bench.memory);
}

/// Returns the number of targets in the stored records.
fn recorded(bench: &Bench) -> usize {
    bench.read_records().iter().map(|record| record.record.targets.len()).sum()
}

/// Weather in which every live read has this outcome.
struct Unread(Look);

impl Weather for Unread {
    fn look(&mut self, _: &LiveRead) -> Look {
        self.0
    }
}

#[test]
fn what_a_selector_finds_is_stored_before_anything_starts_and_in_order_of_names() {
    let mut bench = bench(&json!({}));
    for (name, uid) in [("c", "3"), ("a", "1"), ("b", "2")] {
        web(&mut bench, name, uid);
    }
    web_with(&mut bench, "going", "4", &json!({"deletionTimestamp": START, "deletionGracePeriodSeconds": 30}));
    web_with(&mut bench, "other", "5", &json!({"labels": {"app": "x"}}));
    until_written(&mut bench);
    assert_eq!(details(&bench), ["a 1 Pending", "b 2 Pending", "c 3 Pending"]);
    let selection = bench.status()["selection"].clone();
    assert_eq!((&selection["source"], &bench.status()["totalPodCount"]), (&json!("Selector"), &json!(3)));
    assert_eq!(
        (bench.sent.clone(), bench.event_reasons.clone()),
        (vec!["status".to_owned()], vec!["Selected".to_owned()])
    );
    bench.later(1);
    bench.settle(&mut evict_and_wait);
    assert_eq!(details(&bench), ["a 1 Processing", "b 2 Processing", "c 3 Processing"]);
    assert_eq!((&bench.status()["selection"], bench.times("evict a")), (&selection, 1));
}

#[test]
fn a_crash_before_the_list_is_stored_asks_again_and_one_after_it_does_not() {
    let mut bench = bench(&json!({}));
    web(&mut bench, "a", "1");
    bench.round(&mut evict_and_wait);
    assert!(
        bench.status_writes == 0 && bench.memory.work.all_reads(&bench.memory.decisions.selecting).len() == 1,
        "asked, and nothing written"
    );
    bench.crash();
    web(&mut bench, "b", "2");
    until_written(&mut bench);
    assert_eq!(details(&bench), ["a 1 Pending", "b 2 Pending"]);
    bench.crash();
    web(&mut bench, "c", "3");
    for _ in 0..2 {
        bench.later(1);
        bench.settle(&mut evict_and_wait);
    }
    assert_eq!(details(&bench), ["a 1 Processing", "b 2 Processing"]);
    assert_eq!(bench.event_reasons.iter().filter(|told| *told == "Selected").count(), 1);
}

#[test]
fn the_records_of_a_large_list_are_stored_before_the_list_is_the_jobs() {
    let mut bench = bench(&json!({"parallelism": 3}));
    for number in 0..300 {
        web(&mut bench, &format!("p{number:03}"), &format!("u{number}"));
    }
    until_written(&mut bench);
    let status = bench.status().clone();
    assert_eq!((&status["epoch"], &status["selection"], bench.records.len()), (&json!(1), &Value::Null, 0));
    until_written(&mut bench);
    assert_eq!((recorded(&bench), &bench.status()["records"]["count"]), (300, &json!(2)));
    assert_eq!(bench.status()["selection"]["source"], "Selector");
    assert_eq!((&bench.status()["ranges"]["processing"], bench.times("evict p000")), (&Value::Null, 0));
    bench.crash();
    web(&mut bench, "p999", "u999");
    for _ in 0..2 {
        bench.later(1);
        bench.settle(&mut evict_and_wait);
    }
    assert_eq!(bench.status()["ranges"]["processing"], "0-2");
    assert_eq!((&bench.status()["totalPodCount"], bench.times("evict p000")), (&json!(300), 1));
    assert_eq!(bench.memory.stored.state.targets[299].uid.as_deref(), Some("u299"));
}

#[test]
fn records_that_a_crash_left_before_the_list_was_the_jobs_count_for_nothing() {
    let mut bench = bench(&json!({"partition": 0}));
    for number in 0..600 {
        web(&mut bench, &format!("p{number:03}"), &format!("u{number}"));
    }
    until_written(&mut bench);
    let before = bench.job.clone();
    until_written(&mut bench);
    assert_eq!(bench.records.len(), 3);
    // The process died after it wrote the records and before it wrote the status.
    bench.job = before;
    bench.crash();
    for number in 0..200 {
        bench.vanish(&format!("p{number:03}"));
    }
    bench.later(1);
    for _ in 0..3 {
        bench.settle(&mut waiting);
        bench.later(2);
    }
    assert_eq!((&bench.status()["totalPodCount"], bench.memory.stored.state.name(0)), (&json!(400), "p200"));
    assert_eq!((bench.records.len(), &bench.status()["records"]["count"]), (3, &json!(2)), "one is left over");
    bench.crash();
    bench.settle(&mut waiting);
    assert_eq!((bench.memory.stored.state.targets.len(), bench.memory.stored.state.name(399)), (400, "p599"));
}

#[test]
fn a_record_of_a_selected_list_that_is_lost_fails_its_targets_and_no_other() {
    let mut bench = bench(&json!({"partition": 0}));
    for number in 0..300 {
        web(&mut bench, &format!("p{number:03}"), &format!("u{number}"));
    }
    until_written(&mut bench);
    until_written(&mut bench);
    let lost = bench.records.remove(&1);
    bench.memory.stored.operation_records.read_again();
    bench.later(2);
    bench.settle(&mut waiting);
    assert_eq!(bench.records.get(&1).map(|record| &record["targets"]), lost.as_ref().map(|lost| &lost["targets"]));
    bench.records.remove(&1);
    bench.crash();
    for _ in 0..4 {
        bench.later(2);
        bench.settle(&mut waiting);
    }
    assert_eq!(bench.status()["failedPodCount"], 50);
    assert_eq!(bench.status()["ranges"]["failed"], "250-299");
    assert_eq!(bench.status()["failures"][0]["reason"], "RecordLost");
    bench.crash();
    bench.later(2);
    bench.settle(&mut waiting);
    assert_eq!((bench.memory.stored.durable.pending.len(), bench.memory.stored.durable.failed.len()), (250, 50));
}

#[test]
fn a_list_that_somebody_cleared_stays_in_this_term_and_is_never_made_anew_by_the_next() {
    let mut bench = bench(&json!({"partition": 1}));
    web(&mut bench, "a", "1");
    web(&mut bench, "b", "2");
    bench.settle(&mut waiting);
    bench.later(2);
    bench.settle(&mut waiting);
    web(&mut bench, "c", "3");
    bench.edit(&json!({"status": {"targetDetails": null, "selection": null, "totalPodCount": null}}));
    bench.later(2);
    bench.settle(&mut waiting);
    assert_eq!(details(&bench), ["a 1 Processing", "b 2 Pending"]);
    assert_eq!(bench.status()["selection"]["source"], "Selector");
    bench.edit(&json!({"status": {"targetDetails": null}}));
    bench.crash();
    for _ in 0..3 {
        bench.later(2);
        bench.settle(&mut waiting);
    }
    assert_eq!([bench.word(0), bench.word(1)], ["Failed/RecordLost"; 2]);
    bench.edit(&json!({"status": {"targetDetails": null, "totalPodCount": null, "endTime": null}}));
    bench.crash();
    bench.later(2);
    bench.settle(&mut waiting);
    assert_eq!((valid(&bench).0.as_str(), details(&bench).len()), ("NoTargets", 0));
}

#[test]
fn a_selector_that_finds_nothing_is_tried_every_30_s() {
    let mut bench = bench(&json!({}));
    for _ in 0..3 {
        bench.settle(&mut evict_and_wait);
        let (reason, message) = valid(&bench);
        assert_eq!(reason, "NoTargetsMatched");
        assert_eq!(message, "spec.selector: no pod that matches app=web in namespace d; tried again every 30 s");
        assert_eq!(bench.next.map(|next| next.duration_since(bench.now).as_secs()), Some(30));
        bench.later(30);
    }
    assert_eq!((bench.status_writes, bench.event_reasons.as_slice()), (1, ["InvalidSpec".to_owned()].as_slice()));
    web(&mut bench, "a", "1");
    bench.settle(&mut evict_and_wait);
    bench.later(1);
    bench.settle(&mut evict_and_wait);
    assert_eq!((details(&bench), valid(&bench).0), (vec!["a 1 Processing".to_owned()], "Accepted".into()));
}

#[test]
fn more_than_ten_thousand_pods_are_too_many() {
    let mut bench = bench(&json!({}));
    for number in 0..10_001 {
        web(&mut bench, &format!("p{number}"), &format!("u{number}"));
    }
    bench.settle(&mut evict_and_wait);
    assert_eq!((valid(&bench).0.as_str(), bench.records.len()), ("TooManyTargets", 0));
    assert_eq!(bench.next.map(|next| next.duration_since(bench.now).as_secs()), Some(30));
    bench.vanish("p0");
    bench.later(30);
    bench.settle(&mut waiting);
    bench.later(1);
    bench.settle(&mut waiting);
    assert_eq!((recorded(&bench), &bench.status()["records"]["count"]), (10_000, &json!(40)));
}

#[test]
fn a_list_that_fails_is_shown_and_made_again() {
    let mut bench = bench(&json!({}));
    web(&mut bench, "a", "1");
    for (look, seconds) in [(Look::Refused, 30), (Look::Silent, 2)] {
        bench.weather = Box::new(Unread(look));
        bench.settle(&mut evict_and_wait);
        let (reason, message) = valid(&bench);
        assert_eq!((reason.as_str(), message.contains("the weather is bad")), ("NoTargets", true), "{message}");
        assert_eq!(bench.next.map(|next| next.duration_since(bench.now).as_secs()), Some(seconds));
        bench.later(seconds);
    }
    bench.weather = Box::new(Unread(Look::Answered));
    bench.settle(&mut evict_and_wait);
    bench.later(1);
    bench.settle(&mut evict_and_wait);
    assert_eq!(details(&bench), ["a 1 Processing"]);
}

#[test]
fn a_selector_that_is_edited_after_its_list_was_stored_starts_nothing_until_it_is_put_back() {
    let mut bench = bench(&json!({"partition": 1}));
    web(&mut bench, "a", "1");
    web(&mut bench, "b", "2");
    bench.settle(&mut waiting);
    bench.later(1);
    bench.settle(&mut waiting);
    let edit = |label: &str, generation: i64| {
        json!({"metadata": {"generation": generation},
            "spec": {"partition": 2, "selector": {"labelSelector": {"matchLabels": {"app": label}}}}})
    };
    bench.edit(&edit("x", 2));
    bench.later(2);
    bench.settle(&mut waiting);
    assert_eq!(valid(&bench).0, "ImmutableFieldChanged");
    assert_eq!(details(&bench), ["a 1 Processing", "b 2 Pending"]);
    bench.crash();
    bench.later(2);
    bench.settle(&mut waiting);
    bench.edit(&edit("web", 3));
    bench.later(2);
    bench.settle(&mut waiting);
    assert_eq!(details(&bench), ["a 1 Processing", "b 2 Processing"]);
}

#[test]
fn a_selector_waits_for_its_plugin_and_a_deleted_job_selects_nothing() {
    let mut bench = bench(&json!({}));
    web(&mut bench, "a", "1");
    bench.found = PluginLookup::Unknown { loaded: vec![] };
    bench.settle(&mut evict_and_wait);
    assert_eq!((details(&bench).len(), &bench.status()["waitsFor"]), (0, &json!("NoPlugin")));
    bench.edit(&json!({"metadata": {"deletionTimestamp": START, "finalizers": ["someone.else/s"]}}));
    bench.found = plugin();
    bench.later(2);
    let mut called = 0;
    bench.settle(&mut |visit: &Visit| {
        called += 1;
        waiting(visit)
    });
    assert_eq!((details(&bench).len(), called, bench.next), (0, 0, None));
}
