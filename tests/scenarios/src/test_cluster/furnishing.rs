//! Installs the manifests that `oarlock manifests` prints, and plugins, before a scenario begins.
//!
//! Takes an empty cluster; yields a cluster with CRDs, policies and roles. May change the manifests only to separate
//! scenarios that share a control plane.

use std::sync::{Arc, OnceLock};

use kube::Client;
use oarlock::manifests::{GrantedAccess, PodPolicies, flow_manifests, manifests_with};
use oarlock_support::accounts::Account;
use oarlock_support::control_plane::{self, ControlPlane};
use oarlock_support::install::{self, Way};
use oarlock_wasm::Plugins;
use serde_json::{Value, json};

use crate::components::{GRANTS, RESTART_GRANTS};

/// Compiles these components and publishes them with these grants. Clones share the compiled code, so many hosts, one after
/// the other, cost one compilation.
///
/// # Errors
/// If the engine does not start, or if the grants cannot be parsed.
pub async fn published(components: &[Vec<u8>], grants: &str) -> anyhow::Result<Plugins> {
    let plugins = Plugins::start(oarlock_wasm::Options::in_memory()).await?;
    plugins.set_grants(oarlock_wasm::parse_grants(grants)?).await;
    for (number, bytes) in components.iter().enumerate() {
        plugins.publish(&format!("plugin-{number}"), bytes.clone()).await;
    }
    Ok(plugins)
}

/// Starts a real control plane and installs everything that `oarlock manifests` prints.
///
/// # Errors
/// If the control plane cannot be built or started. The test fails then and is never skipped.
pub async fn real_plane(options: control_plane::Options) -> anyhow::Result<Arc<ControlPlane>> {
    let plane = control_plane::start(options).await?;
    let client = plane.client(Account::Admin).await?;
    furnish(&client, Way::Apply).await?;
    furnish_flows(&client, Way::Apply).await?;
    Ok(Arc::new(plane))
}

/// The label of namespaces that the admission policy ignores, so that a scenario can store objects from before the policy.
pub(super) const UNCHECKED: &str = "scenarios.test/unchecked";

pub(super) async fn furnish(client: &Client, way: Way) -> anyhow::Result<()> {
    static DOCUMENTS: OnceLock<Vec<Value>> = OnceLock::new();
    install::install(client, once(&DOCUMENTS, usual)?, way).await
}

/// Returns the manifests, which are read once for all rigs. Reading them takes as long as a short scenario.
fn once(
    place: &'static OnceLock<Vec<Value>>,
    read: impl FnOnce() -> anyhow::Result<Vec<Value>>,
) -> anyhow::Result<&'static [Value]> {
    if place.get().is_none() {
        let _ = place.set(read()?);
    }
    Ok(place.get().map(Vec::as_slice).unwrap_or_default())
}

fn usual() -> anyhow::Result<Vec<Value>> {
    let grants = oarlock_wasm::parse_grants(&format!("{GRANTS}---\n{RESTART_GRANTS}"))?;
    let access = GrantedAccess::of(grants);
    let mut documents = install::documents(&manifests_with(&access, PodPolicies::USUAL)?)?;
    for document in &mut documents {
        if document.get("kind").and_then(Value::as_str) == Some("ValidatingAdmissionPolicyBinding")
            && let Some(spec) = document.get_mut("spec").and_then(Value::as_object_mut)
        {
            let spared = json!({"matchExpressions": [{"key": UNCHECKED, "operator": "DoesNotExist"}]});
            spec.insert("matchResources".to_owned(), json!({"namespaceSelector": spared}));
        }
    }
    Ok(documents)
}

/// Installs the CRDs and roles of JobFlow, JobTemplate and DaemonJob.
pub(crate) async fn furnish_flows(client: &Client, way: Way) -> anyhow::Result<()> {
    static DOCUMENTS: OnceLock<Vec<Value>> = OnceLock::new();
    install::install(client, once(&DOCUMENTS, || install::documents(&flow_manifests()?))?, way).await
}

/// Allows the hosts of a scenario to use their own lease. The role in the manifests names only one lease.
pub(super) async fn may_lead(client: &Client, namespace: &str) -> anyhow::Result<()> {
    let lease = lease_name(namespace);
    let is_hosts = |document: &Value| document.pointer("/metadata/name").is_some_and(|name| name == "oarlock");
    for mut document in install::documents(&oarlock::manifests()?)?.into_iter().filter(is_hosts) {
        let kind = document.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut put = |pointer: &str| document.pointer_mut(pointer).map(|found| *found = json!(lease)).is_some();
        let named = match kind.as_str() {
            "Role" => put("/metadata/name") && put("/rules/0/resourceNames/0"),
            "RoleBinding" => put("/metadata/name") && put("/roleRef/name"),
            _ => continue,
        };
        anyhow::ensure!(named, "the {kind} of the lease has another shape");
        install::apply(client, &document).await?;
    }
    Ok(())
}

/// Returns the name of the lease of a scenario's hosts.
pub(crate) fn lease_name(namespace: &str) -> String {
    format!("oarlock-{namespace}")
}

/// Returns the namespace of a scenario's tasks. Scenarios that share a control plane have one each.
pub(crate) fn tasks_namespace(namespace: &str) -> String {
    format!("{namespace}-tasks")
}
