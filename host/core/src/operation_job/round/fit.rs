//! The check whether the plugin of a job's action can carry out its spec. Source: docs/operationjob.md 3.3, 3.4.

use std::sync::Arc;

use crate::object::api_object::Object;
use crate::object::key::JobKey;
use crate::operation_job::spec::{Invalid, ValidSpec};
use crate::plugin::lookup::PluginLookup;
use crate::plugin::manifest::TargetKind;

/// The last check of a spec.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Checked {
    /// The generation that was checked.
    pub generation: i64,
    /// Digest of the plugin that the spec was checked against, if a plugin served.
    pub plugin: Option<String>,
    /// The checked spec, or the reason why it is invalid.
    pub outcome: Result<Arc<ValidSpec>, Invalid>,
}

/// Checks that a spec fits its plugin, regardless of the plugin's grant.
pub fn fits(spec: ValidSpec, plugin: &PluginLookup) -> Result<ValidSpec, Invalid> {
    let Some(plugin) = plugin.serving() else { return Ok(spec) };
    let name = &plugin.manifest.name;
    if !plugin.manifest.takes(spec.kind) {
        let takes: Vec<String> = plugin.manifest.target.iter().map(|kind| format!("{}s", kind.word())).collect();
        let message =
            format!("plugin {name} works on {}, and spec.targetKind is {}", takes.join(" and "), spec.kind.word());
        return Err(Invalid { reason: "TargetKindNotSupported", message });
    }
    if let Err(message) = plugin.manifest.check_parameters(&spec.parameters) {
        return Err(Invalid { reason: "ParametersInvalid", message });
    }
    Ok(spec)
}

/// The label that a namespace needs, with the value `true`, for jobs on nodes.
pub const NODE_OPERATIONS: &str = "oarlock.dev/node-operations";

/// Returns true if jobs on nodes may start targets in this namespace.
pub fn allows_nodes(namespace: &Object) -> bool {
    namespace.labels.get(NODE_OPERATIONS) == Some("true")
}

/// Returns why a job with this kind of targets starts none in its namespace. `labelled` says whether the namespace has
/// the label for nodes.
pub fn unlabelled(key: &JobKey, kind: TargetKind, labelled: bool) -> Option<Invalid> {
    let lacks = kind == TargetKind::Node && !labelled;
    lacks.then(|| {
        let message = format!(
            "spec.targetKind: Node needs the namespace label {NODE_OPERATIONS}=true, which namespace {} lacks; targets in \
             flight go on, and the others start once it is there",
            key.namespace
        );
        Invalid { reason: "NamespaceNotAllowed", message }
    })
}

impl Invalid {
    /// Returns this reason with the message of `other` added. A user learns both reasons at once, and not the second
    /// only after fixing the first.
    pub(super) fn with(self, other: Option<&Self>) -> Self {
        match other {
            Some(other) => Self { message: format!("{}; {}", self.message, other.message), ..self },
            None => self,
        }
    }
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
