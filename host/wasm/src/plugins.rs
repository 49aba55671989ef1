//! The plugins of a host: everything the round and the commands ask for.
//!
//! It finds plugins by action and calls them. May not know the purpose of a plugin's proposals.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::plugin::grant::Grant;
use oarlock_core::plugin::lookup::PluginLookup;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::load::cache::{Cache, CacheError};
use crate::load::compile::CompileWith;
use crate::load::grants::GrantsError;
use crate::load::loader::Loader;
use crate::load::vet;
use crate::load::watch::Directory;
use crate::plugin::Declared;
use crate::registry::Registry;
use crate::run::engine::{Engine, EngineError};
use crate::run::limits::{CAPS, PluginLimits};
use crate::run::session::Session;
use crate::status::{PluginStatus, Unavailable};

/// Options for finding and running plugins.
#[derive(Clone, Debug)]
pub struct Options {
    /// The plugin directory; `None` where plugins are published by hand.
    pub dir: Option<PathBuf>,
    /// The file of grants; `None` where grants are set by hand.
    pub grants: Option<PathBuf>,
    /// The directory of the compile cache, see [`crate::default_cache_dir`]; `None` keeps no compiled code.
    pub cache_dir: Option<PathBuf>,
    /// The process that compiles.
    pub compile_with: CompileWith,
    /// The highest limits that a grant can give.
    pub caps: PluginLimits,
    /// The longest that a call may wait; `None` leaves it to the engine's clock, which stops each call that computes.
    /// Use `None` under paused time, which would skip over a call.
    pub wall_timeout: Option<Duration>,
}

impl Options {
    /// No directory and no cache, compiling in this process: for tests.
    pub fn in_memory() -> Self {
        let compile_with = CompileWith::InProcess;
        Self { dir: None, grants: None, cache_dir: None, compile_with, caps: CAPS, wall_timeout: None }
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
    _following: Option<Arc<Following>>,
}

struct Following(AbortHandle);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Plugins {
    /// Starts the engine, loads the files of the directory, and watches it for more.
    pub async fn start(options: Options) -> Result<Self, PluginsError> {
        let engine = Engine::start().map_err(|source| PluginsError::Engine { source })?;
        let fingerprint = || format!("{}-{}", engine.fingerprint(), vet::RULES);
        let cache = options.cache_dir.as_deref().map(|dir| Cache::open(dir, fingerprint())).transpose();
        let cache = cache.map_err(|source| PluginsError::Cache { source })?;
        let registry = Arc::new(Registry::new(Loader {
            engine: Arc::new(engine),
            cache,
            compile_with: options.compile_with,
            caps: options.caps,
            wall_timeout: options.wall_timeout,
        }));
        let grants = options.grants.map(|path| outside(path, options.dir.as_deref())).transpose()?;
        let Some(dir) = options.dir else {
            if let Some(grants) = grants {
                registry.read_grants(&grants).await;
            }
            return Ok(Self { registry, _following: None });
        };
        if !dir.is_dir() {
            return Err(PluginsError::Directory { path: dir });
        }
        let mut directory = Directory::new(dir, grants);
        let unsettled = registry.scan(&mut directory).await;
        let task = tokio::spawn(registry.clone().follow(directory, unsettled));
        Ok(Self { registry, _following: Some(Arc::new(Following(task.abort_handle()))) })
    }

    /// The plugin for a job of `action` that is bound to `digest`, or to none yet.
    pub fn find(&self, action: &str, digest: Option<&str>) -> PluginLookup {
        self.registry.snapshot().find(action, digest)
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

    /// A number that rises when the served plugins or a status change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.registry.changes()
    }

    /// Loads a component that has no file under the name `source`, and replaces the one of that name.
    pub async fn publish(&self, source: &str, bytes: Vec<u8>) -> Option<PluginStatus> {
        self.registry.load(source, bytes).await;
        self.list().into_iter().find(|status| status.source == source)
    }

    /// Removes the component that was published as `source`.
    pub async fn withdraw(&self, source: &str) {
        self.registry.remove(source).await;
    }

    /// Replaces the grants, where they come from no file.
    pub async fn set_grants(&self, grants: Vec<Grant>) {
        self.registry.set_grants(grants).await;
    }

    /// Marks the plugin of `digest` as unavailable because a kind that it declares cannot be listed, or with `None` as
    /// available again. Meanwhile no job finds it, and its kinds stay declared, so that they are listed once they can
    /// be. Other plugins are unaffected. The mark is lost with the plugin; repeating it changes nothing.
    pub async fn set_unavailable(&self, digest: &str, unavailable: Option<Unavailable>) {
        self.registry.set_unavailable(digest, unavailable).await;
    }
}

/// Checks that the file of grants lies outside the plugin directory.
fn outside(path: PathBuf, dir: Option<&Path>) -> Result<PathBuf, PluginsError> {
    let parent = path.parent().and_then(|parent| std::fs::canonicalize(parent).ok());
    let dir = dir.and_then(|dir| std::fs::canonicalize(dir).ok());
    if dir.zip(parent).is_some_and(|(dir, parent)| parent.starts_with(dir)) {
        return Err(PluginsError::Grants { source: GrantsError::Inside { path } });
    }
    Ok(path)
}
