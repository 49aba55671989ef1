//! The facts of a plugin that only the host knows, as the answer to a read of an object that exists only in the host's process.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::requests::reads::Read;

/// The kind of [`PluginFacts`].
pub const FACTS: &str = "PluginFacts";

/// Returns the read of the [`PluginFacts`] of the plugin with this name.
pub fn facts_of(name: &str) -> Read {
    Read::of_host(FACTS, name)
}

/// The source of the grants of a whole host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GrantsFrom {
    /// The file of `--grants`.
    #[default]
    File,
    /// The ActionPlugins of the cluster.
    Cluster,
}

impl GrantsFrom {
    /// Returns the value of `--grants-from` for this source.
    pub const fn word(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Cluster => "cluster",
        }
    }
}

/// The state of a plugin in the host's process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginFacts {
    /// The source of the grants.
    pub grants_from: GrantsFrom,
    /// The files and replaced versions of the plugin.
    pub versions: Vec<VersionFacts>,
    /// The rights that the grant of the plugin needs and that the host's account lacks, each as `VERB RESOURCE in NAMESPACE`. `None` if the host could
    /// not ask.
    pub lacking: Option<Vec<String>>,
}

/// The state of one version of a plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionFacts {
    /// The name of the file. It is empty for a version without a file.
    pub file: String,
    /// The version in the manifest.
    pub version: String,
    /// The action that the version implements.
    pub action: String,
    /// The digest of the file, `sha256:...`.
    pub digest: String,
    /// The state, such as `Serving`.
    pub state: String,
    /// The reason of the state, in CamelCase.
    pub reason: String,
    /// The reason of the state, as a sentence.
    pub message: String,
    /// The requests of the version, in words.
    pub rights: Vec<String>,
    /// The lines that the grant lacks.
    pub missing: Vec<String>,
    /// The number of unfinished jobs that are bound to the version.
    pub jobs: u32,
    /// The peak use of each limit, in percent of the limit, rounded up to tens.
    pub peak_use: BTreeMap<String, u8>,
}
