//! `oarlock plugin annotate`: writes a manifest into a component.
//!
//! Plugins with the Rust SDK need no such step. The command is for plugins that use the contract directly, in languages
//! whose linker makes no custom sections.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;

use super::{read, refused};
use crate::commands::output::print;

pub(super) const EXAMPLES: &str = "\
Example:
  oarlock plugin annotate component.wasm manifest.json restart.wasm

`oarlock plugin schema` prints the JSON Schema of manifests. `oarlock plugin inspect` shows the manifest of a component.";

/// Arguments of `oarlock plugin annotate`.
#[derive(Debug, Args)]
pub(crate) struct AnnotateArgs {
    /// The component; the command replaces its manifest, if it has one
    file: PathBuf,
    /// The manifest
    manifest: PathBuf,
    /// The plugin file to write; it may be the component itself
    out: PathBuf,
}

/// Writes the plugin.
pub(super) fn run(args: &AnnotateArgs) -> anyhow::Result<ExitCode> {
    let AnnotateArgs { file, manifest, out } = args;
    let text = std::fs::read(manifest).with_context(|| format!("cannot read {}", manifest.display()))?;
    let plugin = oarlock_wasm::annotate(&read(file)?, &text).map_err(|rejection| {
        let wrong = if rejection.reason == "ManifestInvalid" { manifest } else { file };
        refused(wrong, &rejection)
    })?;
    std::fs::write(out, plugin).with_context(|| format!("cannot write {}", out.display()))?;
    print(&format!("wrote {}\n", out.display()))
}
