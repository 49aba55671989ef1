//! ActionPlugin as a kind of a host: the facts of its plugins, and the objects that the host creates for plugin files.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::Client;
use oarlock_core::action_plugin::facts::{FACTS, GrantsFrom, PluginFacts, VersionFacts};
use oarlock_core::action_plugin::kind::ActionPlugins;
use oarlock_core::action_plugin::stored::{StoredActionPlugin, action_plugin_key, grants_of};
use oarlock_core::object::api_object::Kind;
use oarlock_core::plugin::grant::{API_VERSION, Grant, KIND};
use oarlock_core::plugin::names::is_dns_label;
use oarlock_core::requests::reads::{KeptObjects, Read, ReadFailed};
use oarlock_kube::kinds::{KindObserver, KindPort, LearnedFrom};
use oarlock_kube::lease::fence::Fence;
use oarlock_kube::watch::health::KindHealth;
use oarlock_wasm::{FirstScan, PluginStatus, Plugins};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant, sleep};

use crate::bound_jobs::BoundJobs;
use crate::engine::{HostSide, RoundView};
use crate::kinds::{self, ServedKind};
use crate::own_rights::lacking_rights;
use crate::ports::Ports;

/// The most ActionPlugins that the host creates. A directory with more files than this is a mistake.
const MOST_CREATED: usize = 500;
/// The wait before the next attempt after a refused create.
const AGAIN: Duration = Duration::from_secs(30);
/// The time for which the host believes an answer about its own rights.
const RIGHTS_FOR: Duration = Duration::from_secs(300);

/// The kind ActionPlugin of this host.
#[derive(Clone)]
pub(crate) struct PluginsKind {
    port: KindPort<ActionPlugins>,
    grants_from: GrantsFrom,
    client: Client,
    changes: Arc<Changes>,
}

/// The changes of ActionPlugins.
#[derive(Default)]
struct Changes {
    /// Notifies the task that takes grants from the objects.
    any: Notify,
    /// Notifies the task that creates objects.
    deleted: Notify,
}

impl KindObserver<StoredActionPlugin> for Changes {
    fn takes(&self, _object: &StoredActionPlugin, _from: LearnedFrom) {
        self.any.notify_one();
    }

    fn gone(&self, _uid: &str) {
        self.any.notify_one();
        self.deleted.notify_one();
    }
}

impl PluginsKind {
    /// Watches the ActionPlugins of a cluster.
    pub(crate) fn watch(cluster: oarlock_kube::Cluster, grants_from: GrantsFrom, client: Client) -> Self {
        let changes = Arc::new(Changes::default());
        let port = KindPort::watch(cluster, ActionPlugins, changes.clone());
        Self { port, grants_from, client, changes }
    }

    /// Gives the plugins the grants of the objects, until the task is aborted. With grants from a file, it does nothing.
    pub(crate) async fn follow_grants(self, plugins: Plugins) {
        if self.grants_from == GrantsFrom::File {
            return;
        }
        // Before the list is complete, a plugin would seem to have no grant. The kinds of plugins are listed only once their grants are known.
        self.port.listed().await;
        let mut before: Option<Vec<Grant>> = None;
        loop {
            let objects = self.port.cache().all();
            let grants = grants_of(objects.iter().map(|object| &**object));
            if before.as_ref() != Some(&grants) {
                plugins.set_grants(grants.clone()).await;
                before = Some(grants);
            }
            self.changes.any.notified().await;
        }
    }
}

impl ServedKind for PluginsKind {
    fn definition(&self) -> &'static str {
        self.port.definition()
    }

    fn children(&self) -> Option<Kind> {
        None
    }

    fn health(&self) -> Vec<KindHealth> {
        self.port.health()
    }

    fn lead(&self, fence: Fence, ports: &Ports) -> JoinHandle<()> {
        let (plugins, bound) = (ports.plugins.clone(), ports.bound.clone());
        let host = PluginsHost { kind: self.clone(), plugins, bound, rights: Mutex::default() };
        let (announcing, plugins) =
            (self.clone().announce(ports.plugins.clone(), fence.clone()), ports.plugins.clone());
        let rounds = kinds::lead(&self.port, host, fence, ports);
        let waking = self.clone().wake(plugins);
        // The tasks end together, with the term.
        tokio::spawn(async move {
            let _rounds = tokio_util::task::AbortOnDropHandle::new(rounds);
            tokio::join!(announcing, waking);
        })
    }
}

impl PluginsKind {
    /// Starts a round of each object whose plugin has changed.
    async fn wake(self, plugins: Plugins) {
        let mut changes = plugins.changes();
        let mut before: BTreeMap<String, Vec<PluginStatus>> = BTreeMap::new();
        loop {
            changes.borrow_and_update();
            let now = by_name(plugins.list());
            let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
            for name in names.into_iter().filter(|name| before.get(*name) != now.get(*name)) {
                let object = self.port.cache().get(&action_plugin_key(name));
                object.iter().for_each(|object| self.port.cache().mark_dirty(&object.object.uid));
            }
            before = now;
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Creates an object with an empty spec for each plugin that has none.
    async fn announce(self, plugins: Plugins, fence: Fence) {
        let (mut changes, mut first_scan) = (plugins.changes(), plugins.first_scan());
        if first_scan.wait_for(|reached| *reached == FirstScan::Done).await.is_err() {
            return std::future::pending().await;
        }
        self.port.synced().await;
        loop {
            changes.borrow_and_update();
            let known: BTreeSet<String> =
                self.port.cache().all().iter().map(|object| object.object.key.name.clone()).collect();
            let names = by_name(plugins.list()).into_keys();
            let missing = names.filter(|name| is_dns_label(name) && !known.contains(name));
            let mut refused = false;
            for name in missing.take(MOST_CREATED.saturating_sub(known.len())) {
                let body = json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": {}});
                if let Err(stopped) = self.port.create(action_plugin_key(&name), body, &fence).await {
                    tracing::debug!(plugin = name, ?stopped, "failed to create an ActionPlugin; retrying");
                    refused = true;
                }
            }
            let again = async {
                match refused {
                    true => sleep(AGAIN).await,
                    false => std::future::pending().await,
                }
            };
            tokio::select! {
                () = again => {}
                () = self.changes.deleted.notified() => {}
                changed = changes.changed() => if changed.is_err() { return std::future::pending().await },
            }
        }
    }
}

/// Returns the statuses of each plugin, by its name. Files without a readable manifest have no name.
fn by_name(list: Vec<PluginStatus>) -> BTreeMap<String, Vec<PluginStatus>> {
    let mut named: BTreeMap<String, Vec<PluginStatus>> = BTreeMap::new();
    for status in list {
        if let Some(name) = status.name.clone() {
            named.entry(name).or_default().push(status);
        }
    }
    named
}

/// The rights that the host's account lacks for a grant, as the API server said at this time.
struct KnownRights {
    grant: Grant,
    asked: Instant,
    lacking: Option<Vec<String>>,
}

/// This host's own part in the rounds of ActionPlugins in one term.
struct PluginsHost {
    kind: PluginsKind,
    plugins: Plugins,
    bound: Arc<BoundJobs>,
    /// By the name of the plugin.
    rights: Mutex<BTreeMap<String, KnownRights>>,
}

impl HostSide<ActionPlugins> for PluginsHost {
    async fn answer(&self, read: &Read, round: &RoundView<'_, ActionPlugins>) -> Result<KeptObjects, ReadFailed> {
        let name = &round.object.object.key.name;
        let facts = if read.kind.kind == FACTS { json!(self.facts(name).await) } else { json!(null) };
        Ok(KeptObjects::of(read, [facts]))
    }
}

impl PluginsHost {
    async fn facts(&self, name: &str) -> PluginFacts {
        let statuses = by_name(self.plugins.list()).remove(name).unwrap_or_default();
        let grants_from = self.kind.grants_from;
        let versions = statuses.into_iter().map(|status| self.version(status)).collect();
        let grant = self.plugins.grants().unwrap_or_default().into_iter().find(|grant| grant.name == name);
        let lacking = match grant {
            Some(grant) => self.lacking(grant).await,
            None => None,
        };
        PluginFacts { grants_from, versions, lacking }
    }

    fn version(&self, status: PluginStatus) -> VersionFacts {
        let PluginStatus { source, version, action, digest, state, reason, message, rights, missing, .. } = status;
        let [version, action, digest] = [version, action, digest].map(Option::unwrap_or_default);
        VersionFacts {
            file: source,
            version,
            action,
            state: format!("{state:?}"),
            reason,
            message,
            rights,
            missing,
            jobs: self.bound.of(&digest),
            peak_use: self.plugins.peak_use(&digest),
            digest,
        }
    }

    /// Returns the rights that this account lacks for a grant. Asks the API server again after some minutes, and when the grant changes.
    async fn lacking(&self, grant: Grant) -> Option<Vec<String>> {
        let known = |known: &KnownRights| {
            (known.grant == grant && known.asked.elapsed() < RIGHTS_FOR).then(|| known.lacking.clone())
        };
        if let Some(lacking) = self.rights.lock().get(&grant.name).and_then(known) {
            return lacking;
        }
        let lacking = lacking_rights(&self.kind.client, &grant).await;
        let (name, asked) = (grant.name.clone(), Instant::now());
        self.rights.lock().insert(name, KnownRights { grant, asked, lacking: lacking.clone() });
        lacking
    }
}
