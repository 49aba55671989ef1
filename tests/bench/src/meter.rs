//! Measures one contender, which is a process, and the API server that it works against.
//!
//! It measures usage and requests from the start until the contender's last write. That is later than the end of its work, because
//! a host still writes events.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};

use crate::backend::{Backend, Tail};
use crate::received::Received;
use crate::requests::{self, Request};
use crate::spread::{as_f64, round};
use crate::usage::{self, Spent, Usage};

/// The time without a write after which the bench expects none.
const QUIET: Duration = Duration::from_secs(3);
/// The time between two reads of the requests.
const READ_EVERY: Duration = Duration::from_millis(100);
/// How long a contender may continue to write after its end.
const QUIET_WITHIN: Duration = Duration::from_secs(300);

/// All usage at one moment.
#[derive(Clone)]
struct Sample {
    at: Instant,
    own: Usage,
    api_server: Option<Usage>,
    received: Option<u64>,
}

/// A running measurement of one contender.
pub(crate) struct Meter<'a> {
    backend: &'a Backend,
    process: u32,
    received: Received,
    tail: Tail,
    first: Sample,
    last: Sample,
    requests: Vec<Request>,
}

impl<'a> Meter<'a> {
    /// Measures `process` from now on.
    ///
    /// # Errors
    /// If the process or the API server has ended.
    pub(crate) fn start(backend: &'a Backend, process: u32) -> anyhow::Result<Self> {
        let received = Received::by(process);
        let first = sample(backend, process, &received)?;
        let (tail, last) = (backend.tail()?, first.clone());
        Ok(Self { backend, process, received, tail, first, last, requests: Vec::new() })
    }

    /// Takes a new sample and reads the requests so far.
    ///
    /// # Errors
    /// If the process or the API server has ended.
    pub(crate) fn read(&mut self) -> anyhow::Result<()> {
        self.last = sample(self.backend, self.process, &self.received)?;
        self.requests.extend(self.backend.more(&mut self.tail)?);
        Ok(())
    }

    /// Waits until the contender stops writing. The measurement ends at its last write.
    ///
    /// # Errors
    /// If the contender does not stop writing.
    pub(crate) async fn until_quiet(&mut self) -> anyhow::Result<()> {
        self.read()?;
        let begun = Instant::now();
        let mut wrote = begun;
        while wrote.elapsed() < QUIET {
            anyhow::ensure!(begun.elapsed() < QUIET_WITHIN, "writes go on {QUIET_WITHIN:?} after the end");
            sleep(READ_EVERY).await;
            let more = self.backend.more(&mut self.tail)?;
            if more.iter().any(Request::is_write) {
                wrote = Instant::now();
                self.last = sample(self.backend, self.process, &self.received)?;
            }
            self.requests.extend(more);
        }
        Ok(())
    }

    /// Returns the contender's requests so far.
    pub(crate) fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Returns the contender's usage so far.
    pub(crate) fn spent(&self) -> Spent {
        self.last.own.since(&self.first.own)
    }

    /// Returns the API server's CPU time so far.
    pub(crate) fn api_server_cpu(&self) -> Option<Duration> {
        let (last, first) = (self.last.api_server.as_ref()?, self.first.api_server.as_ref()?);
        Some(last.since(first).cpu)
    }

    /// Returns the measured time so far.
    pub(crate) fn took(&self) -> Duration {
        self.last.at - self.first.at
    }

    /// Returns all figures, most of them per target.
    ///
    /// # Errors
    /// If the process has ended.
    pub(crate) fn figures(&self, targets: usize) -> anyhow::Result<Map<String, Value>> {
        let per_target = |amount: f64| round(amount / as_f64(targets));
        let spent = self.spent();
        let received = self.last.received.zip(self.first.received).map(|(last, first)| last.saturating_sub(first));
        #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
        let exact = |n: u64| n as f64;
        // The proxy in front of the in-memory API counts only writes.
        let requests = self.last.api_server.as_ref().map(|_| per_target(as_f64(requests::all(&self.requests))));
        let pause = requests::longest_pause(&self.requests);
        let figures = json!({
            "cpuMillisecondsPerTarget": per_target(spent.cpu.as_secs_f64() * 1000.0),
            "apiServerCpuMillisecondsPerTarget": self.api_server_cpu().map(|cpu| per_target(cpu.as_secs_f64() * 1000.0)),
            "wakeUpsPerTarget": per_target(exact(spent.wake_ups)),
            "kibReceivedPerTarget": received.map(|bytes| per_target(exact(bytes) / 1024.0)),
            "requestsPerTarget": requests,
            "writesPerTarget": per_target(as_f64(requests::writes(&self.requests))),
            "actsPerTarget": per_target(as_f64(requests::acts(&self.requests))),
            "conflictsPercent": requests::conflicts_percent(&self.requests),
            "longestPauseSeconds": pause.map(|(seconds, _)| seconds),
            "longestPauseAfterSeconds": pause.map(|(_, after)| after),
            "peakRssMib": round(exact(usage::peak_rss_kib(self.process)?) / 1024.0),
            "writes": requests::by_kind(&self.requests, targets),
        });
        Ok(match figures {
            Value::Object(figures) => figures,
            _ => Map::new(),
        })
    }
}

fn sample(backend: &Backend, process: u32, received: &Received) -> anyhow::Result<Sample> {
    let api_server = backend.api_server().map(Usage::of).transpose()?;
    Ok(Sample { at: Instant::now(), own: Usage::of(process)?, api_server, received: received.total() })
}
