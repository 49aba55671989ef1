//! A cluster in memory that this process serves, and a folder from which `oarlock plan` reads it.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Output;
use std::sync::Arc;

use anyhow::Context as _;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use oarlock_scenarios::components::component;
use oarlock_scenarios::host_process::host_binary;
use oarlock_sim::{Cluster, Options, RealClock};
use oarlock_support::install::{self, Way};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// The API version of jobs.
const JOBS: &str = "apps.kusionstack.io/v1alpha1";

/// The cluster and the folder, whose kubeconfig has the address of the cluster. The folder is removed when this value is dropped.
pub(crate) struct Planned {
    pub(crate) client: Client,
    folder: PathBuf,
    address: String,
}

impl Planned {
    /// Starts a cluster with the host's manifests and makes a folder with this plugin and these grants.
    pub(crate) async fn new(name: &str, plugin: &str, grants: &str) -> anyhow::Result<Self> {
        let cluster = Cluster::new(Options { clock: Arc::new(RealClock), ..Options::default() });
        let client = Client::new(cluster.service(), "default");
        install::install(&client, &install::documents(&oarlock::manifests()?)?, Way::CreateMissing).await?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = format!("http://{}", listener.local_addr()?);
        tokio::spawn(async move { cluster.serve(listener).await });
        let folder = std::env::temp_dir().join(format!("oarlock-plan-{}-{name}", std::process::id()));
        std::fs::create_dir_all(folder.join("plugins"))?;
        std::fs::write(folder.join("plugins").join(format!("{plugin}.wasm")), component(plugin)?)?;
        let planned = Self { client, folder, address };
        planned.grant(grants)?;
        Ok(planned)
    }

    pub(crate) fn grant(&self, grants: &str) -> anyhow::Result<()> {
        Ok(std::fs::write(self.folder.join("grants.yaml"), grants)?)
    }

    /// Creates or changes these objects.
    pub(crate) async fn put(&self, objects: &[Value]) -> anyhow::Result<()> {
        install::install(&self.client, objects, Way::Apply).await
    }

    /// Creates a job with this status and returns its UID.
    pub(crate) async fn put_job(
        &self,
        (namespace, name): (&str, &str),
        spec: Value,
        status: Value,
    ) -> anyhow::Result<String> {
        let job = json!({"apiVersion": JOBS, "kind": "OperationJob",
            "metadata": {"name": name, "namespace": namespace}, "spec": spec});
        self.put(&[job]).await?;
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("apps.kusionstack.io", "v1alpha1", "OperationJob"));
        let jobs: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        let status = Patch::Merge(json!({ "status": status }));
        let stored = jobs.patch_status(name, &PatchParams::default(), &status).await?;
        stored.metadata.uid.context("a UID")
    }

    /// Runs `oarlock plan` for a job of this name and spec in namespace `default`, as the administrator or as a user.
    pub(crate) async fn output(
        &self,
        user: Option<&str>,
        (name, spec): (&str, &Value),
        more: &[&str],
    ) -> anyhow::Result<Output> {
        let job = json!({"apiVersion": JOBS, "kind": "OperationJob", "metadata": {"name": name}, "spec": spec});
        std::fs::write(self.folder.join("job.json"), job.to_string())?;
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": self.address}}],
            "users": [{"name": "u", "user": user.map_or_else(|| json!({}), |user| json!({"as": user}))}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]});
        std::fs::write(self.folder.join("kubeconfig"), config.to_string())?;
        let mut command = tokio::process::Command::new(host_binary()?);
        command.current_dir(&self.folder).env("HOME", &self.folder).env("KUBECONFIG", self.folder.join("kubeconfig"));
        command.env("XDG_CACHE_HOME", self.folder.join("cache")).args(["plan", "job.json", "--plugins", "plugins"]);
        command.args(more).kill_on_drop(true).output().await.context("oarlock does not run")
    }

    /// Returns the plan as a JSON document.
    pub(crate) async fn plan(&self, user: Option<&str>, job: (&str, &Value), more: &[&str]) -> anyhow::Result<Value> {
        let all: Vec<&str> = more.iter().copied().chain(["-o", "json"]).collect();
        let output = self.output(user, job, &all).await?;
        let errors = String::from_utf8_lossy(&output.stderr);
        serde_json::from_slice(&output.stdout).with_context(|| errors.into_owned())
    }
}

impl Drop for Planned {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.folder).is_ok();
    }
}
