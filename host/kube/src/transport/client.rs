//! The client, which sends each request once.
//!
//! Only [`connect`] may build it: the default of the Kubernetes client repeats every verb up to 15 times, POST included.

use std::path::PathBuf;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// A connection that takes longer than this to open would use up a request's time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The place of the API server's address and of the credentials for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// `KUBECONFIG`, `~/.kube/config` or the pod's service account, the first that is there.
    #[default]
    Infer,
    /// The pod's service account.
    InCluster,
    /// A kubeconfig file.
    Kubeconfig {
        /// Its path.
        path: PathBuf,
        /// The context; the file's current one where absent.
        context: Option<String>,
    },
}

/// The reason why no client could be constructed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No credentials were found.
    #[error("failed to find a cluster: give --kubeconfig, set KUBECONFIG, or run in a pod with a service account")]
    Infer(#[source] Box<kube::config::InferConfigError>),
    /// The pod has no usable service account.
    #[error("failed to read the pod's service account: is automountServiceAccountToken set?")]
    InCluster(#[source] Box<kube::config::InClusterError>),
    /// The kubeconfig cannot be used.
    #[error("failed to use the kubeconfig {path}: check that it exists and that the context is in it")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    /// The credentials cannot be used.
    #[error("failed to build a client from the configuration: check its certificates and credentials")]
    Build(#[source] Box<kube::Error>),
}

/// A client for the cluster at `source`, and the address of its API server.
pub async fn connect(source: &Source) -> Result<(Client, String), ConnectError> {
    let mut config = configuration(source).await?;
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    // A reply is timed for each request; a read timeout here would cut off watches.
    config.read_timeout = None;
    let server = config.cluster_url.to_string();
    let client = Client::try_from(config).map_err(|e| ConnectError::Build(Box::new(e)))?;
    Ok((client, server))
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
