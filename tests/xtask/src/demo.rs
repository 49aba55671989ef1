//! Builds and runs the demo, the first command of a new user.
//!
//! The module builds the components, the host and the demo, and replaces itself with the demo. The exit code is that of
//! the demo.

use std::process::{Command, ExitCode};

use anyhow::Context as _;

use crate::plugins;
use crate::workspace::{HOST_VARIABLE, binary, cargo_on_all, components_folder, root, succeed};

/// The command `cargo xtask demo`.
pub(crate) fn run(arguments: &[String]) -> anyhow::Result<ExitCode> {
    plugins::ensure_target()?;
    // Both builds run in parallel, because each leaves a core idle now and then, and they share no lock.
    std::thread::scope(|scope| {
        let components = scope.spawn(plugins::compile);
        let host = succeed(&mut cargo_on_all("build", &["--bin", "oarlock", "--bin", "demo"]));
        components.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the build of the components panicked"))).and(host)
    })?;
    let demo = binary("debug", "demo");
    let mut command = Command::new(&demo);
    command.current_dir(root()).env(HOST_VARIABLE, binary("debug", "oarlock"));
    command.arg("--plugins-from").arg(components_folder()).args(arguments);
    become_it(command).with_context(|| format!("cannot run {}", demo.display()))
}

/// Replaces this process with the demo, so that the demo has the terminal, the signals and the exit code.
#[cfg(unix)]
fn become_it(mut command: Command) -> anyhow::Result<ExitCode> {
    use std::os::unix::process::CommandExt as _;
    Err(command.exec().into())
}

#[cfg(not(unix))]
fn become_it(mut command: Command) -> anyhow::Result<ExitCode> {
    let code = command.status()?.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
