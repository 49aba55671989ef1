//! Writes the Helm chart and the kustomize base.
//!
//! The crate `tests/chart` writes the files, because they contain documents of the host, and this crate depends on no
//! part of the host.

use std::process::{Command, ExitCode};

use crate::workspace::{binary, cargo_on_all, succeed};

/// The command `cargo xtask chart`.
pub(crate) fn write() -> anyhow::Result<ExitCode> {
    succeed(&mut cargo_on_all("build", &["--quiet", "--bin", "chart"]))?;
    succeed(&mut Command::new(binary("debug", "chart")))?;
    Ok(ExitCode::SUCCESS)
}
