//! The election of the plugin that serves: versions, grants and the jobs that are bound to a digest.

use oarlock_core::plugin::grant::Grant;
use oarlock_wasm::{PluginState, Plugins, Unavailable, digest};
use serde_json::json;

use crate::components::{all_of, component, found, options, with_manifest};

fn version(version: &str) -> Vec<u8> {
    with_manifest(&component("replace"), |manifest| manifest["version"] = json!(version))
}

async fn granted() -> Plugins {
    let plugins = Plugins::start(options()).await.unwrap();
    plugins.set_grants(vec![all_of(&component("replace"), None)]).await;
    plugins
}

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
async fn a_grant_that_comes_later_serves_at_once() {
    let plugins = Plugins::start(options()).await.unwrap();
    plugins.publish("replace.wasm", component("replace")).await;
    let mut changes = plugins.changes();
    changes.mark_unchanged();
    plugins.set_grants(vec![all_of(&component("replace"), None)]).await;
    assert!(changes.has_changed().unwrap());
    assert!(found(&plugins, "Replace", None).is_ok());
}

#[tokio::test]
async fn a_plugin_that_asks_for_more_than_its_grant_waits_and_its_predecessor_serves_on() {
    let plugins = granted().await;
    plugins.publish("replace.wasm", version("0.1.0")).await;
    let greedy = with_manifest(&component("replace"), |manifest| {
        manifest["version"] = json!("0.2.0");
        manifest["tasks"] = json!([{"name": "run-on-node", "reason": "to look around"}]);
    });
    let status = plugins.publish("replace.wasm", greedy).await.unwrap();
    assert_eq!(status.missing, ["tasks: [{name: run-on-node}]"]);
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
async fn of_two_that_claim_one_version_neither_new_one_serves() {
    let other = with_manifest(&component("replace"), |manifest| manifest["description"] = json!("another"));
    let plugins = granted().await;
    plugins.publish("a.wasm", component("replace")).await;
    let status = plugins.publish("b.wasm", other.clone()).await.unwrap();
    assert_eq!(status.reason, "ActionTaken");
    assert_eq!(found(&plugins, "Replace", None).unwrap().digest, digest(&component("replace")));
    plugins.withdraw("a.wasm").await;
    assert_eq!(found(&plugins, "Replace", None).unwrap().digest, digest(&other));
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
async fn a_broken_successor_does_not_end_the_one_that_serves() {
    let plugins = granted().await;
    plugins.publish("replace.wasm", version("0.1.0")).await;
    let status = plugins.publish("replace.wasm", b"\0asm".to_vec()).await.unwrap();
    assert_eq!(status.reason, "Truncated");
    assert!(found(&plugins, "Replace", None).is_ok());
}

#[tokio::test]
async fn an_unknown_action_names_those_that_are_served() {
    let plugins = granted().await;
    plugins.publish("replace.wasm", component("replace")).await;
    assert!(found(&plugins, "Restart", None).unwrap_err().contains("Replace (replace 0.1.0)"));
}

#[tokio::test]
async fn a_configuration_that_does_not_fit_the_schema_is_refused() {
    let plugins = Plugins::start(options()).await.unwrap();
    plugins.set_grants(vec![all_of(&component("replace"), Some(json!({"surprise": 1})))]).await;
    let status = plugins.publish("replace.wasm", component("replace")).await.unwrap();
    assert_eq!(status.reason, "ConfigInvalid");
}

fn not_served() -> Option<Unavailable> {
    let message = "the API server does not serve CollaSet; install its CRD".to_owned();
    Some(Unavailable { reason: "KindNotServed", message })
}

fn states(plugins: &Plugins) -> Vec<(String, PluginState)> {
    plugins.list().into_iter().map(|status| (status.version.unwrap(), status.state)).collect()
}

#[tokio::test]
async fn a_plugin_whose_kind_cannot_be_listed_serves_no_job_until_it_can() {
    let plugins = granted().await;
    plugins.publish("replace.wasm", component("replace")).await;
    let digest = digest(&component("replace"));
    let declared = plugins.declared();
    plugins.set_unavailable(&digest, not_served()).await;
    for bound in [None, Some(digest.as_str())] {
        let sentence = found(&plugins, "Replace", bound).unwrap_err();
        assert_eq!(sentence, "KindNotServed: the API server does not serve CollaSet; install its CRD");
    }
    let [status] = plugins.list().try_into().unwrap();
    assert_eq!((status.state, status.reason.as_str()), (PluginState::Unavailable, "KindNotServed"));
    assert!(status.message.contains("CollaSet"), "{status:?}");
    // It stays declared, so that its kinds are listed once they can be.
    assert_eq!(plugins.declared(), declared);
    assert!(plugins.digests().contains(&digest));
    plugins.set_unavailable(&digest, None).await;
    assert!(found(&plugins, "Replace", None).is_ok());
    assert_eq!(plugins.list()[0].state, PluginState::Serving);
}

#[tokio::test]
async fn an_unavailable_plugin_leaves_others_alone() {
    let plugins = granted().await;
    let other = with_manifest(&component("replace"), |manifest| manifest["action"] = json!("Restart"));
    plugins.publish("replace.wasm", version("0.1.0")).await;
    plugins.publish("restart.wasm", other.clone()).await;
    let (old, new) = (digest(&version("0.1.0")), digest(&version("0.2.0")));
    plugins.set_unavailable(&digest(&other), not_served()).await;
    plugins.set_unavailable(&new, not_served()).await;
    assert!(found(&plugins, "Replace", None).is_ok() && found(&plugins, "Restart", None).is_err());
    // A mark of a plugin that is not there is lost.
    plugins.publish("replace.wasm", version("0.2.0")).await;
    assert_eq!(found(&plugins, "Replace", None).unwrap().digest, new);
    // Jobs that began with the replaced version go on, and the mark of it goes with it.
    plugins.set_unavailable(&new, not_served()).await;
    assert!(found(&plugins, "Replace", None).is_err());
    assert_eq!(found(&plugins, "Replace", Some(&old)).unwrap().digest, old);
    plugins.set_unavailable(&old, not_served()).await;
    assert!(found(&plugins, "Replace", Some(&old)).is_err());
    let unavailable = |version: &str| states(&plugins).contains(&(version.to_owned(), PluginState::Unavailable));
    assert!(unavailable("0.1.0") && unavailable("0.2.0"), "{:?}", plugins.list());
    plugins.set_grants(Vec::new()).await;
    assert!(!unavailable("0.1.0") && !unavailable("0.2.0"), "{:?}", plugins.list());
}

#[tokio::test]
async fn only_a_mark_that_differs_is_a_change() {
    let plugins = granted().await;
    plugins.publish("replace.wasm", component("replace")).await;
    let digest = digest(&component("replace"));
    let mut changes = plugins.changes();
    let mut changed = async |unavailable| {
        changes.mark_unchanged();
        plugins.set_unavailable(&digest, unavailable).await;
        changes.has_changed().unwrap()
    };
    assert!(!changed(None).await);
    assert!(changed(not_served()).await && !changed(not_served()).await);
    let not_ready = Unavailable { reason: "KindNotReady", message: "failed to list CollaSets; wait".to_owned() };
    assert!(changed(Some(not_ready)).await);
    assert!(changed(None).await && !changed(None).await);
}
