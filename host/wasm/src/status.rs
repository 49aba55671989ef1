//! The status of each plugin, for the commands and the metrics.

use oarlock_core::plugin::manifest::Manifest;
use oarlock_core::plugin::rights::rights;
use serde::Serialize;

/// The state of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum PluginState {
    /// The file exists and is still being written.
    Discovered,
    /// The plugin serves its action.
    Serving,
    /// The plugin serves only jobs that began with it.
    Draining,
    /// The host does not use the plugin.
    Rejected,
    /// The plugin trapped too often, so the version before serves for some time.
    Quarantined,
    /// The plugin requests more than its grant allows.
    AwaitingGrant,
}

/// The progress of the first scan of the plugin directory. Until the scan is done, an unknown plugin may still be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FirstScan {
    /// The host has loaded no plugin yet.
    Pending,
    /// The host has loaded the plugins in the compile cache and compiles the others.
    Cached,
    /// The host has loaded or rejected each file.
    Done,
}

/// The state of the file of grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantsState {
    /// The host has not read the file yet.
    Unread,
    /// The file is in force with its current content.
    InForce,
    /// The host refused the file for this reason. No earlier grants exist, so nothing is granted.
    Unusable(String),
    /// The host refused the file for this reason. The earlier grants stay in force.
    Refused(String),
}

impl GrantsState {
    /// Returns the state after the file was refused.
    pub(crate) fn refused(&self, why: String) -> Self {
        match self {
            Self::Unread | Self::Unusable(_) => Self::Unusable(why),
            Self::InForce | Self::Refused(_) => Self::Refused(why),
        }
    }
}

/// The status of one plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginStatus {
    /// The file of the plugin, or the name under which it was published.
    pub source: String,
    /// The name of the plugin, if its manifest could be read.
    pub name: Option<String>,
    /// The version of the plugin.
    pub version: Option<String>,
    /// The action that the plugin implements.
    pub action: Option<String>,
    /// The digest of the file, `sha256:...`, if the file could be read.
    pub digest: Option<String>,
    /// The state of the plugin.
    pub state: PluginState,
    /// A CamelCase word for programs.
    pub reason: String,
    /// One sentence for people, with the fix if there is one.
    pub message: String,
    /// The requests of the plugin, in words.
    pub rights: Vec<String>,
    /// The lines that the plugin's grant lacks.
    pub missing: Vec<String>,
}

impl PluginStatus {
    /// Returns the status of a file of which only the name is known.
    pub(crate) fn of_source(source: &str) -> Self {
        Self {
            source: source.to_owned(),
            name: None,
            version: None,
            action: None,
            digest: None,
            state: PluginState::Discovered,
            reason: String::new(),
            message: String::new(),
            rights: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// Returns the status of a file whose manifest could be read.
    pub(crate) fn of_plugin(source: &str, manifest: &Manifest, digest: &str) -> Self {
        Self {
            name: Some(manifest.name.clone()),
            version: Some(manifest.version.to_string()),
            action: Some(manifest.action.clone()),
            digest: Some(digest.to_owned()),
            rights: rights(manifest).into_iter().map(|right| right.text).collect(),
            ..Self::of_source(source)
        }
    }

    /// Returns the status with a state, its reason and a message.
    pub(crate) fn with(self, state: PluginState, reason: &str, message: &str) -> Self {
        Self { state, reason: reason.to_owned(), message: message.to_owned(), ..self }
    }
}
