//! What of the host's tasks a plugin asks for or is granted.
//!
//! Takes a rule and the rules that may cover it; yields what they lack. What a task needs is a rule too, so manifest, grant
//! and proposal are compared by one function.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::grant::{covers, list};
use crate::host_path::{ANY_HOST_PATH, is_denied, is_directory, is_in};
use crate::names::is_dns_label;
use crate::task::{CHECK_POD, RUN_ON_NODE, Task};

/// A kind of task, and what of it. What a rule does not name it does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TaskRule {
    /// `run-on-node`, `check-pod`, or another that the host offers.
    pub name: String,
    /// Commands of the host, for `run-on-node`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub builtins: Vec<String>,
    /// True if it may be a script of any text, for `run-on-node`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scripts: bool,
    /// Directories of the node that it may read with all below them, for `check-pod`. [`ANY_HOST_PATH`] of a manifest leaves
    /// it to the grant which.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_paths: Vec<String>,
    /// The plugin's reason; a grant needs none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

impl TaskRule {
    /// The kind `name` and nothing of it.
    pub(crate) fn bare(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// What a task needs to be granted.
    pub(crate) fn needed_by(task: &Task, kind: &str) -> Self {
        let bare = Self::bare(kind);
        match task {
            Task::RunOnNode(run) => Self {
                builtins: run.builtin.iter().map(|builtin| builtin.word().to_owned()).collect(),
                scripts: run.script.is_some(),
                ..bare
            },
            Task::CheckPod(check) => Self { host_paths: check.host_paths.clone(), ..bare },
        }
    }

    /// What `rules` together lack of this one; `None` if that is nothing.
    pub(crate) fn lacking(&self, rules: &[Self]) -> Option<Self> {
        let rules: Vec<&Self> = rules.iter().filter(|rule| covers(&rule.name, &self.name)).collect();
        let has = |builtin: &String| rules.iter().any(|rule| rule.builtins.iter().any(|own| covers(own, builtin)));
        let may_read = |path: &str| rules.iter().any(|rule| rule.host_paths.iter().any(|own| is_in(own, path)));
        let unread = |path: &&String| *path != ANY_HOST_PATH && !may_read(path);
        let lack = Self {
            builtins: self.builtins.iter().filter(|builtin| !has(builtin)).cloned().collect(),
            scripts: self.scripts && !rules.iter().any(|rule| rule.scripts),
            host_paths: self.host_paths.iter().filter(unread).cloned().collect(),
            ..Self::bare(&self.name)
        };
        (rules.is_empty() || lack != Self::bare(&self.name)).then_some(lack)
    }

    /// Checks a rule of a manifest.
    ///
    /// # Errors
    ///
    /// The problem and its fix.
    pub(crate) fn check_asked(&self) -> Result<(), String> {
        if !is_dns_label(&self.name) || self.reason.trim().is_empty() {
            return Err("give it a `name` and a `reason`".to_owned());
        }
        let runs = self.scripts || !self.builtins.is_empty();
        match self.name == RUN_ON_NODE {
            true if !runs => return Err("name the `builtins` or `scripts` (`true`) that it runs".to_owned()),
            false if runs => return Err(format!("`builtins` and `scripts` belong to {RUN_ON_NODE}")),
            _ => {}
        }
        if self.name != CHECK_POD && !self.host_paths.is_empty() {
            return Err(format!("`hostPaths` belong to {CHECK_POD}"));
        }
        if let Some(builtin) = self.builtins.iter().find(|builtin| !is_dns_label(builtin)) {
            return Err(format!("{builtin:?} is no name of a command"));
        }
        self.check_host_paths()?;
        match self.host_paths.iter().find(|path| is_denied(path)) {
            Some(path) => Err(format!("no check may see {path:?} of a node, whatever is granted")),
            None => Ok(()),
        }
    }

    /// Checks the form of the directories, of a manifest or a grant.
    ///
    /// # Errors
    ///
    /// The one that is none, and the fix.
    pub(crate) fn check_host_paths(&self) -> Result<(), String> {
        let is_path = |path: &&String| *path == ANY_HOST_PATH || is_directory(path);
        match self.host_paths.iter().find(|path| !is_path(path)) {
            Some(path) => Err(format!(
                "{path:?} is no directory of a node: write an absolute path without `..`, `*` and a `/` at its end; it \
                 stands for all below it too"
            )),
            None => Ok(()),
        }
    }
}

/// The rule as an admin would write it in a list, on one line.
impl fmt::Display for TaskRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scripts = if self.scripts { ", scripts: true" } else { "" };
        let (builtins, paths) = (list("builtins", &self.builtins), list("hostPaths", &self.host_paths));
        write!(f, "{{name: {}{builtins}{scripts}{paths}}}", self.name)
    }
}
