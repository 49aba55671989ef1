//! Where things are in this repository and how cargo is called.
//!
//! Takes the environment that cargo gives; yields paths and commands. `CARGO_TARGET_DIR` is respected everywhere.

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

/// The component that is nothing but a component: what it does must never run natively.
pub(crate) const WASM_ONLY: &str = "hostile";

/// Where tests find the components; they do not build any.
pub(crate) const COMPONENTS_VARIABLE: &str = "OARLOCK_COMPONENTS";

/// Where tests and benches find the host's binary, to run it as a process of its own.
pub(crate) const HOST_VARIABLE: &str = "OARLOCK_BINARY";

/// Where tests see that they are to show everything, however long that takes.
pub(crate) const SOAK_VARIABLE: &str = "OARLOCK_SOAK";

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// Where cargo puts what it builds.
pub(crate) fn target_folder() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root().join(folder),
        None => root().join("target"),
    }
}

/// Where the components are once they are built.
pub(crate) fn components_folder() -> PathBuf {
    target_folder().join(WASM_TARGET).join("release")
}

/// The same cargo that runs this.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(arguments);
    // A run of CI builds once: what a next build would save time with takes several gigabytes.
    if std::env::var_os("CI").is_some() && std::env::var_os("CARGO_INCREMENTAL").is_none() {
        command.env("CARGO_INCREMENTAL", "0");
    }
    // What cargo says of this crate to it must not reach the crates that it builds.
    for (name, _) in std::env::vars_os() {
        let internal =
            name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"));
        if internal {
            command.env_remove(name);
        }
    }
    command
}

/// Calls cargo on all native crates. Cargo unites the features of the crates that it is called on, so every step that compiles
/// the host selects the same ones: otherwise the engine would be compiled once for the demo and once more for the tests.
pub(crate) fn cargo_on_all(command: &str, arguments: &[&str]) -> Command {
    let mut call = cargo(&[command, "--workspace", "--exclude", WASM_ONLY]);
    call.args(arguments);
    call
}

/// Where the host's binary is once `profile` (`debug` or `release`) is built.
pub(crate) fn binary(profile: &str, name: &str) -> PathBuf {
    target_folder().join(profile).join(name).with_extension(std::env::consts::EXE_EXTENSION)
}

/// Runs `command` to its end with its output shown. Its phase counts the processor time.
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

/// The command as one would type it.
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
