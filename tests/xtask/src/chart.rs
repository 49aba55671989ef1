//! Writes the Helm chart and the kustomize base.
//!
//! The crate `tests/chart` writes the files, because they contain documents of the host, and this crate depends on no
//! part of the host.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::workspace::{binary, cargo_on_all, root, succeed};

/// The command `cargo xtask chart`.
pub(crate) fn write() -> anyhow::Result<ExitCode> {
    succeed(&mut cargo_on_all("build", &["--quiet", "--bin", "chart"]))?;
    succeed(&mut Command::new(binary("debug", "chart")))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the chart as an archive into a folder.
pub(crate) fn package(folder: &Path) -> anyhow::Result<()> {
    let helm = controlplane::helm(&|line| println!("{line}"))?;
    let mut command = Command::new(helm);
    succeed(command.arg("package").arg(root().join("deploy/helm/oarlock")).arg("--destination").arg(folder))
}
