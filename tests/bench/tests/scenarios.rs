//! Runs scenarios of the benches with a few targets on the in-memory API, so that the benches keep working between two
//! measurements.
//!
//! The tests need the built binaries of bench and host, and built components (`cargo xtask plugins`). They judge outcomes, but no
//! times.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails loudly")]

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Runs a scenario once, and returns its figures by contender. Each goal must have a figure, unless it is a ratio to the bare
/// client. The in-memory API has no such ratios.
fn run(scenario: &str, more: &[&str]) -> Value {
    let bench = Path::new(env!("CARGO_BIN_EXE_bench"));
    let host = std::env::var_os("OARLOCK_BINARY").map_or_else(|| bench.with_file_name("oarlock"), PathBuf::from);
    assert!(host.is_file(), "there is no host at {}: run `cargo build`, or name one in OARLOCK_BINARY", host.display());
    let json = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{scenario}.json"));
    let mut command = Command::new(bench);
    command.args(["operations", "--on", "sim", "--scenario", scenario, "--mode", "evict", "--rounds", "1"]).args(more);
    command.arg("--json").arg(&json).arg("--plugins-from").arg(components()).env("OARLOCK_BINARY", host);
    let ended = command.output().unwrap();
    let (shown, said) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{shown}\n{said}");
    let all: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let run = all.pointer("/0/runs/0").unwrap();
    for goal in run.get("goals").and_then(Value::as_array).unwrap() {
        let name = goal.get("name").and_then(Value::as_str).unwrap();
        assert!(shown.contains(name), "{name} is missing in\n{shown}");
        let is_measured = goal.get("reached").is_some_and(|reached| !reached.is_null());
        assert!(is_measured || name.contains("bare client"), "{name} was not measured:\n{shown}");
    }
    run.get("spread").unwrap().clone()
}

fn components() -> PathBuf {
    let target = || {
        let named = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        named.unwrap_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target")))
    };
    let folder = std::env::var_os("OARLOCK_COMPONENTS").map(PathBuf::from);
    folder.unwrap_or_else(|| target().join("wasm32-wasip2").join("release"))
}

#[test]
fn flows_are_measured_beside_a_bare_client() {
    let bench = Path::new(env!("CARGO_BIN_EXE_bench"));
    let host = std::env::var_os("OARLOCK_BINARY").map_or_else(|| bench.with_file_name("oarlock"), PathBuf::from);
    let json = Path::new(env!("CARGO_TARGET_TMPDIR")).join("flows.json");
    let mut command = Command::new(bench);
    command.args(["flows", "--on", "sim", "--measure", "plans,daemon,wide,crowd", "--rounds", "1"]);
    command.args(["--nodes", "12", "--large", "300", "--steps", "8", "--flows", "3"]);
    command.arg("--json").arg(&json).arg("--plugins-from").arg(components()).env("OARLOCK_BINARY", host);
    let ended = command.output().unwrap();
    let (shown, said) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{shown}\n{said}");
    let all: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let runs = all.get("runs").and_then(Value::as_array).unwrap();
    assert_eq!(runs.len(), 5, "{shown}");
    for goal in runs.iter().flat_map(|run| run.get("goals").and_then(Value::as_array).unwrap()) {
        assert!(!goal["reached"].is_null(), "{goal} was not measured:\n{shown}");
    }
    for run in runs.iter().skip(2) {
        let creates = &run["spread"]["host"]["requests"]["create jobs"]["median"];
        assert_eq!(creates, 1.0, "{shown}");
    }
}

fn count(figures: &Value, name: &str) -> f64 {
    let median = figures.get(name).and_then(|figure| figure.get("median")?.as_f64());
    assert!(median.is_some(), "{name} is missing in {figures}");
    median.unwrap()
}

#[test]
fn rolling_replaces_every_target_within_its_bound() {
    let figures = run("rolling", &["--targets", "2"])["host"].take();
    assert_eq!(count(&figures, "wrong"), 0.0);
    assert_eq!((count(&figures, "mostAtOnce"), count(&figures, "maxUnavailable")), (1.0, 1.0));
    // No host can beat the bound.
    assert!(count(&figures, "timeToPipelineBound") >= 1.0, "{figures}");
}

#[test]
fn beside_bare_ends_with_one_pair_for_each_target_of_either_contender() {
    let figures = run("beside-bare", &["--targets", "4"]);
    for contender in ["host", "bare"] {
        let found = &figures[contender];
        assert_eq!((&found["verdict"], count(found, "wrong")), (&"clean".into(), 0.0));
        assert_eq!(count(found, "controllerWritesPerTarget"), 5.0, "{found}");
    }
}

#[test]
fn crowd_has_a_job_for_each_few_targets() {
    let figures = run("crowd", &["--targets", "4"])["host"].take();
    assert_eq!(figures["verdict"], "clean");
    assert!(count(&figures, "slowestToMedianJob") >= 1.0, "{figures}");
}

#[test]
fn kills_leave_no_wrong_outcome() {
    let figures = run("kills", &["--targets", "12", "--kill-every", "20"])["host"].take();
    assert_eq!(count(&figures, "wrong"), 0.0);
    assert!(count(&figures, "kills") >= 1.0, "{figures}");
}

#[test]
fn restart_is_timed_in_the_middle_of_a_job() {
    let figures = run("restart", &["--targets", "150"])["host"].take();
    assert_eq!(count(&figures, "wrong"), 0.0);
    assert!(count(&figures, "restarts") >= 1.0, "{figures}");
}

/// Returns the figures of a host that is left alone, and of one that was killed.
fn calm_and_killed(figures: &Value) -> [Value; 2] {
    let [calm, killed] = ["calm", "killed"].map(|run| figures.get(run).cloned().unwrap_or_default());
    assert!(count(&killed, "kills") >= 1.0, "{figures}");
    [calm, killed]
}

#[test]
fn reboots_keep_within_parallelism_with_and_without_kills() {
    for figures in calm_and_killed(&run("reboots", &["--targets", "20", "--parallelism", "5", "--kill-every", "6"])) {
        let wrong = ["wrong", "doubleReboots", "failed", "gaps"].map(|name| count(&figures, name));
        assert_eq!(wrong, [0.0; 4], "{figures}");
        assert_eq!(count(&figures, "operations"), 20.0);
        assert!((1.0..=5.0).contains(&count(&figures, "mostOutOfService")), "{figures}");
        // No host can beat the bound.
        assert!(count(&figures, "timeToPipelineBound") >= 1.0, "{figures}");
    }
}

#[test]
fn checks_run_once_on_each_node_with_and_without_kills() {
    for figures in calm_and_killed(&run("checks", &["--targets", "20", "--parallelism", "4", "--kill-every", "3"])) {
        let wrong = ["wrong", "notOnePod", "stuck", "gaps"].map(|name| count(&figures, name));
        assert_eq!(wrong, [0.0; 4], "{figures}");
        assert_eq!((count(&figures, "operations"), count(&figures, "failed")), (20.0, 2.0));
        assert!((1.0..=4.0).contains(&count(&figures, "mostChecksAtOnce")), "{figures}");
        assert!(count(&figures, "timeToPipelineBound") >= 1.0, "{figures}");
    }
}
