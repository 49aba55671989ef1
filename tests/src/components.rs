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

/// The bytes of a component such as `replace`; of `replace+2`, the same one in another edition, with a digest of its own.
///
/// # Errors
/// Names the command that builds it.
pub fn component(name: &str) -> anyhow::Result<Vec<u8>> {
    let (name, edition) = name.split_once('+').unwrap_or((name, ""));
    // Cargo names a component after its crate.
    let path = folder().join(format!("{}.wasm", name.replace('-', "_")));
    let bytes = std::fs::read(&path);
    let mut bytes =
        bytes.with_context(|| format!("cannot read {}: run `cargo xtask plugins` first", path.display()))?;
    if !edition.is_empty() {
        // A custom section: its id, its size, the size of its name, its name, and nothing in it.
        let size = u8::try_from(edition.len())?;
        bytes.extend([0, size + 1, size]);
        bytes.extend(edition.bytes());
    }
    Ok(bytes)
}

/// The Replace plugin with its manifest changed.
///
/// # Errors
/// If it was not built, or is no plugin with that manifest.
pub fn replace_with(change: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>)) -> anyhow::Result<Vec<u8>> {
    let mut manifest = serde_json::from_str(include_str!("../../plugins/replace/manifest.json"))?;
    change(&mut manifest);
    let annotated = oarlock_wasm::annotate(&component("replace")?, &serde_json::to_vec(&manifest)?);
    annotated.map_err(|rejection| anyhow::anyhow!("{rejection:?}"))
}

/// The grants of the shipped plugins and of the fixtures.
pub const GRANTS: &str = include_str!("../../plugins/replace/grant.yaml");

/// The grant of the plugin that keeps nodes free.
pub const MAINTAIN_GRANTS: &str = include_str!("../../sdk/examples/maintain/grant.yaml");

/// The grant of the plugin that runs scripts on nodes.
pub const RUN_SCRIPT_GRANTS: &str = include_str!("../../sdk/examples/run-script/grant.yaml");

/// The grant of Restart.
pub const RESTART_GRANTS: &str = include_str!("../../plugins/restart/grant.yaml");

/// The grant of reboot.
pub const REBOOT_GRANTS: &str = include_str!("../../plugins/reboot/grant.yaml");

/// The grant of dumplog.
pub const DUMPLOG_GRANTS: &str = include_str!("../../plugins/dumplog/grant.yaml");

/// The grant of exportimage.
pub const EXPORTIMAGE_GRANTS: &str = include_str!("../../plugins/exportimage/grant.yaml");

/// The grant of addon.
pub const ADDON_GRANTS: &str = include_str!("../../plugins/addon/grant.yaml");

/// The grant of preflight.
pub const PREFLIGHT_GRANTS: &str = include_str!("../../plugins/preflight/grant.yaml");
