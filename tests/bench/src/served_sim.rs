//! An in-memory cluster on a port, behind a proxy that counts writes. Both the host and the bare client use the proxy.

use std::path::PathBuf;
use std::sync::Arc;

use oarlock_support::faults::Plan;
use oarlock_support::install::{self, Way};
use oarlock_support::interception::Interceptor;
use oarlock_support::proxy::Proxy;

use crate::children::manifests;
use crate::requests::Request;

/// An in-memory cluster on a port.
pub(crate) struct ServedSim {
    /// The cluster.
    pub(crate) cluster: oarlock_sim::Cluster,
    /// The kubeconfig of the contenders.
    pub(crate) kubeconfig: PathBuf,
    proxy: Proxy,
}

impl ServedSim {
    /// Starts a cluster in real time, with everything installed.
    ///
    /// # Errors
    /// If the cluster cannot be served, or refuses an object.
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let options =
            oarlock_sim::Options { clock: Arc::new(oarlock_sim::RealClock), ..oarlock_sim::Options::default() };
        let cluster = oarlock_sim::Cluster::new(options);
        let client = kube::Client::new(cluster.service(), "default");
        install::install(&client, &manifests().await?, Way::CreateMissing).await?;
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
        let upstream = kube::Config::new(format!("http://{}", listener.local_addr()?).parse()?);
        let served = cluster.clone();
        tokio::spawn(async move { served.serve(listener).await });
        let proxy = Proxy::start(upstream, Interceptor::new(Plan::none(), &[])).await?;
        let kubeconfig = std::env::temp_dir().join(format!("oarlock-bench-{}.kubeconfig", std::process::id()));
        std::fs::write(&kubeconfig, kubeconfig_of(&proxy.url()))?;
        Ok(Self { cluster, kubeconfig, proxy })
    }

    /// Returns the number of writes that went through the proxy.
    pub(crate) fn count(&self) -> usize {
        usize::try_from(self.proxy.interceptor().count()).unwrap_or(usize::MAX)
    }

    /// Returns the writes that went through the proxy, without the first `skipped`.
    pub(crate) fn writes(&self, skipped: usize) -> Vec<Request> {
        let records = self.proxy.interceptor().records();
        let request = |write: &oarlock_support::interception::WriteRecord| Request {
            verb: verb(&write.verb),
            resource: resource(&write.path),
            code: write.status.map_or(0, |code| u64::from(code.as_u16())),
            received: None,
        };
        records.iter().skip(skipped).map(request).collect()
    }
}

/// Returns the kubeconfig of an in-memory cluster that is served at `url`.
pub(crate) fn kubeconfig_of(url: &str) -> String {
    let text = serde_json::json!({"apiVersion": "v1", "kind": "Config", "current-context": "sim",
        "clusters": [{"name": "sim", "cluster": {"server": url}}], "users": [{"name": "sim", "user": {}}],
        "contexts": [{"name": "sim", "context": {"cluster": "sim", "user": "sim", "namespace": "default"}}]});
    text.to_string()
}

fn verb(method: &http::Method) -> String {
    match method.as_str() {
        "POST" => "create".to_owned(),
        "PUT" => "update".to_owned(),
        other => other.to_lowercase(),
    }
}

/// Returns the plural name in a path, with the subresource.
fn resource(path: &str) -> String {
    let path = path.split('?').next().unwrap_or_default();
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let rest = match parts.iter().position(|part| *part == "namespaces") {
        Some(at) if parts.len() > at + 2 => parts.get(at + 2..).unwrap_or_default(),
        _ => parts.get(if path.starts_with("/api/") { 2 } else { 3 }..).unwrap_or_default(),
    };
    match rest {
        [plural, _, subresource, ..] => format!("{plural}/{subresource}"),
        [plural, ..] => (*plural).to_owned(),
        [] => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_is_read_from_every_form_of_path() {
        for (path, expected) in [
            ("/api/v1/namespaces/shop/pods/web-1/eviction", "pods/eviction"),
            ("/api/v1/namespaces/shop/pods/web-1", "pods"),
            ("/api/v1/namespaces/shop/pods?fieldManager=x", "pods"),
            ("/api/v1/namespaces/shop", "namespaces"),
            ("/api/v1/nodes/node-1/status", "nodes/status"),
            ("/apis/apps.kusionstack.io/v1alpha1/namespaces/shop/operationjobs/a/status?x=1", "operationjobs/status"),
            ("/apis/coordination.k8s.io/v1/namespaces/oarlock-system/leases/oarlock", "leases"),
            ("/apis/rbac.authorization.k8s.io/v1/clusterroles/oarlock", "clusterroles"),
        ] {
            assert_eq!(resource(path), expected, "{path}");
        }
        assert_eq!(verb(&http::Method::PUT), "update");
    }
}
