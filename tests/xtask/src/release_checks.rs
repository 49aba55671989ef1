//! The checks of a release that take too long for every test run.
//!
//! Each check is a named step, and the table at the end has one line for it. The earlier release is the last release tag,
//! the named commit, or the first commit with a chart. The module builds it from a git worktree, with the dependencies
//! that this checkout has built.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail, ensure};
use clap::ValueEnum as _;
use serde_json::Value;

use crate::arguments::{ReleaseStep, word};
use crate::binaries::Binary;
use crate::cluster::is_root;
use crate::image;
use crate::nodes::{self, Earlier, NODES};
use crate::phases::Phases;
use crate::suite;
use crate::workspace::{BENCHES, WASM_ONLY, binary, cargo, output, root, succeed, target_folder};

/// Goal for the size of the image, in bytes.
const MOST: u64 = 45_000_000;
/// The chart in a checkout.
const CHART: &str = "deploy/helm/oarlock";

/// The command `cargo xtask test release`.
pub(crate) fn run(asked: &[ReleaseStep], revision: Option<&str>) -> anyhow::Result<ExitCode> {
    let phases = Phases::default();
    let is_asked = |step: &&ReleaseStep| asked.is_empty() || asked.contains(step);
    let steps: Vec<ReleaseStep> = ReleaseStep::value_variants().iter().filter(is_asked).copied().collect();
    let mut prepared = None;
    if steps.iter().any(|step| *step != ReleaseStep::Image) {
        let mut earlier = None;
        // This build replaces the host in the target folder, so the builds of this checkout come after it.
        phases.run("the earlier release", || {
            earlier = Some(build_earlier(revision)?);
            Ok(())
        });
        prepared = earlier.and_then(|earlier| Some((earlier, suite::build(&phases)?)));
    }
    for step in steps {
        let name = format!("step {}", word(&step));
        match &prepared {
            _ if step == ReleaseStep::Image => drop(phases.run(&name, one_digest)),
            Some((earlier, found)) => drop(phases.run(&name, || play(step, earlier, found))),
            None => phases.not_run(&name, "the earlier release or the tests cannot be built"),
        }
    }
    Ok(phases.close())
}

/// Runs a step on the earlier release, with these test binaries.
fn play(step: ReleaseStep, earlier: &Earlier, found: &[Binary]) -> anyhow::Result<()> {
    let test = |title: &str| found.iter().find(|binary| binary.title() == title).context("cargo named no such test");
    match step {
        ReleaseStep::Image => one_digest(),
        ReleaseStep::Stored => {
            let binary = ("OARLOCK_EARLIER_BINARY", earlier.binary.clone().into());
            test("tests/scenarios earlier")?.show(&[binary], &["--ignored", "goes_on", "--test-threads=1"])
        }
        ReleaseStep::Chart => {
            let chart = ("OARLOCK_EARLIER_CHART", earlier.chart.clone().into());
            test("tests/chart helm")?.show(&[chart], &["releases"])
        }
        ReleaseStep::Nodes => {
            ensure!(is_root(), "nodes need root: run it as root, with Rust and Go for root");
            nodes::play(test(NODES)?, Some(earlier))
        }
    }
}

/// Builds the image of the last commit in two folders, and compares the digests.
fn one_digest() -> anyhow::Result<()> {
    let changed = output(Command::new("git").current_dir(root()).args(["status", "--porcelain"]))?;
    ensure!(changed.is_empty(), "commit the changes first: the second folder has the last commit only\n{changed}");
    image::build(None)?;
    let own = target_folder().join("images").join(image::FILE);
    let (folder, target) = (folder("second"), folder("second-target"));
    worktree(&folder, "HEAD")?;
    succeed(
        cargo(&["run", "--quiet", "--package", "xtask", "--", "image"])
            .current_dir(&folder)
            .env("CARGO_TARGET_DIR", &target),
    )?;
    let second = target.join("images").join(image::FILE);
    let (first, other) = (digest(&own)?, digest(&second)?);
    let bytes = std::fs::metadata(&own).with_context(|| format!("cannot read {}", own.display()))?.len();
    println!("{first} in {}\n{other} in {}\n{bytes} bytes", own.display(), second.display());
    ensure!(first == other, "two folders give two images");
    ensure!(bytes <= MOST, "the image has {bytes} bytes, and may have {MOST}");
    std::fs::remove_dir_all(&target).with_context(|| format!("cannot remove {}", target.display()))
}

/// Returns the digest of the image in an archive.
fn digest(archive: &Path) -> anyhow::Result<String> {
    let index = output(Command::new("tar").arg("xOf").arg(archive).arg("index.json"))?;
    let index: Value = serde_json::from_str(&index).context("the index of the image is no JSON")?;
    let digest = index.pointer("/manifests/0/digest").and_then(Value::as_str);
    digest.map(str::to_owned).with_context(|| format!("{} has no digest", archive.display()))
}

/// Returns a folder for other checkouts.
fn folder(name: &str) -> PathBuf {
    target_folder().join("release-checks").join(name)
}

/// Makes a git worktree of this commit.
fn worktree(folder: &Path, revision: &str) -> anyhow::Result<()> {
    let git = || {
        let mut command = Command::new("git");
        command.current_dir(root());
        command
    };
    // A worktree of an earlier run may be of another commit.
    if folder.exists() {
        succeed(git().args(["worktree", "remove", "--force"]).arg(folder))?;
    }
    let _ = git().args(["worktree", "prune"]).status();
    let parent = folder.parent().unwrap_or(folder);
    std::fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    succeed(git().args(["worktree", "add", "--quiet", "--detach"]).arg(folder).arg(revision))
}

/// Returns the commit of the earlier release.
fn earlier_revision(named: Option<&str>) -> anyhow::Result<String> {
    let git = |arguments: &[&str]| output(Command::new("git").current_dir(root()).args(arguments));
    if let Some(named) = named {
        return git(&["rev-parse", "--verify", &format!("{named}^{{commit}}")]);
    }
    // The tag of this release may exist already.
    if let Ok(tag) = git(&["describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD~1"]) {
        return git(&["rev-list", "-n", "1", &tag]);
    }
    let first = git(&["log", "--diff-filter=A", "--reverse", "--format=%H", "--", &format!("{CHART}/Chart.yaml")])?;
    match first.lines().next() {
        Some(commit) => Ok(commit.to_owned()),
        None => bail!("no commit has added a chart: name the earlier release by --earlier"),
    }
}

/// Builds the host of the earlier release.
fn build_earlier(named: Option<&str>) -> anyhow::Result<Earlier> {
    let (revision, source) = (earlier_revision(named)?, folder("earlier"));
    println!("the earlier release is {revision}");
    worktree(&source, &revision)?;
    // This selection of crates gives the dependencies the same features as in this checkout.
    let selection = ["build", "--workspace", "--exclude", WASM_ONLY, "--exclude", BENCHES, "--bin", "oarlock"];
    succeed(cargo(&selection).current_dir(&source).env("CARGO_TARGET_DIR", target_folder()))?;
    let host = folder("oarlock-earlier");
    std::fs::copy(binary("debug", "oarlock"), &host).context("cannot copy the earlier host")?;
    Ok(Earlier { binary: host, chart: source.join(CHART) })
}
