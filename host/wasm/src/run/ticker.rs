//! The clock that stops calls: a thread that advances the engine's epoch while instances are in use.
//!
//! It is a real thread, so it also runs under paused time. It sleeps while no instance is in use, so that an idle host costs nothing. It
//! goes to sleep at the first step without an instance. Most sessions take less than a step, and a wake-up costs no more than the steps
//! that would avoid it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::run::limits::TICK_MS;

/// The clock of the engine.
pub(crate) struct Ticker(Arc<Shared>);

/// Keeps the clock running. Each instance holds one while a session uses it.
pub(crate) struct Ticking(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Wakes the thread. A notification costs almost nothing while the thread is awake.
    wake: Condvar,
}

#[derive(Default)]
struct State {
    in_use: usize,
    asleep: bool,
    stop: bool,
}

impl Ticker {
    /// Starts the clock of `engine`.
    pub(crate) fn start(engine: &wasmtime::Engine) -> std::io::Result<Self> {
        let engine = engine.weak();
        Self::start_with(move || match engine.upgrade() {
            Some(engine) => {
                engine.increment_epoch();
                true
            }
            None => false,
        })
    }

    /// Starts a clock that calls `tick` at each step, until `tick` returns false.
    fn start_with(tick: impl FnMut() -> bool + Send + 'static) -> std::io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let ticking = shared.clone();
        std::thread::Builder::new().name("oarlock-epoch".to_owned()).spawn(move || ticking.run(tick))?;
        Ok(Self(shared))
    }

    /// Wakes the clock if it sleeps, and keeps it going until the guard is dropped.
    pub(crate) fn keep(&self) -> Ticking {
        self.0.state.lock().in_use += 1;
        self.0.wake.notify_one();
        Ticking(self.0.clone())
    }
}

impl Shared {
    #[allow(clippy::disallowed_methods, reason = "the thread is the clock, and no round runs on it")]
    fn run(&self, mut tick: impl FnMut() -> bool) {
        while self.sleep_until_in_use() {
            std::thread::sleep(Duration::from_millis(TICK_MS.into()));
            if !tick() {
                return;
            }
        }
    }

    /// Returns true once an instance is in use, and false if the clock must stop.
    fn sleep_until_in_use(&self) -> bool {
        let mut state = self.state.lock();
        while state.in_use == 0 && !state.stop {
            state.asleep = true;
            self.wake.wait(&mut state);
        }
        state.asleep = false;
        !state.stop
    }
}

impl Drop for Ticking {
    fn drop(&mut self) {
        self.0.state.lock().in_use -= 1;
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.0.state.lock().stop = true;
        self.0.wake.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;
    use std::time::Instant;

    use wasmtime::{Config, Engine, Instance, Module, Store, Trap};

    use super::*;

    /// The module `(module (func (export "f") (loop (br 0))))`.
    const ENDLESS: &[u8] = b"\0asm\x01\0\0\0\x01\x04\x01\x60\0\0\x03\x02\x01\0\x07\x05\x01\x01f\0\0\
        \x0a\x09\x01\x07\0\x03\x40\x0c\0\x0b\x0b";
    const PATIENCE: Duration = Duration::from_secs(60);

    fn wait_until(condition: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition() {
            assert!(Instant::now() < deadline, "not within a minute");
            std::thread::yield_now();
        }
    }

    fn asleep(ticker: &Ticker) -> bool {
        ticker.0.state.lock().asleep
    }

    fn counting() -> (Ticker, Arc<AtomicU32>) {
        let ticks = Arc::new(AtomicU32::new(0));
        let count = ticks.clone();
        let ticker = Ticker::start_with(move || {
            count.fetch_add(1, Ordering::SeqCst);
            true
        });
        (ticker.unwrap(), ticks)
    }

    #[test]
    fn the_clock_sleeps_after_the_last_session() {
        let (ticker, ticks) = counting();
        wait_until(|| asleep(&ticker));
        assert_eq!(ticks.load(Ordering::SeqCst), 0);
        for _ in 0..3 {
            let (first, second) = (ticker.keep(), ticker.keep());
            let begun = ticks.load(Ordering::SeqCst);
            wait_until(|| ticks.load(Ordering::SeqCst) > begun + 2);
            drop(first);
            let left = ticks.load(Ordering::SeqCst);
            wait_until(|| ticks.load(Ordering::SeqCst) > left + 2);
            assert!(!asleep(&ticker));
            drop(second);
            let ended = ticks.load(Ordering::SeqCst);
            wait_until(|| asleep(&ticker));
            assert!(ticks.load(Ordering::SeqCst) - ended <= 1);
        }
    }

    #[test]
    fn a_call_that_begins_while_the_clock_sleeps_is_stopped() {
        let engine = Engine::new(Config::new().epoch_interruption(true)).unwrap();
        let module = Module::new(&engine, ENDLESS).unwrap();
        let ticker = Ticker::start(&engine).unwrap();
        let (done, ended) = mpsc::channel();
        std::thread::spawn(move || {
            for _ in 0..3 {
                wait_until(|| asleep(&ticker));
                let _ticking = ticker.keep();
                let mut store = Store::new(&engine, ());
                store.set_epoch_deadline(3);
                let instance = Instance::new(&mut store, &module, &[]).unwrap();
                let endless = instance.get_typed_func::<(), ()>(&mut store, "f").unwrap();
                let error = endless.call(&mut store, ()).unwrap_err();
                done.send(error.downcast_ref::<Trap>().copied()).unwrap();
            }
        });
        for _ in 0..3 {
            assert_eq!(ended.recv_timeout(PATIENCE).unwrap(), Some(Trap::Interrupt));
        }
    }

    #[test]
    fn the_thread_ends_with_the_clock() {
        let (ticker, ticks) = counting();
        drop(ticker.keep());
        drop(ticker);
        // The thread owns the only other reference.
        wait_until(|| Arc::strong_count(&ticks) == 1);
    }
}
