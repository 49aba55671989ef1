//! Installs manifests on a cluster, as `kubectl apply --server-side` does.
//!
//! An installation ends once the documents are stored, their CRDs are served and the admission policies of Oarlock's kinds are in
//! force. It checks this by probing requests, not by a fixed wait. It does not change a document.

use std::time::Duration;

use anyhow::{Context as _, bail};
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use tokio::time::Instant;

/// The field manager of all applied documents.
const MANAGER: &str = "oarlock-install";

/// How long a document may take until it is in force. A CRD needs about a second, a policy 1-2 s; a busy machine takes longer.
const IN_FORCE_WITHIN: Duration = Duration::from_secs(60);

const ASK_EVERY: Duration = Duration::from_millis(50);

/// Returns YAML 1.2 options: `y` and `no` are strings in Kubernetes manifests, not booleans.
#[must_use]
pub fn yaml_1_2() -> serde_saphyr::Options {
    serde_saphyr::options! { strict_booleans: true }
}

/// Reads documents as `oarlock manifests` prints them: several YAML documents, or JSON.
///
/// # Errors
///
/// If the text is not YAML.
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

/// How documents are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By server-side apply, as an operator does it. An existing object is changed.
    Apply,
    /// By create. An existing object stays unchanged.
    CreateMissing,
}

/// Installs `documents` in the order in which they can work: namespaces, CRDs, and the others once the CRDs are served.
///
/// # Errors
///
/// If the server refuses a document, or a document is not in force in time. The error names the document.
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

/// Applies one document by server-side apply and returns the stored object.
///
/// # Errors
///
/// If the server does not know the kind or refuses the object.
pub async fn apply(client: &kube::Client, document: &Value) -> anyhow::Result<DynamicObject> {
    let described = || format!("cannot apply {} {}", kind(document), name(document));
    let parameters = PatchParams::apply(MANAGER).force();
    let api = api_for(client, document).await.with_context(described)?;
    api.patch(name(document), &parameters, &Patch::Apply(document)).await.with_context(described)
}

/// Deletes documents, the last one first. It ignores missing documents and does not wait for the end of a deletion.
///
/// # Errors
///
/// If the server does not delete a document. The error names the document.
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

/// Returns the API for the kind of a document. It asks the server for the plural name of the kind.
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
/// If the server still accepts the object, or refuses it for another reason, after a minute.
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

/// Returns a probe for a policy: path, object and words of the refusal. Returns `None` for a policy without a probe.
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

/// Waits until the server serves the kind of a CRD. The condition `Established` comes a moment before, so this requests the
/// resource itself.
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
