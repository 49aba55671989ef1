//! The scripts of a group, as written in YAML.
//!
//! Each script is a list of requests. A request does not name a value that a server chooses: it refers to a kept value of an
//! earlier reply.

use std::path::Path;

use anyhow::{Context as _, bail};
use serde_json::{Map, Value};

use oarlock_support::install::yaml_1_2;

/// The scripts of one file.
#[derive(Debug)]
pub(crate) struct Group {
    /// The kinds that must be installed first.
    pub(crate) install: Vec<String>,
    /// Short names for texts in paths and bodies, such as the path of a kind.
    pub(crate) constants: Vec<(String, String)>,
    /// Objects that scripts start from, by name.
    pub(crate) define: Map<String, Value>,
    pub(crate) scripts: Vec<Script>,
}

/// A sequence of requests in a namespace of its own.
#[derive(Debug)]
pub(crate) struct Script {
    /// The name of the script: a sentence, joined by underscores.
    pub(crate) name: String,
    pub(crate) steps: Vec<Step>,
    /// The whole text of the script, to tell its own words from the server's words.
    pub(crate) text: String,
}

/// One request.
#[derive(Debug)]
pub(crate) struct Step {
    /// An HTTP verb, `WATCH` or `FORGET`. After `FORGET` the server knows only the present versions.
    pub(crate) verb: String,
    /// The path and query. `{ns}`, constants and kept values are filled in; a leading `~` is the script's own namespace.
    pub(crate) path: String,
    /// The content type. Patches have short names: `merge`, `json`, `strategic`, `apply`.
    pub(crate) content: Option<String>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Option<Value>,
    /// Values of the reply to keep, as pairs of name and JSON pointer.
    pub(crate) keep: Vec<(String, String)>,
    /// The script repeats the request until the reply has these values, by JSON pointer. Roles reach a real server's cache late.
    pub(crate) until: Vec<(String, String)>,
    /// The number of events to read from a watch.
    pub(crate) events: usize,
}

impl Group {
    pub(crate) fn read(folder: &Path, name: &str) -> anyhow::Result<Self> {
        let path = folder.join(format!("{name}.yaml"));
        let failed = || format!("cannot read the scripts of {}", path.display());
        let text = std::fs::read_to_string(&path).with_context(failed)?;
        let value: Value = serde_saphyr::from_str_with_options(&text, yaml_1_2()).with_context(failed)?;
        Self::parse(&value).with_context(failed)
    }

    fn parse(value: &Value) -> anyhow::Result<Self> {
        let list = |key: &str| value.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
        let install = list("install").iter().filter_map(Value::as_str).map(str::to_owned).collect();
        let define = value.get("define").and_then(Value::as_object).cloned().unwrap_or_default();
        let scripts = value.get("scripts").and_then(Value::as_object).context("`scripts` must map names to steps")?;
        let scripts = scripts.iter().map(|(name, steps)| Script::parse(name, steps)).collect::<anyhow::Result<_>>()?;
        Ok(Self { install, constants: pairs(value.get("let")), define, scripts })
    }
}

impl Script {
    pub(crate) fn parse(name: &str, steps: &Value) -> anyhow::Result<Self> {
        let list = steps.as_array().with_context(|| format!("{name}: the steps must be a list"))?;
        let parsed: anyhow::Result<Vec<Step>> = list.iter().map(Step::parse).collect();
        let parsed = parsed.with_context(|| format!("in {name}"))?;
        Ok(Self { name: name.to_owned(), steps: parsed, text: steps.to_string() })
    }

    /// Returns the namespace of the script, the same on both sides. A name has at most 63 characters.
    pub(crate) fn namespace(&self) -> String {
        let name: String = self.name.replace('_', "-").chars().take(60).collect();
        name.trim_end_matches('-').to_owned()
    }
}

impl Step {
    fn parse(value: &Value) -> anyhow::Result<Self> {
        let step = value.as_object().with_context(|| format!("a step must be a map: {value}"))?;
        if let Some(unknown) =
            step.keys().find(|key| !["do", "as", "headers", "body", "keep", "until", "events"].contains(&key.as_str()))
        {
            bail!("unknown key {unknown:?} in step {value}");
        }
        let line =
            step.get("do").and_then(Value::as_str).with_context(|| format!("a step needs `do: VERB path`: {value}"))?;
        let (verb, path) = line.split_once(' ').with_context(|| format!("`do` must be a verb and a path: {line}"))?;
        Ok(Self {
            verb: verb.to_owned(),
            path: path
                .strip_prefix('~')
                .map_or_else(|| path.to_owned(), |rest| format!("/api/v1/namespaces/{{ns}}{rest}")),
            content: step.get("as").and_then(Value::as_str).map(str::to_owned),
            headers: pairs(step.get("headers")),
            body: step.get("body").cloned(),
            keep: pairs(step.get("keep")),
            until: pairs(step.get("until")),
            events: step
                .get("events")
                .and_then(Value::as_u64)
                .and_then(|count| usize::try_from(count).ok())
                .unwrap_or(1),
        })
    }
}

fn pairs(value: Option<&Value>) -> Vec<(String, String)> {
    let map = value.and_then(Value::as_object).into_iter().flatten();
    map.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn misspelt_key_of_a_step_is_refused_by_name() {
        let group = json!({"scripts": {"a_script": [{"do": "GET /api", "keeps": {}}]}});
        let refusal = format!("{:#}", Group::parse(&group).unwrap_err());
        assert!(refusal.contains("in a_script") && refusal.contains("\"keeps\""), "{refusal}");
    }

    #[test]
    fn namespace_is_a_label_whatever_the_length_of_the_name() {
        let script = Script { name: "a_b".repeat(40), steps: Vec::new(), text: String::new() };
        assert!(script.namespace().len() <= 63 && !script.namespace().contains('_'));
    }
}
