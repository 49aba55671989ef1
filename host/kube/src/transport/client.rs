//! The Kubernetes client, which sends each request once.
//!
//! Build it only with [`connect`]. By default, the Kubernetes client repeats every verb up to 15 times, including POST.

use std::path::PathBuf;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// The longest time to open a connection. A slower connection would use up the time of a request.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The source of the API server's address and of the credentials for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// The first that exists of `KUBECONFIG`, `~/.kube/config` and the pod's service account.
    #[default]
    Infer,
    /// The pod's service account.
    InCluster,
    /// A kubeconfig file.
    Kubeconfig {
        /// The path of the file.
        path: PathBuf,
        /// The context. If absent, the current context of the file.
        context: Option<String>,
    },
}

/// The reason why the client could not be built.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No credentials were found.
    #[error("failed to find a cluster: give --kubeconfig, set KUBECONFIG, or run in a pod with a service account")]
    Infer(#[source] Box<kube::config::InferConfigError>),
    /// The pod has no usable service account.
    #[error("failed to read the pod's service account: is automountServiceAccountToken set?")]
    InCluster(#[source] Box<kube::config::InClusterError>),
    /// The kubeconfig is not usable.
    #[error("failed to use the kubeconfig {path}: check that it exists and that the context is in it")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    /// The credentials are not usable.
    #[error("failed to build a client from the configuration: check its certificates and credentials")]
    Build(#[source] Box<kube::Error>),
}

/// Builds a client for the cluster at `source`. Returns the client and the address of its API server.
pub async fn connect(source: &Source) -> Result<(Client, String), ConnectError> {
    let mut config = configuration(source).await?;
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    // Each request has its own timeout, and a read timeout here would cut off watches.
    config.read_timeout = None;
    let server = config.cluster_url.to_string();
    let client = Client::try_from(config).map_err(|e| ConnectError::Build(Box::new(e)))?;
    Ok((client, server))
}

/// Returns true if the configuration at `source` impersonates a user.
///
/// # Errors
/// If there is no usable configuration.
pub async fn impersonates(source: &Source) -> Result<bool, ConnectError> {
    let auth = configuration(source).await?.auth_info;
    Ok(auth.impersonate.is_some() || auth.impersonate_groups.is_some())
}

async fn configuration(source: &Source) -> Result<Config, ConnectError> {
    match source {
        Source::Infer => Config::infer().await.map_err(|e| ConnectError::Infer(Box::new(e))),
        Source::InCluster => Config::incluster().map_err(|e| ConnectError::InCluster(Box::new(e))),
        Source::Kubeconfig { path, context } => {
            let failed = |e| ConnectError::Kubeconfig { path: path.clone(), source: Box::new(e) };
            let file = Kubeconfig::read_from(path).map_err(failed)?;
            let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
            Config::from_custom_kubeconfig(file, &options).await.map_err(failed)
        }
    }
}
