//! One suite of request scripts for two API servers.
//!
//! The suite sends each script to the in-memory API and to the real API server. It reports every difference in status, reason,
//! message, object, list and watch. No expected answer is written down: the real server is the specification. `exceptions.yaml`
//! lists each intended difference with its reason.

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

use exceptions::Exceptions;
use oarlock_support::install::{self, Way};
use run::Observation;
pub use run::{Forget, Side};
use script::{Group, Script};

/// The two servers that are compared.
#[derive(Clone)]
pub struct Sides {
    /// The real API server, which is the specification.
    pub real: Side,
    /// The in-memory API server, which must behave in the same way.
    pub sim: Side,
}

/// The result of a group of scripts.
#[derive(Debug)]
pub struct Report {
    /// The number of scripts that ran.
    pub scripts: usize,
    /// The scripts whose answers differ, in readable form.
    pub differences: Vec<String>,
    /// The answers of the real API server, step by step.
    pub transcript: String,
}

/// Returns the folder of the scripts.
#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cases")
}

/// Returns the names of all groups, sorted.
///
/// # Errors
///
/// If the folder cannot be read.
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

/// Returns the number of scripts in all groups.
///
/// # Errors
///
/// If a group cannot be read, or two scripts have the same name.
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
/// If the group cannot be read, or its kinds cannot be installed. A difference is not an error: the report lists it.
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

/// Reads the manifests that a group needs. The name `operationjob` means everything that the host itself installs, policies
/// included.
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
