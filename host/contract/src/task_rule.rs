//! The tasks that a plugin requests or that a grant allows.
//!
//! [`TaskRule::lacking`] takes a rule and the rules that may cover it, and returns what they lack. The needs of a task are a rule too, so
//! one function compares manifest, grant and proposal.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::grant::{covers, list};
use crate::host_path::{ANY_HOST_PATH, is_directory, is_in, may_be_seen};
use crate::names::is_dns_label;
use crate::script_rule::ScriptRule;
use crate::task::{
    CAPABILITIES, CHECK_POD, COMMIT, COPY_IMAGE, RUN_ON_NODE, ScriptOrigin, Task, is_in_registry, is_of_host,
    is_registry,
};

/// In a manifest, all registries that the grant names.
pub const ANY_REGISTRY: &str = "*";

/// A kind of task, and the parts of it. The rule does not include parts that it does not name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TaskRule {
    /// The kind: `run-on-node`, `check-pod`, `collect-logs`, `copy-image`, or another kind that the host offers.
    pub name: String,
    /// The commands of the host, for `run-on-node`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub builtins: Vec<String>,
    /// The scripts, for `run-on-node`.
    #[serde(default, skip_serializing_if = "ScriptRule::is_none")]
    pub scripts: ScriptRule,
    /// The directories of the node that the task may read with everything below them, for `check-pod`. [`ANY_HOST_PATH`] in a manifest
    /// leaves the choice to the grant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_paths: Vec<String>,
    /// The capabilities that the task may have, for `check-pod`: some of [`CAPABILITIES`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// The registries from which the host copies images, for `copy-image`: `host[:port]`, or `host/name` with the beginning of a name.
    /// [`ANY_REGISTRY`] in a manifest leaves the choice to the grant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub registries: Vec<String>,
    /// Further hosts, `host[:port]`, to which these registries may refer the host for a token or for the bytes of an image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub auth_hosts: Vec<String>,
    /// The plugin's reason. A grant needs no reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

impl TaskRule {
    /// Returns true if the host itself performs the task.
    pub fn is_of_host(&self) -> bool {
        is_of_host(&self.name)
    }

    /// Returns true if a job with this task works on nodes that it names. Tasks on the node of a pod and tasks of the host itself do not
    /// count.
    pub fn reaches_nodes(&self) -> bool {
        let commits = self.name == RUN_ON_NODE && self.scripts.is_none() && self.builtins == [COMMIT];
        !self.is_of_host() && !commits
    }

    /// Returns a rule with the kind `name` and no parts.
    pub(crate) fn bare(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Returns the rule that a task needs.
    pub(crate) fn needed_by(task: &Task, kind: &str) -> Self {
        let bare = Self::bare(kind);
        match task {
            Task::RunOnNode(run) => Self {
                builtins: run.builtin.iter().map(|builtin| builtin.word().to_owned()).collect(),
                scripts: match &run.script {
                    None => ScriptRule::None,
                    Some(script) if script.sha256.is_none() => ScriptRule::Any,
                    Some(script) if script.origin == ScriptOrigin::Input => ScriptRule::Inputs,
                    Some(_) => ScriptRule::Templates,
                },
                ..bare
            },
            Task::CheckPod(check) => {
                Self { host_paths: check.host_paths.clone(), capabilities: check.capabilities.clone(), ..bare }
            }
            // The status of an OpsJob names the image. The host compares it with the rules once it has read the status.
            Task::CollectLogs | Task::ExportImage => bare,
            Task::CopyImage(copy) => Self { registries: vec![copy.repository().to_owned()], ..bare },
        }
    }

    /// Returns the least rule that a grant must have for a rule of a manifest, if any. The grant decides whether scripts of jobs also run
    /// and whether containers are committed.
    pub fn at_least(&self) -> Option<Self> {
        let builtins: Vec<String> = self.builtins.iter().filter(|own| *own != COMMIT).cloned().collect();
        let commits_alone = builtins.len() < self.builtins.len() && builtins.is_empty() && self.scripts.is_none();
        (!commits_alone).then(|| Self { scripts: self.scripts.at_least(), builtins, ..self.clone() })
    }

    /// Returns true if at least a part of the rule is for pods.
    pub fn reaches_pods(&self) -> bool {
        self.is_of_host() || self.takes_commits()
    }

    /// Returns true if the rule covers commits of containers.
    pub fn takes_commits(&self) -> bool {
        self.builtins.iter().any(|own| covers(own, COMMIT))
    }

    /// Returns the message about the parts that these rules of a manifest and of a grant lack to copy an image. `repository` is the image,
    /// as `host[:port]/name`.
    pub fn forbids_copy(repository: &str, plugin: &str, [manifest, grant]: [&[Self]; 2]) -> Option<String> {
        let needed = Self { registries: vec![repository.to_owned()], ..Self::bare(COPY_IMAGE) };
        needed.missing(plugin, [manifest, grant])
    }

    /// Returns the message about the parts of this rule that the rules of a manifest and of a grant lack. The message names the missing
    /// line.
    pub(crate) fn missing(&self, plugin: &str, [manifest, grant]: [&[Self]; 2]) -> Option<String> {
        if let Some(lacking) = self.lacking(manifest) {
            let words = format!("does not ask for `{lacking}`; add it to its `tasks`");
            return Some(format!("the manifest of plugin {plugin} {words}"));
        }
        let lacking = self.lacking(grant)?;
        Some(format!("`{lacking}` is not granted to plugin {plugin}; add it to `tasks` of its grant"))
    }

    /// Returns the parts of this rule that `rules` together lack, or `None` if they lack nothing.
    pub(crate) fn lacking(&self, rules: &[Self]) -> Option<Self> {
        let rules: Vec<&Self> = rules.iter().filter(|rule| covers(&rule.name, &self.name)).collect();
        let has = |builtin: &String| rules.iter().any(|rule| rule.builtins.iter().any(|own| covers(own, builtin)));
        let holds = |own: &str, path: &str| own == ANY_HOST_PATH || is_in(own, path);
        let may_read = |path: &str| rules.iter().any(|rule| rule.host_paths.iter().any(|own| holds(own, path)));
        let unread = |path: &&String| *path != ANY_HOST_PATH && !may_read(path);
        let may_have = |capability: &&String| rules.iter().any(|rule| rule.capabilities.contains(capability));
        let named = |own: &str, of: &str| {
            own == ANY_REGISTRY || own == of || of.strip_prefix(own).is_some_and(|rest| rest.starts_with('/'))
        };
        let may_pull = |of: &str| rules.iter().any(|rule| rule.registries.iter().any(|own| named(own, of)));
        let unnamed = |of: &&String| *of != ANY_REGISTRY && !may_pull(of);
        let lack = Self {
            registries: self.registries.iter().filter(unnamed).cloned().collect(),
            builtins: self.builtins.iter().filter(|builtin| !has(builtin)).cloned().collect(),
            scripts: if rules.iter().any(|rule| rule.scripts >= self.scripts) {
                ScriptRule::None
            } else {
                self.scripts
            },
            host_paths: self.host_paths.iter().filter(unread).cloned().collect(),
            capabilities: self.capabilities.iter().filter(|one| !may_have(one)).cloned().collect(),
            ..Self::bare(&self.name)
        };
        (rules.is_empty() || lack != Self::bare(&self.name)).then_some(lack)
    }

    /// Checks a rule of a manifest.
    ///
    /// # Errors
    ///
    /// If the rule is invalid, with the problem and its fix.
    pub(crate) fn check_asked(&self) -> Result<(), String> {
        if !is_dns_label(&self.name) || self.reason.trim().is_empty() {
            return Err("give it a `name` and a `reason`".to_owned());
        }
        let runs = !self.scripts.is_none() || !self.builtins.is_empty();
        match self.name == RUN_ON_NODE {
            true if !runs => return Err("name the `builtins` or `scripts` that it runs".to_owned()),
            false if runs => return Err(format!("`builtins` and `scripts` belong to {RUN_ON_NODE}")),
            _ => {}
        }
        if self.name != CHECK_POD && !(self.host_paths.is_empty() && self.capabilities.is_empty()) {
            return Err(format!("`hostPaths` and `capabilities` belong to {CHECK_POD}"));
        }
        if self.name != COPY_IMAGE && !(self.registries.is_empty() && self.auth_hosts.is_empty()) {
            return Err(format!("`registries` and `authHosts` belong to {COPY_IMAGE}"));
        }
        let registries: Vec<&String> = self.registries.iter().filter(|own| *own != ANY_REGISTRY).collect();
        self.check_registries(&registries)?;
        if let Some(builtin) = self.builtins.iter().find(|builtin| !is_dns_label(builtin)) {
            return Err(format!("{builtin:?} is no name of a command"));
        }
        let named: Vec<&String> = self.host_paths.iter().filter(|path| *path != ANY_HOST_PATH).collect();
        self.check_named(&named)
    }

    /// Checks the directories, registries and capabilities of a rule of a grant.
    ///
    /// # Errors
    ///
    /// If no check may have a part of the rule, with that part and the fix.
    pub(crate) fn check_granted(&self) -> Result<(), String> {
        if self.host_paths.iter().any(|path| path == ANY_HOST_PATH) {
            return Err(format!(
                "`hostPaths` {ANY_HOST_PATH:?} is every directory of a node: name those that a check may see"
            ));
        }
        if self.registries.iter().any(|own| own == ANY_REGISTRY) {
            return Err(format!(
                "`registries` {ANY_REGISTRY:?} is every registry, those inside of the cluster among them: name those that images are copied from"
            ));
        }
        self.check_registries(&self.registries.iter().collect::<Vec<_>>())?;
        self.check_named(&self.host_paths.iter().collect::<Vec<_>>())
    }

    fn check_registries(&self, registries: &[&String]) -> Result<(), String> {
        let is_place = |own: &&&String| {
            let (registry, name) =
                own.split_once('/').map_or((own.as_str(), None), |(registry, name)| (registry, Some(name)));
            is_registry(registry) && name.is_none_or(is_in_registry)
        };
        if let Some(other) = registries.iter().find(|own| !is_place(own)) {
            return Err(format!(
                "`registries` {other:?}: write HOST, HOST:PORT or HOST/NAME, such as docker.io/library"
            ));
        }
        match self.auth_hosts.iter().find(|host| !is_registry(host)) {
            Some(other) => Err(format!("`authHosts` {other:?}: write HOST or HOST:PORT, such as auth.docker.io")),
            None => Ok(()),
        }
    }

    fn check_named(&self, paths: &[&String]) -> Result<(), String> {
        if let Some(path) = paths.iter().find(|path| !is_directory(path)) {
            return Err(format!(
                "{path:?} is no directory of a node: write an absolute path without `..`, `*` and a `/` at its end; it \
                 stands for all below it too"
            ));
        }
        if let Some(path) = paths.iter().find(|path| !may_be_seen(path)) {
            return Err(format!(
                "no check may see {path:?} of a node, whatever is granted: name a directory that neither lies in one with \
                 credentials, sockets or files of other pods nor contains one"
            ));
        }
        match self.capabilities.iter().find(|one| !CAPABILITIES.contains(&one.as_str())) {
            Some(one) => {
                Err(format!("no check may have the capability {one:?}; it may have {}", CAPABILITIES.join(", ")))
            }
            None => Ok(()),
        }
    }
}

/// Writes the rule on one line, in the form that an admin writes in a list.
impl fmt::Display for TaskRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scripts = if self.scripts.is_none() { String::new() } else { format!(", scripts: {}", self.scripts) };
        let (builtins, paths) = (list("builtins", &self.builtins), list("hostPaths", &self.host_paths));
        let capabilities = list("capabilities", &self.capabilities);
        let (registries, hosts) = (list("registries", &self.registries), list("authHosts", &self.auth_hosts));
        write!(f, "{{name: {}{builtins}{scripts}{paths}{capabilities}{registries}{hosts}}}", self.name)
    }
}
