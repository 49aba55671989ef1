//! WASI for language runtimes, with everything denied and nothing random.
//!
//! Clocks show the round's time and do not advance; random numbers are the same each time a call is repeated. May not
//! open files or sockets, read the environment, or wait: a plugin that sleeps is woken at once.

use sha2::{Digest, Sha256};
use wasmtime::component::{HasData, Linker, Resource};
use wasmtime_wasi::p2::bindings::clocks::{monotonic_clock, wall_clock};
use wasmtime_wasi::p2::bindings::random::{insecure, insecure_seed, random};
use wasmtime_wasi::p2::pipe::ClosedOutputStream;
use wasmtime_wasi::p2::{DynPollable, subscribe};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

use crate::run::guest::Guest;
use crate::run::limits::LimitExceeded;
use crate::run::output_pipe::OutputPipe;

/// The most random bytes in one call; a hash map needs 16.
const RANDOM_BYTES: u64 = 64 * 1024;

/// A context that denies everything but to print.
pub(crate) fn denied(stdout: &OutputPipe, stderr: &OutputPipe) -> WasiCtx {
    let mut builder = WasiCtx::builder();
    builder.stdout(stdout.clone()).stderr(stderr.clone());
    builder.allow_tcp(false).allow_udp(false).allow_ip_name_lookup(false).build()
}

/// Random numbers that depend on the seed alone (SplitMix64). Not for secrets.
pub(crate) struct SeededRandom(u64);

impl SeededRandom {
    /// The random numbers of one attempt at one target of one job.
    pub(crate) fn new(job_uid: &str, target: &str, attempt: u32) -> Self {
        let digest = Sha256::digest(format!("{job_uid}\n{target}\n{attempt}"));
        let first = digest.iter().take(8).fold(0, |seed, byte| (seed << 8) | u64::from(*byte));
        Self(first)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn bytes(&mut self, len: u64) -> wasmtime::Result<Vec<u8>> {
        if len > RANDOM_BYTES {
            let sentence = format!("it asked for more than {RANDOM_BYTES} random bytes at once");
            return Err(wasmtime::Error::new(LimitExceeded(sentence)));
        }
        let words = len.div_ceil(8);
        Ok((0..words).flat_map(|_| self.next().to_le_bytes()).take(len as usize).collect())
    }
}

impl WasiView for Guest {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

/// Clocks and randomness that depend on the visit alone.
struct Deterministic;

impl HasData for Deterministic {
    type Data<'a> = DeterministicView<'a>;
}

pub(crate) struct DeterministicView<'a>(&'a mut Guest);

fn deterministic(guest: &mut Guest) -> DeterministicView<'_> {
    DeterministicView(guest)
}

/// Replaces the clocks and the randomness of the system by deterministic ones.
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
    /// A pollable that is ready at once: the clocks are frozen, so no time can pass that a plugin could wait for.
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
