//! Stores the history in a database. The first use opens the database, and every query has a timeout.

use std::fs::File;
use std::str::FromStr as _;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use oarlock_core::ops_job::gone::GoneBy;
use oarlock_core::ops_job::phases::{OpsStatus, Phase, PhaseReason};
use serde_json::Value;
use sqlx::any::{Any, AnyConnectOptions, AnyPoolOptions, AnyRow};
use sqlx::pool::PoolConnection;
use sqlx::{AnyConnection, AnyPool, ConnectOptions as _, Connection as _, Executor as _, Row as _};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout, timeout_at};

use crate::audit::AuditRow;
use crate::failed::HistoryFailed;
use crate::filter::{JobFilter, Window};
use crate::place::HistoryPlace;
use crate::query::{Dialect, Statement};
use crate::row::{GoneJob, JobRow, JobSnapshot, NEVER, millis, time};
use crate::schema::{Migrations, POSTGRES, SQLITE, applied, migrate, take};

/// The longest time for an answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// The longest time for the migrations, which may rewrite a table.
const MIGRATES_WITHIN: Duration = Duration::from_secs(600);
/// The most concurrent lists, and the most concurrent reads of one job. A list may count many rows, so reads of one job have connections of
/// their own.
const LISTS: u32 = 3;
const JOBS: u32 = 2;
/// The idle time after which a connection is pinged before its next use. The server behind it may be another one by now.
const TRIED_AFTER: Duration = Duration::from_secs(1);
/// How long a guest relies on its last check of the schema version.
const TABLES_SEEN: Duration = Duration::from_secs(10);
/// The most rows that one statement removes.
const BATCH: i64 = 500;
/// The most whole rows that are read at once. Each row may have a megabyte.
const LOST: i64 = 20;
/// The columns of a list.
const COLUMNS: &str = "uid, job_id, job_name, workspace_id, user_id, user_name, type, phase, created, started, ended, deleted, gone_by, timeout, seq";

/// The history of OpsJobs and requests. Clones share it.
#[derive(Clone)]
pub struct History(Arc<Parts>);

struct Parts {
    place: HistoryPlace,
    dialect: Dialect,
    cluster: String,
    migrations: &'static Migrations,
    options: AnyConnectOptions,
    lists: AnyPool,
    jobs: AnyPool,
    /// The pool of the writer. It has one connection, because a SQLite file has one writer.
    writes: AnyPool,
    /// Set once the tables exist. For a file, it holds the lock of the file.
    ready: OnceLock<Option<File>>,
    /// The time when a guest last saw tables of its version. `None` for a host.
    guest: Option<parking_lot::Mutex<Option<Instant>>>,
    /// Held while the tables are prepared.
    opens: Mutex<()>,
}

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Reads one job.
    Job,
    /// Reads many rows.
    List,
    Write,
    /// Changes tables, which may take long.
    Migrate,
}

impl History {
    /// Returns the history of a cluster at a place. It does not connect yet.
    ///
    /// # Errors
    /// If the address of the place is invalid.
    pub fn at(place: HistoryPlace, cluster: &str) -> Result<Self, HistoryFailed> {
        Self::open(place, cluster, None)
    }

    /// Returns the history for a server beside the host. A guest reads rows and writes audit rows. It makes no tables, removes nothing and
    /// takes no lock. It fails while the tables are of another version.
    ///
    /// # Errors
    /// If the address of the place is invalid.
    pub fn as_guest(place: HistoryPlace, cluster: &str) -> Result<Self, HistoryFailed> {
        Self::open(place, cluster, Some(parking_lot::Mutex::default()))
    }

    fn open(
        place: HistoryPlace,
        cluster: &str,
        guest: Option<parking_lot::Mutex<Option<Instant>>>,
    ) -> Result<Self, HistoryFailed> {
        sqlx::any::install_default_drivers();
        let dialect = match &place {
            HistoryPlace::File(_) => Dialect::Sqlite,
            HistoryPlace::Server(_) => Dialect::Postgres,
        };
        let options = AnyConnectOptions::from_str(&place.address(guest.is_some()));
        let options = options.map_err(|error| HistoryFailed::Unusable(error.to_string()))?.disable_statement_logging();
        let migrations = match dialect {
            Dialect::Sqlite => SQLITE,
            Dialect::Postgres => POSTGRES,
        };
        let [jobs, lists, writes] = [Use::Job, Use::List, Use::Write].map(|way| pool(&options, dialect, way));
        let (cluster, ready, opens) = (cluster.to_owned(), OnceLock::new(), Mutex::new(()));
        Ok(Self(Arc::new(Parts {
            place,
            dialect,
            cluster,
            migrations,
            options,
            lists,
            jobs,
            writes,
            ready,
            guest,
            opens,
        })))
    }

    /// Returns the place of the history. Its display omits the password.
    pub fn place(&self) -> &HistoryPlace {
        &self.0.place
    }

    /// Opens the database and migrates its tables, unless that is done. All other methods call this too. A call during another call fails
    /// at once with [`HistoryFailed::Down`].
    ///
    /// # Errors
    /// If the database cannot be used. See [`HistoryFailed::may_pass`].
    pub async fn prepare(&self) -> Result<(), HistoryFailed> {
        let parts = &self.0;
        if let Some(seen) = &parts.guest {
            return self.look_at_tables(seen).await;
        }
        if parts.ready.get().is_some() {
            return Ok(());
        }
        let Ok(_opens) = parts.opens.try_lock() else {
            return Err(HistoryFailed::Down("it is not open yet".to_owned()));
        };
        if parts.ready.get().is_some() {
            return Ok(());
        }
        let lock = match &parts.place {
            HistoryPlace::File(path) => Some(take(path)?),
            HistoryPlace::Server(_) => None,
        };
        // The pool is closed after the migration, because a failed migration may keep a lock on its connection.
        let pool = pool(&parts.options, parts.dialect, Use::Migrate);
        let made =
            timeout(MIGRATES_WITHIN, parts.make_tables(&pool)).await.unwrap_or_else(|_| Err(late(MIGRATES_WITHIN)));
        let _ = timeout(ANSWERS_WITHIN, pool.close()).await;
        made?;
        let _ = parts.ready.set(lock);
        Ok(())
    }

    /// Refuses tables of another version. A host may change the version at any time.
    async fn look_at_tables(&self, seen: &parking_lot::Mutex<Option<Instant>>) -> Result<(), HistoryFailed> {
        if seen.lock().is_some_and(|since| since.elapsed() < TABLES_SEEN) {
            return Ok(());
        }
        let known = self.0.migrations.last().map_or(0, |(version, ..)| *version);
        let mut connected = self.connect(Use::Job).await?;
        let (until, connection) = connected.parts();
        let found = answered(until, applied(connection)).await;
        match connected.handed_back(found)? {
            found if found < known => Err(HistoryFailed::Older { found, known }),
            found if found > known => Err(HistoryFailed::Newer { found, known }),
            _ => {
                *seen.lock() = Some(Instant::now());
                Ok(())
            }
        }
    }

    /// Takes a connection for a purpose.
    async fn connect(&self, way: Use) -> Result<Connected, HistoryFailed> {
        let until = Instant::now() + ANSWERS_WITHIN;
        let taken = timeout_at(until, self.0.pool(way).acquire()).await;
        Ok(Connected { connection: taken.map_err(|_| late(ANSWERS_WITHIN))??, until })
    }

    /// Stores the current state of jobs. A row changes only to a higher revision. Once its job has ended, only its deletion time and reason
    /// change.
    ///
    /// # Errors
    /// If the database refuses the rows, or does not confirm them in time.
    pub async fn store(&self, jobs: &[JobSnapshot]) -> Result<(), HistoryFailed> {
        self.prepare().await?;
        let mut connected = self.connect(Use::Write).await?;
        let (until, connection) = connected.parts();
        let stored = answered(until, async {
            let mut transaction = connection.begin().await?;
            for job in jobs {
                store(&mut transaction, &self.0.cluster, job).await?;
            }
            Ok(transaction.commit().await?)
        });
        let stored = stored.await;
        connected.handed_back(stored)
    }

    /// Returns the newest job of this name.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn job(&self, job_id: &str) -> Result<Option<GoneJob>, HistoryFailed> {
        let mut statement = whole_rows();
        let (cluster, id) = (statement.text(&self.0.cluster), statement.text(job_id));
        statement.push(&format!(
            " WHERE cluster_id = {cluster} AND job_id = {id} ORDER BY created DESC, seq DESC, uid DESC LIMIT 1"
        ));
        self.prepare().await?;
        let mut connected = self.connect(Use::Job).await?;
        let (until, connection) = connected.parts();
        let row = answered(until, async { Ok(statement.query().fetch_optional(connection).await?) }).await;
        connected.handed_back(row)?.as_ref().map(gone_job).transpose()
    }

    /// Returns the number of deleted jobs that a filter matches, and a window of them. Jobs with a UID in `live` do not count: they still
    /// exist, and the cluster knows their state.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn page(
        &self,
        filter: &JobFilter,
        live: &[&str],
        window: &Window,
    ) -> Result<(usize, Vec<JobRow>), HistoryFailed> {
        let Parts { dialect, cluster, .. } = &*self.0;
        let mut all = Statement::new("SELECT COUNT(*) AS total FROM ops_job");
        all.and_filtered(cluster, filter);
        all.and_none_of(*dialect, live);
        let mut rows = Statement::new(&format!("SELECT {COLUMNS} FROM ops_job"));
        rows.and_filtered(cluster, filter);
        rows.and_none_of(*dialect, live);
        let order = if window.is_ascending { "ASC" } else { "DESC" };
        let columns = window.sort.column().into_iter().chain(["created", "seq", "uid"]);
        let by: Vec<String> = columns.map(|column| format!("{column} {order}")).collect();
        let [limit, offset] =
            [window.limit, window.offset].map(|number| rows.number(i64::try_from(number).unwrap_or(NEVER)));
        rows.push(&format!(" ORDER BY {} LIMIT {limit} OFFSET {offset}", by.join(", ")));

        self.prepare().await?;
        let mut connected = self.connect(Use::List).await?;
        let (until, connection) = connected.parts();
        let found = answered(until, async {
            // The transaction lets both queries see the same state of the tables.
            let mut transaction = connection.begin_with(dialect.one_state()).await?;
            let found = match window.limit {
                0 => Vec::new(),
                _ => rows.query().fetch_all(&mut *transaction).await?,
            };
            let count = match window.total_if_last(found.len()) {
                Some(total) => total,
                None => {
                    let total: i64 = all.query().fetch_one(&mut *transaction).await?.try_get("total")?;
                    usize::try_from(total).unwrap_or(0)
                }
            };
            transaction.commit().await?;
            let found = found.iter().map(job_row).collect::<Result<Vec<_>, _>>()?;
            Ok((count, found))
        });
        let found = found.await;
        connected.handed_back(found)
    }

    /// Closes the rows of jobs that are no longer in the cluster and whose deletion no host saw. `live` are the UIDs of all jobs at the
    /// time `listed`. A job that had not ended becomes failed. With `redacts`, its scripts and variables are replaced by digests.
    ///
    /// # Errors
    /// If the database does not confirm the changes.
    pub async fn close_lost(&self, live: &[&str], listed: Timestamp, redacts: bool) -> Result<usize, HistoryFailed> {
        let Parts { dialect, cluster, .. } = &*self.0;
        let of_lost = |statement: &mut Statement, has_ended: bool| {
            let (own, never) = (statement.text(cluster), statement.number(NEVER));
            let ended = if has_ended { "<>" } else { "=" };
            // The list does not cover jobs that were made after it, even if this call comes late.
            let listed = statement.number(millis(Some(listed)));
            statement.push(&format!(
                " WHERE cluster_id = {own} AND deleted = {never} AND ended {ended} {never} AND created <= {listed}"
            ));
            statement.and_none_of(*dialect, live);
        };
        let mut ended = Statement::new("UPDATE ops_job SET deleted = ");
        let deleted = ended.number(millis(Some(listed)));
        ended.push(&deleted);
        of_lost(&mut ended, true);
        let mut closed = usize::try_from(self.change(&ended).await?).unwrap_or(0);
        // Rows from a host of an earlier version lack the reason too.
        self.change(&Statement::why_gone(*dialect, cluster)).await?;

        let mut others = whole_rows();
        of_lost(&mut others, false);
        others.push(&format!(" LIMIT {LOST}"));
        loop {
            let mut connected = self.connect(Use::List).await?;
            let (until, connection) = connected.parts();
            let rows = answered(until, async { Ok(others.query().fetch_all(connection).await?) }).await;
            let rows = connected.handed_back(rows)?;
            let lost = rows.iter().map(|row| lost(row, listed)).collect::<Result<Vec<_>, _>>()?;
            if lost.is_empty() {
                return Ok(closed);
            }
            closed = closed.saturating_add(lost.len());
            self.store(&if redacts { lost.into_iter().map(JobSnapshot::redacted).collect() } else { lost }).await?;
        }
    }

    /// Removes the rows of jobs that ended before this time and are gone from the cluster, at most a few hundred. Returns the number of
    /// removed rows.
    ///
    /// # Errors
    /// If the database does not confirm the removal.
    pub async fn purge(&self, before: Timestamp) -> Result<u64, HistoryFailed> {
        let mut statement = Statement::new("DELETE FROM ops_job WHERE uid IN (SELECT uid FROM ops_job");
        let (own, never) = (statement.text(&self.0.cluster), statement.number(NEVER));
        let before = statement.number(before.as_millisecond());
        statement
            .push(&format!(" WHERE cluster_id = {own} AND ended < {before} AND deleted <> {never} LIMIT {BATCH})"));
        self.change(&statement).await
    }

    /// Stores audit rows. If a row exists without an answer, it gets its answer.
    ///
    /// # Errors
    /// If the database refuses the rows, or does not confirm them in time.
    pub async fn note(&self, rows: &[AuditRow]) -> Result<(), HistoryFailed> {
        self.prepare().await?;
        let mut connected = self.connect(Use::Write).await?;
        let (until, connection) = connected.parts();
        let noted = answered(until, async {
            let mut transaction = connection.begin().await?;
            for row in rows {
                audited(&self.0.cluster, row).query().execute(&mut *transaction).await?;
            }
            Ok(transaction.commit().await?)
        });
        let noted = noted.await;
        connected.handed_back(noted)
    }

    /// Removes audit rows from before this time, at most a few hundred. Returns the number of removed rows.
    ///
    /// # Errors
    /// If the database does not confirm the removal.
    pub async fn purge_audit(&self, before: Timestamp) -> Result<u64, HistoryFailed> {
        let mut statement = Statement::new("DELETE FROM audit WHERE id IN (SELECT id FROM audit");
        let (own, before) = (statement.text(&self.0.cluster), statement.number(before.as_millisecond()));
        statement.push(&format!(" WHERE cluster_id = {own} AND time < {before} LIMIT {BATCH})"));
        self.change(&statement).await
    }

    async fn change(&self, statement: &Statement) -> Result<u64, HistoryFailed> {
        self.prepare().await?;
        let mut connected = self.connect(Use::Write).await?;
        let (until, connection) = connected.parts();
        let changed = answered(until, async { Ok(statement.query().execute(connection).await?.rows_affected()) }).await;
        connected.handed_back(changed)
    }
}

/// A connection in use, with the deadline of its query.
struct Connected {
    connection: PoolConnection<Any>,
    until: Instant,
}

impl Connected {
    fn parts(&mut self) -> (Instant, &mut AnyConnection) {
        (self.until, &mut self.connection)
    }

    /// Returns the connection to its pool, or closes it after a failure. A failed connection may be dead, or inside a transaction whose
    /// COMMIT was refused. Later statements would join that transaction and never be committed. The connection counts until it is closed,
    /// so a slow server gets no more connections than a fast one.
    fn handed_back<T>(mut self, answer: Result<T, HistoryFailed>) -> Result<T, HistoryFailed> {
        if answer.is_err() {
            self.connection.close_on_drop();
        }
        answer
    }
}

/// Returns the answer, or a failure at the deadline.
async fn answered<T>(
    until: Instant,
    answer: impl Future<Output = Result<T, HistoryFailed>>,
) -> Result<T, HistoryFailed> {
    timeout_at(until, answer).await.unwrap_or_else(|_| Err(late(ANSWERS_WITHIN)))
}

impl Parts {
    fn pool(&self, way: Use) -> &AnyPool {
        match way {
            Use::Job => &self.jobs,
            Use::List => &self.lists,
            Use::Write | Use::Migrate => &self.writes,
        }
    }

    /// Migrates the tables to this version. A file belongs to one cluster, so its rows take the current cluster name.
    async fn make_tables(&self, pool: &AnyPool) -> Result<(), HistoryFailed> {
        if self.dialect == Dialect::Postgres {
            let encoding: String = sqlx::query("SHOW server_encoding").fetch_one(pool).await?.try_get(0)?;
            if encoding != "UTF8" {
                let words = format!("the database has the encoding {encoding}: make one with UTF8");
                return Err(HistoryFailed::Unusable(words));
            }
        }
        migrate(pool, self.migrations).await?;
        let has_audit = self.migrations.len() > 1;
        let tables = ["ops_job", "audit"].into_iter().take(if has_audit { 2 } else { 1 });
        for table in tables.filter(|_| self.dialect == Dialect::Sqlite) {
            let mut statement = Statement::new(&format!("UPDATE {table} SET cluster_id = "));
            let own = statement.text(&self.cluster);
            statement.push(&format!("{own} WHERE cluster_id <> {own}"));
            statement.query().execute(pool).await?;
        }
        Ok(())
    }
}

/// Returns a query for all columns of jobs, without a condition.
fn whole_rows() -> Statement {
    Statement::new(&format!(
        "SELECT {COLUMNS}, revision, spec, status, request FROM ops_job JOIN ops_job_text USING (uid)"
    ))
}

fn late(limit: Duration) -> HistoryFailed {
    HistoryFailed::Down(format!("no answer within {} s", limit.as_secs()))
}

/// Returns a pool that connects on demand.
fn pool(options: &AnyConnectOptions, dialect: Dialect, way: Use) -> AnyPool {
    let most = match way {
        Use::List => LISTS,
        Use::Job => JOBS,
        Use::Write | Use::Migrate => 1,
    };
    let pool = AnyPoolOptions::new().max_connections(most).acquire_timeout(ANSWERS_WITHIN);
    let pool = pool.test_before_acquire(false).before_acquire(|connection, known| {
        Box::pin(async move {
            if known.idle_for > TRIED_AFTER {
                connection.ping().await?;
            }
            Ok(true)
        })
    });
    pool.after_connect(move |connection, _| Box::pin(configure(connection, dialect, way)))
        .connect_lazy_with(options.clone())
}

/// Configures a new connection. SQLite uses a write-ahead log, so that readers do not wait for the writer, and syncs each commit to disk.
async fn configure(connection: &mut AnyConnection, dialect: Dialect, way: Use) -> Result<(), sqlx::Error> {
    let statements = match (dialect, way) {
        (Dialect::Sqlite, _) => ["PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL"].as_slice(),
        // The server stops a statement after its client has given up. So an abandoned statement costs nothing and has no late effect.
        (Dialect::Postgres, Use::Job | Use::List | Use::Write) => {
            &["SET statement_timeout = '5s'", "SET idle_in_transaction_session_timeout = '10s'"]
        }
        (Dialect::Postgres, Use::Migrate) => &["SET statement_timeout = 0"],
    };
    for statement in statements {
        connection.execute(*statement).await?;
    }
    Ok(())
}

async fn store(connection: &mut AnyConnection, cluster: &str, job: &JobSnapshot) -> Result<(), HistoryFailed> {
    let JobSnapshot { row, revision, spec, status, request, counts_for: _ } = job;
    let mut statement = Statement::new("");
    let words = format!("{}\n{}", row.job_id, row.job_name).to_ascii_lowercase();
    let gone_by = row.gone_by.map_or("", GoneBy::word).to_owned();
    let texts = [
        ("uid", &row.uid),
        ("cluster_id", &cluster.to_owned()),
        ("job_id", &row.job_id),
        ("job_name", &row.job_name),
        ("workspace_id", &row.workspace_id),
        ("user_id", &row.user_id),
        ("user_name", &row.user_name),
        ("type", &row.kind),
        ("phase", &row.phase),
        ("job_words", &words),
        ("user_words", &row.user_name.to_ascii_lowercase()),
        ("gone_by", &gone_by),
    ];
    let numbers = [
        ("created", millis(Some(row.created))),
        ("started", millis(row.started)),
        ("ended", millis(row.ended)),
        ("deleted", millis(row.deleted)),
        ("timeout", row.timeout),
        ("seq", row.seq),
        ("revision", *revision),
    ];
    let columns: Vec<&str> = texts.iter().map(|(name, _)| *name).chain(numbers.iter().map(|(name, _)| *name)).collect();
    let mut places: Vec<String> = texts.iter().map(|(_, text)| statement.text(*text)).collect();
    places.extend(numbers.iter().map(|(_, number)| statement.number(*number)));
    let never = statement.number(NEVER);
    let (columns, places, changes) = (columns.join(", "), places.join(", "), changes(&columns));
    statement.push(&format!(
        "INSERT INTO ops_job ({columns}) VALUES ({places}) ON CONFLICT (uid) DO UPDATE SET {changes} \
         WHERE excluded.revision > ops_job.revision AND ops_job.ended = {never}"
    ));
    if statement.query().execute(&mut *connection).await?.rows_affected() > 0 {
        let mut statement = Statement::new("INSERT INTO ops_job_text (uid, spec, status, request) VALUES (");
        let places =
            [row.uid.clone(), spec.to_string(), status.to_string(), request.clone()].map(|text| statement.text(text));
        statement.push(&places.join(", "));
        statement.push(") ON CONFLICT (uid) DO UPDATE SET spec = excluded.spec, status = excluded.status, request = excluded.request");
        statement.query().execute(&mut *connection).await?;
    }
    if let Some(deleted) = row.deleted {
        let mut statement = Statement::new("UPDATE ops_job SET deleted = ");
        let (deleted, gone_by) = (statement.number(millis(Some(deleted))), statement.text(gone_by));
        let (uid, never) = (statement.text(&row.uid), statement.number(NEVER));
        statement.push(&format!("{deleted}, gone_by = {gone_by} WHERE uid = {uid} AND deleted = {never}"));
        statement.query().execute(connection).await?;
    }
    Ok(())
}

/// Returns the assignments that copy every column but the first from the new row.
fn changes(columns: &[&str]) -> String {
    let all: Vec<String> = columns.iter().skip(1).map(|column| format!("{column} = excluded.{column}")).collect();
    all.join(", ")
}

fn audited(cluster: &str, row: &AuditRow) -> Statement {
    let mut statement = Statement::new(
        "INSERT INTO audit (id, cluster_id, request_id, user_name, user_id, address, verb, job_id, type, code, body, time, status) VALUES (",
    );
    let AuditRow { id, request_id, user_name, user_id, address, verb, job_id, kind, code, body, .. } = row;
    let texts = [id, cluster, request_id, user_name, user_id, address, verb, job_id, kind, code, body];
    let mut places: Vec<String> = texts.map(|text| statement.text(text)).into();
    places.extend([row.time.as_millisecond(), i64::from(row.status)].map(|number| statement.number(number)));
    statement.push(&places.join(", "));
    statement.push(
        ") ON CONFLICT (id) DO UPDATE SET job_id = excluded.job_id, type = excluded.type, code = excluded.code, \
         body = excluded.body, status = excluded.status WHERE audit.status = 0",
    );
    statement
}

fn job_row(row: &AnyRow) -> Result<JobRow, HistoryFailed> {
    let text = |column: &str| row.try_get::<String, _>(column);
    let number = |column: &str| row.try_get::<i64, _>(column);
    Ok(JobRow {
        uid: text("uid")?,
        job_id: text("job_id")?,
        job_name: text("job_name")?,
        workspace_id: text("workspace_id")?,
        user_id: text("user_id")?,
        user_name: text("user_name")?,
        kind: text("type")?,
        phase: text("phase")?,
        created: time(number("created")?).unwrap_or_default(),
        started: time(number("started")?),
        ended: time(number("ended")?),
        deleted: time(number("deleted")?),
        gone_by: GoneBy::read(&text("gone_by")?),
        timeout: number("timeout")?,
        seq: number("seq")?,
    })
}

fn json_in(row: &AnyRow, column: &str) -> Result<Value, HistoryFailed> {
    let text: String = row.try_get(column)?;
    Ok(serde_json::from_str(&text).unwrap_or_default())
}

fn gone_job(row: &AnyRow) -> Result<GoneJob, HistoryFailed> {
    let request: String = row.try_get("request")?;
    Ok(GoneJob::of(job_row(row)?, json_in(row, "spec")?, json_in(row, "status")?, &request))
}

/// Returns the last row of a job whose deletion no host saw. The job counts as deleted now. If it had not ended, it has failed.
fn lost(gone: &AnyRow, now: Timestamp) -> Result<JobSnapshot, HistoryFailed> {
    let (revision, request): (i64, String) = (gone.try_get("revision")?, gone.try_get("request")?);
    let (mut row, spec, status) = (job_row(gone)?, json_in(gone, "spec")?, json_in(gone, "status")?);
    row.deleted = Some(now);
    let mut job = JobSnapshot { row, revision, spec, status, request, counts_for: None };
    if job.has_ended() {
        return Ok(job);
    }
    (job.row.phase, job.row.ended) = (Phase::Failed.word().to_owned(), Some(now));
    job.row.gone_by = Some(GoneBy::Deletion);
    job.revision = revision.saturating_add(1);
    let mut status = OpsStatus::read(&job.status);
    let why = PhaseReason::new("Lost", "its OpsJob was removed while no host saw it");
    status.enter(Phase::Failed, &why, job.row.started, now);
    status.revision = job.revision;
    job.status = status.write();
    Ok(job)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::SignedDuration;
    use oarlock_core::ops_job::spec::Defaults;
    use oarlock_support::postgres::Postgres;
    use serde_json::json;
    use sqlx::AssertSqlSafe;

    use super::*;
    use crate::filter::{SortKey, Viewer};

    /// Returns a history with the tables of an earlier version.
    fn of_version(place: HistoryPlace, version: usize) -> History {
        let history = History::at(place, "local").unwrap();
        let parts = Arc::into_inner(history.0).unwrap();
        History(Arc::new(Parts { migrations: parts.migrations.get(..version).unwrap(), ..parts }))
    }

    fn job() -> JobSnapshot {
        let document = json!({"metadata": {"name": "j", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z",
            "deletionTimestamp": "2026-01-02T00:00:00Z"}, "spec": {"type": "reboot"},
            "status": {"phase": "Failed", "revision": 4, "finishedAt": "2026-01-01T00:01:00Z"}});
        JobSnapshot::of(&document, Defaults::default()).unwrap()
    }

    /// Writes a job as the first version did.
    async fn store_as_before(history: &History, job: &JobSnapshot) {
        let JobSnapshot { row, revision, spec, status, .. } = job;
        let [created, ended, deleted] = [Some(row.created), row.ended, row.deleted].map(millis);
        let id = &row.job_id;
        let sql = format!(
            "INSERT INTO ops_job (uid, cluster_id, job_id, job_name, workspace_id, user_id, user_name, type, phase, created, started, \
             ended, deleted, timeout, revision, job_words, user_words) VALUES ('{}', 'local', '{id}', '{id}', '', '', '', '{}', \
             '{}', {created}, {NEVER}, {ended}, {deleted}, 0, {revision}, '{id}', ''); \
             INSERT INTO ops_job_text (uid, spec, status, request) VALUES ('{}', '{spec}', '{status}', '')",
            row.uid, row.kind, row.phase, row.uid
        );
        for statement in sql.split("; ") {
            sqlx::query(AssertSqlSafe(statement)).execute(history.0.pool(Use::Write)).await.unwrap();
        }
    }

    /// Checks that this version reads the jobs of an earlier version, and that the earlier version refuses the tables of this one.
    async fn is_upgraded(place: &HistoryPlace) {
        let first = of_version(place.clone(), 1);
        first.prepare().await.unwrap();
        store_as_before(&first, &job()).await;
        // These jobs have a time to live. One of them was deleted after that time, the other one before.
        for (id, seconds) in [("k", 600), ("d", 599)] {
            let mut other = job();
            (other.row.uid, other.row.job_id) = (format!("uid-{id}"), id.to_owned());
            other.spec["ttlSecondsAfterFinished"] = json!(600);
            other.spec["inputs"] = json!([{"name": "label", "value": "a\0, \"ttlSecondsAfterFinished\":7"}]);
            other.row.deleted =
                other.row.ended.and_then(|ended| ended.checked_add(SignedDuration::from_secs(seconds)).ok());
            store_as_before(&first, &other).await;
        }
        for way in [Use::Job, Use::List, Use::Write] {
            first.0.pool(way).close().await;
        }
        drop(first);
        let newest = History::at(place.clone(), "local").unwrap();
        assert_eq!(newest.job("j").await.unwrap().unwrap().row, job().row);
        let [since, until] = [Timestamp::UNIX_EPOCH, Timestamp::MAX];
        let (workspace, phase, kind, user_words, job_words) = (None, None, None, None, None);
        let (seen, with_deleted) = (Viewer::All, false);
        let filter = JobFilter { since, until, workspace, phase, kind, with_deleted, user_words, job_words, seen };
        let window = Window { sort: SortKey::Deleted, is_ascending: true, offset: 0, limit: 9 };
        let listed = async |with_deleted: bool| {
            let filter = JobFilter { with_deleted, ..filter.clone() };
            let (count, rows) = newest.page(&filter, &[], &window).await.unwrap();
            (count, rows.into_iter().map(|row| (row.job_id, row.gone_by)).collect::<Vec<_>>())
        };
        let row = |id: &str, by| (id.to_owned(), Some(by));
        let all = [row("d", GoneBy::Deletion), row("k", GoneBy::Expiry), row("j", GoneBy::Expiry)];
        assert_eq!(listed(true).await, (3, all.to_vec()));
        assert_eq!(listed(false).await, (2, all[1..].to_vec()), "what somebody deleted is in no list");
        // A host of the earlier version, which leads for a while longer, does not write the reason.
        sqlx::query("UPDATE ops_job SET gone_by = ''").execute(newest.0.pool(Use::Write)).await.unwrap();
        assert_eq!(listed(false).await.0, 3, "until it is known, it is listed as before");
        newest.close_lost(&[], Timestamp::UNIX_EPOCH, false).await.unwrap();
        assert_eq!(listed(true).await.1, all);
        drop(newest);
        let failed = of_version(place.clone(), 1).prepare().await.unwrap_err();
        assert!(
            matches!(failed, HistoryFailed::Newer { found, known: 1 } if found > 1) && !failed.may_pass(),
            "{failed}"
        );
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn tables_of_an_earlier_version_are_upgraded_and_those_of_a_newer_one_are_refused() {
        let server = Postgres::start().unwrap();
        is_upgraded(&HistoryPlace::read(&server.url()).unwrap()).await;
        let folder = std::env::temp_dir().join(format!("oarlock-history-upgrade-{}", std::process::id()));
        is_upgraded(&HistoryPlace::in_folder(&folder)).await;
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn two_hosts_that_begin_at_once_make_the_tables_once() {
        let server = Postgres::start().unwrap();
        let begin = || History::at(HistoryPlace::read(&server.url()).unwrap(), "local").unwrap();
        let (one, other) = (begin(), begin());
        let (one, other) = tokio::join!(one.prepare(), other.prepare());
        assert!(one.is_ok() && other.is_ok(), "{one:?} {other:?}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_file_is_of_one_cluster_whatever_that_is_called_now() {
        let folder = std::env::temp_dir().join(format!("oarlock-history-renamed-{}", std::process::id()));
        let begin = |cluster| History::at(HistoryPlace::in_folder(&folder), cluster).unwrap();
        begin("local").store(&[job()]).await.unwrap();
        assert_eq!(begin("prod").job("j").await.unwrap().unwrap().row, job().row);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_server_that_lets_nobody_in_says_what_is_to_be_mended() {
        let server = Postgres::start().unwrap();
        let url = server.url();
        server.sql("CREATE ROLE guest LOGIN PASSWORD 'guest'; REVOKE CREATE ON SCHEMA public FROM PUBLIC").unwrap();
        let (scheme, rest) = url.split_once("://").unwrap();
        let (_, place) = rest.split_once('@').unwrap();
        let words = [
            (format!("{scheme}://guest:wrong@{place}"), "another user or password"),
            (format!("{scheme}://guest:guest@{place}"), "GRANT ALL ON SCHEMA public"),
            (format!("{}/nowhere", url.rsplit_once('/').map_or("", |(head, _)| head)), "make that database"),
        ];
        for (address, mend) in words {
            let failed =
                History::at(HistoryPlace::read(&address).unwrap(), "local").unwrap().prepare().await.unwrap_err();
            assert!(!failed.may_pass() && failed.to_string().contains(mend), "{failed}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_file_has_one_host() {
        let folder = std::env::temp_dir().join(format!("oarlock-history-taken-{}", std::process::id()));
        let begin = || History::at(HistoryPlace::in_folder(&folder), "local").unwrap();
        let first = begin();
        first.prepare().await.unwrap();
        let failed = begin().prepare().await.unwrap_err();
        assert!(matches!(failed, HistoryFailed::Taken(_)) && !failed.may_pass(), "{failed}");
        drop(first);
        begin().prepare().await.unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }

    fn request(id: &str) -> AuditRow {
        let [request_id, user_name, user_id, address, verb, job_id, kind, code, body] =
            ["r", "ann", "7", "::1", "POST", "j", "reboot", "", ""].map(str::to_owned);
        let (id, time, status) = (id.to_owned(), Timestamp::UNIX_EPOCH, 200);
        AuditRow { id, request_id, user_name, user_id, address, verb, job_id, kind, code, body, time, status }
    }

    /// Checks what a guest gets at `place`, if the host has the same tables at `of_host`.
    async fn is_guest(place: HistoryPlace, of_host: HistoryPlace, prepare: impl Fn()) {
        let guest = History::as_guest(place.clone(), "local").unwrap();
        assert!(guest.prepare().await.is_err(), "nobody has made tables");
        let old = of_version(of_host.clone(), 1);
        old.prepare().await.unwrap();
        store_as_before(&old, &job()).await;
        prepare();
        let failed = guest.job("j").await.unwrap_err();
        assert!(
            matches!(failed, HistoryFailed::Older { found: 1, known } if known > 1) && failed.may_pass(),
            "{failed}"
        );
        old.0.pool(Use::Job).close().await;
        old.0.pool(Use::Write).close().await;
        drop(old);
        let host = History::at(of_host, "local").unwrap();
        host.prepare().await.unwrap();
        prepare();
        // The guest works beside a host that holds the lock of the file.
        assert_eq!(guest.job("j").await.unwrap().unwrap().row, job().row);
        guest.note(&[request("a")]).await.unwrap();
        guest.note(&[request("a"), request("b")]).await.unwrap();
        host.note(&[request("c")]).await.unwrap();
        let mut newer =
            Statement::new("INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)");
        newer
            .push(" SELECT 99, description, success, checksum, execution_time FROM _sqlx_migrations WHERE version = 1");
        newer.query().execute(host.0.pool(Use::Write)).await.unwrap();
        let other = History::as_guest(place, "local").unwrap();
        let failed = other.job("j").await.unwrap_err();
        assert!(matches!(failed, HistoryFailed::Newer { found: 99, .. }) && !failed.may_pass(), "{failed}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_guest_reads_jobs_and_notes_requests_and_has_no_answer_from_tables_of_another_version() {
        let folder = std::env::temp_dir().join(format!("oarlock-history-guest-{}", std::process::id()));
        let file = HistoryPlace::in_folder(&folder);
        is_guest(file.clone(), file, || {}).await;
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_role_that_the_documents_print_is_enough_for_a_guest_and_for_nothing_else() {
        let server = Postgres::start().unwrap();
        let url = server.url();
        server.sql("CREATE ROLE oarlock_server LOGIN PASSWORD 'guest'").unwrap();
        let (scheme, rest) = url.split_once("://").unwrap();
        let (_, place) = rest.split_once('@').unwrap();
        let place = HistoryPlace::read(&format!("{scheme}://oarlock_server:guest@{place}")).unwrap();
        let documents = include_str!("../../../docs/install.md");
        let grants: Vec<&str> =
            documents.lines().filter(|line| line.starts_with("GRANT ") && line.contains(" ON ")).collect();
        let grants: Vec<&str> = grants.into_iter().filter(|line| !line.contains("DATABASE")).collect();
        assert_eq!(grants.len(), 3, "{grants:?}");
        let grant = || {
            // The tables of the first version do not include the table of requests.
            grants.iter().for_each(|grant| drop(server.sql(grant)));
        };
        is_guest(place.clone(), HistoryPlace::read(&url).unwrap(), grant).await;
        let guest = History::as_guest(place, "local").unwrap();
        for forbidden in
            ["DELETE FROM ops_job", "UPDATE ops_job SET phase = ''", "DELETE FROM audit", "DROP TABLE audit"]
        {
            let statement = Statement::new(forbidden);
            assert!(statement.query().execute(guest.0.pool(Use::Write)).await.is_err(), "{forbidden}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn nobody_but_its_owner_reads_a_file() {
        use std::fs::{Permissions, set_permissions};
        use std::os::unix::fs::PermissionsExt as _;
        let folder = std::env::temp_dir().join(format!("oarlock-history-modes-{}", std::process::id()));
        let begin = || History::at(HistoryPlace::in_folder(&folder), "local").unwrap();
        let is_own = || {
            let modes_of = |path: &std::path::Path| Some(path.metadata().ok()?.permissions().mode() & 0o777);
            assert_eq!(modes_of(&folder), Some(0o700));
            // SQLite removes some of its files while it closes a database.
            let files = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
            let modes: Vec<_> = files.filter_map(|path| Some((modes_of(&path)?, path))).collect();
            assert!(modes.len() >= 3 && modes.iter().all(|(mode, _)| *mode == 0o600), "{modes:?}");
        };
        let first = begin();
        first.store(&[job()]).await.unwrap();
        is_own();
        drop(first);
        // An earlier version left the files with this mode.
        for name in ["history.db", "history.lock"] {
            set_permissions(folder.join(name), Permissions::from_mode(0o644)).unwrap();
        }
        begin().store(&[job()]).await.unwrap();
        is_own();
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_server_that_fails_gets_no_more_connections_than_one_that_answers() {
        let server = Postgres::start().unwrap();
        let history = History::at(HistoryPlace::read(&server.url()).unwrap(), "local").unwrap();
        history.store(&[job()]).await.unwrap();
        let locked = "BEGIN; LOCK TABLE ops_job IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(20)";
        let stalls = server.sql_in_background(locked).unwrap();
        server.until("SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted", "1").unwrap();
        let asked = (0..40).map(|_| {
            let history = history.clone();
            tokio::spawn(async move { history.job("j").await })
        });
        let asked: Vec<_> = asked.collect();
        let most = async {
            let mut most = 0;
            while asked.iter().any(|asked| !asked.is_finished()) {
                let own = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'postgres' AND backend_type = 'client backend' \
                           AND application_name <> 'psql'";
                most = most.max(server.sql(own).unwrap().parse::<u32>().unwrap());
                tokio::task::yield_now().await;
            }
            most
        };
        // The writer has one connection, and two reads have one each.
        let most = most.await;
        assert!((2..=1 + JOBS).contains(&most), "{most} connections");
        for asked in asked {
            assert!(asked.await.unwrap().unwrap_err().may_pass());
        }
        drop(stalls);
        server.until("SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted", "0").unwrap();
        assert_eq!(history.job("j").await.unwrap().unwrap().row, job().row);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_server_that_stalls_or_is_killed_is_down_and_then_answers_again() {
        let mut server = Postgres::start().unwrap();
        let history = History::at(HistoryPlace::read(&server.url()).unwrap(), "local").unwrap();
        history.store(&[job()]).await.unwrap();
        let stalls = server
            .sql_in_background("BEGIN; LOCK TABLE ops_job IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(60)")
            .unwrap();
        server.until("SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted", "1").unwrap();
        let failed = history.job("j").await.unwrap_err();
        assert!(failed.may_pass() && failed.to_string().contains("no answer within 5 s"), "{failed}");
        drop(stalls);
        server.kill();
        let failed = history.job("j").await.unwrap_err();
        assert!(failed.may_pass() && !failed.to_string().contains(oarlock_support::postgres::PASSWORD), "{failed}");
        server.run().unwrap();
        assert_eq!(history.job("j").await.unwrap().unwrap().row, job().row);
    }
}
