//! A served plugin as the decisions see it.
//!
//! `oarlock-wasm` makes these; `core` reads them.

use std::sync::Arc;

use crate::plugin::grant::Grant;
use crate::plugin::manifest::Manifest;
use crate::plugin::proposal::Registration;

/// Most targets in `Processing` of one job whose plugin's grant names no number. More are no faster: 32 writes are on the
/// wire at once, and each status that names more of them costs the API server more.
pub const TARGETS_IN_FLIGHT: u32 = 1_000;

/// One published version of a plugin.
#[derive(Clone, Debug)]
pub struct PluginInfo {
    /// Its manifest.
    pub manifest: Manifest,
    /// Its grant.
    pub grant: Grant,
    /// The declarations of `setup`.
    pub registration: Registration,
    /// Digest of the component, `sha256:...`.
    pub digest: String,
}

/// The plugin that the action of a job leads to.
#[derive(Clone, Debug)]
pub enum PluginLookup {
    /// This one: the digest the job is bound to while that can be run, else the serving one.
    Serving(Arc<PluginInfo>),
    /// A plugin for the action exists but does not serve.
    NotServing {
        /// `AwaitingGrant` or `Quarantined`.
        reason: &'static str,
        /// The reason and the fix.
        message: String,
    },
    /// No plugin implements the action.
    Unknown {
        /// The actions that are served, sorted, each with name and version of its plugin.
        loaded: Vec<String>,
    },
}

impl PluginInfo {
    /// The most targets in `Processing` at once, of all jobs: the lower of the plugin's request and the grant's limit,
    /// unlimited if neither has one.
    pub fn targets_in_flight(&self) -> usize {
        let limits = [self.manifest.limits.targets_in_flight, self.grant.limits.targets_in_flight];
        limits.into_iter().flatten().min().map_or(usize::MAX, |most| most as usize)
    }

    /// The same, of one job: what bounds all jobs where the grant names it, so that one job that is stuck keeps no other
    /// waiting where nobody asked for that.
    pub fn targets_of_one_job(&self) -> usize {
        self.grant.limits.targets_in_flight.unwrap_or(TARGETS_IN_FLIGHT) as usize
    }
}

impl PluginLookup {
    /// The plugin, if one serves.
    pub fn serving(&self) -> Option<&Arc<PluginInfo>> {
        match self {
            Self::Serving(plugin) => Some(plugin),
            Self::NotServing { .. } | Self::Unknown { .. } => None,
        }
    }
}
