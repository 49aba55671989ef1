//! The text that the leading host publishes for the servers that take REST requests. Source: docs/opsjob-rest.md 11.
//!
//! Takes the services and settings of the host; yields a text of limited length, the service for a job, and the reason why a server may not rely on
//! the text. May not read a clock.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::object::bound::shown;
use crate::object::own::OPS_NAMESPACE;
use crate::ops_job::create_decision::{Service, ungranted};
use crate::ops_job::plan::{NO_FILES, NO_REGISTRY};
use crate::ops_job::spec::{OpsSpec, OpsType};
use crate::ops_job::workload::WorkloadName;
use crate::plugin::grant::{Grant, ScriptRule, TaskRule};
use crate::plugin::task::CHECK_POD;

/// The name of the ConfigMap in the host's namespace.
pub const PUBLISHED: &str = "oarlock-host";
/// The key of the text in the ConfigMap.
pub const KEY: &str = "host.json";
/// The most bytes of the text. An object may have 1 MiB.
const MOST_BYTES: usize = 512 * 1024;
/// The most characters of the reason why a type is not served.
const WHY: usize = 1_024;
/// The most characters of a plugin's name, version or action.
const NAME: usize = 128;
/// The most plugin files that are published.
pub const MOST_PLUGINS: usize = 100;
/// The longest time between two renewals of the published text.
pub const RENEWED_WITHIN: Duration = Duration::from_secs(30);
/// The age at which the published text counts as old: two renewals in a row are missing.
pub const OLD_AFTER: Duration = Duration::from_secs(90);
/// The largest difference between two clocks that counts as normal, in seconds.
const CLOCKS: i64 = 600;

/// The services and settings that the leading host publishes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Published {
    /// The number of renewals so far, by all hosts.
    pub renewal: u64,
    /// The second of the last renewal, by the clock of the host that renewed.
    pub renewed_at: i64,
    /// The version of the host.
    pub version: String,
    /// The node on which the host runs, if the host knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// True if the host keeps the files of jobs.
    pub keeps_files: bool,
    /// True if the host has a registry to export images to.
    pub exports: bool,
    /// The service for each type, by the name of the type.
    pub types: BTreeMap<String, ServedType>,
    /// A digest of each setting that host and servers share, by the setting's name.
    pub settings: BTreeMap<String, String>,
    /// The plugin files of the host. An older host publishes none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plugins: Vec<PublishedPlugin>,
}

/// A plugin file of the leading host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PublishedPlugin {
    /// The name of the plugin, or of its file if the plugin cannot be read.
    pub name: String,
    /// The action that jobs name.
    pub action: String,
    /// The version.
    pub version: String,
    /// The digest of the file, `sha256:...`.
    pub digest: String,
    /// The reason why the plugin does not serve: a word and a sentence. Empty if it serves.
    pub problem: String,
}

impl PublishedPlugin {
    /// Returns the plugin with texts of limited length. The authors of a plugin choose them.
    #[must_use]
    pub fn shortened(self) -> Self {
        let short = |text: String| shown(&text, NAME);
        let Self { name, action, version, digest, problem } = self;
        Self {
            name: short(name),
            action: short(action),
            version: short(version),
            digest: short(digest),
            problem: shown(&problem, WHY),
        }
    }
}

/// The service for one type at the leading host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ServedType {
    /// A plugin serves the type, within the reach of its grant.
    Serves(Reach),
    /// No plugin serves the type, for this reason.
    Missing(String),
}

/// The part of a plugin's grant that requests depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Reach {
    /// The namespaces of the plugin's jobs, as patterns.
    pub namespaces: Vec<String>,
    /// True if the plugin may run scripts that a job brings.
    pub scripts: bool,
    /// True if the plugin may commit containers.
    pub commits: bool,
    /// The directories of a node that a check may see.
    pub host_paths: Vec<String>,
}

impl Reach {
    /// Returns the reach of a grant.
    pub fn of(grant: &Grant) -> Self {
        Self {
            namespaces: grant.namespaces.clone(),
            scripts: grant.tasks.iter().any(|rule| rule.scripts >= ScriptRule::Inputs),
            commits: grant.tasks.iter().any(TaskRule::takes_commits),
            host_paths: grant.host_paths_of_checks().cloned().collect(),
        }
    }

    /// Returns a grant with this reach.
    fn grant(&self) -> Grant {
        let (name, host_paths) = (CHECK_POD.to_owned(), self.host_paths.clone());
        let checks = TaskRule { name, host_paths, ..TaskRule::default() };
        Grant { namespaces: self.namespaces.clone(), tasks: vec![checks], ..Grant::default() }
    }
}

impl Published {
    /// Returns the service for a job, and the part of the job that the grant does not cover.
    pub fn service(&self, asked: &OpsSpec) -> Service {
        let word = asked.kind.word();
        match asked.kind {
            OpsType::Dumplog if !self.keeps_files => return Service::None(NO_FILES.to_owned()),
            OpsType::Exportimage if !self.exports => return Service::None(NO_REGISTRY.to_owned()),
            _ => {}
        }
        let reach = match self.types.get(word) {
            Some(ServedType::Serves(reach)) => reach,
            Some(ServedType::Missing(why)) => return Service::None(why.clone()),
            None => return Service::None(unserved(word)),
        };
        // The namespace of a workload that is not named in full is unknown here.
        let place = match asked.kind.is_for_nodes() {
            true => Some(OPS_NAMESPACE.to_owned()),
            false => asked.scope.workloads.first().and_then(|words| WorkloadName::read(words)).map(|own| own.namespace),
        };
        let grant = reach.grant();
        if let Some(place) = place.filter(|place| !grant.allows_namespace(place)) {
            return Service::None(format!("the grant of the plugin for {word} does not reach the namespace {place}"));
        }
        let shows = |path: &str| grant.shows_host_path(path);
        Service::Plugin { ungranted: ungranted(asked, shows, reach.scripts, reach.commits) }
    }

    /// Returns the text to publish. If a grant is too long, the text reports its type as missing, with this reason.
    pub fn text(mut self) -> String {
        loop {
            let text = serde_json::to_string(&self).unwrap_or_default();
            if text.len() <= MOST_BYTES {
                return text;
            }
            let longest = self.types.iter_mut().max_by_key(|(_, own)| own.bytes());
            let Some((word, own)) = longest.filter(|(_, own)| matches!(own, ServedType::Serves(_))) else {
                return text;
            };
            *own = ServedType::Missing(format!("the grant of the plugin for {word} is too long to be published"));
        }
    }

    /// Reads a published text. Returns `None` if this version does not know its form.
    pub fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok().filter(|_| text.len() <= MOST_BYTES)
    }

    /// Returns true if both texts have the same content apart from the renewal.
    pub fn says_as_much_as(&self, other: &Self) -> bool {
        let when = |own: &Self| Self { renewal: 0, renewed_at: 0, ..own.clone() };
        when(self) == when(other)
    }
}

impl ServedType {
    /// Returns the value for a type that nothing serves, for this reason.
    pub fn missing(word: &str, why: &str) -> Self {
        Self::Missing(format!("no plugin serves {word}: {}", shown(why, WHY)))
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Missing(_) => 0,
            Self::Serves(reach) => {
                let lengths = reach.namespaces.iter().chain(&reach.host_paths).map(String::len);
                lengths.fold(0, usize::saturating_add)
            }
        }
    }
}

/// Returns the reason why a type without a plugin is not served.
pub fn unserved(word: &str) -> String {
    format!("no plugin serves {word}: a cluster admin adds one")
}

/// The settings that a host and its servers must share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedSettings {
    /// The id of the cluster.
    pub cluster: String,
    /// The address of the history, without user and password. Empty if there is no history.
    pub history: String,
    /// The folder or bucket of the files. Empty if there is none.
    pub files: String,
    /// The limits by which host and servers judge requests.
    pub bounds: String,
}

impl SharedSettings {
    /// Returns a digest of each setting, by the flag or words that people know.
    pub fn digests(&self) -> BTreeMap<String, String> {
        let Self { cluster, history, files, bounds } = self;
        let all = [
            ("--cluster-id", cluster),
            ("--history", history),
            ("--data or --artefacts", files),
            ("the bounds of this version", bounds),
        ];
        all.into_iter().map(|(name, value)| (name.to_owned(), digest(value))).collect()
    }
}

fn digest(text: &str) -> String {
    let hex: String = Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// The reason why a server may not rely on the published text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unpublished {
    /// No host has published a text.
    Missing,
    /// The text has a form that this version does not know.
    Unreadable,
    /// The host has not renewed the text in time.
    Old,
    /// The host has other values for the settings with these names.
    OtherSettings(Vec<String>),
    /// The server cannot read the text, for this reason.
    Unread(String),
}

impl Unpublished {
    /// Returns the sentence for clients and admins.
    pub fn describe(&self) -> String {
        match self {
            Self::Missing => "no host has published its settings: check that the host runs".to_owned(),
            Self::Unreadable => format!(
                "this version cannot read the settings of the host in the ConfigMap {PUBLISHED}: run host and server of one version"
            ),
            Self::Old => {
                format!("the host has not renewed its settings for {} s: check that the host runs", OLD_AFTER.as_secs())
            }
            Self::OtherSettings(names) => {
                format!("the host and this server have different settings: {}; give both the same", names.join(", "))
            }
            Self::Unread(why) => format!("failed to read the settings of the host: {why}"),
        }
    }
}

/// The last renewal of the published text that a server has observed.
#[derive(Clone, Debug, Default)]
pub struct Renewals {
    last: Option<Renewal>,
}

#[derive(Clone, Debug)]
struct Renewal {
    of: (u64, i64),
    /// Time of the first observation, by a monotonic clock.
    seen: Duration,
    /// True if the text was old at its first observation, by more than two clocks may differ.
    was_old: bool,
}

impl Renewals {
    /// Notes a published text. `forward` is the time of a monotonic clock, and `second` the time of a clock that may be ten minutes off. A server
    /// needs `second` only for its first reading.
    pub fn take(&mut self, read: &Published, forward: Duration, second: i64) {
        let of = (read.renewal, read.renewed_at);
        if self.last.as_ref().is_some_and(|last| last.of == of) {
            return;
        }
        let oldest = CLOCKS.saturating_add(i64::try_from(OLD_AFTER.as_secs()).unwrap_or(i64::MAX));
        let was_old = self.last.is_none() && second.saturating_sub(read.renewed_at) > oldest;
        self.last = Some(Renewal { of, seen: forward, was_old });
    }

    /// Returns true if the host has renewed the text in time.
    pub fn are_fresh(&self, forward: Duration) -> bool {
        self.last.as_ref().is_some_and(|last| !last.was_old && forward.saturating_sub(last.seen) <= OLD_AFTER)
    }
}

/// Checks that a server with these settings may rely on the text that it has read.
///
/// # Errors
/// If the text is old, or the host has other settings. The error is the first reason that applies.
pub fn check(
    read: &Published,
    own: &BTreeMap<String, String>,
    renewals: &Renewals,
    forward: Duration,
) -> Result<(), Unpublished> {
    if !renewals.are_fresh(forward) {
        return Err(Unpublished::Old);
    }
    let differs = |name: &&String| own.get(*name) != read.settings.get(*name);
    let names: Vec<String> = own.keys().filter(differs).cloned().collect();
    if names.is_empty() { Ok(()) } else { Err(Unpublished::OtherSettings(names)) }
}

#[cfg(test)]
#[path = "published_tests.rs"]
mod tests;
