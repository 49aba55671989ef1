//! Whether a job's spec can be acted on with the plugin of its action. Source: docs/operationjob.md 3.3, 3.4.

use std::sync::Arc;

use crate::cluster::object::Object;
use crate::job::key::JobKey;
use crate::job::spec::{Invalid, ValidSpec};
use crate::plugin::lookup::PluginLookup;
use crate::plugin::manifest::TargetKind;

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

/// True if jobs on nodes start in this namespace.
pub fn allows_nodes(namespace: &Object) -> bool {
    namespace.labels.get(NODE_OPERATIONS) == Some("true")
}

/// Why a job on targets of this kind starts none in its namespace, which has the label for nodes if `labelled`.
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
    /// The same, which also says what else keeps the job from starting: nobody should learn that only once the first is
    /// mended.
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
