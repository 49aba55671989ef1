//! The properties that must hold of a JobFlow or DaemonJob at every version, whatever happens to its host.
//!
//! Takes every version of the object, its children and its templates, in their order; yields every property that did not
//! hold. May not believe a statement of a host about itself before a child shows it.

mod children;

use std::collections::BTreeMap;

use oarlock_sim::world::Version;
use serde_json::Value;

use self::children::Children;
pub(crate) use self::children::finished;

/// An object, and the expected outcome of its units.
#[derive(Clone, Debug)]
pub struct Expected {
    /// The namespace of the object.
    pub namespace: String,
    /// The plural of the object's kind.
    pub plural: String,
    /// The name of the object.
    pub name: String,
    /// The status field that lists the units.
    pub table: String,
    /// The largest number of children without an outcome at one time.
    pub at_once: usize,
    /// The units of the object.
    pub units: Vec<ExpectedUnit>,
}

/// A step or a node, and its expected outcome.
#[derive(Clone, Debug)]
pub struct ExpectedUnit {
    /// The name of the unit.
    pub name: String,
    /// The units that must end before this unit starts.
    pub needs: Vec<String>,
    /// The final state, with its reason: `Failed/JobDeleted`.
    pub outcome: String,
    /// The number of children that the host creates for the unit.
    pub attempts: u64,
    /// True if the child is deleted once its outcome is stored.
    pub expires: bool,
}

impl ExpectedUnit {
    /// Returns the name of the child of an attempt.
    fn child(&self, owner: &str, attempt: u64) -> String {
        let base = format!("{owner}-{}", self.name);
        if attempt == 0 { base } else { format!("{base}-r{attempt}") }
    }
}

impl Expected {
    fn is_it(&self, version: &Version) -> bool {
        version.plural == self.plural && version.name == self.name && version.namespace == self.namespace
    }

    fn unit(&self, name: &str) -> Option<&ExpectedUnit> {
        self.units.iter().find(|unit| unit.name == name)
    }

    /// Returns true once the newest version of the object has its completion time.
    #[must_use]
    pub fn has_ended(&self, versions: &[Version]) -> bool {
        let newest = versions.iter().rev().find(|version| self.is_it(version));
        newest.is_some_and(|version| version.at("/status/completionTime").is_string())
    }

    /// Returns true once every child that expires is gone.
    #[must_use]
    pub fn is_clean(&self, versions: &[Version]) -> bool {
        let is_gone = |unit: &ExpectedUnit| {
            let name = unit.child(&self.name, 0);
            versions.iter().rev().find(|one| one.plural == "jobs" && one.name == name).is_some_and(|one| one.is_end)
        };
        self.units.iter().filter(|unit| unit.expires).all(is_gone)
    }
}

/// Returns every property that did not hold.
#[must_use]
pub fn judge(versions: &[Version], expected: &Expected) -> Vec<String> {
    let mut seen = Seen { expected, children: Children::of(expected), units: BTreeMap::new(), newest: None };
    let mut breaches = Vec::new();
    for version in versions.iter().filter(|version| version.namespace == expected.namespace) {
        let wrong = seen.enter(version).into_iter();
        breaches.extend(
            wrong.map(|wrong| format!("{wrong}; at {} {} {}", version.resource_version, version.plural, version.name)),
        );
    }
    breaches.extend(seen.children.templates_wrong(versions));
    breaches.extend(seen.end());
    breaches
}

/// The stored status of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stored {
    state: String,
    reason: String,
    job_uid: String,
    attempt: u64,
}

impl Stored {
    fn read(entry: &Value) -> Self {
        let text = |field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        let attempt = entry.get("attempt").and_then(Value::as_u64).unwrap_or(0);
        Self { state: text("state"), reason: text("reason"), job_uid: text("jobUID"), attempt }
    }

    fn is_terminal(&self) -> bool {
        matches!(self.state.as_str(), "Succeed" | "Failed" | "Omitted")
    }

    fn outcome(&self) -> String {
        if self.reason.is_empty() { self.state.clone() } else { format!("{}/{}", self.state, self.reason) }
    }

    /// Returns true if the status has the outcome of this child, or if it is already at a later attempt.
    fn tells_of(&self, uid: &str, attempt: u64) -> bool {
        self.is_terminal() && self.job_uid == uid || self.attempt > attempt
    }
}

/// The whole state that was stored at a moment.
struct Seen<'a> {
    expected: &'a Expected,
    children: Children<'a>,
    units: BTreeMap<String, Stored>,
    newest: Option<&'a Version>,
}

impl<'a> Seen<'a> {
    fn enter(&mut self, version: &'a Version) -> Vec<String> {
        if self.expected.is_it(version) {
            return self.enter_object(version);
        }
        match version.plural.as_str() {
            "jobs" | "operationjobs" => self.children.enter(version, &self.units),
            _ => Vec::new(),
        }
    }

    /// Checks S3: a status has an outcome only after its child shows it, and an outcome stays. Checks S2: no unit disappears or goes back.
    fn enter_object(&mut self, version: &'a Version) -> Vec<String> {
        self.newest = Some(version);
        self.children.owner.clone_from(&version.uid);
        let mut wrong = Vec::new();
        let table = version.at(&format!("/status/{}", self.expected.table));
        let now: BTreeMap<String, Stored> = table.as_array().into_iter().flatten().map(named).collect();
        for (name, before) in &self.units {
            let Some(now) = now.get(name) else {
                wrong.push(format!("S2: {name} is not in the status any more"));
                continue;
            };
            if before.is_terminal() && now != before {
                wrong.push(format!("S3: what became of {name} changed from {before:?} to {now:?}"));
            }
            if now.attempt < before.attempt {
                wrong.push(format!("S2: {name} went back from attempt {} to {}", before.attempt, now.attempt));
            }
        }
        for (name, unit) in &now {
            wrong.extend(self.children.denied(name, unit));
        }
        if version.at("/status/completionTime").is_string() && !now.values().all(Stored::is_terminal) {
            wrong.push("S3: it is said to have ended, and units have not".to_owned());
        }
        self.units = now;
        wrong
    }

    /// Checks S2: the final state is the same as in an undisturbed run.
    fn end(&self) -> Vec<String> {
        let mut wrong = self.children.end();
        for unit in &self.expected.units {
            let outcome = self.units.get(&unit.name).map(Stored::outcome).unwrap_or_default();
            if outcome != unit.outcome {
                wrong.push(format!("S2: {} ended with {outcome:?} and not with {:?}", unit.name, unit.outcome));
            }
        }
        let Some(newest) = self.newest.filter(|newest| !newest.is_end) else {
            wrong.push("S2: the object is gone".to_owned());
            return wrong;
        };
        let conditions = newest.at("/status/conditions").as_array().into_iter().flatten();
        let text = |one: &Value, field: &str| one.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut stand: Vec<String> =
            conditions.filter(|one| text(one, "status") == "True").map(|one| text(one, "type")).collect();
        stand.sort();
        if newest.at("/status/state") != "Succeed" || stand != ["Complete", "Valid"] {
            wrong.push(format!("S2: in the end it is {} with {stand:?}", newest.at("/status/state")));
        }
        wrong
    }
}

fn named(entry: &Value) -> (String, Stored) {
    let name = entry.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    (name, Stored::read(entry))
}

#[cfg(test)]
mod tests;
