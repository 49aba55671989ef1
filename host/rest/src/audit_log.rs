//! Writes audit rows into the history, if there is a history. Source: docs/opsjob-rest.md 8.
//!
//! A request that makes a job waits until its row is written. So the requester of every job is known, even if this process is killed. All
//! other rows are written later, and their requests are in the log before.

use std::time::Duration;

use oarlock_core::ops_job::refusal::{Code, OpsRefusal};
use oarlock_history::{AuditRow, History, HistoryFailed};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

/// The most rows that may wait, and the most rows of one write.
const WAITING: usize = 1_000;
const BATCH: usize = 100;
/// The longest time that a request waits for its row.
const WRITTEN_WITHIN: Duration = Duration::from_secs(5);
/// The wait before the next try after the history did not answer.
const AGAIN: Duration = Duration::from_secs(1);

/// The queue of audit rows.
#[derive(Clone)]
pub(crate) struct AuditLog(mpsc::Sender<Entry>);

struct Entry {
    row: AuditRow,
    /// The channel of the request that waits for this row.
    written: Option<oneshot::Sender<()>>,
}

impl AuditLog {
    /// Starts a task that writes rows into this history until the process ends.
    pub(crate) fn of(history: History) -> Self {
        let (sender, entries) = mpsc::channel(WAITING);
        tokio::spawn(write(history, entries));
        Self(sender)
    }

    /// Writes a row and waits until the row is stored.
    pub(crate) async fn begin(&self, row: AuditRow) -> Result<(), OpsRefusal> {
        let down = || {
            let message = "failed to record the author of the request: the history does not answer; try again";
            OpsRefusal::new(Code::Unreachable, message).after(1)
        };
        let (written, done) = oneshot::channel();
        self.0.try_send(Entry { row, written: Some(written) }).map_err(|_| down())?;
        timeout(WRITTEN_WITHIN, done).await.map_err(|_| down())?.map_err(|_| down())
    }

    /// Queues a row. No request waits for it.
    pub(crate) fn end(&self, row: AuditRow) {
        // The last quarter of the queue is reserved for requests that make jobs.
        let has_place = self.0.capacity() > WAITING / 4;
        if !has_place || self.0.try_send(Entry { row, written: None }).is_err() {
            tracing::warn!("a request has no row in the history; its line in the log is all");
        }
    }
}

/// Writes each row on its own, so that a row that the history refuses costs no other row.
async fn one_by_one(history: &History, rows: &[AuditRow]) {
    for row in rows {
        if let Err(failed) = history.note(std::slice::from_ref(row)).await {
            tracing::warn!(error = %failed, request = row.request_id, "a request has no row in the history");
        }
    }
}

async fn write(history: History, mut entries: mpsc::Receiver<Entry>) {
    let (mut batch, mut is_down) = (Vec::new(), false);
    while entries.recv_many(&mut batch, BATCH).await > 0 {
        let rows: Vec<AuditRow> = batch.iter().map(|entry| entry.row.clone()).collect();
        while let Err(failed) = history.note(&rows).await {
            if let HistoryFailed::Refused(_) = failed {
                one_by_one(&history, &rows).await;
                break;
            }
            if !is_down {
                tracing::warn!(error = %failed, "requests are not written into the history");
            }
            is_down = true;
            sleep(AGAIN).await;
        }
        is_down = false;
        // A request that timed out no longer listens.
        batch.drain(..).filter_map(|entry| entry.written).for_each(|written| {
            let _gone = written.send(());
        });
    }
}
