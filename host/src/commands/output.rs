//! The output of commands, for people and for programs.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;

/// Returns a value as JSON, for output that programs read.
pub(super) fn json(value: &impl serde::Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value).context("cannot write the answer as JSON")? + "\n")
}

/// Prints an answer. A reader that stops early, as in `oarlock crds | head`, is no error.
pub(super) fn print(text: &str) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}
