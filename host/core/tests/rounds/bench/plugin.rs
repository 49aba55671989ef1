//! The plugins that serve a bench: their reads, their writes, and the objects that they follow.

use std::sync::Arc;

use oarlock_core::object::api_object::Kind;
use oarlock_core::plugin::grant::{Grant, ScriptRule, TaskRule};
use oarlock_core::plugin::lookup::{PluginInfo, PluginLookup};
use oarlock_core::plugin::manifest::Lifecycle;
use oarlock_core::plugin::manifest::Manifest;
use oarlock_core::plugin::proposal::{Registration, Relation, RelationKey};
use serde_json::{Value, json};

/// Returns the usual plugin of a bench. It evicts and marks pods, and follows their controllers.
pub(crate) fn plugin() -> PluginLookup {
    plugin_with(&json!({"type": "object", "additionalProperties": false}))
}

/// Returns the usual plugin with this schema of its parameters.
pub(crate) fn plugin_with(parameters: &Value) -> PluginLookup {
    built(parameters, &[], &[])
}

/// Returns the usual plugin, which also reads objects of `kind` with `get` and changes them in every way.
pub(crate) fn plugin_that_changes(kind: &Kind) -> PluginLookup {
    let rule = |verb: Option<&str>| {
        let mut rule = json!({"apiVersion": kind.api_version, "kind": kind.kind});
        match verb {
            Some(verb) => rule["verb"] = json!(verb),
            None => rule["fields"] = json!(["/spec"]),
        }
        rule
    };
    let mut writes = ["metadata", "patch", "delete", "create"].map(|verb| rule(Some(verb)));
    writes[0]["labels"] = json!(["mark"]);
    writes[1]["subresources"] = json!(["status"]);
    built(&json!({"type": "object"}), &[rule(None)], &writes)
}

fn built(parameters: &Value, reads: &[Value], writes: &[Value]) -> PluginLookup {
    let mut manifest = json!({"schema": 1, "name": "replace", "version": "0.1.0", "action": "Replace", "target": ["Pod"],
        "reads": [{"apiVersion": "v1", "kind": "Pod", "fields": ["/status/conditions"], "reason": "r"}],
        "writes": [{"verb": "evict", "apiVersion": "v1", "kind": "Pod", "reason": "r"},
            {"verb": "metadata", "apiVersion": "v1", "kind": "Pod", "labels": ["mark"], "finalizers": ["f.io/f"], "reason": "r"}],
        "parameters": parameters});
    let mut grant = json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "ActionPlugin", "metadata": {"name": "replace"},
        "spec": {"anyVersion": true, "namespaces": ["*"],
            "reads": [{"apiVersion": "v1", "kind": "Pod", "fields": ["/status/conditions"]}],
            "writes": [{"verb": "evict", "apiVersion": "v1", "kind": "Pod"},
                {"verb": "metadata", "apiVersion": "v1", "kind": "Pod", "labels": ["mark"], "finalizers": ["f.io/f"]}]}});
    for (field, rules) in [("reads", reads), ("writes", writes)] {
        grant["spec"][field].as_array_mut().unwrap().extend(rules.iter().cloned());
        let asked = rules.iter().cloned().map(|mut rule| {
            rule["reason"] = json!("r");
            rule
        });
        manifest[field].as_array_mut().unwrap().extend(asked);
    }
    let relations = vec![Relation { name: "successors".into(), kind: Kind::pod(), by: RelationKey::SameController }];
    PluginLookup::Serving(Arc::new(PluginInfo {
        manifest: Manifest::parse(manifest.to_string().as_bytes()).unwrap(),
        grant: Grant::parse(&grant).unwrap(),
        registration: Registration { relations, exclusive_extras: vec!["NewPod".into()] },
        digest: "sha256:1".into(),
    }))
}

/// Returns a plugin that cordons, taints, labels and drains nodes.
pub(crate) fn node_plugin() -> PluginLookup {
    let rule = |verb: &str| json!({"verb": verb, "apiVersion": "v1", "kind": "Node", "reason": "r"});
    let mut writes = ["schedulable", "taint", "metadata", "drain"].map(rule);
    writes[2]["labels"] = json!(["mark"]);
    let pods = json!(["/spec/nodeName", "/spec/volumes", "/status/phase"]);
    let reads = json!([{"apiVersion": "v1", "kind": "Node", "fields": ["/status/conditions"], "reason": "r"},
        {"apiVersion": "v1", "kind": "Pod", "fields": pods, "reason": "r"}]);
    let manifest = json!({"schema": 1, "name": "reboot", "version": "0.1.0", "action": "Reboot", "target": ["Node"],
        "reads": reads, "writes": writes});
    let grant = json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "ActionPlugin", "metadata": {"name": "reboot"},
        "spec": {"anyVersion": true, "namespaces": ["*"], "reads": reads, "writes": writes}});
    PluginLookup::Serving(Arc::new(PluginInfo {
        manifest: Manifest::parse(manifest.to_string().as_bytes()).unwrap(),
        grant: Grant::parse(&grant).unwrap(),
        registration: Registration::default(),
        digest: "sha256:2".into(),
    }))
}

/// Returns `node_plugin`, which also runs tasks on nodes.
pub(crate) fn task_plugin() -> PluginLookup {
    let PluginLookup::Serving(info) = node_plugin() else { panic!("it serves") };
    let mut info = PluginInfo::clone(&info);
    let rule = |name: &str| TaskRule { name: name.into(), reason: "r".into(), ..TaskRule::default() };
    let (host_paths, capabilities) = (vec!["/opt".into(), "/var/log".into()], vec!["DAC_READ_SEARCH".into()]);
    let check = TaskRule { host_paths, capabilities, ..rule("check-pod") };
    let (builtins, scripts) = (vec!["reboot".into()], ScriptRule::Any);
    let tasks = [TaskRule { builtins, scripts, ..rule("run-on-node") }, check];
    info.manifest.tasks = tasks.to_vec();
    info.grant.tasks = tasks.to_vec();
    PluginLookup::Serving(info.into())
}

/// Returns the usual plugin, which also commits containers of its pods.
pub(crate) fn committing_plugin() -> PluginLookup {
    let PluginLookup::Serving(info) = plugin() else { panic!("it serves") };
    let mut info = PluginInfo::clone(&info);
    let (name, builtins, reason) = ("run-on-node".into(), vec!["commit".into()], "r".into());
    let commit = TaskRule { name, builtins, reason, ..TaskRule::default() };
    info.manifest.tasks = vec![commit.clone()];
    info.grant.tasks = vec![commit];
    PluginLookup::Serving(info.into())
}

/// Returns the usual plugin, whose targets go through the PodOpsLifecycle.
pub(crate) fn plugin_in_lifecycle(lifecycle: Lifecycle) -> PluginLookup {
    let PluginLookup::Serving(info) = plugin() else { panic!("it serves") };
    let mut info = PluginInfo::clone(&info);
    info.manifest.lifecycle = lifecycle;
    PluginLookup::Serving(info.into())
}
