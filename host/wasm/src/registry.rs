//! Loads components, applies grants, and publishes the resulting snapshot.
//!
//! Reads of a snapshot never wait. A grant does not wait for a component that is being compiled.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use oarlock_core::plugin::grant::Grant;
use oarlock_core::plugin::lookup::PluginLookup;
use tokio::sync::{Mutex, Notify, watch};
use tokio::task::spawn_blocking;

use crate::load::inspect::digest;
use crate::load::loader::{Admission, Effort, Loader};
use crate::plugin::{Compiled, Vetted};
use crate::plugin_set::{Outcome, PluginEntry, PluginSet};
use crate::probe::probe;
use crate::rejection::Rejection;
use crate::snapshot::Snapshot;
use crate::status::{FirstScan, GrantsState, PluginState};

/// The plugins of a host, and the loader for more plugins.
pub(crate) struct Registry {
    loader: Arc<Loader>,
    set: Mutex<PluginSet>,
    snapshot: ArcSwap<Snapshot>,
    /// A copy of the grants of `set`, for reads without waiting.
    grants: ArcSwap<Vec<Grant>>,
    changes: watch::Sender<u64>,
    first_scan: watch::Sender<FirstScan>,
    grants_state: watch::Sender<GrantsState>,
    /// True once a job looked up a plugin since the last sweep. A follower makes no lookups, so it keeps replaced versions for its own
    /// term.
    looked_up: AtomicBool,
    /// Notifies the follower of the directory when a file that is not compiled yet gets its grant.
    granted: Notify,
}

impl Registry {
    pub(crate) fn new(loader: Loader, first_scan: FirstScan) -> Self {
        Self {
            loader: Arc::new(loader),
            set: Mutex::default(),
            snapshot: ArcSwap::default(),
            grants: ArcSwap::default(),
            changes: watch::Sender::new(0),
            first_scan: watch::Sender::new(first_scan),
            grants_state: watch::Sender::new(GrantsState::Unread),
            looked_up: AtomicBool::new(false),
            granted: Notify::new(),
        }
    }

    /// Returns the current snapshot.
    pub(crate) fn snapshot(&self) -> arc_swap::Guard<Arc<Snapshot>> {
        self.snapshot.load()
    }

    /// Returns the plugin for a job of `action` that is bound to `digest`, or to no digest yet.
    pub(crate) fn find(&self, action: &str, digest: Option<&str>) -> PluginLookup {
        self.looked_up.store(true, Ordering::Relaxed);
        self.snapshot().find(action, digest)
    }

    /// Returns a number that rises with each snapshot that differs from the previous one.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns the progress of the first scan of the plugin directory.
    pub(crate) fn first_scan(&self) -> watch::Receiver<FirstScan> {
        self.first_scan.subscribe()
    }

    /// Returns the state of the file of grants.
    pub(crate) fn grants_state(&self) -> GrantsState {
        self.grants_state.borrow().clone()
    }

    /// Waits until the grants were read or refused for the first time.
    pub(crate) async fn grants_read(&self) {
        let mut state = self.grants_state.subscribe();
        // The sender lives as long as the registry.
        let _ = state.wait_for(|state| *state != GrantsState::Unread).await;
    }

    /// Returns all grants of plugins, or `None` while no grants are known.
    pub(crate) fn grants(&self) -> Option<Vec<Grant>> {
        if self.loader.grant_all {
            let snapshot = self.snapshot();
            return Some(snapshot.callable.values().map(|one| Grant::of_all(one.plugin.manifest())).collect());
        }
        let known = matches!(self.grants_state(), GrantsState::InForce | GrantsState::Refused(_));
        known.then(|| self.grants.load().to_vec())
    }

    /// Records that the file of grants was refused. Returns the resulting state.
    pub(crate) fn refuse_grants(&self, why: String) -> GrantsState {
        self.grants_state.send_modify(|state| *state = state.refused(why));
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
        self.grants_state()
    }

    /// Records that the first scan has reached this state, unless it was there already.
    pub(crate) fn first_scan_is(&self, reached: FirstScan) {
        let is_new = self.first_scan.send_if_modified(|known| {
            let is_new = *known < reached;
            *known = reached.max(*known);
            is_new
        });
        if is_new {
            self.changes.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    /// Loads a component under the name `source`, and replaces the component with that name. Without a grant, the host neither compiles nor
    /// keeps the code. Returns false and does nothing if loading takes more than `effort`.
    pub(crate) async fn load(&self, source: &str, bytes: Arc<Vec<u8>>, effort: Effort) -> bool {
        let (loader, content) = (self.loader.clone(), bytes.clone());
        let vetted = in_background(move || {
            let digest = digest(&content);
            let vetted = loader.vet(&content, &digest, effort);
            (digest, vetted)
        });
        let (digest, vetted) = match vetted.await {
            Ok((_, None)) => return false,
            Ok((digest, Some(vetted))) => (digest, vetted),
            Err(rejection) => (digest(&bytes), Err(rejection)),
        };
        let vetted = match vetted {
            Ok(vetted) => Arc::new(vetted),
            Err(rejection) => {
                let rejected = Outcome::Loaded(Admission::Rejected(rejection));
                self.edit(async |set| set.set(source, PluginEntry::new(Some(digest), rejected))).await;
                return true;
            }
        };
        let lines = self.loader.missing_lines(&vetted, &self.set.lock().await.grants);
        let compiled = if lines.is_empty() { self.compile(&vetted, &bytes, effort).await } else { Some(Ok(None)) };
        let Some(compiled) = compiled else { return false };
        self.edit(async |set| {
            let (admission, compiled) = match compiled {
                Err(rejection) => (Admission::Rejected(rejection), None),
                // The grants may have changed meanwhile.
                Ok(Some(compiled)) => {
                    (self.probed(self.loader.admit(&compiled, &set.grants).await).await, Some(compiled))
                }
                Ok(None) => (Admission::Awaiting(self.loader.missing_lines(&vetted, &set.grants)), None),
            };
            let is_granted = matches!(&admission, Admission::Awaiting(lines) if lines.is_empty());
            let outcome = if is_granted { Outcome::Compiling } else { Outcome::Loaded(admission) };
            let mut entry = PluginEntry::new(Some(digest), outcome);
            (entry.vetted, entry.compiled) = (Some(vetted), compiled);
            set.set(source, entry);
        })
        .await;
        true
    }

    /// Visits a made-up target with a plugin that would replace another version. A version that traps does not replace it.
    async fn probed(&self, admission: Admission) -> Admission {
        let Admission::Ready(plugin) = &admission else { return admission };
        let before = self.snapshot().serving.get(&plugin.manifest().action).cloned();
        if before.is_none_or(|before| before.digest() == plugin.digest()) {
            return admission;
        }
        match probe(plugin).await {
            Ok(()) => admission,
            Err(trap) => {
                let sentence = format!("it failed a visit of a made-up target whose object is gone: {}", trap.message);
                Admission::Rejected(Rejection::new("ProbeFailed", sentence))
            }
        }
    }

    /// Lets the version before serve instead of the version with this digest, if there is one.
    pub(crate) async fn roll_back(&self, digest: &str) {
        self.edit(async |set| set.roll_back(digest)).await;
    }

    /// Compiles a component. Returns `None` if this takes more than `effort`.
    async fn compile(
        &self,
        vetted: &Arc<Vetted>,
        bytes: &Arc<Vec<u8>>,
        effort: Effort,
    ) -> Option<Result<Option<Arc<Compiled>>, Rejection>> {
        let (loader, vetted, bytes) = (self.loader.clone(), vetted.clone(), bytes.clone());
        match in_background(move || loader.compile(&vetted, &bytes, effort)).await {
            Ok(compiled) => compiled.map(|compiled| compiled.map(Some)),
            Err(rejection) => Some(Err(rejection)),
        }
    }

    /// Loads a component without a file, and keeps its bytes until it has a grant.
    pub(crate) async fn publish(&self, source: &str, bytes: Vec<u8>) {
        let bytes = Arc::new(bytes);
        self.load(source, bytes.clone(), Effort::Helper).await;
        self.set.lock().await.keep_bytes(source, bytes);
    }

    /// Removes the file `source`.
    pub(crate) async fn remove(&self, source: &str) {
        self.edit(async |set| drop(set.entries.remove(source))).await;
    }

    /// Replaces all grants, and repeats the admission of plugins whose grant has changed. Files that now have a grant and no code are
    /// compiled soon, and components without a file at once.
    pub(crate) async fn set_grants(&self, grants: Vec<Grant>) {
        let mut published = Vec::new();
        self.edit(async |set| {
            let before = std::mem::replace(&mut set.grants, grants.clone());
            self.grants.store(Arc::new(grants.clone()));
            let of = |grants: &[Grant], name: &str| grants.iter().find(|grant| grant.name == name).cloned();
            let differs = |name: &str| of(&before, name) != of(&grants, name);
            for compiled in set.draining(differs) {
                let admission = self.loader.admit(&compiled, &grants).await;
                set.set_draining_admission(&compiled.digest, admission);
            }
            let sources: Vec<String> = set.entries.keys().cloned().collect();
            for source in sources {
                self.admit_again(set, &source, differs).await;
            }
            published = set.granted_bytes();
        })
        .await;
        if self.grants_state.send_replace(GrantsState::InForce) != GrantsState::InForce {
            self.changes.send_modify(|count| *count = count.wrapping_add(1));
        }
        for (source, bytes) in published {
            self.load(&source, bytes, Effort::Helper).await;
        }
        self.granted.notify_one();
    }

    /// Repeats the admission of a file and of its last good plugin if their grant has changed.
    async fn admit_again(&self, set: &mut PluginSet, source: &str, differs: impl Fn(&str) -> bool) {
        let Some(entry) = set.entries.get(source) else { return };
        let (vetted, compiled) = (entry.vetted.clone(), entry.compiled.clone());
        let last_good = entry.last_good.as_ref().map(|plugin| plugin.compiled.clone());
        if let Some(last_good) = last_good.filter(|compiled| differs(&compiled.manifest.name)) {
            let admission = self.loader.admit(&last_good, &set.grants).await;
            set.set_last_good(source, admission);
        }
        let Some(vetted) = vetted.filter(|vetted| differs(&vetted.manifest.name)) else { return };
        // A new grant does not end a quarantine.
        if set.entries.get(source).is_some_and(PluginEntry::is_quarantined) {
            return;
        }
        let lines = self.loader.missing_lines(&vetted, &set.grants);
        let outcome = match compiled {
            Some(compiled) => Outcome::Loaded(self.loader.admit(&compiled, &set.grants).await),
            None if lines.is_empty() => Outcome::Compiling,
            None => Outcome::Loaded(Admission::Awaiting(lines)),
        };
        set.set_admission(source, outcome);
    }

    /// Waits until a file that is not compiled yet gets its grant.
    pub(crate) async fn granted(&self) {
        self.granted.notified().await;
    }

    /// Returns unchanged files that the host must load again: files with a new grant, and files that failed for now and have waited long
    /// enough. This function itself repeats the admission of compiled files.
    pub(crate) async fn try_again(&self) -> BTreeSet<String> {
        let (load, admit) = self.set.lock().await.due();
        if !admit.is_empty() {
            self.edit(async |set| {
                for (source, compiled) in admit {
                    let admission = self.loader.admit(&compiled, &set.grants).await;
                    set.set_admission(&source, Outcome::Loaded(admission));
                }
            })
            .await;
        }
        load
    }

    /// Removes replaced versions that no job looked up lately, if any job looked up any plugin since the last sweep.
    pub(crate) async fn sweep(&self) {
        if self.looked_up.swap(false, Ordering::Relaxed) && self.set.lock().await.sweep() {
            self.edit(async |_| ()).await;
        }
    }

    pub(crate) async fn reject(&self, source: &str, rejection: Rejection) {
        let outcome = Outcome::Loaded(Admission::Rejected(rejection));
        self.edit(async |set| set.set(source, PluginEntry::new(None, outcome))).await;
    }

    pub(crate) async fn set_unsettled(&self, source: &str) {
        let known = {
            let set = self.set.lock().await;
            set.entries.get(source).is_some_and(|entry| matches!(entry.outcome, Outcome::Unsettled))
        };
        if !known {
            self.edit(async |set| set.set(source, PluginEntry::new(None, Outcome::Unsettled))).await;
        }
    }

    async fn edit(&self, change: impl AsyncFnOnce(&mut PluginSet)) {
        let mut set = self.set.lock().await;
        change(&mut set).await;
        let before = self.snapshot.load_full();
        // The order of the first scan depends on the cached code. So no plugin counts as incumbent until that scan is over.
        let is_settled = *self.first_scan.borrow() == FirstScan::Done;
        let none = BTreeMap::new();
        let after = set.publish(&before, if is_settled { &before.serving } else { &none });
        for status in after.list.iter().filter(|status| !before.list.contains(status)) {
            let (state, reason) = (status.state, &status.reason);
            // A replaced version has no file.
            let source = Some(&status.source).filter(|source| !source.is_empty());
            if matches!(state, PluginState::Rejected | PluginState::Quarantined) {
                tracing::warn!(plugin = status.name, source, ?state, reason, "{}", status.message);
            } else if reason == "Settling" {
                tracing::debug!(source, ?state, reason, "{}", status.message);
            } else {
                tracing::info!(plugin = status.name, source, ?state, reason, "{}", status.message);
            }
        }
        let same = after.is_same(&before);
        self.snapshot.store(Arc::new(after));
        if !same {
            self.changes.send_modify(|count| *count = count.wrapping_add(1));
        }
    }
}

/// Runs work that blocks for up to minutes. A panic rejects the component and affects nothing else.
async fn in_background<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Result<R, Rejection> {
    let panicked = |_| Rejection::new("CompileFailed", "the compiler panicked over the component; rebuild it");
    spawn_blocking(work).await.map_err(panicked)
}
