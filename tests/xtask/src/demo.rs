//! The first thing that a newcomer runs.
//!
//! Takes further arguments for `oarlock demo`; builds the components and the binary and becomes it. Its exit code is the demo's.

use std::process::{Command, ExitCode};

use anyhow::Context as _;

use crate::plugins;
use crate::workspace::{binary, cargo_on_all, components_folder, root, succeed};

/// The command `cargo xtask demo`.
pub(crate) fn run(arguments: &[String]) -> anyhow::Result<ExitCode> {
    plugins::ensure_target()?;
    // Beside one another: each leaves a core idle now and then, and they share no lock.
    std::thread::scope(|scope| {
        let components = scope.spawn(plugins::compile);
        let host = succeed(&mut cargo_on_all("build", &["--bin", "oarlock"]));
        components.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the build of the components panicked"))).and(host)
    })?;
    let binary = binary("debug", "oarlock");
    let mut command = Command::new(&binary);
    command.current_dir(root()).arg("demo").arg("--plugins-from").arg(components_folder()).args(arguments);
    become_it(command).with_context(|| format!("cannot run {}", binary.display()))
}

/// Replaces this process, so that terminal, signals and exit code are the demo's own.
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
