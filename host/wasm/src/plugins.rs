//! The plugins of a host, for the rounds and the commands.
//!
//! This module finds plugins by action and calls them. It does not know the purpose of a plugin's proposals.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use oarlock_contract::limits::{CAPS, PluginLimits};
use oarlock_core::plugin::grant::Grant;
use oarlock_core::plugin::lookup::PluginLookup;
use oarlock_core::plugin::trap_budget::{NotedVisit, TrapBudget};
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::follow::{Follower, follow_grants};
use crate::load::cache::{Cache, CacheError};
use crate::load::directory::Directory;
use crate::load::grants::{GrantsError, GrantsFile};
use crate::load::helper_process::CompileWith;
use crate::load::loader::Loader;
use crate::load::vet;
use crate::memory::MemoryShares;
use crate::plugin::{Declared, Plugin};
use crate::registry::Registry;
use crate::run::engine::{Engine, EngineError};
use crate::run::session::Session;
use crate::status::{FirstScan, GrantsState, PluginStatus};

/// The options for finding and running plugins.
#[derive(Clone, Debug)]
pub struct Options {
    /// The plugin directory. It is `None` if the caller publishes plugins itself.
    pub dir: Option<PathBuf>,
    /// The file of grants. It is `None` if the caller sets grants itself.
    pub grants: Option<PathBuf>,
    /// The digest of the only accepted grants, see [`crate::grants_digest`]. With `None`, the host accepts any grants in the file.
    pub grants_digest: Option<String>,
    /// True if the caller sets the grants ([`Plugins::set_grants`]), so that the host loads no file before it has set the first ones.
    pub grants_from_caller: bool,
    /// True to grant every plugin all its requests. A grant then sets only limits and configuration. This option is for authors of plugins.
    pub grant_all: bool,
    /// The directory of the compile cache, see [`crate::default_cache_dir`]. With `None`, the host keeps no compiled code.
    pub cache_dir: Option<PathBuf>,
    /// The process that compiles.
    pub compile_with: CompileWith,
    /// The highest limits that a grant can give.
    pub caps: PluginLimits,
    /// The longest wait for a call. With `None`, only the clock of the engine stops calls, when they compute too long. Use `None` with
    /// paused time, which would skip over a call.
    pub wall_timeout: Option<Duration>,
    /// The bytes of memory that the host, its plugins and the helper share. `None` means no limit.
    pub memory_limit: Option<u64>,
}

impl Options {
    /// Returns options for tests: no directory, no cache, and compilation in this process.
    pub fn in_memory() -> Self {
        let compile_with = CompileWith::InProcess;
        Self {
            dir: None,
            grants: None,
            grants_digest: None,
            grants_from_caller: false,
            grant_all: false,
            cache_dir: None,
            compile_with,
            caps: CAPS,
            wall_timeout: None,
            memory_limit: None,
        }
    }
}

/// The reason why the plugins could not be started.
#[derive(Debug, Error)]
pub enum PluginsError {
    /// The engine did not start.
    #[error("failed to start the plugin engine")]
    Engine {
        /// The cause.
        #[source]
        source: EngineError,
    },
    /// The compile cache could not be opened.
    #[error("failed to open the compile cache")]
    Cache {
        /// The cause.
        #[source]
        source: CacheError,
    },
    /// The plugin directory does not exist.
    #[error("{path} is not a directory; create it, or choose another plugin directory")]
    Directory {
        /// The directory.
        path: PathBuf,
    },
    /// The file of grants is in the plugin directory.
    #[error("failed to read the grants")]
    Grants {
        /// The cause.
        #[source]
        source: GrantsError,
    },
}

/// The plugins of a host. They are cheap to clone. The host watches the directory until the last clone is dropped.
#[derive(Clone)]
pub struct Plugins {
    registry: Arc<Registry>,
    /// The tasks that follow the directory and the grants. They end when the last clone is dropped.
    _tasks: Arc<JoinSet<()>>,
}

impl Plugins {
    /// Starts the engine and loads the files of the directory in the background, files with cached code first. The host then watches for
    /// more files. This function needs a tokio runtime and waits for no file.
    pub async fn start(options: Options) -> Result<Self, PluginsError> {
        let memory = MemoryShares::of(options.memory_limit);
        let engine = Engine::start(memory).map_err(|source| PluginsError::Engine { source })?;
        let fingerprint = || format!("{}-{}", engine.fingerprint(), vet::RULES);
        let cache = options.cache_dir.as_deref().map(|dir| Cache::open(dir, fingerprint(), memory)).transpose();
        let cache = cache.map_err(|source| PluginsError::Cache { source })?;
        let loader = Loader {
            engine: Arc::new(engine),
            cache,
            compile_with: options.compile_with,
            caps: options.caps,
            grant_all: options.grant_all,
            wall_timeout: options.wall_timeout,
            memory,
        };
        let first_scan = if options.dir.is_some() { FirstScan::Pending } else { FirstScan::Done };
        let registry = Arc::new(Registry::new(loader, first_scan));
        let grants = options.grants.map(|path| outside(&path, options.dir.as_deref())).transpose()?;
        if let Some(dir) = options.dir.as_ref().filter(|dir| !dir.is_dir()) {
            return Err(PluginsError::Directory { path: dir.clone() });
        }
        let mut tasks = JoinSet::new();
        let awaits_grants = grants.is_some() || options.grants_from_caller;
        if let Some(path) = grants {
            tasks.spawn(follow_grants(registry.clone(), GrantsFile::new(path, options.grants_digest)));
        }
        if let Some(dir) = options.dir {
            tasks.spawn(Follower::new(registry.clone(), Directory::new(dir, memory)).follow(awaits_grants));
        }
        Ok(Self { registry, _tasks: Arc::new(tasks) })
    }

    /// Returns the plugin for a job of `action` that is bound to `digest`, or to no digest yet.
    pub fn find(&self, action: &str, digest: Option<&str>) -> PluginLookup {
        self.registry.find(action, digest)
    }

    /// Begins the calls of one job in one round to the plugin with this `digest`. The calls share an instance.
    pub fn wave(&self, digest: &str) -> Option<Session> {
        self.registry.snapshot().by_digest(digest).map(|plugin| plugin.session())
    }

    /// Returns the callable plugin with this digest.
    pub(crate) fn plugin(&self, digest: &str) -> Option<Arc<Plugin>> {
        self.registry.snapshot().by_digest(digest).cloned()
    }

    /// Returns the digests of all callable plugins: plugins that serve, and replaced versions that running jobs still use.
    pub fn digests(&self) -> BTreeSet<String> {
        self.registry.snapshot().digests()
    }

    /// Returns the status of each plugin.
    pub fn list(&self) -> Vec<PluginStatus> {
        self.registry.snapshot().list.clone()
    }

    /// Returns the peak use of each limit by the plugin with this digest, in percent rounded up to tens, by the name of the limit. The result is
    /// empty if the plugin is not callable. It begins anew with each grant.
    pub fn peak_use(&self, digest: &str) -> BTreeMap<String, u8> {
        self.registry
            .snapshot()
            .by_digest(digest)
            .map(|plugin| plugin.context.settings.peaks.in_tens())
            .unwrap_or_default()
    }

    /// Counts a visit of the plugin with this digest. If a version has used up its budget of traps, the version before serves again, and the new one is
    /// quarantined.
    pub fn note_visit(&self, digest: &str, visit: NotedVisit<'_>) {
        let Some(traps) = self.registry.snapshot().by_digest(digest).map(|plugin| plugin.traps.clone()) else { return };
        let is_used_up = {
            let mut budget = traps.lock();
            let is_used_up = budget.note(visit);
            if is_used_up {
                *budget = TrapBudget::default();
            }
            is_used_up
        };
        if is_used_up {
            let (registry, digest) = (self.registry.clone(), digest.to_owned());
            // The change of the plugins may wait for a `setup`, and a round must not.
            tokio::spawn(async move { registry.roll_back(&digest).await });
        }
    }

    /// Returns the kinds that the callable plugins declare.
    pub fn declared(&self) -> Declared {
        self.registry.snapshot().declared.clone()
    }

    /// Returns the kinds that the plugin with this digest declares. The result is empty if the plugin is not callable.
    pub fn declared_by(&self, digest: &str) -> Declared {
        self.registry.snapshot().by_digest(digest).map(|plugin| plugin.declared()).unwrap_or_default()
    }

    /// Returns a number that rises when the served plugins or a status change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.registry.changes()
    }

    /// Returns the progress of the first scan of the plugin directory. Without a directory, the scan is done from the start.
    pub fn first_scan(&self) -> watch::Receiver<FirstScan> {
        self.registry.first_scan()
    }

    /// Returns the state of the file of grants. The number of [`Plugins::changes`] rises with each change of the state.
    pub fn grants_state(&self) -> GrantsState {
        self.registry.grants_state()
    }

    /// Loads a component without a file under the name `source`, and replaces the component with that name.
    pub async fn publish(&self, source: &str, bytes: Vec<u8>) -> Option<PluginStatus> {
        self.registry.publish(source, bytes).await;
        self.list().into_iter().find(|status| status.source == source)
    }

    /// Removes the component that was published as `source`.
    pub async fn withdraw(&self, source: &str) {
        self.registry.remove(source).await;
    }

    /// Returns all grants of plugins, or `None` while no grants are known.
    pub fn grants(&self) -> Option<Vec<Grant>> {
        self.registry.grants()
    }

    /// Replaces the grants if they come from no file.
    pub async fn set_grants(&self, grants: Vec<Grant>) {
        self.registry.set_grants(grants).await;
    }
}

/// Returns the absolute path of the file of grants. Neither the file nor the target of its link may be in the plugin directory.
fn outside(path: &Path, dir: Option<&Path>) -> Result<PathBuf, PluginsError> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let dir = dir.and_then(|dir| std::fs::canonicalize(dir).ok());
    let places = [Some(path.as_path()), path.parent()].into_iter().flatten();
    let places: Vec<PathBuf> = places.filter_map(|place| std::fs::canonicalize(place).ok()).collect();
    if dir.is_some_and(|dir| places.iter().any(|place| place.starts_with(&dir))) {
        return Err(PluginsError::Grants { source: GrantsError::Inside { path } });
    }
    Ok(path)
}
