//! The reason why a call gave no answer: a trap, an exceeded limit, an invalid answer, or a busy host.

use oarlock_core::plugin::visit::Trap;
use wasmtime::PoolConcurrencyLimitError;
use wasmtime_wasi::I32Exit;

use crate::rejection::causes;
use crate::run::guest::Guest;
use crate::run::limits::LimitExceeded;

const TRAPPED: &str = "PluginTrapped";
const LIMIT: &str = "PluginLimitExceeded";

/// The reason why a call gave no answer.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The plugin trapped, exceeded a limit or gave an invalid answer.
    Trap(Trap),
    /// The host already runs the most instances that it allows.
    Busy,
}

impl CallError {
    /// Returns the error for an answer that cannot be converted.
    pub(crate) fn garbage(function: &str, why: &str) -> Self {
        Self::Trap(Trap { reason: TRAPPED, message: format!("{function} returned garbage: {why}") })
    }

    /// Returns the error of a call or an instantiation that the engine ended. `operation` is its name in the message.
    pub(crate) fn of_engine(guest: &Guest, operation: &str, error: &wasmtime::Error) -> Self {
        if error.downcast_ref::<PoolConcurrencyLimitError>().is_some() {
            return Self::Busy;
        }
        let (reason, message) = match exceeded_limit(guest, error) {
            Some(why) => (LIMIT, format!("{operation} exceeded a limit: {why}")),
            None => (TRAPPED, format!("{operation} trapped: {}", cause(guest, error))),
        };
        Self::Trap(Trap { reason, message })
    }
}

fn exceeded_limit(guest: &Guest, error: &wasmtime::Error) -> Option<String> {
    if let Some(exceeded) = error.downcast_ref::<LimitExceeded>() {
        return Some(exceeded.0.clone());
    }
    if let Some(why) = &guest.meter.refused {
        return Some(why.clone());
    }
    if error.downcast_ref::<wasmtime::Trap>() == Some(&wasmtime::Trap::StackOverflow) {
        return Some("its stack is full".to_owned());
    }
    // The type of this error is private in the engine.
    let too_large = error.root_cause().to_string().contains("fuel allocated for hostcalls");
    too_large.then(|| "it hands over too many bytes at once".to_owned())
}

fn cause(guest: &Guest, error: &wasmtime::Error) -> String {
    let stderr = guest.stderr_of_call();
    match error.downcast_ref::<I32Exit>() {
        Some(exit) => format!("exit with status {}", exit.0),
        None if stderr.is_empty() => causes(error.root_cause()),
        None => stderr,
    }
}
