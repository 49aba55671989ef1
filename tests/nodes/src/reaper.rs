//! The first process of a PID namespace: it runs one program and adopts orphaned processes.

use std::process::{Command, ExitCode};

use rustix::process::{Pid, WaitOptions, wait};

/// Runs `program`, and ends when the program ends.
#[must_use]
pub fn run(program: &[String]) -> ExitCode {
    let Some((name, arguments)) = program.split_first() else { return ExitCode::FAILURE };
    let child = match Command::new(name).args(arguments).spawn() {
        Ok(child) => child,
        Err(cause) => {
            eprintln!("cluster: cannot start {name}: {cause}");
            return ExitCode::FAILURE;
        }
    };
    let own = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if Some(pid) == own => {
                let code = status.exit_status().and_then(|code| u8::try_from(code).ok());
                return code.map_or(ExitCode::FAILURE, ExitCode::from);
            }
            // The kernel reports no child only if the program has ended too.
            Err(rustix::io::Errno::CHILD) => return ExitCode::FAILURE,
            _ => {}
        }
    }
}
