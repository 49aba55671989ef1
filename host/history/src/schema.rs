//! The tables and their migrations. Each change of a table is a new migration. Existing migrations never change.

use std::fs::{DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::{AnyConnection, AnyPool, Row as _};
use sqlx::{AssertSqlSafe, SqlSafeStr as _};

use crate::failed::HistoryFailed;

/// The migrations of a backend, by version.
pub(crate) type Migrations = [(i64, &'static str, &'static str)];

pub(crate) const SQLITE: &Migrations = &[
    (1, "jobs", include_str!("../migrations/sqlite/0001_jobs.sql")),
    (2, "audit", include_str!("../migrations/0002_audit.sql")),
    (3, "lists", include_str!("../migrations/0003_lists.sql")),
    (4, "order", include_str!("../migrations/sqlite/0004_order.sql")),
];

pub(crate) const POSTGRES: &Migrations = &[
    (1, "jobs", include_str!("../migrations/postgres/0001_jobs.sql")),
    (2, "audit", include_str!("../migrations/0002_audit.sql")),
    (3, "lists", include_str!("../migrations/0003_lists.sql")),
    (4, "order", include_str!("../migrations/postgres/0004_order.sql")),
];

/// Migrates the tables to the newest version. Concurrent calls migrate them once.
pub(crate) async fn migrate(pool: &AnyPool, migrations: &Migrations) -> Result<(), HistoryFailed> {
    let all = migrations.iter().map(|(version, name, sql)| {
        Migration::new(*version, (*name).into(), MigrationType::Simple, AssertSqlSafe(*sql).into_sql_str(), false)
    });
    let migrator = Migrator::with_migrations(all.collect());
    let known = migrations.last().map_or(0, |(version, ..)| *version);
    let failed = match migrator.run(pool).await {
        Ok(()) => return Ok(()),
        Err(failed) => failed,
    };
    Err(match failed {
        MigrateError::VersionMissing(found) if found > known => HistoryFailed::Newer { found, known },
        MigrateError::Execute(error) => error.into(),
        MigrateError::ExecuteMigration(error, version) if is_passing(&error) => {
            HistoryFailed::Down(format!("migration {version}: {error}"))
        }
        other => HistoryFailed::Unusable(format!("the tables of the history cannot be used: {other}")),
    })
}

/// Returns the version of the tables, or 0 if there are none.
pub(crate) async fn applied(connection: &mut AnyConnection) -> Result<i64, HistoryFailed> {
    const NO_TABLE: [&str; 2] = ["1", "42P01"];
    let row =
        sqlx::query("SELECT COALESCE(MAX(version), 0) AS version FROM _sqlx_migrations").fetch_one(connection).await;
    match row {
        Ok(row) => Ok(row.try_get("version")?),
        Err(error) => {
            let code = error.as_database_error().and_then(|error| Some(error.code()?.into_owned()));
            match code.as_deref() {
                Some(code) if NO_TABLE.contains(&code) => Ok(0),
                _ => Err(error.into()),
            }
        }
    }
}

/// Returns true if the error is about the connection, not about the tables.
fn is_passing(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::Tls(_))
}

/// The mode of the files: only their owner reads and writes them, because they hold scripts and variables.
const OWN: u32 = 0o600;

/// Locks the file for this process until the returned file is dropped. Migrations of a file have no other lock.
pub(crate) fn take(path: &Path) -> Result<File, HistoryFailed> {
    let lock = path.with_extension("lock");
    let unusable = |path: &Path, error: std::io::Error| {
        HistoryFailed::Unusable(format!("cannot open {}: {error}", path.display()))
    };
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| unusable(folder, error))?;
    }
    let file = open_own(&lock).map_err(|error| unusable(&lock, error))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(HistoryFailed::Taken(path.to_owned())),
        Err(error) => return Err(unusable(&lock, error.into())),
    }
    // SQLite gives its other files the mode of the main file. An earlier version let other users read the files.
    open_own(path).map_err(|error| unusable(path, error))?;
    for other in ["-wal", "-shm"].map(|end| beside(path, end)).iter().filter(|other| other.exists()) {
        open_own(other).map_err(|error| unusable(other, error))?;
    }
    Ok(file)
}

/// Returns the path of the file beside the database with this suffix.
fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// Opens or creates a file that only its owner may read.
fn open_own(path: &Path) -> std::io::Result<File> {
    let file = File::options().create(true).truncate(false).write(true).mode(OWN).open(path)?;
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(OWN))?;
    }
    Ok(file)
}
