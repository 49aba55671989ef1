//! Vets and compiles components in a separate process.
//!
//! The helper takes a component and returns its manifest, its code, or a rejection. A file may make the compiler panic, run forever or use
//! too much memory. This ends the helper process and not the host.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use oarlock_core::plugin::names::shown;

use crate::load::compile::{DONE, HelperTask, REJECTED, compile_component, not_compiled, vet_component};
use crate::memory::MemoryShares;
use crate::rejection::Rejection;

/// The longest time that the helper may run or wait.
const HELPER_WAIT: Duration = Duration::from_secs(120);
/// The most bytes of compiled code of one component.
const MAX_CODE_BYTES: u64 = 128 << 20;
/// The most bytes of a manifest in a reply, of a rejection, and of the helper's error output.
const MAX_MANIFEST_BYTES: u64 = 1 << 20;
const MAX_REJECTION_BYTES: u64 = 64 << 10;
const MAX_ERROR_BYTES: u64 = 16 << 10;

/// A component to compile.
pub(crate) struct Compiling<'a> {
    pub engine: &'a wasmtime::Engine,
    pub bytes: &'a [u8],
    pub memory: MemoryShares,
}

/// The process that vets and compiles.
#[derive(Clone, Debug)]
pub enum CompileWith {
    /// A helper process. It is this program with these arguments, then the word of a [`HelperTask`] and the bytes that the helper may
    /// allocate. The arguments must lead to [`compile_worker`](crate::compile_worker).
    Helper {
        /// The program.
        program: PathBuf,
        /// The arguments of the program.
        arguments: Vec<OsString>,
    },
    /// This process, without limits. Use it for tests and for trusted components.
    InProcess,
}

impl CompileWith {
    /// Returns the running program with the hidden subcommand `plugin compile-worker`.
    ///
    /// # Errors
    ///
    /// If the path of the program is unknown.
    pub fn this_binary() -> io::Result<Self> {
        let arguments = vec!["plugin".into(), "compile-worker".into()];
        Ok(Self::Helper { program: std::env::current_exe()?, arguments })
    }

    /// Returns the manifest of a component with a valid interface.
    pub(crate) fn vet(&self, bytes: &[u8], memory: MemoryShares) -> Result<Vec<u8>, Rejection> {
        if let Self::InProcess = self {
            return vet_component(bytes);
        }
        let mut manifest = Vec::new();
        self.help(HelperTask::Vet, bytes, memory, &mut manifest)?;
        Ok(manifest)
    }

    /// Writes the code of a component to `into`.
    pub(crate) fn compile(&self, what: &Compiling<'_>, into: &mut (impl Write + Send)) -> Result<(), Rejection> {
        let Compiling { engine, bytes, memory } = *what;
        if let Self::InProcess = self {
            let code = compile_component(engine, bytes)?;
            return into.write_all(&code).map_err(|error| not_kept(&error));
        }
        self.help(HelperTask::Compile, bytes, memory, into)
    }

    fn help(
        &self,
        task: HelperTask,
        bytes: &[u8],
        memory: MemoryShares,
        into: &mut (impl Write + Send),
    ) -> Result<(), Rejection> {
        let Self::Helper { program, arguments } = self else { return Ok(()) };
        let mut command = Command::new(program);
        command.args(arguments).arg(task.word());
        command.args(memory.helper().map(|bytes| bytes.to_string()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The helper reads a file from any user and needs no other access. It gives up files and network itself, because only a process
        // itself can do this without unsafe code.
        command.env_clear().current_dir("/");
        let child = command.spawn().map_err(|error| {
            let sentence =
                format!("the helper {} could not be started: {error}; the host tries again", program.display());
            Rejection::for_now("CompilerUnavailable", sentence)
        })?;
        let limit = match task {
            HelperTask::Vet => MAX_MANIFEST_BYTES,
            HelperTask::Compile => MAX_CODE_BYTES,
        };
        through(child, bytes, into, limit).map_err(|broken| broken.rejection(memory))
    }
}

/// A reply of the helper.
enum HelperReply {
    Done,
    TooLarge,
    Rejected(Rejection),
    NotWritten(io::Error),
    /// No reply, because the helper ended before.
    Broken,
}

/// The reason why there is no result.
enum NoResult {
    /// The helper or the host gives a reason.
    Rejected(Rejection),
    /// A limit ended the helper.
    Ended(ExitStatus, Vec<u8>),
}

impl NoResult {
    fn rejection(self, memory: MemoryShares) -> Rejection {
        match self {
            Self::Rejected(rejection) => rejection,
            Self::Ended(status, stderr) => {
                let (why, share) = (reason_of(&stderr), memory.of_helper());
                let sentence = format!(
                    "the compiler was ended ({status}; {why}) for using too much time or memory{share}; make the \
                     component smaller"
                );
                Rejection::new("CompileLimitExceeded", sentence.replace("or; make", "or make"))
            }
        }
    }
}

fn through(mut child: Child, bytes: &[u8], into: &mut (impl Write + Send), limit: u64) -> Result<(), NoResult> {
    let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (done, ended) = mpsc::channel();
    std::thread::scope(|scope| {
        // A helper that ended early reads no more. Its standard error is read below.
        scope.spawn(move || input.map(|mut input| input.write_all(bytes)));
        let reply = scope.spawn(move || {
            let reply = output.map_or(HelperReply::Broken, |output| read_reply(output, into, limit));
            // The receiver is dropped only if the host has ended the helper.
            let _ = done.send(());
            reply
        });
        let stderr = scope.spawn(move || errors.map(|errors| read(errors, MAX_ERROR_BYTES)).unwrap_or_default());
        let late = ended.recv_timeout(HELPER_WAIT).is_err();
        if late {
            // This fails only if the helper ended by itself meanwhile.
            let _ = child.kill();
        }
        let (reply, stderr) = (reply.join().unwrap_or(HelperReply::Broken), stderr.join().unwrap_or_default());
        match (reply, child.wait()) {
            // The end of its output ended the helper.
            (HelperReply::TooLarge, _) => Err(NoResult::Rejected(Rejection::new(
                "CompileLimitExceeded",
                format!("it compiles to more than {} MiB of code; make the component smaller", limit >> 20),
            ))),
            (HelperReply::NotWritten(error), _) => Err(NoResult::Rejected(not_kept(&error))),
            (HelperReply::Rejected(rejection), _) => Err(NoResult::Rejected(rejection)),
            (HelperReply::Done, Ok(status)) if status.success() && !late => {
                if !stderr.is_empty() {
                    tracing::warn!(said = %reason_of(&stderr), "the helper process that vets and compiles plugins reported a warning");
                }
                Ok(())
            }
            (_, Ok(status)) if late || status.code().is_none() => Err(NoResult::Ended(status, stderr)),
            _ => Err(NoResult::Rejected(not_compiled(&reason_of(&stderr)))),
        }
    })
}

fn not_kept(error: &io::Error) -> Rejection {
    let sentence =
        format!("its code cannot be written to the cache: {error}; make room there, and the host tries again");
    Rejection::for_now("CacheFailed", sentence)
}

/// Reads the reply of a helper. If the reply exceeds the limit, reading stops, and this ends the helper.
fn read_reply(mut output: ChildStdout, into: &mut impl Write, limit: u64) -> HelperReply {
    let mut kind = [0];
    match output.read_exact(&mut kind).map(|()| kind[0]) {
        Ok(DONE) => copy(&mut output.take(limit.saturating_add(1)), into, limit),
        Ok(REJECTED) => serde_json::from_slice(&read(output, MAX_REJECTION_BYTES))
            .map_or(HelperReply::Broken, HelperReply::Rejected),
        _ => HelperReply::Broken,
    }
}

fn copy(from: &mut impl Read, into: &mut impl Write, limit: u64) -> HelperReply {
    let mut copied = 0_u64;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let part = match from.read(&mut buffer) {
            Ok(0) => return if copied > limit { HelperReply::TooLarge } else { HelperReply::Done },
            Ok(count) => buffer.get(..count).unwrap_or_default(),
            Err(_) => return HelperReply::Broken,
        };
        copied = copied.saturating_add(part.len() as u64);
        if let Err(error) = into.write_all(part) {
            return HelperReply::NotWritten(error);
        }
    }
}

fn read(from: impl Read, limit: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A read error also shows in the exit status of the helper.
    let _ = from.take(limit).read_to_end(&mut bytes);
    bytes
}

/// Returns the helper's error output on one line, without the advice on backtraces.
fn reason_of(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("note: run with"));
    let said = shown(&lines.collect::<Vec<_>>().join(" "));
    if said.is_empty() { "the compiler gave no reason".to_owned() } else { said }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_a_helper_that_ended_is_one_line() {
        let panic = b"\nthread 'main' panicked at x.rs:1:1:\nit is \x1b[2Jfull\nnote: run with `RUST_BACKTRACE=1`\n";
        assert_eq!(reason_of(panic), "thread 'main' panicked at x.rs:1:1: it is \u{fffd}[2Jfull");
        assert_eq!(reason_of(b" \n"), "the compiler gave no reason");
    }
}
