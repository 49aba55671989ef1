//! The plugin components that tests run: the built files, never mocks.

use std::path::PathBuf;

use anyhow::Context as _;

/// Returns the folder into which `cargo xtask plugins` writes components: `OARLOCK_COMPONENTS`, or the release folder of the wasm target.
pub fn folder() -> PathBuf {
    if let Some(named) = std::env::var_os("OARLOCK_COMPONENTS") {
        return named.into();
    }
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target")), PathBuf::from);
    target.join("wasm32-wasip2/release")
}

/// Returns the bytes of a component such as `replace`. The name `replace+2` stands for another edition of the component, with another digest.
///
/// # Errors
/// If the component cannot be read. The error names the command that builds it.
pub fn component(name: &str) -> anyhow::Result<Vec<u8>> {
    let (name, edition) = name.split_once('+').unwrap_or((name, ""));
    // Cargo names a component after its crate.
    let path = folder().join(format!("{}.wasm", name.replace('-', "_")));
    let bytes = std::fs::read(&path);
    let mut bytes =
        bytes.with_context(|| format!("cannot read {}: run `cargo xtask plugins` first", path.display()))?;
    if !edition.is_empty() {
        // A custom section: its id, its size, the size of its name, its name, and no content.
        let size = u8::try_from(edition.len())?;
        bytes.extend([0, size + 1, size]);
        bytes.extend(edition.bytes());
    }
    Ok(bytes)
}

/// Returns the Replace plugin with a changed manifest.
///
/// # Errors
/// If the component was not built, or if the component with that manifest is no valid plugin.
pub fn replace_with(change: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>)) -> anyhow::Result<Vec<u8>> {
    let mut manifest = serde_json::from_str(include_str!("../../../plugins/replace/manifest.json"))?;
    change(&mut manifest);
    let annotated = oarlock_wasm::annotate(&component("replace")?, &serde_json::to_vec(&manifest)?);
    annotated.map_err(|rejection| anyhow::anyhow!("{rejection:?}"))
}

/// The grant of the plugin Replace.
pub const GRANTS: &str = include_str!("../../../plugins/replace/grant.yaml");

/// The grant of the example plugin that maintains nodes.
pub const MAINTAIN_GRANTS: &str = include_str!("../../../sdk/examples/maintain/grant.yaml");

/// The grant of the example plugin that runs scripts on nodes.
pub const RUN_SCRIPT_GRANTS: &str = include_str!("../../../sdk/examples/run-script/grant.yaml");

/// The grant of the plugin Restart.
pub const RESTART_GRANTS: &str = include_str!("../../../plugins/restart/grant.yaml");

/// The grant of the plugin reboot.
pub const REBOOT_GRANTS: &str = include_str!("../../../plugins/reboot/grant.yaml");

/// The grant of the plugin dumplog.
pub const DUMPLOG_GRANTS: &str = include_str!("../../../plugins/dumplog/grant.yaml");

/// The grant of the plugin exportimage.
pub const EXPORTIMAGE_GRANTS: &str = include_str!("../../../plugins/exportimage/grant.yaml");

/// The grant of the plugin addon.
pub const ADDON_GRANTS: &str = include_str!("../../../plugins/addon/grant.yaml");

/// The grant of the plugin preflight.
pub const PREFLIGHT_GRANTS: &str = include_str!("../../../plugins/preflight/grant.yaml");
