//! Runs every test.
//!
//! The module needs a machine with Rust and Go. The exit code is the outcome of all tests, and a table shows how long
//! each phase took. The control plane is built in parallel with the Rust code. Test binaries run in two lanes: binaries
//! that mostly wait for a real control plane, and binaries that compute. A missing control plane is a failure, never a
//! skip.

use std::process::{Command, ExitCode};

use crate::binaries::{self, Binary};
use crate::checks;
use crate::nodes::NODES;
use crate::phases::Phases;
use crate::plugins;
use crate::python;
use crate::workspace::{binary, cargo_on_all, succeed};

/// Test binaries that mostly wait for servers.
const WAITING: [&str; 11] = [
    "real",
    "crash_real",
    "processes",
    "conformance",
    "helm",
    "kubectl",
    "tutorials",
    "watching",
    "control_plane",
    "rest",
    "roles",
];

/// The test binary of all scenarios on a real control plane. Most of them wait most of the time.
const SCENARIOS: &str = "real";

/// The longest test binaries. They begin first, so that both lanes end at about the same time.
const LONG: [&str; 4] = ["real", "crash_real", "crash_sim", "sim"];

/// The binaries of a soak. A test run samples each of them.
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

/// The command `cargo xtask soak`. It runs in full the tests that a test run samples for a few minutes.
pub(crate) fn soak() -> anyhow::Result<ExitCode> {
    let phases = Phases::default();
    match prepare(&phases) {
        Some(binaries) => {
            for binary in binaries.iter().filter(|binary| SOAKING.contains(&binary.name.as_str())) {
                phases.run(&format!("soak: {}", binary.title()), || binary.soak());
            }
            phases.run("soak: tests of the benches", || binaries::build_benches()?.run(1));
        }
        None => phases.not_run("soak", "what it needs is missing"),
    }
    Ok(phases.close())
}

/// Builds everything, the control plane in parallel with the Rust code. Returns the test binaries if all builds
/// succeed.
fn prepare(phases: &Phases) -> Option<Vec<Binary>> {
    std::thread::scope(|scope| {
        let control_plane = scope.spawn(|| phases.run("real control plane", find_control_plane));
        // These scenarios need root and nodes, so they have their own command: `cargo xtask test nodes`.
        let apart = |binary: &Binary| binary.title() != NODES;
        let binaries = build(phases).map(|all| all.into_iter().filter(apart).collect());
        if control_plane.join().unwrap_or(false) { binaries } else { None }
    })
}

fn find_control_plane() -> anyhow::Result<()> {
    controlplane::binaries(&|line| println!("control plane: {line}"))?;
    controlplane::helm(&|line| println!("helm: {line}"))?;
    controlplane::promtool(&|line| println!("promtool: {line}")).map(drop)
}

/// Installs PostgreSQL if it is missing and the machine has apt.
fn find_postgres() -> anyhow::Result<()> {
    if controlplane::postgres().is_ok() { Ok(()) } else { python::apt("postgresql") }
}

/// Builds all Rust code that the tests need. Returns the test binaries.
pub(crate) fn build(phases: &Phases) -> Option<Vec<Binary>> {
    let mut found = Vec::new();
    let built = phases.run("target wasm32-wasip2", plugins::ensure_target)
        && phases.run("components", plugins::compile)
        && phases.run("PostgreSQL", find_postgres)
        // Tests that kill the host start its binary, and no test binary contains it.
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
        // A CI run continues with the scenarios on nodes. Their programs are built with the processor time that the
        // lanes leave.
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

/// Builds the programs of nodes at the lowest priority.
fn build_idly() -> anyhow::Result<()> {
    // The build of the tests has replaced the executable of this process.
    let program = binary("debug", "xtask");
    succeed(Command::new("nice").args(["-n", "19"]).arg(program).args(["cluster", "build"]))
}

/// Runs the tests that only cargo can run, and the lint checks.
fn read(phases: &Phases) {
    phases.run("documentation tests", || succeed(&mut cargo_on_all("test", &["--doc", "--quiet"])));
    phases.run("tests of the hostile plugin", || binaries::build_wasm_only()?.run(1));
    phases.run("lint", || checks::lint().map(drop));
}
