//! The plugin files, and the replaced versions that running jobs still use.
//!
//! The set loads nothing itself. The registry passes the outcome of each load to it. It has one writer at a time.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use oarlock_core::plugin::grant::Grant;
use oarlock_core::requests::backoff::Backoff;

use crate::draining::Draining;
use crate::election::{Candidate, Election};
use crate::load::loader::Admission;
use crate::plugin::{Compiled, Plugin, Vetted, union};
use crate::snapshot::{Callable, Snapshot};
use crate::status::{PluginState, PluginStatus};

/// The waits before the host retries a file that failed for now.
const RETRIES: Backoff = Backoff::from_secs(2, 60);

/// The lengths of the quarantines of one version: 10 minutes, doubled up to a day.
const QUARANTINES: Backoff = Backoff::from_secs(600, 86_400);
/// The most digests whose quarantines are counted.
const MOST_QUARANTINES: usize = 256;

/// The missing lines of a grant that a message names.
const NAMED_LINES: usize = 3;

/// One plugin file.
pub(crate) struct PluginEntry {
    pub digest: Option<String>,
    pub vetted: Option<Arc<Vetted>>,
    /// The code of the file, while the file has a grant.
    pub compiled: Option<Arc<Compiled>>,
    pub outcome: Outcome,
    /// The last plugin of this file that could serve, while the current content cannot.
    pub last_good: Option<Arc<Plugin>>,
    /// The bytes of a component without a file, until it is compiled.
    bytes: Option<Arc<Vec<u8>>>,
    retry: Option<Retry>,
}

/// The next try of a load that failed for now.
#[derive(Clone, Copy)]
struct Retry {
    failures: u32,
    at: Instant,
}

/// The outcome of loading a file.
pub(crate) enum Outcome {
    /// The file is still being written.
    Unsettled,
    /// The file has a grant and is not compiled yet.
    Compiling,
    /// The host loaded the file, or rejected it.
    Loaded(Admission),
}

/// All plugins of a host.
#[derive(Default)]
pub(crate) struct PluginSet {
    pub entries: BTreeMap<String, PluginEntry>,
    pub grants: Vec<Grant>,
    draining: Draining<Arc<Plugin>>,
    /// The digests that lost their grant, or that are quarantined. These versions do not drain.
    revoked: HashSet<String>,
    /// The number of quarantines of each digest, so that each is longer than the one before.
    quarantines: BTreeMap<String, u32>,
}

impl PluginSet {
    /// Elects the plugins that serve. `before` is the previous snapshot. `incumbents` are the plugins of that snapshot that continue if
    /// another file has the same version.
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

    /// Replaces the file `source`. Its last good plugin continues to serve while the new plugin cannot.
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

    /// Takes the outcome of the file `source` with a new grant. Uses that only the old grant allowed end.
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

    /// Takes the admission of the last good plugin of the file `source` with a new grant.
    pub(crate) fn set_last_good(&mut self, source: &str, admission: Admission) {
        let Some(entry) = self.entries.get_mut(source) else { return };
        let before = entry.last_good.take();
        if let Admission::Ready(plugin) = admission {
            entry.last_good = Some(plugin);
        } else {
            self.revoked.extend(before.map(|plugin| plugin.digest().to_owned()));
        }
    }

    /// Lets the highest replaced version below the version with this digest serve in its place. Without such a version, nothing changes. Jobs that began
    /// with the quarantined version go on with the other one.
    pub(crate) fn roll_back(&mut self, digest: &str) {
        let is_bad = |entry: &PluginEntry| matches!(&entry.outcome, Outcome::Loaded(Admission::Ready(plugin)) if plugin.digest() == digest);
        let Some(entry) = self.entries.values_mut().find(|entry| is_bad(entry)) else { return };
        let Some(bad) = entry.plugin().map(|plugin| plugin.manifest().clone()) else { return };
        let below = self.draining.iter().map(|(digest, draining)| (digest, draining.plugin.manifest()));
        let below = below.filter(|(_, manifest)| {
            (&manifest.name, &manifest.action) == (&bad.name, &bad.action) && manifest.version < bad.version
        });
        let Some(good) = below.max_by_key(|(_, manifest)| manifest.version.clone()).map(|(digest, _)| digest.clone())
        else {
            return;
        };
        let Some(good) = self.draining.take(&good) else { return };
        let before = self.quarantines.get(digest).copied().unwrap_or_default();
        if self.quarantines.len() < MOST_QUARANTINES || before > 0 {
            self.quarantines.insert(digest.to_owned(), before.saturating_add(1));
        }
        let wait = QUARANTINES.wait(before);
        let sentence = format!(
            "it trapped too often on targets of several users, so version {} serves for {} minutes: correct it, and raise its version",
            good.manifest().version,
            wait.as_secs() / 60
        );
        entry.outcome = Outcome::Loaded(Admission::Quarantined(sentence));
        entry.last_good = Some(good);
        entry.retry = Some(Retry { failures: before, at: Instant::now() + wait });
        self.revoked.insert(digest.to_owned());
    }

    /// Returns the components without a file that have a grant and are not compiled.
    pub(crate) fn granted_bytes(&self) -> Vec<(String, Arc<Vec<u8>>)> {
        let granted = self.entries.iter().filter(|(_, entry)| matches!(entry.outcome, Outcome::Compiling));
        granted.filter_map(|(source, entry)| Some((source.clone(), entry.bytes.clone()?))).collect()
    }

    /// Returns the files to load again, and the compiled files that only need a new admission.
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

    /// Returns the replaced versions of the plugins with these names. A new grant affects them too.
    pub(crate) fn draining(&self, of: impl Fn(&str) -> bool) -> Vec<Arc<Compiled>> {
        let named = self.draining.iter().filter(|(_, draining)| of(&draining.plugin.manifest().name));
        named.map(|(_, draining)| draining.plugin.compiled.clone()).collect()
    }

    /// Takes the admission of a replaced version with a new grant.
    pub(crate) fn set_draining_admission(&mut self, digest: &str, admission: Admission) {
        match (admission, self.draining.get_mut(digest)) {
            (Admission::Ready(plugin), Some(draining)) => draining.plugin = plugin,
            _ => self.draining.retain(|other| other != digest),
        }
    }

    /// Removes replaced versions that no job looked up lately. Returns true if it removed any.
    pub(crate) fn sweep(&mut self) -> bool {
        self.draining.sweep()
    }

    /// Returns true if a file of the plugin with this name exists.
    fn has(&self, name: &str) -> bool {
        self.entries.values().any(|entry| entry.vetted.as_ref().is_some_and(|vetted| vetted.manifest.name == name))
    }

    fn list(&self, election: &Election) -> Vec<PluginStatus> {
        let mut list: Vec<_> =
            self.entries.iter().flat_map(|(source, entry)| entry.statuses(source, election)).collect();
        for (_, draining) in self.draining.iter() {
            let plugin = &draining.plugin;
            let (reason, message) = if self.has(&plugin.manifest().name) {
                ("Replaced", "it serves jobs that began with it")
            } else {
                ("Removed", "its file was removed; it serves jobs that began with it")
            };
            let status = PluginStatus::of_plugin("", plugin.manifest(), plugin.digest());
            list.push(status.with(PluginState::Draining, reason, message));
        }
        list
    }
}

impl PluginEntry {
    /// Returns an entry for a file of which the host knows only the digest and the outcome.
    pub(crate) fn new(digest: Option<String>, outcome: Outcome) -> Self {
        Self { digest, vetted: None, compiled: None, outcome, last_good: None, bytes: None, retry: None }
    }

    /// Returns true if the version before serves, because this one trapped too often.
    pub(crate) fn is_quarantined(&self) -> bool {
        matches!(self.outcome, Outcome::Loaded(Admission::Quarantined(_)))
    }

    fn is_ready(&self) -> bool {
        matches!(self.outcome, Outcome::Loaded(Admission::Ready(_)))
    }

    /// Drops data that the outcome does not need. Without a grant the host keeps no code, and only a failure for now gets a time for the
    /// next try.
    fn settle(&mut self) {
        let outcome = match &self.outcome {
            Outcome::Loaded(admission) => Some(admission),
            Outcome::Unsettled | Outcome::Compiling => None,
        };
        if !matches!(outcome, Some(Admission::Ready(_) | Admission::Rejected(_))) {
            self.compiled = None;
        }
        let failed = matches!(outcome, Some(Admission::Rejected(rejection)) if rejection.retryable);
        let failures = self.retry.map_or(0, |retry| retry.failures.saturating_add(1));
        self.retry = failed.then(|| Retry { failures, at: Instant::now() + RETRIES.wait(failures) });
    }

    /// Returns the plugin of this file that could serve.
    pub(crate) fn plugin(&self) -> Option<&Arc<Plugin>> {
        match &self.outcome {
            Outcome::Loaded(Admission::Ready(plugin)) => Some(plugin),
            _ => self.last_good.as_ref(),
        }
    }

    /// Returns the statuses of the file: the status of its current content, and the status of its last good plugin if that plugin serves.
    fn statuses(&self, source: &str, election: &Election) -> Vec<PluginStatus> {
        let serves = |good: &&Arc<Plugin>| election.serving.values().any(|plugin| Arc::ptr_eq(plugin, good));
        let last_good = self.last_good.as_ref().filter(serves);
        let message = "it serves its action until its replacement can";
        let last_good = last_good.map(|good| {
            let status = PluginStatus::of_plugin(source, good.manifest(), good.digest());
            status.with(PluginState::Serving, "LastGood", message)
        });
        [self.status(source, election)].into_iter().chain(last_good).collect()
    }

    fn status(&self, source: &str, election: &Election) -> PluginStatus {
        let mut status = match &self.vetted {
            Some(vetted) => PluginStatus::of_plugin(source, &vetted.manifest, &vetted.digest),
            None => PluginStatus { digest: self.digest.clone(), ..PluginStatus::of_source(source) },
        };
        match &self.outcome {
            Outcome::Unsettled => status.with(PluginState::Discovered, "Settling", "it is still being written"),
            Outcome::Compiling => status.with(PluginState::Discovered, "Compiling", "it is being compiled"),
            Outcome::Loaded(Admission::Rejected(rejection)) => {
                status.with(PluginState::Rejected, &rejection.reason, &rejection.sentence)
            }
            Outcome::Loaded(Admission::Quarantined(sentence)) => {
                status.with(PluginState::Quarantined, "TooManyTraps", sentence)
            }
            Outcome::Loaded(Admission::Awaiting(missing)) => {
                status.missing = missing.clone();
                status.with(PluginState::AwaitingGrant, "GrantMissing", &lacks(missing))
            }
            Outcome::Loaded(Admission::Ready(plugin)) => election.tell(status, plugin),
        }
    }
}

/// Returns the message for a plugin whose grant lacks these lines. It names the first lines; `oarlock plugin` shows all of them.
fn lacks(missing: &[String]) -> String {
    let shown = missing.iter().take(NAMED_LINES).map(|line| line.split("   #").next().unwrap_or_default());
    let shown = shown.collect::<Vec<_>>().join("; ");
    let more = match missing.len().saturating_sub(NAMED_LINES) {
        0 => String::new(),
        more => format!(" and {more} more lines"),
    };
    format!("its grant lacks {shown}{more}; add what `oarlock plugin grant FILE` prints to the grants")
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
    fn a_grant_that_lacks_many_lines_is_told_in_one_short_sentence() {
        let missing: Vec<String> = (0..9).map(|number| format!("read v1 Kind{number}   # why")).collect();
        let first = "its grant lacks read v1 Kind0; read v1 Kind1; read v1 Kind2 and 6 more lines";
        let advice = "; add what `oarlock plugin grant FILE` prints to the grants";
        assert_eq!(lacks(&missing), format!("{first}{advice}"));
        assert_eq!(lacks(&missing[..1]), format!("its grant lacks read v1 Kind0{advice}"));
    }

    #[test]
    fn what_failed_for_now_is_tried_again_less_and_less_often_until_it_changes() {
        let mut set = PluginSet::default();
        let mut fails = |digest| {
            set.set("a.wasm", waits(digest));
            set.entries["a.wasm"].retry.map(|retry| RETRIES.wait(retry.failures).as_secs()).unwrap()
        };
        assert_eq!([(); 7].map(|()| fails("sha256:1")), [2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(fails("sha256:2"), 2);
        assert!(set.due().0.is_empty(), "not before its time");
    }
}
