//! The status of an ActionPlugin, from the facts of its plugin.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use oarlock_api::Condition;
use serde::{Deserialize, Serialize};

use crate::action_plugin::facts::{GrantsFrom, PluginFacts, VersionFacts};
use crate::action_plugin::stored::StoredActionPlugin;
use crate::object::bound::shown_cause;
use crate::object::time::write_time;
use crate::status::conditions::{NewCondition, new_condition};

/// The most versions of a status.
const MOST_VERSIONS: usize = 16;
/// The most lines of a list of a status.
const MOST_LINES: usize = 64;
/// The longest line of a list of a status, in bytes.
const MOST_LINE: usize = 256;
/// The longest message, in bytes.
const MOST_MESSAGE: usize = 1_024;

/// `status` of an ActionPlugin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ActionPluginStatus {
    /// The generation that the status describes.
    pub observed_generation: i64,
    /// The state of the version that serves, or of the version that is nearest to it.
    pub state: String,
    /// The reason of the state.
    pub reason: String,
    /// The reason of the state, as a sentence.
    pub message: String,
    /// The action of that version.
    pub action: String,
    /// The version in its manifest.
    pub version: String,
    /// The digest of its file.
    pub digest: String,
    /// `file` or `cluster`.
    pub grants_from: String,
    /// The number of unfinished jobs that are bound to any version.
    pub jobs: u32,
    /// The requests of that version, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rights: Vec<String>,
    /// The lines that the grant lacks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// All versions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<VersionStatus>,
    /// The last change of the serving version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_swap: Option<LastSwap>,
    /// The conditions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The time of the last write.
    pub reported_at: String,
}

/// One version in the status of an ActionPlugin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VersionStatus {
    /// The version in the manifest.
    pub version: String,
    /// The digest of the file.
    pub digest: String,
    /// The name of the file. It is empty for a version without a file.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub file: String,
    /// The state.
    pub state: String,
    /// The reason of the state.
    pub reason: String,
    /// The reason of the state, as a sentence.
    pub message: String,
    /// The number of unfinished jobs that are bound to the version.
    pub jobs: u32,
    /// The peak use of each limit, in percent, rounded up to tens.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub peak_use: BTreeMap<String, u8>,
}

/// A change of the serving version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LastSwap {
    /// The time of the change.
    pub time: String,
    /// The version that served before.
    pub from: String,
    /// The digest of that version.
    pub from_digest: String,
    /// The version that serves since.
    pub to: String,
    /// The reason for which the version before no longer serves new jobs.
    pub reason: String,
}

/// The state of a plugin without any file.
const ABSENT: &str = "Absent";
/// The state of the version that serves.
const SERVING: &str = "Serving";

impl ActionPluginStatus {
    /// Returns the status of an ActionPlugin whose plugin has these facts.
    pub fn of(object: &StoredActionPlugin, facts: &PluginFacts, now: Timestamp) -> Self {
        let before = &object.status;
        let mut versions: Vec<&VersionFacts> = facts.versions.iter().collect();
        versions.sort_by_key(|version| (rank(&version.state), &version.file, &version.digest));
        let first = versions.first().copied();
        let absent = || VersionFacts {
            state: ABSENT.to_owned(),
            reason: "NoFile".to_owned(),
            message: "no file in the plugin directory is this plugin: add the file, or delete this object".to_owned(),
            ..VersionFacts::default()
        };
        let shown = first.cloned().unwrap_or_else(absent);
        let conditions = conditions(object, facts, &shown).into_iter();
        let jobs = versions.iter().map(|version| version.jobs).fold(0_u32, u32::saturating_add);
        Self {
            observed_generation: object.generation,
            last_swap: swap(before, &shown, &versions, now).or_else(|| before.last_swap.clone()),
            grants_from: facts.grants_from.word().to_owned(),
            jobs,
            rights: lines(&shown.rights),
            missing: lines(&shown.missing),
            versions: versions.into_iter().take(MOST_VERSIONS).map(VersionStatus::of).collect(),
            conditions: conditions.map(|one| one.stamped(object.generation, &before.conditions, now)).collect(),
            reported_at: write_time(now),
            message: shown_cause(&shown.message, MOST_MESSAGE),
            state: shown.state,
            reason: shown.reason,
            action: shown.action,
            version: shown.version,
            digest: shown.digest,
        }
    }

    /// Returns true if the other status has the same states, grants and reasons. The numbers of jobs, the use of limits and the times may differ.
    pub fn is_same_state(&self, other: &Self) -> bool {
        self.without_figures() == other.without_figures()
    }

    /// Returns true if the other status differs at most in the time of its write.
    pub fn is_same(&self, other: &Self) -> bool {
        Self { reported_at: String::new(), ..self.clone() } == Self { reported_at: String::new(), ..other.clone() }
    }

    fn without_figures(&self) -> Self {
        let mut plain = Self { jobs: 0, reported_at: String::new(), ..self.clone() };
        for version in &mut plain.versions {
            (version.jobs, version.peak_use) = (0, BTreeMap::new());
        }
        plain
    }
}

impl VersionStatus {
    fn of(facts: &VersionFacts) -> Self {
        let VersionFacts { file, version, digest, state, reason, message, jobs, peak_use, .. } = facts.clone();
        let message = shown_cause(&message, MOST_LINE);
        Self { version, digest, file: shown_cause(&file, MOST_LINE), state, reason, message, jobs, peak_use }
    }
}

/// Returns the place of a state in the order in which a status shows versions. The first one stands for the plugin.
fn rank(state: &str) -> u8 {
    match state {
        SERVING => 0,
        "AwaitingGrant" => 1,
        "Discovered" => 2,
        "Rejected" | "Quarantined" => 3,
        _ => 4,
    }
}

/// Returns lines that fit into a status. A last line says how many are left out.
fn lines(all: &[String]) -> Vec<String> {
    let mut shown: Vec<String> = all.iter().take(MOST_LINES).map(|line| shown_cause(line, MOST_LINE)).collect();
    let more = all.len().saturating_sub(MOST_LINES);
    if more > 0 {
        shown.push(format!("and {more} more"));
    }
    shown
}

/// Returns the change of the serving version since the stored status, if there is one.
fn swap(
    before: &ActionPluginStatus,
    now_shown: &VersionFacts,
    versions: &[&VersionFacts],
    now: Timestamp,
) -> Option<LastSwap> {
    let serves = now_shown.state == SERVING && before.state == SERVING;
    if !serves || before.digest == now_shown.digest {
        return None;
    }
    let old = versions.iter().find(|version| version.digest == before.digest);
    Some(LastSwap {
        time: write_time(now),
        from: before.version.clone(),
        from_digest: before.digest.clone(),
        to: now_shown.version.clone(),
        reason: old.map_or("Removed", |old| old.reason.as_str()).to_owned(),
    })
}

fn conditions(object: &StoredActionPlugin, facts: &PluginFacts, shown: &VersionFacts) -> Vec<NewCondition> {
    let mut all = vec![new_condition("Serving", shown.state == SERVING, &shown.reason, &shown.message)];
    match (facts.grants_from, &object.grant) {
        (GrantsFrom::Cluster, Err(why)) => {
            let message = format!("this spec is invalid, so it grants nothing: {why}");
            all.push(new_condition("SpecInForce", false, "GrantInvalid", message));
        }
        (GrantsFrom::Cluster, Ok(_)) => {
            all.push(new_condition("SpecInForce", true, "GrantsFromCluster", "this spec is the grant of the plugin"));
        }
        (GrantsFrom::File, _) if !object.is_empty => {
            let message = "the host takes its grants from a file, so this spec has no effect: empty the spec, or start the host with \
                           `--grants-from cluster`";
            all.push(new_condition("SpecInForce", false, "GrantsFromFile", message));
        }
        (GrantsFrom::File, _) => {}
    }
    if let Some(lacking) = facts.lacking.as_ref().filter(|lacking| !lacking.is_empty()) {
        let message = format!(
            "the host's account lacks {}: run `oarlock plugin roles {} | kubectl apply -f -`",
            lacking.join(", "),
            object.object.key.name
        );
        all.push(new_condition("HostMayNot", true, "RightsMissing", message));
    } else if facts.lacking.is_some() {
        all.push(new_condition(
            "HostMayNot",
            false,
            "RightsComplete",
            "the host's account has the rights that the grant needs",
        ));
    }
    all
}
