//! Names, addresses and places of a cluster.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

/// The address of the control plane on the bridge.
pub const PLANE: &str = "10.99.0.1";
/// The address at which pods reach the API server: the first of the range of Services.
pub const SERVICE: &str = "10.0.0.1";
/// The port of the API server on both.
pub const PORT: u16 = 443;

/// Where the registry listens that stands for every other one.
pub const REGISTRY: &str = "10.99.0.1:5000";

/// Where registries listen that have TLS and want a password: one to export to, and one with the images of the first.
pub const EXPORTS: &str = "10.99.0.1:5443";
/// The other one.
pub const IMAGES: &str = "10.99.0.1:5444";
/// Who may enter them.
pub const USER: &str = "oarlock";
/// With this password.
pub const PASSWORD: &str = "s3cret-of-registries";

/// Where a store of objects listens, with TLS, if the cluster has one.
pub const STORE: &str = "10.99.0.1:7070";
/// Its bucket.
pub const BUCKET: &str = "files";
/// The key of its user.
pub const STORE_KEY: &str = "AKIANODES";
/// The secret of that.
pub const STORE_SECRET: &str = "an0ther-secret-of-the-store";

/// Where a database listens, if the cluster has one.
pub const DATABASE: &str = "10.99.0.1";
/// The password of its user, who is [`USER`].
pub const DATABASE_PASSWORD: &str = "passw0rd-of-the-database";

/// Most nodes of a cluster.
pub const MOST_NODES: u8 = 9;

/// What a cluster is made of, as `up` writes it into its folder.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Plan {
    /// A name that no other cluster of this machine has.
    pub id: String,
    /// How many nodes.
    pub nodes: u8,
    /// The folder of containerd, runc and the network plugins.
    pub node_binaries: PathBuf,
    /// The folder of kubelet and scheduler.
    pub kubelet: PathBuf,
    /// The program by which nodes commit containers.
    pub nerdctl: PathBuf,
    /// The program of a store of objects.
    pub store: Option<PathBuf>,
    /// The folder of the programs of a database.
    pub database: Option<PathBuf>,
    /// The folder of the control plane's binaries.
    pub plane_binaries: PathBuf,
    /// The program itself.
    pub program: PathBuf,
    /// Image archives that each node has from its first boot on.
    pub images: Vec<PathBuf>,
    /// The port on 127.0.0.1 of the machine itself at which the API server is reached.
    pub port: u16,
}

/// The folder of a cluster.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Its path, absolute.
    pub root: PathBuf,
}

impl Layout {
    /// That of this folder.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// A file or folder in it.
    #[must_use]
    pub fn at(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The folder of a node.
    #[must_use]
    pub fn node(&self, number: u8) -> PathBuf {
        self.root.join("nodes").join(node_name(number))
    }

    /// The kubeconfig of an account of the control plane, as those within have it.
    #[must_use]
    pub fn kubeconfig(&self, account: &str) -> PathBuf {
        self.root.join("plane").join(format!("{account}.kubeconfig"))
    }

    /// Certificate (`crt`) or key (`key`) of the host's REST API.
    #[must_use]
    pub fn rest(&self, suffix: &str) -> PathBuf {
        self.root.join("plane").join(format!("oarlock-rest.{suffix}"))
    }

    /// The kubeconfig of the admin for the machine itself.
    #[must_use]
    pub fn outside(&self) -> PathBuf {
        self.root.join("kubeconfig")
    }

    /// That of an existing folder, which has to be root's: what is in it is run by root, and removed.
    ///
    /// # Errors
    ///
    /// If there is none, or it is another user's.
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

    /// Reads what the cluster is made of.
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

/// The name of a node, from 1 on.
#[must_use]
pub fn node_name(number: u8) -> String {
    format!("node-{number}")
}

/// The number of the node of this name.
#[must_use]
pub fn node_number(name: &str) -> Option<u8> {
    name.strip_prefix("node-")?.parse().ok()
}

/// The address of a node on the bridge.
#[must_use]
pub fn node_address(number: u8) -> String {
    format!("10.99.0.1{number}")
}

/// The addresses of the pods of a node.
#[must_use]
pub fn pod_range(number: u8) -> String {
    format!("10.88.{number}.0/24")
}
