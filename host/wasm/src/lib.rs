//! Finds, vets, compiles, serves and calls plugins: the Plugins port on wasmtime.
//!
//! Takes files with WebAssembly components and visits; yields answers. May not know a cluster: what a plugin reads is
//! handed in, and what it proposes is handed out.

mod annotate;
mod bindings;
mod cache;
mod call;
mod compile;
mod contract;
mod document;
mod engine;
mod grants;
mod guest;
mod inputs;
mod inspect;
mod journal;
mod limits;
mod load;
mod plugin;
mod plugins;
mod registry;
mod rejection;
mod ticker;
mod verdict;
mod vet;
mod wasi;
mod watch;

pub use annotate::annotate;
pub use cache::{CacheError, default_cache_dir};
pub use call::Wave;
pub use compile::{CompileWith, CompileWorkerError, compile_worker};
pub use engine::EngineError;
pub use grants::{GrantsError, parse_grants};
pub use inspect::{Facts, MANIFEST_SECTION, Section, digest, inspect};
pub use limits::{CAPS, DEFAULTS, Effective};
pub use plugin::{Declared, DeclaredKind};
pub use plugins::{Options, Plugins, PluginsError};
pub use registry::{PluginState, PluginStatus};
pub use rejection::Rejection;
pub use verdict::{Verdict, verdict};
pub use vet::MAX_BYTES;
