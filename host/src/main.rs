//! The binary `oarlock`: parses arguments, starts logs, runs one command and reports its outcome.
//!
//! Exit codes: 0 the command succeeded, 1 it failed (the reason is on standard error), 2 the arguments are invalid. For
//! a command that follows a job: 0 the job succeeded, 1 the job failed, 3 its outcome is unknown. For a plan: 4 a plan
//! was made, and something in it would go wrong.

use std::process::ExitCode;

use oarlock::commands::Cli;

#[cfg(feature = "jemalloc")]
mod allocator;

fn main() -> ExitCode {
    let cli = Cli::from_arguments();
    let failed = cli.exit_code_of_error();
    match oarlock::commands::run(cli) {
        Ok(code) => code,
        Err(error) => {
            let mut said = error.to_string();
            eprintln!("error: {said}");
            for cause in error.chain().skip(1).map(ToString::to_string) {
                // Some libraries repeat the cause in their message.
                if !said.contains(&cause) {
                    eprintln!("  because: {cause}");
                }
                said = cause;
            }
            failed
        }
    }
}
