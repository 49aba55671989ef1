//! Whether a job's spec can be acted on with the plugin of its action. Source: docs/operationjob.md 3.3, 3.4.

use std::sync::Arc;

use crate::job::key::JobKey;
use crate::job::spec::{Invalid, ValidSpec};
use crate::plugin::lookup::PluginLookup;

/// The last check of a spec.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Checked {
    /// The generation that was checked.
    pub generation: i64,
    /// Digest of the plugin it was checked against, if one was there.
    pub plugin: Option<String>,
    /// The checked spec, or the reason why it is invalid.
    pub outcome: Result<Arc<ValidSpec>, Invalid>,
}

/// Checks that a spec fits its plugin, regardless of its grant.
pub fn fits(spec: ValidSpec, plugin: &PluginLookup) -> Result<ValidSpec, Invalid> {
    let Some(plugin) = plugin.serving() else { return Ok(spec) };
    let name = &plugin.manifest.name;
    if !plugin.manifest.takes("Pod") {
        let message = format!("plugin {name} does not work on Pods, and spec.targetKind is Pod");
        return Err(Invalid { reason: "TargetKindNotSupported", message });
    }
    if let Err(message) = plugin.manifest.check_parameters(&spec.parameters) {
        return Err(Invalid { reason: "ParametersInvalid", message: format!("spec.parameters: {message}") });
    }
    Ok(spec)
}

/// Checks that the plugin may act in the job's namespace.
pub fn granted(key: &JobKey, spec: Arc<ValidSpec>, plugin: &PluginLookup) -> Result<Arc<ValidSpec>, Invalid> {
    match plugin.serving().filter(|plugin| !plugin.grant.allows_namespace(&key.namespace)) {
        None => Ok(spec),
        Some(plugin) => {
            let name = &plugin.manifest.name;
            let message = format!(
                "plugin {name} is not granted namespace {}; add it to `namespaces` of its grant",
                key.namespace
            );
            Err(Invalid { reason: "NamespaceNotAllowed", message })
        }
    }
}
