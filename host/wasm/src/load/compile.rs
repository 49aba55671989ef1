//! Compiles vetted components in a process of its own.
//!
//! Takes a component; yields code, or a rejection. A file that makes the compiler panic, run for ever or use too much
//! memory ends the helper process and not the host. May not read the plugin directory.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, setrlimit};
use thiserror::Error;

use crate::load::vet;
use crate::rejection::{Rejection, causes};
use crate::run::engine::{self, EngineError};

/// Address space of the helper. Compiling CPython on many cores needs half of it.
const HELPER_BYTES: u64 = 4 << 30;
/// CPU time of the helper. CPython needs a tenth of it.
const HELPER_SECONDS: u64 = 60;
/// The longest that the helper may run or wait.
const HELPER_WAIT: Duration = Duration::from_secs(120);
/// Most compiled code of one component.
const MAX_CODE_BYTES: u64 = 128 << 20;

/// The process that compiles.
#[derive(Clone, Debug)]
pub enum CompileWith {
    /// A helper process: this program with these arguments, which end in [`compile_worker`].
    Helper {
        /// The program.
        program: PathBuf,
        /// Its arguments.
        arguments: Vec<OsString>,
    },
    /// This process, without limits: for tests, and components of one's own.
    InProcess,
}

impl CompileWith {
    /// The running program with the hidden subcommand `plugin compile-worker`.
    pub fn this_binary() -> io::Result<Self> {
        let arguments = vec!["plugin".into(), "compile-worker".into()];
        Ok(Self::Helper { program: std::env::current_exe()?, arguments })
    }
}

/// The helper could not compile.
#[derive(Debug, Error)]
pub enum CompileWorkerError {
    /// Its own limits could not be set.
    #[error("failed to limit the compiler")]
    Limit {
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The component could not be read from standard input.
    #[error("failed to read the component from standard input")]
    Read {
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The compiler did not start.
    #[error("failed to start the compiler")]
    Engine {
        /// The cause.
        #[source]
        source: EngineError,
    },
    /// The component does not compile.
    #[error("failed to compile the component")]
    Compile {
        /// The cause.
        #[source]
        source: wasmtime::Error,
    },
    /// The code could not be written to standard output.
    #[error("failed to write the code to standard output")]
    Write {
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Runs the helper process: limits itself, reads a component from standard input, and writes its code to standard
/// output.
pub fn compile_worker() -> Result<(), CompileWorkerError> {
    for (resource, limit) in [(Resource::As, HELPER_BYTES), (Resource::Cpu, HELPER_SECONDS), (Resource::Core, 0)] {
        let limit = Rlimit { current: Some(limit), maximum: Some(limit) };
        setrlimit(resource, limit).map_err(|error| CompileWorkerError::Limit { source: error.into() })?;
    }
    let mut bytes = Vec::new();
    let mut input = io::stdin().lock().take(vet::MAX_BYTES);
    input.read_to_end(&mut bytes).map_err(|source| CompileWorkerError::Read { source })?;
    let engine = engine::compiler().map_err(|source| CompileWorkerError::Engine { source })?;
    let code = engine.precompile_component(&bytes).map_err(|source| CompileWorkerError::Compile { source })?;
    let mut output = io::stdout().lock();
    output.write_all(&code).and_then(|()| output.flush()).map_err(|source| CompileWorkerError::Write { source })
}

/// Compiles a component that was vetted.
pub(crate) fn compile(with: &CompileWith, engine: &wasmtime::Engine, bytes: &[u8]) -> Result<Vec<u8>, Rejection> {
    match with {
        CompileWith::InProcess => engine.precompile_component(bytes).map_err(|error| failed(&causes(error.as_ref()))),
        CompileWith::Helper { program, arguments } => {
            let mut command = Command::new(program);
            command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            // It reads a file that anybody may have dropped, and needs nothing else of the host's.
            command.env_clear().current_dir("/");
            let child = command.spawn().map_err(|error| {
                let sentence =
                    format!("the helper {} could not be started: {error}; the host tries again", program.display());
                Rejection::for_now("CompilerUnavailable", sentence)
            })?;
            through(child, bytes)
        }
    }
}

fn failed(why: &str) -> Rejection {
    Rejection::new("CompileFailed", format!("the component does not compile: {why}; rebuild it"))
}

fn through(mut child: Child, bytes: &[u8]) -> Result<Vec<u8>, Rejection> {
    let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (done, ended) = mpsc::channel();
    std::thread::scope(|scope| {
        // A helper that ended early reads no more; its output on standard error is read below.
        scope.spawn(move || input.map(|mut input| input.write_all(bytes)));
        let code = scope.spawn(move || {
            let code = read(output.map(|output| output.take(MAX_CODE_BYTES.saturating_add(1))));
            // The receiver is gone only where the helper was ended.
            let _ = done.send(());
            code
        });
        let stderr = scope.spawn(move || read(errors.map(|errors| errors.take(16 * 1024))));
        let late = ended.recv_timeout(HELPER_WAIT).is_err();
        if late {
            // This fails only if the helper ended by itself meanwhile.
            let _ = child.kill();
        }
        let (code, stderr) = (code.join().unwrap_or_default(), stderr.join().unwrap_or_default());
        match child.wait() {
            // It was ended by the end of its output.
            _ if code.len() as u64 > MAX_CODE_BYTES => {
                let limit = MAX_CODE_BYTES >> 20;
                let sentence = format!("it compiles to more than {limit} MiB of code; make the component smaller");
                Err(Rejection::new("CompileLimitExceeded", sentence))
            }
            Ok(status) if status.success() && !late => Ok(code),
            Ok(status) if late || status.code().is_none() => {
                let sentence = format!(
                    "the compiler was ended ({status}) for using too much time or memory; make the component smaller"
                );
                Err(Rejection::new("CompileLimitExceeded", sentence))
            }
            _ => Err(failed(reason_of(&stderr))),
        }
    })
}

fn read(from: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A read error shows in the helper's exit status too.
    let _ = from.map(|mut from| from.read_to_end(&mut bytes));
    bytes
}

fn reason_of(stderr: &[u8]) -> &str {
    std::str::from_utf8(stderr)
        .map(str::trim)
        .ok()
        .filter(|reason| !reason.is_empty())
        .unwrap_or("the compiler gave no reason")
}
