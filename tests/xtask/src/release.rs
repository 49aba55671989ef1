//! Makes a release: binaries, image, chart, CustomResourceDefinitions, plugins, bill of materials and checksums.
//!
//! The result is the folder `release-VERSION` in the target folder. The same commit and toolchain give the same files.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};
use serde_json::json;

use crate::chart;
use crate::cluster::program;
use crate::image::{self, ImageParts, PLUGINS};
use crate::workspace::{output, root, target_folder};

/// The command `cargo xtask release`.
pub(crate) fn build() -> anyhow::Result<ExitCode> {
    let version = env!("CARGO_PKG_VERSION");
    let folder = target_folder().join(format!("release-{version}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(folder.join("plugins")).with_context(|| format!("cannot create {}", folder.display()))?;
    let built = image::build_release()?;
    let parts = ImageParts { host: &built.host, components: &built.components, bill: Some(&built.bill) };
    let files = image::root_of(&parts)?;
    let image = image::write(&program()?, &files, "oarlock.tar")?;
    copy(&image, &folder.join(format!("oarlock-{version}-image.tar")))?;
    copy(&built.bill, &folder.join("oarlock.cdx.json"))?;
    let binary = folder.join(format!("oarlock-{version}-{}-linux", std::env::consts::ARCH));
    copy(&files.join("oarlock"), &binary)?;
    write(&folder.join("crds.yaml"), &crds(&binary)?)?;
    plugins(&built.components, &folder)?;
    chart::package(&folder)?;
    checksums(&folder)?;
    println!("{} has the release {version}", folder.display());
    Ok(ExitCode::SUCCESS)
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
