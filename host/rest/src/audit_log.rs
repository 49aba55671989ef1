//! The rows of requests that would change something, where there is a history. Source: docs/opsjob-rest.md 8.
//!
//! What makes a job waits until its row is there: who made what is known, whatever becomes of this process. Everything else is written
//! when that can be, and is in the log before.

use std::time::Duration;

use oarlock_core::ops_job::refusal::{Code, OpsRefusal};
use oarlock_history::{AuditRow, History, HistoryFailed};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

/// Rows that may wait, and how many are written at once.
const WAITING: usize = 1_000;
const BATCH: usize = 100;
/// Longest time that a request waits for its row.
const WRITTEN_WITHIN: Duration = Duration::from_secs(5);
/// The time after which a history that did not answer is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Takes rows.
#[derive(Clone)]
pub(crate) struct AuditLog(mpsc::Sender<Entry>);

struct Entry {
    row: AuditRow,
    /// Who waits for it.
    written: Option<oneshot::Sender<()>>,
}

impl AuditLog {
    /// Writes into this history, as long as the process lives.
    pub(crate) fn of(history: History) -> Self {
        let (sender, entries) = mpsc::channel(WAITING);
        tokio::spawn(write(history, entries));
        Self(sender)
    }

    /// Writes a row and waits for it.
    pub(crate) async fn begin(&self, row: AuditRow) -> Result<(), OpsRefusal> {
        let down = || {
            let words = "the history does not answer, so who asks for this could not be recorded; try again";
            OpsRefusal::new(Code::Unreachable, words).after(1)
        };
        let (written, done) = oneshot::channel();
        self.0.try_send(Entry { row, written: Some(written) }).map_err(|_| down())?;
        timeout(WRITTEN_WITHIN, done).await.map_err(|_| down())?.map_err(|_| down())
    }

    /// Has a row written when that can be.
    pub(crate) fn end(&self, row: AuditRow) {
        // Whoever makes a job has the last places.
        let has_place = self.0.capacity() > WAITING / 4;
        if !has_place || self.0.try_send(Entry { row, written: None }).is_err() {
            tracing::warn!("a request has no row in the history; its line in the log is all");
        }
    }
}

/// One row that is refused costs no other one.
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
        // Whoever waited too long is not there any more.
        batch.drain(..).filter_map(|entry| entry.written).for_each(|written| {
            let _gone = written.send(());
        });
    }
}
