//! Examples of granted and missing lines.

use proptest::prelude::*;
use serde_json::json;

use super::*;

const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn manifest() -> Manifest {
    Manifest::parse(
        json!({"schema": 1, "name": "replace", "version": "0.1.0", "action": "Replace", "target": ["Pod"],
            "reads": [{"apiVersion": "v1", "kind": "Pod", "fields": ["/status/conditions", "/spec/nodeName"], "reason": "r"},
                      {"apiVersion": "apps/v1", "kind": "ReplicaSet", "reason": "r"}],
            "writes": [{"verb": "evict", "apiVersion": "v1", "kind": "Pod", "reason": "r"},
                       {"verb": "metadata", "apiVersion": "v1", "kind": "Pod", "labels": ["c.io/*", "d.io/x"], "reason": "r"}],
            "tasks": [{"name": "run-on-node", "builtins": ["reboot"], "scripts": true, "reason": "r"}]})
        .to_string()
        .as_bytes(),
    )
    .unwrap()
}

fn grant(spec: Value) -> Grant {
    Grant::parse(&json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "replace"}, "spec": spec}))
        .unwrap()
}

fn everything() -> Value {
    json!({"anyVersion": true, "namespaces": ["*"],
        "reads": [{"apiVersion": "v1", "kind": "Pod", "fields": ["/status", "/spec/node*"]}, {"apiVersion": "apps/*", "kind": "*"}],
        "writes": [{"verb": "evict", "apiVersion": "v1", "kind": "Pod"},
                   {"verb": "metadata", "apiVersion": "v1", "kind": "Pod", "labels": ["c.io/*"]},
                   {"verb": "metadata", "apiVersion": "v1", "kind": "*", "labels": ["d*"]}],
        "tasks": [{"name": "run-*", "builtins": ["re*"]}, {"name": "run-on-node", "scripts": true}]})
}

#[test]
fn several_lines_and_patterns_together_grant_a_request() {
    assert_eq!(missing(&manifest(), Some(&grant(everything())), DIGEST), Vec::<String>::new());
}

#[test]
fn without_a_grant_every_line_is_missing() {
    let lines = missing(&manifest(), None, DIGEST);
    assert_eq!(lines.len(), 7);
    assert_eq!(lines[2], "reads: [{apiVersion: v1, kind: Pod, fields: [\"/status/conditions\", \"/spec/nodeName\"]}]");
    assert_eq!(lines[4], "writes: [{verb: evict, apiVersion: v1, kind: Pod}]");
}

#[test]
fn grant_of_everything_that_a_manifest_asks_for_lacks_nothing() {
    let all = Grant::of_all(&manifest());
    assert_eq!(missing(&manifest(), Some(&all), DIGEST), Vec::<String>::new());
    assert!(all.allows_namespace("any") && all.name == "replace");
}

#[test]
fn only_the_keys_that_lack_are_named() {
    let mut spec = everything();
    spec["writes"].as_array_mut().unwrap().pop();
    spec["writes"][1]["labels"] = json!(["c.io/a"]);
    let lines = missing(&manifest(), Some(&grant(spec)), DIGEST);
    assert_eq!(lines, ["writes: [{verb: metadata, apiVersion: v1, kind: Pod, labels: [\"c.io/*\", \"d.io/x\"]}]"]);
}

#[test]
fn a_kind_of_task_is_granted_with_the_commands_and_scripts_that_are_named_and_no_other() {
    let lacks = |tasks: Value| {
        let mut spec = everything();
        spec["tasks"] = tasks;
        missing(&manifest(), Some(&grant(spec)), DIGEST)
    };
    let (builtins, scripts) = ("builtins: [\"reboot\"]", "scripts: true");
    assert_eq!(lacks(json!([])), [format!("tasks: [{{name: run-on-node, {builtins}, {scripts}}}]")]);
    let bare = json!([{"name": "*"}]);
    assert_eq!(lacks(bare), [format!("tasks: [{{name: run-on-node, {builtins}, {scripts}}}]")]);
    let reboot = json!([{"name": "run-on-node", "builtins": ["reboot"]}, {"name": "check-pod", "scripts": true}]);
    assert_eq!(lacks(reboot), [format!("tasks: [{{name: run-on-node, {scripts}}}]")]);
    let all_scripts = json!([{"name": "run-on-node", "builtins": ["re", "commit"], "scripts": true}]);
    assert_eq!(lacks(all_scripts), [format!("tasks: [{{name: run-on-node, {builtins}}}]")]);
}

#[test]
fn a_directory_of_a_node_is_granted_with_what_lies_below_it_and_nothing_beside_it() {
    let lacks = |asked: Value, granted: Value| {
        let asked: TaskRule = serde_json::from_value(json!({"name": "check-pod", "hostPaths": asked})).unwrap();
        let granted = grant(json!({"tasks": [{"name": "check-*", "hostPaths": granted}]}));
        asked.lacking(&granted.tasks).map(|lacking| lacking.to_string())
    };
    for asked in ["/opt/checks", "/opt/checks/gpu", "/opt/checks/gpu/a"] {
        assert_eq!(lacks(json!([asked]), json!(["/data", "/opt/checks"])), None, "{asked}");
    }
    for asked in ["/opt", "/opt/check", "/opt/checks2", "/opt/checks2/gpu", "/var/opt/checks"] {
        let line = format!("{{name: check-pod, hostPaths: [{asked:?}]}}");
        assert_eq!(lacks(json!([asked, "/data"]), json!(["/data", "/opt/checks"])), Some(line));
    }
    assert_eq!(lacks(json!(["/"]), json!([])), None, "which directories, the grant says");
    assert_eq!(lacks(json!(["/", "/data"]), json!([])).as_deref(), Some("{name: check-pod, hostPaths: [\"/data\"]}"));
}

#[test]
fn a_registry_stands_for_all_images_whose_names_begin_with_its_own() {
    let lacks = |asked: &str, granted: &[&str]| {
        let asked: TaskRule = serde_json::from_value(json!({"name": "copy-image", "registries": [asked]})).unwrap();
        let granted = grant(json!({"tasks": [{"name": "copy-image", "registries": granted}]}));
        asked.lacking(&granted.tasks).is_some()
    };
    for granted in ["docker.io", "docker.io/library", "docker.io/library/busybox"] {
        assert!(!lacks("docker.io/library/busybox", &[granted]), "{granted}");
    }
    for granted in ["docker.i", "docker.io/lib", "docker.io/library/busybox/x", "docker.io:443", "ghcr.io"] {
        assert!(lacks("docker.io/library/busybox", &[granted]), "{granted}");
    }
    assert!(!lacks("*", &[]), "which they are is for the grant");
    for registries in
        [json!(["*"]), json!(["https://docker.io"]), json!(["docker.io/"]), json!(["docker.io/A"]), json!([""])]
    {
        let spec = json!({"tasks": [{"name": "copy-image", "registries": registries}]});
        let document = json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "p"}, "spec": spec});
        assert!(Grant::parse(&document).unwrap_err().to_string().contains("`registries`"), "{registries}");
    }
    let spec = json!({"tasks": [{"name": "copy-image", "authHosts": ["auth.docker.io/token"]}]});
    let document = json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "p"}, "spec": spec});
    assert!(Grant::parse(&document).unwrap_err().to_string().contains("`authHosts`"));
}

#[test]
fn a_grant_lists_no_directory_that_holds_or_lies_in_what_gives_the_node_away() {
    let granted = |path: &str| {
        let spec = json!({"tasks": [{"name": "check-*", "hostPaths": [path]}]});
        Grant::parse(&json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "x"}, "spec": spec}))
    };
    for path in ["/", "/var", "/var/lib", "/usr/local", "/var/snap", "/var/lib/docker", "/home", "/var/log/pods/a"] {
        let refused = crate::causes::causes(&granted(path).unwrap_err());
        assert!(refused.contains(&format!("{path:?}")), "{refused}");
    }
    for path in ["/opt", "/var/log", "/data/sets"] {
        assert!(granted(path).is_ok(), "{path}");
    }
}

#[test]
fn a_grant_for_one_digest_is_not_one_for_another() {
    let mut spec = everything();
    spec["anyVersion"] = json!(false);
    spec["digest"] = json!(DIGEST);
    assert_eq!(missing(&manifest(), Some(&grant(spec.clone())), DIGEST).len(), 0);
    let other = DIGEST.replace("0123", "4567");
    assert_eq!(missing(&manifest(), Some(&grant(spec)), &other), [format!("digest: {other}   # or anyVersion: true")]);
}

#[test]
fn what_nobody_understands_is_refused() {
    let document = |spec| json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "x"}, "spec": spec});
    for spec in [
        json!({"anyVersoin": true}),
        json!({"digest": "sha256:12"}),
        json!({"config": [1]}),
        json!({"namespaces": ["a*b"]}),
        json!({"writes": [{"verb": "evict", "apiVersion": "v1"}]}),
        json!({"writes": [{"verb": "evict", "apiVersion": "v1", "kind": "P*d"}]}),
        json!({"writes": [{"verb": "patch", "apiVersion": "v1", "kind": "Pod", "subresources": ["s*s"]}]}),
        json!({"reads": [{"apiVersion": "*/v1", "kind": "Pod"}]}),
        json!({"tasks": [{"name": "*x"}]}),
        json!({"tasks": [{"name": "run-on-node", "builtins": ["r*t"]}]}),
        json!({"tasks": [{"name": "run-on-node", "scripts": "all"}]}),
        json!({"tasks": [{"name": "check-pod", "hostPaths": ["opt"]}]}),
        json!({"tasks": [{"name": "check-pod", "hostPaths": ["/opt/"]}]}),
        json!({"tasks": [{"name": "check-pod", "hostPaths": ["/opt/../etc"]}]}),
        json!({"tasks": [{"name": "check-pod", "hostPaths": ["/opt*"]}]}),
        json!({"tasks": [{"name": "check-pod", "capabilities": ["SYS_ADMIN"]}]}),
        json!({"tasks": [{"name": "check-pod", "capabilities": ["*"]}]}),
    ] {
        assert!(Grant::parse(&document(spec)).is_err());
    }
    assert!(Grant::parse(&json!({"kind": KIND})).is_err());
    assert!(Grant::parse(&json!({"apiVersion": API_VERSION, "kind": KIND})).is_err());
}

#[test]
fn an_empty_spec_grants_nothing() {
    let empty = Grant::parse(&json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "x"}})).unwrap();
    assert!(!empty.allows_namespace("default") && empty.reads.is_empty());
    assert_eq!(empty.config(), json!({}));
}

proptest! {
    #[test]
    fn a_pattern_that_covers_another_matches_all_that_the_other_matches(
        granted in "[ab]{0,3}\\*?", asked in "[ab]{0,3}\\*?", text in "[ab]{0,5}",
    ) {
        prop_assert!(!covers(&granted, &asked) || !matches(&asked, &text) || matches(&granted, &text));
    }
}

#[test]
fn a_grant_of_the_scripts_of_templates_is_enough_to_serve_and_covers_no_script_of_a_job() {
    let asked: TaskRule =
        serde_json::from_value(json!({"name": "run-on-node", "scripts": ["template", "input"]})).unwrap();
    let lacks = |needed: &TaskRule, scripts: Value| {
        let granted = grant(json!({"tasks": [{"name": "run-on-node", "scripts": scripts}]}));
        needed.lacking(&granted.tasks).map(|lacking| lacking.to_string())
    };
    let at_least = asked.at_least().unwrap();
    assert_eq!(lacks(&at_least, json!(["template"])), None);
    assert_eq!(lacks(&at_least, json!(false)).as_deref(), Some("{name: run-on-node, scripts: [template]}"));
    let of_job = Some("{name: run-on-node, scripts: [template, input]}");
    assert_eq!(lacks(&asked, json!(["template"])).as_deref(), of_job);
    assert_eq!((lacks(&asked, json!(["template", "input"])), lacks(&asked, json!(true))), (None, None));
    let of_text = TaskRule { scripts: ScriptRule::Any, ..asked };
    assert_eq!(lacks(&of_text, json!(["template", "input"])).as_deref(), Some("{name: run-on-node, scripts: true}"));
}

#[test]
fn a_plugin_that_asks_for_commits_is_served_by_a_grant_without_them() {
    let rule = |builtins: Value| -> TaskRule {
        serde_json::from_value(json!({"name": "run-on-node", "builtins": builtins})).unwrap()
    };
    assert_eq!(rule(json!(["commit"])).at_least(), None);
    assert_eq!(rule(json!(["reboot", "commit"])).at_least(), Some(rule(json!(["reboot"]))));
    let reaches = |builtins: Value| (rule(builtins.clone()).reaches_nodes(), rule(builtins).reaches_pods());
    assert_eq!(reaches(json!(["commit"])), (false, true));
    assert_eq!(reaches(json!(["reboot"])), (true, false));
    assert_eq!((reaches(json!(["reboot", "commit"])), reaches(json!(["*"]))), ((true, true), (true, true)));
}

#[test]
fn an_identity_is_the_name_of_an_account_and_names_none_elsewhere() {
    let parse = |account: &str| {
        let spec = json!({"identity": {"serviceAccount": account}});
        Grant::parse(&json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "replace"}, "spec": spec}))
    };
    assert_eq!(parse("swap").unwrap().account(), Some("swap"));
    assert_eq!(grant(everything()).account(), None);
    for name in ["kube-system:admin", "kube-system/admin", "a.b", "", "Swap", "-a", "a\nb", "system:serviceaccount:x:y"]
    {
        let refused = parse(name).unwrap_err().to_string();
        assert!(refused.contains(&format!("`identity.serviceAccount: {name}`")), "{refused}");
    }
    let elsewhere = json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "replace"},
        "spec": {"identity": {"serviceAccount": "a", "namespace": "kube-system"}}});
    assert!(matches!(Grant::parse(&elsewhere), Err(GrantError::Spec { .. })));
}
