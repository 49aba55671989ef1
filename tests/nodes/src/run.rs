//! Commands that run to their end, and processes that stay.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};

/// Runs a program to its end. Returns its output; on failure, the error has the program's standard error.
///
/// # Errors
///
/// If the program cannot be started or fails.
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

/// Returns advice for the case that a program is missing.
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

/// Extends a command by `unshare` with new mount, PID, UTS and IPC namespaces, and with the namespaces of `flags`. The
/// first process in the namespaces adopts orphans and runs `program`. The namespaces end with the process of the
/// command.
pub fn enter_namespaces(command: &mut Command, flags: &[&str], program: &Path) {
    command.arg("unshare").args(flags).args(["--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child"]);
    command.args(["--propagation", "private"]).arg(program).args(["init", "--"]).arg(program);
}

/// Starts a program that appends its output to a log.
///
/// # Errors
///
/// If the log cannot be opened or the program cannot be started.
pub fn start(command: Command, log: &Path) -> anyhow::Result<Child> {
    start_with(command, Stdio::null(), log)
}

/// Starts a program with this input that appends its output to a log.
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

/// Sleeps between two polls, or for as long as a machine takes.
#[expect(clippy::disallowed_methods, reason = "nothing here has a runtime or a clock of its own")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}
