//! The status of each plugin, as the commands and the metrics show it.

use oarlock_core::plugin::manifest::Manifest;
use serde::Serialize;

/// The state of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum PluginState {
    /// The file is there and still being written.
    Discovered,
    /// Serves its action.
    Serving,
    /// Serves only jobs that began with it.
    Draining,
    /// Not used.
    Rejected,
    /// Asks for more than its grant allows.
    AwaitingGrant,
}

/// The progress of the first scan of the plugin directory. Until it is done, a plugin that is not found may be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FirstScan {
    /// Nothing was loaded yet.
    Pending,
    /// The plugins in the compile cache were loaded, and others are being compiled.
    Cached,
    /// Each file was loaded or rejected.
    Done,
}

/// The state of the file of grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantsState {
    /// It was not read yet.
    Unread,
    /// It is in force as it stands.
    InForce,
    /// It was refused, for this reason, and nothing is granted: none was read before.
    Unusable(String),
    /// It was refused, for this reason, and the grants that were read before stay in force.
    Refused(String),
}

impl GrantsState {
    /// The state after the file was refused.
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
    /// The file, or the name under which it was published.
    pub source: String,
    /// Name of the plugin, where its manifest could be read.
    pub name: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// The action it implements.
    pub action: Option<String>,
    /// `sha256:...`, where the file could be read.
    pub digest: Option<String>,
    /// Its state.
    pub state: PluginState,
    /// A CamelCase word for programs.
    pub reason: String,
    /// One sentence for people, with the fix where there is one.
    pub message: String,
    /// The lines that its grant lacks.
    pub missing: Vec<String>,
}

impl PluginStatus {
    /// The status of a file of which only the name is known.
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
            missing: Vec::new(),
        }
    }

    /// The status of a file whose manifest could be read.
    pub(crate) fn of_plugin(source: &str, manifest: &Manifest, digest: &str) -> Self {
        Self {
            name: Some(manifest.name.clone()),
            version: Some(manifest.version.to_string()),
            action: Some(manifest.action.clone()),
            digest: Some(digest.to_owned()),
            ..Self::of_source(source)
        }
    }

    pub(crate) fn with(self, (state, reason, message): (PluginState, &str, &str)) -> Self {
        Self { state, reason: reason.to_owned(), message: message.to_owned(), ..self }
    }
}
