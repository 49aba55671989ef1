//! The plugins of a host: everything the round and the commands ask for.
//!
//! Takes a directory, grants and components; yields plugins by action. Reading never waits; loading happens one file
//! at a time in the background. May not know what a plugin's proposals are for.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use oarlock_core::plugin::grant::Grant;
use oarlock_core::plugin::lookup::Found;
use thiserror::Error;
use tokio::sync::{Mutex, watch};
use tokio::task::AbortHandle;

use crate::load::cache::{Cache, CacheError};
use crate::load::compile::CompileWith;
use crate::load::grants::{GrantsError, read_grants};
use crate::load::inspect::digest;
use crate::load::loader::Loader;
use crate::load::watch::{Watched, watch};
use crate::plugin::Declared;
use crate::registry::{Entry, Outcome, PluginStatus, Published, Registry};
use crate::rejection::{Rejection, causes};
use crate::run::engine::{Engine, EngineError};
use crate::run::limits::{CAPS, Effective};
use crate::run::warm_instance::Wave;

/// How plugins are found and run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The plugin directory; `None` where plugins are published by hand.
    pub dir: Option<PathBuf>,
    /// The file of grants; `None` where grants are set by hand.
    pub grants: Option<PathBuf>,
    /// Where compiled code is kept, see [`crate::default_cache_dir`]; `None` keeps none.
    pub cache_dir: Option<PathBuf>,
    /// Who compiles.
    pub compile_with: CompileWith,
    /// What no grant raises a limit above.
    pub caps: Effective,
    /// When a call that waits is given up; `None` leaves that to the engine's clock, which stops all that computes.
    /// Leave it out under paused time, which would skip over a call.
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
    /// No engine.
    #[error("failed to start the plugin engine")]
    Engine {
        /// What went wrong.
        #[source]
        source: EngineError,
    },
    /// No cache.
    #[error("failed to open the compile cache")]
    Cache {
        /// What went wrong.
        #[source]
        source: CacheError,
    },
    /// The plugin directory is not there.
    #[error("{path} is not a directory; create it, or name the plugin directory")]
    Directory {
        /// The directory.
        path: PathBuf,
    },
    /// The grants lie in the wrong place, or cannot be read.
    #[error("failed to read the grants")]
    Grants {
        /// What went wrong.
        #[source]
        source: GrantsError,
    },
}

/// The plugins of a host. Cheap to clone; the directory is watched until the last clone is dropped.
#[derive(Clone)]
pub struct Plugins {
    shelf: Arc<Shelf>,
    _watching: Option<Arc<Watching>>,
}

struct Watching(AbortHandle);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What the watch and the host share.
pub(crate) struct Shelf {
    loader: Arc<Loader>,
    registry: Mutex<(Registry, Vec<Grant>)>,
    published: ArcSwap<Published>,
    changed: watch::Sender<u64>,
}

impl Plugins {
    /// Starts the engine, loads what is there, and watches for more.
    pub async fn start(options: Options) -> Result<Self, PluginsError> {
        let engine = Engine::start().map_err(|source| PluginsError::Engine { source })?;
        let cache = options.cache_dir.as_deref().map(|dir| Cache::open(dir, engine.fingerprint())).transpose();
        let cache = cache.map_err(|source| PluginsError::Cache { source })?;
        let loader = Loader {
            engine: Arc::new(engine),
            cache,
            compile_with: options.compile_with,
            caps: options.caps,
            wall_timeout: options.wall_timeout,
        };
        let shelf = Arc::new(Shelf {
            loader: Arc::new(loader),
            registry: Mutex::default(),
            published: ArcSwap::default(),
            changed: watch::Sender::new(0),
        });
        let grants = options.grants.map(|path| checked(path, options.dir.as_deref())).transpose()?;
        let Some(dir) = options.dir else {
            if let Some(grants) = grants {
                shelf.read_grants(&grants).await;
            }
            return Ok(Self { shelf, _watching: None });
        };
        if !dir.is_dir() {
            return Err(PluginsError::Directory { path: dir });
        }
        let mut watched = Watched::new(dir, grants);
        let unsettled = watched.scan(&shelf).await;
        let task = tokio::spawn(watch(watched, shelf.clone(), unsettled));
        Ok(Self { shelf, _watching: Some(Arc::new(Watching(task.abort_handle()))) })
    }

    /// The plugin for a job of `action` that is bound to `digest`, or to none yet.
    pub fn find(&self, action: &str, digest: Option<&str>) -> Found {
        self.shelf.published.load().find(action, digest)
    }

    /// Begins calls of the plugin of `digest` that may share an instance: those of one job in one round.
    pub fn wave(&self, digest: &str) -> Option<Wave> {
        self.shelf.published.load().by_digest(digest).map(Wave::new)
    }

    /// Digests of all plugins that may be called: those that serve, and those that jobs began with.
    pub fn digests(&self) -> BTreeSet<String> {
        self.shelf.published.load().digests()
    }

    /// What became of each plugin.
    pub fn list(&self) -> Vec<PluginStatus> {
        self.shelf.published.load().list.clone()
    }

    /// What all plugins that may be called want to see.
    pub fn declared(&self) -> Declared {
        self.shelf.published.load().declared.clone()
    }

    /// A number that rises when what is served or told changes.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shelf.changed.subscribe()
    }

    /// Takes a component without a file, under a name of its own; what had that name before is replaced.
    pub async fn publish(&self, source: &str, bytes: Vec<u8>) -> Option<PluginStatus> {
        self.shelf.take(source, bytes).await;
        self.list().into_iter().find(|status| status.source == source)
    }

    /// Takes back what was published under `source`.
    pub async fn withdraw(&self, source: &str) {
        self.shelf.remove(source).await;
    }

    /// Sets the grants, where they come from no file.
    pub async fn set_grants(&self, grants: Vec<Grant>) {
        self.shelf.set_grants(grants).await;
    }
}

fn checked(path: PathBuf, dir: Option<&Path>) -> Result<PathBuf, PluginsError> {
    let parent = path.parent().and_then(|parent| std::fs::canonicalize(parent).ok());
    let dir = dir.and_then(|dir| std::fs::canonicalize(dir).ok());
    if dir.zip(parent).is_some_and(|(dir, parent)| parent.starts_with(dir)) {
        return Err(PluginsError::Grants { source: GrantsError::Inside { path } });
    }
    Ok(path)
}

impl Shelf {
    /// Loads a component and decides anew who serves.
    pub(crate) async fn take(&self, source: &str, bytes: Vec<u8>) {
        let loader = self.loader.clone();
        let digest = digest(&bytes);
        let prepared = tokio::task::spawn_blocking(move || loader.prepare(&bytes)).await;
        // A compiler that panics in this process ends its task and nothing else.
        let prepared = prepared.unwrap_or_else(|_| {
            Err(Rejection::new("CompileFailed", "the compiler broke down over the component; build it anew"))
        });
        self.edit(async |(registry, grants)| {
            let good = registry.entries.get(source).and_then(Entry::plugin).cloned();
            let (compiled, outcome) = match prepared {
                Ok(compiled) => {
                    let admission = self.loader.admit(&compiled, grants).await;
                    (Some(compiled), Outcome::from(admission))
                }
                Err(rejection) => (None, Outcome::Rejected(rejection)),
            };
            let good = good.filter(|_| !matches!(outcome, Outcome::Ready(_)));
            registry.entries.insert(source.to_owned(), Entry { digest: Some(digest), compiled, outcome, good });
        })
        .await;
    }

    /// Says why a file is not used; what it was before goes on.
    pub(crate) async fn reject(&self, source: &str, rejection: Rejection) {
        self.set_outcome(source, Outcome::Rejected(rejection)).await;
    }

    /// Says that a file is still being written; what it was before goes on.
    pub(crate) async fn unsettled(&self, source: &str) {
        let told = {
            let state = self.registry.lock().await;
            state.0.entries.get(source).is_some_and(|entry| matches!(entry.outcome, Outcome::Unsettled))
        };
        if !told {
            self.set_outcome(source, Outcome::Unsettled).await;
        }
    }

    async fn set_outcome(&self, source: &str, outcome: Outcome) {
        self.edit(async |(registry, _)| {
            let good = registry.entries.get(source).and_then(Entry::plugin).cloned();
            registry.entries.insert(source.to_owned(), Entry { digest: None, compiled: None, outcome, good });
        })
        .await;
    }

    pub(crate) async fn remove(&self, source: &str) {
        self.edit(async |(registry, _)| drop(registry.entries.remove(source))).await;
    }

    /// Whether a file is to be tried again though it did not change.
    pub(crate) async fn wants_again(&self, source: &str) -> bool {
        let state = self.registry.lock().await;
        let outcome = state.0.entries.get(source).map(|entry| &entry.outcome);
        matches!(outcome, Some(Outcome::Rejected(rejection)) if rejection.retryable)
    }

    /// Reads the grants; those of before go on where the file is refused.
    pub(crate) async fn read_grants(&self, path: &Path) {
        match read_grants(path) {
            Ok(grants) => self.set_grants(grants).await,
            Err(error) => {
                tracing::error!(path = %path.display(), error = %causes(&error), "the grants are refused; those of before hold");
            }
        }
    }

    pub(crate) async fn set_grants(&self, grants: Vec<Grant>) {
        self.edit(async |(registry, current)| {
            let before = std::mem::replace(current, grants);
            let of = |grants: &[Grant], name: &str| grants.iter().find(|grant| grant.name == name).cloned();
            let changed = |name: &str| of(&before, name) != of(current, name);
            let known =
                registry.entries.iter().filter_map(|(source, entry)| Some((source.clone(), entry.compiled.clone()?)));
            let concerned: Vec<_> = known.filter(|(_, compiled)| changed(&compiled.manifest.name)).collect();
            let names: BTreeSet<_> = before.iter().chain(current.iter()).map(|grant| grant.name.as_str()).collect();
            let renamed = names.into_iter().filter(|name| changed(name));
            let draining: Vec<_> = renamed.flat_map(|name| registry.draining(name)).collect();
            for compiled in draining {
                let admission = self.loader.admit(&compiled, current).await;
                registry.redrained(&compiled.digest, admission);
            }
            for (source, compiled) in concerned {
                let admission = self.loader.admit(&compiled, current).await;
                registry.regranted(&source, admission);
            }
        })
        .await;
    }

    pub(crate) async fn sweep(&self) {
        let swept = self.registry.lock().await.0.sweep();
        if swept {
            self.edit(async |_| ()).await;
        }
    }

    async fn edit(&self, change: impl AsyncFnOnce(&mut (Registry, Vec<Grant>))) {
        let mut state = self.registry.lock().await;
        change(&mut state).await;
        let before = self.published.load_full();
        let after = state.0.publish(&before);
        for status in after.list.iter().filter(|status| !before.list.contains(status)) {
            let (source, state, reason) = (&status.source, status.state, &status.reason);
            tracing::info!(plugin = status.name, source, ?state, reason, "{}", status.message);
        }
        let same = after.is_same(&before);
        self.published.store(Arc::new(after));
        if !same {
            self.changed.send_modify(|count| *count += 1);
        }
    }
}
