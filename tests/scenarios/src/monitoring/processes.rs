//! Scrapes processes: the address of `/metrics` from their log, and its text.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use oarlock_support::children::Child;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

/// The longest wait for a process or a metric.
const PATIENCE: Duration = Duration::from_secs(120);
/// The words of the log before the address of `/metrics`.
const SERVING: &str = "serving /livez, /readyz and /metrics address=";

/// A process that serves `/metrics`, by its address.
#[derive(Clone, Debug)]
pub struct Scraped(String);

impl Scraped {
    /// Waits until the log of a process names the address. The process must log at the level info.
    ///
    /// # Errors
    /// If the process ends, or does not name the address in time. The error has the end of the log.
    pub async fn of(child: &mut Child) -> anyhow::Result<Self> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let log = child.tail(400);
            let address = log.split_once(SERVING).and_then(|(_, rest)| rest.split_whitespace().next());
            if let Some(address) = address {
                return Ok(Self(address.to_owned()));
            }
            ensure!(child.ended()?.is_none() && Instant::now() < deadline, "it serves no metrics: {log}");
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Returns the text of `/metrics`.
    ///
    /// # Errors
    /// If the process does not answer.
    pub async fn text(&self) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(&self.0).await.context("the process does not answer")?;
        let request = format!("GET /metrics HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", self.0);
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let (_, text) = answer.split_once("\r\n\r\n").context("the answer has no body")?;
        Ok(text.to_owned())
    }

    /// Scrapes until a series is above a value, and returns the text.
    ///
    /// # Errors
    /// If the time is over. The error has the last text.
    pub async fn until_above(&self, series: &str, value: f64) -> anyhow::Result<String> {
        self.until(|text| value_of(text, series).is_some_and(|found| found > value)).await.context(series.to_owned())
    }

    /// Scrapes until a series is zero, and returns the text.
    ///
    /// # Errors
    /// If the time is over. The error has the last text.
    pub async fn until_zero(&self, series: &str) -> anyhow::Result<String> {
        self.until(|text| value_of(text, series) == Some(0.0)).await.context(series.to_owned())
    }

    /// Scrapes until the process leads, each of its parts is ready, and nothing waits for the history. Returns the text.
    ///
    /// # Errors
    /// If the time is over. The error has the last text.
    pub async fn until_calm(&self) -> anyhow::Result<String> {
        let waits = |line: &str| line.starts_with("oarlock_part_ready{") && line.ends_with(" 0");
        self.until(|text| {
            value_of(text, "oarlock_leading") == Some(1.0)
                && value_of(text, "oarlock_history_jobs_waiting").is_none_or(|jobs| jobs == 0.0)
                && !text.lines().any(waits)
        })
        .await
    }

    async fn until(&self, is_so: impl Fn(&str) -> bool) -> anyhow::Result<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = self.text().await?;
            if is_so(&text) {
                return Ok(text);
            }
            ensure!(Instant::now() < deadline, "the time is over:\n{text}");
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Returns the value of a series.
fn value_of(text: &str, series: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}
