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

/// The plugin to which the action of a job leads.
#[derive(Clone, Debug)]
pub enum PluginLookup {
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

impl PluginInfo {
    /// The most targets in `Processing` at once, of all jobs: the lower of what the plugin asks for and what the grant
    /// allows, unlimited where neither says.
    pub fn targets_in_flight(&self) -> usize {
        let limits = [self.manifest.limits.targets_in_flight, self.grant.limits.targets_in_flight];
        limits.into_iter().flatten().min().map_or(usize::MAX, |most| most as usize)
    }
}

impl PluginLookup {
    /// The plugin, where one serves.
    pub fn serving(&self) -> Option<&Arc<PluginInfo>> {
        match self {
            Self::Serving(plugin) => Some(plugin),
            Self::NotServing { .. } | Self::Unknown { .. } => None,
        }
    }
}
