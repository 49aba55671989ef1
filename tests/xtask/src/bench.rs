//! Runs the benches, optimised.
//!
//! The module builds everything, runs `bench` of `oarlock-bench`, and ends with its exit code.

use std::process::{Command, ExitCode};

use crate::arguments::Bench;
use crate::plugins;
use crate::workspace::{HOST_VARIABLE, WASM_ONLY, binary, cargo, components_folder, root, succeed};

/// The feature of released binaries that is not a default.
const RELEASED: &str = "oarlock/jemalloc";

/// The command `cargo xtask bench`.
pub(crate) fn run(what: &Bench) -> anyhow::Result<ExitCode> {
    plugins::ensure_target()?;
    plugins::compile()?;
    // The host runs as its own process, as it does in a cluster.
    let selection = ["build", "--workspace", "--exclude", WASM_ONLY, "--bin", "oarlock", "--bin", "bench"];
    succeed(cargo(&selection).args(["--release", "--features", RELEASED]))?;
    let mut command = Command::new(binary("release", "bench"));
    command.current_dir(root()).args(what.handed_on()).arg("--plugins-from").arg(components_folder());
    command.env(HOST_VARIABLE, binary("release", "oarlock"));
    if let Some(file) = &what.json {
        // A relative path is relative to the caller's folder, but the bench runs at the root.
        command.arg("--json").arg(std::env::current_dir().unwrap_or_else(|_| root()).join(file));
    }
    succeed(&mut command)?;
    Ok(ExitCode::SUCCESS)
}
