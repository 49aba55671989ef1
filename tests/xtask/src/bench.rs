//! Runs the benches of the tests crate, optimised.
//!
//! Takes what to measure; runs `bench` of `oarlock-tests` with it and ends with its exit code.

use std::process::ExitCode;

use crate::arguments::Bench;
use crate::plugins;
use crate::workspace::{cargo, components_folder, root, succeed};

/// The command `cargo xtask bench`.
pub(crate) fn run(what: &Bench) -> anyhow::Result<ExitCode> {
    plugins::ensure_target()?;
    plugins::compile()?;
    // The host runs as a process of its own, as it does in a cluster.
    succeed(&mut cargo(&["build", "--release", "-p", "oarlock", "-p", "oarlock-tests", "--bins"]))?;
    let mut command = cargo(&["run", "--release", "-p", "oarlock-tests", "--bin", "bench", "--", what.subject.word()]);
    command.arg("--plugins-from").arg(components_folder());
    if let Some(targets) = what.targets {
        command.args(["--targets", &targets.to_string()]);
    }
    if let Some(ground) = what.on {
        command.args(["--on", ground.word()]);
    }
    if let Some(file) = &what.json {
        // A relative path is the caller's, and cargo is run at the root.
        command.arg("--json").arg(std::env::current_dir().unwrap_or_else(|_| root()).join(file));
    }
    succeed(&mut command)?;
    Ok(ExitCode::SUCCESS)
}
