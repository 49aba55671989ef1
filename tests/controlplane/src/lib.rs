//! Finds the binaries of a real Kubernetes control plane, and builds them where they are missing.
//!
//! Takes the `go.mod` and `go.sum` beside this crate, `KUBEBUILDER_ASSETS`, `OARLOCK_CACHE` and `HOME`; yields the paths of
//! four binaries. It may not download anything by itself (the Go tool does, from its module proxy) and starts no server.
//! It depends on next to nothing, because the commands of the repository use it before anything else is compiled.

mod build;
mod locate;

use std::path::{Path, PathBuf};

pub use build::Progress;

/// The binaries that a control plane consists of here, each with the Go package that it is built from.
pub(crate) const MAINS: [(&str, &str); 4] = [
    ("etcd", "go.etcd.io/etcd/server/v3"),
    ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
];

/// The version that the binaries report. It is the one that `go.mod` requires; a test compares the two.
pub const KUBERNETES_VERSION: &str = "v1.36.3";

/// Where the binaries of one control plane are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binaries {
    /// The store.
    pub etcd: PathBuf,
    /// The API server.
    pub kube_apiserver: PathBuf,
    /// Garbage collector, Job and disruption controllers, among others.
    pub kube_controller_manager: PathBuf,
    /// The command line that users have.
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

/// Yields the binaries: from `KUBEBUILDER_ASSETS` if that is set, else from the project's cache folder, else by building them
/// into it with Go. Parallel callers, also those in other processes, build once.
///
/// # Errors
///
/// Names what is missing and what to do about it: install Go, or point `KUBEBUILDER_ASSETS` at a complete folder.
pub fn binaries(progress: Progress<'_>) -> anyhow::Result<Binaries> {
    if let Some(folder) = std::env::var_os("KUBEBUILDER_ASSETS") {
        return locate::given(Path::new(&folder));
    }
    let folder = locate::cache_folder()?.join("controlplane").join(locate::fingerprint());
    if !locate::complete(&folder) {
        build::build_once(&folder, progress)?;
    }
    Ok(Binaries::within(&folder))
}

/// Whether [`binaries`] would answer at once.
#[must_use]
pub fn at_hand() -> bool {
    std::env::var_os("KUBEBUILDER_ASSETS").is_some()
        || locate::cache_folder()
            .is_ok_and(|cache| locate::complete(&cache.join("controlplane").join(locate::fingerprint())))
}
