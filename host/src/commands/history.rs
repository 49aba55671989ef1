//! The flags for the history of OpsJobs.

use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use oarlock_core::ops_job::spec::Defaults;
use oarlock_history::{History, HistoryFailed, HistoryPlace};
use tokio::time::{Instant, sleep, timeout};

use crate::history::{Keeping, Recorder};
use crate::host_place::LOCAL_CLUSTER;

/// The longest time that a starting process waits for the history.
const OPENS_WITHIN: Duration = Duration::from_secs(10);

/// The longest time that a process which ends keeps its file, and the time between two looks.
const RELEASED_WITHIN: Duration = Duration::from_secs(3);
const LOOKS_EACH: Duration = Duration::from_millis(100);

/// The flag with the address of the history.
#[derive(Clone, Debug, Args)]
pub(crate) struct HistoryUrl {
    /// Database with the history: OpsJobs that no longer exist, and the author of each REST request.
    /// postgres://USER:PASSWORD@HOST/DATABASE or sqlite:PATH
    ///
    /// The host creates and migrates the tables. Give the URL by the variable: other users of the machine can see
    /// arguments. [default: history.db in the folder of --data; without a folder, there is no history]
    #[arg(long, value_name = "URL", env = "OARLOCK_HISTORY", hide_env_values = true)]
    history: Option<String>,
}

/// The flags of a host for the history.
#[derive(Clone, Debug, Args)]
pub(crate) struct HistoryArgs {
    #[command(flatten)]
    url: HistoryUrl,
    /// Days to keep a deleted job in the history, from its end; 0 keeps it forever
    #[arg(long, value_name = "DAYS", default_value_t = 365)]
    history_days: u32,
    /// Days to keep the author of each REST request; 0 keeps it forever
    #[arg(long, value_name = "DAYS", default_value_t = 365)]
    audit_days: u32,
    /// After a job ends, keep only the digest and the length of its scripts and variables
    #[arg(long)]
    history_redacts: bool,
}

impl HistoryUrl {
    /// Returns the place of the history, if the flags name one.
    fn place(self, data: Option<&Path>, cluster: Option<&str>) -> anyhow::Result<Option<HistoryPlace>> {
        // Parsed here, because clap would print an invalid value, and the value may hold a password.
        let named = self.history.filter(|text| !text.is_empty()).map(|text| HistoryPlace::read(&text)).transpose();
        let named = named.map_err(|why| anyhow::anyhow!("--history or OARLOCK_HISTORY: {why}"))?;
        let place = named.or_else(|| data.map(HistoryPlace::in_folder));
        if cluster.is_none() && matches!(place, Some(HistoryPlace::Server(_))) {
            bail!("give --cluster-id: two clusters that share a server are told apart by it");
        }
        Ok(place)
    }

    /// Opens the history of this cluster for a server, if the flags name one. Waits for a history that does not answer,
    /// because the host may be about to create it.
    pub(crate) async fn open_as_guest(
        self,
        data: Option<&Path>,
        cluster: Option<&str>,
    ) -> anyhow::Result<Option<History>> {
        let Some(place) = self.place(data, cluster)? else { return Ok(None) };
        let history = History::as_guest(place, cluster.unwrap_or(LOCAL_CLUSTER))?;
        let _said = wait_for(&history).await;
        Ok(Some(history))
    }
}

/// Waits up to [`OPENS_WITHIN`] for the history, and logs that it waits. Returns the error if the history answers with
/// one.
async fn wait_for(history: &History) -> Option<HistoryFailed> {
    let opened = history.clone();
    let opening = tokio::spawn(async move {
        let begun = Instant::now();
        loop {
            match opened.prepare().await {
                Err(HistoryFailed::Taken(_)) if begun.elapsed() < RELEASED_WITHIN => sleep(LOOKS_EACH).await,
                prepared => return prepared,
            }
        }
    });
    match timeout(OPENS_WITHIN, opening).await {
        Ok(Ok(Ok(()))) => None,
        Ok(Ok(Err(failed))) => {
            tracing::warn!(place = %history.place(), error = %failed, "waiting for the history");
            Some(failed)
        }
        _ => {
            tracing::warn!(place = %history.place(), "waiting for the history; the database does not answer");
            None
        }
    }
}

impl HistoryArgs {
    /// Opens the history of this cluster for writing, if the flags name one. A database that does not answer now may
    /// answer later.
    ///
    /// Without a cluster id, the history could not tell this cluster from others that share the database.
    pub(crate) async fn open(self, data: Option<&Path>, cluster: Option<&str>) -> anyhow::Result<Option<Recorder>> {
        let Self { url, history_days, audit_days, history_redacts } = self;
        let Some(place) = url.place(data, cluster)? else { return Ok(None) };
        let history = History::at(place, cluster.unwrap_or(LOCAL_CLUSTER))?;
        if let Some(failed) = wait_for(&history).await.filter(|failed| !failed.may_pass()) {
            return Err(failed.into());
        }
        let days = |days: u32| (days > 0).then(|| Duration::from_secs(u64::from(days) * 24 * 3600));
        let keeping = Keeping { jobs: days(history_days), requests: days(audit_days), redacts: history_redacts };
        Ok(Some(Recorder::new(history, keeping, Defaults::default())))
    }
}
