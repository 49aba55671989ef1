//! Drains of nodes: which pods go, which pods stay and are named, and how little a pod that stays costs the others.

use std::collections::BTreeSet;

use oarlock_core::cache::store::{Indexed, NODE_NAME};
use oarlock_core::object::api_object::{Kind, ObjectKey};
use oarlock_core::plugin::proposal::{CallFailure, DrainRequest, Mutation, Proposal, State};
use oarlock_core::plugin::visit::{Answer, Call, Visit};
use oarlock_core::requests::writes::{Stopped, Write, blocked_by};
use serde_json::{Value, json};

use crate::answers::{proposing, report};
use crate::bench::patch::merge;
use crate::bench::plugin::node_plugin;
use crate::bench::weather::{Fate, Going, Look, Weather};
use crate::bench::{Bench, START};
use oarlock_core::requests::live_reads::LiveRead;

/// Returns a bench with a job that drains these nodes.
fn bench(names: &[&str], fields: &Value) -> Bench {
    let mut spec = Bench::targets(names);
    merge(&mut spec, &json!({"action": "Reboot", "targetKind": "Node"}));
    merge(&mut spec, fields);
    let mut bench = Bench::new(spec);
    bench.store.keep(&Kind::node(), Indexed::default());
    bench.store.keep(&Kind::pod(), Indexed { fields: [NODE_NAME.to_owned()].into(), ..Indexed::default() });
    bench.found = node_plugin();
    for name in names {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": name}, "spec": {},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        bench.show_of(&Kind::node(), node);
    }
    bench.weather = Box::new(Budgets::default());
    bench
}

/// Adds a pod on node `n` with a controller, and with more fields.
fn pod(bench: &mut Bench, (namespace, name): (&str, &str), fields: &Value) {
    let mut document = json!({"metadata": {"name": name, "namespace": namespace, "uid": format!("{namespace}-{name}"),
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "s", "uid": "set", "controller": true}]},
        "spec": {"nodeName": "n"}});
    merge(&mut document, fields);
    bench.show(document);
}

/// The evictions that are blocked, and the way in which pods go.
#[derive(Default)]
struct Budgets {
    blocked: BTreeSet<&'static str>,
    terminating: BTreeSet<&'static str>,
    lost: BTreeSet<&'static str>,
    unanswered: BTreeSet<&'static str>,
    unlisted: bool,
    going: Option<Going>,
}

impl Weather for Budgets {
    fn write(&mut self, write: &Write) -> Fate {
        let name = write.object().name.as_str();
        self.going = Some(if self.terminating.contains(name) { Going::Terminates(30) } else { Going::Gone });
        match write {
            Write::Evict { .. } if self.blocked.contains(name) => Fate::Stopped(Stopped::Blocked {
                message: blocked_by("web", "Cannot evict pod as it would violate the pod's disruption budget."),
                retry_after: None,
            }),
            Write::Evict { .. } if self.lost.contains(name) => Fate::Lost,
            Write::Evict { .. } if self.unanswered.contains(name) => {
                Fate::Stopped(Stopped::Unknown { message: "failed calling webhook".into() })
            }
            _ => Fate::Done,
        }
    }

    fn look(&mut self, read: &LiveRead) -> Look {
        if self.unlisted && matches!(read, LiveRead::OnNode { .. }) { Look::Refused } else { Look::Answered }
    }

    fn goes(&mut self) -> Going {
        self.going.unwrap_or(Going::Gone)
    }
}

fn request(visit: &Visit) -> DrainRequest {
    DrainRequest { node: visit.target.name.clone(), grace_seconds: None, delete_empty_dir_data: false, force: false }
}

/// Drains a node as `request` says, and succeeds once the node is drained.
fn draining(request: impl Fn(&Visit) -> DrainRequest) -> impl FnMut(&Visit) -> Answer {
    move |visit| {
        let drained = visit.target.extras.get("Drain").is_some_and(|value| value.contains("Drained"));
        match visit.call {
            Call::Release => Answer::Proposed(Proposal::default()),
            Call::OperateThenProgress if !drained => proposing(vec![Mutation::Drain(request(visit))]),
            _ if drained => report(State::Succeeded),
            _ => report(State::Processing),
        }
    }
}

fn step(bench: &mut Bench, seconds: i64, answer: &mut dyn FnMut(&Visit) -> Answer) {
    bench.later(seconds);
    bench.settle(answer);
}

/// Runs rounds two seconds apart for this many seconds.
fn run(bench: &mut Bench, seconds: i64, answer: &mut dyn FnMut(&Visit) -> Answer) {
    (0..seconds / 2).for_each(|_| step(bench, 2, answer));
}

fn drain(bench: &Bench, index: usize) -> Value {
    let extra = &bench.status()["targetDetails"][index]["extraInfo"]["Drain"];
    extra.as_str().map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
}

fn evictions(bench: &Bench) -> Vec<&str> {
    bench.sent.iter().filter_map(|sent| sent.strip_prefix("evict ")).collect()
}

#[test]
fn the_pods_of_all_namespaces_are_evicted_once_each_after_the_node_is_cordoned() {
    let mut bench = bench(&["n"], &json!({}));
    for place in [("d", "a"), ("d", "b"), ("far", "c")] {
        pod(&mut bench, place, &json!({}));
    }
    pod(&mut bench, ("d", "elsewhere"), &json!({"spec": {"nodeName": "m"}}));
    run(&mut bench, 10, &mut draining(request));
    assert_eq!((bench.word(0).as_str(), drain(&bench, 0)), ("Succeeded", json!({"state": "Drained"})));
    assert_eq!(evictions(&bench), ["a", "b", "c"]);
    let order: Vec<&String> =
        bench.sent.iter().filter(|sent| !["finalizer", "status"].contains(&sent.as_str())).collect();
    assert_eq!(order[0], "patch n", "the cordon comes first: {order:?}");
    run(&mut bench, 4, &mut draining(request));
    let spec = bench.store.get(&ObjectKey::node("n")).unwrap().node.clone().unwrap();
    assert!(!spec.cordoned, "the cordon was a hold");
}

#[test]
fn what_a_drain_does_not_concern_stays_and_is_not_waited_for() {
    let mut bench = bench(&["n"], &json!({}));
    let daemon = |group: &str| json!({"metadata": {"ownerReferences": [{"apiVersion": group, "kind": "DaemonSet", "name": "s", "uid": "set", "controller": true}]}});
    pod(&mut bench, ("d", "daemon"), &daemon("apps/v1"));
    pod(&mut bench, ("d", "daemon-of-others"), &daemon("apps.kruise.io/v1alpha1"));
    pod(
        &mut bench,
        ("d", "static"),
        &json!({"metadata": {"ownerReferences": null, "annotations": {"kubernetes.io/config.mirror": "x"}}}),
    );
    pod(
        &mut bench,
        ("oarlock-tasks", "task"),
        &json!({"metadata": {"ownerReferences": null, "labels": {"oarlock.dev/job-uid": "j"}}}),
    );
    pod(&mut bench, ("d", "done"), &json!({"metadata": {"ownerReferences": null}, "status": {"phase": "Succeeded"}}));
    run(&mut bench, 6, &mut draining(request));
    assert_eq!((bench.word(0).as_str(), evictions(&bench).len()), ("Succeeded", 0));
}

#[test]
fn a_pod_without_controller_and_one_with_local_data_are_named_and_the_others_go() {
    let mut bench = bench(&["n"], &json!({}));
    pod(&mut bench, ("d", "bare"), &json!({"metadata": {"ownerReferences": null}}));
    pod(&mut bench, ("d", "scratch"), &json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}));
    pod(&mut bench, ("d", "web"), &json!({}));
    run(&mut bench, 10, &mut draining(request));
    assert_eq!(evictions(&bench), ["web"]);
    assert_eq!(drain(&bench, 0), json!({"state": "Draining", "blocked": ["d/bare", "d/scratch"]}));
    let error = bench.status()["targetDetails"][0]["error"].clone();
    assert_eq!(
        (bench.word(0).as_str(), &error["message"]),
        (
            "Processing/EvictionBlocked",
            &json!(
                "2 pods of the node stay: d/bare (no controller would make it anew: an OperationJob with `force` evicts it); also d/scratch"
            )
        )
    );
    assert_eq!(bench.event_reasons.iter().filter(|reason| *reason == "EvictionBlocked").count(), 1);
    bench.vanish_of(&ObjectKey::pod("d", "bare"));
    bench.vanish_of(&ObjectKey::pod("d", "scratch"));
    step(&mut bench, 1, &mut draining(request));
    run(&mut bench, 4, &mut draining(request));
    assert_eq!(bench.word(0), "Succeeded", "a pod that goes wakes the node at once");
}

#[test]
fn local_data_whose_loss_a_pod_says_it_bears_keeps_nobody() {
    let volumes = json!([{"name": "a", "emptyDir": {}}, {"name": "b", "emptyDir": {}}]);
    let bears = |names: &str| {
        let annotations = json!({"cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes": names});
        json!({"metadata": {"annotations": annotations}, "spec": {"volumes": volumes}})
    };
    let mut bench = bench(&["n"], &json!({}));
    pod(&mut bench, ("d", "both"), &bears("a, b"));
    pod(&mut bench, ("d", "one"), &bears("a"));
    run(&mut bench, 10, &mut draining(request));
    assert_eq!((evictions(&bench), drain(&bench, 0)["blocked"].clone()), (vec!["both"], json!(["d/one"])));
}

#[test]
fn a_budget_keeps_its_own_pod_and_no_other_and_is_asked_again_with_growing_waits() {
    let mut bench = bench(&["n", "m"], &json!({}));
    bench.weather = Box::new(Budgets { blocked: ["a"].into(), ..Budgets::default() });
    for name in ["a", "b", "c"] {
        pod(&mut bench, ("d", name), &json!({}));
    }
    pod(&mut bench, ("d", "of-m"), &json!({"spec": {"nodeName": "m"}}));
    run(&mut bench, 4, &mut draining(request));
    assert_eq!(
        evictions(&bench),
        ["a", "of-m", "b", "c"],
        "the budget keeps neither the other pods nor the other node"
    );
    run(&mut bench, 96, &mut draining(request));
    assert_eq!((bench.word(0).as_str(), bench.word(1).as_str()), ("Processing/EvictionBlocked", "Succeeded"));
    assert_eq!(bench.times("evict a"), 5, "after 5, 10, 20 and 40 s");
    assert_eq!(drain(&bench, 0), json!({"state": "Draining", "blocked": ["d/a"]}));
    let message = bench.status()["targetDetails"][0]["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("d/a (disruption budget web: Cannot evict"), "{message}");
    bench.weather = Box::new(Budgets::default());
    run(&mut bench, 70, &mut draining(request));
    assert_eq!((bench.word(0).as_str(), bench.times("evict a")), ("Succeeded", 6));
    assert_eq!(bench.status()["targetDetails"][0]["error"], Value::Null);
}

#[test]
fn an_eviction_that_gets_no_answer_keeps_no_other_pod_and_is_named() {
    let mut bench = bench(&["n"], &json!({}));
    bench.weather = Box::new(Budgets { unanswered: ["a"].into(), ..Budgets::default() });
    for name in ["a", "b", "c"] {
        pod(&mut bench, ("d", name), &json!({}));
    }
    run(&mut bench, 20, &mut draining(request));
    assert!(["b", "c"].iter().all(|name| evictions(&bench).contains(name)), "{:?}", evictions(&bench));
    assert_eq!(drain(&bench, 0), json!({"state": "Draining", "blocked": ["d/a"]}));
    let error = &bench.status()["targetDetails"][0]["error"];
    assert!(error["message"].as_str().unwrap().contains("failed calling webhook"), "{error}");
    bench.weather = Box::new(Budgets::default());
    run(&mut bench, 70, &mut draining(request));
    assert_eq!(bench.word(0), "Succeeded");
}

#[test]
fn a_node_that_stays_blocked_says_so_without_a_pause_and_writes_nothing_more() {
    let mut bench = bench(&["n"], &json!({}));
    bench.weather = Box::new(Budgets { blocked: ["a"].into(), ..Budgets::default() });
    pod(&mut bench, ("d", "a"), &json!({}));
    run(&mut bench, 6, &mut draining(request));
    let before = bench.status_writes;
    for _ in 0..60 {
        step(&mut bench, 2, &mut draining(request));
        assert_eq!(bench.word(0), "Processing/EvictionBlocked");
    }
    assert!(bench.times("evict a") > 3, "it is tried again");
    assert_eq!(bench.status_writes, before);
    assert_eq!(bench.status()["waitsFor"], "Drain");
    let reconciling = bench.status()["conditions"].as_array().unwrap().iter().find(|one| one["type"] == "Reconciling");
    let said = reconciling.unwrap()["message"].as_str().unwrap();
    assert!(said.contains("n: 1 pod of the node stays: d/a (disruption budget web"), "{said}");
}

#[test]
fn a_pod_that_never_terminates_is_evicted_once_and_costs_its_target_alone_the_deadline() {
    let mut bench = bench(&["n", "m"], &json!({"activeDeadlineSeconds": 120}));
    bench.weather = Box::new(Budgets { terminating: ["stuck"].into(), ..Budgets::default() });
    pod(&mut bench, ("d", "stuck"), &json!({}));
    pod(&mut bench, ("d", "of-m"), &json!({"spec": {"nodeName": "m"}}));
    run(&mut bench, 100, &mut draining(request));
    assert_eq!((bench.times("evict stuck"), bench.word(1).as_str()), (1, "Succeeded"));
    assert_eq!(drain(&bench, 0), json!({"state": "Draining", "blocked": ["d/stuck"]}));
    run(&mut bench, 40, &mut draining(request));
    assert_eq!(bench.word(0), "Failed/DeadlineExceeded");
    let message = bench.status()["targetDetails"][0]["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("EvictionBlocked") && message.contains("it does not terminate"), "{message}");
    run(&mut bench, 6, &mut draining(request));
    assert!(!bench.store.get(&ObjectKey::node("n")).unwrap().node.clone().unwrap().cordoned);
}

/// The host visits such a node each second, because a plugin cannot say when its own limit is over.
#[test]
fn a_node_that_is_drained_is_visited_each_second() {
    let mut bench = bench(&["n"], &json!({}));
    bench.weather = Box::new(Budgets { blocked: ["a"].into(), ..Budgets::default() });
    pod(&mut bench, ("d", "a"), &json!({}));
    let (mut drains, mut visits) = (draining(request), 0);
    let mut counted = |visit: &Visit| {
        visits += 1;
        drains(visit)
    };
    (0..60).for_each(|_| step(&mut bench, 1, &mut counted));
    assert!(visits >= 58, "{visits}");
}

/// Source: <https://github.com/kubernetes-sigs/cluster-api/issues/6894>.
#[test]
fn pods_that_a_controller_makes_again_for_a_cordoned_node_stay_after_the_third() {
    let mut bench = bench(&["n"], &json!({}));
    bench.weather = Box::new(Budgets { blocked: ["stays"].into(), ..Budgets::default() });
    pod(&mut bench, ("d", "stays"), &json!({}));
    pod(&mut bench, ("d", "first"), &json!({}));
    for name in ["a", "b", "c", "d", "e", "f"] {
        run(&mut bench, 20, &mut draining(request));
        pod(&mut bench, ("d", name), &json!({"metadata": {"creationTimestamp": "2026-01-01T01:00:00Z"}}));
    }
    run(&mut bench, 20, &mut draining(request));
    let evicted = ["first", "a", "b", "c", "d", "e", "f"].map(|name| bench.times(&format!("evict {name}")));
    assert_eq!(evicted, [1, 1, 1, 1, 0, 0, 0]);
    assert_eq!(drain(&bench, 0)["blocked"], json!(["d/stays"]), "what stays blocks nothing");
}

#[test]
fn pods_that_came_to_a_node_before_it_was_cordoned_are_all_evicted() {
    let mut bench = bench(&["n"], &json!({"operationDelaySeconds": 600}));
    let names = ["a", "b", "c", "d", "e", "f"];
    for name in names {
        pod(&mut bench, ("d", name), &json!({"metadata": {"creationTimestamp": "2026-01-01T00:05:00Z"}}));
    }
    run(&mut bench, 700, &mut draining(request));
    assert_eq!((bench.word(0).as_str(), evictions(&bench).len()), ("Succeeded", names.len()));
}

#[test]
fn the_pod_that_takes_longest_to_terminate_is_named() {
    let mut bench = bench(&["n"], &json!({}));
    bench.weather = Box::new(Budgets { terminating: ["slow"].into(), ..Budgets::default() });
    pod(&mut bench, ("d", "slow"), &json!({}));
    run(&mut bench, 10, &mut draining(request));
    assert_eq!(drain(&bench, 0), json!({"state": "Draining", "terminating": "d/slow"}));
}

#[test]
fn a_plugin_that_gives_up_a_drain_ends_its_target_and_nothing_more_is_evicted() {
    let mut bench = bench(&["n"], &json!({}));
    bench.weather = Box::new(Budgets { blocked: ["a"].into(), ..Budgets::default() });
    pod(&mut bench, ("d", "a"), &json!({}));
    run(&mut bench, 4, &mut draining(request));
    let mut gives_up = |visit: &Visit| match visit.call {
        Call::Release => Answer::Proposed(Proposal::default()),
        _ => Answer::Failed(CallFailure {
            retryable: false,
            reason: "DrainTimeout".into(),
            message: "m".into(),
            retry_after_ms: None,
        }),
    };
    run(&mut bench, 20, &mut gives_up);
    assert_eq!((bench.word(0).as_str(), bench.times("evict a")), ("Failed/DrainTimeout", 1));
}

#[test]
fn a_new_leader_drains_on_and_never_takes_an_unread_node_for_drained() {
    let mut bench = bench(&["n"], &json!({}));
    bench.weather = Box::new(Budgets { unlisted: true, ..Budgets::default() });
    for name in ["a", "b"] {
        pod(&mut bench, ("d", name), &json!({}));
    }
    bench.wire = 1;
    run(&mut bench, 4, &mut draining(request));
    bench.crash();
    bench.wire = usize::MAX;
    run(&mut bench, 20, &mut draining(request));
    assert_eq!(
        (bench.word(0).as_str(), drain(&bench, 0)),
        ("Processing/GetObjectFailed", json!({"state": "Draining"}))
    );
    assert_eq!((bench.times("evict a"), bench.times("evict b")), (1, 1));
    bench.weather = Box::new(Budgets::default());
    run(&mut bench, 70, &mut draining(request));
    assert_eq!(bench.word(0), "Succeeded");
}

#[test]
fn a_cordon_that_is_refused_is_shown_and_no_pod_is_evicted_before_it() {
    let mut bench = bench(&["n"], &json!({}));
    bench.refuse.insert("patch", Stopped::Refused { message: "forbidden".into() });
    pod(&mut bench, ("d", "a"), &json!({}));
    run(&mut bench, 40, &mut draining(request));
    assert_eq!((bench.word(0).as_str(), evictions(&bench).len()), ("Processing/UpdateObjectFailed", 0));
    bench.refuse.clear();
    run(&mut bench, 70, &mut draining(request));
    assert_eq!(bench.word(0), "Succeeded");
}

#[test]
fn an_eviction_whose_reply_is_lost_is_made_again_only_where_the_pod_stays() {
    let mut bench = bench(&["n"], &json!({}));
    pod(&mut bench, ("d", "a"), &json!({}));
    pod(&mut bench, ("d", "b"), &json!({}));
    bench.weather = Box::new(Budgets { lost: ["a"].into(), ..Budgets::default() });
    run(&mut bench, 30, &mut draining(request));
    assert_eq!((bench.word(0).as_str(), evictions(&bench)), ("Succeeded", vec!["a", "b"]));
}

#[test]
fn of_many_pods_that_stay_ten_are_named() {
    let mut bench = bench(&["n"], &json!({}));
    for at in 0..30 {
        pod(&mut bench, ("d", &format!("{}-{at:02}", "x".repeat(40))), &json!({"metadata": {"ownerReferences": null}}));
    }
    run(&mut bench, 6, &mut draining(request));
    let shown = drain(&bench, 0);
    assert_eq!((shown["blocked"].as_array().unwrap().len(), &shown["more"]), (8, &json!(22)), "at most 400 bytes");
    bench.edit(&json!({"metadata": {"deletionTimestamp": START}}));
    run(&mut bench, 6, &mut draining(request));
    assert!(bench.job_is_gone);
}

#[test]
fn a_dry_run_tries_each_eviction_and_names_the_pods_that_would_stay() {
    let mut bench = bench(&["n"], &json!({"dryRun": true}));
    pod(&mut bench, ("d", "bare"), &json!({"metadata": {"ownerReferences": null}}));
    pod(&mut bench, ("far", "web"), &json!({}));
    run(&mut bench, 6, &mut draining(request));
    assert_eq!(bench.word(0), "Succeeded");
    let plan = bench.status()["targetDetails"][0]["extraInfo"]["Plan"].as_str().unwrap().to_owned();
    assert!(
        plan.starts_with(
            "wait for pod d/bare (no controller would make it anew: an OperationJob with `force` evicts it), then cordon node n, then evict pod web"
        ),
        "{plan}"
    );
    assert_eq!((bench.times("try to evict web"), bench.times("evict web")), (1, 0));
}
