//! The checks that read and do not run.
//!
//! Takes the sources; yields success or the findings of rustfmt, clippy or cargo-deny.

use std::process::{ExitCode, Stdio};

use anyhow::bail;

use crate::workspace::{cargo, succeed};

/// The command `cargo xtask lint`.
pub(crate) fn lint() -> anyhow::Result<ExitCode> {
    succeed(&mut cargo(&["fmt", "--all", "--check"]))?;
    succeed(&mut cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    Ok(ExitCode::SUCCESS)
}

/// Whether cargo-deny is there.
pub(crate) fn deny_is_installed() -> bool {
    let asked = cargo(&["deny", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}

/// The command `cargo xtask deny`. Advisories need a download that may not be there, so they are not asked for.
pub(crate) fn deny() -> anyhow::Result<ExitCode> {
    if !deny_is_installed() {
        bail!("cargo-deny is not installed: run `cargo install cargo-deny --locked` first");
    }
    succeed(&mut cargo(&["deny", "check", "licenses", "bans", "sources"]))?;
    Ok(ExitCode::SUCCESS)
}
