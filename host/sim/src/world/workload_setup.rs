//! Creates workloads for a scenario. Existing workloads stay unchanged, so a scenario can run again on the same
//! server.

use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::sets::{SetKey, SetKind};
use super::writer::is_already_there;

/// The API server refused to create an object.
#[derive(Debug, thiserror::Error)]
#[error("failed to create {kind} {name}")]
pub struct SeedFailed {
    /// Kind of the object.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// The API server's error.
    #[source]
    pub source: kube::Error,
}

/// A namespace in which a scenario creates workloads.
#[derive(Clone)]
pub struct Seedbed {
    client: Client,
    namespace: String,
    grace: Option<i64>,
    containers: Vec<String>,
}

impl Seedbed {
    /// Creates the namespace, and the ServiceAccount that admission requires for its pods.
    ///
    /// # Errors
    /// If the API server refuses the namespace or the ServiceAccount.
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

    /// Returns the same namespace for workloads whose pods have this grace period in seconds.
    #[must_use]
    pub fn with_grace(&self, seconds: i64) -> Self {
        Self { grace: Some(seconds), ..self.clone() }
    }

    /// Returns the same namespace for workloads whose pods have these containers.
    #[must_use]
    pub fn with_containers(&self, names: &[&str]) -> Self {
        Self { containers: names.iter().map(|name| (*name).to_owned()).collect(), ..self.clone() }
    }

    /// Creates a CollaSet, such as `foo`.
    ///
    /// # Errors
    /// If the API server refuses the CollaSet.
    pub async fn collaset(&self, name: &str, replicas: usize) -> Result<SetKey, SeedFailed> {
        self.set(SetKind::CollaSet, name, replicas).await
    }

    /// Creates a Deployment, such as `web`.
    ///
    /// # Errors
    /// If the API server refuses the Deployment.
    pub async fn deployment(&self, name: &str, replicas: usize) -> Result<SetKey, SeedFailed> {
        self.set(SetKind::Deployment, name, replicas).await
    }

    /// Creates a StatefulSet, such as `db`.
    ///
    /// # Errors
    /// If the API server refuses the StatefulSet.
    pub async fn stateful_set(&self, name: &str, replicas: usize) -> Result<SetKey, SeedFailed> {
        self.set(SetKind::StatefulSet, name, replicas).await
    }

    /// Creates a ReplicaSet without a Deployment.
    ///
    /// # Errors
    /// If the API server refuses the ReplicaSet.
    pub async fn replica_set(&self, name: &str, replicas: usize) -> Result<SetKey, SeedFailed> {
        self.set(SetKind::ReplicaSet, name, replicas).await
    }

    /// Creates a pod without a controller.
    ///
    /// # Errors
    /// If the API server refuses the pod.
    pub async fn bare_pod(&self, name: &str) -> Result<(), SeedFailed> {
        let pods = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod"));
        let spec = self.pod_template(name).get("spec").cloned().unwrap_or_default();
        let mut object = DynamicObject::new(name, &pods).data(json!({ "spec": spec }));
        object.metadata.namespace = Some(self.namespace.clone());
        create(&Api::namespaced_with(self.client.clone(), &self.namespace, &pods), object).await
    }

    /// Returns the template of a small pod. No kubelet pulls its image.
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
