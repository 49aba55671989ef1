//! The bill of materials of the host: every crate that is linked into it, with its version, licence and checksum.
//!
//! cargo-cyclonedx writes the bill. This module installs it into the target folder once.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;

use crate::workspace::{cargo, root, succeed, target_folder};

/// The version of cargo-cyclonedx.
const VERSION: &str = "0.5.9";
/// The name of the file.
const WRITTEN: &str = "oarlock.cdx.json";

/// Writes the bill of the host for this target and these features, as CycloneDX JSON. Returns the path of the file.
pub(crate) fn write(target: &str, features: &[&str]) -> anyhow::Result<PathBuf> {
    let tools = target_folder().join("tools");
    let program = tools.join("bin").join("cargo-cyclonedx");
    if !program.exists() {
        let mut install = cargo(&["install", "--locked", "cargo-cyclonedx", "--version", VERSION, "--root"]);
        succeed(install.arg(&tools)).context("cannot install cargo-cyclonedx")?;
    }
    let mut command = Command::new(program);
    command.current_dir(root()).args(["cyclonedx", "--format", "json", "--quiet", "--target", target]);
    command.args(["--manifest-path", "host/Cargo.toml", "--override-filename", "oarlock.cdx"]).args(features);
    // Without this, the bill has the time at which it was written.
    command.env("SOURCE_DATE_EPOCH", "0");
    succeed(&mut command)?;
    let (written, bill) =
        (root().join("host").join(WRITTEN), target_folder().join("images").join(format!("{target}-{WRITTEN}")));
    let text = std::fs::read_to_string(&written).with_context(|| format!("cannot read {}", written.display()))?;
    std::fs::create_dir_all(target_folder().join("images")).context("cannot create the folder of images")?;
    // The bill names the folder of each crate of this repository, and must be the same in any folder.
    let text = text.replace(&root().display().to_string(), "/oarlock");
    std::fs::write(&bill, text).with_context(|| format!("cannot write {}", bill.display()))?;
    // The program writes a bill beside each crate of this repository that the host links.
    succeed(Command::new("git").current_dir(root()).args([
        "clean",
        "--force",
        "--quiet",
        "--",
        &format!("*{WRITTEN}"),
    ]))?;
    Ok(bill)
}
