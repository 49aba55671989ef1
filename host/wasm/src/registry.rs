//! Which plugin serves which action.
//!
//! Takes what became of each file; yields one consistent view, swapped whole, that is read without waiting. May not
//! load anything.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use oarlock_core::plugin::lookup::Found;
use oarlock_core::plugin::manifest::Manifest;
use semver::Version;
use serde::Serialize;

use crate::load::loader::Admission;
use crate::plugin::{Compiled, Declared, Plugin, union};
use crate::rejection::Rejection;

/// How many sweeps a replaced version is kept without anybody asking for it: ten minutes.
const KEPT_SWEEPS: u32 = 300;

/// How far a plugin is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum PluginState {
    /// Seen, and waiting until it stands still.
    Discovered,
    /// Serves its action.
    Serving,
    /// Serves only jobs that began with it.
    Draining,
    /// Not used.
    Rejected,
    /// Asks for more than it was granted.
    AwaitingGrant,
}

/// What is told of one plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginStatus {
    /// The file, or the name under which it was published.
    pub source: String,
    /// Name of the plugin, where its manifest could be read.
    pub name: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// The action it implements.
    pub action: Option<String>,
    /// `sha256:...`, where the file could be read.
    pub digest: Option<String>,
    /// How far it is.
    pub state: PluginState,
    /// A CamelCase word for programs.
    pub reason: String,
    /// One sentence for people, with the fix where there is one.
    pub message: String,
    /// The lines that its grant lacks.
    pub missing: Vec<String>,
}

/// What became of one file.
pub(crate) struct Entry {
    pub digest: Option<String>,
    pub compiled: Option<Arc<Compiled>>,
    pub outcome: Outcome,
    /// The last plugin of this file that served, for as long as what is there now does not.
    pub good: Option<Arc<Plugin>>,
}

/// How far a file came.
pub(crate) enum Outcome {
    Unsettled,
    Rejected(Rejection),
    Awaiting(Vec<String>),
    Ready(Arc<Plugin>),
}

impl From<Admission> for Outcome {
    fn from(admission: Admission) -> Self {
        match admission {
            Admission::Ready(plugin) => Self::Ready(plugin),
            Admission::Awaiting(lines) => Self::Awaiting(lines),
            Admission::Rejected(rejection) => Self::Rejected(rejection),
        }
    }
}

struct Draining {
    plugin: Arc<Plugin>,
    asked: Arc<AtomicBool>,
    idle: u32,
}

/// The files and what is kept beside them. One writer at a time.
#[derive(Default)]
pub(crate) struct Registry {
    pub entries: BTreeMap<String, Entry>,
    draining: HashMap<String, Draining>,
    /// Digests that lost their grant, and so are kept for nobody.
    revoked: HashSet<String>,
}

/// One consistent view.
#[derive(Default)]
pub(crate) struct Published {
    serving: BTreeMap<String, Arc<Plugin>>,
    bound: HashMap<String, (Arc<Plugin>, Arc<AtomicBool>)>,
    pub list: Vec<PluginStatus>,
    pub declared: Declared,
}

impl Published {
    /// The plugin for a job of `action`: the one it is bound to while that is there, else the serving one.
    pub(crate) fn find(&self, action: &str, digest: Option<&str>) -> Found {
        let bound = digest.and_then(|digest| self.bound.get(digest));
        if let Some((plugin, asked)) = bound.filter(|(plugin, _)| plugin.manifest().action == action) {
            asked.store(true, Ordering::Relaxed);
            return Found::Serving(plugin.info.clone());
        }
        if let Some(plugin) = self.serving.get(action) {
            return Found::Serving(plugin.info.clone());
        }
        if let Some(status) = self.list.iter().find(|status| status.action.as_deref() == Some(action)) {
            let reason = if status.state == PluginState::AwaitingGrant { "AwaitingGrant" } else { "NoPlugin" };
            let (source, why, message) = (&status.source, &status.reason, &status.message);
            return Found::NotServing { reason, message: format!("{source}: {why}: {message}") };
        }
        Found::Unknown { loaded: self.serving.keys().cloned().collect() }
    }

    /// The plugin of this digest, if it may still be called.
    pub(crate) fn by_digest(&self, digest: &str) -> Option<Arc<Plugin>> {
        self.bound.get(digest).map(|(plugin, _)| plugin.clone())
    }

    /// Whether nobody could tell this view from the other.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let known = |(digest, (plugin, _)): (&String, &(Arc<Plugin>, _))| {
            other.bound.get(digest).is_some_and(|(same, _)| Arc::ptr_eq(plugin, same))
        };
        self.list == other.list
            && self.bound.len() == other.bound.len()
            && self.bound.iter().all(known)
            && self.serving.keys().eq(other.serving.keys())
    }

    /// Digests of all plugins that may be called.
    pub(crate) fn digests(&self) -> BTreeSet<String> {
        self.bound.keys().cloned().collect()
    }
}

impl Registry {
    /// Decides anew who serves. `before` is the view until now.
    pub(crate) fn publish(&mut self, before: &Published) -> Published {
        let mut candidates: BTreeMap<String, Vec<Arc<Plugin>>> = BTreeMap::new();
        for plugin in self.entries.values().filter_map(Entry::plugin) {
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
        let list = self.list(&serving);
        let mut bound = HashMap::new();
        for plugin in serving.values() {
            bound.insert(plugin.digest().to_owned(), (plugin.clone(), Arc::new(AtomicBool::new(false))));
        }
        for (digest, draining) in &self.draining {
            bound.insert(digest.clone(), (draining.plugin.clone(), draining.asked.clone()));
        }
        let declared = union(bound.values().map(|(plugin, _)| plugin));
        Published { serving, bound, list, declared }
    }

    /// Whoever served and no longer does is kept for the jobs that began with it.
    fn drain(&mut self, serving: &BTreeMap<String, Arc<Plugin>>, before: &Published) {
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

    /// Takes a new grant for the file `source`. Nothing that held by the old one goes on.
    pub(crate) fn regranted(&mut self, source: &str, admission: Admission) {
        let Some(entry) = self.entries.get_mut(source) else { return };
        let digest = entry.compiled.as_ref().map(|compiled| compiled.digest.clone());
        entry.good = None;
        entry.outcome = admission.into();
        if !matches!(entry.outcome, Outcome::Ready(_)) {
            self.revoked.extend(digest);
        }
    }

    /// Replaced versions of the plugin `name`, which a new grant concerns too.
    pub(crate) fn draining(&self, name: &str) -> Vec<Arc<Compiled>> {
        let named = self.draining.values().filter(|draining| draining.plugin.manifest().name == name);
        named.map(|draining| draining.plugin.compiled.clone()).collect()
    }

    /// Takes a new grant for a replaced version.
    pub(crate) fn redrained(&mut self, digest: &str, admission: Admission) {
        match (admission, self.draining.get_mut(digest)) {
            (Admission::Ready(plugin), Some(draining)) => draining.plugin = plugin,
            _ => drop(self.draining.remove(digest)),
        }
    }

    /// Retires replaced versions that nobody asked for. Whether any went.
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
            let said = (PluginState::Draining, "Replaced", "it serves jobs that began with it");
            list.push(of_plugin("", plugin.manifest(), plugin.digest()).with(said));
        }
        list
    }
}

/// The one of the highest version. Of two that claim the same one, the one that served; else neither.
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

impl Entry {
    /// The plugin of this file that could serve.
    pub(crate) fn plugin(&self) -> Option<&Arc<Plugin>> {
        match &self.outcome {
            Outcome::Ready(plugin) => Some(plugin),
            _ => self.good.as_ref(),
        }
    }

    /// What is told of the file: of what is there now, and of what serves in its place.
    fn statuses(&self, source: &str, serving: &BTreeMap<String, Arc<Plugin>>) -> Vec<PluginStatus> {
        let good = self.good.as_ref().filter(|good| serving.values().any(|plugin| Arc::ptr_eq(plugin, good)));
        let said = (PluginState::Serving, "LastGood", "it serves its action until what replaces it can");
        let good = good.map(|good| of_plugin(source, good.manifest(), good.digest()).with(said));
        [self.status(source, serving)].into_iter().chain(good).collect()
    }

    fn status(&self, source: &str, serving: &BTreeMap<String, Arc<Plugin>>) -> PluginStatus {
        let mut status = match &self.compiled {
            Some(compiled) => of_plugin(source, &compiled.manifest, &compiled.digest),
            None => PluginStatus { digest: self.digest.clone(), ..unknown(source) },
        };
        match &self.outcome {
            Outcome::Unsettled => status.with((PluginState::Discovered, "Settling", "it is still being written")),
            Outcome::Rejected(rejection) => status.with((PluginState::Rejected, rejection.reason, &rejection.sentence)),
            Outcome::Awaiting(missing) => {
                status.missing = missing.clone();
                let sentence = format!("its grant lacks: {}", missing.join("; "));
                status.with((PluginState::AwaitingGrant, "GrantMissing", &sentence))
            }
            Outcome::Ready(plugin) => match serving.get(&plugin.manifest().action) {
                Some(winner) if winner.digest() == plugin.digest() => {
                    status.with((PluginState::Serving, "Serving", "it serves its action"))
                }
                Some(winner) => {
                    let (name, version) = (&winner.manifest().name, &winner.manifest().version);
                    let sentence =
                        format!("{name} {version} serves this action; raise the version, or remove one file");
                    status.with((PluginState::Rejected, "ActionTaken", &sentence))
                }
                None => {
                    let sentence = "another file claims the same action and version; remove one of them";
                    status.with((PluginState::Rejected, "ActionTaken", sentence))
                }
            },
        }
    }
}

fn unknown(source: &str) -> PluginStatus {
    PluginStatus {
        source: source.to_owned(),
        name: None,
        version: None,
        action: None,
        digest: None,
        state: PluginState::Discovered,
        reason: String::new(),
        message: String::new(),
        missing: Vec::new(),
    }
}

fn of_plugin(source: &str, manifest: &Manifest, digest: &str) -> PluginStatus {
    PluginStatus {
        name: Some(manifest.name.clone()),
        version: Some(manifest.version.to_string()),
        action: Some(manifest.action.clone()),
        digest: Some(digest.to_owned()),
        ..unknown(source)
    }
}

impl PluginStatus {
    fn with(self, (state, reason, message): (PluginState, &str, &str)) -> Self {
        Self { state, reason: reason.to_owned(), message: message.to_owned(), ..self }
    }
}
