//! Finds the binaries of a real Kubernetes control plane, of its nodes, of Helm, of an S3 server and of promtool. Builds missing ones.
//!
//! The crate reads the `go.mod` and `go.sum` beside it and in its folders `helm`, `monitor`, `node`, `nerdctl` and `store`, and the
//! variables `KUBEBUILDER_ASSETS`, `OARLOCK_CACHE` and `HOME`. It returns paths of binaries. Two programs come from the
//! machine's packages. The crate downloads nothing by itself (the Go tool does, from its module proxy, and apt-get
//! does), and starts no server. The crate has almost no dependencies, because the commands of the repository use it
//! before anything else is compiled.

mod build;
mod locate;
mod packages;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
pub use build::Progress;

/// Programs that are built from one Go module.
pub(crate) struct Module {
    /// The name of the module's folder in the cache.
    pub(crate) cache: &'static str,
    /// The module's folder, below this crate.
    pub(crate) folder: &'static str,
    /// The texts of the module's `go.mod` and `go.sum`.
    pub(crate) pins: [&'static str; 2],
    /// The description of the build in progress lines.
    pub(crate) words: &'static str,
    /// The Go build tags, separated by commas.
    pub(crate) tags: &'static str,
    /// Each program, with the package of its source.
    pub(crate) mains: &'static [(&'static str, &'static str)],
}

const KUBERNETES: [&str; 2] = [include_str!("../go.mod"), include_str!("../go.sum")];

/// The control plane.
pub(crate) const PLANE: Module = Module {
    cache: "controlplane",
    folder: "",
    pins: KUBERNETES,
    words: "etcd and Kubernetes from their Go modules: once per machine and version, about 5 minutes on 2 cores",
    tags: "",
    mains: &[
        ("etcd", "go.etcd.io/etcd/server/v3"),
        ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
        ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
        ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    ],
};

/// The programs of Kubernetes that a cluster with nodes needs in addition.
const KUBELET: Module = Module {
    cache: "controlplane",
    folder: "",
    pins: KUBERNETES,
    words: "kubelet and scheduler from their Go modules: once per machine and version, about 3 minutes on 2 cores",
    tags: "",
    mains: &[("kubelet", "k8s.io/kubernetes/cmd/kubelet"), ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler")],
};

/// The programs for containers and their network.
const CONTAINERS: Module = Module {
    cache: "node",
    folder: "node",
    pins: [include_str!("../node/go.mod"), include_str!("../node/go.sum")],
    words: "containerd, network plugins and a registry from their Go modules: once per machine and version, about 4 minutes on 2 cores",
    tags: "",
    mains: &[
        ("containerd", "github.com/containerd/containerd/v2/cmd/containerd"),
        ("containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"),
        ("ctr", "github.com/containerd/containerd/v2/cmd/ctr"),
        ("bridge", "github.com/containernetworking/plugins/plugins/main/bridge"),
        ("loopback", "github.com/containernetworking/plugins/plugins/main/loopback"),
        ("host-local", "github.com/containernetworking/plugins/plugins/ipam/host-local"),
        ("registry", "github.com/distribution/distribution/v3/cmd/registry"),
    ],
};

/// The program that commits containers. It requires older libraries than containerd, so it has its own module.
const COMMITTER: Module = Module {
    cache: "nerdctl",
    folder: "nerdctl",
    pins: [include_str!("../nerdctl/go.mod"), include_str!("../nerdctl/go.sum")],
    words: "nerdctl from its Go module: once per machine and version, about 1 minute on 2 cores",
    tags: "",
    mains: &[("nerdctl", "github.com/containerd/nerdctl/v2/cmd/nerdctl")],
};

/// An object store with the API of S3.
const STORE: Module = Module {
    cache: "store",
    folder: "store",
    pins: [include_str!("../store/go.mod"), include_str!("../store/go.sum")],
    words: "an S3 server from its Go module: once per machine and version, about 2 minutes on 2 cores",
    tags: "",
    mains: &[("versitygw", "github.com/versity/versitygw/cmd/versitygw")],
};

/// The checker of Prometheus rules.
const MONITOR: Module = Module {
    cache: "monitor",
    folder: "monitor",
    pins: [include_str!("../monitor/go.mod"), include_str!("../monitor/go.sum")],
    words: "promtool from its Go module: once per machine and version, about 3 minutes on 2 cores",
    // Rules need no service discovery, which is half of the build.
    tags: "remove_all_sd",
    mains: &[("promtool", "github.com/prometheus/prometheus/cmd/promtool")],
};

/// Helm, which installs charts.
const HELM: Module = Module {
    cache: "helm",
    folder: "helm",
    pins: [include_str!("../helm/go.mod"), include_str!("../helm/go.sum")],
    words: "helm from its Go module: once per machine and version, about 2 minutes on 2 cores",
    tags: "",
    mains: &[("helm", "helm.sh/helm/v4/cmd/helm")],
};

/// The version that the binaries report. `go.mod` requires this version; a test compares the two.
pub const KUBERNETES_VERSION: &str = "v1.36.3";

/// Paths of the binaries of one control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binaries {
    /// The store.
    pub etcd: PathBuf,
    /// The API server.
    pub kube_apiserver: PathBuf,
    /// Garbage collector, Job and disruption controllers, among others.
    pub kube_controller_manager: PathBuf,
    /// The command-line client.
    pub kubectl: PathBuf,
}

impl Binaries {
    fn within(folder: &Path) -> Self {
        Self {
            etcd: folder.join("etcd"),
            kube_apiserver: folder.join("kube-apiserver"),
            kube_controller_manager: folder.join("kube-controller-manager"),
            kubectl: folder.join("kubectl"),
        }
    }
}

/// Returns the binaries. They come from `KUBEBUILDER_ASSETS` if it is set, otherwise from the project's cache folder.
/// Go builds missing binaries into the cache. Parallel callers build once, even in different processes.
///
/// # Errors
///
/// If a binary is missing and cannot be built. The message names the fix: install Go, or point `KUBEBUILDER_ASSETS` at
/// a complete folder.
pub fn binaries(progress: Progress<'_>) -> anyhow::Result<Binaries> {
    if let Some(folder) = std::env::var_os("KUBEBUILDER_ASSETS") {
        return locate::given(Path::new(&folder));
    }
    let folder = build::built(&PLANE, progress)?;
    Ok(Binaries::within(&folder))
}

/// Returns true if [`binaries`] would return without a build.
#[must_use]
pub fn at_hand() -> bool {
    std::env::var_os("KUBEBUILDER_ASSETS").is_some()
        || locate::folder(&PLANE).is_ok_and(|folder| locate::missing(&PLANE, &folder).is_empty())
}

/// Paths of the binaries of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeBinaries {
    /// The folder of kubelet and scheduler.
    pub kubelet: PathBuf,
    /// The folder of containerd, the network plugins, the registry, runc and busybox.
    pub containers: PathBuf,
    /// The program nerdctl.
    pub nerdctl: PathBuf,
}

/// Returns the binaries of nodes. The crate builds missing binaries, and takes runc and busybox from the machine's
/// packages.
///
/// # Errors
///
/// If a binary is missing and cannot be built or unpacked. The message names the fix.
pub fn node_binaries(progress: Progress<'_>) -> anyhow::Result<NodeBinaries> {
    let kubelet = build::built(&KUBELET, progress)?;
    let containers = build::built(&CONTAINERS, progress)?;
    packages::fetch(&containers, progress)?;
    let nerdctl = build::built(&COMMITTER, progress)?.join("nerdctl");
    Ok(NodeBinaries { kubelet, containers, nerdctl })
}

/// Returns the image registry. A missing registry is built together with the other binaries for containers.
///
/// # Errors
///
/// If the registry is missing and cannot be built. The message names the fix.
pub fn registry(progress: Progress<'_>) -> anyhow::Result<PathBuf> {
    Ok(build::built(&CONTAINERS, progress)?.join("registry"))
}

/// Returns the binary of an S3 server. A missing binary is built.
///
/// # Errors
///
/// If the binary is missing and cannot be built. The message names the fix.
pub fn s3_server(progress: Progress<'_>) -> anyhow::Result<PathBuf> {
    Ok(build::built(&STORE, progress)?.join("versitygw"))
}

/// Returns promtool, which checks and tests Prometheus rules. A missing binary is built.
///
/// # Errors
///
/// If the binary is missing and cannot be built. The message names the fix.
pub fn promtool(progress: Progress<'_>) -> anyhow::Result<PathBuf> {
    Ok(build::built(&MONITOR, progress)?.join("promtool"))
}

/// Returns the binary of Helm. A missing binary is built.
///
/// # Errors
///
/// If the binary is missing and cannot be built. The message names the fix.
pub fn helm(progress: Progress<'_>) -> anyhow::Result<PathBuf> {
    Ok(build::built(&HELM, progress)?.join("helm"))
}

/// Arguments with which `initdb` creates a database for tests: with a password, in UTF-8, and without waiting for the
/// disk.
pub const INITDB: [&str; 6] = ["-A", "scram-sha-256", "-E", "UTF8", "--locale=C", "--no-sync"];

/// Returns the folder of the PostgreSQL programs.
///
/// # Errors
///
/// If PostgreSQL is not installed.
pub fn postgres() -> anyhow::Result<PathBuf> {
    packages::postgres().context("PostgreSQL is not installed: install the package postgresql")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_is_a_tool_of_its_module_and_no_folder_of_binaries_is_shared() {
        for module in [&PLANE, &KUBELET, &CONTAINERS, &COMMITTER, &STORE, &HELM, &MONITOR] {
            for (name, package) in module.mains {
                assert!(
                    module.pins[0].lines().any(|line| line.trim().trim_start_matches("tool ") == *package),
                    "{name}"
                );
            }
        }
        let folders =
            [&PLANE, &CONTAINERS, &COMMITTER, &STORE, &HELM, &MONITOR].map(|module| locate::folder(module).unwrap());
        assert_eq!(std::collections::BTreeSet::from(folders.clone()).len(), folders.len(), "{folders:?}");
    }
}
