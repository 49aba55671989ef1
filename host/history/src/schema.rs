//! The tables, and how they got to be as they are. A change of a table is one more migration; those that are there stay as they are.

use std::fs::File;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use sqlx::AnyPool;
use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, SqlSafeStr as _};

use crate::failed::HistoryFailed;

/// The migrations of a backend, by version.
pub(crate) type Migrations = [(i64, &'static str, &'static str)];

pub(crate) const SQLITE: &Migrations = &[
    (1, "jobs", include_str!("../migrations/sqlite/0001_jobs.sql")),
    (2, "audit", include_str!("../migrations/0002_audit.sql")),
    (3, "lists", include_str!("../migrations/0003_lists.sql")),
];

pub(crate) const POSTGRES: &Migrations = &[
    (1, "jobs", include_str!("../migrations/postgres/0001_jobs.sql")),
    (2, "audit", include_str!("../migrations/0002_audit.sql")),
    (3, "lists", include_str!("../migrations/0003_lists.sql")),
];

/// Brings the tables to the newest version. Two that do it at once do it once.
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

/// True of what says nothing of the tables.
fn is_passing(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::Tls(_))
}

/// Takes the file for this process, as long as what it yields lives. Migrations of a file have no other lock.
pub(crate) fn take(path: &Path) -> Result<File, HistoryFailed> {
    let lock = path.with_extension("lock");
    let unusable = |error: std::io::Error| HistoryFailed::Unusable(format!("cannot open {}: {error}", lock.display()));
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(unusable)?;
    }
    let file = File::options().create(true).truncate(false).write(true).open(&lock).map_err(unusable)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(HistoryFailed::Taken(path.to_owned())),
        Err(error) => Err(unusable(error.into())),
    }
}
