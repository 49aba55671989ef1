//! Finds the built components.

use std::path::PathBuf;

/// Returns the bytes of a built component, such as `replace` or `examples/greedy`.
pub(crate) fn component(name: &str) -> Result<Vec<u8>, String> {
    let path = folder().join(format!("{name}.wasm"));
    std::fs::read(&path)
        .map_err(|error| format!("failed to read {}: {error}; run `cargo xtask plugins` first", path.display()))
}

fn folder() -> PathBuf {
    if let Some(folder) = std::env::var_os("OARLOCK_COMPONENTS") {
        return folder.into();
    }
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target")), PathBuf::from);
    target.join("wasm32-wasip2/release")
}
