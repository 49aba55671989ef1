//! Follows a dumplog to its end, and prints the lines that it collected.

use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use oarlock_view::{JobView, Watched as _, escaped};
use serde_json::Value;
use tokio::fs::File;
use tokio::io::{AsyncWrite, AsyncWriteExt as _, stdout};
use tokio::time::{Duration, sleep};

use super::server::Server;

/// The time between two requests for the job's progress.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Follows a dumplog to its end, then writes its lines to a file or prints them. Writes the progress to standard error.
pub(super) async fn print_logs(server: &Server, id: &str, file: Option<PathBuf>) -> anyhow::Result<ExitCode> {
    let mut told = String::new();
    let job = loop {
        let job = server.job(id).await?;
        if job.pointer("/spec/type").and_then(Value::as_str) != Some("dumplog") {
            bail!("{} is no dumplog: oarlock ops get {0} shows what it has found", escaped(id));
        }
        if JobView::of_ops(&job, None).has_ended() {
            break job;
        }
        let now = far(&job);
        if now != told {
            eprintln!("{now}");
            told = now;
        }
        sleep(ASK_EVERY).await;
    };
    for (name, words) in [("missing", "their logs could not be read"), ("maybeRotated", "older lines are likely lost")]
    {
        if let Some(value) = output(&job, name).filter(|value| *value != "[]") {
            eprintln!("{words}: {}", escaped(value));
        }
    }
    let Some(address) = output(&job, "endpoint").filter(|address| address.starts_with("http")) else {
        let why = output(&job, "endpoint").filter(|why| !why.is_empty());
        bail!(
            "{} has no logs that you may read{}",
            escaped(id),
            why.map(|why| format!(": {}", escaped(why))).unwrap_or_default()
        );
    };
    match file {
        Some(path) => {
            let mut into = File::create(&path).await.with_context(|| format!("cannot write {}", path.display()))?;
            copy(server, address, &mut into).await?;
        }
        None => copy(server, address, &mut stdout()).await?,
    }
    Ok(if JobView::of_ops(&job, None).has_succeeded() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the progress of a job in one line.
fn far(job: &Value) -> String {
    let done = job.pointer("/status/progress/done").and_then(Value::as_str).unwrap_or("0");
    let waits = job.pointer("/status/waitingFor/0").and_then(Value::as_str);
    let waits = waits.map(|waits| format!(", {}", escaped(waits))).unwrap_or_default();
    format!("collecting the logs of pods: {}{waits}", escaped(done))
}

fn output<'a>(job: &'a Value, name: &str) -> Option<&'a str> {
    let outputs = job.pointer("/status/outputs")?.as_array()?;
    outputs.iter().find(|output| output.get("name").is_some_and(|own| own == name))?.get("value")?.as_str()
}

async fn copy(server: &Server, address: &str, into: &mut (impl AsyncWrite + Unpin)) -> anyhow::Result<()> {
    let mut pieces = server.file(address).await?;
    while let Some(piece) = pieces.next().await? {
        match into.write_all(&piece).await {
            // The reader of the output has gone.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            written => written.context("cannot write the logs")?,
        }
    }
    into.flush().await.context("cannot write the logs")?;
    std::io::stderr().flush().context("cannot write the logs")
}
