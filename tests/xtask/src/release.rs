//! Makes a release: binaries, image, chart, CustomResourceDefinitions, plugins, bill of materials and checksums.
//!
//! The result is the folder `release-VERSION` in the target folder. It has a binary, an image and a bill of materials for
//! each architecture. The same commit and toolchain give the same files.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};
use serde_json::json;

use crate::architecture::Architecture;
use crate::chart;
use crate::cluster::program;
use crate::image::{self, Archive, Built, LATEST, PLUGINS};
use crate::workspace::{output, root, target_folder};

/// The command `cargo xtask release`.
pub(crate) fn build(asked: &[Architecture]) -> anyhow::Result<ExitCode> {
    let version = env!("CARGO_PKG_VERSION");
    let folder = target_folder().join(format!("release-{version}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(folder.join("plugins")).with_context(|| format!("cannot create {}", folder.display()))?;
    // This machine can run the binary of its own architecture only.
    let this = Architecture::of_this_machine()?;
    let own = image::build_release(this)?;
    for architecture in asked {
        let built = if *architecture == this { own.clone() } else { image::build_release(*architecture)? };
        programs(&built, &own.host, &folder)?;
    }
    write(&folder.join("crds.yaml"), &crds(&own.host)?)?;
    plugins(&own.components, &folder)?;
    chart::package(&folder)?;
    checksums(&folder)?;
    println!("{} has the release {version}", folder.display());
    Ok(ExitCode::SUCCESS)
}

/// Writes the binary, the image and the bill of materials of one architecture. `printer` is a host that runs on this
/// machine.
fn programs(built: &Built, printer: &Path, folder: &Path) -> anyhow::Result<()> {
    let architecture = built.architecture;
    let name = format!("oarlock-{}-{}-linux", env!("CARGO_PKG_VERSION"), architecture.machine());
    let files = image::root_of(&built.parts(printer))?;
    let file = format!("{name}-image.tar");
    let image = image::write(&program()?, &files, &Archive { architecture, file: &file, tag: LATEST })?;
    copy(&image, &folder.join(&file))?;
    copy(&built.bill, &folder.join(format!("{name}.cdx.json")))?;
    copy(&files.join("oarlock"), &folder.join(&name))
}

/// Returns the CustomResourceDefinitions, as `oarlock manifests` prints them.
fn crds(host: &Path) -> anyhow::Result<String> {
    let printed = output(Command::new(host).args(["manifests", "--flows", "--ops"]))?;
    let is_crd = |document: &&str| document.contains("kind: CustomResourceDefinition");
    let crds: Vec<&str> = printed.split("\n---\n").filter(is_crd).collect();
    if crds.is_empty() {
        bail!("`oarlock manifests` prints no CustomResourceDefinition");
    }
    Ok(crds.join("\n---\n") + "\n")
}

/// Copies the plugins, and lists them with their digests and their grants.
fn plugins(components: &Path, folder: &Path) -> anyhow::Result<()> {
    let mut listed = Vec::new();
    for plugin in PLUGINS {
        let file = format!("{plugin}.wasm");
        copy(&components.join(&file), &folder.join("plugins").join(&file))?;
        let grant = root().join("plugins").join(plugin).join("grant.yaml");
        copy(&grant, &folder.join("plugins").join(format!("{plugin}.grant.yaml")))?;
        listed.push(
            json!({"name": plugin, "file": file, "digest": format!("sha256:{}", sha256(&components.join(&file))?)}),
        );
    }
    let text = serde_json::to_string_pretty(&listed).context("cannot write JSON")?;
    write(&folder.join("plugins").join("plugins.json"), &(text + "\n"))
}

/// Writes `SHA256SUMS`, in the form that `sha256sum --check` reads.
fn checksums(folder: &Path) -> anyhow::Result<()> {
    let mut files = Vec::new();
    for folder in [folder.to_owned(), folder.join("plugins")] {
        for entry in std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let path = entry.with_context(|| format!("cannot read {}", folder.display()))?.path();
            files.extend(path.is_file().then_some(path));
        }
    }
    files.sort();
    let line = |file: &PathBuf| {
        let name = file.strip_prefix(folder).unwrap_or(file).display().to_string();
        sha256(file).map(|digest| format!("{digest}  {name}\n"))
    };
    let lines: Vec<String> = files.iter().map(line).collect::<anyhow::Result<_>>()?;
    write(&folder.join("SHA256SUMS"), &lines.concat())
}

fn sha256(file: &Path) -> anyhow::Result<String> {
    let printed = output(Command::new("sha256sum").arg(file))?;
    Ok(printed.split_whitespace().next().unwrap_or_default().to_owned())
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::copy(from, to).map(drop).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
