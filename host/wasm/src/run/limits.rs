//! The limits of a call, and the meter that counts its use of them.
//!
//! The meter stops nothing itself. The engine stops a call when its meter returns an error.

use oarlock_contract::limits::PluginLimits;
use thiserror::Error;
use wasmtime::ResourceLimiter;

/// The length of one step of the engine's clock, in milliseconds. A call that runs too long stops at most one step later.
pub(crate) const TICK_MS: u32 = 2;
/// The size of the largest table. CPython needs it.
pub(crate) const TABLE_ELEMENTS: usize = 20_000;

/// A call exceeded a limit.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct LimitExceeded(pub String);

/// The use of one limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    /// The used part.
    pub used: u32,
    /// The limit, in the same unit.
    pub most: u32,
}

/// The remaining limits of a running call.
pub(crate) struct Meter {
    limits: PluginLimits,
    ticks: u32,
    host_calls: u32,
    log_bytes: u32,
    memory: usize,
    /// The size of the answer.
    output_bytes: u32,
    /// The limit on memory or tables that the guest reached. Afterwards the guest traps or continues without more memory.
    pub refused: Option<String>,
}

impl Meter {
    /// Returns a meter for an instance with these limits.
    pub(crate) fn new(limits: PluginLimits) -> Self {
        Self { limits, ticks: 0, host_calls: 0, log_bytes: 0, memory: 0, output_bytes: 0, refused: None }
    }

    /// Begins a call. Memory stays counted, because it stays in use.
    pub(crate) fn begin(&mut self) {
        // The first step of the clock may come at once.
        self.ticks = self.limits.call_ms.div_ceil(TICK_MS).saturating_add(1);
        self.host_calls = self.limits.host_calls;
        self.log_bytes = self.limits.log_bytes;
        self.output_bytes = 0;
        self.refused = None;
    }

    /// Returns the number of host calls of this call.
    pub(crate) fn used_host_calls(&self) -> u32 {
        self.limits.host_calls.saturating_sub(self.host_calls)
    }

    /// Returns the bytes of memory of the instance.
    pub(crate) fn memory(&self) -> usize {
        self.memory
    }

    /// Returns the bytes of the answer of this call, or 0 if it gave none.
    pub(crate) fn answer_bytes(&self) -> u32 {
        self.output_bytes
    }

    /// Counts one step of the clock that the guest saw. Steps that passed while the guest was not running count as one step, so that a busy
    /// machine stops no call.
    pub(crate) fn tick(&mut self) -> Result<(), LimitExceeded> {
        self.ticks = self.ticks.saturating_sub(1);
        if self.ticks == 0 {
            return Err(LimitExceeded(format!("it ran longer than {} ms", self.limits.call_ms)));
        }
        Ok(())
    }

    /// Counts calls of host functions.
    pub(crate) fn host_call(&mut self, count: usize) -> Result<(), LimitExceeded> {
        match u32::try_from(count).ok().and_then(|count| self.host_calls.checked_sub(count)) {
            Some(left) => {
                self.host_calls = left;
                Ok(())
            }
            None => Err(LimitExceeded(self.limits.too_many_host_calls())),
        }
    }

    /// Subtracts a log line of `bytes` from the limit. Returns the number of its bytes that may be kept.
    pub(crate) fn log(&mut self, bytes: usize) -> usize {
        let kept = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.log_bytes);
        self.log_bytes -= kept;
        kept as usize
    }

    /// Compares the size of an answer with its limit.
    pub(crate) fn output(&mut self, bytes: usize) -> Result<(), LimitExceeded> {
        self.output_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        if bytes > self.limits.output_bytes as usize {
            return Err(LimitExceeded(self.limits.too_large_an_answer()));
        }
        Ok(())
    }

    /// Returns the use of each limit by the call: time, memory, answer, log lines and host calls. Time is counted in steps of the clock, and a call
    /// that is shorter than a step counts as one.
    pub(crate) fn used(&self) -> [Use; 5] {
        let limits = &self.limits;
        let steps = limits.call_ms.div_ceil(TICK_MS).saturating_add(1);
        let kib = |bytes: usize| u32::try_from(bytes >> 10).unwrap_or(u32::MAX);
        [
            Use { used: steps.saturating_sub(self.ticks).max(1), most: steps },
            Use { used: kib(self.memory), most: limits.memory_mib.saturating_mul(1024) },
            Use { used: self.output_bytes, most: limits.output_bytes },
            Use { used: limits.log_bytes.saturating_sub(self.log_bytes), most: limits.log_bytes },
            Use { used: limits.host_calls.saturating_sub(self.host_calls), most: limits.host_calls },
        ]
    }

    /// Returns the bytes that one host call or one answer may copy out of a guest. The value is larger than the limit, because a part of it
    /// is bookkeeping of the host. The exact size is checked afterwards.
    pub(crate) fn copied_bytes(&self) -> usize {
        self.limits.output_bytes as usize * 2 + 1024 * 1024
    }
}

impl ResourceLimiter for Meter {
    fn memory_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        let memory = self.memory.saturating_sub(current).saturating_add(desired);
        if memory > self.limits.memory_mib as usize * 1024 * 1024 {
            self.refused = Some(format!("it needs more than {} MiB of memory", self.limits.memory_mib));
            return Ok(false);
        }
        self.memory = memory;
        Ok(true)
    }

    fn table_growing(&mut self, _current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        if desired > TABLE_ELEMENTS {
            self.refused = Some(format!("it needs a table of more than {} entries", TABLE_ELEMENTS));
            return Ok(false);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use oarlock_contract::limits::DEFAULTS;

    use super::*;

    #[test]
    fn each_call_has_its_own_budget() {
        let mut meter = Meter::new(PluginLimits { host_calls: 2, ..DEFAULTS });
        meter.begin();
        assert!(meter.host_call(2).is_ok() && meter.host_call(1).is_err());
        meter.begin();
        assert!(meter.host_call(1).is_ok());
    }

    #[test]
    fn memory_is_counted_over_all_memories_of_an_instance() {
        let mut meter = Meter::new(PluginLimits { memory_mib: 1, ..DEFAULTS });
        assert!(meter.memory_growing(0, 600 * 1024, None).unwrap());
        assert!(!meter.memory_growing(0, 600 * 1024, None).unwrap());
        assert!(meter.refused.is_some());
    }
}
