//! Names, addresses and paths of a cluster.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

/// The address of the control plane on the bridge.
pub const PLANE: &str = "10.99.0.1";
/// The address at which pods reach the API server: the first address of the Service range.
pub const SERVICE: &str = "10.0.0.1";
/// The port of the API server at both addresses.
pub const PORT: u16 = 443;

/// The address of the registry that stands for every other registry.
pub const REGISTRY: &str = "10.99.0.1:5000";

/// The address of the registry for exports, with TLS and a password.
pub const EXPORTS: &str = "10.99.0.1:5443";
/// The address of the registry with TLS and a password that has the images of [`REGISTRY`].
pub const IMAGES: &str = "10.99.0.1:5444";
/// The user of the registries with a password.
pub const USER: &str = "oarlock";
/// The password of [`USER`].
pub const PASSWORD: &str = "s3cret-of-registries";

/// The address of the object store with TLS, if the cluster has a store.
pub const STORE: &str = "10.99.0.1:7070";
/// The bucket of the object store.
pub const BUCKET: &str = "files";
/// The access key of the store's user.
pub const STORE_KEY: &str = "AKIANODES";
/// The secret of [`STORE_KEY`].
pub const STORE_SECRET: &str = "an0ther-secret-of-the-store";

/// The address of the database, if the cluster has a database.
pub const DATABASE: &str = "10.99.0.1";
/// The password of the database user, [`USER`].
pub const DATABASE_PASSWORD: &str = "passw0rd-of-the-database";

/// The largest number of nodes.
pub const MOST_NODES: u8 = 9;

/// The settings of a cluster, which `up` writes into the cluster's folder.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Plan {
    /// A name that no other cluster of this machine has.
    pub id: String,
    /// Number of nodes.
    pub nodes: u8,
    /// The folder of containerd, runc and the network plugins.
    pub node_binaries: PathBuf,
    /// The folder of kubelet and scheduler.
    pub kubelet: PathBuf,
    /// The program nerdctl, with which nodes commit containers.
    pub nerdctl: PathBuf,
    /// The program of the object store.
    pub store: Option<PathBuf>,
    /// The folder of the database's programs.
    pub database: Option<PathBuf>,
    /// The folder of the control plane's binaries.
    pub plane_binaries: PathBuf,
    /// The path of this program.
    pub program: PathBuf,
    /// Image archives that each node imports in its first boot.
    pub images: Vec<PathBuf>,
    /// The port on 127.0.0.1 of the machine that leads to the API server.
    pub port: u16,
}

/// The folder of a cluster.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The absolute path.
    pub root: PathBuf,
}

impl Layout {
    /// Returns the layout of this folder.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Returns the path of a file or folder in the cluster's folder.
    #[must_use]
    pub fn at(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Returns the folder of a node.
    #[must_use]
    pub fn node(&self, number: u8) -> PathBuf {
        self.root.join("nodes").join(node_name(number))
    }

    /// Returns the path of the boot id of a node's current boot. There is no file while the node has no power.
    #[must_use]
    pub fn boot_id(&self, node: &str) -> PathBuf {
        self.root.join("nodes").join(node).join("boot_id")
    }

    /// Returns the path of an account's kubeconfig for use inside the cluster.
    #[must_use]
    pub fn kubeconfig(&self, account: &str) -> PathBuf {
        self.root.join("plane").join(format!("{account}.kubeconfig"))
    }

    /// Returns the path of the certificate (`crt`) or key (`key`) of the host's REST API.
    #[must_use]
    pub fn rest(&self, suffix: &str) -> PathBuf {
        self.root.join("plane").join(format!("oarlock-rest.{suffix}"))
    }

    /// Returns the path of the admin's kubeconfig for use on the machine.
    #[must_use]
    pub fn outside(&self) -> PathBuf {
        self.root.join("kubeconfig")
    }

    /// Returns the layout of an existing folder. The folder must belong to root, because root runs and removes its
    /// content.
    ///
    /// # Errors
    ///
    /// If the folder does not exist, or belongs to another user.
    pub fn of_existing(folder: &Path) -> anyhow::Result<Self> {
        use std::os::unix::fs::MetadataExt as _;
        let none = || format!("there is no cluster in {}: start one with `cluster up`", folder.display());
        let root = std::fs::canonicalize(folder).with_context(none)?;
        let layout = Self::new(&root);
        let others = [root.clone(), layout.at("plan.json")]
            .into_iter()
            .find(|path| path.symlink_metadata().is_ok_and(|found| found.uid() != 0 || found.is_symlink()));
        match others {
            Some(path) => anyhow::bail!("{} is not root's: name another folder by OARLOCK_CLUSTER", path.display()),
            None => Ok(layout),
        }
    }

    /// Reads the settings of the cluster.
    ///
    /// # Errors
    ///
    /// If there is no cluster in the folder.
    pub fn plan(&self) -> anyhow::Result<Plan> {
        let path = self.at("plan.json");
        let text = std::fs::read(&path)
            .with_context(|| format!("there is no cluster in {}: start one with `cluster up`", self.root.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("cannot read {}", path.display()))
    }
}

/// Returns the name of a node. Numbers begin at 1.
#[must_use]
pub fn node_name(number: u8) -> String {
    format!("node-{number}")
}

/// Returns the number of the node with this name.
#[must_use]
pub fn node_number(name: &str) -> Option<u8> {
    name.strip_prefix("node-")?.parse().ok()
}

/// Returns the address of a node on the bridge.
#[must_use]
pub fn node_address(number: u8) -> String {
    format!("10.99.0.1{number}")
}

/// Returns the address range of the pods of a node.
#[must_use]
pub fn pod_range(number: u8) -> String {
    format!("10.88.{number}.0/24")
}
