//! Creates workloads for a scenario. Existing ones are left unchanged, so a scenario can run again on a server that is
//! kept.

use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::sets::{SetKey, SetKind};
use super::writer::is_already_there;

/// An object was not accepted.
#[derive(Debug, thiserror::Error)]
#[error("failed to create {kind} {name}")]
pub struct SeedFailed {
    /// The object's kind.
    pub kind: String,
    /// The object's name.
    pub name: String,
    /// The server's answer.
    #[source]
    pub source: kube::Error,
}

/// A namespace in which workloads are planted.
#[derive(Clone)]
pub struct Seedbed {
    client: Client,
    namespace: String,
    grace: Option<i64>,
    containers: Vec<String>,
}

impl Seedbed {
    /// Creates the namespace, and the account that admission demands of its pods.
    ///
    /// # Errors
    /// `SeedFailed` if the server refuses either.
    pub async fn namespace(client: Client, name: &str) -> Result<Self, SeedFailed> {
        let seedbed = Self { client, namespace: name.to_owned(), grace: None, containers: vec!["app".into()] };
        let namespaces = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Namespace"));
        let api = Api::all_with(seedbed.client.clone(), &namespaces);
        create(&api, DynamicObject::new(name, &namespaces)).await?;
        let accounts = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ServiceAccount"));
        let api = Api::namespaced_with(seedbed.client.clone(), name, &accounts);
        create(&api, DynamicObject::new("default", &accounts)).await?;
        Ok(seedbed)
    }

    /// The same namespace, for workloads whose pods get so many seconds to stop.
    #[must_use]
    pub fn with_grace(&self, seconds: i64) -> Self {
        Self { grace: Some(seconds), ..self.clone() }
    }

    /// The same namespace, for workloads whose pods have these containers.
    #[must_use]
    pub fn with_containers(&self, names: &[&str]) -> Self {
        Self { containers: names.iter().map(|name| (*name).to_owned()).collect(), ..self.clone() }
    }

    /// A CollaSet, such as `foo`.
    ///
    /// # Errors
    /// `SeedFailed` if the server refuses it.
    pub async fn collaset(&self, name: &str, replicas: usize) -> Result<SetKey, SeedFailed> {
        self.set(SetKind::CollaSet, name, replicas).await
    }

    /// A Deployment, such as `web`.
    ///
    /// # Errors
    /// `SeedFailed` if the server refuses it.
    pub async fn deployment(&self, name: &str, replicas: usize) -> Result<SetKey, SeedFailed> {
        self.set(SetKind::Deployment, name, replicas).await
    }

    /// A StatefulSet, such as `db`.
    ///
    /// # Errors
    /// `SeedFailed` if the server refuses it.
    pub async fn stateful_set(&self, name: &str, replicas: usize) -> Result<SetKey, SeedFailed> {
        self.set(SetKind::StatefulSet, name, replicas).await
    }

    /// A ReplicaSet without a Deployment.
    ///
    /// # Errors
    /// `SeedFailed` if the server refuses it.
    pub async fn replica_set(&self, name: &str, replicas: usize) -> Result<SetKey, SeedFailed> {
        self.set(SetKind::ReplicaSet, name, replicas).await
    }

    /// A pod without a controller.
    ///
    /// # Errors
    /// `SeedFailed` if the server refuses it.
    pub async fn bare_pod(&self, name: &str) -> Result<(), SeedFailed> {
        let pods = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod"));
        let spec = self.pod_template(name).get("spec").cloned().unwrap_or_default();
        let mut object = DynamicObject::new(name, &pods).data(json!({ "spec": spec }));
        object.metadata.namespace = Some(self.namespace.clone());
        create(&Api::namespaced_with(self.client.clone(), &self.namespace, &pods), object).await
    }

    /// A small pod; nothing pulls its image.
    fn pod_template(&self, app: &str) -> Value {
        let container = |name: &String| json!({ "name": name, "image": "registry.k8s.io/pause:3.10" });
        let containers: Vec<Value> = self.containers.iter().map(container).collect();
        let mut spec = json!({ "automountServiceAccountToken": false, "containers": containers });
        if let (Some(seconds), Some(fields)) = (self.grace, spec.as_object_mut()) {
            fields.insert("terminationGracePeriodSeconds".to_owned(), seconds.into());
        }
        json!({ "metadata": { "labels": { "app": app } }, "spec": spec })
    }

    async fn set(&self, kind: SetKind, name: &str, replicas: usize) -> Result<SetKey, SeedFailed> {
        let resource = kind.resource();
        let mut spec = json!({
            "replicas": replicas,
            "selector": { "matchLabels": { "app": name } },
            "template": self.pod_template(name),
        });
        if let (SetKind::StatefulSet, Some(fields)) = (kind, spec.as_object_mut()) {
            fields.insert("serviceName".to_owned(), name.into());
        }
        let mut object = DynamicObject::new(name, &resource).data(json!({ "spec": spec }));
        object.metadata.namespace = Some(self.namespace.clone());
        create(&Api::namespaced_with(self.client.clone(), &self.namespace, &resource), object).await?;
        Ok(SetKey::new(kind, self.namespace.clone(), name))
    }
}

async fn create(api: &Api<DynamicObject>, object: DynamicObject) -> Result<(), SeedFailed> {
    match api.create(&PostParams::default(), &object).await {
        Err(source) if !is_already_there(&source) => Err(SeedFailed {
            kind: object.types.map(|types| types.kind).unwrap_or_default(),
            name: object.metadata.name.unwrap_or_default(),
            source,
        }),
        Ok(_) | Err(_) => Ok(()),
    }
}
