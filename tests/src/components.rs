//! The plugin components that tests run: built files, never stand-ins.

use std::path::PathBuf;

use anyhow::Context as _;

/// Where `cargo xtask plugins` leaves components: `OARLOCK_COMPONENTS`, or the release folder of the wasm target.
pub fn folder() -> PathBuf {
    if let Some(named) = std::env::var_os("OARLOCK_COMPONENTS") {
        return named.into();
    }
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target")), PathBuf::from);
    target.join("wasm32-wasip2/release")
}

/// The bytes of a component such as `replace`.
///
/// # Errors
/// Names the command that builds it.
pub fn component(name: &str) -> anyhow::Result<Vec<u8>> {
    let path = folder().join(format!("{name}.wasm"));
    std::fs::read(&path).with_context(|| format!("cannot read {}: run `cargo xtask plugins` first", path.display()))
}

/// The grants of the shipped plugins and of the fixtures.
pub const GRANTS: &str = include_str!("../../plugins/replace/grant.yaml");
