//! Every test there is.
//!
//! Takes a machine with Rust and Go; yields the outcome of all tests as exit code and a table of phases. The control plane is
//! built beside the Rust code. A control plane that is missing is a failure and never a skip.

use std::process::ExitCode;
use std::time::Instant;

use crate::phases::Phases;
use crate::plugins;
use crate::workspace::{COMPONENTS_VARIABLE, HOST_VARIABLE, binary, cargo_on_all, components_folder, succeed};

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
        phases.run("tests", run_tests);
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
        // Tests that kill the host start its binary, which no test binary contains.
        && phases.run("host and test binaries", || succeed(&mut cargo_on_all("build", &["--bins", "--tests"])))
}

fn run_tests() -> anyhow::Result<()> {
    let mut command = cargo_on_all("test", &["--no-fail-fast"]);
    // Most scenarios on the real control plane wait for it most of the time.
    command
        .env("RUST_TEST_THREADS", std::thread::available_parallelism().map_or(4, |count| count.get() * 2).to_string());
    command.env(COMPONENTS_VARIABLE, components_folder()).env(HOST_VARIABLE, binary("debug", "oarlock"));
    succeed(&mut command)
}
