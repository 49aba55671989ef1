//! One consistent view of the plugins that serve. It is replaced as a whole, and read without waiting.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use oarlock_core::plugin::lookup::PluginLookup;

use crate::plugin::{Declared, Plugin};
use crate::status::{PluginState, PluginStatus};

/// One consistent view.
#[derive(Default)]
pub(crate) struct Snapshot {
    /// The plugins that serve, by action.
    pub serving: BTreeMap<String, Arc<Plugin>>,
    /// All plugins that may be called, by digest: those that serve, and replaced versions that jobs still use.
    pub callable: HashMap<String, Callable>,
    pub list: Vec<PluginStatus>,
    pub declared: Declared,
}

/// A plugin that may be called.
pub(crate) struct Callable {
    pub plugin: Arc<Plugin>,
    /// Set when a job that is bound to it looks it up.
    pub asked: Arc<AtomicBool>,
}

impl Snapshot {
    /// The plugin for a job of `action`: the version that it is bound to while that is there, else the serving one.
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

    /// The plugin of this digest, if it may still be called.
    pub(crate) fn by_digest(&self, digest: &str) -> Option<&Arc<Plugin>> {
        self.callable.get(digest).map(|callable| &callable.plugin)
    }

    /// Returns `true` if both views answer everything alike.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let same = |(digest, callable): (&String, &Callable)| {
            other.by_digest(digest).is_some_and(|plugin| Arc::ptr_eq(plugin, &callable.plugin))
        };
        self.list == other.list
            && self.callable.len() == other.callable.len()
            && self.callable.iter().all(same)
            && self.serving.keys().eq(other.serving.keys())
    }

    /// Digests of all plugins that may be called.
    pub(crate) fn digests(&self) -> BTreeSet<String> {
        self.callable.keys().cloned().collect()
    }
}
