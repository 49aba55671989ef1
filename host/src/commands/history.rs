//! Where the history of OpsJobs is, as flags name it.

use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use oarlock_core::ops_job::spec::Defaults;
use oarlock_history::{History, HistoryFailed, HistoryPlace};
use tokio::time::timeout;

use crate::history::{Keeping, Recorder};
use crate::ops_job::LOCAL_CLUSTER;

/// Longest time that the start of a host waits for it.
const OPENS_WITHIN: Duration = Duration::from_secs(10);

/// Where the history is.
#[derive(Clone, Debug, Args)]
pub(crate) struct HistoryUrl {
    /// Where OpsJobs that are gone stay known, and who asked for what by REST: postgres://USER:PASSWORD@HOST/DATABASE or sqlite:PATH
    ///
    /// Its tables are made and changed by the host itself. Give it by the variable: an argument is seen by whoever sees processes.
    /// [default: history.db in the folder of --data; without one, what is gone is unknown]
    #[arg(long, value_name = "URL", env = "OARLOCK_HISTORY", hide_env_values = true)]
    history: Option<String>,
}

/// The history of a host.
#[derive(Clone, Debug, Args)]
pub(crate) struct HistoryArgs {
    #[command(flatten)]
    url: HistoryUrl,
    /// Days from its end on which a job that is gone stays known; 0 is for ever
    #[arg(long, value_name = "DAYS", default_value_t = 365)]
    history_days: u32,
    /// Days for which it is known who asked for what; 0 is for ever
    #[arg(long, value_name = "DAYS", default_value_t = 365)]
    audit_days: u32,
    /// Keep the digest and the length of scripts and variables of a job that has ended, in place of them
    #[arg(long)]
    history_redacts: bool,
}

impl HistoryUrl {
    /// The place, where there is one.
    fn place(self, data: Option<&Path>, cluster: Option<&str>) -> anyhow::Result<Option<HistoryPlace>> {
        // The parser of arguments would show a text that may have a password.
        let named = self.history.filter(|text| !text.is_empty()).map(|text| HistoryPlace::read(&text)).transpose();
        let named = named.map_err(|why| anyhow::anyhow!("--history or OARLOCK_HISTORY: {why}"))?;
        let place = named.or_else(|| data.map(HistoryPlace::in_folder));
        if cluster.is_none() && matches!(place, Some(HistoryPlace::Server(_))) {
            bail!("give --cluster-id: two clusters that share a server are told apart by it");
        }
        Ok(place)
    }

    /// The history of this cluster as a server uses it, where there is one. A history that has no answer is waited for: the host may be
    /// about to make it.
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

/// Waits a while for the history, and says what it waits for. Yields why there is no answer, where that is known.
async fn wait_for(history: &History) -> Option<HistoryFailed> {
    let opened = history.clone();
    let opening = tokio::spawn(async move { opened.prepare().await });
    match timeout(OPENS_WITHIN, opening).await {
        Ok(Ok(Ok(()))) => None,
        Ok(Ok(Err(failed))) => {
            tracing::warn!(place = %history.place(), error = %failed, "waiting for the history");
            Some(failed)
        }
        _ => {
            tracing::warn!(place = %history.place(), "waiting for the history, which does not answer");
            None
        }
    }
}

impl HistoryArgs {
    /// What writes the history of this cluster, where there is one. A server that does not answer is waited for later. Without its id, a
    /// cluster is not told from others that may share a server.
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
