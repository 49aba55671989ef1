//! The intended differences between the two servers, each with its reason.
//!
//! They come from `exceptions.yaml` and are removed from a comparison. If a script no longer needs its own exception, the
//! comparison fails, so the list stays current.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;
use regex::Regex;
use serde_json::Value;

use super::difference::{self, Difference};
use super::run::Observation;
use super::script::Script;

/// The list of all exceptions.
#[derive(Debug)]
pub(crate) struct Exceptions {
    all: Vec<Exception>,
}

#[derive(Debug)]
struct Exception {
    /// The script of this exception. `None` means all scripts.
    script: Option<String>,
    /// A regular expression for the JSON pointer of the difference.
    at: Regex,
    /// Limits the exception to objects of these kinds, anywhere in the reply.
    kind: Option<Regex>,
    /// Limits the exception to these values on the real side.
    real: Option<Regex>,
    /// Limits the exception to these values on the in-memory side.
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

    /// Returns a readable report of the differences in `script`. Returns `None` if there are none.
    pub(crate) fn compare(&self, script: &Script, real: &[Observation], sim: &[Observation]) -> Option<String> {
        let mut used = BTreeSet::<usize>::new();
        let mut account = String::new();
        for ((step, real), sim) in script.steps.iter().zip(real).zip(sim) {
            let mut left = whole_difference(real, sim);
            left.retain(|found| {
                let covering = self.covering(&script.name, found, &real.body);
                used.extend(&covering);
                covering.is_empty()
            });
            if !left.is_empty() {
                let _ = writeln!(account, "  {} {}", step.verb, step.path);
                for Difference { pointer, real, sim } in told(left, real, sim) {
                    let _ = writeln!(account, "    {pointer}\n      real {real}\n      sim  {sim}");
                }
            }
        }
        for (place, exception) in self.all.iter().enumerate() {
            if !used.contains(&place) && exception.script.as_ref() == Some(&script.name) {
                let _ = writeln!(account, "  the exception at {} does not apply any more: remove it", exception.at);
            }
        }
        (!account.is_empty()).then(|| format!("{}\n{account}", script.name))
    }

    /// Returns the indexes of the exceptions that cover this difference.
    fn covering(&self, script: &str, found: &Difference, real: &Value) -> Vec<usize> {
        let all = self.all.iter().enumerate();
        all.filter(|(_, exception)| exception.covers(script, found, real)).map(|(place, _)| place).collect()
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

/// Returns the part of `pointer` within the innermost object of `kind`.
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

/// Returns the kind of an item by the kind of its list, because the items of a typed list carry no kind.
fn kind_by_list(item: &str, whole: &Value) -> Option<String> {
    let (list, place) = item.rsplit_once("/items/")?;
    place.parse::<usize>().ok()?;
    whole.pointer(list)?.get("kind")?.as_str()?.strip_suffix("List").map(str::to_owned)
}

/// Shortens a report: if only one side refused, one line says so, because a comparison of a refusal with an object by fields says
/// nothing.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn exceptions(list: &Value) -> Exceptions {
        Exceptions { all: list.as_array().unwrap().iter().map(|one| Exception::parse(one).unwrap()).collect() }
    }

    fn script(name: &str) -> Script {
        let step = json!([{"do": "GET /api"}]);
        Script::parse(name, &step).unwrap()
    }

    fn seen(body: Value) -> Vec<Observation> {
        vec![Observation { status: 200, body }]
    }

    #[test]
    fn exception_holds_for_its_kind_within_lists_and_nowhere_else() {
        let list = exceptions(&json!([{"kind": "Pod", "at": "/spec/x", "why": "for this test"}]));
        let real = json!({"kind": "PodList", "items": [{"spec": {"x": 1, "y": 1}}]});
        let sim = json!({"kind": "PodList", "items": [{"spec": {"x": 2, "y": 2}}]});
        let account = list.compare(&script("a"), &seen(real), &seen(sim)).unwrap();
        assert!(account.contains("/items/0/spec/y") && !account.contains("/spec/x"), "{account}");
    }

    #[test]
    fn exception_that_a_script_no_longer_needs_is_a_difference() {
        let list = exceptions(&json!([{"script": "a", "at": "/x", "why": "for this test"}]));
        let same = seen(json!({"x": 1}));
        let account = list.compare(&script("a"), &same, &same).unwrap();
        assert!(account.contains("does not apply any more"), "{account}");
        assert!(list.compare(&script("b"), &same, &same).is_none());
    }

    #[test]
    fn exception_without_a_reason_is_refused() {
        assert!(Exception::parse(&json!({"at": "/x"})).is_err());
    }

    #[test]
    fn refusal_beside_success_is_told_in_one_line() {
        let refused =
            vec![Observation { status: 409, body: json!({"kind": "Status", "reason": "Conflict", "message": "no"}) }];
        let account = exceptions(&json!([])).compare(&script("a"), &refused, &seen(json!({"kind": "Pod"}))).unwrap();
        assert!(account.contains("real 409 Status Conflict no") && account.contains("sim  200 Pod"), "{account}");
    }
}
