//! Every test there is.
//!
//! Takes a machine with Rust and Go; yields the outcome of all tests as exit code and a table of phases. The control plane is
//! built beside the Rust code. A control plane that is missing is a failure and never a skip.

use std::process::ExitCode;
use std::time::Instant;

use crate::phases::Phases;
use crate::plugins;
use crate::workspace::{WASM_ONLY, cargo, components_folder, succeed};

/// Where tests find the components; they do not build any.
const COMPONENTS_VARIABLE: &str = "OARLOCK_COMPONENTS";

/// The command `cargo xtask test`.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let began = Instant::now();
    let phases = Phases::default();
    let (control_plane, rust) = std::thread::scope(|scope| {
        let control_plane = scope.spawn(|| phases.run("real control plane", find_control_plane));
        let rust = build(&phases);
        (control_plane.join().unwrap_or(false), rust)
    });
    if rust && control_plane {
        phases.run("tests", || succeed(&mut test_command(&["--no-fail-fast"])));
    } else {
        phases.not_run("tests", "what they need is missing");
    }
    print!("\n{}", phases.table());
    println!(
        "{:<38} {:>7.1} s  {}",
        "all",
        began.elapsed().as_secs_f64(),
        if phases.passed() { "passed" } else { "FAILED" }
    );
    Ok(if phases.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn find_control_plane() -> anyhow::Result<()> {
    controlplane::binaries(&|line| println!("control plane: {line}")).map(|_| ())
}

fn build(phases: &Phases) -> bool {
    phases.run("target wasm32-wasip2", plugins::ensure_target)
        && phases.run("components", plugins::compile)
        // Tests that kill the host start its binary.
        && phases.run("host", || succeed(&mut cargo(&["build", "-p", "oarlock"])))
        && phases.run("test binaries", || succeed(&mut test_command(&["--no-run"])))
}

/// One set of arguments for building and running, so that nothing is built twice.
fn test_command(further: &[&str]) -> std::process::Command {
    let mut command = cargo(&["test", "--workspace", "--exclude", WASM_ONLY]);
    command.args(further).env(COMPONENTS_VARIABLE, components_folder());
    command
}
