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
            eprintln!("error: {error}");
            error.chain().skip(1).for_each(|cause| eprintln!("  because: {cause}"));
            ExitCode::FAILURE
        }
    }
}
