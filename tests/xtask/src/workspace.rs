//! Paths in this repository, and calls of cargo.
//!
//! The module takes the environment that cargo sets, and returns paths and commands. It respects `CARGO_TARGET_DIR`
//! everywhere.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use anyhow::{Context as _, bail};

use crate::phases::counted;

/// The target that plugins are compiled for.
pub(crate) const WASM_TARGET: &str = "wasm32-wasip2";

/// The crates that are WebAssembly components.
pub(crate) const COMPONENTS: [&str; 12] = [
    "addon",
    "dumplog",
    "exportimage",
    "replace",
    "restart",
    "reboot",
    "preflight",
    "hostile",
    "quarantine",
    "maintain",
    "run-script",
    "golden",
];

/// The crate that is only a component. Its code must never run natively.
pub(crate) const WASM_ONLY: &str = "hostile";

/// The crate of the benches. Only `cargo xtask bench` and a soak build it, because it never passes or fails.
pub(crate) const BENCHES: &str = "oarlock-bench";

/// The environment variable with the folder of the components. Tests find them there, and build none.
pub(crate) const COMPONENTS_VARIABLE: &str = "OARLOCK_COMPONENTS";

/// The environment variable with the path of the host's binary. Tests and benches run it as its own process.
pub(crate) const HOST_VARIABLE: &str = "OARLOCK_BINARY";

/// The environment variable that makes tests run in full, however long that takes.
pub(crate) const SOAK_VARIABLE: &str = "OARLOCK_SOAK";

/// Returns the root of the repository.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// Returns the folder of cargo's build output.
pub(crate) fn target_folder() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root().join(folder),
        None => root().join("target"),
    }
}

/// Returns the folder of the built components.
pub(crate) fn components_folder() -> PathBuf {
    target_folder().join(WASM_TARGET).join("release")
}

/// Returns a command of the cargo that runs this program.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(arguments);
    // A CI run builds once, and incremental data takes several gigabytes.
    if std::env::var_os("CI").is_some() && std::env::var_os("CARGO_INCREMENTAL").is_none() {
        command.env("CARGO_INCREMENTAL", "0");
    }
    // Cargo sets these variables for this crate. They must not reach the crates that the command builds.
    for (name, _) in std::env::vars_os() {
        let internal =
            name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"));
        if internal {
            command.env_remove(name);
        }
    }
    command
}

/// Returns a call of cargo on all native crates without the benches. Cargo unites the features of the selected crates, so every step that
/// compiles the host must select the same crates. Otherwise cargo compiles the engine once for the demo and again for
/// the tests.
pub(crate) fn cargo_on_all(command: &str, arguments: &[&str]) -> Command {
    let mut call = cargo(&[command, "--workspace", "--exclude", WASM_ONLY, "--exclude", BENCHES]);
    call.args(arguments);
    call
}

/// Returns the path of a binary in the build of `profile` (`debug` or `release`).
pub(crate) fn binary(profile: &str, name: &str) -> PathBuf {
    target_folder().join(profile).join(name).with_extension(std::env::consts::EXE_EXTENSION)
}

/// Runs `command` to its end and shows its output. The phase of this thread counts the processor time.
pub(crate) fn status(command: &mut Command) -> anyhow::Result<ExitStatus> {
    counted(command).with_context(|| format!("cannot run {}", line(command)))
}

/// Runs `command`, and fails unless it succeeds.
pub(crate) fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let status = status(command)?;
    if !status.success() {
        bail!("`{}` ended with {status}", line(command));
    }
    Ok(())
}

/// Returns the output of `command`, without white space at its ends.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("cannot run {}", line(command)))?;
    if !output.status.success() {
        bail!("`{}` ended with {}: {}", line(command), output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Returns the command as a user types it.
fn line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words.map(std::ffi::OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_has_the_manifest_of_the_workspace() {
        assert!(std::fs::read_to_string(root().join("Cargo.toml")).unwrap().contains("[workspace]"));
    }

    #[test]
    fn failed_command_is_named_as_one_would_type_it() {
        let failure = succeed(&mut cargo(&["no-such-command"])).unwrap_err().to_string();
        assert!(failure.contains("cargo no-such-command"), "{failure}");
    }
}
