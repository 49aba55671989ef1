//! The plugin files, the replaced versions that jobs still use, and the election of the plugin that serves an action.
//!
//! May not load anything: it is told the outcome of loading each file. It has one writer at a time.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use oarlock_core::plugin::grant::Grant;
use semver::Version;

use crate::load::loader::Admission;
use crate::plugin::{Compiled, Plugin, union};
use crate::rejection::Rejection;
use crate::snapshot::{Callable, Snapshot};
use crate::status::{PluginState, PluginStatus, Unavailable};

/// Number of sweeps for which a replaced version is kept after the last lookup: ten minutes.
const KEPT_SWEEPS: u32 = 300;

/// One plugin file.
pub(crate) struct PluginEntry {
    pub digest: Option<String>,
    pub compiled: Option<Arc<Compiled>>,
    pub outcome: Outcome,
    /// The last plugin of this file that could serve, for as long as the present content cannot.
    pub last_good: Option<Arc<Plugin>>,
}

/// The outcome of loading a file.
pub(crate) enum Outcome {
    /// The file is still being written.
    Unsettled,
    /// The file was loaded, or rejected on the way.
    Loaded(Admission),
}

struct Draining {
    plugin: Arc<Plugin>,
    asked: Arc<AtomicBool>,
    idle: u32,
}

/// All plugins of a host.
#[derive(Default)]
pub(crate) struct PluginSet {
    pub entries: BTreeMap<String, PluginEntry>,
    pub grants: Vec<Grant>,
    draining: BTreeMap<String, Draining>,
    /// Digests that lost their grant, which do not drain.
    revoked: HashSet<String>,
    /// Plugins whose kinds cannot be listed, by digest.
    unavailable: BTreeMap<String, Unavailable>,
}

impl PluginSet {
    /// Elects the plugins that serve. `before` is the snapshot until now.
    pub(crate) fn publish(&mut self, before: &Snapshot) -> Snapshot {
        let mut candidates: BTreeMap<String, Vec<Arc<Plugin>>> = BTreeMap::new();
        for plugin in self.entries.values().filter_map(PluginEntry::plugin) {
            let rivals = candidates.entry(plugin.manifest().action.clone()).or_default();
            if rivals.iter().all(|rival| rival.digest() != plugin.digest()) {
                rivals.push(plugin.clone());
            }
        }
        let elected = candidates
            .into_iter()
            .filter_map(|(action, rivals)| Some((action.clone(), elect(&rivals, before.serving.get(&action))?)));
        let serving: BTreeMap<_, _> = elected.collect();
        self.drain(&serving, before);
        let mut callable = HashMap::new();
        for plugin in serving.values() {
            let asked = Arc::new(AtomicBool::new(false));
            callable.insert(plugin.digest().to_owned(), Callable { plugin: plugin.clone(), asked });
        }
        for (digest, draining) in &self.draining {
            let (plugin, asked) = (draining.plugin.clone(), draining.asked.clone());
            callable.insert(digest.clone(), Callable { plugin, asked });
        }
        let declared = union(callable.values().map(|callable| &callable.plugin));
        self.unavailable.retain(|digest, _| callable.contains_key(digest));
        let list = self.list(&serving);
        Snapshot { serving, callable, unavailable: self.unavailable.clone(), list, declared }
    }

    /// Keeps replaced versions for the jobs that began with them.
    fn drain(&mut self, serving: &BTreeMap<String, Arc<Plugin>>, before: &Snapshot) {
        let serves = |digest: &str| serving.values().any(|plugin| plugin.digest() == digest);
        self.draining.retain(|digest, _| !serves(digest));
        let revoked = std::mem::take(&mut self.revoked);
        self.draining.retain(|digest, _| !revoked.contains(digest));
        let replaced = before.serving.values().filter(|plugin| !serves(plugin.digest()));
        for plugin in replaced.filter(|plugin| !revoked.contains(plugin.digest())) {
            let asked = Arc::new(AtomicBool::new(false));
            self.draining.entry(plugin.digest().to_owned()).or_insert_with(|| Draining {
                plugin: plugin.clone(),
                asked,
                idle: 0,
            });
        }
    }

    /// Replaces the outcome of a file of which nothing is compiled. Its last good plugin serves on.
    pub(crate) fn set_outcome(&mut self, source: &str, outcome: Outcome) {
        let last_good = self.entries.get(source).and_then(PluginEntry::plugin).cloned();
        self.entries.insert(source.to_owned(), PluginEntry { digest: None, compiled: None, outcome, last_good });
    }

    /// Takes the result of loading the file `source`. Its last good plugin serves on while the new one cannot.
    pub(crate) fn set_loaded(
        &mut self,
        source: &str,
        digest: String,
        loaded: Result<(Arc<Compiled>, Admission), Rejection>,
    ) {
        let last_good = self.entries.get(source).and_then(PluginEntry::plugin).cloned();
        let (compiled, admission) = match loaded {
            Ok((compiled, admission)) => (Some(compiled), admission),
            Err(rejection) => (None, Admission::Rejected(rejection)),
        };
        let last_good = last_good.filter(|_| !matches!(admission, Admission::Ready(_)));
        let entry = PluginEntry { digest: Some(digest), compiled, outcome: Outcome::Loaded(admission), last_good };
        self.entries.insert(source.to_owned(), entry);
    }

    /// Takes the admission of the file `source` under a new grant. Nothing that the old grant allowed goes on.
    pub(crate) fn set_admission(&mut self, source: &str, admission: Admission) {
        let Some(entry) = self.entries.get_mut(source) else { return };
        let digest = entry.compiled.as_ref().map(|compiled| compiled.digest.clone());
        entry.last_good = None;
        if !matches!(admission, Admission::Ready(_)) {
            self.revoked.extend(digest);
        }
        entry.outcome = Outcome::Loaded(admission);
    }

    /// Marks a plugin as unavailable, or as available again. A mark goes with the plugin.
    pub(crate) fn set_unavailable(&mut self, digest: &str, unavailable: Option<Unavailable>) {
        match unavailable {
            Some(unavailable) => drop(self.unavailable.insert(digest.to_owned(), unavailable)),
            None => drop(self.unavailable.remove(digest)),
        }
    }

    /// Replaced versions of the plugin `name`, which a new grant affects too.
    pub(crate) fn draining(&self, name: &str) -> Vec<Arc<Compiled>> {
        let named = self.draining.values().filter(|draining| draining.plugin.manifest().name == name);
        named.map(|draining| draining.plugin.compiled.clone()).collect()
    }

    /// Takes the admission of a replaced version under a new grant.
    pub(crate) fn set_draining_admission(&mut self, digest: &str, admission: Admission) {
        match (admission, self.draining.get_mut(digest)) {
            (Admission::Ready(plugin), Some(draining)) => draining.plugin = plugin,
            _ => drop(self.draining.remove(digest)),
        }
    }

    /// Retires replaced versions that no job asked for lately. Returns `true` if it retired any.
    pub(crate) fn sweep(&mut self) -> bool {
        let before = self.draining.len();
        self.draining.retain(|_, draining| {
            draining.idle = if draining.asked.swap(false, Ordering::Relaxed) { 0 } else { draining.idle + 1 };
            draining.idle <= KEPT_SWEEPS
        });
        self.draining.len() != before
    }

    fn list(&self, serving: &BTreeMap<String, Arc<Plugin>>) -> Vec<PluginStatus> {
        let mut list: Vec<_> =
            self.entries.iter().flat_map(|(source, entry)| entry.statuses(source, serving)).collect();
        for draining in self.draining.values() {
            let plugin = &draining.plugin;
            let state = (PluginState::Draining, "Replaced", "it serves jobs that began with it");
            list.push(PluginStatus::of_plugin("", plugin.manifest(), plugin.digest()).with(state));
        }
        for status in list.iter_mut().filter(|status| status.state.is_callable()) {
            let unavailable = status.digest.as_ref().and_then(|digest| self.unavailable.get(digest));
            if let Some(Unavailable { reason, message }) = unavailable {
                *status = status.clone().with((PluginState::Unavailable, reason, message));
            }
        }
        list
    }
}

/// The plugin of the highest version. If two files have it, the one that served before; else neither.
fn elect(rivals: &[Arc<Plugin>], incumbent: Option<&Arc<Plugin>>) -> Option<Arc<Plugin>> {
    let version = |plugin: &Arc<Plugin>| -> Version { plugin.manifest().version.clone() };
    let highest = rivals.iter().map(version).max()?;
    let mut top = rivals.iter().filter(|plugin| version(plugin) == highest);
    match (top.next(), top.next()) {
        (Some(only), None) => Some(only.clone()),
        _ => {
            let served = |plugin: &&Arc<Plugin>| incumbent.is_some_and(|old| old.digest() == plugin.digest());
            rivals.iter().filter(|plugin| version(plugin) == highest).find(served).cloned()
        }
    }
}

impl PluginEntry {
    /// The plugin of this file that could serve.
    pub(crate) fn plugin(&self) -> Option<&Arc<Plugin>> {
        match &self.outcome {
            Outcome::Loaded(Admission::Ready(plugin)) => Some(plugin),
            _ => self.last_good.as_ref(),
        }
    }

    /// The statuses of the file: of its present content, and of the last good plugin if that serves.
    fn statuses(&self, source: &str, serving: &BTreeMap<String, Arc<Plugin>>) -> Vec<PluginStatus> {
        let last_good = self.last_good.as_ref().filter(|good| serving.values().any(|plugin| Arc::ptr_eq(plugin, good)));
        let state = (PluginState::Serving, "LastGood", "it serves its action until its replacement can");
        let last_good =
            last_good.map(|good| PluginStatus::of_plugin(source, good.manifest(), good.digest()).with(state));
        [self.status(source, serving)].into_iter().chain(last_good).collect()
    }

    fn status(&self, source: &str, serving: &BTreeMap<String, Arc<Plugin>>) -> PluginStatus {
        let mut status = match &self.compiled {
            Some(compiled) => PluginStatus::of_plugin(source, &compiled.manifest, &compiled.digest),
            None => PluginStatus { digest: self.digest.clone(), ..PluginStatus::of_source(source) },
        };
        match &self.outcome {
            Outcome::Unsettled => status.with((PluginState::Discovered, "Settling", "it is still being written")),
            Outcome::Loaded(Admission::Rejected(rejection)) => {
                status.with((PluginState::Rejected, rejection.reason, &rejection.sentence))
            }
            Outcome::Loaded(Admission::Awaiting(missing)) => {
                status.missing = missing.clone();
                let sentence = format!("its grant lacks: {}", missing.join("; "));
                status.with((PluginState::AwaitingGrant, "GrantMissing", &sentence))
            }
            Outcome::Loaded(Admission::Ready(plugin)) => with_election(status, plugin, serving),
        }
    }
}

/// The status of a plugin that could serve.
fn with_election(status: PluginStatus, plugin: &Plugin, serving: &BTreeMap<String, Arc<Plugin>>) -> PluginStatus {
    match serving.get(&plugin.manifest().action) {
        Some(winner) if winner.digest() == plugin.digest() => {
            status.with((PluginState::Serving, "Serving", "it serves its action"))
        }
        Some(winner) => {
            let (name, version) = (&winner.manifest().name, &winner.manifest().version);
            let sentence = format!("{name} {version} serves this action; raise the version, or remove one file");
            status.with((PluginState::Rejected, "ActionTaken", &sentence))
        }
        None => {
            let sentence = "another file claims the same action and version; remove one of them";
            status.with((PluginState::Rejected, "ActionTaken", sentence))
        }
    }
}
