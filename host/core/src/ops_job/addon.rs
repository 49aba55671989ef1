//! The scripts that an addon runs on its nodes: those of templates, and its own. Source: docs/opsjob.md 10.
//!
//! Takes what the inputs of a job name and the templates as they are stored; yields steps with their text, in order. May not look
//! anything up. A job has the scripts as they were when its OperationJob was made: that names each by its digest.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::child::fields::{list, number, text};
use crate::cluster::object::Kind;
use crate::cluster::scripts::sha256;
use crate::ops_job::child::API_VERSION;
use crate::plugin::task::ScriptOrigin;

/// Most steps of a job.
pub const STEPS: usize = 6;
/// Most bytes of a script.
pub const SCRIPT: usize = 256 * 1024;
/// What a script of a job is known by.
const OWN_SCRIPT: &str = "script";

/// A kind of templates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TemplateKind {
    /// One script.
    Addon,
    /// A list of them.
    Node,
}

impl TemplateKind {
    /// The kind as Kubernetes has it.
    pub fn kind(self) -> Kind {
        Kind::new(API_VERSION, self.word())
    }

    /// Its word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Addon => "AddonTemplate",
            Self::Node => "NodeTemplate",
        }
    }
}

/// What a job names as something to run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StepSource {
    /// A template, by name.
    Template(TemplateKind, String),
    /// A script of its own: its text.
    Script(String),
}

impl StepSource {
    /// The memory that it takes.
    pub fn bytes(&self) -> usize {
        let (Self::Template(_, text) | Self::Script(text)) = self;
        size_of::<Self>() + text.len()
    }
}

/// A script with what is said of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddonStep {
    /// What people know it by.
    pub name: String,
    /// Its text.
    pub script: String,
    /// Where it came from.
    origin: ScriptOrigin,
    /// The other fields, as the parameters of its child have them.
    fields: Map<String, Value>,
}

impl AddonStep {
    /// As the parameters of a child have it.
    pub fn parameter(&self) -> Value {
        let mut fields = self.fields.clone();
        fields.insert("name".to_owned(), json!(self.name));
        fields.insert("script".to_owned(), json!({"sha256": sha256(&self.script), "origin": self.origin}));
        Value::Object(fields)
    }

    fn read(name: &str, spec: &Value) -> Option<Self> {
        let script = text(spec, "/script").filter(|script| is_script(script))?.to_owned();
        let mut fields = Map::new();
        for field in ["gpuChip", "interpreter"] {
            fields.extend(text(spec, &format!("/{field}")).map(|value| (field.to_owned(), json!(value))));
        }
        fields.extend(number(spec, "/timeoutSeconds").map(|seconds| ("timeoutSeconds".to_owned(), json!(seconds))));
        let required = spec.get("required").and_then(Value::as_bool);
        fields.extend(required.map(|required| ("required".to_owned(), json!(required))));
        Some(Self { name: name.to_owned(), script, origin: ScriptOrigin::Template, fields })
    }
}

/// True of a text that can be a script.
pub fn is_script(text: &str) -> bool {
    (1..=SCRIPT).contains(&text.len()) && !text.contains('\0')
}

/// Why there are no steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepsRefused {
    /// There is no template of this name.
    NotFound(TemplateKind, String),
    /// What a template has is no script.
    NoScript(TemplateKind, String),
    /// There are more of them than a job may have.
    TooMany(usize),
}

impl StepsRefused {
    /// The same in words.
    pub fn words(&self) -> String {
        match self {
            Self::NotFound(kind, name) => format!("there is no {} {name}", kind.word()),
            Self::NoScript(kind, name) => {
                format!("{} {name} has a script that is none: 1 to {SCRIPT} bytes, none of them 0", kind.word())
            }
            Self::TooMany(steps) => format!("the templates come to {steps} steps, and a job has {STEPS} at most"),
        }
    }
}

/// The AddonTemplates that sources and the steps of their NodeTemplates name, each once.
pub fn addon_templates(sources: &[StepSource], node_template: impl Fn(&str) -> Option<Value>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for source in sources {
        match source {
            StepSource::Template(TemplateKind::Addon, name) => drop(names.insert(name.clone())),
            StepSource::Template(TemplateKind::Node, name) => {
                let template = node_template(name).unwrap_or_default();
                let steps = list(&template, "/spec/steps").iter().take(STEPS);
                names.extend(steps.filter_map(|step| text(step, "/template")).map(str::to_owned));
            }
            StepSource::Script(_) => {}
        }
    }
    names
}

/// The steps of sources, in order: NodeTemplates are expanded in their place, and a template is there once.
///
/// # Errors
/// Why there are none.
pub fn steps(
    sources: &[StepSource],
    template: impl Fn(TemplateKind, &str) -> Option<Value>,
) -> Result<Vec<AddonStep>, StepsRefused> {
    let mut known = BTreeSet::new();
    let mut steps = Vec::new();
    let addon = |name: &str, known: &mut BTreeSet<String>| -> Result<Option<AddonStep>, StepsRefused> {
        if !known.insert(name.to_owned()) {
            return Ok(None);
        }
        let kind = TemplateKind::Addon;
        let found = template(kind, name).ok_or_else(|| StepsRefused::NotFound(kind, name.to_owned()))?;
        let step = AddonStep::read(name, found.get("spec").unwrap_or(&Value::Null));
        step.map(Some).ok_or_else(|| StepsRefused::NoScript(kind, name.to_owned()))
    };
    for source in sources {
        match source {
            StepSource::Template(TemplateKind::Addon, name) => steps.extend(addon(name, &mut known)?),
            StepSource::Template(kind @ TemplateKind::Node, name) => {
                let found = template(*kind, name).ok_or_else(|| StepsRefused::NotFound(*kind, name.clone()))?;
                for (index, step) in list(&found, "/spec/steps").iter().enumerate() {
                    match text(step, "/template") {
                        Some(named) => steps.extend(addon(named, &mut known)?),
                        None => {
                            let step = AddonStep::read(&format!("{name}[{index}]"), step);
                            steps.push(step.ok_or_else(|| StepsRefused::NoScript(*kind, name.clone()))?);
                        }
                    }
                }
            }
            StepSource::Script(script) => {
                let (name, script) = (OWN_SCRIPT.to_owned(), script.clone());
                steps.push(AddonStep { name, script, origin: ScriptOrigin::Input, fields: Map::new() });
            }
        }
    }
    if steps.len() > STEPS { Err(StepsRefused::TooMany(steps.len())) } else { Ok(steps) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(kind: TemplateKind, name: &str) -> Option<Value> {
        match (kind, name) {
            (TemplateKind::Addon, "a" | "b") => {
                Some(json!({"spec": {"script": name, "gpuChip": "amd", "required": false}}))
            }
            (TemplateKind::Addon, "empty") => Some(json!({"spec": {}})),
            (TemplateKind::Node, "n") => Some(
                json!({"spec": {"steps": [{"template": "b"}, {"script": "own", "timeoutSeconds": 7}, {"template": "a"}]}}),
            ),
            (TemplateKind::Node, "many") => Some(json!({"spec": {"steps": vec![json!({"script": "x"}); 6]}})),
            (TemplateKind::Node, "open") => Some(json!({"spec": {"steps": [{"template": "missing"}]}})),
            _ => None,
        }
    }

    fn addon(name: &str) -> StepSource {
        StepSource::Template(TemplateKind::Addon, name.to_owned())
    }

    fn node(name: &str) -> StepSource {
        StepSource::Template(TemplateKind::Node, name.to_owned())
    }

    fn refused(sources: &[StepSource]) -> String {
        steps(sources, template).unwrap_err().words()
    }

    #[test]
    fn templates_are_expanded_in_their_place_and_are_there_once() {
        let sources = [addon("a"), node("n"), addon("b"), StepSource::Script("mine".to_owned())];
        let names: Vec<String> = steps(&sources, template).unwrap().into_iter().map(|step| step.name).collect();
        assert_eq!(names, ["a", "b", "n[1]", "script"]);
        let named = addon_templates(&sources, |name| template(TemplateKind::Node, name));
        assert_eq!(named.into_iter().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn a_step_names_its_script_by_digest_and_has_what_is_said_of_it() {
        let all = steps(&[node("n")], template).unwrap();
        let expected = json!({"gpuChip": "amd", "required": false, "name": "b", "script": {"sha256": sha256("b"), "origin": "template"}});
        assert_eq!(all[0].parameter(), expected);
        let expected =
            json!({"timeoutSeconds": 7, "name": "n[1]", "script": {"sha256": sha256("own"), "origin": "template"}});
        assert_eq!(all[1].parameter(), expected);
    }

    #[test]
    fn what_cannot_run_is_said_by_name() {
        assert_eq!(refused(&[addon("missing")]), "there is no AddonTemplate missing");
        assert_eq!(refused(&[node("missing")]), "there is no NodeTemplate missing");
        assert_eq!(refused(&[node("open")]), "there is no AddonTemplate missing");
        assert!(refused(&[addon("empty")]).starts_with("AddonTemplate empty has a script that is none"));
        assert_eq!(refused(&[node("many"), addon("a")]), "the templates come to 7 steps, and a job has 6 at most");
    }
}
