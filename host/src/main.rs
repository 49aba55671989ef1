//! The binary `oarlock`: parses arguments, starts logs, runs one command and reports its outcome.
//!
//! Exit codes: 0 done, 1 not done (the reason is on standard error), 2 arguments that cannot be read. Of a command that follows
//! a job: 0 the job succeeded, 1 it failed, 3 its outcome is not known. Of a plan: 4 it was made, and something in it would go
//! wrong.

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
                // Libraries repeat the cause in the message.
                if !said.contains(&cause) {
                    eprintln!("  because: {cause}");
                }
                said = cause;
            }
            failed
        }
    }
}
