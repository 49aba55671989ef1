//! Examples of allowed and refused proposals.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::proposal::{DrainRequest, PluginEvent};

fn manifest() -> Manifest {
    let rule =
        |verb: &str, api: &str, kind: &str| json!({"verb": verb, "apiVersion": api, "kind": kind, "reason": "r"});
    let mut metadata = rule("metadata", "v1", "Pod");
    metadata["labels"] = json!(["c.io/*", "oarlock.dev/*", "operating.podopslifecycle.kusionstack.io/*"]);
    metadata["annotations"] = json!(["c.io/a", "hold.oarlock.dev/*"]);
    metadata["finalizers"] = json!(["f.io/protected"]);
    let mut patch = rule("patch", "x.io/v1", "Widget");
    patch["subresources"] = json!(["status"]);
    let job = "apps.kusionstack.io/v1alpha1";
    let writes = json!([
        metadata,
        rule("evict", "v1", "Pod"),
        rule("delete", "v1", "Pod"),
        patch,
        rule("create", "x.io/v1", "Widget"),
        rule("delete", "x.io/v1", "Widget"),
        rule("create", "x.io/v1", "Ungranted"),
        rule("delete", job, "OperationJob"),
        rule("create", "oarlock.dev/v1alpha1", "ActionPlugin")
    ]);
    let document =
        json!({"schema": 1, "name": "p", "version": "1.0.0", "action": "P", "target": ["Pod"], "writes": writes});
    Manifest::parse(document.to_string().as_bytes()).unwrap()
}

fn grant() -> Grant {
    let mut writes = manifest().writes;
    writes.retain(|rule| rule.kind != "Ungranted");
    Grant { any_version: true, namespaces: vec!["team-*".into()], writes, ..Grant::default() }
}

fn widget(key: &ObjectKey) -> Sighting<Vec<Owner>> {
    let owner = |uid: &str| Owner { kind: Kind::job(), name: uid.into(), uid: uid.into(), controller: true };
    match key.name.as_str() {
        "unread" => Sighting::Unread,
        "theirs" => Sighting::Found(vec![owner("job-2")]),
        _ => Sighting::Found(vec![owner("job-1")]),
    }
}

fn ask_in(namespace: &str, proposal: &Proposal) -> Result<(), String> {
    let (manifest, grant, target) = (manifest(), grant(), ObjectKey::pod("team-a", "p1"));
    let stored = BTreeMap::from([("Owner".to_owned(), "o".repeat(2000)), ("Kept".to_owned(), "k".repeat(500))]);
    let authority = Authority {
        manifest: &manifest,
        grant: &grant,
        namespace,
        job_uid: "job-1",
        target: &target,
        target_uid: Some("u1"),
        extras: &stored,
        seen: &widget,
    };
    authorize(proposal, &authority).map_err(|denied| denied.to_string())
}

fn ask(mutation: Mutation) -> Result<(), String> {
    ask_in("team-a", &Proposal { mutations: vec![mutation], ..Proposal::default() })
}

fn object(kind: Kind, namespace: &str, name: &str) -> ObjectRef {
    ObjectRef { key: ObjectKey { kind, namespace: Some(namespace.into()), name: name.into() }, uid: None }
}

fn target() -> ObjectRef {
    object(Kind::pod(), "team-a", "p1")
}

fn widget_ref(name: &str) -> ObjectRef {
    object(Kind::new("x.io/v1", "Widget"), "team-a", name)
}

fn evict(pod: ObjectRef) -> Mutation {
    Mutation::Evict { pod, grace_seconds: None }
}

fn delete(object: ObjectRef) -> Mutation {
    Mutation::Delete { object, grace_seconds: None, propagation: None }
}

fn metadata(edit: impl FnOnce(&mut MetadataChange)) -> Mutation {
    let mut change = MetadataChange {
        object: target(),
        set_labels: vec![],
        remove_labels: vec![],
        set_annotations: vec![],
        remove_annotations: vec![],
        add_finalizers: vec![],
        remove_finalizers: vec![],
        keep: false,
    };
    edit(&mut change);
    Mutation::Metadata(change)
}

fn label(key: &str) -> Mutation {
    metadata(|change| change.set_labels.push((key.into(), "v".into())))
}

fn refused(result: Result<(), String>, word: &str) {
    let sentence = result.unwrap_err();
    assert!(sentence.contains(word), "expected {word:?} in {sentence:?}");
}

#[test]
fn what_is_asked_for_and_granted_passes() {
    assert_eq!(ask(evict(target())), Ok(()));
    assert_eq!(ask(label("c.io/to-replace")), Ok(()));
    assert_eq!(ask(metadata(|change| change.remove_finalizers.push("f.io/protected".into()))), Ok(()));
    assert_eq!(
        ask(Mutation::Create(
            json!({"apiVersion": "x.io/v1", "kind": "Widget", "metadata": {"name": "w", "namespace": "team-a"}})
        )),
        Ok(())
    );
    assert_eq!(ask(delete(widget_ref("mine"))), Ok(()));
    let status = Mutation::Patch {
        object: widget_ref("mine"),
        subresource: Some("status".into()),
        patch: json!({"status": {}}),
    };
    assert_eq!(ask(status), Ok(()));
}

#[test]
fn a_namespace_that_is_not_granted_gets_nothing() {
    let change = Proposal { mutations: vec![evict(target())], ..Proposal::default() };
    refused(ask_in("prod", &change), "namespaces");
    assert_eq!(ask_in("prod", &Proposal::default()), Ok(()), "what changes nothing needs no grant");
}

#[test]
fn only_the_target_is_touched_among_objects_of_its_kind() {
    refused(ask(evict(object(Kind::pod(), "team-a", "p2"))), "the target is Pod p1");
    refused(ask(delete(object(Kind::pod(), "team-a", "p2"))), "the target is");
    let another = ObjectRef { uid: Some("u2".into()), ..target() };
    refused(ask(evict(another)), "another UID");
}

/// Returns the check's answer to a mutation of a plugin for nodes. The target is the node `n`.
fn ask_of_node(mutation: Mutation) -> Result<(), String> {
    let rule = |verb: &str| json!({"verb": verb, "apiVersion": "v1", "kind": "Node", "reason": "r"});
    let document = json!({"schema": 1, "name": "p", "version": "1.0.0", "action": "P", "target": ["Node"],
        "reads": [{"apiVersion": "v1", "kind": "Node", "reason": "r"}], "writes": [rule("schedulable"), rule("taint")]});
    let manifest = Manifest::parse(document.to_string().as_bytes()).unwrap();
    let writes = manifest.writes.iter().filter(|rule| rule.verb == Verb::Taint).cloned().collect();
    let grant = Grant { any_version: true, namespaces: vec!["*".into()], writes, ..Grant::default() };
    let (target, stored) = (ObjectKey::node("n"), BTreeMap::new());
    let authority = Authority {
        manifest: &manifest,
        grant: &grant,
        namespace: "team-a",
        job_uid: "job-1",
        target: &target,
        target_uid: Some("u1"),
        extras: &stored,
        seen: &widget,
    };
    let proposal = Proposal { mutations: vec![mutation], ..Proposal::default() };
    authorize(&proposal, &authority).map_err(|denied| denied.to_string())
}

#[test]
fn a_node_is_tainted_only_as_the_target_with_a_taint_that_is_one_and_nobody_elses() {
    let taint = |node: &str, key: &str, value: &str, effect: &str| {
        let text = str::to_owned;
        Mutation::Taint(TaintChange {
            node: text(node),
            key: text(key),
            value: text(value),
            effect: text(effect),
            present: true,
        })
    };
    assert_eq!(ask_of_node(taint("n", "x.io/work", "j", "NoSchedule")), Ok(()));
    refused(ask_of_node(taint("m", "x.io/work", "j", "NoSchedule")), "the target is Node n");
    refused(ask_of_node(taint("n", "a b", "j", "NoSchedule")), "not a qualified name");
    refused(ask_of_node(taint("n", "x.io/work", "a b", "NoSchedule")), "not a value of a taint");
    refused(ask_of_node(taint("n", "x.io/work", "j", "NoWay")), "is no effect");
    refused(ask_of_node(taint("n", "node.kubernetes.io/not-ready", "", "NoExecute")), "controllers of nodes");
    let cordon = |node: &str| Mutation::Schedulable { node: node.into(), schedulable: false };
    refused(ask_of_node(cordon("n")), "not granted to plugin p");
    refused(ask(cordon("n")), "the target is Pod p1");
}

#[test]
fn an_object_of_another_job_or_namespace_is_not_touched() {
    refused(ask(delete(widget_ref("theirs"))), "belongs to job job-2");
    refused(ask(delete(object(Kind::new("x.io/v1", "Widget"), "team-b", "w"))), "namespace team-a");
    let body =
        json!({"apiVersion": "x.io/v1", "kind": "Widget", "metadata": {"name": "w", "namespace": "kube-system"}});
    refused(ask(Mutation::Create(body)), "namespace team-a");
}

#[test]
fn an_object_that_nobody_read_is_not_touched_but_may_be_made() {
    refused(ask(delete(widget_ref("unread"))), "read it with `get` first");
    let body = json!({"apiVersion": "x.io/v1", "kind": "Widget", "metadata": {"name": "unread"}});
    assert_eq!(ask(Mutation::Create(body)), Ok(()));
}

#[test]
fn names_that_would_change_the_path_of_a_request_are_refused() {
    for name in ["p4/status", "..", "../p1", "p1?x", "p1%2f", "", "P1", "p1\n", "a b", "\u{202e}p"] {
        refused(ask(delete(widget_ref(name))), "not the name of an object");
    }
    for api_version in ["x.io/v1/../v2", "x.io/v1/namespaces", "", "x.io/", "../v1"] {
        refused(ask(delete(object(Kind::new(api_version, "Widget"), "team-a", "w"))), "is not a kind");
    }
    let subresource = Mutation::Patch { object: widget_ref("w"), subresource: Some("../x".into()), patch: json!({}) };
    refused(ask(subresource), "not a subresource");
}

#[test]
fn what_the_manifest_or_the_grant_lacks_is_named() {
    refused(ask(label("d.io/x")), "manifest of plugin p does not ask");
    refused(ask(delete(object(Kind::new("v1", "Secret"), "team-a", "s"))), "delete of v1 Secret");
    let body = json!({"apiVersion": "x.io/v1", "kind": "Ungranted", "metadata": {"name": "w"}});
    refused(ask(Mutation::Create(body)), "not granted to plugin p");
    let resize = Mutation::Patch { object: widget_ref("w"), subresource: Some("scale".into()), patch: json!({}) };
    refused(ask(resize), "subresource scale");
    refused(ask(Mutation::Other { verb: "tow".into() }), "does not carry out `tow`");
}

#[test]
fn what_belongs_to_the_host_is_refused_even_where_it_is_granted() {
    refused(ask(label("oarlock.dev/job-uid")), "belongs to the host");
    refused(ask(label("operating.podopslifecycle.kusionstack.io/1")), "belongs to the host");
    let hold = metadata(|change| change.remove_annotations.push("hold.oarlock.dev/job-2".into()));
    refused(ask(hold), "belongs to the host");
    refused(
        ask(delete(object(Kind::new("apps.kusionstack.io/v1alpha1", "OperationJob"), "team-a", "j"))),
        "belong to the host",
    );
    let body = json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "ActionPlugin", "metadata": {"name": "p"}});
    refused(ask(Mutation::Create(body)), "belong to the host");
}

#[test]
fn a_created_object_brings_no_owner_no_finalizer_and_no_host_label() {
    let body = |field: &str, value: Value| {
        let mut body = json!({"apiVersion": "x.io/v1", "kind": "Widget", "metadata": {"name": "w"}});
        body["metadata"][field] = value;
        Mutation::Create(body)
    };
    refused(ask(body("ownerReferences", json!([]))), "ownerReferences");
    refused(ask(body("generateName", json!("w-"))), "generateName");
    refused(ask(body("labels", json!({"oarlock.dev/job-uid": "x"}))), "belongs to the host");
    refused(ask(Mutation::Create(json!({"apiVersion": "x.io/v1", "kind": "Widget"}))), "no name");
    refused(ask(Mutation::Create(json!("text"))), "no `apiVersion`");
}

#[test]
fn a_merge_patch_cannot_go_round_the_rules_for_metadata() {
    for patch in [json!({"metadata": {"labels": {"a": "b"}}}), json!({"kind": "Pod"}), json!([1])] {
        assert!(ask(Mutation::Patch { object: widget_ref("w"), subresource: None, patch }).is_err());
    }
}

#[test]
fn extras_of_the_host_and_more_than_a_kibibyte_are_refused() {
    let set = |key: &str, value: String| {
        ask_in("team-a", &Proposal { set_extra: vec![(key.into(), value)], ..Proposal::default() })
    };
    assert_eq!(set("NewPod", "p2".into()), Ok(()));
    assert_eq!(set("Kept", "x".repeat(1000)), Ok(()));
    refused(set("NewPod", "x".repeat(600)), "at most 1024");
    refused(set("NewPod", "x".repeat(10 << 20)), "at most 1024");
    refused(set("Released", "true".into()), "belongs to the host");
    refused(set("a b", "x".into()), "letters, digits");
    refused(set("A", "x\u{1b}[2J".into()), "control characters");
    let removed = Proposal { remove_extra: vec!["Plan".into()], ..Proposal::default() };
    refused(ask_in("team-a", &removed), "belongs to the host");
}

#[test]
fn the_number_of_mutations_and_events_is_bounded() {
    let mutations = vec![evict(target()); MAX_MUTATIONS + 1];
    refused(ask_in("team-a", &Proposal { mutations, ..Proposal::default() }), "65 mutations");
    let event = PluginEvent { warning: false, reason: "R".into(), message: String::new() };
    refused(ask_in("team-a", &Proposal { events: vec![event; 17], ..Proposal::default() }), "17 events");
}

#[test]
fn one_bad_mutation_refuses_the_good_ones_beside_it() {
    let mutations = vec![evict(target()), label("d.io/x")];
    assert!(ask_in("team-a", &Proposal { mutations, ..Proposal::default() }).is_err());
}

proptest! {
    #[test]
    fn a_name_that_passes_needs_no_escaping_in_a_path(name in "\\PC{0,12}", namespace in "\\PC{0,8}") {
        let key = object(Kind::new("x.io/v1", "Widget"), &namespace, &name);
        if ask(delete(key)).is_ok() {
            prop_assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.'));
            prop_assert!(!name.split('.').any(str::is_empty) && namespace == "team-a");
        }
    }

    #[test]
    fn a_key_passes_only_where_a_granted_pattern_matches_it(key in "(c\\.io|d\\.io|oarlock\\.dev|x\\.oarlock\\.dev)/[a-z]{0,3}") {
        prop_assert_eq!(ask(label(&key)).is_ok(), key.starts_with("c.io/") && key.len() > 5);
    }

    #[test]
    fn a_refusal_can_be_shown_on_a_terminal(name in any::<String>()) {
        if let Err(sentence) = ask(delete(widget_ref(&name))) {
            prop_assert!(!sentence.chars().any(char::is_control) && sentence.len() < 1000);
        }
    }
}

/// Returns the check's answer to a proposal of tasks on a node, given by name, kind and arguments. `asked` and `granted` are the rules for
/// tasks.
fn ask_tasks(
    (asked, granted): (&Value, &Value),
    target: &ObjectKey,
    requests: &[(&str, &str, Value)],
) -> Result<(), String> {
    let reads = json!([{"apiVersion": "v1", "kind": "Node", "reason": "r"}]);
    let mut tasks = asked.clone();
    tasks.as_array_mut().unwrap().iter_mut().for_each(|task| task["reason"] = json!("r"));
    let document = json!({"schema": 1, "name": "p", "version": "1.0.0", "action": "P", "target": ["Node"], "reads": reads, "tasks": tasks});
    let manifest = Manifest::parse(document.to_string().as_bytes()).unwrap();
    let tasks = serde_json::from_value(granted.clone()).unwrap();
    let grant = Grant { any_version: true, namespaces: vec!["*".into()], tasks, ..Grant::default() };
    let stored = (0..7).map(|n| (format!("Task/old-{n}"), "{}".to_owned())).collect();
    let authority = Authority {
        manifest: &manifest,
        grant: &grant,
        namespace: "d",
        job_uid: "j",
        target,
        target_uid: Some("u"),
        extras: &stored,
        seen: &|_| Sighting::Unread,
    };
    let task = |(name, kind, arguments): &(&str, &str, Value)| {
        Mutation::Task(TaskRequest { name: (*name).into(), kind: (*kind).into(), arguments: arguments.clone() })
    };
    let proposal = Proposal { mutations: requests.iter().map(task).collect(), ..Proposal::default() };
    authorize(&proposal, &authority).map_err(|denied| denied.sentence)
}

#[test]
fn a_task_is_for_nodes_asked_for_granted_and_one_of_few() {
    let (node, pod) = (ObjectKey::node("n"), ObjectKey::pod("d", "a"));
    let asked = json!([{"name": "run-on-node", "scripts": true}, {"name": "check-pod"}]);
    let run = |name| (name, "run-on-node", json!({"script": {"text": "true"}}));
    let (check, copy) = (("a", "check-pod", json!({})), ("a", "format-disk", json!({})));
    let all = json!([{"name": "*", "scripts": true}]);
    let ask = |granted: &Value, target, requests: &[_]| ask_tasks((&asked, granted), target, requests);
    assert_eq!(ask(&json!([{"name": "run-*", "scripts": true}]), &node, &[run("a"), run("old-1")]), Ok(()));
    refused(ask(&all, &pod, &[run("a")]), "the target is Pod a");
    refused(
        ask(&json!([{"name": "run-on-node"}]), &node, std::slice::from_ref(&check)),
        "`{name: check-pod}` is not granted to plugin p; add it to `tasks` of its grant",
    );
    refused(ask(&all, &node, &[copy]), "the manifest of plugin p does not ask for `{name: format-disk}`");
    refused(ask(&all, &node, &[check]), "cannot be read");
    let (logs, collect) = (json!([{"name": "collect-logs"}]), ("a", "collect-logs", json!({})));
    assert_eq!(ask_tasks((&logs, &logs), &pod, std::slice::from_ref(&collect)), Ok(()));
    refused(ask_tasks((&logs, &logs), &node, &[collect]), "collect-logs is done for pods, and the target is Node n");
    refused(ask(&all, &node, &[run("a"), run("b")]), "would have 9 tasks");
}

#[test]
fn a_commit_goes_into_the_folder_of_its_namespace_and_a_copy_into_none_of_these() {
    let commits = json!([{"name": "run-on-node", "builtins": ["commit"]}]);
    let copies = json!([{"name": "copy-image", "registries": ["*"]}]);
    let pod = ObjectKey::pod("d", "a");
    let commit = |target: &str| {
        let arguments = json!({"builtin": "commit", "commit": {"container": "c", "target": target}});
        ask_tasks((&commits, &commits), &pod, &[("a", "run-on-node", arguments)])
    };
    let copy = |target: &str| {
        let arguments = json!({"source": "reg/a:1", "target": target, "otherwise": "2"});
        ask_tasks((&copies, &copies), &pod, &[("a", "copy-image", arguments)])
    };
    assert_eq!(commit("custom/commits/d/library/a:1"), Ok(()));
    for target in ["custom/library/a:1", "custom/commits/other/a:1", "custom/commits/d:1", "a:1"] {
        refused(commit(target), "is not below custom/commits/d/");
    }
    refused(copy("custom/commits/d/a:1"), "is not below custom/plugins/");
    refused(copy("base/a:1"), "is not below custom/plugins/");
}

#[test]
fn a_copy_outside_of_an_ops_job_goes_into_the_folder_of_its_plugin_and_namespace() {
    let copies = json!([{"name": "copy-image", "registries": ["reg"]}]);
    let asked =
        |arguments: Value| ask_tasks((&copies, &copies), &ObjectKey::pod("d", "a"), &[("a", "copy-image", arguments)]);
    let copy = |target: &str| asked(json!({"source": "reg/a:1", "target": target, "otherwise": "2"}));
    assert_eq!(copy("custom/plugins/p/d/library/a:1"), Ok(()));
    for target in
        ["p/other/a:1", "other/d/a:1", "p/d:1", "p/dd/a:1", "pp/d/a:1"].map(|of| format!("custom/plugins/{of}"))
    {
        refused(copy(&target), "is not below custom/plugins/p/d/");
    }
    refused(copy("custom/library/busybox:20260101"), "is not below custom/plugins/");
    let other = json!({"source": "else/a:1", "target": "custom/plugins/p/d/a:1", "otherwise": "2"});
    refused(asked(other), "registries: [\"else/a\"]");
    assert_eq!(asked(json!({})), Ok(()), "the host compares what the OpsJob says with the grant before it begins");
    let [rules, none] =
        [copies, json!([{"name": "copy-image"}])].map(|rules| serde_json::from_value::<Vec<TaskRule>>(rules).unwrap());
    assert_eq!(TaskRule::forbids_copy("reg/a", "p", [&rules, &rules]), None);
    let words = TaskRule::forbids_copy("reg/a", "p", [&rules, &none]).unwrap();
    assert!(words.contains("registries: [\"reg/a\"]") && words.contains("is not granted to plugin p"), "{words}");
}

#[test]
fn who_may_reboot_nodes_may_run_no_script_there_and_who_may_run_scripts_may_not_reboot() {
    let (reboot, scripts) = (json!({"builtin": "reboot"}), json!({"script": {"text": "true"}}));
    let rule = |part: &str, value: Value| {
        let mut rule = json!({"name": "run-on-node"});
        rule[part] = value;
        rule
    };
    let (reboots, runs) = (rule("builtins", json!(["reboot"])), rule("scripts", json!(true)));
    let both = json!([reboots, runs]);
    let ask = |asked: &Value, granted: &Value, arguments: &Value| {
        ask_tasks((asked, granted), &ObjectKey::node("n"), &[("a", "run-on-node", arguments.clone())])
    };
    for (rule, arguments, other, line) in [
        (&reboots, &reboot, &scripts, "`{name: run-on-node, scripts: true}`"),
        (&runs, &scripts, &reboot, "`{name: run-on-node, builtins: [\"reboot\"]}`"),
    ] {
        let rule = json!([rule]);
        assert_eq!(ask(&rule, &rule, arguments), Ok(()));
        refused(ask(&both, &rule, other), &format!("{line} is not granted to plugin p"));
        refused(ask(&rule, &both, other), &format!("does not ask for {line}"));
    }
    refused(ask(&both, &json!([{"name": "*"}]), &reboot), "not granted to plugin p");
}

#[test]
fn a_check_sees_no_directory_of_its_node_that_is_not_asked_for_and_granted() {
    let rule = |paths: &[&str]| json!([{"name": "check-pod", "hostPaths": paths}]);
    let ask = |asked: &[&str], granted: &[&str], path: &str| {
        let arguments = json!({"image": "i", "hostPaths": [path]});
        let rules = (&rule(asked), &rule(granted));
        ask_tasks(rules, &ObjectKey::node("n"), &[("a", "check-pod", arguments)])
    };
    for place in ["/opt/checks", "/var/log", "/var/lib/node_exporter", "/data"] {
        refused(ask(&["/"], &[], place), &format!("`{{name: check-pod, hostPaths: [{place:?}]}}` is not granted"));
        refused(ask(&[], &[place], place), "does not ask for `{name: check-pod, hostPaths: ");
        assert_eq!(ask(&["/"], &[place], &format!("{place}/a")), Ok(()));
    }
    // No grant can allow these paths.
    for path in
        ["/etc/ssl", "/sys", "/var/lib", "/var/lib/oarlock/commands", "/var/log/pods", "/sysroot", "/", "/data/../etc"]
    {
        refused(ask(&["/"], &["/", "/var/log", "/sys"], path), "no check may see");
    }
}

#[test]
fn a_check_has_no_capability_that_is_not_asked_for_and_granted_by_name() {
    let rule = |capabilities: &[&str]| json!([{"name": "check-pod", "capabilities": capabilities}]);
    let ask = |asked: &[&str], granted: &[&str], named: &[&str]| {
        let arguments = json!({"image": "i", "capabilities": named});
        ask_tasks((&rule(asked), &rule(granted)), &ObjectKey::node("n"), &[("a", "check-pod", arguments)])
    };
    const READS: &[&str] = &["DAC_READ_SEARCH"];
    assert_eq!(ask(READS, READS, READS), Ok(()));
    assert_eq!(ask(&[], &[], &[]), Ok(()));
    let line = "{name: check-pod, capabilities: [\"DAC_READ_SEARCH\"]}";
    refused(ask(READS, &[], READS), &format!("`{line}` is not granted"));
    refused(ask(&[], READS, READS), &format!("does not ask for `{line}`"));
    refused(ask(READS, READS, &["SYS_ADMIN"]), "no check may have the capability");
}

#[test]
fn a_pod_is_given_no_shorter_grace_period_than_is_granted() {
    let (pod, node) = (ObjectKey::pod("team-a", "p1"), ObjectKey::node("n"));
    let object = |key: &ObjectKey| ObjectRef { key: key.clone(), uid: None };
    let evict = |grace_seconds| Mutation::Evict { pod: object(&pod), grace_seconds };
    let delete = |grace_seconds| Mutation::Delete { object: object(&pod), grace_seconds, propagation: None };
    let drain = |grace_seconds| {
        let (delete_empty_dir_data, force) = (false, false);
        Mutation::Drain(DrainRequest { node: "n".into(), grace_seconds, delete_empty_dir_data, force })
    };
    let rule = |verb: &str, kind: &str| json!({"verb": verb, "apiVersion": "v1", "kind": kind, "reason": "r"});
    let fields = crate::manifest::DRAIN_READS;
    let reads = json!([{"apiVersion": "v1", "kind": "Node", "reason": "r"},
        {"apiVersion": "v1", "kind": "Pod", "fields": fields, "reason": "r"}]);
    let writes = json!([rule("evict", "Pod"), rule("delete", "Pod"), rule("drain", "Node")]);
    let document = json!({"schema": 1, "name": "p", "version": "1.0.0", "action": "P", "target": ["Pod", "Node"],
        "reads": reads, "writes": writes});
    let manifest = Manifest::parse(document.to_string().as_bytes()).unwrap();
    let ask = |least: Option<u32>, mutation: Mutation| {
        let grant = Grant { min_grace_period_seconds: least, ..Grant::of_all(&manifest) };
        let target = if matches!(mutation, Mutation::Drain(_)) { &node } else { &pod };
        let authority = Authority {
            manifest: &manifest,
            grant: &grant,
            namespace: "team-a",
            job_uid: "j",
            target,
            target_uid: Some("u"),
            extras: &BTreeMap::new(),
            seen: &|_| Sighting::Unread,
        };
        let proposal = Proposal { mutations: vec![mutation], ..Proposal::default() };
        authorize(&proposal, &authority).map_err(|denied| denied.sentence)
    };
    let all: [&dyn Fn(Option<u32>) -> Mutation; 3] = [&evict, &delete, &drain];
    for mutation in all {
        refused(ask(None, mutation(Some(0))), "`minGracePeriodSeconds`");
        assert_eq!(ask(Some(0), mutation(Some(0))), Ok(()));
        assert_eq!((ask(None, mutation(None)), ask(None, mutation(Some(1)))), (Ok(()), Ok(())));
        refused(ask(Some(30), mutation(Some(29))), "29 s is shorter than the 30 s");
    }
}

#[test]
fn a_mark_may_be_put_on_an_object_where_some_grant_lets_a_plugin_set_it() {
    let of = |writes: serde_json::Value| -> [Grant; 1] {
        [serde_json::from_value(json!({"namespaces": ["*"], "writes": writes})).unwrap()]
    };
    let all = |keys: &str, kind: &str| json!({"verb": "metadata", "apiVersion": "v1", "kind": kind, "labels": [keys], "annotations": [keys], "finalizers": [keys]});
    let on = |verb: &str| json!({"verb": verb, "apiVersion": "v1", "kind": "Node"});
    let rows = [
        ("label:x.io/a", all("x.io/*", "Node"), true),
        ("label:y.io/a", all("x.io/*", "Node"), false),
        ("label:x.io/a", all("x.io/*", "Pod"), false),
        ("annotation:x.io/a", all("x.io/a", "Node"), true),
        ("finalizer:x.io/a", all("x.io/a", "Node"), true),
        ("label:oarlock.dev/held", all("*", "Node"), false),
        ("annotation:hold.oarlock.dev/j", all("*", "Node"), false),
        ("cordon", on("schedulable"), true),
        ("cordon", on("drain"), true),
        ("cordon", on("taint"), false),
        ("taint:x.io/a:NoExecute", on("taint"), true),
        ("taint:x.io/a:NoExecute", on("drain"), false),
        ("taint:node.kubernetes.io/unreachable:NoExecute", on("taint"), false),
        ("a:b", all("*", "Node"), false),
        ("", on("schedulable"), false),
    ];
    for (mark, rule, wanted) in rows {
        assert_eq!(may_be_put(mark, &Kind::node(), &of(json!([rule]))), wanted, "{mark} by {rule}");
    }
    assert!(!may_be_put("cordon", &Kind::node(), &[]), "without a grant nothing is ours");
}
