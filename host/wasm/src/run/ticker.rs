//! The clock by which calls are stopped: a thread that advances the engine's epoch while something is called.
//!
//! Takes an engine; yields guards that keep the clock going. It is a real thread, so it goes on under paused time, and
//! it sleeps for ever while nothing is called, so that an idle host costs nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::Duration;

use crate::run::limits::TICK_MS;

/// How many steps the clock goes on after the last call, so that a busy host does not wake it again and again.
const LINGER: u32 = 500;

struct Shared {
    calls: AtomicUsize,
    asleep: AtomicBool,
    stop: AtomicBool,
}

/// The clock.
pub(crate) struct Ticker {
    shared: Arc<Shared>,
    thread: Thread,
}

/// Keeps the clock going while a call runs.
pub(crate) struct Ticking {
    shared: Arc<Shared>,
}

impl Ticker {
    pub(crate) fn start(engine: &wasmtime::Engine) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            calls: AtomicUsize::new(0),
            asleep: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let (engine, seen) = (engine.weak(), shared.clone());
        let run = move || {
            let mut idle = 0;
            while !seen.stop.load(Ordering::SeqCst) {
                idle = if seen.calls.load(Ordering::SeqCst) == 0 { idle + 1 } else { 0 };
                if idle > LINGER {
                    seen.asleep.store(true, Ordering::SeqCst);
                    // Looked at again after saying so: whoever begins a call now sees it and wakes us.
                    if seen.calls.load(Ordering::SeqCst) == 0 && !seen.stop.load(Ordering::SeqCst) {
                        std::thread::park();
                    }
                    seen.asleep.store(false, Ordering::SeqCst);
                    idle = 0;
                }
                std::thread::park_timeout(Duration::from_millis(TICK_MS.into()));
                let Some(engine) = engine.upgrade() else { return };
                engine.increment_epoch();
            }
        };
        let thread = std::thread::Builder::new().name("oarlock-epoch".to_owned()).spawn(run)?;
        Ok(Self { shared, thread: thread.thread().clone() })
    }

    pub(crate) fn keep(&self) -> Ticking {
        self.shared.calls.fetch_add(1, Ordering::SeqCst);
        if self.shared.asleep.load(Ordering::SeqCst) {
            self.thread.unpark();
        }
        Ticking { shared: self.shared.clone() }
    }
}

impl Drop for Ticking {
    fn drop(&mut self) {
        self.shared.calls.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}
