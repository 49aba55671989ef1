//! One suite of request scripts for two API servers.
//!
//! Takes groups of scripts in an operator's words; sends each to the in-memory API and to the real API server and yields every
//! difference in status, reason, message, object, list and watch. No answer is written down anywhere: the real server is the
//! specification. A difference that is meant is in `exceptions.yaml`, with its reason.

mod difference;
mod exceptions;
mod normal;
mod run;
mod script;
mod web_token;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::install::{self, Way};
use exceptions::Exceptions;
use run::Observation;
pub use run::{Forget, Side};
use script::{Group, Script};

/// The two servers.
#[derive(Clone)]
pub struct Sides {
    /// The API server whose word counts.
    pub real: Side,
    /// The one that must do the same.
    pub sim: Side,
}

/// What a group came to.
#[derive(Debug)]
pub struct Report {
    /// How many scripts ran.
    pub scripts: usize,
    /// The scripts that differ, readable.
    pub differences: Vec<String>,
    /// What the real API server answered, step by step.
    pub transcript: String,
}

/// The folder of the scripts.
#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join("conformance")
}

/// The names of all groups, sorted.
///
/// # Errors
///
/// Fails if the folder cannot be read.
pub fn groups() -> anyhow::Result<Vec<String>> {
    let folder = folder();
    let entries = std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let names =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "yaml"));
    let mut names: Vec<String> = names
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .filter(|name| name != "exceptions")
        .collect();
    names.sort();
    Ok(names)
}

/// How many scripts there are in all groups.
///
/// # Errors
///
/// Fails if a group cannot be read, or two scripts have one name.
pub fn count_scripts() -> anyhow::Result<usize> {
    let mut names = std::collections::BTreeSet::new();
    for group in groups()? {
        for script in Group::read(&folder(), &group)?.scripts {
            if !names.insert(script.name.clone()) {
                bail!(
                    "two scripts are called {}: each name is used once, because namespaces are named after it",
                    script.name
                );
            }
        }
    }
    Ok(names.len())
}

/// Runs the group called `name` on both sides.
///
/// # Errors
///
/// Fails if the group cannot be read or its kinds cannot be installed. A difference is no error: it is in the report.
pub async fn run_group(name: &str, sides: &Sides) -> anyhow::Result<Report> {
    let group = Group::read(&folder(), name)?;
    let exceptions = Exceptions::read(&folder())?;
    for kind in &group.install {
        let documents = read_kinds(kind)?;
        for (name, side) in [("real", &sides.real), ("in-memory", &sides.sim)] {
            let installed = install::install(&side.client, &documents, Way::CreateMissing).await;
            installed.with_context(|| format!("cannot install {kind} on the {name} side"))?;
        }
    }
    let mut report = Report { scripts: group.scripts.len(), differences: Vec::new(), transcript: String::new() };
    for script in &group.scripts {
        let (real, sim) =
            tokio::join!(run::script(&sides.real, &group, script), run::script(&sides.sim, &group, script));
        report.transcript.push_str(&transcript(script, &real));
        if let Some(difference) = exceptions.compare(script, &real, &sim) {
            report.differences.push(difference);
        }
    }
    Ok(report)
}

/// Reads what a group needs installed; `operationjob` is what the host itself installs, policy included.
fn read_kinds(name: &str) -> anyhow::Result<Vec<Value>> {
    if name == "operationjob" {
        let of_pods = oarlock_api::ADMISSION.replace("OARLOCK_GRANTED", "{}");
        let policies = [of_pods.as_str(), oarlock_api::ACCOUNT_ADMISSION, oarlock_api::NAMESPACE_ADMISSION];
        let texts = oarlock_api::CRDS.into_iter().chain(policies);
        let filled = texts.map(|text| oarlock_api::HostAccount::default().fill(text));
        return filled
            .map(|text| install::documents(&text))
            .collect::<anyhow::Result<Vec<_>>>()
            .map(|all| all.concat());
    }
    let path = folder().join("kinds").join(format!("{name}.yaml"));
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    install::documents(&text)
}

fn transcript(script: &Script, seen: &[Observation]) -> String {
    let mut text = format!("# {}\n", script.name);
    for (step, observation) in script.steps.iter().zip(seen) {
        let _ = writeln!(text, "{} {}", step.verb, step.path);
        let _ = writeln!(text, "  {} {}", observation.status, observation.body);
    }
    text
}
