//! Jobs whose targets are nodes: how a node is identified, what a plugin may change on it, and what remains afterwards.

use oarlock_core::object::api_object::{Kind, Object, ObjectKey};
use oarlock_core::object::key::JobKey;
use oarlock_core::object::own::TASKS_NAMESPACE;
use oarlock_core::operation_job::cleanup::{beside_holds, live_reads_of_leftovers};
use oarlock_core::operation_job::round::unlisted::wait_for_kinds;
use oarlock_core::operation_job::shared::tables::lock;
use oarlock_core::plugin::proposal::{MetadataChange, Mutation, ObjectRef, Proposal, State, TaintChange};
use oarlock_core::plugin::visit::{Answer, Call, Visit};
use oarlock_core::requests::live_reads::LiveRead;
use oarlock_core::requests::writes::Write;
use serde_json::{Value, json};

use crate::answers::{proposing, report, unavailable, waiting};
use crate::bench::patch::merge;
use crate::bench::plugin::{node_plugin, plugin};
use crate::bench::{Bench, JOB_UID, START};

/// Returns a node with this `spec` that is Ready or not.
fn node(name: &str, uid: &str, ready: bool, spec: &Value) -> Value {
    let status = if ready { "True" } else { "False" };
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": uid, "labels": {"pool": "x"}}, "spec": spec,
        "status": {"conditions": [{"type": "Ready", "status": status}]}})
}

fn show(bench: &mut Bench, node: Value) {
    bench.show_of(&Kind::node(), node);
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::node(name)
}

/// Returns a bench with a job on these nodes. The nodes in `down` are not Ready.
fn bench(names: &[&str], down: &[&str], fields: &Value) -> Bench {
    let mut spec = Bench::targets(names);
    merge(&mut spec, &json!({"action": "Reboot", "targetKind": "Node"}));
    merge(&mut spec, fields);
    let mut bench = Bench::new(spec);
    bench.store.keep(&Kind::node(), oarlock_core::cache::store::Indexed::default());
    bench.found = node_plugin();
    for name in names {
        show(&mut bench, node(name, name, !down.contains(name), &json!({})));
    }
    bench
}

fn cordon(visit: &Visit) -> Mutation {
    Mutation::Schedulable { node: visit.target.name.clone(), schedulable: false }
}

fn taint(visit: &Visit) -> Mutation {
    let (key, effect) = ("x.io/work".into(), "NoSchedule".into());
    Mutation::Taint(TaintChange { node: visit.target.name.clone(), key, value: "j".into(), effect, present: true })
}

fn label(visit: &Visit) -> Mutation {
    Mutation::Metadata(MetadataChange {
        object: ObjectRef { key: key(&visit.target.name), uid: None },
        set_labels: vec![("mark".into(), "true".into())],
        remove_labels: vec![],
        set_annotations: vec![],
        remove_annotations: vec![],
        add_finalizers: vec![],
        remove_finalizers: vec![],
        keep: false,
    })
}

/// Returns true if an annotation of the node says that the work is done.
fn is_done(object: &Object) -> bool {
    object.annotations.contains_key("done")
}

/// Cordons, taints and labels a node once, and succeeds when the node says so.
fn works(visit: &Visit) -> Answer {
    let object = visit.target.object.as_deref();
    let begun = visit.target.extras.contains_key("Begun");
    match (visit.call, object) {
        (Call::Release, _) => Answer::Proposed(Proposal::default()),
        (_, None) => report(State::Processing),
        (_, Some(object)) if is_done(object) => report(State::Succeeded),
        (Call::OperateThenProgress, Some(_)) if !begun => Answer::Proposed(Proposal {
            mutations: vec![cordon(visit), taint(visit), label(visit)],
            set_extra: vec![("Begun".into(), "true".into())],
            ..Proposal::default()
        }),
        _ => report(State::Processing),
    }
}

fn step(bench: &mut Bench, answer: &mut dyn FnMut(&Visit) -> Answer) {
    bench.later(2);
    bench.settle(answer);
}

fn words(bench: &Bench, count: usize) -> String {
    (0..count).map(|index| bench.word(index)).collect::<Vec<_>>().join(" ")
}

/// Returns the cordon, the number of taints, the label and the number of annotations of a node.
fn state(bench: &Bench, name: &str) -> (bool, usize, bool, usize) {
    let object = bench.store.get(&key(name)).unwrap();
    let spec = object.node.clone().unwrap();
    (spec.cordoned, spec.taints.len(), object.labels.contains_key("mark"), object.annotations.len())
}

const HELD: (bool, usize, bool, usize) = (true, 1, true, 1);
const CLEAN: (bool, usize, bool, usize) = (false, 0, false, 0);

/// Changes a node as another client would, and sends its event to the host.
fn change(bench: &mut Bench, name: &str, patch: &Value) {
    let object = bench.store.get(&key(name)).unwrap();
    let spec = object.node.clone().unwrap();
    let mut document = json!({"metadata": {"name": name, "uid": object.uid, "labels": object.labels, "annotations": object.annotations},
        "spec": {"unschedulable": spec.cordoned, "taints": spec.taints},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    merge(&mut document, patch);
    show(bench, document);
}

fn condition(bench: &Bench, kind: &str) -> (String, String) {
    let all = bench.status()["conditions"].as_array().unwrap();
    let found = all.iter().find(|condition| condition["type"] == kind).unwrap();
    (found["reason"].as_str().unwrap().to_owned(), found["message"].as_str().unwrap().to_owned())
}

/// Returns a bench with a job that holds its only node.
fn held(fields: &Value) -> Bench {
    let mut bench = bench(&["n"], &[], fields);
    bench.settle(&mut works);
    step(&mut bench, &mut works);
    assert_eq!((words(&bench, 1).as_str(), state(&bench, "n")), ("Processing", HELD));
    bench
}

#[test]
fn a_node_is_held_while_a_target_works_on_it_and_nothing_is_left_of_that_at_its_end() {
    let mut bench = held(&json!({}));
    assert_eq!(bench.status()["selection"]["kind"], "Node");
    assert_eq!(bench.times("patch n"), 3);
    change(&mut bench, "n", &json!({"metadata": {"annotations": {"done": "yes"}}}));
    step(&mut bench, &mut works);
    step(&mut bench, &mut works);
    assert_eq!((words(&bench, 1).as_str(), state(&bench, "n")), ("Succeeded", (false, 0, false, 1)));
    assert!(bench.memory.is_idle());
    assert_eq!(bench.event_reasons, ["OperationBegan", "Completed", "OperationEnded"]);
}

/// Removes the hold of the job from a node, as another client would.
fn take_hold_off(bench: &mut Bench) {
    change(bench, "n", &json!({"metadata": {"annotations": {format!("hold.oarlock.dev/{JOB_UID}"): null}}}));
    assert_eq!(state(bench, "n"), (true, 1, true, 0));
}

#[test]
fn what_a_hold_listed_is_taken_off_although_somebody_removed_the_hold() {
    for removes_at_end in [true, false] {
        let mut bench = held(&json!({}));
        take_hold_off(&mut bench);
        let done = json!({"metadata": {"annotations": {"done": "yes"}}});
        if removes_at_end {
            change(&mut bench, "n", &done);
        } else {
            bench.edit(&json!({"metadata": {"deletionTimestamp": START}}));
        }
        step(&mut bench, &mut works);
        step(&mut bench, &mut works);
        let annotations = usize::from(removes_at_end);
        assert_eq!(state(&bench, "n"), (false, 0, false, annotations), "{}", bench.status());
        assert!(bench.memory.is_idle());
    }
}

#[test]
fn what_somebody_else_put_there_stays_although_a_hold_that_is_gone_listed_the_same() {
    let mut bench = held(&json!({}));
    change(&mut bench, "n", &json!({"spec": {"unschedulable": false}}));
    bench.settle(&mut works);
    take_hold_off_of_uncordoned(&mut bench);
    change(&mut bench, "n", &json!({"spec": {"unschedulable": true}, "metadata": {"annotations": {"done": "yes"}}}));
    step(&mut bench, &mut works);
    step(&mut bench, &mut works);
    assert_eq!(state(&bench, "n"), (true, 0, false, 1), "the cordon is of somebody else");
}

fn take_hold_off_of_uncordoned(bench: &mut Bench) {
    change(bench, "n", &json!({"metadata": {"annotations": {format!("hold.oarlock.dev/{JOB_UID}"): null}}}));
    bench.settle(&mut works);
}

#[test]
fn a_node_that_is_not_held_whole_is_not_worked_on() {
    let mut bench = bench(&["n"], &[], &json!({}));
    let large: Value = (0..100).map(|number| (format!("a-{number}"), json!("x".repeat(4_000)))).collect();
    change(&mut bench, "n", &json!({"metadata": {"annotations": large}}));
    bench.settle(&mut works);
    step(&mut bench, &mut works);
    assert_eq!(words(&bench, 1), "Failed/NodeTooLarge");
    assert_eq!(bench.times("patch n"), 0);
}

#[test]
fn a_node_that_does_not_exist_is_not_found_and_a_pod_of_its_name_is_not_taken_for_it() {
    let mut bench = bench(&["n"], &[], &json!({}));
    bench.vanish_of(&key("n"));
    bench.pod("n", "1");
    bench.settle(&mut works);
    step(&mut bench, &mut works);
    assert_eq!(words(&bench, 1), "Failed/NodeNotFound");
    assert_eq!(bench.status()["targetDetails"][0]["error"]["message"], "node n not found");
    assert_eq!((bench.times("finalizer"), bench.times("patch n")), (0, 0));
}

#[test]
fn a_node_of_another_uid_than_the_spec_names_is_left_alone() {
    let mut bench = bench(&["n"], &[], &json!({"targets": [{"name": "n", "uid": "first"}]}));
    bench.settle(&mut works);
    step(&mut bench, &mut works);
    assert_eq!((words(&bench, 1).as_str(), state(&bench, "n")), ("Failed/NodeNotFound", CLEAN));
    let told = &bench.status()["targetDetails"][0]["error"]["message"];
    assert_eq!(told, "the job names UID first, and the node of that name has UID n: n");
    show(&mut bench, node("n", "first", true, &json!({})));
    step(&mut bench, &mut works);
    assert_eq!((words(&bench, 1).as_str(), state(&bench, "n")), ("Failed/NodeNotFound", CLEAN), "an end is final");
}

#[test]
fn nothing_is_left_on_a_node_after_a_deadline_a_deletion_or_a_crash_before_it() {
    for crashes in [false, true] {
        let mut late = held(&json!({"activeDeadlineSeconds": 30}));
        let mut deleted = held(&json!({}));
        if crashes {
            late.crash();
            deleted.crash();
        }
        late.later(40);
        deleted.edit(&json!({"metadata": {"deletionTimestamp": START}}));
        for bench in [&mut late, &mut deleted] {
            (0..4).for_each(|_| step(bench, &mut works));
            assert_eq!(state(bench, "n"), CLEAN, "{crashes} {}", bench.word(0));
        }
        assert_eq!((late.word(0).as_str(), deleted.job_is_gone), ("Failed/DeadlineExceeded", true));
    }
}

#[test]
fn a_cordon_and_a_taint_that_were_there_before_stay() {
    let mut bench = bench(&["n"], &[], &json!({}));
    let theirs = json!([{"key": "x.io/work", "value": "theirs", "effect": "NoSchedule"}, {"key": "other", "effect": "NoExecute"}]);
    show(&mut bench, node("n", "n", true, &json!({"unschedulable": true, "taints": theirs})));
    bench.settle(&mut works);
    step(&mut bench, &mut works);
    assert_eq!((state(&bench, "n"), bench.times("patch n")), ((true, 2, true, 1), 1), "only the label is the job's");
    change(&mut bench, "n", &json!({"metadata": {"annotations": {"done": "yes"}}}));
    step(&mut bench, &mut works);
    step(&mut bench, &mut works);
    assert_eq!((words(&bench, 1).as_str(), state(&bench, "n")), ("Succeeded", (true, 2, false, 1)));
    assert_eq!(json!(bench.store.get(&key("n")).unwrap().node.clone().unwrap().taints), theirs);
}

#[test]
fn a_namespace_without_the_label_starts_nothing_and_says_so_with_all_else_that_is_wrong() {
    let mut bench = bench(&["n"], &[], &json!({}));
    bench.node_operations = false;
    bench.settle(&mut works);
    let (reason, message) = condition(&bench, "Valid");
    assert_eq!((reason.as_str(), &bench.status()["waitsFor"]), ("NamespaceNotAllowed", &json!("Grant")));
    assert!(message.contains("oarlock.dev/node-operations=true") && message.contains("namespace d"), "{message}");
    assert_eq!(
        (words(&bench, 1).as_str(), bench.event_reasons.as_slice()),
        ("Pending", ["InvalidSpec".to_owned()].as_slice())
    );
    bench.found = plugin();
    step(&mut bench, &mut works);
    let (reason, message) = condition(&bench, "Valid");
    assert_eq!(reason, "TargetKindNotSupported");
    assert!(message.contains("plugin replace works on Pods, and spec.targetKind is Node"), "{message}");
    assert!(message.contains("oarlock.dev/node-operations=true"), "{message}");
    bench.found = node_plugin();
    bench.node_operations = true;
    step(&mut bench, &mut works);
    step(&mut bench, &mut works);
    assert_eq!((condition(&bench, "Valid").0.as_str(), state(&bench, "n")), ("Accepted", HELD));
}

#[test]
fn targets_in_flight_go_on_after_the_label_was_taken_off_and_no_other_starts_nor_tries_again() {
    let fields = json!({"parallelism": 1, "retryPolicy": {"limit": 3, "backoffSeconds": 1}});
    let mut bench = bench(&["n", "m"], &[], &fields);
    bench.settle(&mut waiting);
    step(&mut bench, &mut waiting);
    bench.node_operations = false;
    bench.touch_all();
    step(&mut bench, &mut works);
    step(&mut bench, &mut works);
    assert_eq!((words(&bench, 2).as_str(), state(&bench, "n")), ("Processing Pending", HELD), "it is operated");
    assert_eq!(condition(&bench, "Valid").0, "NamespaceNotAllowed");
    let mut fails = |visit: &Visit| match visit.call {
        Call::Release => Answer::Proposed(Proposal::default()),
        _ => report(State::Failed(oarlock_core::plugin::proposal::PluginError {
            reason: "Broken".into(),
            message: "m".into(),
        })),
    };
    bench.touch_all();
    (0..6).for_each(|_| step(&mut bench, &mut fails));
    assert_eq!((words(&bench, 2).as_str(), state(&bench, "n")), ("Processing/Broken Pending", CLEAN));
    bench.node_operations = true;
    bench.touch_all();
    step(&mut bench, &mut works);
    step(&mut bench, &mut works);
    assert_eq!(state(&bench, "n"), HELD);
    change(&mut bench, "n", &json!({"metadata": {"annotations": {"done": "yes"}}}));
    (0..3).for_each(|_| step(&mut bench, &mut works));
    assert_eq!((words(&bench, 2).as_str(), state(&bench, "m")), ("Succeeded Processing", HELD));
}

#[test]
fn a_node_that_a_job_of_another_namespace_has_is_waited_for_by_name() {
    let far = JobKey { namespace: "far".into(), name: "first".into() };
    let mut bench = bench(&["n"], &[], &json!({}));
    lock(&bench.tables).exclusive.have("n", &far, 0);
    bench.settle(&mut works);
    assert_eq!((words(&bench, 1).as_str(), &bench.status()["waitsFor"]), ("Pending", &json!("Other jobs")));
    let (_, message) = condition(&bench, "Reconciling");
    assert!(message.contains("node n is held by job far/first"), "{message}");
    let woken = lock(&bench.tables).exclusive.give_back(&far, 0);
    assert_eq!(woken.len(), 1);
    woken.into_iter().for_each(|(_, index)| bench.requeue(index));
    step(&mut bench, &mut works);
    step(&mut bench, &mut works);
    assert_eq!(state(&bench, "n"), HELD);
}

#[test]
fn a_node_that_another_job_holds_is_waited_for_until_the_hold_is_off() {
    let mut bench = bench(&["n"], &[], &json!({}));
    change(
        &mut bench,
        "n",
        &json!({"metadata": {"annotations": {"hold.oarlock.dev/other": "[\"cordon\"]"}}, "spec": {"unschedulable": true}}),
    );
    bench.settle(&mut works);
    step(&mut bench, &mut works);
    assert_eq!((words(&bench, 1).as_str(), bench.times("patch n")), ("Pending", 0));
    change(&mut bench, "n", &json!({"metadata": {"annotations": null}, "spec": {"unschedulable": null}}));
    step(&mut bench, &mut works);
    step(&mut bench, &mut works);
    assert_eq!(state(&bench, "n"), HELD);
}

#[test]
fn a_dry_run_on_a_node_plans_what_the_job_would_do_and_holds_nothing() {
    let mut bench = bench(&["n", "m"], &[], &json!({"dryRun": true}));
    let theirs = json!({"metadata": {"annotations": {"hold.oarlock.dev/other": "[]"}}});
    change(&mut bench, "m", &theirs);
    (0..6).for_each(|_| step(&mut bench, &mut works));
    let plan = |index: usize| bench.status()["targetDetails"][index]["extraInfo"]["Plan"].as_str().unwrap().to_owned();
    assert_eq!(words(&bench, 2), "Succeeded Succeeded");
    assert!(plan(0).starts_with("cordon node n, then taint node n"), "{}", plan(0));
    assert!(plan(1).starts_with("wait until other jobs have released the node, then cordon node m"), "{}", plan(1));
    assert_eq!(state(&bench, "n"), CLEAN);
    assert_eq!(lock(&bench.tables).exclusive.holder("n"), None);
}

#[test]
fn a_dry_run_says_what_it_would_wait_for_also_where_the_plugin_proposes_nothing_at_first() {
    let mut bench = bench(&["n"], &[], &json!({"dryRun": true}));
    change(&mut bench, "n", &json!({"metadata": {"annotations": {"hold.oarlock.dev/other": "[]"}}}));
    (0..4).for_each(|_| step(&mut bench, &mut |_| report(State::Processing)));
    let plan = bench.status()["targetDetails"][0]["extraInfo"]["Plan"].as_str().unwrap().to_owned();
    assert!(plan.starts_with("wait until other jobs have released the node, then nothing at first"), "{plan}");
}

#[test]
fn a_dry_run_that_waits_for_its_plugin_takes_no_node_from_other_jobs() {
    let mut bench = bench(&["n"], &[], &json!({"dryRun": true}));
    (0..2).for_each(|_| step(&mut bench, &mut |_| unavailable()));
    assert!(words(&bench, 1).starts_with("Processing"), "{}", words(&bench, 1));
    wait_for_kinds(&Bench::key(), &mut bench.memory, &bench.tables, bench.now);
    assert_eq!(lock(&bench.tables).exclusive.holder("n"), None);
}

#[test]
fn no_node_is_begun_before_the_jobs_of_all_namespaces_that_may_hold_it_were_read() {
    let far = JobKey { namespace: "far".into(), name: "other".into() };
    let mut bench = bench(&["n"], &[], &json!({}));
    lock(&bench.tables).claims.expect_nodes(&far);
    bench.settle(&mut works);
    step(&mut bench, &mut works);
    assert_eq!(words(&bench, 1), "Pending");
    lock(&bench.tables).claims.read(&far);
    step(&mut bench, &mut works);
    step(&mut bench, &mut works);
    assert_eq!(state(&bench, "n"), HELD);
}

#[test]
fn nodes_that_are_not_ready_or_cordoned_are_unavailable() {
    let fields = json!({"maxUnavailable": 1, "parallelism": 1});
    let mut bench = bench(&["a", "b", "c", "d"], &["c"], &fields);
    change(&mut bench, "d", &json!({"spec": {"unschedulable": true}}));
    bench.settle(&mut works);
    step(&mut bench, &mut works);
    assert_eq!(words(&bench, 4), "Pending Pending Processing Pending", "c and d are unavailable already");
    change(&mut bench, "c", &json!({"metadata": {"annotations": {"done": "yes"}}}));
    (0..3).for_each(|_| step(&mut bench, &mut works));
    assert_eq!(words(&bench, 4), "Pending Pending Succeeded Processing", "a and b are not down");
    assert_eq!(state(&bench, "d"), (true, 1, true, 1));
    change(&mut bench, "d", &json!({"metadata": {"annotations": {"done": "yes"}}}));
    (0..3).for_each(|_| step(&mut bench, &mut works));
    assert_eq!(words(&bench, 4), "Processing Pending Succeeded Succeeded");
}

#[test]
fn a_selector_finds_nodes_by_label_whatever_the_namespace() {
    let mut bench = Bench::new(json!({"action": "Reboot", "targetKind": "Node",
        "selector": {"labelSelector": {"matchLabels": {"pool": "x"}}}}));
    bench.store.keep(&Kind::node(), oarlock_core::cache::store::Indexed::default());
    bench.found = node_plugin();
    bench.settle(&mut works);
    assert_eq!(condition(&bench, "Valid").1, "spec.selector: no node that matches pool=x; tried again every 30 s");
    for name in ["m", "n"] {
        show(&mut bench, node(name, name, true, &json!({})));
    }
    bench.later(30);
    bench.settle(&mut works);
    step(&mut bench, &mut works);
    assert_eq!(words(&bench, 2), "Processing Processing");
    assert_eq!((state(&bench, "m"), state(&bench, "n")), (HELD, HELD));
}

#[test]
fn a_node_of_a_job_that_vanished_is_read_live_where_nodes_are_watched_no_more() {
    let bench = held(&json!({}));
    let left = || live_reads_of_leftovers(&bench.memory, &Bench::key(), &bench.store, TASKS_NAMESPACE);
    assert_eq!(left(), [], "the watch shows it");
    let object = bench.store.get(&key("n")).unwrap();
    bench.store.forget(&Kind::node());
    assert_eq!(left(), [LiveRead::Object(key("n"))]);
    let seen = [(key("n"), Some(object))].into();
    let writes = beside_holds(JOB_UID, &bench.store, TASKS_NAMESPACE, &seen);
    let [Write::Patch { object, body, .. }] = writes.as_slice() else { panic!("{writes:?}") };
    assert_eq!((object, &body["spec"]["unschedulable"]), (&key("n"), &Value::Null));
    assert!(body.to_string().contains("hold.oarlock.dev/job-uid\":null"), "{body}");
    assert!(beside_holds("another", &bench.store, TASKS_NAMESPACE, &seen).is_empty());
}

#[test]
fn a_pod_is_no_target_of_a_node_plugin_and_no_cordon_is_granted_to_another_node() {
    let mut bench = Bench::of_one(&json!({"action": "Reboot"}));
    bench.found = node_plugin();
    bench.settle(&mut works);
    let (reason, message) = condition(&bench, "Valid");
    assert_eq!(
        (reason.as_str(), message.as_str()),
        ("TargetKindNotSupported", "plugin reboot works on Nodes, and spec.targetKind is Pod")
    );
    let mut bench = self::bench(&["n", "m"], &[], &json!({"partition": 1}));
    let mut reaches = |visit: &Visit| match visit.call {
        Call::Release => Answer::Proposed(Proposal::default()),
        _ => proposing(vec![Mutation::Schedulable { node: "m".into(), schedulable: false }]),
    };
    bench.settle(&mut reaches);
    step(&mut bench, &mut reaches);
    assert_eq!((words(&bench, 2).as_str(), state(&bench, "m")), ("Failed/MutationDenied Pending", CLEAN));
}
