//! Differences that are meant, each with its reason.
//!
//! Takes `exceptions.yaml`; yields what is left of a comparison. An exception for one script that no longer applies is itself a
//! failure, so the list cannot rot.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;
use regex::Regex;
use serde_json::Value;

use super::difference::{self, Difference};
use super::run::Observation;
use super::script::Script;

/// The list.
#[derive(Debug)]
pub(crate) struct Exceptions {
    all: Vec<Exception>,
}

#[derive(Debug)]
struct Exception {
    /// The script that it is for; without one it is for all.
    script: Option<String>,
    /// Where: a regular expression for the JSON pointer.
    at: Regex,
    /// Only for objects of these kinds, wherever they are in the reply.
    kind: Option<Regex>,
    /// Only where the real side says this.
    real: Option<Regex>,
    /// Only where the other side says this.
    sim: Option<Regex>,
}

impl Exceptions {
    pub(crate) fn read(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join("exceptions.yaml");
        let failed = || format!("cannot read {}", path.display());
        let text = std::fs::read_to_string(&path).with_context(failed)?;
        let value: Value = serde_saphyr::from_str(&text).with_context(failed)?;
        let list = value.as_array().with_context(failed)?;
        let all: anyhow::Result<_> = list.iter().map(Exception::parse).collect();
        Ok(Self { all: all.with_context(failed)? })
    }

    /// Yields a readable account of what differs in `script`, if anything does.
    pub(crate) fn compare(&self, script: &Script, real: &[Observation], sim: &[Observation]) -> Option<String> {
        let mut used = vec![false; self.all.len()];
        let mut account = String::new();
        for ((step, real), sim) in script.steps.iter().zip(real).zip(sim) {
            let left: Vec<Difference> = whole_difference(real, sim)
                .into_iter()
                .filter(|found| !self.is_meant(script, found, &real.body, &mut used))
                .collect();
            if !left.is_empty() {
                let _ = writeln!(account, "  {} {}", step.verb, step.path);
                for Difference { pointer, real, sim } in told(left, real, sim) {
                    let _ = writeln!(account, "    {pointer}\n      real {real}\n      sim  {sim}");
                }
            }
        }
        for (exception, used) in self.all.iter().zip(used) {
            if !used && exception.script.as_ref() == Some(&script.name) {
                let _ = writeln!(account, "  the exception at {} does not apply any more: remove it", exception.at);
            }
        }
        (!account.is_empty()).then(|| format!("{}\n{account}", script.name))
    }

    fn is_meant(&self, script: &Script, found: &Difference, real: &Value, used: &mut [bool]) -> bool {
        let mut meant = false;
        for (exception, used) in self.all.iter().zip(used) {
            if exception.covers(&script.name, found, real) {
                *used = true;
                meant = true;
            }
        }
        meant
    }
}

impl Exception {
    fn parse(value: &Value) -> anyhow::Result<Self> {
        let field = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        field("why").filter(|why| !why.is_empty()).with_context(|| format!("an exception needs `why`: {value}"))?;
        let pattern = |key: &str| field(key).map(|text| whole_match(&text)).transpose();
        let at = pattern("at")?.with_context(|| format!("an exception needs `at`: {value}"))?;
        Ok(Self { script: field("script"), at, kind: pattern("kind")?, real: pattern("real")?, sim: pattern("sim")? })
    }

    fn covers(&self, script: &str, found: &Difference, real: &Value) -> bool {
        if self.script.as_ref().is_some_and(|wanted| wanted != script) {
            return false;
        }
        let allows =
            |pattern: &Option<Regex>, text: &str| pattern.as_ref().is_none_or(|pattern| pattern.is_match(text));
        if !allows(&self.real, &found.real) || !allows(&self.sim, &found.sim) {
            return false;
        }
        match &self.kind {
            None => self.at.is_match(&found.pointer),
            // The pointer counts from the innermost object of that kind.
            Some(kind) => ends_within(kind, &found.pointer, real).is_some_and(|rest| self.at.is_match(rest)),
        }
    }
}

fn whole_match(text: &str) -> anyhow::Result<Regex> {
    Regex::new(&format!("(?s)^(?:{text})$")).with_context(|| format!("no regular expression: {text}"))
}

/// Yields the part of `pointer` that lies within the innermost object of `kind` on its way.
fn ends_within<'a>(kind: &Regex, pointer: &'a str, whole: &Value) -> Option<&'a str> {
    let ends: Vec<usize> = pointer.match_indices('/').map(|(at, _)| at).collect();
    ends.into_iter().rev().find_map(|at| {
        let (before, rest) = pointer.split_at(at);
        let own = whole.pointer(before)?.get("kind").and_then(Value::as_str);
        own.map(str::to_owned)
            .or_else(|| kind_by_list(before, whole))
            .is_some_and(|found| kind.is_match(&found))
            .then_some(rest)
    })
}

/// Items of a typed list carry no kind; the list's own says it.
fn kind_by_list(item: &str, whole: &Value) -> Option<String> {
    let (list, place) = item.rsplit_once("/items/")?;
    place.parse::<usize>().ok()?;
    whole.pointer(list)?.get("kind")?.as_str()?.strip_suffix("List").map(str::to_owned)
}

/// Where one side refused and the other did not, comparing a refusal with an object field by field says nothing.
fn told(left: Vec<Difference>, real: &Observation, sim: &Observation) -> Vec<Difference> {
    let says = |side: &Observation| {
        let text = |key: &str| side.body.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        format!("{} {} {} {}", side.status, text("kind"), text("reason"), text("message"))
    };
    if (real.status < 300) == (sim.status < 300) {
        return left;
    }
    vec![Difference { pointer: "answer".to_owned(), real: says(real), sim: says(sim) }]
}

fn whole_difference(real: &Observation, sim: &Observation) -> Vec<Difference> {
    let mut found = difference::between(&real.body, &sim.body);
    if real.status != sim.status {
        let status = |side: &Observation| side.status.to_string();
        found.insert(0, Difference { pointer: "status".to_owned(), real: status(real), sim: status(sim) });
    }
    found
}
