//! WASI for language runtimes, which denies all access and is deterministic.
//!
//! Clocks show the time of the round and do not advance. Random numbers are the same each time the host repeats a call. A plugin may not
//! open files or sockets, read the environment, or wait. A plugin that sleeps wakes at once.

use wasmtime::component::{HasData, Linker, Resource};
use wasmtime_wasi::p2::bindings::clocks::{monotonic_clock, wall_clock};
use wasmtime_wasi::p2::bindings::random::{insecure, insecure_seed, random};
use wasmtime_wasi::p2::pipe::ClosedOutputStream;
use wasmtime_wasi::p2::{DynPollable, subscribe};
use wasmtime_wasi::{WasiCtxView, WasiView};

use crate::run::guest::Guest;

impl WasiView for Guest {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

/// Marks clocks and random numbers that depend only on the visit.
struct Deterministic;

impl HasData for Deterministic {
    type Data<'a> = DeterministicView<'a>;
}

pub(crate) struct DeterministicView<'a>(&'a mut Guest);

fn deterministic(guest: &mut Guest) -> DeterministicView<'_> {
    DeterministicView(guest)
}

/// Replaces the clocks and the randomness of the system with deterministic ones.
pub(crate) fn link_deterministic(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    wall_clock::add_to_linker::<_, Deterministic>(linker, deterministic)?;
    monotonic_clock::add_to_linker::<_, Deterministic>(linker, deterministic)?;
    random::add_to_linker::<_, Deterministic>(linker, deterministic)?;
    insecure::add_to_linker::<_, Deterministic>(linker, deterministic)?;
    insecure_seed::add_to_linker::<_, Deterministic>(linker, deterministic)?;
    linker.allow_shadowing(false);
    Ok(())
}

impl wall_clock::Host for DeterministicView<'_> {
    fn now(&mut self) -> wasmtime::Result<wall_clock::Datetime> {
        let now = self.0.now_ms;
        Ok(wall_clock::Datetime { seconds: now / 1000, nanoseconds: (now % 1000) as u32 * 1_000_000 })
    }

    fn resolution(&mut self) -> wasmtime::Result<wall_clock::Datetime> {
        Ok(wall_clock::Datetime { seconds: 0, nanoseconds: 1_000_000 })
    }
}

impl monotonic_clock::Host for DeterministicView<'_> {
    fn now(&mut self) -> wasmtime::Result<u64> {
        Ok(0)
    }

    fn resolution(&mut self) -> wasmtime::Result<u64> {
        Ok(1_000_000)
    }

    fn subscribe_instant(&mut self, _when: u64) -> wasmtime::Result<Resource<DynPollable>> {
        self.ready()
    }

    fn subscribe_duration(&mut self, _duration: u64) -> wasmtime::Result<Resource<DynPollable>> {
        self.ready()
    }
}

impl DeterministicView<'_> {
    /// Returns a pollable that is ready at once. The clocks are frozen, so no time passes for which a plugin could wait.
    fn ready(&mut self) -> wasmtime::Result<Resource<DynPollable>> {
        self.0.meter.host_call(1).map_err(wasmtime::Error::new)?;
        let closed = self.0.table.push(ClosedOutputStream)?;
        subscribe(&mut self.0.table, closed)
    }
}

impl random::Host for DeterministicView<'_> {
    fn get_random_bytes(&mut self, len: u64) -> wasmtime::Result<Vec<u8>> {
        self.0.random().bytes(len)
    }

    fn get_random_u64(&mut self) -> wasmtime::Result<u64> {
        Ok(self.0.random().next())
    }
}

impl insecure::Host for DeterministicView<'_> {
    fn get_insecure_random_bytes(&mut self, len: u64) -> wasmtime::Result<Vec<u8>> {
        self.0.random().bytes(len)
    }

    fn get_insecure_random_u64(&mut self) -> wasmtime::Result<u64> {
        Ok(self.0.random().next())
    }
}

impl insecure_seed::Host for DeterministicView<'_> {
    fn insecure_seed(&mut self) -> wasmtime::Result<(u64, u64)> {
        Ok((self.0.random().next(), self.0.random().next()))
    }
}
