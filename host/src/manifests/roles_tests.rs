//! Tests of the roles of grants.

use super::*;

/// Returns the access of grants with these names and specs.
fn access(specs: &[(&str, Value)]) -> GrantedAccess {
    let grant = |(name, spec): &(&str, Value)| {
        let document = json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "ActionPlugin", "metadata": {"name": name}, "spec": spec});
        Grant::parse(&document).unwrap()
    };
    GrantedAccess::of(specs.iter().map(grant).collect())
}

/// Returns one line for each document: a binding with its namespace, or a role with its rules.
fn shown(access: &GrantedAccess) -> Vec<String> {
    let documents = access.documents().unwrap();
    let line = |document: RoleDocument| {
        let text = |pointer: &str| document.content.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let name = text("/metadata/name").trim_start_matches("oarlock-plugin-").to_owned();
        let Some(rules) = document.content.get("rules").and_then(Value::as_array) else {
            return format!("{} {name} {}", text("/kind"), text("/metadata/namespace")).trim_end().to_owned();
        };
        let words = |rule: &Value, field: &str| {
            let list = rule[field].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
            list.collect::<Vec<_>>().join(",")
        };
        let rule = |rule: &Value| format!("{} {}", words(rule, "resources"), words(rule, "verbs"));
        format!("{name}: {}", rules.iter().map(rule).collect::<Vec<_>>().join("; "))
    };
    documents.into_iter().map(line).collect()
}

#[test]
fn reads_count_everywhere_and_writes_where_the_grant_does() {
    let granted = access(&[(
        "replace",
        json!({"namespaces": ["a", "b"], "reads": [{"apiVersion": "apps/v1", "kind": "Deployment"}], "writes": [
            {"verb": "evict", "apiVersion": "v1", "kind": "Pod"},
            {"verb": "metadata", "apiVersion": "v1", "kind": "Pod", "labels": ["x"]}]}),
    )]);
    assert_eq!(
        shown(&granted),
        [
            "replace-reads: deployments get,list,watch",
            "ClusterRoleBinding replace-reads",
            "replace-writes: pods/eviction create; pods patch; holds update; poddisruptionbudgets list",
            "RoleBinding replace-writes a",
            "RoleBinding replace-writes b",
        ]
    );
}

#[test]
fn each_verb_becomes_what_the_host_does_for_it() {
    let granted = access(&[(
        "all",
        json!({"namespaces": ["*"], "writes": [
            {"verb": "create", "apiVersion": "batch/v1", "kind": "Job"},
            {"verb": "delete", "apiVersion": "v1", "kind": "ConfigMap"},
            {"verb": "patch", "apiVersion": "apps/v1", "kind": "Deployment", "subresources": ["scale"]},
            {"verb": "metadata", "apiVersion": "v1", "kind": "Node", "labels": ["x"]},
            {"verb": "drain", "apiVersion": "v1", "kind": "Node"}]}),
    )]);
    assert_eq!(
        shown(&granted),
        [
            "all-cluster-writes: pods/eviction create; nodes patch; nodeholds update; poddisruptionbudgets list",
            "ClusterRoleBinding all-cluster-writes",
            "all-writes: configmaps delete; pods patch; deployments,deployments/scale patch; jobs get,create; holds update",
            "ClusterRoleBinding all-writes",
        ]
    );
    let documents = granted.documents().unwrap();
    assert!(documents.iter().any(|document| document.comment.contains("a Job reaches every Secret")));
}

#[test]
fn a_plugin_for_nodes_alone_gets_no_right_on_pods_and_one_for_pods_none_on_nodes() {
    let granted = access(&[(
        "cordon",
        json!({"namespaces": ["ops"], "reads": [{"apiVersion": "v1", "kind": "Node"}], "writes": [
            {"verb": "schedulable", "apiVersion": "v1", "kind": "Node"},
            {"verb": "taint", "apiVersion": "v1", "kind": "Node"}]}),
    )]);
    assert_eq!(
        shown(&granted),
        [
            "cordon-reads: nodes get,list,watch",
            "ClusterRoleBinding cordon-reads",
            "cordon-cluster-writes: nodes patch; nodeholds update",
            "ClusterRoleBinding cordon-cluster-writes",
        ]
    );
}

#[test]
fn a_plugin_that_has_tasks_done_on_nodes_may_bump_those_and_no_pod() {
    let node = json!([{"apiVersion": "v1", "kind": "Node"}]);
    let of = |writes: Value| {
        let spec = json!({"namespaces": ["ops"], "reads": node, "writes": writes, "tasks": [{"name": "check-pod"}]});
        let granted = access(&[("preflight", spec)]);
        assert!(granted.changes_nodes(), "an invalidation writes a hold, so the policy of nodes is printed");
        let mut lines = shown(&granted);
        lines.retain(|line| line.starts_with("preflight-"));
        lines
    };
    let (reads, invalidates) = ("preflight-reads: nodes get,list,watch", "nodes patch; nodeholds update");
    assert_eq!(of(json!([])), [reads.to_owned(), format!("preflight-cluster-writes: {invalidates}")]);
    let cordon = json!([{"verb": "schedulable", "apiVersion": "v1", "kind": "Node"}]);
    assert_eq!(of(cordon), [reads.to_owned(), format!("preflight-cluster-writes: {invalidates}")]);
    let evict = json!([{"verb": "evict", "apiVersion": "v1", "kind": "Pod"}]);
    let pods = "preflight-writes: pods/eviction create; pods patch; holds update; poddisruptionbudgets list".to_owned();
    assert_eq!(of(evict), [reads.to_owned(), format!("preflight-cluster-writes: {invalidates}"), pods]);
}

#[test]
fn a_plugin_that_writes_nothing_may_bump_pods_which_are_its_targets() {
    let granted = access(&[("watch", json!({"namespaces": ["a"], "reads": [{"apiVersion": "v1", "kind": "Pod"}]}))]);
    assert_eq!(
        shown(&granted),
        [
            "watch-reads: pods get,list,watch",
            "ClusterRoleBinding watch-reads",
            "watch-writes: pods patch; holds update",
            "RoleBinding watch-writes a"
        ]
    );
}

#[test]
fn more_than_metadata_of_pods_is_changed_only_where_that_is_granted() {
    let granted = access(&[(
        "patcher",
        json!({"namespaces": ["a"], "writes": [{"verb": "patch", "apiVersion": "v1", "kind": "Pod"}]}),
    )]);
    let shown = shown(&granted);
    assert_eq!(shown.first().map(String::as_str), Some("patcher-writes: pods patch; podspecs patch; holds update"));
}

#[test]
fn a_grant_without_a_namespace_needs_no_role() {
    let granted = access(&[("none", json!({"reads": [{"apiVersion": "v1", "kind": "Secret"}]}))]);
    assert_eq!(shown(&granted), Vec::<String>::new());
}

#[test]
fn a_pattern_of_namespaces_is_bound_to_those_that_are_named() {
    let mut granted = access(&[("x", json!({"namespaces": ["team-*", "other"]}))]);
    let refused = granted.documents().err().unwrap().to_string();
    assert!(refused.contains("`team-*`") && refused.contains("--bind NAMESPACE"), "{refused}");
    granted.bind = vec!["team-b".into(), "team-a".into()];
    let bound: Vec<_> = shown(&granted).into_iter().filter(|line| line.starts_with("RoleBinding")).collect();
    assert_eq!(bound, ["other", "team-a", "team-b"].map(|name| format!("RoleBinding x-writes {name}")));
    granted.bind = vec!["team-a".into(), "tema-b".into()];
    let refused = granted.documents().err().unwrap().to_string();
    assert_eq!(refused, "`--bind tema-b`: no grant counts in that namespace");
}

#[test]
fn what_no_role_can_say_is_refused_with_the_fix() {
    let refused = |name: &str, reads: Value| {
        access(&[(name, json!({"namespaces": ["*"], "reads": [reads]}))]).documents().err().unwrap().to_string()
    };
    assert!(refused("x", json!({"apiVersion": "v1", "kind": "*"})).contains("needs each by its name"));
    assert!(refused("x", json!({"apiVersion": "*", "kind": "Pod"})).contains("needs each by its name"));
    assert!(refused("x", json!({"apiVersion": "example.com/v1", "kind": "Widget"})).contains("--crds FILE"));
    assert!(refused("x", json!({"apiVersion": "v1", "kind": "Pods"})).contains("names Pods of v1"));
    assert!(refused("Not A Name", json!({"apiVersion": "v1", "kind": "Pod"})).contains("no plugin has that name"));
}

#[test]
fn any_version_of_a_group_is_one_role() {
    let granted =
        access(&[("x", json!({"namespaces": ["a"], "reads": [{"apiVersion": "apps/*", "kind": "Deployment"}]}))]);
    assert_eq!(shown(&granted).first().map(String::as_str), Some("x-reads: deployments get,list,watch"));
}

/// A grant with an identity that changes pods and nodes.
fn with_identity() -> GrantedAccess {
    access(&[(
        "swap",
        json!({"namespaces": ["a"], "identity": {"serviceAccount": "swapper"}, "writes": [
            {"verb": "metadata", "apiVersion": "v1", "kind": "Pod", "labels": ["x"]},
            {"verb": "evict", "apiVersion": "v1", "kind": "Pod"},
            {"verb": "create", "apiVersion": "v1", "kind": "ConfigMap"},
            {"verb": "taint", "apiVersion": "v1", "kind": "Node"}]}),
    )])
}

#[test]
fn a_plugin_with_an_identity_has_its_rights_and_the_host_may_make_exactly_those_requests_as_its_account() {
    assert_eq!(
        shown(&with_identity()),
        [
            "swap-cluster-writes: nodes patch; nodeholds update",
            "ClusterRoleBinding swap-cluster-writes",
            "swap-writes: configmaps get; pods patch; holds update; poddisruptionbudgets list",
            "RoleBinding swap-writes a",
            "swap-account-cluster-writes: nodes patch; nodeholds update",
            "ClusterRoleBinding swap-account-cluster-writes",
            "swap-cluster-as: nodes impersonate-on:serviceaccount:patch",
            "ClusterRoleBinding swap-cluster-as",
            "swap-account-writes: configmaps,pods/eviction create; pods patch; holds update",
            "RoleBinding swap-account-writes a",
            "swap-as: configmaps,pods/eviction impersonate-on:serviceaccount:create; pods impersonate-on:serviceaccount:patch",
            "RoleBinding swap-as a",
            "swap-impersonate: serviceaccounts impersonate:serviceaccount",
            "RoleBinding swap-impersonate OARLOCK_PLUGIN_ACCOUNTS",
        ]
    );
    let documents = with_identity().documents().unwrap();
    for document in documents.iter().filter(|document| document.content.get("subjects").is_some()) {
        let is_of_plugin = document.content["metadata"]["name"].to_string().contains("-account-");
        let expected = if is_of_plugin { "swapper" } else { "OARLOCK_ACCOUNT" };
        assert_eq!(document.content["subjects"][0]["name"], expected, "{}", document.content);
    }
}

#[test]
fn before_1_36_one_verb_on_the_account_is_all_that_the_host_needs() {
    let legacy = GrantedAccess { impersonation: Impersonation::Legacy, ..with_identity() };
    let lines = shown(&legacy);
    assert!(lines.contains(&"swap-impersonate: serviceaccounts impersonate".to_owned()), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("impersonate-on")), "{lines:?}");
    let documents = legacy.documents().unwrap();
    let role = documents.iter().find(|document| document.content["kind"] == "Role").unwrap();
    let rule = &role.content["rules"][0];
    assert_eq!((&rule["apiGroups"], &rule["resourceNames"]), (&json!([""]), &json!(["swapper"])));
}
