//! Builds SQL with numbered parameters, which both databases accept.

use oarlock_core::ops_job::gone::GoneBy;
use sqlx::any::AnyArguments;
use sqlx::query::Query;
use sqlx::{Any, AssertSqlSafe};

use crate::filter::{JobFilter, Viewer};
use crate::row::NEVER;

/// The SQL dialect of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Sqlite,
    Postgres,
}

impl Dialect {
    /// Returns a query for the elements of a text that is a list with commas. A UID has no comma.
    fn elements(self, parameter: &str) -> String {
        match self {
            Self::Sqlite => {
                format!("(SELECT value FROM json_each('[\"' || replace({parameter}, ',', '\",\"') || '\"]'))")
            }
            Self::Postgres => format!("(SELECT unnest(string_to_array({parameter}, ',')))"),
        }
    }

    /// Returns an expression for a job's time to live in seconds: the value in its spec, or an hour.
    fn time_to_live(self) -> &'static str {
        match self {
            Self::Sqlite => "CAST(COALESCE(json_extract(own.spec, '$.ttlSecondsAfterFinished'), 3600) AS INTEGER)",
            // PostgreSQL does not parse JSON with an escaped NUL. In a string, the quotes of this key would be escaped, so the pattern
            // matches only the field.
            Self::Postgres => {
                r#"COALESCE(SUBSTRING(own.spec FROM '"ttlSecondsAfterFinished":(-?[0-9]{1,10})')::bigint, 3600)"#
            }
        }
    }

    /// Returns the statement that begins a transaction with a consistent snapshot.
    pub(crate) fn one_state(self) -> &'static str {
        match self {
            Self::Sqlite => "BEGIN",
            Self::Postgres => "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY",
        }
    }
}

#[derive(Clone, Debug)]
enum Parameter {
    Text(String),
    Number(i64),
}

/// A statement under construction, with its parameters.
#[derive(Clone, Debug)]
pub(crate) struct Statement {
    sql: String,
    parameters: Vec<Parameter>,
}

impl Statement {
    pub(crate) fn new(sql: &str) -> Self {
        Self { sql: sql.to_owned(), parameters: Vec::new() }
    }

    pub(crate) fn push(&mut self, sql: &str) {
        self.sql.push_str(sql);
    }

    /// Adds a text parameter and returns its placeholder.
    pub(crate) fn text(&mut self, text: impl Into<String>) -> String {
        // PostgreSQL cannot store this character.
        self.parameters.push(Parameter::Text(text.into().replace('\0', "\u{fffd}")));
        format!("${}", self.parameters.len())
    }

    /// Adds a number parameter and returns its placeholder.
    pub(crate) fn number(&mut self, number: i64) -> String {
        self.parameters.push(Parameter::Number(number));
        format!("${}", self.parameters.len())
    }

    pub(crate) fn and_text(&mut self, column: &str, value: Option<&String>) {
        if let Some(value) = value {
            let place = self.text(value);
            self.push(&format!(" AND {column} = {place}"));
        }
    }

    fn and_contains(&mut self, column: &str, part: Option<&String>) {
        if let Some(part) = part {
            let part = part.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
            let place = self.text(format!("%{part}%"));
            self.push(&format!(" AND {column} LIKE {place} ESCAPE '\\'"));
        }
    }

    /// Adds the condition that the UID is none of these.
    pub(crate) fn and_none_of(&mut self, dialect: Dialect, uids: &[&str]) {
        if !uids.is_empty() {
            let all = self.text(uids.join(","));
            self.push(&format!(" AND uid NOT IN {}", dialect.elements(&all)));
        }
    }

    /// Returns a statement that sets the missing reason of deleted jobs. A job that was deleted after its time to live has expired.
    pub(crate) fn why_gone(dialect: Dialect, cluster: &str) -> Self {
        let mut statement = Self::new("UPDATE ops_job SET gone_by = COALESCE((SELECT ");
        let (expired, deleted) = (statement.text(GoneBy::Expiry.word()), statement.text(GoneBy::Deletion.word()));
        let (own, never) = (statement.text(cluster), statement.number(NEVER));
        let ttl = dialect.time_to_live();
        statement.push(&format!(
            "{expired} FROM ops_job_text AS own WHERE own.uid = ops_job.uid AND {ttl} BETWEEN 0 AND \
             (ops_job.deleted - ops_job.ended) / 1000), {deleted}) \
             WHERE cluster_id = {own} AND gone_by = '' AND deleted <> {never}"
        ));
        statement
    }

    /// Adds the conditions of a filter. They match only deleted jobs of this cluster.
    pub(crate) fn and_filtered(&mut self, cluster: &str, filter: &JobFilter) {
        let JobFilter { since, until, workspace, phase, kind, with_deleted, user_words, job_words, seen } = filter;
        let cluster = self.text(cluster);
        // `since` and `until` have a precision of seconds.
        let first = self.number(since.as_second().saturating_mul(1_000));
        let last = self.number(until.as_second().saturating_mul(1_000).saturating_add(999));
        let never = self.number(NEVER);
        self.push(&format!(
            " WHERE cluster_id = {cluster} AND deleted <> {never} AND created BETWEEN {first} AND {last}"
        ));
        if !with_deleted {
            let deleted = self.text(GoneBy::Deletion.word());
            self.push(&format!(" AND gone_by <> {deleted}"));
        }
        self.and_text("workspace_id", workspace.as_ref());
        self.and_text("phase", phase.as_ref());
        self.and_text("type", kind.as_ref());
        self.and_contains("user_words", user_words.as_ref());
        self.and_contains("job_words", job_words.as_ref());
        if let Viewer::Some { kinds, user_id, user_name } = seen {
            // A row without a requester belongs to no user.
            let (id, name) = (self.text(user_id), self.text(user_name));
            let own = format!("(user_name <> '' AND user_id = {id} AND user_name = {name})");
            let kinds: Vec<String> = kinds.iter().map(|kind| format!("type = {}", self.text(kind))).collect();
            let any: Vec<String> = std::iter::once(own).chain(kinds).collect();
            self.push(&format!(" AND ({})", any.join(" OR ")));
        }
    }

    /// Returns the query with its parameters.
    pub(crate) fn query(&self) -> Query<'static, Any, AnyArguments> {
        let query = sqlx::query(AssertSqlSafe(self.sql.clone()));
        self.parameters.iter().fold(query, |query, parameter| match parameter {
            Parameter::Text(text) => query.bind(text.clone()),
            Parameter::Number(number) => query.bind(*number),
        })
    }
}
