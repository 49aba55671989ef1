//! Tasks on nodes: what is durable when, and how a task ends if its pod, job or host goes.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::jiff::SignedDuration;
use oarlock_core::cache::store::{Indexed, Store};
use oarlock_core::object::api_object::{Kind, Object, ObjectKey};
use oarlock_core::object::own::TASKS_NAMESPACE;
use oarlock_core::operation_job::cleanup::{Orphans, SeenObjects, beside_holds, live_reads_of_leftovers};
use oarlock_core::operation_job::tasks::settings::{CommitRegistry, TaskSettings};
use oarlock_core::plugin::proposal::{Mutation, PluginError, Proposal, State, TaskRequest};
use oarlock_core::plugin::visit::{Answer, Call, Visit};
use oarlock_core::requests::live_reads::LiveRead;
use oarlock_core::requests::writes::{Stopped, Write};
use serde_json::{Value, json};

use crate::answers::{proposing, report};
use crate::bench::patch::merge;
use crate::bench::plugin::{committing_plugin, task_plugin};
use crate::bench::weather::{Going, Weather};
use crate::bench::{Bench, JOB_UID, START};

pub(crate) fn bench(fields: &Value) -> Bench {
    let mut spec = Bench::targets(&["n"]);
    merge(&mut spec, &json!({"action": "Reboot", "targetKind": "Node"}));
    merge(&mut spec, fields);
    let mut bench = Bench::new(spec);
    bench.store.keep(&Kind::node(), Indexed::default());
    bench.store.keep(&Kind::pod(), Indexed { labels: ["oarlock.dev/job-uid".to_owned()].into(), ..Indexed::default() });
    bench.found = task_plugin();
    bench.show_of(&Kind::node(), json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": "n"}}));
    bench
}

pub(crate) fn task(kind: &str, arguments: Value) -> Mutation {
    Mutation::Task(TaskRequest { name: "run".into(), kind: kind.into(), arguments })
}

fn script() -> Mutation {
    task("run-on-node", json!({"script": {"text": "echo hello"}}))
}

/// Runs a script, and ends as the script ended.
fn runs(visit: &Visit) -> Answer {
    does(script(), visit)
}

/// Runs a task, and ends as the task ended.
fn does(task: Mutation, visit: &Visit) -> Answer {
    let seen = visit.target.tasks.get("run");
    match (visit.call, seen.map(|task| task.state)) {
        (Call::Release, _) => Answer::Proposed(Proposal::default()),
        (Call::OperateThenProgress, None) => proposing(vec![task]),
        (_, Some("Succeeded")) => report(State::Succeeded),
        (_, Some("Failed")) => {
            let message = seen.map(|task| task.message.clone()).unwrap_or_default();
            report(State::Failed(PluginError { reason: "CommandFailed".into(), message }))
        }
        _ => report(State::Processing),
    }
}

/// Runs a script on a node that it cordons first.
fn runs_cordoned(visit: &Visit) -> Answer {
    match (visit.call, visit.target.tasks.get("run")) {
        (Call::OperateThenProgress, None) => {
            proposing(vec![Mutation::Schedulable { node: "n".into(), schedulable: false }, script()])
        }
        _ => runs(visit),
    }
}

/// Returns the number of records within 25 ms after the start of tasks on this many nodes. Each task has something to record.
fn records_soon_after(nodes: usize) -> usize {
    let names: Vec<String> = (0..nodes).map(|number| format!("n{number}")).collect();
    let targets: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
    let mut bench = bench(&json!({"targets": targets}));
    for name in &names {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": name}});
        bench.show_of(&Kind::node(), node);
    }
    bench.settle(&mut runs);
    assert_eq!(bench.store.all(&Kind::pod(), Some(TASKS_NAMESPACE)).len(), nodes, "all have begun");
    let before = bench.status_writes;
    bench.now = bench.now.checked_add(SignedDuration::from_millis(25)).unwrap();
    bench.touch_all();
    bench.settle(&mut runs);
    bench.status_writes - before
}

#[test]
fn records_of_few_tasks_follow_each_other_at_once_and_those_of_many_wait_for_more() {
    assert_eq!((records_soon_after(2), records_soon_after(32)), (1, 1));
    assert_eq!(records_soon_after(33), 0);
}

fn cordoned(bench: &Bench) -> bool {
    bench.store.get(&ObjectKey::node("n")).unwrap().node.clone().unwrap().cordoned
}

pub(crate) fn step(bench: &mut Bench) {
    bench.later(2);
    bench.settle(&mut runs);
}

pub(crate) fn pod(bench: &Bench) -> Option<Arc<Object>> {
    bench.store.all(&Kind::pod(), Some(TASKS_NAMESPACE)).into_iter().next()
}

/// Gives the pod of the task this status, as its kubelet would.
pub(crate) fn kubelet(bench: &mut Bench, status: &Value) {
    let document = shown(bench, status);
    bench.show(document);
}

/// Gives the pod of the task this status while somebody deletes the pod.
pub(crate) fn kubelet_of_deleted(bench: &mut Bench, status: &Value) {
    let mut document = shown(bench, status);
    document["metadata"]["deletionTimestamp"] = json!(bench.now.to_string());
    bench.show(document);
}

fn shown(bench: &Bench, status: &Value) -> Value {
    let seen = pod(bench).unwrap();
    json!({"metadata": {"name": seen.key.name, "namespace": TASKS_NAMESPACE, "uid": seen.uid,
        "labels": seen.labels, "creationTimestamp": seen.created.unwrap().to_string()},
        "spec": {"nodeName": "n", "activeDeadlineSeconds": 660}, "status": status})
}

pub(crate) fn running() -> Value {
    json!({"phase": "Running", "containerStatuses": [{"name": "task", "state": {"running": {}}}]})
}

/// Returns the status of a pod whose command ended with this result.
fn ended(result: &Value) -> Value {
    let state = json!({"terminated": {"exitCode": 0, "message": result.to_string()}});
    json!({"phase": "Succeeded", "containerStatuses": [{"name": "task", "state": state}]})
}

fn good() -> Value {
    ended(&json!({"exitCode": 0, "bootId": "b", "sha256": "d", "output": "hello\n"}))
}

pub(crate) fn stored(bench: &Bench) -> Value {
    let text = bench.status()["targetDetails"][0]["extraInfo"]["Task/run"].as_str().unwrap_or("null");
    serde_json::from_str(text).unwrap()
}

fn outputs(bench: &Bench) -> usize {
    bench.unwatched.keys().filter(|key| key.kind.kind == "ConfigMap" && key.name.starts_with("oarlock-run-")).count()
}

fn error(bench: &Bench) -> String {
    let error = &bench.status()["targetDetails"][0]["error"];
    format!("{}: {}", error["reason"].as_str().unwrap_or("-"), error["message"].as_str().unwrap_or("-"))
}

/// Returns a bench with a job whose script has begun.
fn begun(fields: &Value) -> Bench {
    let mut bench = bench(fields);
    bench.settle(&mut runs);
    step(&mut bench);
    assert!(pod(&bench).is_some());
    bench
}

#[test]
fn the_intent_is_durable_before_the_pod_and_the_result_before_the_pod_goes() {
    let mut bench = bench(&json!({}));
    bench.wire = 0;
    bench.settle(&mut runs);
    assert_eq!(stored(&bench), json!({"state": "Waiting"}), "nothing was sent yet");
    assert!(pod(&bench).is_none());
    bench.wire = usize::MAX;
    bench.send();
    step(&mut bench);
    let pod_uid = pod(&bench).unwrap().uid.clone();
    assert_eq!(stored(&bench)["pod"], json!(pod_uid));
    kubelet(&mut bench, &running());
    step(&mut bench);
    assert_eq!(stored(&bench)["state"], "Running");
    kubelet(&mut bench, &good());
    bench.wire = 0;
    step(&mut bench);
    let result = json!({"state": "Succeeded", "pod": pod_uid, "exitCode": 0, "sha256": "d", "output": "hello\n"});
    assert_eq!(stored(&bench), result);
    assert!(pod(&bench).is_some(), "the result is durable, and its pod is still there");
    bench.wire = usize::MAX;
    (0..3).for_each(|_| step(&mut bench));
    assert_eq!((bench.word(0).as_str(), pod(&bench).is_some(), outputs(&bench)), ("Succeeded", false, 1));
    assert!(bench.memory.is_idle());
    assert_eq!(
        bench.sent.iter().filter(|sent| sent.starts_with("create oarlock-run-")).count(),
        2,
        "a pod and an output"
    );
}

#[test]
fn the_pod_is_the_hosts_own_and_has_the_script_as_a_file() {
    let mut bench = bench(&json!({}));
    bench.wire = 0;
    bench.settle(&mut runs);
    let entry = bench.queue.take_next(|_| true).unwrap();
    let [Write::Create { object: made, body: map, .. }, Write::Create { object, body, .. }] = &entry.writes[..] else {
        panic!("{entry:?}")
    };
    assert_eq!((object.name.len(), object.namespace.as_deref()), ("oarlock-run-".len() + 20, Some(TASKS_NAMESPACE)));
    let labels = &body["metadata"]["labels"];
    assert_eq!(
        (&labels["oarlock.dev/job-uid"], &labels["oarlock.dev/target-index"], &labels["oarlock.dev/task"]),
        (&json!(JOB_UID), &json!("0"), &json!("run"))
    );
    assert_eq!(body["metadata"]["ownerReferences"], Value::Null);
    // The script is a separate object, which is created first.
    assert_eq!((&map["data"], &map["immutable"]), (&json!({"script": "echo hello"}), &json!(true)));
    let source =
        json!([{"name": "script", "configMap": {"name": made.name, "items": [{"key": "script", "path": "script"}]}}]);
    assert_eq!((&body["spec"]["volumes"], &labels["oarlock.dev/script"]), (&source, &json!(made.name)));
    assert!(!body.to_string().contains("echo hello"), "{body}");
    let (spec, container) = (&body["spec"], &body["spec"]["containers"][0]);
    assert_eq!(
        (&spec["nodeName"], &spec["hostPID"], &spec["automountServiceAccountToken"]),
        (&json!("n"), &json!(true), &json!(false))
    );
    assert_eq!(container["securityContext"]["privileged"], true);
    let command = container["command"].to_string();
    assert!(command.contains("node-exec") && command.contains(&object.name) && !command.contains("echo"), "{command}");
    assert_eq!(container["volumeMounts"][0]["mountPath"], "/task");
}

/// Returns the bench of a job on a pod that commits the pod's container.
fn committing(exports: Option<CommitRegistry>, node: Option<&str>) -> Bench {
    let mut bench = Bench::new(Bench::targets(&["p"]));
    bench.found = committing_plugin();
    bench.tasks = Arc::new(TaskSettings { exports, ..TaskSettings::default() });
    let spec = node.map_or(json!({}), |node| json!({"nodeName": node}));
    bench.show(json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": spec}));
    bench.wire = 0;
    let commit = json!({"container": "app", "target": "custom/commits/d/a:1"});
    bench.settle(&mut |visit| does(task("run-on-node", json!({"builtin": "commit", "commit": commit})), visit));
    bench
}

#[test]
fn a_commit_is_done_on_the_node_of_its_pod_with_the_secret_of_the_registry_as_a_file() {
    let registry =
        CommitRegistry { registry: "reg:5000".into(), secret: Some("push".into()), hosts: vec!["auth".into()] };
    let mut bench = committing(Some(registry), Some("n"));
    let entry = bench.queue.take_next(|_| true).unwrap();
    let [Write::Create { object, body, .. }] = &entry.writes[..] else { panic!("{entry:?}") };
    assert_eq!((object.namespace.as_deref(), &body["spec"]["nodeName"]), (Some(TASKS_NAMESPACE), &json!("n")));
    let command = body["spec"]["containers"][0]["command"].as_array().unwrap();
    let words: Vec<&str> = command.iter().filter_map(Value::as_str).collect();
    for pair in [
        ["--builtin", "commit"],
        ["--pod-uid", "u"],
        ["--container", "app"],
        ["--image", "reg:5000/custom/commits/d/a:1"],
        ["--registry-host", "auth"],
        ["--registry-secret", "/registry"],
    ] {
        assert!(words.windows(2).any(|window| window == pair), "{pair:?} in {words:?}");
    }
    let secret = &body["spec"]["volumes"][0]["secret"];
    assert_eq!((&secret["secretName"], &secret["defaultMode"]), (&json!("push"), &json!(0o400)));
}

#[test]
fn a_commit_that_cannot_be_says_why() {
    let registry = CommitRegistry { registry: "reg".into(), secret: None, hosts: Vec::new() };
    let why = [committing(None, Some("n")), committing(Some(registry), None)].map(|bench| error(&bench));
    assert!(why[0].starts_with("NoRegistry: ") && why[1].starts_with("NoNode: "), "{why:?}");
}

/// Returns the pod of a check with these arguments.
fn check_pod(arguments: &Value) -> Value {
    let mut bench = bench(&json!({}));
    bench.wire = 0;
    bench.settle(&mut |visit| match visit.target.tasks.is_empty() {
        true => proposing(vec![task("check-pod", arguments.clone())]),
        false => report(State::Processing),
    });
    let entry = bench.queue.take_next(|_| true).unwrap();
    let body = |write: &Write| match write {
        Write::Create { object, body, .. } if object.kind == Kind::pod() => Some(body.clone()),
        _ => None,
    };
    entry.writes.iter().find_map(body).unwrap_or_else(|| panic!("{entry:?}"))
}

#[test]
fn a_check_has_no_rights_and_reads_what_it_names() {
    let arguments = json!({"image": "gpu:1", "script": "check", "args": ["-v"], "hostPaths": ["/opt/x"], "sharedMemory": "1Gi",
        "resources": {"nvidia.com/gpu": "1"}, "env": {"A": "b", "OARLOCK_NODE_NAME": "lie"}, "tolerateAll": true});
    let body = check_pod(&arguments);
    let (spec, container) = (&body["spec"], &body["spec"]["containers"][0]);
    assert_eq!(
        (&spec["nodeName"], &spec["hostPID"], &spec["restartPolicy"]),
        (&Value::Null, &Value::Null, &json!("Never"))
    );
    let none =
        json!({"privileged": false, "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"], "add": []}});
    assert_eq!(container["securityContext"], none);
    let mounts = json!([{"name": "volume-0", "mountPath": "/dev/shm", "readOnly": false},
        {"name": "volume-1", "mountPath": "/opt/x", "readOnly": true, "recursiveReadOnly": "IfPossible"}, {"name": "script", "mountPath": "/task", "readOnly": true}]);
    assert_eq!(container["volumeMounts"], mounts);
    let named: Vec<&str> = container["env"].as_array().unwrap().iter().filter_map(|one| one["name"].as_str()).collect();
    assert_eq!(named, ["A", "OARLOCK_NODE_NAME", "OARLOCK_JOB_ID", "OARLOCK_NODE_INDEX", "OARLOCK_NODE_COUNT"]);
    assert_eq!(container["env"][1]["value"], "n");
    assert_eq!(
        (&container["resources"]["limits"]["nvidia.com/gpu"], &spec["tolerations"]),
        (&json!("1"), &json!([{"operator": "Exists"}]))
    );
}

#[test]
fn a_check_that_may_see_logs_sees_empty_directories_where_those_of_other_pods_are() {
    let body = check_pod(&json!({"image": "i", "hostPaths": ["/var/log", "/var/log/journal"]}));
    let (volumes, mounts) = (&body["spec"]["volumes"], &body["spec"]["containers"][0]["volumeMounts"]);
    let of_node = |name: &str, path: &str| json!({"name": name, "mountPath": path, "readOnly": true, "recursiveReadOnly": "IfPossible"});
    let cover = |name: &str, path: &str| json!({"name": name, "mountPath": path, "readOnly": true});
    let expected = json!([
        of_node("volume-0", "/var/log"),
        of_node("volume-1", "/var/log/journal"),
        cover("volume-2", "/var/log/containers"),
        cover("volume-3", "/var/log/pods")
    ]);
    assert_eq!(*mounts, expected);
    for at in [2, 3] {
        assert_eq!(volumes[at]["emptyDir"], json!({"sizeLimit": "1Mi"}));
    }
    let beside = check_pod(&json!({"image": "i", "hostPaths": ["/var/log/journal"]}));
    assert_eq!(beside["spec"]["volumes"].as_array().unwrap().len(), 1);
}

#[test]
fn a_check_has_the_capabilities_that_it_names_and_none_else() {
    let body = check_pod(&json!({"image": "i", "capabilities": ["DAC_READ_SEARCH"]}));
    let capabilities = &body["spec"]["containers"][0]["securityContext"]["capabilities"];
    assert_eq!(*capabilities, json!({"drop": ["ALL"], "add": ["DAC_READ_SEARCH"]}));
}

#[test]
fn a_check_requests_little_and_may_use_little_of_what_it_does_not_name() {
    let of = |arguments: Value| {
        let mut arguments = arguments;
        arguments["image"] = json!("i");
        check_pod(&arguments)["spec"]["containers"][0]["resources"].clone()
    };
    let few = json!({"cpu": "100m", "memory": "64Mi", "ephemeral-storage": "64Mi"});
    let most = json!({"cpu": "1", "memory": "512Mi", "ephemeral-storage": "1Gi"});
    assert_eq!(of(json!({})), json!({"requests": few, "limits": most}));
    let named = of(json!({"resources": {"memory": "2Gi", "nvidia.com/gpu": "1"}}));
    let few = json!({"cpu": "100m", "memory": "2Gi", "ephemeral-storage": "64Mi", "nvidia.com/gpu": "1"});
    let most = json!({"cpu": "1", "memory": "2Gi", "ephemeral-storage": "1Gi", "nvidia.com/gpu": "1"});
    assert_eq!(named, json!({"requests": few, "limits": most}));
    // The check's /dev/shm is memory, which the pod requests too.
    let shared = of(json!({"sharedMemory": "1Gi"}));
    assert_eq!((&shared["requests"]["memory"], &shared["limits"]["memory"]), (&json!("1088Mi"), &json!("1536Mi")));
    let both = of(json!({"sharedMemory": "1Gi", "resources": {"memory": "4Gi"}}));
    assert_eq!(both["limits"]["memory"], "4Gi");
}

#[test]
fn a_task_whose_pod_is_deleted_evicted_or_ends_without_a_result_is_lost_and_not_begun_again() {
    let evicted = json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"});
    let killed = json!({"phase": "Failed", "containerStatuses": [{"name": "task", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]});
    for (status, word) in
        [(None, "gone without a result"), (Some(evicted), "lost: Evicted"), (Some(killed), "OOMKilled")]
    {
        let mut bench = begun(&json!({}));
        kubelet(&mut bench, &running());
        step(&mut bench);
        match status {
            Some(status) => kubelet(&mut bench, &status),
            None => bench.vanish_of(&pod(&bench).unwrap().key.clone()),
        }
        (0..4).for_each(|_| step(&mut bench));
        assert!(error(&bench).contains(word), "{}", error(&bench));
        let name = bench.sent.iter().find(|sent| sent.starts_with("create oarlock-run-")).unwrap().clone();
        let pods = if outputs(&bench) == 0 { 1 } else { 2 };
        assert_eq!((bench.times(&name), pod(&bench).is_some()), (pods, false));
        assert!(bench.memory.is_idle());
    }
}

#[test]
fn a_pod_that_does_not_start_in_time_is_removed_and_the_task_was_not_begun() {
    let mut bench = begun(&json!({}));
    let conditions =
        json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]);
    kubelet(&mut bench, &json!({"phase": "Pending", "conditions": conditions}));
    step(&mut bench);
    assert_eq!((stored(&bench)["state"].as_str(), pod(&bench).is_some()), (Some("Waiting"), true));
    bench.later(310);
    (0..4).for_each(|_| step(&mut bench));
    assert_eq!((bench.word(0).as_str(), pod(&bench).is_some()), ("Failed/CommandFailed", false));
    assert_eq!(error(&bench), "CommandFailed: unschedulable: not started within 300 s: Unschedulable: 0/1 nodes");
}

#[test]
fn a_host_that_dies_while_it_removes_a_pod_that_did_not_start_still_says_so() {
    for rounds in 0..12 {
        let mut bench = begun(&json!({}));
        bench.later(310);
        kubelet(&mut bench, &json!({"phase": "Pending"}));
        for round in 0..24 {
            if round == rounds {
                bench.crash();
            }
            bench.later(1);
            bench.round(&mut runs);
        }
        assert_eq!(error(&bench), "CommandFailed: not started within 300 s", "crash before round {rounds}");
    }
}

#[test]
fn a_pod_that_starts_although_it_is_late_goes_on() {
    let mut bench = begun(&json!({}));
    bench.later(310);
    bench.refuse.insert("delete", Stopped::Conflict);
    kubelet(&mut bench, &json!({"phase": "Pending"}));
    (0..3).for_each(|_| step(&mut bench));
    assert_eq!(stored(&bench)["message"], "not started within 300 s");
    kubelet(&mut bench, &running());
    step(&mut bench);
    assert_eq!((&stored(&bench)["state"], &stored(&bench)["message"]), (&json!("Running"), &Value::Null));
    bench.refuse.clear();
    kubelet(&mut bench, &good());
    (0..3).for_each(|_| step(&mut bench));
    assert_eq!(bench.word(0), "Succeeded");
}

#[test]
fn a_pod_that_its_kubelet_does_not_end_is_given_up_and_may_have_run() {
    for (status, late, message) in [
        (json!({"phase": "Pending"}), 310, "lost: not started within 300 s, and its kubelet does not end it"),
        (running(), 0, "lost: its pod is deleted, and its kubelet does not end it"),
    ] {
        for crashes in [false, true] {
            let mut bench = begun(&json!({}));
            kubelet(&mut bench, &status);
            bench.later(late);
            // A conflict is no obstacle: a deletion by another client serves as well as the host's own.
            bench.refuse.insert("delete", Stopped::Conflict);
            step(&mut bench);
            kubelet_of_deleted(&mut bench, &status);
            bench.later(100);
            step(&mut bench);
            assert_eq!(bench.word(0), "Processing", "a kubelet takes its time");
            if crashes {
                bench.crash();
            }
            bench.later(60);
            (0..2).for_each(|_| step(&mut bench));
            assert_eq!(error(&bench), format!("CommandFailed: {message}"));
        }
    }
}

#[test]
fn a_task_that_no_kubelet_ends_has_timed_out_some_time_after_its_pod_must_have_ended() {
    let mut bench = begun(&json!({}));
    kubelet(&mut bench, &running());
    step(&mut bench);
    bench.later(300 + 660 + 60);
    step(&mut bench);
    assert_eq!(stored(&bench)["state"], "Running");
    bench.later(70);
    bench.wire = 0;
    (0..2).for_each(|_| step(&mut bench));
    assert_eq!(error(&bench), "CommandFailed: timed out: its kubelet does not end its pod");
    bench.wire = usize::MAX;
    (0..3).for_each(|_| step(&mut bench));
    assert_eq!((bench.word(0).as_str(), pod(&bench).is_some()), ("Failed/CommandFailed", false));
}

#[test]
fn the_first_word_of_a_message_says_what_kept_the_pod_and_not_the_prose_of_a_kubelet() {
    let waits = |reason: &str| json!({"waiting": {"reason": reason, "message": "image lost in time"}});
    for (reason, message) in [
        ("ErrImagePull", "image: not started within 300 s: ErrImagePull: image lost in time"),
        ("InvalidImageName", "image: not started within 300 s: InvalidImageName: image lost in time"),
        ("CreateContainerError", "not started within 300 s: CreateContainerError: image lost in time"),
    ] {
        let mut bench = begun(&json!({}));
        let containers = json!([{"name": "task", "state": waits(reason)}]);
        kubelet(&mut bench, &json!({"phase": "Pending", "containerStatuses": containers}));
        bench.later(310);
        (0..4).for_each(|_| step(&mut bench));
        assert_eq!(error(&bench), format!("CommandFailed: {message}"));
    }
    let mut bench = begun(&json!({}));
    bench.later(310);
    kubelet(&mut bench, &json!({"phase": "Pending"}));
    (0..4).for_each(|_| step(&mut bench));
    assert_eq!(error(&bench), "CommandFailed: not started within 300 s");
}

#[test]
fn a_crash_after_any_round_begins_no_second_pod_and_finds_the_first() {
    for rounds in 0..14 {
        let mut bench = bench(&json!({}));
        let mut made = BTreeSet::new();
        for round in 0..40 {
            if round == rounds {
                bench.crash();
            }
            bench.later(1);
            bench.round(&mut runs);
            if let Some(seen) = pod(&bench) {
                made.insert(seen.uid.clone());
                let over = seen.task.as_ref().is_some_and(|task| task.is_over());
                if round % 4 == 3 && !over {
                    let status = if seen.task.as_ref().is_some_and(|task| task.started) { good() } else { running() };
                    kubelet(&mut bench, &status);
                }
            }
        }
        assert_eq!(
            (bench.word(0).as_str(), made.len(), outputs(&bench)),
            ("Succeeded", 1, 1),
            "crash before round {rounds}"
        );
        assert!(pod(&bench).is_none() && bench.memory.is_idle(), "crash before round {rounds}");
    }
}

/// Returns a pod that has ended well, with a task's own name and labels. Another kubelet or account may create such a pod.
fn forged(name: &str, labels: &Value, fields: &Value) -> Value {
    let mut pod = json!({"metadata": {"name": name, "namespace": TASKS_NAMESPACE, "uid": "forged", "labels": labels,
        "creationTimestamp": START}, "spec": {"nodeName": "n"}});
    merge(&mut pod, fields);
    merge(&mut pod, &json!({"status": good()}));
    pod
}

#[test]
fn a_pod_on_another_node_or_of_a_kubelet_is_no_result_of_a_task_whatever_its_name_and_labels_are() {
    let own = pod(&begun(&json!({}))).unwrap();
    let labels = |changed: Value| {
        let mut labels: Value = own.labels.iter().map(|(key, value)| (key.to_owned(), json!(value))).collect();
        merge(&mut labels, &changed);
        labels
    };
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "n"}]);
    for (forgery, own_labels, fields) in [
        ("on another node", json!({}), json!({"spec": {"nodeName": "m"}})),
        ("on no node", json!({}), json!({"spec": {"nodeName": null}})),
        ("a mirror pod", json!({}), json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}})),
        ("of a node", json!({}), json!({"metadata": {"ownerReferences": owner}})),
        ("of another task", json!({"oarlock.dev/task": "other"}), json!({})),
        ("of another job", json!({"oarlock.dev/job-uid": "other"}), json!({})),
    ] {
        let mut reboots = |visit: &Visit| does(task("run-on-node", json!({"builtin": "reboot"})), visit);
        let mut steps = |bench: &mut Bench, count: usize| {
            for _ in 0..count {
                bench.later(2);
                bench.settle(&mut reboots);
            }
        };
        // The forged pod exists before the host creates its own pod.
        let mut bench = bench(&json!({}));
        bench.show(forged(&own.key.name, &labels(own_labels.clone()), &fields));
        let message = format!("pods {:?} already exists", own.key.name);
        bench.refuse.insert("create", Stopped::Refused { message: message.clone() });
        steps(&mut bench, 60);
        if forgery == "on no node" {
            // The pod may be the host's own. A pod without a node ran nothing.
            assert!(error(&bench).contains("lost"), "{forgery}: {}", error(&bench));
            continue;
        }
        let tries = bench.sent.iter().filter(|sent| sent.starts_with("create oarlock-run-")).count();
        assert_eq!(
            (bench.word(0).as_str(), stored(&bench)),
            ("Processing/UpdateObjectFailed", json!({"state": "Waiting"})),
            "{forgery}"
        );
        assert_eq!(error(&bench), format!("UpdateObjectFailed: {message}"), "{forgery}");
        assert!((3..=9).contains(&tries), "{forgery}: {tries} tries");
        // Once the forged pod is gone, the task begins on its own node.
        bench.vanish_of(&own.key);
        bench.refuse.clear();
        bench.later(70);
        steps(&mut bench, 2);
        kubelet(&mut bench, &good());
        steps(&mut bench, 3);
        assert_eq!(bench.word(0), "Succeeded", "{forgery}");
    }
}

#[test]
fn a_pod_that_takes_the_place_of_a_tasks_own_has_no_result_and_no_output() {
    let mut bench = begun(&json!({}));
    let own = pod(&bench).unwrap();
    kubelet(&mut bench, &running());
    step(&mut bench);
    let labels: Value = own.labels.iter().map(|(key, value)| (key.to_owned(), json!(value))).collect();
    bench.vanish_of(&own.key);
    bench.show(forged(&own.key.name, &labels, &json!({})));
    (0..4).for_each(|_| step(&mut bench));
    assert!(error(&bench).contains("gone without a result"), "{}", error(&bench));
    assert_eq!((outputs(&bench), pod(&bench).is_some()), (0, false));
}

#[test]
fn a_job_that_is_deleted_at_any_stage_leaves_no_pod_and_no_output() {
    for stage in 0..5 {
        for crashes in [false, true] {
            let mut bench = bench(&json!({}));
            bench.settle(&mut runs);
            for status in [json!({}), json!({"phase": "Pending"}), running(), good()].iter().take(stage) {
                step(&mut bench);
                kubelet(&mut bench, status);
            }
            (0..3).filter(|_| stage == 4).for_each(|_| step(&mut bench));
            assert_eq!(outputs(&bench), usize::from(stage == 4));
            if crashes {
                bench.crash();
            }
            bench.edit(&json!({"metadata": {"deletionTimestamp": START}}));
            (0..6).for_each(|_| step(&mut bench));
            assert_eq!(
                (bench.job_is_gone, pod(&bench).is_some(), outputs(&bench)),
                (true, false, 0),
                "stage {stage}, {crashes}"
            );
        }
    }
}

#[test]
fn a_pod_that_an_earlier_term_asked_for_late_is_still_found_by_the_job_that_is_deleted() {
    let late = pod(&begun(&json!({}))).unwrap();
    let mut bench = bench(&json!({}));
    bench.wire = 0;
    bench.settle(&mut runs);
    assert_eq!(stored(&bench), json!({"state": "Waiting"}));
    // The host dies, and its request is still in flight.
    bench.crash();
    bench.wire = usize::MAX;
    bench.edit(&json!({"metadata": {"deletionTimestamp": START}}));
    (0..15).for_each(|_| step(&mut bench));
    assert!(!bench.job_is_gone && bench.word(0) == "Processing");
    bench.show(
        json!({"metadata": {"name": late.key.name, "namespace": TASKS_NAMESPACE, "uid": "late", "labels": late.labels},
        "spec": {"nodeName": "n"}, "status": {"phase": "Pending"}}),
    );
    (0..30).for_each(|_| step(&mut bench));
    assert!(bench.job_is_gone && pod(&bench).is_none());
}

#[test]
fn a_pod_whose_request_arrives_after_the_end_of_its_target_goes_in_the_next_resync() {
    let mut bench = begun(&json!({}));
    let late = pod(&bench).unwrap();
    kubelet(&mut bench, &good());
    (0..6).for_each(|_| step(&mut bench));
    assert_eq!((bench.word(0).as_str(), pod(&bench).is_some(), bench.memory.is_idle()), ("Succeeded", false, true));
    bench.show(
        json!({"metadata": {"name": late.key.name, "namespace": TASKS_NAMESPACE, "uid": "late", "labels": late.labels},
        "spec": {"nodeName": "n"}, "status": {"phase": "Pending"}}),
    );
    bench.memory.resync();
    (0..4).for_each(|_| step(&mut bench));
    assert_eq!((bench.word(0).as_str(), pod(&bench).is_some()), ("Succeeded", false));
    assert_eq!(stored(&bench)["state"], "Succeeded");
}

#[test]
fn a_cancelled_task_says_so_before_its_pod_goes() {
    let mut bench = begun(&json!({"activeDeadlineSeconds": 60}));
    kubelet(&mut bench, &running());
    step(&mut bench);
    bench.later(70);
    (0..5).for_each(|_| step(&mut bench));
    assert_eq!((bench.word(0).as_str(), pod(&bench).is_some()), ("Failed/DeadlineExceeded", false));
    assert_eq!(stored(&bench)["message"], "cancelled: its target ended before it did");
    assert_eq!(bench.status()["targetDetails"][0]["extraInfo"]["Released"], "true");
}

#[test]
fn a_cordon_stays_while_a_command_is_being_ended_and_no_longer_than_a_kubelet_has_to_end_it() {
    for dead in [false, true] {
        let mut bench = bench(&json!({"activeDeadlineSeconds": 60}));
        let step = |bench: &mut Bench, seconds: i64| {
            bench.later(seconds);
            bench.settle(&mut runs_cordoned);
        };
        (0..3).for_each(|_| step(&mut bench, 2));
        kubelet(&mut bench, &running());
        step(&mut bench, 2);
        kubelet_of_deleted(&mut bench, &running());
        step(&mut bench, 70);
        (0..5).for_each(|_| step(&mut bench, 2));
        assert_eq!((bench.word(0).as_str(), cordoned(&bench)), ("Failed/DeadlineExceeded", true), "dead: {dead}");
        if dead {
            step(&mut bench, 50);
        } else {
            let pod = pod(&bench).unwrap().key.clone();
            bench.vanish_of(&pod);
        }
        (0..3).for_each(|_| step(&mut bench, 2));
        assert!(!cordoned(&bench), "dead: {dead}");
        assert_eq!(bench.status()["targetDetails"][0]["extraInfo"]["Released"], "true");
    }
}

/// Kubelets that take ten seconds to end a deleted pod.
struct Slow;

impl Weather for Slow {
    fn is_ended(&mut self) -> Going {
        Going::Terminates(10)
    }
}

#[test]
fn a_cordon_of_a_target_that_succeeds_while_its_command_runs_goes_once_that_is_ended() {
    let mut leaves = |visit: &Visit| match visit.target.tasks.get("run") {
        Some(task) if task.state == "Running" && visit.call != Call::Release => report(State::Succeeded),
        _ => runs_cordoned(visit),
    };
    for deleted in [false, true] {
        let mut bench = bench(&json!({}));
        bench.weather = Box::new(Slow);
        let mut step = |bench: &mut Bench| {
            bench.later(2);
            bench.settle(&mut leaves);
        };
        (0..3).for_each(|_| step(&mut bench));
        kubelet(&mut bench, &running());
        (0..3).for_each(|_| step(&mut bench));
        assert_eq!((bench.word(0).as_str(), cordoned(&bench)), ("Succeeded", true));
        if deleted {
            bench.edit(&json!({"metadata": {"deletionTimestamp": START}}));
        }
        (0..10).for_each(|_| step(&mut bench));
        assert!(cordoned(&bench) && pod(&bench).is_some_and(|pod| pod.terminating()) && !bench.job_is_gone);
        let pod = pod(&bench).unwrap().key.clone();
        bench.vanish_of(&pod);
        (0..10).for_each(|_| step(&mut bench));
        assert_eq!((cordoned(&bench), outputs(&bench), bench.job_is_gone), (false, 0, deleted));
    }
}

#[test]
fn a_command_that_was_given_up_keeps_no_release_waiting() {
    let mut bench = begun(&json!({}));
    bench.weather = Box::new(Slow);
    kubelet(&mut bench, &running());
    step(&mut bench);
    bench.later(300 + 660 + 121);
    (0..6).for_each(|_| step(&mut bench));
    assert_eq!(bench.word(0), "Failed/CommandFailed");
    assert_eq!(bench.status()["targetDetails"][0]["extraInfo"]["Released"], "true");
    assert!(pod(&bench).is_some_and(|pod| pod.terminating()));
}

#[test]
fn a_host_without_an_image_for_commands_says_so_before_anything_is_changed() {
    let mut bench = bench(&json!({}));
    bench.tasks = TaskSettings { image: None, ..TaskSettings::default() }.into();
    bench.settle(&mut runs_cordoned);
    for _ in 0..3 {
        bench.later(2);
        bench.settle(&mut runs_cordoned);
    }
    assert_eq!((bench.word(0).as_str(), pod(&bench).is_some()), ("Failed/NoTaskImage", false));
    assert!(error(&bench).contains("--task-image"), "{}", error(&bench));
    assert!(!bench.sent.iter().any(|sent| sent == "patch n"), "nothing is cordoned for it: {:?}", bench.sent);
}

#[test]
fn an_output_that_may_not_be_kept_holds_nobody_up() {
    let mut bench = begun(&json!({}));
    bench.refuse.insert("create", Stopped::Refused { message: "quota".into() });
    kubelet(&mut bench, &good());
    (0..6).for_each(|_| step(&mut bench));
    assert_eq!((bench.word(0).as_str(), pod(&bench).is_some(), outputs(&bench)), ("Succeeded", false, 0));
    assert!(bench.memory.is_idle());
}

#[test]
fn a_further_attempt_finds_its_task_and_does_not_do_it_again() {
    let mut bench = begun(&json!({"retryPolicy": {"limit": 1, "backoffSeconds": 1}}));
    kubelet(&mut bench, &ended(&json!({"exitCode": 1})));
    (0..8).for_each(|_| step(&mut bench));
    assert_eq!(
        (bench.word(0).as_str(), &bench.status()["targetDetails"][0]["attempt"]),
        ("Failed/CommandFailed", &json!(2))
    );
    assert_eq!(bench.sent.iter().filter(|sent| sent.starts_with("create oarlock-run-")).count(), 1);
}

#[test]
fn a_further_attempt_that_has_only_its_task_from_before_was_not_operated_and_waits_for_a_new_delay() {
    let mut bench = begun(&json!({"retryPolicy": {"limit": 1, "backoffSeconds": 1}}));
    kubelet(&mut bench, &ended(&json!({"exitCode": 1})));
    let visits = Cell::new(0);
    let mut looks = |visit: &Visit| match visit.target.attempt {
        1 => runs(visit),
        _ => {
            visits.set(visits.get() + 1);
            report(State::Processing)
        }
    };
    for _ in 0..8 {
        bench.later(2);
        bench.settle(&mut looks);
    }
    bench.edit(&json!({"metadata": {"generation": 2}, "spec": {"operationDelaySeconds": 600}}));
    bench.settle(&mut looks);
    let before = visits.get();
    for seconds in [100, 100, 100] {
        bench.later(seconds);
        bench.touch_all();
        bench.settle(&mut looks);
    }
    assert_eq!((bench.word(0).as_str(), visits.get()), ("Processing", before));
    bench.later(400);
    bench.settle(&mut looks);
    assert_eq!(visits.get(), before + 1);
}

#[test]
fn a_task_beside_an_end_or_in_a_release_is_denied() {
    let mut bench = bench(&json!({}));
    let mut ends = |visit: &Visit| match visit.call {
        Call::Release => proposing(vec![script()]),
        _ => {
            let report = oarlock_core::plugin::proposal::Report {
                state: State::Succeeded,
                proposal: Proposal { mutations: vec![script()], ..Proposal::default() },
                check_after_ms: None,
            };
            Answer::Reported { operate: Proposal::default(), report }
        }
    };
    for _ in 0..4 {
        bench.later(2);
        bench.settle(&mut ends);
    }
    assert_eq!((bench.word(0).as_str(), pod(&bench).is_some()), ("Failed/MutationDenied", false));
    assert!(bench.event_reasons.contains(&"ReleaseTargetFailed".to_owned()) && bench.memory.is_idle());
}

#[test]
fn outputs_of_a_job_that_vanished_are_looked_for_and_those_of_one_that_was_let_go_are_not() {
    let mut bench = begun(&json!({}));
    kubelet(&mut bench, &good());
    (0..4).for_each(|_| step(&mut bench));
    let left = |bench: &Bench| live_reads_of_leftovers(&bench.memory, &Bench::key(), &bench.store, TASKS_NAMESPACE);
    let (namespace, label) = (TASKS_NAMESPACE.to_owned(), "oarlock.dev/job-uid".to_owned());
    let kind = Kind::new("v1", "ConfigMap");
    assert_eq!(left(&bench), [LiveRead::Labelled { kind, namespace, label, value: JOB_UID.to_owned() }]);
    let seen = bench.unwatched.iter().map(|(key, object)| (key.clone(), Some(object.clone()))).collect();
    let writes = beside_holds(JOB_UID, &bench.store, TASKS_NAMESPACE, &seen);
    assert!(
        matches!(writes.as_slice(), [Write::Delete { object, .. }] if object.kind.kind == "ConfigMap"),
        "{writes:?}"
    );
    bench.edit(&json!({"metadata": {"deletionTimestamp": START}}));
    (0..4).for_each(|_| step(&mut bench));
    assert!(bench.job_is_gone && left(&bench).is_empty());
}

#[test]
fn a_pod_of_a_task_goes_as_its_job_vanishes() {
    let bench = begun(&json!({}));
    let writes = |uid: &str| beside_holds(uid, &bench.store, TASKS_NAMESPACE, &SeenObjects::new());
    let of_job = writes(JOB_UID);
    assert!(matches!(of_job.as_slice(), [Write::Delete { object, .. }] if object.kind == Kind::pod()), "{of_job:?}");
    assert!(writes("another").is_empty());
}

#[test]
fn a_pod_whose_job_vanished_is_removed_by_the_second_sweep() {
    let store = Store::default();
    store.keep(&Kind::pod(), Indexed::default());
    let pod = |name: &str, labels: &Value| {
        let document = json!({"metadata": {"name": name, "namespace": TASKS_NAMESPACE, "uid": name, "resourceVersion": "1", "labels": labels}});
        store.apply(Object::slim(&document, &Kind::pod(), &[]).unwrap());
    };
    pod("lost", &json!({"oarlock.dev/task": "run", "oarlock.dev/job-uid": "gone"}));
    pod("own", &json!({"oarlock.dev/task": "run", "oarlock.dev/job-uid": "there"}));
    pod("other", &json!({"oarlock.dev/job-uid": "gone"}));
    let (mut orphans, jobs) = (Orphans::default(), ["there".to_owned()].into());
    assert!(orphans.sweep_tasks(&store, &jobs, TASKS_NAMESPACE).is_empty());
    let writes = orphans.sweep_tasks(&store, &jobs, TASKS_NAMESPACE);
    let objects: Vec<&ObjectKey> = writes.iter().map(Write::object).collect();
    assert_eq!(objects, [&ObjectKey::pod(TASKS_NAMESPACE, "lost")]);
}

/// Users write the parameters of their jobs, so the host does not believe a script origin in these parameters.
#[test]
fn a_script_by_its_digest_runs_on_no_node_but_for_ops_jobs() {
    for origin in ["template", "input"] {
        let mut bench = bench(&json!({}));
        let script = task("run-on-node", json!({"script": {"sha256": "a".repeat(64), "origin": origin}}));
        let mut begins = |visit: &Visit| does(script.clone(), visit);
        for _ in 0..4 {
            bench.later(2);
            bench.settle(&mut begins);
        }
        assert_eq!((bench.word(0).as_str(), pod(&bench).is_some()), ("Failed/MutationDenied", false), "{origin}");
    }
}
