//! A Python environment with pinned requirements.
//!
//! The module takes a requirements file in which each package has its digest. It returns the Python of an environment
//! below the target folder. The environment stays until the file changes.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::cluster::is_root;
use crate::workspace::{succeed, target_folder};

/// Python code that checks for the oldest supported version.
const OLDEST: &str = "import sys; sys.exit(sys.version_info < (3, 11))";

/// Returns a Python that has the packages of this file.
pub(crate) fn with(requirements: &Path) -> anyhow::Result<PathBuf> {
    let wanted =
        std::fs::read_to_string(requirements).with_context(|| format!("cannot read {}", requirements.display()))?;
    // Packages of another requirements file may conflict with these.
    let name = requirements.parent().and_then(Path::file_name).unwrap_or_default();
    let folder = target_folder().join("python").join(name);
    let (python, mark) = (folder.join("bin").join("python"), folder.join("requirements.txt"));
    let is_there = std::fs::read_to_string(&mark).is_ok_and(|had| had == wanted);
    if is_there && runs(Command::new(&python).args(["-c", OLDEST])) {
        println!("as it was built before: {}", folder.display());
        return Ok(python);
    }
    if !runs(Command::new("python3").args(["-c", OLDEST])) {
        bail!("Python 3.11 or later is needed as python3: install it");
    }
    if !runs(Command::new("python3").args(["-c", "import ensurepip, venv"])) {
        apt("python3-venv")?;
    }
    let _ = std::fs::remove_dir_all(&folder);
    succeed(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    let mut install = Command::new(&python);
    install.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--require-hashes",
        "--requirement",
    ]);
    succeed(install.arg(requirements))?;
    std::fs::write(&mark, wanted).with_context(|| format!("cannot write {}", mark.display()))?;
    Ok(python)
}

/// Returns true if a program can be started and succeeds.
pub(crate) fn runs(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// Installs a Debian package if the user is root and the machine has apt-get.
pub(crate) fn apt(package: &str) -> anyhow::Result<()> {
    let fix = format!("the package {package} is missing: apt-get install {package}");
    if !is_root() || !runs(Command::new("apt-get").arg("--version")) {
        bail!("{fix}");
    }
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        succeed(command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive"))
    };
    apt(&["-qq", "update"]).context(fix.clone())?;
    apt(&["-qq", "install", "-y", "--no-install-recommends", package]).context(fix)
}
