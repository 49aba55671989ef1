//! A served plugin as the decisions see it.
//!
//! `oarlock-wasm` makes these; `core` reads them. Data only.

use std::sync::Arc;

use crate::plugin::grant::Grant;
use crate::plugin::manifest::Manifest;
use crate::plugin::proposal::Registration;

/// One published version of a plugin.
#[derive(Clone, Debug)]
pub struct PluginInfo {
    /// What it says of itself.
    pub manifest: Manifest,
    /// What the operator allows.
    pub grant: Grant,
    /// What `setup` declared.
    pub registration: Registration,
    /// Digest of the component, `sha256:...`.
    pub digest: String,
}

/// Which plugin a job's action leads to.
#[derive(Clone, Debug)]
pub enum Found {
    /// This one: the digest the job is bound to while that can be run, else the serving one.
    Serving(Arc<PluginInfo>),
    /// A plugin for the action is there and not serving.
    NotServing {
        /// `AwaitingGrant` or `Quarantined`.
        reason: &'static str,
        /// Says why and names the fix.
        message: String,
    },
    /// Nobody implements the action.
    Unknown {
        /// The actions that are served, sorted.
        loaded: Vec<String>,
    },
}
