//! The children of an object as they were stored. Each must be made once, at the right time, and may go only when no host needs it any more.

use std::collections::BTreeMap;

use oarlock_core::attempts::build::{ATTEMPT, BY_TEMPLATE, JOB_TTL, NODE, OPERATION_TTL, STEP, WITHHELD};
use oarlock_sim::world::Version;
use serde_json::Value;

use super::{Expected, ExpectedUnit, Stored};

/// A child of the object.
#[derive(Clone, Debug)]
struct Child {
    unit: String,
    attempt: u64,
    name: String,
    /// True if the child succeeded, false if it failed. `None` before its end.
    ended: Option<bool>,
    is_gone: bool,
}

/// All children so far, by UID.
pub(super) struct Children<'a> {
    expected: &'a Expected,
    /// The UID of the owner.
    pub(super) owner: String,
    all: BTreeMap<String, Child>,
}

/// Returns whether a Job or OperationJob succeeded, or `None` before its end.
pub(crate) fn finished(version: &Version) -> Option<bool> {
    if version.plural == "operationjobs" {
        return match version.at("/status/progress").as_str() {
            Some("Succeeded") => Some(true),
            Some("Failed") => Some(false),
            _ => None,
        };
    }
    let conditions = version.at("/status/conditions").as_array().into_iter().flatten();
    let mut stand = conditions.filter(|one| one.get("status").is_some_and(|is| is == "True"));
    stand.find_map(|one| match one.get("type")?.as_str()? {
        "Complete" => Some(true),
        "Failed" => Some(false),
        _ => None,
    })
}

/// Returns the value of a label or an annotation.
fn mark<'v>(version: &'v Version, group: &str, key: &str) -> Option<&'v str> {
    version.at(&format!("/metadata/{group}")).get(key)?.as_str()
}

impl<'a> Children<'a> {
    pub(super) fn of(expected: &'a Expected) -> Self {
        Self { expected, owner: String::new(), all: BTreeMap::new() }
    }

    /// Adds a version of a child and returns the broken properties.
    pub(super) fn enter(&mut self, version: &Version, stored: &BTreeMap<String, Stored>) -> Vec<String> {
        let mut wrong = if self.all.contains_key(&version.uid) { Vec::new() } else { self.make(version) };
        let Some(child) = self.all.get_mut(&version.uid) else { return wrong };
        let ended = finished(version);
        if child.ended.is_some() && child.ended != ended {
            wrong.push(format!("the cluster took the end of {} back", child.name));
        }
        child.ended = ended;
        child.is_gone = version.is_end;
        let is_told = stored.get(&child.unit).is_some_and(|unit| unit.tells_of(&version.uid, child.attempt));
        let has_time = [JOB_TTL, OPERATION_TTL]
            .iter()
            .any(|field| version.at("/spec").get(field).is_some_and(|time| time.is_number() && *time != WITHHELD));
        if has_time && !is_told {
            wrong.push(format!("S7: the time to live of {} began before its outcome was stored", child.name));
        }
        if version.is_end && !is_told {
            wrong.push(format!("S2: {} went before its outcome was stored", child.name));
        }
        let open = self.all.values().filter(|child| child.ended.is_none() && !child.is_gone).count();
        if open > self.expected.at_once {
            wrong.push(format!("S4: {open} children have no outcome"));
        }
        wrong
    }

    /// Checks S1, S5 and S7: a new child is the only one of its attempt, has the right name and owner, and its unit may start.
    fn make(&mut self, version: &Version) -> Vec<String> {
        let owners = version.at("/metadata/ownerReferences").as_array().into_iter().flatten();
        let owned = owners.into_iter().any(|owner| {
            owner.get("uid").is_some_and(|uid| *uid == self.owner)
                && owner.get("controller") == Some(&Value::Bool(true))
        });
        let unit = mark(version, "annotations", STEP).or_else(|| mark(version, "annotations", NODE));
        let attempt = mark(version, "labels", ATTEMPT).and_then(|attempt| attempt.parse::<u64>().ok());
        let (Some(unit), Some(attempt), true) = (unit, attempt, owned) else {
            return vec!["S5: a child of nobody".to_owned()];
        };
        let mut wrong = Vec::new();
        match self.expected.unit(unit) {
            Some(known) => wrong.extend(self.is_due(known, attempt)),
            None => wrong.push(format!("S1: nobody knows the unit {unit}")),
        }
        if self.made(unit, attempt).next().is_some() {
            wrong.push(format!("S1: attempt {attempt} of {unit} was made twice"));
        }
        let known = self.expected.unit(unit).map(|known| known.child(&self.expected.name, attempt));
        if known.is_some_and(|known| known != version.name) {
            wrong.push(format!("S5: attempt {attempt} of {unit} has another name"));
        }
        let child = Child { unit: unit.to_owned(), attempt, name: version.name.clone(), ended: None, is_gone: false };
        self.all.insert(version.uid.clone(), child);
        wrong
    }

    /// Returns the reason why an attempt may not start yet.
    fn is_due(&self, unit: &ExpectedUnit, attempt: u64) -> Option<String> {
        let name = &unit.name;
        if attempt >= unit.attempts {
            return Some(format!("S1: attempt {attempt} of {name} is one too many"));
        }
        if attempt > 0 {
            let failed = attempt.checked_sub(1).is_some_and(|before| self.ended(name, before) == Some(false));
            return (!failed)
                .then(|| format!("S7: attempt {attempt} of {name} began before the one before had failed"));
        }
        let open = unit.needs.iter().find(|needed| !self.is_over(needed))?;
        Some(format!("S7: {name} began before {open} was over"))
    }

    /// Returns true once a unit gets no further child. A unit without children is over once all the units it waits for are over.
    fn is_over(&self, name: &str) -> bool {
        let Some(unit) = self.expected.unit(name) else { return false };
        match unit.attempts.checked_sub(1) {
            Some(last) => self.ended(name, last).is_some(),
            None => unit.needs.iter().all(|needed| self.is_over(needed)),
        }
    }

    fn made(&self, unit: &str, attempt: u64) -> impl Iterator<Item = &Child> {
        self.all.values().filter(move |child| child.unit == unit && child.attempt == attempt)
    }

    fn ended(&self, unit: &str, attempt: u64) -> Option<bool> {
        self.made(unit, attempt).find_map(|child| child.ended)
    }

    /// Checks S3: returns a statement in the status that no child confirms.
    pub(super) fn denied(&self, name: &str, unit: &Stored) -> Option<String> {
        if unit.job_uid.is_empty() {
            let made = unit.state == "Succeed" || unit.state == "Failed";
            return made.then(|| format!("S3: {name} is said to be {} without a child", unit.state));
        }
        let Some(child) = self.all.get(&unit.job_uid) else {
            return Some(format!("S3: {name} is said to have a child that nobody saw"));
        };
        if child.unit != name || child.attempt != unit.attempt {
            return Some(format!("S5: {name} is said to have the child of {}", child.unit));
        }
        let wanted = match unit.state.as_str() {
            "Succeed" => Some(true),
            "Failed" | "Retrying" => Some(false),
            _ => return None,
        };
        let why = || format!("S3: {name} is said to be {}, and its child ended with {:?}", unit.state, child.ended);
        (child.ended != wanted).then(why)
    }

    /// Checks S2: every child was made, has ended, and exists unless it expires.
    pub(super) fn end(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for unit in &self.expected.units {
            for attempt in 0..unit.attempts {
                match self.made(&unit.name, attempt).next() {
                    None => wrong.push(format!("S2: attempt {attempt} of {} was never made", unit.name)),
                    Some(child) if child.ended.is_none() => {
                        wrong.push(format!("S2: attempt {attempt} of {} never ended", unit.name));
                    }
                    Some(child) if child.is_gone != unit.expires => {
                        wrong.push(format!("S2: {} is gone: {}", child.name, child.is_gone));
                    }
                    Some(_) => {}
                }
            }
        }
        wrong
    }

    /// Checks S3: in the end each template lists exactly the existing Jobs that were made from it.
    pub(super) fn templates_wrong(&self, versions: &[Version]) -> Vec<String> {
        let (mut templates, mut jobs) = (BTreeMap::new(), BTreeMap::new());
        for version in versions.iter().filter(|version| version.namespace == self.expected.namespace) {
            match version.plural.as_str() {
                "jobtemplates" => drop(templates.insert(version.name.as_str(), version)),
                "jobs" => drop(jobs.insert(version.uid.as_str(), version)),
                _ => {}
            }
        }
        let mut wrong = Vec::new();
        for (name, template) in templates {
            let by = format!("{}.{name}", self.expected.namespace);
            let made = jobs.values().filter(|job| !job.is_end && mark(job, "annotations", BY_TEMPLATE) == Some(&by));
            let mut made: Vec<&str> = made.map(|job| job.name.as_str()).collect();
            made.sort_unstable();
            let told = template.at("/status/dependencyList").as_array().into_iter().flatten();
            let told: Vec<&str> = told.filter_map(Value::as_str).collect();
            if told != made {
                wrong.push(format!("S3: the template {name} names {told:?}, and there are {made:?}"));
            }
        }
        wrong
    }
}
