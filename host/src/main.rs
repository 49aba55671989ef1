//! The binary `oarlock`: parses arguments, starts logs, runs one command and reports its outcome.
//!
//! Exit codes: 0 done, 1 not done (the reason is on standard error), 2 arguments that cannot be read.

use std::process::ExitCode;

use clap::Parser as _;
use oarlock::commands::Cli;

#[cfg(feature = "jemalloc")]
mod allocator;

fn main() -> ExitCode {
    match oarlock::commands::run(Cli::parse()) {
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
            ExitCode::FAILURE
        }
    }
}
