//! The wasmtime engine of the host: its configuration, its clock, its pool of instances, and the host functions that plugins link.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use thiserror::Error;
use tokio::sync::Semaphore;
use wasmtime::component::{HasSelf, Linker};
use wasmtime::{Config, Enabled, InstanceAllocationStrategy, PoolingAllocationConfig};

use crate::memory::MemoryShares;
use crate::run::bindings::{cluster, config, jobs, log};
use crate::run::guest::Guest;
use crate::run::limits::TABLE_ELEMENTS;
use crate::run::ticker::Ticker;
use crate::run::wasi;

/// The most instances at once. Sessions are short and wait for one another.
const MAX_INSTANCES: u32 = 32;
/// The largest memory of an instance, in bytes. It is also the highest limit that a grant can give.
const MEMORY_BYTES: usize = 64 << 20;
/// The bytes of memory that the engine resets by writing instead of by a system call. A plugin in Rust uses less.
const KEEP_RESIDENT: usize = 256 << 10;

/// The reason why the engine could not be created.
#[derive(Debug, Error)]
pub enum EngineError {
    /// The engine refused its configuration, or the machine lacks address space.
    #[error("failed to start the wasm engine; run the host on 64-bit Linux with at least 1 TiB of address space")]
    Start {
        /// The cause.
        #[source]
        source: wasmtime::Error,
    },
    /// The functions of the host could not be linked.
    #[error("failed to link the host's functions")]
    Link {
        /// The cause.
        #[source]
        source: wasmtime::Error,
    },
    /// The thread of the clock could not start.
    #[error("failed to start the thread that stops runaway plugins")]
    Ticker {
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

/// The engine, with the host functions for plugins.
pub(crate) struct Engine {
    pub wasm: wasmtime::Engine,
    pub linker: Linker<Guest>,
    pub ticker: Ticker,
    /// One permit for each instance that may exist.
    pub permits: Arc<Semaphore>,
    /// One permit for each MiB that all instances may use together.
    pub memory: Arc<Semaphore>,
}

impl Engine {
    pub(crate) fn start(memory: MemoryShares) -> Result<Self, EngineError> {
        let mut config = config_for_compiling();
        config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool()));
        let wasm = wasmtime::Engine::new(&config).map_err(|source| EngineError::Start { source })?;
        let linker = link(&wasm).map_err(|source| EngineError::Link { source })?;
        let ticker = Ticker::start(&wasm).map_err(|source| EngineError::Ticker { source })?;
        let permits = Arc::new(Semaphore::new(MAX_INSTANCES as usize));
        let memory = Arc::new(Semaphore::new(memory.plugins_mib() as usize));
        Ok(Self { wasm, linker, ticker, permits, memory })
    }

    /// Returns a digest of the compiler's version and of every setting that affects compiled code.
    pub(crate) fn fingerprint(&self) -> String {
        let mut digest = StableHasher(Sha256::new());
        self.wasm.precompile_compatibility_hash().hash(&mut digest);
        format!("{:016x}", digest.finish())
    }
}

/// A hasher with the same result in each process, unlike the hashers of the standard library.
struct StableHasher(Sha256);

impl Hasher for StableHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        self.0.clone().finalize().iter().take(8).fold(0, |word, byte| (word << 8) | u64::from(*byte))
    }
}

/// Returns an engine for the helper process, which only compiles and runs nothing. It reserves no address space. A `frugal` engine compiles
/// one function after the other, because each thread takes memory.
pub(crate) fn compiler(frugal: bool) -> Result<wasmtime::Engine, EngineError> {
    let mut config = config_for_compiling();
    config.parallel_compilation(!frugal);
    wasmtime::Engine::new(&config).map_err(|source| EngineError::Start { source })
}

fn config_for_compiling() -> Config {
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .cranelift_nan_canonicalization(true)
        .relaxed_simd_deterministic(true)
        // wasmtime 48 panics on composed components without it.
        .wasm_multi_memory(true)
        .wasm_memory64(false)
        .concurrency_support(false)
        // These values are set here because compiled code depends on them, and an allocator may choose its own defaults.
        .memory_reservation(4 << 30)
        .memory_guard_size(32 << 20)
        .memory_may_move(false)
        .memory_init_cow(true)
        .max_wasm_stack(512 << 10)
        .async_stack_size(1 << 20);
    config
}

fn pool() -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(MAX_INSTANCES)
        .total_core_instances(MAX_INSTANCES * 40)
        .total_memories(MAX_INSTANCES * 4)
        .total_tables(MAX_INSTANCES * 40)
        .total_stacks(MAX_INSTANCES)
        .max_core_instances_per_component(40)
        .max_memories_per_component(10)
        .max_tables_per_component(40)
        .max_memory_size(MEMORY_BYTES)
        .table_elements(TABLE_ELEMENTS)
        .max_component_instance_size(1 << 20)
        .max_core_instance_size(1 << 20)
        // Linux 6.7 and later list the touched pages, and the engine resets only these pages.
        .pagemap_scan(Enabled::Auto)
        .linear_memory_keep_resident(KEEP_RESIDENT)
        .table_keep_resident(KEEP_RESIDENT)
        .async_stack_keep_resident(0);
    pool
}

fn link(wasm: &wasmtime::Engine) -> wasmtime::Result<Linker<Guest>> {
    let mut linker = Linker::new(wasm);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    wasi::link_deterministic(&mut linker)?;
    cluster::add_to_linker::<_, HasSelf<Guest>>(&mut linker, |guest| guest)?;
    jobs::add_to_linker::<_, HasSelf<Guest>>(&mut linker, |guest| guest)?;
    config::add_to_linker::<_, HasSelf<Guest>>(&mut linker, |guest| guest)?;
    log::add_to_linker::<_, HasSelf<Guest>>(&mut linker, |guest| guest)?;
    Ok(linker)
}
