//! Reads the body of a REST request that makes an OpsJob. Source: docs/opsjob-rest.md 4.
//!
//! Takes the bytes; yields a spec that a resource could have, or the first error. The rules of resources apply too. May not read anything. A typo in
//! a body reboots machines, so the host refuses unknown parts unless the client asks otherwise.

use std::collections::BTreeSet;

use indexmap::IndexMap;
use serde_json::{Map, Value, json};

use crate::object::bound::shown;
use crate::ops_job::json_tree::{NoTree, Tree};
use crate::ops_job::nearest::nearest;
use crate::ops_job::refusal::{Code, OpsRefusal};
use crate::ops_job::spec::{Defaults, FIELDS_OF_TYPES, OpsSpec, OpsType};

/// The most bytes of a name.
const NAME: usize = 256;
/// The most fields of one object of the body. No valid object has nearly as many.
const KEYS: usize = 1_000;
/// The most ignored parts of a body that the host names to the client.
const TOLD: usize = 20;

/// The limits of a request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyBounds {
    /// The most bytes.
    pub bytes: usize,
    /// The most values. Each object, list, text, number, flag and null counts.
    pub values: usize,
}

impl BodyBounds {
    /// The limits for callers with permissions in the whole cluster. 5,000 inputs and 5,000 excluded nodes fit.
    pub const CLUSTER_WIDE: Self = Self { bytes: 2 * 1024 * 1024, values: 25_000 };
    /// The limits for all other callers.
    pub const OTHERS: Self = Self { bytes: 64 * 1024, values: 2_000 };

    /// Returns the refusal of a body with too many bytes.
    pub fn too_many_bytes(self) -> OpsRefusal {
        self.too_large(format!("the body has more than {} bytes", self.bytes), Self::CLUSTER_WIDE.bytes)
    }

    /// Returns the refusal of a body with too many values.
    pub fn too_many_values(self) -> OpsRefusal {
        self.too_large(format!("the body has more than {} values", self.values), Self::CLUSTER_WIDE.values)
    }

    fn too_large(self, message: String, most: usize) -> OpsRefusal {
        let advice = match self {
            Self::CLUSTER_WIDE => "split the job",
            _ => "only callers that may create opsjobs of a type in the whole cluster may send more, up to",
        };
        let most = if self == Self::CLUSTER_WIDE { String::new() } else { format!(" {most}") };
        OpsRefusal::new(Code::TooLarge, format!("{message}; {advice}{most}"))
    }
}

/// The handling of the parts of a body that no job takes, as in the Kubernetes API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// The host refuses the body.
    #[default]
    Strict,
    /// The host ignores the part and tells the client.
    Warn,
    /// The host ignores the part.
    Ignore,
}

impl FieldValidation {
    /// Returns the mode with this name.
    pub fn read(word: &str) -> Option<Self> {
        match word {
            "Strict" => Some(Self::Strict),
            "Warn" => Some(Self::Warn),
            "Ignore" => Some(Self::Ignore),
            _ => None,
        }
    }
}

/// The type of a field of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldForm {
    /// A text.
    Text,
    /// A whole number that fits 32 bits.
    Whole,
    /// A number above 0 and up to 1.
    Ratio,
    /// True or false.
    Flag,
    /// A list of texts.
    Texts,
    /// A list of `{name, value}`.
    Inputs,
    /// An object whose values are texts.
    Variables,
    /// The resources that a check requests.
    Resource,
}

/// The body field of a preflight that means the input `workspace`.
const WORKSPACE: &str = "workspaceId";
/// The fields of an input of a job.
const INPUT: [&str; 2] = ["name", "value"];

/// The fields of a body. Their names are read without regard to ASCII case, as Go clients may send them.
pub const FIELDS: [(&str, FieldForm); 18] = [
    ("name", FieldForm::Text),
    ("type", FieldForm::Text),
    ("inputs", FieldForm::Inputs),
    ("timeoutSecond", FieldForm::Whole),
    ("ttlSecondsAfterFinished", FieldForm::Whole),
    ("excludedNodes", FieldForm::Texts),
    ("isTolerateAll", FieldForm::Flag),
    ("batchCount", FieldForm::Whole),
    ("availableRatio", FieldForm::Ratio),
    ("securityUpgrade", FieldForm::Flag),
    ("securityOperation", FieldForm::Flag),
    ("resource", FieldForm::Resource),
    ("replica", FieldForm::Whole),
    (WORKSPACE, FieldForm::Text),
    ("image", FieldForm::Text),
    ("entryPoint", FieldForm::Text),
    ("env", FieldForm::Variables),
    ("hostpath", FieldForm::Texts),
];

/// The fields of `resource`.
pub const RESOURCE_FIELDS: [&str; 8] =
    ["cpu", "gpu", "gpuName", "memory", "sharedMemory", "ephemeralStorage", "rdmaResource", "replica"];

/// A valid body.
#[derive(Clone, Debug, PartialEq)]
pub struct Body {
    /// The job name as the client wrote it.
    pub name: String,
    /// The spec of the resource.
    pub spec: Map<String, Value>,
    /// The same spec, checked and typed.
    pub asked: OpsSpec,
    /// Messages about the ignored parts of the body.
    pub ignored: Vec<String>,
    /// The handling of the parts that no job takes.
    pub mode: FieldValidation,
    /// The digest of the body's content. Another digest under the same idempotency key means another request.
    pub digest: String,
}

impl Body {
    /// Reads a body from a caller with permissions in the whole cluster.
    ///
    /// # Errors
    /// If the body breaks a rule. The refusal names the first error.
    pub fn read(bytes: &[u8], mode: FieldValidation, defaults: Defaults) -> Result<Self, OpsRefusal> {
        Self::read_within(BodyBounds::CLUSTER_WIDE, bytes, mode, defaults)
    }

    /// Reads a body within these limits.
    ///
    /// # Errors
    /// If the body breaks a rule. The refusal names the first error.
    pub fn read_within(
        bounds: BodyBounds,
        bytes: &[u8],
        mode: FieldValidation,
        defaults: Defaults,
    ) -> Result<Self, OpsRefusal> {
        if bytes.len() > bounds.bytes {
            return Err(bounds.too_many_bytes());
        }
        let tree = Tree::read(bytes, bounds.values).map_err(|failed| match failed {
            NoTree::Malformed(why) => OpsRefusal::bad(format!("the body is no JSON: {why}")),
            NoTree::TooManyValues => bounds.too_many_values(),
        })?;
        let digest = tree.digest();
        let Tree::Fields(fields) = tree else { return Err(OpsRefusal::bad("the body must be a JSON object")) };
        let mut reader = Reader { mode, ignored: Vec::new() };
        let kind = type_of(&fields)?;
        let mut spec = reader.spec(fields, kind)?;
        let name = match spec.shift_remove("name") {
            Some(Value::String(name)) => name,
            _ => String::new(),
        };
        if name.len() > NAME || !name.chars().any(shows) || name.contains('\0') {
            let rule = format!(
                "name: must have 1 to {NAME} bytes, with at least one letter, digit or other visible character"
            );
            return Err(OpsRefusal::bad(rule));
        }
        spec.insert("jobName".to_owned(), json!(name));
        let asked = OpsSpec::read(&Value::Object(spec.clone()), defaults);
        let asked = asked.map_err(|broken| OpsRefusal::bad(format!("{}: {}", broken.field, broken.rule)))?;
        Ok(Self { name, spec, asked, ignored: reader.ignored, mode, digest })
    }
}

/// Returns true for a letter or digit of any script, and for a sign beyond ASCII that is not blank.
fn shows(sign: char) -> bool {
    let is_blank = || {
        sign.is_whitespace()
            || sign.is_control()
            || matches!(sign, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
                | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e0fff}')
    };
    // Some blank fillers count as letters.
    !is_blank() && (sign.is_alphanumeric() || !sign.is_ascii())
}

/// Returns the type that a body names. The type decides which other fields the body may have.
fn type_of(fields: &[(String, Tree)]) -> Result<OpsType, OpsRefusal> {
    let words = OpsType::ALL.map(OpsType::word);
    let known = words.join(", ");
    let said = fields.iter().rev().find(|(key, value)| key.eq_ignore_ascii_case("type") && *value != Tree::Null);
    match said {
        Some((_, Tree::Text(word))) => OpsType::read(word).ok_or_else(|| {
            let near = nearest(word, &words).map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            OpsRefusal::bad(format!("type: one of {known}, and is {:?}{near}", shown(word, 64)))
        }),
        Some(_) => Err(OpsRefusal::bad(format!("type: text, one of {known}"))),
        None => Err(OpsRefusal::bad(format!("type: required, one of {known}"))),
    }
}

struct Reader {
    mode: FieldValidation,
    ignored: Vec<String>,
}

impl Reader {
    /// Refuses a part that no job takes, or ignores it, depending on the mode.
    fn unwanted(&mut self, message: String) -> Result<(), OpsRefusal> {
        match self.mode {
            FieldValidation::Strict => return Err(OpsRefusal::bad(message)),
            FieldValidation::Warn if self.ignored.len() < TOLD => self.ignored.push(message),
            FieldValidation::Warn | FieldValidation::Ignore => {}
        }
        Ok(())
    }

    /// Returns one value for each key. `path` is the path of the object, with a dot at its end. A key that differs from a `known` key only in ASCII
    /// case counts as the known key.
    fn unique(
        &mut self,
        path: &str,
        known: &[&str],
        fields: Vec<(String, Tree)>,
    ) -> Result<Vec<(String, Tree)>, OpsRefusal> {
        let mut unique: IndexMap<String, Tree> = IndexMap::new();
        for (key, value) in fields {
            let key = known.iter().find(|own| own.eq_ignore_ascii_case(&key)).map_or(key, |own| (*own).to_owned());
            let Some(before) = unique.get_mut(&key) else {
                if unique.len() >= KEYS {
                    return Err(OpsRefusal::bad(format!("{path}{}: more than {KEYS} fields", shown(&key, 64))));
                }
                unique.insert(key, value);
                continue;
            };
            match (before, value) {
                (_, Tree::Null) => {}
                (before @ Tree::Null, value) => *before = value,
                (Tree::List(before), Tree::List(more)) if path.is_empty() && is_united(&key) => before.extend(more),
                (before, value) if *before == value => {}
                (before, value) => {
                    *before = value;
                    let message = format!("{path}{}: given twice, with different values", shown(&key, 64));
                    // The host must not guess which of two selectors the client means.
                    if path.starts_with("inputs") || path.is_empty() && (key == "inputs" || key == WORKSPACE) {
                        return Err(OpsRefusal::bad(message));
                    }
                    self.unwanted(message)?;
                }
            }
        }
        Ok(unique.into_iter().collect())
    }

    fn spec(&mut self, fields: Vec<(String, Tree)>, kind: OpsType) -> Result<Map<String, Value>, OpsRefusal> {
        let known = FIELDS.map(|(name, _)| name);
        let mut spec = Map::new();
        let (mut aliases, mut workspace) = (Aliases::default(), None);
        for (key, value) in self.unique("", &known, fields)? {
            let Some((_, form)) = FIELDS.into_iter().find(|(name, _)| *name == key) else {
                let near = nearest(&key, &known).map(|near| format!("; did you mean {near}?")).unwrap_or_default();
                let message = format!("{}: no field of an OpsJob{near}", shown(&key, 64));
                if selects(&key) && !value.is_zero() {
                    return Err(OpsRefusal::bad(format!("{message}; name the targets in inputs")));
                }
                self.unwanted(message)?;
                continue;
            };
            if key == WORKSPACE {
                workspace = workspace_of(kind, value)?;
                continue;
            }
            let of_resource = if key == "securityOperation" { "securityUpgrade" } else { key.as_str() };
            if let Some((_, types)) = FIELDS_OF_TYPES.iter().find(|(name, _)| *name == of_resource)
                && !types.contains(&kind)
            {
                if !value.is_zero() {
                    let types = types.iter().map(|of| of.word()).collect::<Vec<_>>().join(", ");
                    self.unwanted(format!("{key}: for {types}, and the type is {}", kind.word()))?;
                }
                continue;
            }
            if value == Tree::Null {
                continue;
            }
            let value = self.value(&key, form, value, &mut aliases)?;
            match of_resource {
                "securityUpgrade" => aliases.add("securityUpgrade", &key, value)?,
                "replica" => aliases.add("replica", &key, value)?,
                _ => drop(spec.insert(key, value)),
            }
        }
        spec.extend(aliases.0.into_iter().map(|(field, _, value)| (field.to_owned(), value)));
        if let Some((workspace, inputs)) = workspace.zip(spec.get_mut("inputs").and_then(Value::as_array_mut)) {
            add_workspace(inputs, &workspace)?;
        }
        Ok(spec)
    }

    fn value(&mut self, path: &str, form: FieldForm, value: Tree, aliases: &mut Aliases) -> Result<Value, OpsRefusal> {
        Ok(match (form, value) {
            (FieldForm::Text, Tree::Text(text)) => json!(text),
            (FieldForm::Flag, Tree::Flag(flag)) => json!(flag),
            (FieldForm::Whole, value @ Tree::Number(_)) => match value.whole() {
                Some(number) => json!(number),
                None => return Err(OpsRefusal::bad(format!("{path}: a whole number of 32 bits"))),
            },
            // The resource has the ratio as text, because a binary fraction differs from the written number.
            (FieldForm::Ratio, Tree::Number(text)) => json!(text),
            (FieldForm::Texts, Tree::List(items)) => texts(path, items)?,
            (FieldForm::Inputs, Tree::List(items)) => {
                let inputs = items.into_iter().enumerate();
                inputs.map(|(index, input)| self.input(index, input)).collect::<Result<Value, _>>()?
            }
            (FieldForm::Variables, Tree::Fields(fields)) => {
                let mut variables = Map::new();
                for (name, value) in self.unique(&format!("{path}."), &[], fields)? {
                    let Tree::Text(text) = value else {
                        return Err(OpsRefusal::bad(format!("{path}.{}: text", shown(&name, 64))));
                    };
                    variables.insert(name, json!(text));
                }
                Value::Object(variables)
            }
            (FieldForm::Resource, Tree::Fields(fields)) => self.resource(path, fields, aliases)?,
            (form, _) => return Err(OpsRefusal::bad(format!("{path}: {}", describe_form(form)))),
        })
    }

    fn input(&mut self, index: usize, input: Tree) -> Result<Value, OpsRefusal> {
        let path = format!("inputs[{index}]");
        let Tree::Fields(fields) = input else { return Err(OpsRefusal::bad(format!("{path}: an object"))) };
        let mut read = Map::new();
        for (key, value) in self.unique(&format!("{path}."), &INPUT, fields)? {
            if !INPUT.contains(&key.as_str()) {
                self.unwanted(format!("{path}.{}: an input has only the fields name and value", shown(&key, 64)))?;
                continue;
            }
            match value {
                Tree::Text(text) if key == "name" => drop(read.insert(key, json!(input_name(&text)))),
                Tree::Text(text) => drop(read.insert(key, json!(text))),
                Tree::Null => {}
                _ => return Err(OpsRefusal::bad(format!("{path}.{key}: text"))),
            }
        }
        if let Some(missing) = INPUT.into_iter().find(|field| !read.contains_key(*field)) {
            return Err(OpsRefusal::bad(format!("{path}.{missing}: required")));
        }
        Ok(Value::Object(read))
    }

    fn resource(
        &mut self,
        path: &str,
        fields: Vec<(String, Tree)>,
        aliases: &mut Aliases,
    ) -> Result<Value, OpsRefusal> {
        let mut read = Map::new();
        for (key, value) in self.unique(&format!("{path}."), &RESOURCE_FIELDS, fields)? {
            let own = format!("{path}.{}", shown(&key, 64));
            if !RESOURCE_FIELDS.contains(&key.as_str()) {
                let near = nearest(&key, &RESOURCE_FIELDS).map(|near| format!("; did you mean {near}?"));
                self.unwanted(format!("{own}: no field of a resource{}", near.unwrap_or_default()))?;
                continue;
            }
            match value {
                Tree::Null => {}
                value if key == "replica" => {
                    let value = self.value(&own, FieldForm::Whole, value, &mut Aliases::default())?;
                    aliases.add("replica", &own, value)?;
                }
                Tree::Text(text) if text.is_empty() => {}
                Tree::Text(text) => drop(read.insert(key, json!(text))),
                _ => return Err(OpsRefusal::bad(format!("{own}: text"))),
            }
        }
        Ok(Value::Object(read))
    }
}

/// Returns the resource's name of an input. Clients of this API use other spellings for some names.
fn input_name(text: &str) -> String {
    let name = text.trim().to_ascii_lowercase();
    match name.as_str() {
        "workloadid" => "workload".to_owned(),
        "addon_template" => "addon.template".to_owned(),
        "node_template" => "node.template".to_owned(),
        _ => name,
    }
}

/// Returns true if a field name means something that a job works on. The client believes that such a field narrows the job, so the host never ignores
/// it.
fn selects(key: &str) -> bool {
    let plain: String = key.chars().filter(char::is_ascii_alphanumeric).map(|sign| sign.to_ascii_lowercase()).collect();
    let one = plain.trim_end_matches('s');
    let one = one.strip_suffix("id").or_else(|| one.strip_suffix("name")).unwrap_or(one);
    matches!(one, "node" | "host" | "nodehost" | "workload" | "workspace" | "cluster" | "namespace" | "excludednode")
}

/// Returns the workspace that limits a preflight. Returns `None` if the value is empty.
fn workspace_of(kind: OpsType, value: Tree) -> Result<Option<String>, OpsRefusal> {
    match value {
        value if value.is_zero() && (kind != OpsType::Preflight || matches!(value, Tree::Null | Tree::Text(_))) => {
            Ok(None)
        }
        Tree::Text(workspace) if kind == OpsType::Preflight => Ok(Some(workspace)),
        // The field narrows the job, so the host ignores it in no mode.
        Tree::Text(_) => Err(OpsRefusal::bad(format!(
            "{WORKSPACE}: only for preflight, and the type is {}; use the input workspace",
            kind.word()
        ))),
        _ => Err(OpsRefusal::bad(format!("{WORKSPACE}: text"))),
    }
}

/// Adds the workspace to the inputs, which may already have the same workspace.
fn add_workspace(inputs: &mut Vec<Value>, workspace: &str) -> Result<(), OpsRefusal> {
    let is_workspace = |input: &&Value| input.get("name").is_some_and(|name| name == "workspace");
    match inputs.iter().find(is_workspace) {
        Some(input) if input.get("value").is_some_and(|value| value == workspace) => {}
        Some(_) => {
            let message = "differs from the input workspace, which is the same selector; give only one of them";
            return Err(OpsRefusal::bad(format!("{WORKSPACE}: {message}")));
        }
        // A body without inputs is refused later for the missing inputs.
        None if inputs.is_empty() => {}
        None => inputs.push(json!({"name": "workspace", "value": workspace})),
    }
    Ok(())
}

/// The values of fields with two names, each with the name that the client used. Zero values count as absent.
#[derive(Default)]
struct Aliases(Vec<(&'static str, String, Value)>);

impl Aliases {
    fn add(&mut self, field: &'static str, name: &str, value: Value) -> Result<(), OpsRefusal> {
        if value == json!(false) || value == json!(0) {
            return Ok(());
        }
        match self.0.iter().find(|(known, ..)| *known == field) {
            Some((_, other, before)) if *before != value => Err(OpsRefusal::bad(format!(
                "{name}: differs from {other}, which is the same field; give only one of them"
            ))),
            Some(_) => Ok(()),
            None => {
                self.0.push((field, name.to_owned(), value));
                Ok(())
            }
        }
    }
}

/// Returns true for lists that are merged if their key is repeated.
fn is_united(key: &str) -> bool {
    matches!(key, "hostpath" | "excludedNodes")
}

/// Returns the texts without duplicates.
fn texts(path: &str, items: Vec<Tree>) -> Result<Value, OpsRefusal> {
    let (mut seen, mut texts) = (BTreeSet::new(), Vec::new());
    for (index, item) in items.into_iter().enumerate() {
        let Tree::Text(text) = item else { return Err(OpsRefusal::bad(format!("{path}[{index}]: text"))) };
        if seen.insert(text.clone()) {
            texts.push(text);
        }
    }
    Ok(json!(texts))
}

const fn describe_form(form: FieldForm) -> &'static str {
    match form {
        FieldForm::Text => "text",
        FieldForm::Whole => "a whole number of 32 bits",
        FieldForm::Ratio => "a number above 0 and up to 1",
        FieldForm::Flag => "true or false",
        FieldForm::Texts => "a list of texts",
        FieldForm::Inputs => "a list of objects with name and value",
        FieldForm::Variables => "an object with texts",
        FieldForm::Resource => "an object",
    }
}

#[cfg(test)]
#[path = "body_tests.rs"]
mod tests;
