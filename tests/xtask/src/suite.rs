//! Every test there is.
//!
//! Takes a machine with Rust and Go; yields the outcome of all tests as exit code and a table that says how long each phase
//! took. The control plane is built beside the Rust code, and test binaries run in two lanes: those that mostly wait for a
//! real control plane, and those that compute. A control plane that is missing is a failure and never a skip.

use std::process::{Command, ExitCode};

use crate::binaries::{self, Binary};
use crate::checks;
use crate::nodes::NODES;
use crate::phases::Phases;
use crate::plugins;
use crate::python;
use crate::workspace::{binary, cargo_on_all, succeed};

/// Test binaries that mostly wait for servers.
const WAITING: [&str; 9] =
    ["real", "crash_real", "processes", "conformance", "kubectl", "watching", "scenarios", "rest", "roles"];

/// All scenarios on a real control plane: most of them wait for it most of the time.
const SCENARIOS: &str = "real";

/// What takes long begins first, so that both lanes end at about the same time.
const LONG: [&str; 4] = ["real", "crash_real", "crash_sim", "sim"];

/// The binaries of a soak. A test run shows a part of each.
const SOAKING: [&str; 5] = ["model", "crash_sim", "crash_real", "variants", SCENARIOS];

/// The command `cargo xtask test`.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let phases = Phases::default();
    match prepare(&phases) {
        Some(binaries) => in_two_lanes(&phases, &binaries),
        None => phases.not_run("tests", "what they need is missing"),
    }
    Ok(phases.close())
}

/// The command `cargo xtask soak`: what a test run shows for a few minutes, as a whole.
pub(crate) fn soak() -> anyhow::Result<ExitCode> {
    let phases = Phases::default();
    match prepare(&phases) {
        Some(binaries) => {
            for binary in binaries.iter().filter(|binary| SOAKING.contains(&binary.name.as_str())) {
                phases.run(&format!("soak: {}", binary.title()), || binary.soak());
            }
        }
        None => phases.not_run("soak", "what it needs is missing"),
    }
    Ok(phases.close())
}

/// Builds everything, the control plane beside the Rust code. Yields the test binaries if it is all there.
fn prepare(phases: &Phases) -> Option<Vec<Binary>> {
    std::thread::scope(|scope| {
        let control_plane = scope.spawn(|| phases.run("real control plane", find_control_plane));
        // One needs root and nodes: `cargo xtask test nodes`.
        let apart = |binary: &Binary| binary.title() != NODES;
        let binaries = build(phases).map(|all| all.into_iter().filter(apart).collect());
        if control_plane.join().unwrap_or(false) { binaries } else { None }
    })
}

fn find_control_plane() -> anyhow::Result<()> {
    controlplane::binaries(&|line| println!("control plane: {line}")).map(|_| ())
}

/// Installs it where it is missing and can be installed.
fn find_postgres() -> anyhow::Result<()> {
    if controlplane::postgres().is_ok() { Ok(()) } else { python::apt("postgresql") }
}

/// Builds all that tests need of Rust.
pub(crate) fn build(phases: &Phases) -> Option<Vec<Binary>> {
    let mut found = Vec::new();
    let built = phases.run("target wasm32-wasip2", plugins::ensure_target)
        && phases.run("components", plugins::compile)
        && phases.run("PostgreSQL", find_postgres)
        // Tests that kill the host start its binary, which no test binary contains.
        && phases.run("the host", || succeed(&mut cargo_on_all("build", &["--bins"])))
        && phases.run("test binaries", || {
            found = binaries::build()?;
            Ok(())
        });
    found.sort_by_key(|binary: &Binary| LONG.iter().position(|name| *name == binary.name).unwrap_or(LONG.len()));
    built.then_some(found)
}

fn in_two_lanes(phases: &Phases, binaries: &[Binary]) {
    let (waiting, computing): (Vec<&Binary>, Vec<&Binary>) =
        binaries.iter().partition(|binary| WAITING.contains(&binary.name.as_str()));
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    std::thread::scope(|scope| {
        let lane = scope.spawn(|| {
            for binary in waiting {
                let threads = if binary.name == SCENARIOS { 4 * cores } else { 2 * cores };
                phases.run(&format!("waits: {}", binary.title()), || binary.run(threads));
            }
        });
        // A run of CI goes on to the nodes. Their programs take what the lanes leave of the processors.
        if std::env::var_os("CI").is_some() {
            scope.spawn(|| phases.run("the programs of nodes", build_idly));
        }
        for binary in computing {
            phases.run(&format!("computes: {}", binary.title()), || binary.run(cores));
        }
        read(phases);
        if lane.join().is_err() {
            phases.not_run("the rest of the waiting lane", "it panicked");
        }
    });
}

/// Builds the programs of nodes with whatever processor time nobody else wants.
fn build_idly() -> anyhow::Result<()> {
    // The build of the tests has put another file into the place of the one that runs.
    let program = binary("debug", "xtask");
    succeed(Command::new("nice").args(["-n", "19"]).arg(program).args(["cluster", "build"]))
}

/// What cargo alone can run, and the checks that read.
fn read(phases: &Phases) {
    phases.run("documentation tests", || succeed(&mut cargo_on_all("test", &["--doc", "--quiet"])));
    phases.run("tests of the hostile plugin", || binaries::build_wasm_only()?.run(1));
    phases.run("lint", || checks::lint().map(drop));
}
