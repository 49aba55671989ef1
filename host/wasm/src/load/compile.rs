//! Vets and compiles components inside the helper process.
//!
//! This module may not read the plugin directory. A hostile file can end the helper process but not the host.

use std::io::{self, Read, Write};

use rustix::process::{Resource, Rlimit, setrlimit};
use thiserror::Error;

use crate::load::confine::{ConfineError, confine};
use crate::load::inspect::manifest_missing;
use crate::load::vet;
use crate::rejection::{Rejection, causes};
use crate::run::engine::{self, EngineError};

/// The address space of the helper, in bytes. The compilation of CPython on many cores needs half of it.
const HELPER_BYTES: u64 = 4 << 30;
/// The CPU time of the helper, in seconds. CPython needs a tenth of it.
const HELPER_SECONDS: u64 = 60;
/// The first byte of a successful reply.
pub(crate) const DONE: u8 = b'+';
/// The first byte of a reply with a rejection, as JSON.
pub(crate) const REJECTED: u8 = b'-';

/// A task of the helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelperTask {
    /// Checks the interface. The reply is the manifest.
    Vet,
    /// Checks and compiles all code. The reply is the compiled code.
    Compile,
}

impl HelperTask {
    /// Returns the argument that requests the task.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Vet => "vet",
            Self::Compile => "compile",
        }
    }

    /// Returns the task that an argument requests.
    pub fn of(word: &str) -> Option<Self> {
        [Self::Vet, Self::Compile].into_iter().find(|task| task.word() == word)
    }
}

/// The reason why the helper could not do its work.
#[derive(Debug, Error)]
pub enum CompileWorkerError {
    /// The helper could not set its own limits.
    #[error("failed to limit the compiler")]
    Limit {
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The helper could not give up its access to files and the network.
    #[error("failed to confine the compiler")]
    Confine {
        /// The cause.
        #[source]
        source: ConfineError,
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
    /// The reply could not be written to standard output.
    #[error("failed to write the reply to standard output")]
    Write {
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Runs the helper process. It limits itself, to `memory` bytes if set, and gives up files and network. It reads a component from standard
/// input, and writes its reply to standard output.
///
/// # Errors
///
/// If the helper cannot do its work. A rejected component is a reply and not an error.
pub fn compile_worker(task: HelperTask, memory: Option<u64>) -> Result<(), CompileWorkerError> {
    let data = memory.unwrap_or(HELPER_BYTES);
    limit_to(data).map_err(|source| CompileWorkerError::Limit { source })?;
    match confine() {
        // The host logs the standard error of a helper.
        Err(error @ ConfineError::Unsupported) => {
            eprintln!("it runs with the files and the network of the host: {error}")
        }
        confined => confined.map_err(|source| CompileWorkerError::Confine { source })?,
    }
    let mut bytes = Vec::new();
    let mut input = io::stdin().lock().take(vet::MAX_BYTES);
    input.read_to_end(&mut bytes).map_err(|source| CompileWorkerError::Read { source })?;
    let reply = match task {
        HelperTask::Vet => vet_component(&bytes),
        HelperTask::Compile => {
            let engine = engine::compiler(memory.is_some()).map_err(|source| CompileWorkerError::Engine { source })?;
            compile_component(&engine, &bytes)
        }
    };
    let mut output = io::stdout().lock();
    let written = match reply {
        Ok(reply) => output.write_all(&[DONE]).and_then(|()| output.write_all(&reply)),
        Err(rejection) => {
            output.write_all(&[REJECTED]).and_then(|()| Ok(serde_json::to_writer(&mut output, &rejection)?))
        }
    };
    written.and_then(|()| output.flush()).map_err(|source| CompileWorkerError::Write { source })
}

/// Limits this process to so many bytes of data, and to the fixed limits of a helper.
fn limit_to(data: u64) -> io::Result<()> {
    let limits = [
        (Resource::As, HELPER_BYTES),
        // Address space is not memory. This limit covers the space that may become memory.
        (Resource::Data, data),
        (Resource::Cpu, HELPER_SECONDS),
        (Resource::Core, 0),
    ];
    for (resource, limit) in limits {
        setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) })?;
    }
    // Without this, a helper would keep computing after the host has ended.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    Ok(())
}

/// Checks everything except the code. Returns the manifest as JSON.
pub(crate) fn vet_component(bytes: &[u8]) -> Result<Vec<u8>, Rejection> {
    let manifest = vet::check_interface(bytes)?.manifest.ok_or_else(manifest_missing)?;
    serde_json::to_vec(&manifest).map_err(|error| Rejection::new("ManifestInvalid", causes(&error)))
}

/// Checks and compiles all code.
pub(crate) fn compile_component(engine: &wasmtime::Engine, bytes: &[u8]) -> Result<Vec<u8>, Rejection> {
    vet::check_code(bytes)?;
    engine.precompile_component(bytes).map_err(|error| not_compiled(&causes(error.as_ref())))
}

pub(crate) fn not_compiled(why: &str) -> Rejection {
    Rejection::new("CompileFailed", format!("the component does not compile: {why}; rebuild it"))
}
