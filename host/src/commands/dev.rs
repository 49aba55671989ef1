//! `oarlock dev`: a cluster in memory on a local port, with a world, a host and kubectl.
//!
//! Serves until it is stopped. Installs the documents that `oarlock manifests` prints. Removes everything at its end,
//! except a kubeconfig that the user asked for by name.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use oarlock_sim::world::Timings;

use super::host::{beside, made_up_identity, stop_on_signal};
use super::in_memory::{Furnishing, InMemory, NAMESPACE};
use super::scratch::Scratch;
use crate::health;
use crate::host::{Host, HostOptions};
use crate::manifests::{HOST_NAMESPACE, SHIPPED_GRANTS};

const EXAMPLES: &str = "\
Examples:
  oarlock dev --plugins ./plugins
  oarlock dev --plugins target/wasm32-wasip2/release --kubeconfig-out dev.kubeconfig --log info

then, in another terminal, with the KUBECONFIG that it prints:
  kubectl get pods,collasets,deployments
  kubectl apply -f job.yaml && kubectl get opj -w";

/// Arguments of `oarlock dev`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DevArgs {
    /// Port of the API server, on 127.0.0.1; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    port: u16,
    /// Directory of the plugin files
    #[arg(long, value_name = "DIR", default_value = "plugins")]
    plugins: PathBuf,
    /// Grants of the plugins [default: grants.yaml beside the plugin directory, else those of the shipped plugins]
    #[arg(long, value_name = "FILE")]
    grants: Option<PathBuf>,
    /// Path for the kubeconfig [default: a temporary file]
    #[arg(long, value_name = "FILE")]
    kubeconfig_out: Option<PathBuf>,
    /// Address that serves /livez, /readyz and /metrics
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

/// Serves a cluster in memory.
pub(crate) async fn run(args: DevArgs) -> anyhow::Result<ExitCode> {
    let stop = stop_on_signal()?;
    let scratch = Scratch::new()?;
    std::fs::create_dir_all(&args.plugins)
        .with_context(|| format!("cannot make the plugin directory {}", args.plugins.display()))?;
    let furnished = InMemory::start(Furnishing { timings: Timings::default(), foo: 4, web: 3 }).await?;
    let address = furnished.serve(args.port, stop.clone()).await?;
    let kubeconfig = args.kubeconfig_out.unwrap_or_else(|| scratch.path().join("kubeconfig"));
    write_kubeconfig(&kubeconfig, address)?;
    // The path must be absolute, since other terminals are in other folders.
    let kubeconfig = std::fs::canonicalize(&kubeconfig).unwrap_or(kubeconfig);
    let grants = grants_file(args.grants, &args.plugins, &scratch)?;
    let listener = health::listen(args.listen).await?;
    let health_address = listener.local_addr().context("cannot read the address that serves /readyz")?;
    println!("{}", greeting(&Addresses { api: address, health: health_address }, &kubeconfig, &args.plugins, &grants));
    let options = HostOptions {
        client: furnished.client.clone(),
        plugins: args.plugins,
        grants,
        identity: made_up_identity(),
        namespace: HOST_NAMESPACE.to_owned(),
    };
    let process = Host::start(options).await?;
    let serving =
        tokio::spawn(health::serve(listener, process.health(), process.metrics(), stop.clone().cancelled_owned()));
    process.run(stop).await?;
    furnished.world.stop().await;
    serving.await.context("serving /livez, /readyz and /metrics panicked")??;
    Ok(ExitCode::SUCCESS)
}

/// The file that was named, else the one beside the plugin directory, else one with the grants of the shipped plugins.
fn grants_file(named: Option<PathBuf>, plugins: &Path, scratch: &Scratch) -> anyhow::Result<PathBuf> {
    match named {
        Some(file) if file.is_file() => Ok(file),
        Some(file) => bail!("there are no grants at {}: write them, or leave --grants out", file.display()),
        None => Some(beside(plugins))
            .filter(|file| file.is_file())
            .map_or_else(|| scratch.write("grants.yaml", SHIPPED_GRANTS), Ok),
    }
}

struct Addresses {
    api: SocketAddr,
    health: SocketAddr,
}

fn greeting(at: &Addresses, kubeconfig: &Path, plugins: &Path, grants: &Path) -> String {
    let Addresses { api, health } = at;
    let (kubeconfig, plugins, grants) = (kubeconfig.display(), plugins.display(), grants.display());
    format!(
        "A Kubernetes API in memory is served at http://{api}, with a CollaSet foo and a Deployment web.

  export KUBECONFIG={kubeconfig}
  kubectl get pods

Plugins:  drop, replace or remove .wasm files in {plugins}
Grants:   edit {grants}
Host:     curl http://{health}/readyz    (/livez and /metrics are there too)

Ctrl-C ends it all."
    )
}

/// A kubeconfig without credentials: the API listens on this machine alone and does not authenticate.
fn write_kubeconfig(path: &Path, api: SocketAddr) -> anyhow::Result<()> {
    let text = format!(
        "apiVersion: v1
kind: Config
current-context: oarlock-dev
clusters:
- {{name: oarlock-dev, cluster: {{server: \"http://{api}\"}}}}
contexts:
- {{name: oarlock-dev, context: {{cluster: oarlock-dev, user: oarlock-dev, namespace: {NAMESPACE}}}}}
users:
- {{name: oarlock-dev, user: {{}}}}
"
    );
    std::fs::write(path, text).with_context(|| {
        format!("cannot write the kubeconfig {}: choose another with --kubeconfig-out", path.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::scratch::Scratch;

    #[test]
    fn the_kubeconfig_is_one_that_clients_can_read() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.path().join("kubeconfig");
        write_kubeconfig(&path, ([127, 0, 0, 1], 8001).into()).unwrap();
        let read = kube::config::Kubeconfig::read_from(&path).unwrap();
        assert_eq!(read.current_context.as_deref(), Some("oarlock-dev"));
        let server = read.clusters[0].cluster.as_ref().and_then(|cluster| cluster.server.clone());
        assert_eq!(server.as_deref(), Some("http://127.0.0.1:8001"));
    }
}
