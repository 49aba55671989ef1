//! Commands that are run to their end, and processes that stay.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};

/// Runs a program to its end; its output is in the error where it fails.
///
/// # Errors
///
/// If it cannot be started or fails.
pub fn run(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run `{program}`: {}", package_of(program)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{program} {}` ended with {}: {}", arguments.join(" "), output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The advice for whoever lacks a program.
#[must_use]
pub fn package_of(program: &str) -> String {
    let package = match program {
        "ip" => "iproute2",
        "unshare" | "nsenter" | "setpriv" | "setsid" | "mount" | "umount" => "util-linux",
        "systemctl" | "systemd-run" => "systemd",
        "hostname" => "hostname",
        "kill" => "procps",
        _ => return "is it on the PATH?".to_owned(),
    };
    format!("install the package {package}")
}

/// Goes on with a command that makes namespaces of its own, with these flags beside those of every one, whose first process takes in
/// orphans and runs `program`. They end with the process of the command.
pub fn enter_namespaces(command: &mut Command, flags: &[&str], program: &Path) {
    command.arg("unshare").args(flags).args(["--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child"]);
    command.args(["--propagation", "private"]).arg(program).args(["init", "--"]).arg(program);
}

/// Starts a program whose output goes to the end of a log.
///
/// # Errors
///
/// If the log cannot be opened or the program cannot be started.
pub fn start(command: Command, log: &Path) -> anyhow::Result<Child> {
    start_with(command, Stdio::null(), log)
}

/// The same, with an input.
///
/// # Errors
///
/// If the log cannot be opened or the program cannot be started.
pub fn start_with(mut command: Command, stdin: Stdio, log: &Path) -> anyhow::Result<Child> {
    let output = File::options().create(true).append(true).open(log);
    let output = output.with_context(|| format!("cannot open {}", log.display()))?;
    let errors = output.try_clone().context("cannot share a log")?;
    command.stdin(stdin).stdout(output).stderr(errors);
    let program = command.get_program().to_string_lossy().into_owned();
    command.spawn().with_context(|| format!("cannot start {program}: {}", package_of(&program)))
}

/// Waits between two looks at what no other process tells of, or for as long as a machine takes.
#[expect(clippy::disallowed_methods, reason = "nothing here has a runtime or a clock of its own")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}
