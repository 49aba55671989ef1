//! Puts manifests on a cluster, as `kubectl apply --server-side` does.
//!
//! Takes a client and YAML or JSON documents; yields once they are stored, their CRDs are served and the admission policies
//! of our own kinds are in force, which is seen by asking and not by waiting. It may not change a document.

use std::time::Duration;

use anyhow::{Context as _, bail};
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use tokio::time::Instant;

/// Applied by this field manager.
const MANAGER: &str = "oarlock-install";

/// A CRD is served within a second or so, a policy is in force 1-2 s after it was applied; a busy machine takes longer.
const IN_FORCE_WITHIN: Duration = Duration::from_secs(60);

const ASK_EVERY: Duration = Duration::from_millis(50);

/// `y` and `no` are words in Kubernetes manifests, not truth values.
pub(crate) fn yaml_1_2() -> serde_saphyr::Options {
    serde_saphyr::options! { strict_booleans: true }
}

/// Reads documents as `oarlock manifests` prints them: several YAML documents, or JSON.
///
/// # Errors
///
/// Fails if the text is not YAML.
pub fn documents(text: &str) -> anyhow::Result<Vec<Value>> {
    let all: Vec<Value> =
        serde_saphyr::from_multiple_with_options(text, yaml_1_2()).context("the manifests are not YAML")?;
    let mut flat = Vec::new();
    for document in all {
        match document.get("items").and_then(Value::as_array) {
            Some(items) => flat.extend(items.iter().cloned()),
            None if document.is_null() => {}
            None => flat.push(document),
        }
    }
    Ok(flat)
}

/// How documents get there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By server-side apply, as an operator does it; what is there is changed.
    Apply,
    /// By create; what is there stays as it is.
    CreateMissing,
}

/// Puts `documents` there in the order in which they can work: namespaces, CRDs, and the others once the CRDs are served.
///
/// # Errors
///
/// Names the document that was refused, or what is not in force in time.
pub async fn install(client: &kube::Client, documents: &[Value], way: Way) -> anyhow::Result<()> {
    let rank = |document: &Value| match kind(document) {
        "Namespace" => 0,
        "CustomResourceDefinition" => 1,
        _ => 2,
    };
    for wanted in 0..3 {
        for document in documents.iter().filter(|document| rank(document) == wanted) {
            match way {
                Way::Apply => apply(client, document).await.map(|_| ())?,
                Way::CreateMissing => create_missing(client, document).await?,
            }
        }
        for crd in documents.iter().filter(|document| wanted == 1 && rank(document) == 1) {
            wait_until_served(client, crd).await?;
        }
    }
    let policies = documents.iter().filter(|document| kind(document) == "ValidatingAdmissionPolicy");
    for (path, probe, words) in policies.filter_map(|policy| refused_by(name(policy))) {
        wait_until_refused(client, path, &probe, words).await?;
    }
    Ok(())
}

/// Applies one document with server-side apply and yields what the server stored.
///
/// # Errors
///
/// Fails if the server does not know the kind or refuses the object.
pub async fn apply(client: &kube::Client, document: &Value) -> anyhow::Result<DynamicObject> {
    let described = || format!("cannot apply {} {}", kind(document), name(document));
    let parameters = PatchParams::apply(MANAGER).force();
    let api = api_for(client, document).await.with_context(described)?;
    api.patch(name(document), &parameters, &Patch::Apply(document)).await.with_context(described)
}

/// Asks the server to delete documents, the last one first. What is gone already is left alone, and nothing is waited for.
///
/// # Errors
///
/// Names the document that the server does not delete.
pub async fn remove(client: &kube::Client, documents: &[Value]) -> anyhow::Result<()> {
    for document in documents.iter().rev() {
        let described = || format!("cannot delete {} {}", kind(document), name(document));
        let api = api_for(client, document).await.with_context(described)?;
        match api.delete(name(document), &DeleteParams::background()).await {
            Err(kube::Error::Api(status)) if status.reason == "NotFound" => {}
            outcome => drop(outcome.with_context(described)?),
        }
    }
    Ok(())
}

async fn create_missing(client: &kube::Client, document: &Value) -> anyhow::Result<()> {
    let described = || format!("cannot create {} {}", kind(document), name(document));
    let object: DynamicObject = serde_json::from_value(document.clone()).with_context(described)?;
    match api_for(client, document).await.with_context(described)?.create(&PostParams::default(), &object).await {
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
        outcome => outcome.map(|_| ()).with_context(described),
    }
}

/// Asks the server how the kind of a document is called in paths.
async fn api_for(client: &kube::Client, document: &Value) -> anyhow::Result<Api<DynamicObject>> {
    let object: DynamicObject = serde_json::from_value(document.clone()).context("it is no Kubernetes object")?;
    let types = object.types.context("it names no apiVersion and kind")?;
    let gvk = GroupVersionKind::try_from(&types).context("its apiVersion cannot be read")?;
    let (resource, _) =
        kube::discovery::pinned_kind(client, &gvk).await.context("the server does not serve its kind")?;
    Ok(match object.metadata.namespace.as_deref() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    })
}

/// Waits until a dry-run create of `object` at `path` is refused with a message that contains `words`.
///
/// # Errors
///
/// Fails if it is still accepted, or refused for another reason, after a minute.
pub async fn wait_until_refused(client: &kube::Client, path: &str, object: &Value, words: &str) -> anyhow::Result<()> {
    let deadline = Instant::now() + IN_FORCE_WITHIN;
    let mut last = String::new();
    while Instant::now() < deadline {
        let request = http::Request::post(format!("{path}?dryRun=All"))
            .header("content-type", "application/json")
            .body(object.to_string().into_bytes())
            .context("cannot build the probing request")?;
        match client.request::<Value>(request).await {
            Err(kube::Error::Api(status)) if status.message.contains(words) => return Ok(()),
            Ok(_) => "it was accepted".clone_into(&mut last),
            Err(cause) => last = cause.to_string(),
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
    bail!("an object that must be refused with {words:?} is not, after {IN_FORCE_WITHIN:?}: {last}")
}

/// What a policy refuses once it is in force, if it is one that is waited for: path, object and words of the refusal.
fn refused_by(policy: &str) -> Option<(&'static str, Value, &'static str)> {
    let object = |api_version: &str, kind: &str, spec: Value| json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "probe"}, "spec": spec});
    Some(match policy {
        "operationjob.oarlock.dev" => (
            "/apis/apps.kusionstack.io/v1alpha1/namespaces/default/operationjobs",
            object(
                "apps.kusionstack.io/v1alpha1",
                "OperationJob",
                json!({"action": "", "targets": [{"name": "probe"}]}),
            ),
            "spec.action: required",
        ),
        "jobflow.oarlock.dev" => (
            "/apis/api.practice.com/v1alpha1/namespaces/default/jobflows",
            object("api.practice.com/v1alpha1", "JobFlow", json!({"flows": [{"name": ""}]})),
            "spec.flows[0].name: required",
        ),
        "daemonjob.oarlock.dev" => (
            "/apis/api.practice.com/v1alpha1/namespaces/default/daemonjobs",
            object("api.practice.com/v1alpha1", "DaemonJob", json!({})),
            "spec.template.spec.containers: give at least one",
        ),
        _ => return None,
    })
}

/// `Established` is said a moment before the resource is served everywhere, so the resource itself is asked for too.
async fn wait_until_served(client: &kube::Client, crd: &Value) -> anyhow::Result<()> {
    let text = |pointer: &str| crd.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let versions = crd.pointer("/spec/versions").and_then(Value::as_array).into_iter().flatten();
    let version = versions.filter_map(|version| version.get("name")?.as_str()).next().unwrap_or_default();
    let path = format!("/apis/{}/{version}/{}?limit=1", text("/spec/group"), text("/spec/names/plural"));
    let deadline = Instant::now() + IN_FORCE_WITHIN;
    loop {
        let request = http::Request::get(&path).body(Vec::new()).context("cannot build the request for a new kind")?;
        match client.request::<Value>(request).await {
            Ok(_) => return Ok(()),
            Err(cause) if Instant::now() > deadline => {
                return Err(cause).with_context(|| format!("{} is not served after {IN_FORCE_WITHIN:?}", name(crd)));
            }
            Err(_) => tokio::time::sleep(ASK_EVERY).await,
        }
    }
}

fn kind(document: &Value) -> &str {
    document.get("kind").and_then(Value::as_str).unwrap_or_default()
}

fn name(document: &Value) -> &str {
    document.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()
}
