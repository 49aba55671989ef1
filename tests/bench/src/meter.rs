//! Measures one contender, which is a process, and the API server that it works against.
//!
//! Takes the process and the cluster; yields what was used and asked for from the start until the contender had written for
//! the last time. That is later than the end of its work: a host still tells of it by events.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};

use crate::ground::{Ground, Tail};
use crate::received::Received;
use crate::requests::{self, Request};
use crate::spread::{as_f64, round};
use crate::usage::{self, Spent, Usage};

/// No write for so long means that there will be none.
const QUIET: Duration = Duration::from_secs(3);
/// How often the requests are read meanwhile.
const READ_EVERY: Duration = Duration::from_millis(100);
/// Longest that a contender may go on to write after its end.
const QUIET_WITHIN: Duration = Duration::from_secs(300);

/// Everything at one moment.
#[derive(Clone)]
struct Sample {
    at: Instant,
    own: Usage,
    api_server: Option<Usage>,
    received: Option<u64>,
}

/// Measures until it is asked.
pub(crate) struct Meter<'a> {
    ground: &'a Ground,
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
    pub(crate) fn start(ground: &'a Ground, process: u32) -> anyhow::Result<Self> {
        let received = Received::by(process);
        let first = sample(ground, process, &received)?;
        let (tail, last) = (ground.tail()?, first.clone());
        Ok(Self { ground, process, received, tail, first, last, requests: Vec::new() })
    }

    /// Takes everything in that has happened so far.
    ///
    /// # Errors
    /// If the process or the API server has ended.
    pub(crate) fn read(&mut self) -> anyhow::Result<()> {
        self.last = sample(self.ground, self.process, &self.received)?;
        self.requests.extend(self.ground.more(&mut self.tail)?);
        Ok(())
    }

    /// Waits until the contender writes no more; measures until it last did.
    ///
    /// # Errors
    /// If it goes on and on.
    pub(crate) async fn until_quiet(&mut self) -> anyhow::Result<()> {
        self.read()?;
        let begun = Instant::now();
        let mut wrote = begun;
        while wrote.elapsed() < QUIET {
            anyhow::ensure!(begun.elapsed() < QUIET_WITHIN, "writes go on {QUIET_WITHIN:?} after the end");
            sleep(READ_EVERY).await;
            let more = self.ground.more(&mut self.tail)?;
            if more.iter().any(Request::is_write) {
                wrote = Instant::now();
                self.last = sample(self.ground, self.process, &self.received)?;
            }
            self.requests.extend(more);
        }
        Ok(())
    }

    /// The contender's requests so far.
    pub(crate) fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// What the contender used so far.
    pub(crate) fn spent(&self) -> Spent {
        self.last.own.since(&self.first.own)
    }

    /// The CPU time that the API server used so far.
    pub(crate) fn api_server_cpu(&self) -> Option<Duration> {
        let (last, first) = (self.last.api_server.as_ref()?, self.first.api_server.as_ref()?);
        Some(last.since(first).cpu)
    }

    /// How long was measured so far.
    pub(crate) fn took(&self) -> Duration {
        self.last.at - self.first.at
    }

    /// All figures, most of them per target.
    ///
    /// # Errors
    /// If the process has ended.
    pub(crate) fn figures(&self, targets: usize) -> anyhow::Result<Map<String, Value>> {
        let per_target = |amount: f64| round(amount / as_f64(targets));
        let spent = self.spent();
        let received = self.last.received.zip(self.first.received).map(|(last, first)| last.saturating_sub(first));
        #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
        let exact = |n: u64| n as f64;
        // The proxy in front of the API in memory counts writes alone.
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

fn sample(ground: &Ground, process: u32, received: &Received) -> anyhow::Result<Sample> {
    let api_server = ground.api_server().map(Usage::of).transpose()?;
    Ok(Sample { at: Instant::now(), own: Usage::of(process)?, api_server, received: received.total() })
}
