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
    /// Admitted, and serves no job while a kind that it declares cannot be listed.
    Unavailable,
}

/// The reason for not serving a plugin that was admitted: a kind that it declares cannot be listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// A CamelCase word for programs: `KindNotServed` or `KindNotReady`.
    pub reason: &'static str,
    /// One sentence for people that names the kind and the fix. The same while the cause is the same.
    pub message: String,
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

impl PluginState {
    /// Returns `true` for a plugin that jobs may be using.
    pub(crate) fn is_callable(self) -> bool {
        matches!(self, Self::Serving | Self::Draining)
    }
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
