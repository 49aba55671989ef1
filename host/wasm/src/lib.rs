//! The Plugins port on wasmtime: finds, vets, compiles, serves and calls plugins.
//!
//! This crate does not know a cluster. The caller passes the objects that a plugin reads, and gets the plugin's proposal. A module imports
//! only modules that stand before it in this list.

mod rejection;

mod memory;

/// Runs plugins: the engine, instances, sessions of calls, host functions and limits.
mod run {
    pub(crate) mod bindings;
    pub(crate) mod call_error;
    pub(crate) mod convert;
    pub(crate) mod engine;
    pub(crate) mod guest;
    pub(crate) mod handles;
    pub(crate) mod host_functions;
    pub(crate) mod limits;
    pub(crate) mod log_budget;
    pub(crate) mod output_pipe;
    pub(crate) mod peak_use;
    pub(crate) mod plugin_log;
    pub(crate) mod seeded_random;
    pub(crate) mod session;
    pub(crate) mod ticker;
    pub(crate) mod warm_instance;
    pub(crate) mod wasi;
}

mod plugin;

mod probe;

/// Turns files into plugins: watches the directory, vets, compiles and grants.
mod load {
    pub(crate) mod annotate;
    pub(crate) mod cache;
    pub(crate) mod compile;
    pub(crate) mod confine;
    pub(crate) mod directory;
    pub(crate) mod events;
    pub(crate) mod grants;
    pub(crate) mod helper_process;
    pub(crate) mod inspect;
    pub(crate) mod loader;
    pub(crate) mod stamp;
    pub(crate) mod vet;
}

mod status;

mod snapshot;

mod draining;

mod election;

mod plugin_set;

mod registry;

mod follow;

mod plugins;

mod dry_run;

mod replay;

pub use dry_run::{VetReport, dry_run};
pub use load::annotate::annotate;
pub use load::cache::{CacheError, default_cache_dir};
pub use load::compile::{CompileWorkerError, HelperTask, compile_worker};
pub use load::confine::ConfineError;
pub use load::grants::{GrantsError, grants_digest, parse_grants};
pub use load::helper_process::CompileWith;
pub use load::inspect::{Inspection, MANIFEST_SECTION, Section, digest, inspect};
pub use load::vet::{MAX_BYTES, denied_interface};
pub use oarlock_contract::limits::{CAPS, DEFAULTS, PluginLimits};
pub use plugin::{Declared, DeclaredKind};
pub use plugins::{Options, Plugins, PluginsError};
pub use rejection::Rejection;
pub use replay::{ReplayError, ReplayVerdict, ReplayedVisit, Replayer, WarmReplay};
pub use run::engine::EngineError;
pub use run::session::Session;
pub use status::{FirstScan, GrantsState, PluginState, PluginStatus};
