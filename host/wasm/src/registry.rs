//! Loads plugin files, applies grants, and publishes the resulting snapshot.
//!
//! Reading a snapshot never waits. Files are loaded one at a time, so that a large directory needs no more memory than
//! its largest file.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use oarlock_core::plugin::grant::Grant;
use tokio::sync::{Mutex, watch};

use crate::load::grants::read_grants;
use crate::load::inspect::digest;
use crate::load::loader::{Admission, Loader};
use crate::load::watch::{Directory, FileEvents};
use crate::plugin_set::{Outcome, PluginSet};
use crate::rejection::{Rejection, causes};
use crate::snapshot::Snapshot;
use crate::status::Unavailable;

/// The plugins of a host, with the means to load more.
pub(crate) struct Registry {
    loader: Arc<Loader>,
    set: Mutex<PluginSet>,
    snapshot: ArcSwap<Snapshot>,
    changes: watch::Sender<u64>,
}

impl Registry {
    pub(crate) fn new(loader: Loader) -> Self {
        Self {
            loader: Arc::new(loader),
            set: Mutex::default(),
            snapshot: ArcSwap::default(),
            changes: watch::Sender::new(0),
        }
    }

    /// The present snapshot.
    pub(crate) fn snapshot(&self) -> arc_swap::Guard<Arc<Snapshot>> {
        self.snapshot.load()
    }

    /// A number that rises with each snapshot that differs from the one before.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Loads a component under the name `source`, and replaces the one of that name.
    pub(crate) async fn load(&self, source: &str, bytes: Vec<u8>) {
        let loader = self.loader.clone();
        let digest = digest(&bytes);
        let prepared = tokio::task::spawn_blocking(move || loader.prepare(&bytes)).await;
        // A compiler that panics in this process ends its task and nothing else.
        let prepared = prepared.unwrap_or_else(|_| {
            Err(Rejection::new("CompileFailed", "the compiler panicked over the component; rebuild it"))
        });
        self.edit(async |set| {
            let loaded = match prepared {
                Ok(compiled) => {
                    let admission = self.loader.admit(&compiled, &set.grants).await;
                    Ok((compiled, admission))
                }
                Err(rejection) => Err(rejection),
            };
            set.set_loaded(source, digest, loaded);
        })
        .await;
    }

    /// Removes the file `source`.
    pub(crate) async fn remove(&self, source: &str) {
        self.edit(async |set| drop(set.entries.remove(source))).await;
    }

    /// Replaces all grants, and admits again the plugins that have another grant now.
    pub(crate) async fn set_grants(&self, grants: Vec<Grant>) {
        self.edit(async |set| {
            let before = std::mem::replace(&mut set.grants, grants.clone());
            let of = |grants: &[Grant], name: &str| grants.iter().find(|grant| grant.name == name).cloned();
            let differs = |name: &str| of(&before, name) != of(&grants, name);
            let known =
                set.entries.iter().filter_map(|(source, entry)| Some((source.clone(), entry.compiled.clone()?)));
            let affected: Vec<_> = known.filter(|(_, compiled)| differs(&compiled.manifest.name)).collect();
            let names: BTreeSet<_> = before.iter().chain(&grants).map(|grant| grant.name.as_str()).collect();
            let draining: Vec<_> =
                names.into_iter().filter(|name| differs(name)).flat_map(|name| set.draining(name)).collect();
            for compiled in draining {
                let admission = self.loader.admit(&compiled, &grants).await;
                set.set_draining_admission(&compiled.digest, admission);
            }
            for (source, compiled) in affected {
                let admission = self.loader.admit(&compiled, &grants).await;
                set.set_admission(&source, admission);
            }
        })
        .await;
    }

    /// Marks the plugin of `digest` as unavailable, or as available again.
    pub(crate) async fn set_unavailable(&self, digest: &str, unavailable: Option<Unavailable>) {
        self.edit(async |set| set.set_unavailable(digest, unavailable)).await;
    }

    /// Reads the file of grants. The previous grants stay in force where it is invalid.
    pub(crate) async fn read_grants(&self, path: &Path) {
        match read_grants(path) {
            Ok(grants) => self.set_grants(grants).await,
            Err(error) => {
                let (path, error) = (path.display(), causes(&error));
                tracing::error!(%path, %error, "failed to read the grants; the previous grants stay in force");
            }
        }
    }

    /// Scans the plugin directory once and loads its changes. Returns `true` while a file is still being written.
    pub(crate) async fn scan(&self, directory: &mut Directory) -> bool {
        if let Some(grants) = directory.changed_grants() {
            self.read_grants(&grants).await;
        }
        let scan = directory.scan(&self.retryable().await);
        for (source, rejection) in scan.rejected {
            self.reject(&source, rejection).await;
        }
        for source in &scan.unsettled {
            self.set_unsettled(source).await;
        }
        for source in &scan.removed {
            self.remove(source).await;
        }
        let mut unsettled = !scan.unsettled.is_empty();
        for file in scan.ready {
            match directory.read(&file) {
                Ok(Some(bytes)) => self.load(&file.name, bytes).await,
                Ok(None) => unsettled = true,
                Err(rejection) => self.reject(&file.name, rejection).await,
            }
        }
        unsettled
    }

    /// Follows the plugin directory until the task is dropped.
    pub(crate) async fn follow(self: Arc<Self>, mut directory: Directory, mut unsettled: bool) {
        let mut events = FileEvents::subscribe(&directory);
        loop {
            let quiet = events.next(&mut directory, unsettled).await;
            unsettled = self.scan(&mut directory).await;
            if quiet && self.set.lock().await.sweep() {
                self.edit(async |_| ()).await;
            }
        }
    }

    async fn reject(&self, source: &str, rejection: Rejection) {
        let outcome = Outcome::Loaded(Admission::Rejected(rejection));
        self.edit(async |set| set.set_outcome(source, outcome)).await;
    }

    async fn set_unsettled(&self, source: &str) {
        let known = {
            let set = self.set.lock().await;
            set.entries.get(source).is_some_and(|entry| matches!(entry.outcome, Outcome::Unsettled))
        };
        if !known {
            self.edit(async |set| set.set_outcome(source, Outcome::Unsettled)).await;
        }
    }

    /// The files to try again though they did not change.
    async fn retryable(&self) -> BTreeSet<String> {
        let set = self.set.lock().await;
        let retryable = set.entries.iter().filter(|(_, entry)| {
            matches!(&entry.outcome, Outcome::Loaded(Admission::Rejected(rejection)) if rejection.retryable)
        });
        retryable.map(|(source, _)| source.clone()).collect()
    }

    async fn edit(&self, change: impl AsyncFnOnce(&mut PluginSet)) {
        let mut set = self.set.lock().await;
        change(&mut set).await;
        let before = self.snapshot.load_full();
        let after = set.publish(&before);
        for status in after.list.iter().filter(|status| !before.list.contains(status)) {
            let (source, state, reason) = (&status.source, status.state, &status.reason);
            tracing::info!(plugin = status.name, source, ?state, reason, "{}", status.message);
        }
        let same = after.is_same(&before);
        self.snapshot.store(Arc::new(after));
        if !same {
            self.changes.send_modify(|count| *count = count.wrapping_add(1));
        }
    }
}
