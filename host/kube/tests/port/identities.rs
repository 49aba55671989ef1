//! Writes as the account of a plugin: the header, the rights that are missing, and the number of requests.

use std::collections::BTreeSet;

use http::Method;
use oarlock_core::requests::writes::{BatchResult, Lacking, MadeAs, PluginAccount, Stopped, Write, WriteBatch};
use oarlock_kube::lease::fence::Fence;
use oarlock_kube::send::plugin_accounts::PluginAccountSettings;
use serde_json::{Value, json};

use crate::apply::{evict, label};
use crate::fixture::{Fixture, meta};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces";

/// Sends these writes as the account `swap`, except those after the first `count`.
async fn sent(fixture: &Fixture, writes: Vec<Write>, (count, dry_run): (usize, bool)) -> BatchResult {
    let account = PluginAccount { plugin: "replace".into(), name: "swap".into() };
    let writes_of_plugin: BTreeSet<usize> = (0..count).collect();
    let made_as = (count > 0).then_some(MadeAs { account, writes: writes_of_plugin });
    let entry = WriteBatch { made_as, dry_run, ..fixture.entry(0, writes) };
    fixture.apply_entries(vec![entry], &Fence::open()).await.remove(0)
}

fn lacking(result: &BatchResult) -> Option<Lacking> {
    match &result.stopped {
        Some(Stopped::Forbidden { lacking, .. }) => Some(*lacking),
        None => None,
        other => panic!("{other:?}"),
    }
}

/// Gives an account a role with these rules in a namespace.
async fn allow(fixture: &Fixture, namespace: &str, (name, account): (&str, [&str; 2]), rules: Value) {
    let [of, account] = account;
    fixture.post(&format!("{RBAC}/{namespace}/roles"), &json!({"metadata": {"name": name}, "rules": rules})).await;
    let binding = json!({"metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "namespace": of, "name": account}]});
    fixture.post(&format!("{RBAC}/{namespace}/rolebindings"), &binding).await;
}

fn pods_patch() -> Value {
    json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}])
}

/// Returns a fixture with the pod `a` and its UID.
async fn with_pod() -> (Fixture, String) {
    let fixture = Fixture::without_pods().await;
    let uid = meta(&fixture.pod("a").await, "uid");
    fixture.post("/api/v1/namespaces", &json!({"metadata": {"name": "oarlock-plugins"}})).await;
    (fixture, uid)
}

#[tokio::test(start_paused = true)]
async fn the_rights_of_the_account_count_for_its_writes_and_those_of_the_host_for_the_rest() {
    let (fixture, uid) = with_pod().await;
    let both = || vec![label("a", &uid), evict("a", &uid, None)];
    let refused = sent(&fixture, both(), (1, false)).await;
    assert_eq!((lacking(&refused), refused.done), (Some(Lacking::PluginRight), 0));
    assert_eq!(lacking(&sent(&fixture, both(), (1, true)).await), Some(Lacking::PluginRight), "a dry run shows it too");
    allow(&fixture, "default", ("marks", ["oarlock-plugins", "swap"]), pods_patch()).await;
    let made = sent(&fixture, both(), (1, false)).await;
    assert_eq!((lacking(&made), made.done), (None, 2), "the eviction is the host's own");
    let uid = meta(&fixture.pod("b").await, "uid");
    let evicted = sent(&fixture, vec![label("b", &uid), evict("b", &uid, None)], (2, false)).await;
    assert_eq!((lacking(&evicted), evicted.done), (Some(Lacking::PluginRight), 1));
}

#[tokio::test(start_paused = true)]
async fn an_identity_costs_no_request() {
    let mut counts = Vec::new();
    for count in [0, 1] {
        let (fixture, uid) = with_pod().await;
        allow(&fixture, "default", ("marks", ["oarlock-plugins", "swap"]), pods_patch()).await;
        let before = fixture.faults.total();
        assert_eq!(sent(&fixture, vec![label("a", &uid)], (count, false)).await.done, 1);
        counts.push(fixture.faults.total() - before);
    }
    assert_eq!(counts[0], counts[1]);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_may_not_impersonate_is_told_apart_and_the_rights_of_both_are_needed() {
    let (fixture, uid) = with_pod().await;
    allow(&fixture, "default", ("marks", ["oarlock-plugins", "swap"]), pods_patch()).await;
    fixture.post("/api/v1/namespaces/default/serviceaccounts", &json!({"metadata": {"name": "host"}})).await;
    let token = fixture.post("/api/v1/namespaces/default/serviceaccounts/host/token", &json!({"spec": {}})).await;
    fixture.faults.send_token(token["status"]["token"].as_str().unwrap());
    let write = || vec![label("a", &uid)];
    assert_eq!(lacking(&sent(&fixture, write(), (1, false)).await), Some(Lacking::Impersonation));
    assert!(fixture.cluster.may_act_as("replace", "swap").await.unwrap().unwrap_err().contains("-impersonate"));
    let who = json!([{"apiGroups": ["authentication.k8s.io"], "resources": ["serviceaccounts"], "resourceNames": ["swap"],
        "verbs": ["impersonate:serviceaccount"]}]);
    allow(&fixture, "oarlock-plugins", ("who", ["default", "host"]), who).await;
    assert_eq!(fixture.cluster.may_act_as("replace", "swap").await, Ok(Ok(())));
    assert_eq!(lacking(&sent(&fixture, write(), (1, false)).await), Some(Lacking::Impersonation));
    let on = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["impersonate-on:serviceaccount:patch"]}]);
    allow(&fixture, "default", ("on", ["default", "host"]), on).await;
    assert_eq!(sent(&fixture, write(), (1, false)).await.done, 1);
    assert!(
        matches!(sent(&fixture, write(), (0, false)).await.stopped, Some(Stopped::Refused { .. })),
        "not as itself"
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_under_a_kubeconfig_that_impersonates() {
    let (fixture, uid) = with_pod().await;
    let settings = PluginAccountSettings { kubeconfig_impersonates: true, ..PluginAccountSettings::default() };
    fixture.cluster.act_as(settings);
    let refused = sent(&fixture, vec![label("a", &uid)], (1, false)).await;
    let Some(Stopped::Forbidden { lacking: Lacking::Impersonation, message }) = refused.stopped else { panic!() };
    assert!(message.contains("remove `as` from the kubeconfig"), "{message}");
    assert_eq!(fixture.faults.count(Method::PATCH, "/pods/a"), 0);
    assert_eq!(fixture.cluster.may_act_as("replace", "swap").await, Ok(Err(message)));
}
