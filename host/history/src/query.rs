//! SQL with numbered parameters, which both backends read.

use sqlx::any::AnyArguments;
use sqlx::query::Query;
use sqlx::{Any, AssertSqlSafe};

use crate::filter::{JobFilter, Viewer};
use crate::row::NEVER;

/// What the backends say in different words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Sqlite,
    Postgres,
}

impl Dialect {
    /// The elements of a list that is one text. No UID has a comma.
    fn elements(self, parameter: &str) -> String {
        match self {
            Self::Sqlite => {
                format!("(SELECT value FROM json_each('[\"' || replace({parameter}, ',', '\",\"') || '\"]'))")
            }
            Self::Postgres => format!("(SELECT unnest(string_to_array({parameter}, ',')))"),
        }
    }

    /// What a transaction begins with that sees one state of the tables.
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

/// A statement that is being written.
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

    /// The place of a text.
    pub(crate) fn text(&mut self, text: impl Into<String>) -> String {
        // No text of PostgreSQL has that character.
        self.parameters.push(Parameter::Text(text.into().replace('\0', "\u{fffd}")));
        format!("${}", self.parameters.len())
    }

    /// The place of a number.
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

    /// All but those of these UIDs.
    pub(crate) fn and_none_of(&mut self, dialect: Dialect, uids: &[&str]) {
        if !uids.is_empty() {
            let all = self.text(uids.join(","));
            self.push(&format!(" AND uid NOT IN {}", dialect.elements(&all)));
        }
    }

    /// The rows of a cluster that a filter takes, of jobs that were deleted.
    pub(crate) fn and_filtered(&mut self, cluster: &str, filter: &JobFilter) {
        let JobFilter { since, until, workspace, phase, kind, user_words, job_words, seen } = filter;
        let cluster = self.text(cluster);
        // `since` and `until` count whole seconds.
        let first = self.number(since.as_second().saturating_mul(1_000));
        let last = self.number(until.as_second().saturating_mul(1_000).saturating_add(999));
        let never = self.number(NEVER);
        self.push(&format!(
            " WHERE cluster_id = {cluster} AND deleted <> {never} AND created BETWEEN {first} AND {last}"
        ));
        self.and_text("workspace_id", workspace.as_ref());
        self.and_text("phase", phase.as_ref());
        self.and_text("type", kind.as_ref());
        self.and_contains("user_words", user_words.as_ref());
        self.and_contains("job_words", job_words.as_ref());
        if let Viewer::Some { kinds, user_id, user_name } = seen {
            // Where nobody says who asked, nobody is the owner.
            let (id, name) = (self.text(user_id), self.text(user_name));
            let own = format!("(user_name <> '' AND user_id = {id} AND user_name = {name})");
            let kinds: Vec<String> = kinds.iter().map(|kind| format!("type = {}", self.text(kind))).collect();
            let any: Vec<String> = std::iter::once(own).chain(kinds).collect();
            self.push(&format!(" AND ({})", any.join(" OR ")));
        }
    }

    /// The query with its parameters.
    pub(crate) fn query(&self) -> Query<'static, Any, AnyArguments> {
        let query = sqlx::query(AssertSqlSafe(self.sql.clone()));
        self.parameters.iter().fold(query, |query, parameter| match parameter {
            Parameter::Text(text) => query.bind(text.clone()),
            Parameter::Number(number) => query.bind(*number),
        })
    }
}
