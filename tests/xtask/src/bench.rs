//! Runs the benches, optimised.
//!
//! Takes what to measure; runs `bench` of `oarlock-bench` with it and ends with its exit code.

use std::process::{Command, ExitCode};

use crate::arguments::Bench;
use crate::plugins;
use crate::workspace::{HOST_VARIABLE, binary, cargo_on_all, components_folder, root, succeed};

/// What released binaries are built with beside the defaults.
const RELEASED: &str = "oarlock/jemalloc";

/// The command `cargo xtask bench`.
pub(crate) fn run(what: &Bench) -> anyhow::Result<ExitCode> {
    plugins::ensure_target()?;
    plugins::compile()?;
    // The host runs as a process of its own, as it does in a cluster.
    succeed(&mut cargo_on_all("build", &["--release", "--features", RELEASED, "--bin", "oarlock", "--bin", "bench"]))?;
    let mut command = Command::new(binary("release", "bench"));
    command.current_dir(root()).args(what.handed_on()).arg("--plugins-from").arg(components_folder());
    command.env(HOST_VARIABLE, binary("release", "oarlock"));
    if let Some(file) = &what.json {
        // A relative path is the caller's, and the bench runs at the root.
        command.arg("--json").arg(std::env::current_dir().unwrap_or_else(|_| root()).join(file));
    }
    succeed(&mut command)?;
    Ok(ExitCode::SUCCESS)
}
