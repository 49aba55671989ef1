//! The two API servers, and requests to them.

use http::Method;
use kube::Client;
use oarlock_sim::{Cluster, Options as SimOptions};
use oarlock_support::accounts::Account;
use oarlock_support::control_plane::{self, ControlPlane, Options};
use oarlock_support::install::{self, Way};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// Returns a client of an in-memory cluster with the kinds and the policies.
pub(crate) async fn in_memory() -> Client {
    let client = bare_in_memory();
    add_kinds(&client).await;
    add_policies(&client).await;
    client
}

/// Returns a client of an empty in-memory cluster.
pub(crate) fn bare_in_memory() -> Client {
    Client::new(Cluster::new(SimOptions::default()).service(), "default")
}

/// Returns a client of a real API server with the kinds and the policies. All tests share the server, which ends with this process.
pub(crate) async fn real() -> Client {
    static REAL: OnceCell<ControlPlane> = OnceCell::const_new();
    let plane = REAL.get_or_try_init(|| control_plane::start(Options::default())).await.unwrap();
    let client = plane.client(Account::Admin).await.unwrap();
    add_kinds(&client).await;
    add_policies(&client).await;
    client
}

/// Starts an empty real API server for one test.
pub(crate) async fn bare_real() -> (ControlPlane, Client) {
    let plane = control_plane::start(Options::default()).await.unwrap();
    let client = plane.client(Account::Admin).await.unwrap();
    (plane, client)
}

pub(crate) async fn add_kinds(client: &Client) {
    let texts = oarlock_api::FLOW_CRDS.into_iter().chain([oarlock_api::CRDS[0]]);
    for text in texts {
        install::install(client, &install::documents(text).unwrap(), Way::CreateMissing).await.unwrap();
    }
}

pub(crate) async fn add_policies(client: &Client) {
    let documents = install::documents(oarlock_api::FLOW_ADMISSION).unwrap();
    install::install(client, &documents, Way::CreateMissing).await.unwrap();
}

/// The answer of a server: the object, or the code and message of a refusal.
pub(crate) type Answer = Result<Value, (u16, String)>;

/// Returns the path of a kind's objects in the default namespace.
pub(crate) fn path(plural: &str) -> String {
    let group = if plural == "jobrecords" { oarlock_api::OARLOCK_GROUP } else { oarlock_api::FLOW_GROUP };
    format!("/apis/{group}/v1alpha1/namespaces/default/{plural}")
}

/// Sends a request as the administrator or as the given user.
pub(crate) async fn send(client: &Client, user: Option<&str>, method: Method, path: &str, body: &Value) -> Answer {
    let content = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let mut request = http::Request::builder().method(method).uri(path).header("content-type", content);
    if let Some(user) = user {
        request = request.header("impersonate-user", user);
    }
    match client.request::<Value>(request.body(body.to_string().into_bytes()).unwrap()).await {
        Ok(object) => Ok(object),
        Err(kube::Error::Api(status)) => Err((status.code, status.message)),
        Err(other) => panic!("no answer: {other:?}"),
    }
}

/// Creates a JobFlow.
pub(crate) async fn flow(client: &Client, name: &str, spec: &Value) -> Answer {
    create(client, "jobflows", &object("JobFlow", name, spec)).await
}

/// Creates a DaemonJob.
pub(crate) async fn daemon(client: &Client, name: &str, spec: &Value) -> Answer {
    create(client, "daemonjobs", &object("DaemonJob", name, spec)).await
}

pub(crate) async fn create(client: &Client, plural: &str, object: &Value) -> Answer {
    send(client, None, Method::POST, &path(plural), object).await
}

pub(crate) async fn patch(client: &Client, place: &str, change: &Value) -> Answer {
    send(client, None, Method::PATCH, &path(place), change).await
}

pub(crate) fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": oarlock_api::FLOW_API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// Returns the spec of a Job with one container.
pub(crate) fn job() -> Value {
    json!({"template": {"spec": {"containers": [{"name": "main", "image": "none"}]}}})
}

/// Returns a step that runs [`job`] after its dependencies.
pub(crate) fn step(name: &str, dependencies: &[&str]) -> Value {
    json!({"name": name, "dependencies": dependencies, "jobTemplate": job()})
}

/// Returns a step with some fields changed. A `null` removes its field.
pub(crate) fn changed(mut step: Value, fields: Value) -> Value {
    let Value::Object(fields) = fields else { panic!("fields must be an object: {fields}") };
    for (field, value) in fields {
        if value.is_null() {
            step.as_object_mut().unwrap().remove(&field);
        } else {
            step[field] = value;
        }
    }
    step
}
