//! What the host would say of a file that is dropped, and why.
//!
//! Takes bytes and grants; yields the state it would come to. It does everything that loading does, `setup` included.

use oarlock_core::plugin::grant::Grant;
use serde::Serialize;

use crate::load::inspect::{Facts, inspect};
use crate::plugins::{Options, Plugins, PluginsError};
use crate::registry::PluginStatus;

/// What the host would say.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// What the file says of itself, where it can be read.
    pub facts: Option<Facts>,
    /// What would become of it.
    pub status: PluginStatus,
}

/// Says what would become of a component under these grants.
pub async fn verdict(bytes: Vec<u8>, grants: Vec<Grant>, options: Options) -> Result<Option<Verdict>, PluginsError> {
    let facts = inspect(&bytes).ok();
    let plugins = Plugins::start(Options { dir: None, grants: None, ..options }).await?;
    plugins.set_grants(grants).await;
    let status = plugins.publish("file", bytes).await;
    Ok(status.map(|status| Verdict { facts, status }))
}
