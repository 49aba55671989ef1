//! The election of the plugin that serves: versions, grants, and jobs that are bound to a digest.

use oarlock_core::plugin::grant::Grant;
use oarlock_wasm::{Options, PluginState, Plugins, digest};
use serde_json::json;

use crate::components::{all_of, component, found, granted, options, version, with_manifest};

#[tokio::test]
async fn without_a_grant_nothing_serves_and_the_missing_lines_are_named() {
    let plugins = Plugins::start(options()).await.unwrap();
    let status = plugins.publish("replace.wasm", component("replace")).await.unwrap();
    assert_eq!(status.state, PluginState::AwaitingGrant);
    assert!(status.missing.iter().any(|line| line.starts_with("writes: [{verb: evict")), "{:?}", status.missing);
    let sentence = found(&plugins, "Replace", None).unwrap_err();
    assert!(sentence.starts_with("AwaitingGrant: "), "{sentence}");
    assert!(plugins.declared().is_empty() && plugins.digests().is_empty());
}

#[tokio::test]
async fn where_all_is_granted_a_plugin_serves_without_a_grant_and_its_grant_still_configures_it() {
    let plugins = Plugins::start(Options { grant_all: true, ..options() }).await.unwrap();
    let greedy = with_manifest(&component("replace"), |manifest| {
        manifest["tasks"] = json!([{"name": "run-on-node", "scripts": true, "reason": "to look around"}]);
        manifest["config"] = json!({"type": "object"});
    });
    plugins.publish("replace.wasm", greedy).await;
    assert!(found(&plugins, "Replace", None).is_ok());
    let configured = Grant { name: "replace".to_owned(), config: Some(json!({"a": 1})), ..Grant::default() };
    plugins.set_grants(vec![configured]).await;
    assert_eq!(found(&plugins, "Replace", None).unwrap().grant.config(), json!({"a": 1}));
}

#[tokio::test]
async fn a_plugin_that_asks_for_more_than_its_grant_waits_and_its_predecessor_serves_on() {
    let plugins = granted().await;
    plugins.publish("replace.wasm", version("0.1.0")).await;
    let greedy = with_manifest(&component("replace"), |manifest| {
        manifest["version"] = json!("0.2.0");
        manifest["tasks"] = json!([{"name": "run-on-node", "scripts": true, "reason": "to look around"}]);
    });
    let status = plugins.publish("replace.wasm", greedy).await.unwrap();
    assert_eq!(status.missing, ["tasks: [{name: run-on-node, scripts: true}]"]);
    assert_eq!(found(&plugins, "Replace", None).unwrap().digest, digest(&version("0.1.0")));
}

#[tokio::test]
async fn a_grant_that_is_taken_back_stops_bound_jobs_too() {
    let plugins = granted().await;
    plugins.publish("replace.wasm", version("0.1.0")).await;
    plugins.publish("replace.wasm", version("0.2.0")).await;
    let bound = digest(&version("0.1.0"));
    assert_eq!(found(&plugins, "Replace", Some(&bound)).unwrap().digest, bound);
    plugins.set_grants(Vec::new()).await;
    assert!(found(&plugins, "Replace", Some(&bound)).is_err());
    assert!(plugins.wave(&bound).is_none());
}

#[tokio::test]
async fn a_narrower_grant_holds_for_replaced_versions_too() {
    let plugins = granted().await;
    plugins.publish("replace.wasm", version("0.1.0")).await;
    plugins.publish("replace.wasm", version("0.2.0")).await;
    let narrow = Grant { namespaces: vec!["shop".into()], ..all_of(&component("replace"), None) };
    plugins.set_grants(vec![narrow]).await;
    let bound = digest(&version("0.1.0"));
    assert_eq!(found(&plugins, "Replace", Some(&bound)).unwrap().grant.namespaces, ["shop"]);
    assert_eq!(found(&plugins, "Replace", None).unwrap().grant.namespaces, ["shop"]);
}

#[tokio::test]
async fn the_higher_version_serves_and_the_other_is_told_so() {
    let plugins = granted().await;
    plugins.publish("new.wasm", version("0.10.0")).await;
    let status = plugins.publish("old.wasm", version("0.9.0")).await.unwrap();
    assert_eq!((status.state, status.reason.as_str()), (PluginState::Rejected, "ActionTaken"));
    assert_eq!(found(&plugins, "Replace", None).unwrap().manifest.version.to_string(), "0.10.0");
    plugins.withdraw("new.wasm").await;
    assert_eq!(found(&plugins, "Replace", None).unwrap().manifest.version.to_string(), "0.9.0");
}

#[tokio::test]
async fn an_action_is_served_by_the_plugin_whose_grant_comes_first_whatever_version_another_claims() {
    let taker = |version: &str| {
        with_manifest(&component("hostile"), |manifest| {
            manifest["action"] = json!("Replace");
            manifest["version"] = json!(version);
        })
    };
    let grants = [all_of(&component("replace"), None), all_of(&component("hostile"), None)];
    let serves = |plugins: &Plugins| found(plugins, "Replace", None).unwrap().manifest.name.clone();
    for version in ["99.0.0", "0.1.0"] {
        let plugins = Plugins::start(options()).await.unwrap();
        plugins.set_grants(grants.to_vec()).await;
        // The order of grants also decides if the other plugin is there first, as after a restart.
        plugins.publish("a.wasm", taker(version)).await;
        plugins.publish("replace.wasm", component("replace")).await;
        assert_eq!(serves(&plugins), "replace", "{version}");
        let told = plugins.list().into_iter().find(|status| status.source == "a.wasm").unwrap();
        assert_eq!(told.reason, "ActionTaken");
        assert!(told.message.contains("give it an action of its own"), "{}", told.message);
        plugins.set_grants(grants.iter().rev().cloned().collect()).await;
        assert_eq!(serves(&plugins), "hostile", "{version}");
    }
}

#[tokio::test]
async fn of_two_files_of_one_version_the_one_that_serves_goes_on_and_both_say_so() {
    let other = with_manifest(&component("replace"), |manifest| manifest["description"] = json!("another"));
    let plugins = granted().await;
    plugins.publish("a.wasm", component("replace")).await;
    let status = plugins.publish("b.wasm", other.clone()).await.unwrap();
    assert_eq!(status.reason, "ActionTaken");
    assert!(status.message.starts_with("a.wasm (replace 0.1.0) serves this action; this file has the same version"));
    let serves = |plugins: &Plugins| found(plugins, "Replace", None).unwrap().digest.clone();
    let told = plugins.list().into_iter().find(|status| status.source == "a.wasm").unwrap();
    assert_eq!((told.state, told.reason.as_str()), (PluginState::Serving, "SameVersion"));
    assert!(told.message.contains("b.wasm has the same version and another content"), "{}", told.message);
    assert_eq!(serves(&plugins), digest(&component("replace")));
    // A third file of a higher version is added and removed.
    plugins.publish("c.wasm", version("0.2.0")).await;
    assert_eq!(serves(&plugins), digest(&version("0.2.0")));
    plugins.withdraw("c.wasm").await;
    assert_eq!(serves(&plugins), digest(&component("replace")));
    plugins.withdraw("a.wasm").await;
    assert_eq!(serves(&plugins), digest(&other));
    // b.wasm serves now, so it keeps serving although its name sorts later.
    plugins.publish("a.wasm", component("replace")).await;
    assert_eq!(serves(&plugins), digest(&other));
}

#[tokio::test]
async fn of_two_files_of_one_version_that_come_at_once_the_first_by_name_serves_and_both_name_the_fix() {
    let other = with_manifest(&component("replace"), |manifest| manifest["description"] = json!("another"));
    let plugins = Plugins::start(options()).await.unwrap();
    plugins.set_grants(vec![all_of(&component("replace"), None), all_of(&component("hostile"), None)]).await;
    for (file, content) in [
        ("z.wasm", version("0.2.0")),
        ("b.wasm", other),
        ("a.wasm", component("replace")),
        ("c.wasm", version("0.0.1")),
        ("h.wasm", component("hostile")),
    ] {
        plugins.publish(file, content).await;
    }
    // No file of version 0.1.0 served while z.wasm was there.
    plugins.withdraw("z.wasm").await;
    let list = plugins.list();
    for (file, state, reason, named) in [
        ("a.wasm", PluginState::Serving, "SameVersion", "b.wasm has the same version"),
        (
            "b.wasm",
            PluginState::Rejected,
            "ActionTaken",
            "a.wasm (replace 0.1.0) serves this action; this file has the same version",
        ),
        (
            "c.wasm",
            PluginState::Rejected,
            "ActionTaken",
            "a.wasm (replace 0.1.0) serves this action; raise the version",
        ),
    ] {
        let status = list.iter().find(|status| status.source == file).unwrap();
        assert_eq!((status.state, status.reason.as_str()), (state, reason), "{status:?}");
        assert!(status.message.contains(named) && status.message.contains("or remove one file"), "{}", status.message);
    }
    assert_eq!(found(&plugins, "Replace", None).unwrap().digest, digest(&component("replace")));
    assert!(found(&plugins, "Hostile", None).is_ok());
    plugins.withdraw("b.wasm").await;
    let told = plugins.list().into_iter().find(|status| status.source == "a.wasm").unwrap();
    assert_eq!((told.state, told.reason.as_str()), (PluginState::Serving, "Serving"));
}

#[tokio::test]
async fn a_job_stays_on_the_digest_it_began_with_and_others_get_the_new_one() {
    let plugins = granted().await;
    let (old, new) = (version("0.1.0"), version("0.2.0"));
    plugins.publish("replace.wasm", old.clone()).await;
    plugins.publish("replace.wasm", new.clone()).await;
    assert_eq!(found(&plugins, "Replace", Some(&digest(&old))).unwrap().digest, digest(&old));
    assert_eq!(found(&plugins, "Replace", None).unwrap().digest, digest(&new));
    assert_eq!(found(&plugins, "Replace", Some("sha256:gone")).unwrap().digest, digest(&new));
    assert_eq!(plugins.digests().len(), 2);
    plugins.withdraw("replace.wasm").await;
    let refused = found(&plugins, "Replace", None).unwrap_err();
    assert!(refused.starts_with("NoPlugin: the file of its plugin was removed: "), "{refused}");
    assert!(found(&plugins, "Replace", Some(&digest(&new))).is_ok());
}

#[tokio::test]
async fn an_unknown_action_names_those_that_are_served() {
    let plugins = granted().await;
    plugins.publish("replace.wasm", component("replace")).await;
    assert!(found(&plugins, "Restart", None).unwrap_err().contains("Replace (replace 0.1.0)"));
}

/// Returns the next version of the plugin, which asks for more.
fn greedier() -> Vec<u8> {
    with_manifest(&version("0.2.0"), |manifest| {
        let label = json!({"verb": "metadata", "apiVersion": "v1", "kind": "Pod", "labels": ["next.test/label"],
            "reason": "to have more"});
        manifest["writes"].as_array_mut().unwrap().push(label);
    })
}

#[tokio::test]
async fn a_revoked_grant_ends_the_last_good_plugin_of_a_file_too() {
    for broken in [b"\0asm".to_vec(), greedier()] {
        let plugins = granted().await;
        plugins.publish("replace.wasm", version("0.1.0")).await;
        plugins.publish("replace.wasm", broken).await;
        let old = digest(&version("0.1.0"));
        assert_eq!(found(&plugins, "Replace", None).unwrap().digest, old);
        let mut less = all_of(&component("replace"), None);
        less.writes.clear();
        plugins.set_grants(vec![less]).await;
        assert!(found(&plugins, "Replace", Some(&old)).is_err(), "it goes on under the grant that was revoked");
    }
}

#[tokio::test]
async fn a_grant_for_the_next_version_does_not_interrupt_the_present_one() {
    let next = greedier();
    let plugins = granted().await;
    plugins.publish("replace.wasm", version("0.1.0")).await;
    let status = plugins.publish("replace.wasm", next.clone()).await.unwrap();
    assert_eq!(status.state, PluginState::AwaitingGrant, "{status:?}");
    let mut grant = all_of(&component("replace"), None);
    grant.namespaces = vec!["shop".into()];
    plugins.set_grants(vec![grant.clone()]).await;
    assert_eq!(found(&plugins, "Replace", None).unwrap().grant.namespaces, ["shop"]);
    grant.writes = all_of(&next, None).writes;
    plugins.set_grants(vec![grant]).await;
    assert_eq!(found(&plugins, "Replace", None).unwrap().digest, digest(&next));
}
