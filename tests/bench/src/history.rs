//! The history in the bench of the REST API: a store with rows of jobs that are gone.

use std::path::Path;

use anyhow::Context as _;
use clap::ValueEnum;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_core::ops_job::spec::Defaults;
use oarlock_history::{History, HistoryPlace, JobSnapshot};
use oarlock_support::postgres::Postgres;
use serde_json::json;

/// Rows that are written at once.
const BATCH: usize = 1_000;
/// The time over which the rows are spread. A list looks back this far by default.
const SPREAD: SignedDuration = SignedDuration::from_hours(719);
/// The types of the jobs, in rotation.
const TYPES: [&str; 5] = ["addon", "preflight", "dumplog", "reboot", "exportimage"];

/// The kind of store of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Store {
    /// A file
    Sqlite,
    /// A server that the bench starts
    Postgres,
}

/// A history with rows.
pub(crate) struct Filled {
    /// The address of the store, for a host.
    pub(crate) address: String,
    /// The name of a job in the middle of the history.
    pub(crate) middle: String,
    _server: Option<Postgres>,
}

impl Filled {
    /// Fills a new history with this many jobs that are gone.
    pub(crate) async fn of(store: Store, rows: usize, folder: &Path) -> anyhow::Result<Self> {
        let server = (store == Store::Postgres).then(Postgres::start).transpose()?;
        let address = match &server {
            Some(server) => server.url(),
            None => format!("sqlite:{}", folder.join("filled.db").display()),
        };
        let history = History::at(HistoryPlace::read(&address).map_err(anyhow::Error::msg)?, "local")?;
        let numbers: Vec<usize> = (0..rows).collect();
        for batch in numbers.chunks(BATCH) {
            let jobs = batch.iter().map(|number| gone(*number, rows)).collect::<anyhow::Result<Vec<_>>>()?;
            history.store(&jobs).await?;
        }
        Ok(Self { address, middle: name(rows / 2), _server: server })
    }
}

fn name(number: usize) -> String {
    format!("job-{number:06}-bcdfgh")
}

/// Returns the job with this number, which ended long ago.
fn gone(number: usize, all: usize) -> anyhow::Result<JobSnapshot> {
    let ago = SPREAD / i32::try_from(all)? * i32::try_from(number)?;
    let created = Timestamp::now().checked_sub(ago)?;
    let (ended, deleted) =
        (created.checked_add(SignedDuration::from_mins(5))?, created.checked_add(SignedDuration::from_mins(65))?);
    let kind = TYPES.get(number % TYPES.len()).copied().unwrap_or_default();
    let phase = if number.is_multiple_of(7) { "Failed" } else { "Succeeded" };
    let condition = |kind: &str| {
        json!({"type": kind, "status": "True", "reason": "Started", "message": "the first target has begun",
        "lastTransitionTime": created.to_string()})
    };
    let conditions = ["Pending", "TargetsResolved", "Running", phase].map(condition);
    let document = json!({
        "metadata": {"name": name(number), "uid": format!("{number:08}-0000-4000-8000-000000000000"),
            "creationTimestamp": created.to_string(), "deletionTimestamp": deleted.to_string()},
        "spec": {"type": kind, "jobName": format!("Job {number}"), "workspace": format!("team-{}", number % 50),
            "requester": {"id": format!("u{}", number % 200), "name": format!("user-{}", number % 200)},
            "inputs": [{"name": "node", "value": format!("node-{}", number % 1_000)}],
            "targets": [{"name": format!("node-{}", number % 1_000), "uid": format!("n{}", number % 1_000)}]},
        "status": {"phase": phase, "revision": 6, "startedAt": created.to_string(), "finishedAt": ended.to_string(),
            "conditions": conditions, "outputs": [{"name": "status", "value": "completed"}]},
    });
    JobSnapshot::of(&document, Defaults::default()).context("it is a job")
}
