//! Resolves the scripts that an addon runs on its nodes: scripts of templates, and the job's own script. Source: docs/opsjob.md 10.
//!
//! Takes the sources that a job's inputs name, and the stored templates; yields steps with their text, in order. May not read anything. A job keeps
//! the scripts of the time when the host made its OperationJob, which names each script by its digest.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::object::api_object::Kind;
use crate::object::fields::{list, number, text};
use crate::ops_job::names::API_VERSION;
use crate::plugin::task::ScriptOrigin;
use crate::requests::scripts::sha256;

/// The most steps of a job.
pub const STEPS: usize = 6;
/// The most bytes of a script.
pub const SCRIPT: usize = 256 * 1024;
/// The name of a job's own script.
const OWN_SCRIPT: &str = "script";

/// The kind of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TemplateKind {
    /// An AddonTemplate, which has one script.
    Addon,
    /// A NodeTemplate, which has a list of scripts.
    Node,
}

impl TemplateKind {
    /// Returns the Kubernetes kind.
    pub fn kind(self) -> Kind {
        Kind::new(API_VERSION, self.word())
    }

    /// Returns the name of the kind.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Addon => "AddonTemplate",
            Self::Node => "NodeTemplate",
        }
    }
}

/// A source of steps that a job's inputs name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StepSource {
    /// A template, by kind and name.
    Template(TemplateKind, String),
    /// The text of the job's own script.
    Script(String),
}

impl StepSource {
    /// Returns the memory of the source, in bytes.
    pub fn bytes(&self) -> usize {
        let (Self::Template(_, text) | Self::Script(text)) = self;
        size_of::<Self>() + text.len()
    }
}

/// A script with its name and settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddonStep {
    /// Name of the step for people.
    pub name: String,
    /// Text of the script.
    pub script: String,
    /// Origin of the script: a template or the job's inputs.
    origin: ScriptOrigin,
    /// The other settings, in the form of the OperationJob's parameters.
    fields: Map<String, Value>,
}

impl AddonStep {
    /// Returns the step in the form of the OperationJob's parameters.
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

/// Returns true if the text can be a script.
pub fn is_script(text: &str) -> bool {
    (1..=SCRIPT).contains(&text.len()) && !text.contains('\0')
}

/// The reason why the steps cannot be resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepsRefused {
    /// The template with this kind and name does not exist.
    NotFound(TemplateKind, String),
    /// The template with this kind and name has an invalid script.
    NoScript(TemplateKind, String),
    /// The sources have this number of steps, more than a job may have.
    TooMany(usize),
}

impl StepsRefused {
    /// Returns the reason in words.
    pub fn describe(&self) -> String {
        match self {
            Self::NotFound(kind, name) => format!("there is no {} {name}", kind.word()),
            Self::NoScript(kind, name) => {
                format!(
                    "{} {name} has an invalid script: it must have 1 to {SCRIPT} bytes without NUL bytes",
                    kind.word()
                )
            }
            Self::TooMany(steps) => format!("the templates come to {steps} steps, and a job has {STEPS} at most"),
        }
    }
}

/// Returns the AddonTemplates that the sources and their NodeTemplates name, without duplicates.
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

/// Returns the steps of the sources, in order. The steps of a NodeTemplate take its place. An AddonTemplate that is named twice counts once.
///
/// # Errors
/// If a template does not exist, if a script is invalid, or if there are too many steps.
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
        steps(sources, template).unwrap_err().describe()
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
        assert!(refused(&[addon("empty")]).starts_with("AddonTemplate empty has an invalid script"));
        assert_eq!(refused(&[node("many"), addon("a")]), "the templates come to 7 steps, and a job has 6 at most");
    }
}
