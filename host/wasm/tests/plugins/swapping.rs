//! Swaps of one version by another: the probe of the new one, the way back after traps, and quarantine.

use oarlock_core::object::key::JobKey;
use oarlock_core::object::quota_key::QuotaKey;
use oarlock_core::plugin::trap_budget::NotedVisit;
use oarlock_wasm::{PluginState, PluginStatus, Plugins, digest};
use serde_json::json;

use crate::components::{all_of, component, found, granted, version, with_manifest};

/// Returns a version whose calls with a job always exceed a limit, and whose `setup` does not.
fn broken(version: &str) -> Vec<u8> {
    with_manifest(&component("replace"), |manifest| {
        manifest["version"] = json!(version);
        manifest["limits"]["hostCalls"] = json!(1);
    })
}

fn status(plugins: &Plugins, bytes: &[u8]) -> PluginStatus {
    let digest = digest(bytes);
    plugins.list().into_iter().find(|status| status.digest.as_deref() == Some(&digest)).unwrap()
}

/// Counts traps of this version on targets of these jobs, each `NAMESPACE/NAME`.
fn traps(plugins: &Plugins, bytes: &[u8], jobs: &[&str]) {
    for job in jobs {
        let (namespace, name) = job.split_once('/').unwrap();
        let job = JobKey { namespace: namespace.to_owned(), name: name.to_owned() };
        let owner = QuotaKey::Namespace(namespace.to_owned());
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        plugins.note_visit(&digest(bytes), NotedVisit { job: &job, owner: &owner, trapped: true, now });
    }
}

/// Five traps on targets of three jobs of two owners.
const ENOUGH: [&str; 5] = ["a/1", "a/2", "b/1", "b/1", "a/1"];

/// Waits until the version that serves is the one in these bytes.
async fn until_serves(plugins: &Plugins, bytes: &[u8]) {
    let (mut changes, wanted) = (plugins.changes(), digest(bytes));
    while found(plugins, "Replace", None).unwrap().digest != wanted {
        changes.changed().await.unwrap();
    }
}

#[tokio::test]
async fn a_version_that_fails_its_probe_does_not_replace_the_one_that_serves() {
    let plugins = granted().await;
    plugins.publish("replace.wasm", version("0.1.0")).await;
    plugins.publish("replace.wasm", broken("0.2.0")).await;
    let told = status(&plugins, &broken("0.2.0"));
    assert_eq!((told.state, told.reason.as_str()), (PluginState::Rejected, "ProbeFailed"), "{told:?}");
    assert!(told.message.contains("called the host more than 1 times"), "{}", told.message);
    assert_eq!(found(&plugins, "Replace", None).unwrap().digest, digest(&version("0.1.0")));
    plugins.publish("replace.wasm", version("0.3.0")).await;
    assert_eq!(found(&plugins, "Replace", None).unwrap().digest, digest(&version("0.3.0")));
}

#[tokio::test]
async fn the_first_version_needs_no_probe_because_nothing_else_serves() {
    let plugins = granted().await;
    plugins.publish("replace.wasm", broken("0.1.0")).await;
    assert_eq!(status(&plugins, &broken("0.1.0")).state, PluginState::Serving);
}

#[tokio::test]
async fn a_version_that_traps_for_several_users_goes_back_to_the_one_before() {
    let plugins = granted().await;
    let (old, new) = (version("0.1.0"), version("0.2.0"));
    plugins.publish("replace.wasm", old.clone()).await;
    plugins.publish("replace.wasm", new.clone()).await;
    traps(&plugins, &new, &ENOUGH);
    until_serves(&plugins, &old).await;
    let told = status(&plugins, &new);
    assert_eq!((told.state, told.reason.as_str()), (PluginState::Quarantined, "TooManyTraps"), "{told:?}");
    assert!(told.message.contains("version 0.1.0 serves for 10 minutes"), "{}", told.message);
    let bound = found(&plugins, "Replace", Some(&digest(&new))).unwrap();
    assert_eq!(bound.digest, digest(&old), "jobs that began with the quarantined version go on with the other one");
    let kept = found(&plugins, "Replace", Some(&digest(&old))).unwrap();
    assert_eq!(kept.digest, digest(&old), "jobs that began with the old version are not touched");
}

#[tokio::test]
async fn a_quarantined_version_stays_out_under_a_new_grant_and_another_digest_serves_at_once() {
    let plugins = granted().await;
    let (old, new, next) = (version("0.1.0"), version("0.2.0"), version("0.2.1"));
    plugins.publish("replace.wasm", old.clone()).await;
    plugins.publish("replace.wasm", new.clone()).await;
    traps(&plugins, &new, &ENOUGH);
    until_serves(&plugins, &old).await;
    let mut grant = all_of(&component("replace"), None);
    grant.namespaces = vec!["shop".to_owned()];
    plugins.set_grants(vec![grant]).await;
    assert_eq!(status(&plugins, &new).state, PluginState::Quarantined);
    assert_eq!(found(&plugins, "Replace", None).unwrap().grant.namespaces, ["shop"], "the grant holds for the old one");
    plugins.publish("replace.wasm", next.clone()).await;
    assert_eq!(found(&plugins, "Replace", None).unwrap().digest, digest(&next));
}

#[tokio::test]
async fn a_version_without_one_before_it_serves_on_whatever_it_does() {
    let plugins = granted().await;
    let only = version("0.1.0");
    plugins.publish("replace.wasm", only.clone()).await;
    traps(&plugins, &only, &ENOUGH);
    // A swap after the traps shows that they have been handled.
    tokio::task::yield_now().await;
    plugins.set_grants(vec![all_of(&component("replace"), None)]).await;
    assert_eq!(status(&plugins, &only).state, PluginState::Serving);
}
