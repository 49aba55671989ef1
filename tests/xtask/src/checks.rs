//! The checks that read the sources and run nothing.
//!
//! The module returns success or the findings of rustfmt and clippy.

use std::process::ExitCode;

use crate::workspace::{cargo, succeed};

/// The command `cargo xtask lint`.
pub(crate) fn lint() -> anyhow::Result<ExitCode> {
    succeed(&mut cargo(&["fmt", "--all", "--check"]))?;
    succeed(&mut cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    Ok(ExitCode::SUCCESS)
}
