//! A consistent view of the plugins that serve. The registry replaces it as a whole, and readers never wait.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use oarlock_core::plugin::lookup::PluginLookup;

use crate::plugin::{Declared, Plugin};
use crate::status::{PluginState, PluginStatus};

/// A consistent view of the plugins.
#[derive(Default)]
pub(crate) struct Snapshot {
    /// The plugins that serve, by action.
    pub serving: BTreeMap<String, Arc<Plugin>>,
    /// All callable plugins, by digest: plugins that serve, and replaced versions that running jobs still use.
    pub callable: HashMap<String, Callable>,
    pub list: Vec<PluginStatus>,
    pub declared: Declared,
}

/// A callable plugin.
pub(crate) struct Callable {
    pub plugin: Arc<Plugin>,
    /// True once a job that is bound to the plugin has looked it up.
    pub asked: Arc<AtomicBool>,
}

impl Snapshot {
    /// Returns the plugin for a job of `action`: the version to which the job is bound, if it is available, and otherwise the serving
    /// version.
    pub(crate) fn find(&self, action: &str, digest: Option<&str>) -> PluginLookup {
        let bound = digest.and_then(|digest| self.callable.get(digest));
        if let Some(bound) = bound.filter(|bound| bound.plugin.manifest().action == action) {
            bound.asked.store(true, Ordering::Relaxed);
            return PluginLookup::Serving(bound.plugin.info.clone());
        }
        if let Some(plugin) = self.serving.get(action) {
            return PluginLookup::Serving(plugin.info.clone());
        }
        let mut known = self.list.iter().filter(|status| status.action.as_deref() == Some(action)).peekable();
        let is_gone = known.peek().is_some();
        if let Some(status) = known.find(|status| status.state != PluginState::Draining) {
            let reason = if status.state == PluginState::AwaitingGrant { "AwaitingGrant" } else { "NoPlugin" };
            let (source, why, message) = (&status.source, &status.reason, &status.message);
            return PluginLookup::NotServing { reason, message: format!("{source}: {why}: {message}") };
        }
        if is_gone {
            let message = "the file of its plugin was removed: jobs that began with it go on, others wait until it is \
                           dropped into the plugin directory again";
            return PluginLookup::NotServing { reason: "NoPlugin", message: message.to_owned() };
        }
        let loaded = self.serving.iter().map(|(action, plugin)| {
            let manifest = plugin.manifest();
            format!("{action} ({} {})", manifest.name, manifest.version)
        });
        PluginLookup::Unknown { loaded: loaded.collect() }
    }

    /// Returns the plugin with this digest, if it is still callable.
    pub(crate) fn by_digest(&self, digest: &str) -> Option<&Arc<Plugin>> {
        self.callable.get(digest).map(|callable| &callable.plugin)
    }

    /// Returns true if both views give the same answers.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let same = |(digest, callable): (&String, &Callable)| {
            other.by_digest(digest).is_some_and(|plugin| Arc::ptr_eq(plugin, &callable.plugin))
        };
        self.list == other.list
            && self.callable.len() == other.callable.len()
            && self.callable.iter().all(same)
            && self.serving.keys().eq(other.serving.keys())
    }

    /// Returns the digests of all callable plugins.
    pub(crate) fn digests(&self) -> BTreeSet<String> {
        self.callable.keys().cloned().collect()
    }
}
