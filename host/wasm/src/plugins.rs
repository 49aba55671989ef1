//! The plugins of a host: everything the round and the commands ask for.
//!
//! It finds plugins by action and calls them. May not know the purpose of a plugin's proposals.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use oarlock_contract::limits::{CAPS, PluginLimits};
use oarlock_core::plugin::grant::Grant;
use oarlock_core::plugin::lookup::PluginLookup;
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
use crate::plugin::Declared;
use crate::registry::Registry;
use crate::run::engine::{Engine, EngineError};
use crate::run::session::Session;
use crate::status::{FirstScan, GrantsState, PluginStatus};

/// Options for finding and running plugins.
#[derive(Clone, Debug)]
pub struct Options {
    /// The plugin directory; `None` where plugins are published by hand.
    pub dir: Option<PathBuf>,
    /// The file of grants; `None` where grants are set by hand.
    pub grants: Option<PathBuf>,
    /// The digest of the only grants that count, see [`crate::grants_digest`]; `None` lets any of that file count.
    pub grants_digest: Option<String>,
    /// Every plugin is granted all that it asks for; of its grant only limits and configuration count. For authors.
    pub grant_all: bool,
    /// The directory of the compile cache, see [`crate::default_cache_dir`]; `None` keeps no compiled code.
    pub cache_dir: Option<PathBuf>,
    /// The process that compiles.
    pub compile_with: CompileWith,
    /// The highest limits that a grant can give.
    pub caps: PluginLimits,
    /// The longest that a call may wait; `None` leaves it to the engine's clock, which stops each call that computes.
    /// Use `None` under paused time, which would skip over a call.
    pub wall_timeout: Option<Duration>,
    /// Bytes of memory that the host, its plugins and the helper share; `None` is no limit.
    pub memory_limit: Option<u64>,
}

impl Options {
    /// No directory and no cache, compiling in this process: for tests.
    pub fn in_memory() -> Self {
        let compile_with = CompileWith::InProcess;
        Self {
            dir: None,
            grants: None,
            grants_digest: None,
            grant_all: false,
            cache_dir: None,
            compile_with,
            caps: CAPS,
            wall_timeout: None,
            memory_limit: None,
        }
    }
}

/// The plugins could not be started.
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
    /// The grants lie in the plugin directory.
    #[error("failed to read the grants")]
    Grants {
        /// The cause.
        #[source]
        source: GrantsError,
    },
}

/// The plugins of a host. Cheap to clone; the directory is watched until the last clone is dropped.
#[derive(Clone)]
pub struct Plugins {
    registry: Arc<Registry>,
    /// Following the directory and the grants; they end with the last clone.
    _tasks: Arc<JoinSet<()>>,
}

impl Plugins {
    /// Starts the engine. The files of the directory are loaded in the background, those in the cache first, and more
    /// are watched for. Needs a runtime, and waits for nothing.
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
        let (known, grants_known) = watch::channel(false);
        if let Some(path) = grants {
            tasks.spawn(follow_grants(registry.clone(), GrantsFile::new(path, options.grants_digest), known));
        }
        if let Some(dir) = options.dir {
            tasks.spawn(Follower::new(registry.clone(), Directory::new(dir, memory)).follow(grants_known));
        }
        Ok(Self { registry, _tasks: Arc::new(tasks) })
    }

    /// The plugin for a job of `action` that is bound to `digest`, or to none yet.
    pub fn find(&self, action: &str, digest: Option<&str>) -> PluginLookup {
        self.registry.find(action, digest)
    }

    /// Begins calls of the plugin of `digest` that share an instance: those of one job in one round.
    pub fn wave(&self, digest: &str) -> Option<Session> {
        self.registry.snapshot().by_digest(digest).map(|plugin| plugin.session())
    }

    /// Digests of all plugins that may be called: those that serve, and replaced versions that jobs still use.
    pub fn digests(&self) -> BTreeSet<String> {
        self.registry.snapshot().digests()
    }

    /// The status of each plugin.
    pub fn list(&self) -> Vec<PluginStatus> {
        self.registry.snapshot().list.clone()
    }

    /// The kinds that all plugins that may be called declare.
    pub fn declared(&self) -> Declared {
        self.registry.snapshot().declared.clone()
    }

    /// The kinds that the plugin of this digest declares; none if it cannot be called.
    pub fn declared_by(&self, digest: &str) -> Declared {
        self.registry.snapshot().by_digest(digest).map(|plugin| plugin.declared()).unwrap_or_default()
    }

    /// A number that rises when the served plugins or a status change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.registry.changes()
    }

    /// The progress of the first scan of the plugin directory; done from the start where there is none.
    pub fn first_scan(&self) -> watch::Receiver<FirstScan> {
        self.registry.first_scan()
    }

    /// The state of the file of grants; `changes` rises with it.
    pub fn grants_state(&self) -> GrantsState {
        self.registry.grants_state()
    }

    /// Loads a component that has no file under the name `source`, and replaces the one of that name.
    pub async fn publish(&self, source: &str, bytes: Vec<u8>) -> Option<PluginStatus> {
        self.registry.publish(source, bytes).await;
        self.list().into_iter().find(|status| status.source == source)
    }

    /// Removes the component that was published as `source`.
    pub async fn withdraw(&self, source: &str) {
        self.registry.remove(source).await;
    }

    /// All that plugins are granted; `None` while no grants are known.
    pub fn grants(&self) -> Option<Vec<Grant>> {
        self.registry.grants()
    }

    /// Replaces the grants, where they come from no file.
    pub async fn set_grants(&self, grants: Vec<Grant>) {
        self.registry.set_grants(grants).await;
    }
}

/// The absolute path of the file of grants, which lies outside the plugin directory, as does what it links to.
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
