//! The allocator of released binaries, behind the feature `jemalloc`. Demos and tests build without it, because it
//! takes two minutes to compile.

/// The global allocator, which returns the memory of a relist. A relist needs many times the memory of a quiet host,
/// and the system's allocator would keep that memory.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Options of the allocator. A background thread returns pages one second after their last use. Four arenas are enough
/// for the few threads.
#[cfg(not(target_env = "musl"))]
const OPTIONS: &[u8] = b"dirty_decay_ms:1000,muzzy_decay_ms:0,narenas:4,background_thread:true\0";
/// Options of the allocator on musl, which does not support the background thread.
#[cfg(target_env = "musl")]
const OPTIONS: &[u8] = b"dirty_decay_ms:1000,muzzy_decay_ms:0,narenas:4\0";

/// The symbol at which the allocator reads its options before `main`: a pointer to a C string.
#[allow(
    unsafe_code,
    unreachable_pub,
    reason = "the allocator finds its options by the name of a symbol, and such a name is a promise"
)]
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static ALLOCATOR_OPTIONS: &[u8; OPTIONS.len()] = match OPTIONS.first_chunk() {
    Some(options) => options,
    None => &[0; OPTIONS.len()],
};
