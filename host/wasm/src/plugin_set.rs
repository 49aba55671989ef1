//! The plugin files, and the replaced versions that jobs still use.
//!
//! May not load anything: it is told the outcome of loading each file. It has one writer at a time.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use oarlock_core::plugin::grant::Grant;

use crate::draining::Draining;
use crate::election::{Candidate, Election};
use crate::load::loader::Admission;
use crate::plugin::{Compiled, Plugin, Vetted, union};
use crate::snapshot::{Callable, Snapshot};
use crate::status::{PluginState, PluginStatus};

/// Time until what failed for now is tried again: at first, and at most. It doubles in between.
const FIRST_RETRY: Duration = Duration::from_secs(2);
const LAST_RETRY: Duration = Duration::from_secs(60);

/// One plugin file.
pub(crate) struct PluginEntry {
    pub digest: Option<String>,
    pub vetted: Option<Arc<Vetted>>,
    /// Its code, while it is granted.
    pub compiled: Option<Arc<Compiled>>,
    pub outcome: Outcome,
    /// The last plugin of this file that could serve, for as long as the present content cannot.
    pub last_good: Option<Arc<Plugin>>,
    /// The bytes of a component that has no file, until it is compiled.
    bytes: Option<Arc<Vec<u8>>>,
    retry: Option<Retry>,
}

/// The next try of what failed for now.
#[derive(Clone, Copy)]
struct Retry {
    wait: Duration,
    at: Instant,
}

/// The outcome of loading a file.
pub(crate) enum Outcome {
    /// The file is still being written.
    Unsettled,
    /// It is granted, and not compiled yet.
    Compiling,
    /// The file was loaded, or rejected on the way.
    Loaded(Admission),
}

/// All plugins of a host.
#[derive(Default)]
pub(crate) struct PluginSet {
    pub entries: BTreeMap<String, PluginEntry>,
    pub grants: Vec<Grant>,
    draining: Draining<Arc<Plugin>>,
    /// Digests that lost their grant, which do not drain.
    revoked: HashSet<String>,
}

impl PluginSet {
    /// Elects the plugins that serve. `before` is the snapshot until now, and `incumbents` are those in it that go on where another file
    /// has their version.
    pub(crate) fn publish(&mut self, before: &Snapshot, incumbents: &BTreeMap<String, Arc<Plugin>>) -> Snapshot {
        let candidates = self.entries.iter();
        let candidates = candidates.filter_map(|(source, entry)| Some(Candidate { source, plugin: entry.plugin()? }));
        let election = Election::hold(candidates, &self.grants, incumbents);
        let serving = &election.serving;
        self.drain(serving, before);
        let mut callable = HashMap::new();
        for plugin in serving.values() {
            let asked = Arc::new(AtomicBool::new(false));
            callable.insert(plugin.digest().to_owned(), Callable { plugin: plugin.clone(), asked });
        }
        for (digest, draining) in self.draining.iter() {
            let (plugin, asked) = (draining.plugin.clone(), draining.asked.clone());
            callable.insert(digest.clone(), Callable { plugin, asked });
        }
        let declared = union(callable.values().map(|callable| &callable.plugin));
        let list = self.list(&election);
        Snapshot { serving: election.serving, callable, list, declared }
    }

    /// Keeps replaced versions for the jobs that began with them.
    fn drain(&mut self, serving: &BTreeMap<String, Arc<Plugin>>, before: &Snapshot) {
        let serves = |digest: &str| serving.values().any(|plugin| plugin.digest() == digest);
        let revoked = std::mem::take(&mut self.revoked);
        self.draining.retain(|digest| !serves(digest) && !revoked.contains(digest));
        let replaced = before.serving.values().filter(|plugin| !serves(plugin.digest()));
        for plugin in replaced.filter(|plugin| !revoked.contains(plugin.digest())) {
            self.draining.add(plugin.digest(), plugin.clone());
        }
    }

    /// Replaces the file `source`. Its last good plugin serves on while the new one cannot.
    pub(crate) fn set(&mut self, source: &str, mut entry: PluginEntry) {
        if let Some(before) = self.entries.remove(source) {
            entry.last_good = before.plugin().cloned().filter(|_| !entry.is_ready());
            entry.bytes = before.bytes.filter(|_| before.digest == entry.digest && entry.compiled.is_none());
            entry.retry = before.retry.filter(|_| before.digest == entry.digest);
        }
        entry.settle();
        self.entries.insert(source.to_owned(), entry);
    }

    /// Keeps the bytes of a component without a file, unless it is compiled.
    pub(crate) fn keep_bytes(&mut self, source: &str, bytes: Arc<Vec<u8>>) {
        if let Some(entry) = self.entries.get_mut(source).filter(|entry| entry.compiled.is_none()) {
            entry.bytes = Some(bytes);
        }
    }

    /// Takes the outcome of the file `source` under a new grant. Nothing that the old grant allowed goes on.
    pub(crate) fn set_admission(&mut self, source: &str, outcome: Outcome) {
        let Some(entry) = self.entries.get_mut(source) else { return };
        entry.outcome = outcome;
        if entry.is_ready() {
            entry.last_good = None;
        } else {
            self.revoked.extend(entry.compiled.as_ref().map(|compiled| compiled.digest.clone()));
        }
        entry.settle();
    }

    /// Takes the admission of the last good plugin of the file `source` under a new grant.
    pub(crate) fn set_last_good(&mut self, source: &str, admission: Admission) {
        let Some(entry) = self.entries.get_mut(source) else { return };
        let before = entry.last_good.take();
        if let Admission::Ready(plugin) = admission {
            entry.last_good = Some(plugin);
        } else {
            self.revoked.extend(before.map(|plugin| plugin.digest().to_owned()));
        }
    }

    /// Components without a file that are granted and not compiled.
    pub(crate) fn granted_bytes(&self) -> Vec<(String, Arc<Vec<u8>>)> {
        let granted = self.entries.iter().filter(|(_, entry)| matches!(entry.outcome, Outcome::Compiling));
        granted.filter_map(|(source, entry)| Some((source.clone(), entry.bytes.clone()?))).collect()
    }

    /// The files to load again, and those that are compiled and only to be admitted again.
    pub(crate) fn due(&self) -> (BTreeSet<String>, Vec<(String, Arc<Compiled>)>) {
        let now = Instant::now();
        let (mut load, mut admit) = (BTreeSet::new(), Vec::new());
        for (source, entry) in &self.entries {
            let granted = matches!(entry.outcome, Outcome::Compiling) && entry.bytes.is_none();
            match &entry.compiled {
                _ if !granted && entry.retry.is_none_or(|retry| retry.at > now) => {}
                Some(compiled) => admit.push((source.clone(), compiled.clone())),
                None => drop(load.insert(source.clone())),
            }
        }
        (load, admit)
    }

    /// Replaced versions of the plugins of these names, which a new grant affects too.
    pub(crate) fn draining(&self, of: impl Fn(&str) -> bool) -> Vec<Arc<Compiled>> {
        let named = self.draining.iter().filter(|(_, draining)| of(&draining.plugin.manifest().name));
        named.map(|(_, draining)| draining.plugin.compiled.clone()).collect()
    }

    /// Takes the admission of a replaced version under a new grant.
    pub(crate) fn set_draining_admission(&mut self, digest: &str, admission: Admission) {
        match (admission, self.draining.get_mut(digest)) {
            (Admission::Ready(plugin), Some(draining)) => draining.plugin = plugin,
            _ => self.draining.retain(|other| other != digest),
        }
    }

    /// Retires replaced versions that no job asked for lately. Returns `true` if it retired any.
    pub(crate) fn sweep(&mut self) -> bool {
        self.draining.sweep()
    }

    /// True if there is a file of the plugin of this name.
    fn has(&self, name: &str) -> bool {
        self.entries.values().any(|entry| entry.vetted.as_ref().is_some_and(|vetted| vetted.manifest.name == name))
    }

    fn list(&self, election: &Election) -> Vec<PluginStatus> {
        let mut list: Vec<_> =
            self.entries.iter().flat_map(|(source, entry)| entry.statuses(source, election)).collect();
        for (_, draining) in self.draining.iter() {
            let plugin = &draining.plugin;
            let state = if self.has(&plugin.manifest().name) {
                (PluginState::Draining, "Replaced", "it serves jobs that began with it")
            } else {
                (PluginState::Draining, "Removed", "its file was removed; it serves jobs that began with it")
            };
            list.push(PluginStatus::of_plugin("", plugin.manifest(), plugin.digest()).with(state));
        }
        list
    }
}

impl PluginEntry {
    /// A file of which nothing but this is known.
    pub(crate) fn new(digest: Option<String>, outcome: Outcome) -> Self {
        Self { digest, vetted: None, compiled: None, outcome, last_good: None, bytes: None, retry: None }
    }

    fn is_ready(&self) -> bool {
        matches!(self.outcome, Outcome::Loaded(Admission::Ready(_)))
    }

    /// Keeps what the outcome needs: no code without a grant, and a time to try again only after a failure for now.
    fn settle(&mut self) {
        let outcome = match &self.outcome {
            Outcome::Loaded(admission) => Some(admission),
            Outcome::Unsettled | Outcome::Compiling => None,
        };
        if !matches!(outcome, Some(Admission::Ready(_) | Admission::Rejected(_))) {
            self.compiled = None;
        }
        let failed = matches!(outcome, Some(Admission::Rejected(rejection)) if rejection.retryable);
        let doubled = self.retry.map_or(FIRST_RETRY, |retry| retry.wait.saturating_mul(2).min(LAST_RETRY));
        self.retry = failed.then(|| Retry { wait: doubled, at: Instant::now() + doubled });
    }

    /// The plugin of this file that could serve.
    pub(crate) fn plugin(&self) -> Option<&Arc<Plugin>> {
        match &self.outcome {
            Outcome::Loaded(Admission::Ready(plugin)) => Some(plugin),
            _ => self.last_good.as_ref(),
        }
    }

    /// The statuses of the file: of its present content, and of the last good plugin if that serves.
    fn statuses(&self, source: &str, election: &Election) -> Vec<PluginStatus> {
        let serves = |good: &&Arc<Plugin>| election.serving.values().any(|plugin| Arc::ptr_eq(plugin, good));
        let last_good = self.last_good.as_ref().filter(serves);
        let state = (PluginState::Serving, "LastGood", "it serves its action until its replacement can");
        let last_good =
            last_good.map(|good| PluginStatus::of_plugin(source, good.manifest(), good.digest()).with(state));
        [self.status(source, election)].into_iter().chain(last_good).collect()
    }

    fn status(&self, source: &str, election: &Election) -> PluginStatus {
        let mut status = match &self.vetted {
            Some(vetted) => PluginStatus::of_plugin(source, &vetted.manifest, &vetted.digest),
            None => PluginStatus { digest: self.digest.clone(), ..PluginStatus::of_source(source) },
        };
        match &self.outcome {
            Outcome::Unsettled => status.with((PluginState::Discovered, "Settling", "it is still being written")),
            Outcome::Compiling => status.with((PluginState::Discovered, "Compiling", "it is being compiled")),
            Outcome::Loaded(Admission::Rejected(rejection)) => {
                status.with((PluginState::Rejected, &rejection.reason, &rejection.sentence))
            }
            Outcome::Loaded(Admission::Awaiting(missing)) => {
                status.missing = missing.clone();
                let lines = missing.iter().map(|line| line.split("   #").next().unwrap_or_default());
                let lines = lines.collect::<Vec<_>>().join("; ");
                let sentence = format!("its grant lacks (`oarlock plugin grant FILE` prints a whole one): {lines}");
                status.with((PluginState::AwaitingGrant, "GrantMissing", &sentence))
            }
            Outcome::Loaded(Admission::Ready(plugin)) => election.tell(status, plugin),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rejection::Rejection;

    fn waits(digest: &str) -> PluginEntry {
        let rejection = Rejection::for_now("Busy", "there is no room");
        PluginEntry::new(Some(digest.to_owned()), Outcome::Loaded(Admission::Rejected(rejection)))
    }

    #[test]
    fn what_failed_for_now_is_tried_again_less_and_less_often_until_it_changes() {
        let mut set = PluginSet::default();
        let mut fails = |digest| {
            set.set("a.wasm", waits(digest));
            set.entries["a.wasm"].retry.unwrap().wait.as_secs()
        };
        assert_eq!([(); 7].map(|()| fails("sha256:1")), [2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(fails("sha256:2"), 2);
        assert!(set.due().0.is_empty(), "not before its time");
    }
}
