//! The allocator of released binaries, with the feature `jemalloc`: compiling it takes two minutes, which a demo or a
//! test need not wait for.

/// A relist needs many times the memory of a quiet host, and the system's allocator would keep it.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Returns pages a second after their last use, from a thread of its own; four arenas, for the threads are few.
#[cfg(not(target_env = "musl"))]
const OPTIONS: &[u8] = b"dirty_decay_ms:1000,muzzy_decay_ms:0,narenas:4,background_thread:true\0";
/// The same without the thread, which this target does not have.
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
