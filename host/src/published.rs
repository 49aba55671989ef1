//! Publishes the services and settings of the leader, and reads them in a server.
//!
//! The leader writes one ConfigMap, at most once a second on a change, and at least every 30 s. A server reads it every
//! two seconds. The server relies on it while the host renews it and has the same settings.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use oarlock_artefacts::Artefacts;
use oarlock_core::object::own::SYSTEM_NAMESPACES;
use oarlock_core::ops_job::published::{
    MOST_PLUGINS, PUBLISHED, Published, PublishedPlugin, RENEWED_WITHIN, Reach, Renewals, ServedType, SharedSettings,
    Unpublished, check, unserved,
};
use oarlock_core::ops_job::spec::{Defaults, OpsType};
use oarlock_core::plugin::lookup::PluginLookup;
use oarlock_core::requests::writes::Stopped;
use oarlock_history::History;
use oarlock_kube::lease::fence::Fence;
use oarlock_kube::ops::Ops;
use oarlock_rest::HostOf;
use oarlock_wasm::{FirstScan, PluginState, PluginStatus, Plugins};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};

use crate::health::Heartbeat;
use crate::host_place::{HostHome, HostLocation};
use crate::rest::URL_TTL;
use crate::round_trouble::RoundTrouble;

/// The shortest time between two writes of the leader.
const AT_MOST_EVERY: Duration = Duration::from_secs(1);
/// The wait before the next attempt after a failed write.
const AGAIN: Duration = Duration::from_secs(5);
/// The time between two reads of a server.
const READ_EVERY: Duration = Duration::from_secs(2);

/// Returns the digests of the settings that the host and the server must share.
pub(crate) fn shared_settings(
    cluster: &str,
    history: Option<&History>,
    artefacts: Option<&Artefacts>,
) -> BTreeMap<String, String> {
    let Defaults { timeout, ttl } = Defaults::default();
    let settings = SharedSettings {
        cluster: cluster.to_owned(),
        history: history.map(|history| history.place().to_string()).unwrap_or_default(),
        files: artefacts.map(Artefacts::place).unwrap_or_default(),
        bounds: format!("{timeout} {ttl} {} {}", SYSTEM_NAMESPACES.join(","), URL_TTL.as_secs()),
    };
    settings.digests()
}

/// Returns the services of a process with these plugins at this place, without the renewal.
pub(crate) fn published(plugins: &Plugins, place: &HostLocation) -> Published {
    let of_type = |kind: OpsType| {
        let word = kind.word();
        let served = match plugins.find(word, None) {
            PluginLookup::Serving(plugin) => ServedType::Serves(Reach::of(&plugin.grant)),
            PluginLookup::NotServing { message, .. } => ServedType::missing(word, &message),
            PluginLookup::Unknown { .. } => ServedType::Missing(unserved(word)),
        };
        (word.to_owned(), served)
    };
    let history = place.recorder.as_ref().map(|recorder| recorder.history());
    Published {
        renewal: 0,
        renewed_at: 0,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node: place.node.clone(),
        keeps_files: place.artefacts.is_some(),
        exports: place.exports.is_some(),
        types: OpsType::ALL.into_iter().map(of_type).collect(),
        settings: shared_settings(&place.cluster, history, place.artefacts.as_ref()),
        plugins: plugins.list().into_iter().take(MOST_PLUGINS).map(listed).collect(),
    }
}

/// Returns a plugin file as the host publishes it.
fn listed(plugin: PluginStatus) -> PublishedPlugin {
    let PluginStatus { source, name, version, action, digest, state, reason, message, .. } = plugin;
    let problem = if state == PluginState::Serving { String::new() } else { format!("{reason}: {message}") };
    let [version, action, digest] = [version, action, digest].map(Option::unwrap_or_default);
    PublishedPlugin { name: name.unwrap_or(source), action, version, digest, problem }.shortened()
}

/// Returns the services of a process that is host and server at once.
pub(crate) fn of_this_process(plugins: Plugins, place: HostLocation) -> HostOf {
    Box::new(move || Ok(Arc::new(published(&plugins, &place))))
}

/// The publisher of the leader's services.
pub(crate) struct Publisher {
    pub(crate) ops: Ops,
    pub(crate) plugins: Plugins,
    pub(crate) place: HostLocation,
    pub(crate) home: HostHome,
    pub(crate) fence: Fence,
}

impl Publisher {
    /// Publishes while this process leads.
    pub(crate) async fn run(self) {
        let (mut changes, mut first_scan) = (self.plugins.changes(), self.plugins.first_scan());
        // A cluster without OpsJobs has no server that reads the ConfigMap.
        self.ops.port().synced().await;
        self.make_first_key().await;
        // Before the first scan ends, an existing plugin would seem to be missing.
        if first_scan.wait_for(|reached| *reached == FirstScan::Done).await.is_err() {
            return;
        }
        let (mut written, mut said): (Option<(Published, Instant)>, Option<String>) = (None, None);
        loop {
            changes.mark_unchanged();
            let now = published(&self.plugins, &self.place);
            let is_due = written.as_ref().is_none_or(|(before, since)| {
                !before.says_as_much_as(&now) || since.elapsed() >= RENEWED_WITHIN.saturating_sub(AT_MOST_EVERY)
            });
            if is_due {
                self.make_first_key().await;
                match self.write(now, written.as_ref().map(|(before, _)| before.renewal)).await {
                    Ok(now) => (written, said) = (Some((now, Instant::now())), None),
                    Err(why) if said.as_ref() == Some(&why) => {}
                    Err(why) => {
                        tracing::warn!(
                            error = why,
                            "failed to publish the settings of this host for REST servers; retrying"
                        );
                        said = Some(why);
                    }
                }
            }
            sleep(AT_MOST_EVERY).await;
            let rest = match &written {
                Some((_, since)) if said.is_none() => {
                    RENEWED_WITHIN.saturating_sub(since.elapsed().saturating_add(AT_MOST_EVERY))
                }
                _ => AGAIN,
            };
            // The wait ends at a change or at the next renewal, whichever is first.
            if let Ok(Err(_closed)) = timeout(rest, changes.changed()).await {
                return;
            }
        }
    }

    /// Makes the first key of the file addresses, if there is none.
    async fn make_first_key(&self) {
        if let Err(refusal) = oarlock_rest::make_first_key(&self.home.client, &self.home.namespace).await {
            tracing::debug!(error = refusal.message, "failed to create the key that signs the URLs of files");
        }
    }

    /// Writes the ConfigMap with the next renewal number.
    async fn write(&self, now: Published, before: Option<u64>) -> Result<Published, String> {
        let cluster = self.ops.cluster();
        let before = match before {
            Some(before) => before,
            None => {
                let stored = cluster.published(&self.home.namespace).await.map_err(|failed| failed.message)?;
                stored.as_deref().and_then(Published::read).map_or(0, |read| read.renewal)
            }
        };
        let now = Published { renewal: before.wrapping_add(1), renewed_at: cluster.clock().now().as_second(), ..now };
        cluster.publish(&self.home.namespace, now.clone().text(), &self.fence).await.map_err(
            |stopped| match stopped {
                Stopped::Gone => format!("there is no ConfigMap {PUBLISHED}: apply `oarlock manifests --ops`"),
                other => RoundTrouble::of(&format!("write the ConfigMap {PUBLISHED}"), &other).message,
            },
        )?;
        Ok(now)
    }
}

/// A server's view of the host. Clones share one view.
#[derive(Clone)]
pub(crate) struct HostWatch(Arc<WatchParts>);

struct WatchParts {
    settings: BTreeMap<String, String>,
    began: Instant,
    read: Mutex<LastRead>,
}

/// The last read of the ConfigMap.
struct LastRead {
    renewals: Renewals,
    last: Result<Arc<Published>, Unpublished>,
}

impl HostWatch {
    /// Makes an empty view for a server with these settings.
    pub(crate) fn with(settings: BTreeMap<String, String>) -> Self {
        let read = Mutex::new(LastRead { renewals: Renewals::default(), last: Err(Unpublished::Missing) });
        Self(Arc::new(WatchParts { settings, began: Instant::now(), read }))
    }

    /// Returns the services of the host, if the server can rely on them.
    pub(crate) fn now(&self) -> Result<Arc<Published>, Unpublished> {
        let state = self.0.read.lock();
        let read = state.last.clone()?;
        check(&read, &self.0.settings, &state.renewals, self.0.began.elapsed())?;
        Ok(read)
    }

    /// Returns the function that gives the API the services of the host.
    pub(crate) fn host(&self) -> HostOf {
        let this = self.clone();
        Box::new(move || this.now())
    }

    /// Reads the ConfigMap every [`READ_EVERY`] until the task is aborted.
    pub(crate) async fn run(self, ops: Ops, namespace: String, heart: Arc<Heartbeat>) {
        loop {
            self.read(&ops, &namespace).await;
            // `beat` resolves when the next beat is due, which is later than the next read.
            let _ = timeout(READ_EVERY, heart.beat()).await;
        }
    }

    async fn read(&self, ops: &Ops, namespace: &str) {
        let stored = ops.cluster().published(namespace).await;
        let (forward, second) = (self.0.began.elapsed(), ops.cluster().clock().now().as_second());
        let mut state = self.0.read.lock();
        match stored {
            // The last text counts until it is too old.
            Err(failed) => {
                if state.last.is_err() || !state.renewals.are_fresh(forward) {
                    state.last = Err(Unpublished::Unread(failed.message));
                }
            }
            Ok(None) => state.last = Err(Unpublished::Missing),
            Ok(Some(text)) => match Published::read(&text) {
                None => state.last = Err(Unpublished::Unreadable),
                Some(read) => {
                    state.renewals.take(&read, forward, second);
                    state.last = Ok(Arc::new(read));
                }
            },
        }
    }
}
