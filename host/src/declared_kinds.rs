//! The kinds and fields that plugins declare: their watches, and the plugins that may serve because they are synced.

use std::collections::BTreeSet;
use std::sync::Arc;

use oarlock_core::object::api_object::Kind;
use oarlock_core::plugin::lookup::{PluginInfo, PluginLookup};
use oarlock_kube::Cluster;
use oarlock_kube::watch::health::KindHealth;
use oarlock_kube::watch::objects::{WatchedKind, WatchedKinds};
use oarlock_wasm::{Declared, DeclaredKind, FirstScan, Plugins};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The plugins whose kinds and fields are watched.
#[derive(Debug)]
pub(crate) struct DeclaredKinds {
    /// The digests of these plugins.
    digests: Mutex<BTreeSet<String>>,
    /// Increases when the set of runnable plugins changes.
    listed: watch::Sender<u64>,
}

impl Default for DeclaredKinds {
    fn default() -> Self {
        Self { digests: Mutex::default(), listed: watch::Sender::new(0) }
    }
}

impl DeclaredKinds {
    /// Returns a receiver that changes when the set of runnable plugins changes.
    pub(crate) fn listed(&self) -> watch::Receiver<u64> {
        self.listed.subscribe()
    }

    /// Keeps the watches of the kinds and fields that the plugins declare, until `stop`. A late or refused kind delays
    /// only the plugins that declare it.
    pub(crate) async fn keep(&self, cluster: &Cluster, plugins: &Plugins, stop: &CancellationToken) {
        // Waits for the first scan. If the cached plugins were declared one after the other, pods would be listed once
        // for each of them.
        let mut first_scan = plugins.first_scan();
        tokio::select! {
            () = stop.cancelled() => return,
            reached = first_scan.wait_for(|reached| *reached > FirstScan::Pending) => if reached.is_err() { return },
        }
        // Waits for the hold keys, which must be known before the first pod is read.
        tokio::select! {
            () = stop.cancelled() => return,
            () = cluster.await_hold_keys() => {}
        }
        let mut changes = plugins.changes();
        let mut watches = cluster.watch_changes();
        while !stop.is_cancelled() {
            changes.borrow_and_update();
            let digests = plugins.digests();
            cluster.declare(declared(plugins)).await;
            *self.digests.lock() = digests;
            loop {
                self.listed.send_modify(|number| *number = number.wrapping_add(1));
                tokio::select! {
                    () = stop.cancelled() => return,
                    changed = changes.changed() => if changed.is_err() { return } else { break },
                    changed = watches.changed() => if changed.is_err() { return },
                }
            }
        }
    }

    /// Returns a plugin if its kinds and fields are synced, or the reason why it cannot serve. Returns `None` while they
    /// are being listed.
    pub(crate) fn usable(&self, cluster: &Cluster, plugins: &Plugins, plugin: Arc<PluginInfo>) -> Option<PluginLookup> {
        if !self.digests.lock().contains(&plugin.digest) {
            return None;
        }
        let watches = cluster.health();
        let mut own: Vec<&KindHealth> = Vec::new();
        for (kind, wanted) in plugins.declared_by(&plugin.digest) {
            if wanted.watched {
                let wanted = watched(wanted);
                // The older watch serves until a newer one is synced.
                let mut able = watches.iter().filter(|health| health.kind == kind && health.declared.covers(&wanted));
                own.push(able.clone().find(|health| health.synced).or(able.next_back())?);
            }
        }
        // A kind that the plugin can lack counts as empty if it is not served. The watch retries it.
        let missing = |health: &&&KindHealth| !health.served && !plugin.manifest.can_lack(&health.kind);
        if let Some(health) = own.iter().find(missing) {
            return Some(unavailable(&plugin, "KindNotServed", health));
        }
        match own.iter().find(|health| !health.synced) {
            Some(health) if health.error.is_some() => Some(unavailable(&plugin, "KindNotReadable", health)),
            Some(_) => None,
            None => Some(PluginLookup::Serving(plugin)),
        }
    }
}

fn unavailable(plugin: &PluginInfo, reason: &'static str, health: &KindHealth) -> PluginLookup {
    let Kind { api_version, kind } = &health.kind;
    let error = health.error.as_deref().unwrap_or("the API server does not serve it");
    let message = format!(
        "plugin {} needs {kind} of {api_version}, which cannot be read: {error}; it serves as soon as that is fixed",
        plugin.manifest.name
    );
    PluginLookup::NotServing { reason, message }
}

/// Returns the kinds that a host watches or reads for these plugins: the declared kinds, pods and namespaces.
fn declared(plugins: &Plugins) -> WatchedKinds {
    watched_kinds([Kind::namespace(), Kind::pod()], plugins.declared())
}

/// Returns the kinds to watch or to read: the kinds in `needed`, and those that plugins declare. Adds the field of pods
/// that the host itself reads.
pub(crate) fn watched_kinds(needed: impl IntoIterator<Item = Kind>, plugins: Declared) -> WatchedKinds {
    let mut declared = WatchedKinds::default();
    declared.kinds.extend(needed.into_iter().map(|kind| (kind, WatchedKind::default())));
    for (kind, wanted) in plugins {
        if !wanted.watched && !declared.kinds.contains_key(&kind) {
            declared.read.insert(kind, wanted.fields);
            continue;
        }
        declared.kinds.entry(kind).or_default().merge(&watched(wanted));
    }
    if let Some(pods) = declared.kinds.get_mut(&Kind::pod()) {
        pods.fields.insert("/spec/nodeName".to_owned());
    }
    declared
}

/// Converts a declared kind into the fields and indexes to watch.
fn watched(declared: DeclaredKind) -> WatchedKind {
    let DeclaredKind { fields, indexed, .. } = declared;
    WatchedKind { fields, labels_indexed: indexed.labels, fields_indexed: indexed.fields }
}
