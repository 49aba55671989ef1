//! A served plugin as the decisions of `core` see it.
//!
//! `oarlock-wasm` makes these values; `core` reads them.

use std::sync::Arc;

use crate::plugin::grant::Grant;
use crate::plugin::manifest::Manifest;
use crate::plugin::proposal::Registration;

/// The most targets of one job in `Processing` if the plugin's grant names no number. More targets are no faster: the host sends at most 32 writes at
/// once, and a status that names more targets costs the API server more.
pub const TARGETS_IN_FLIGHT: u32 = 1_000;

/// One published version of a plugin.
#[derive(Clone, Debug)]
pub struct PluginInfo {
    /// Manifest of the plugin.
    pub manifest: Manifest,
    /// Grant of the plugin.
    pub grant: Grant,
    /// The declarations that the plugin's `setup` made.
    pub registration: Registration,
    /// Digest of the component, `sha256:...`.
    pub digest: String,
}

/// The result of looking up the plugin for a job's action.
#[derive(Clone, Debug)]
pub enum PluginLookup {
    /// The plugin that serves the action. It has the digest that the job is bound to while that version can run, and otherwise the serving version.
    Serving(Arc<PluginInfo>),
    /// A plugin for the action exists but does not serve.
    NotServing {
        /// Either `AwaitingGrant` or `Quarantined`.
        reason: &'static str,
        /// The reason and the fix.
        message: String,
    },
    /// No plugin implements the action.
    Unknown {
        /// The served actions, sorted, each with the name and version of its plugin.
        loaded: Vec<String>,
    },
}

impl PluginInfo {
    /// Returns the most targets in `Processing` at once, over all jobs. It is the lower of the plugin's request and the grant's limit, and unlimited
    /// if neither has a number.
    pub fn targets_in_flight(&self) -> usize {
        let limits = [self.manifest.limits.targets_in_flight, self.grant.limits.targets_in_flight];
        limits.into_iter().flatten().min().map_or(usize::MAX, |most| most as usize)
    }

    /// Returns the most targets in `Processing` at once of one job: the grant's limit, or [`TARGETS_IN_FLIGHT`]. The plugin's own request does not
    /// count, so that one stuck job does not block others unless an admin set that limit.
    pub fn targets_of_one_job(&self) -> usize {
        self.grant.limits.targets_in_flight.unwrap_or(TARGETS_IN_FLIGHT) as usize
    }
}

impl PluginLookup {
    /// Returns the plugin, if it serves.
    pub fn serving(&self) -> Option<&Arc<PluginInfo>> {
        match self {
            Self::Serving(plugin) => Some(plugin),
            Self::NotServing { .. } | Self::Unknown { .. } => None,
        }
    }
}
