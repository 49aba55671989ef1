//! A dry run of a plugin file: the state that the plugin would reach, and the reason.
//!
//! The dry run does everything that loading does, including `setup`.

use oarlock_core::plugin::grant::Grant;
use serde::Serialize;

use crate::load::inspect::{Inspection, inspect};
use crate::plugins::{Options, Plugins, PluginsError};
use crate::status::PluginStatus;

/// The result of a dry run.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VetReport {
    /// The contents of the file, if the file can be parsed.
    pub inspection: Option<Inspection>,
    /// The status that the plugin would have.
    pub status: PluginStatus,
}

/// Loads a component with these grants in a separate registry and returns its status.
pub async fn dry_run(bytes: Vec<u8>, grants: Vec<Grant>, options: Options) -> Result<Option<VetReport>, PluginsError> {
    let inspection = inspect(&bytes).ok();
    let plugins = Plugins::start(Options { dir: None, grants: None, ..options }).await?;
    plugins.set_grants(grants).await;
    let status = plugins.publish("file", bytes).await;
    Ok(status.map(|status| VetReport { inspection, status }))
}
