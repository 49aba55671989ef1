//! The body of a request that makes an OpsJob, as the spec of one. Source: docs/opsjob-rest.md 4.
//!
//! Takes the bytes; yields a spec that a resource could have as well, checked by the rules of resources, or the first thing that is
//! wrong. May not look anything up. A typo here reboots machines, so what is not known is refused unless the client asks otherwise.

use std::collections::BTreeSet;

use indexmap::IndexMap;
use serde_json::{Map, Value, json};

use crate::job::bound::shown;
use crate::ops_job::json_tree::{NoTree, Tree};
use crate::ops_job::nearest::nearest;
use crate::ops_job::refusal::{Code, OpsRefusal};
use crate::ops_job::spec::{Defaults, FIELDS_OF_TYPES, OpsSpec, OpsType};

/// Most bytes of a name.
const NAME: usize = 256;
/// Most fields of one object of it: far more than any has that means something.
const KEYS: usize = 1_000;
/// Most things of a body that a client is told were ignored.
const TOLD: usize = 20;

/// The bounds of a request body: its bytes and its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyBounds {
    /// Most bytes.
    pub bytes: usize,
    /// Most values: each object, list, text, number, flag and null counts.
    pub values: usize,
}

impl BodyBounds {
    /// The bounds of callers with rights in the whole cluster. 5,000 inputs and 5,000 excluded nodes fit.
    pub const CLUSTER_WIDE: Self = Self { bytes: 2 * 1024 * 1024, values: 25_000 };
    /// The bounds of all other callers.
    pub const OTHERS: Self = Self { bytes: 64 * 1024, values: 2_000 };

    /// Refuses a body with more than these bytes.
    pub fn too_many_bytes(self) -> OpsRefusal {
        self.too_large(format!("the body has more than {} bytes", self.bytes), Self::CLUSTER_WIDE.bytes)
    }

    /// Refuses a body with more than these values.
    pub fn too_many_values(self) -> OpsRefusal {
        self.too_large(format!("the body has more than {} values", self.values), Self::CLUSTER_WIDE.values)
    }

    fn too_large(self, words: String, most: usize) -> OpsRefusal {
        let advice = match self {
            Self::CLUSTER_WIDE => "split the job",
            _ => "only callers that may create opsjobs of a type in the whole cluster may send more, up to",
        };
        let most = if self == Self::CLUSTER_WIDE { String::new() } else { format!(" {most}") };
        OpsRefusal::new(Code::TooLarge, format!("{words}; {advice}{most}"))
    }
}

/// What is done with what a body has and no job takes, as the Kubernetes API has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// It is refused.
    #[default]
    Strict,
    /// It is ignored, and the client told.
    Warn,
    /// It is ignored.
    Ignore,
}

impl FieldValidation {
    /// The mode of this word.
    pub fn read(word: &str) -> Option<Self> {
        match word {
            "Strict" => Some(Self::Strict),
            "Warn" => Some(Self::Warn),
            "Ignore" => Some(Self::Ignore),
            _ => None,
        }
    }
}

/// What a field of a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldForm {
    /// Text.
    Text,
    /// A whole number of 32 bits.
    Whole,
    /// A number above 0 and up to 1.
    Ratio,
    /// True or false.
    Flag,
    /// A list of texts.
    Texts,
    /// A list of `{name, value}`.
    Inputs,
    /// Text by name.
    Variables,
    /// What a check requests.
    Resource,
}

/// The field of a preflight that is the input `workspace`.
const WORKSPACE: &str = "workspaceId";
/// The fields of an input.
const INPUT: [&str; 2] = ["name", "value"];

/// The fields of a body. Their names are read in any case of ASCII, as Go clients may send them.
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

/// A body that breaks no rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Body {
    /// Its name, as it is written.
    pub name: String,
    /// The spec of its resource.
    pub spec: Map<String, Value>,
    /// That spec with types.
    pub asked: OpsSpec,
    /// What is told of what it has and no job takes.
    pub ignored: Vec<String>,
    /// What is done with that.
    pub mode: FieldValidation,
    /// The digest of what it says: another one under the same key is another request.
    pub digest: String,
}

impl Body {
    /// Reads a body of a caller with rights in the whole cluster.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn read(bytes: &[u8], mode: FieldValidation, defaults: Defaults) -> Result<Self, OpsRefusal> {
        Self::read_within(BodyBounds::CLUSTER_WIDE, bytes, mode, defaults)
    }

    /// Reads a body within these bounds.
    ///
    /// # Errors
    /// The first thing that is wrong.
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
        let Tree::Fields(fields) = tree else { return Err(OpsRefusal::bad("the body: an object")) };
        let mut reader = Reader { mode, ignored: Vec::new() };
        let kind = type_of(&fields)?;
        let mut spec = reader.spec(fields, kind)?;
        let name = match spec.shift_remove("name") {
            Some(Value::String(name)) => name,
            _ => String::new(),
        };
        if name.len() > NAME || !name.chars().any(shows) || name.contains('\0') {
            let rule = format!("name: 1 to {NAME} bytes, with a letter, a digit or another sign that shows");
            return Err(OpsRefusal::bad(rule));
        }
        spec.insert("jobName".to_owned(), json!(name));
        let asked = OpsSpec::read(&Value::Object(spec.clone()), defaults);
        let asked = asked.map_err(|broken| OpsRefusal::bad(format!("{}: {}", broken.field, broken.rule)))?;
        Ok(Self { name, spec, asked, ignored: reader.ignored, mode, digest })
    }
}

/// True of a letter or a digit of any script, and of signs beyond ASCII that are not blank.
fn shows(sign: char) -> bool {
    let is_blank = || {
        sign.is_whitespace()
            || sign.is_control()
            || matches!(sign, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
                | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e0fff}')
    };
    // Some fillers count as letters.
    !is_blank() && (sign.is_alphanumeric() || !sign.is_ascii())
}

/// The type that a body says, which decides what else it may have.
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
    /// Refuses what no job takes, or ignores it.
    fn unwanted(&mut self, message: String) -> Result<(), OpsRefusal> {
        match self.mode {
            FieldValidation::Strict => return Err(OpsRefusal::bad(message)),
            FieldValidation::Warn if self.ignored.len() < TOLD => self.ignored.push(message),
            FieldValidation::Warn | FieldValidation::Ignore => {}
        }
        Ok(())
    }

    /// One value for each key. `path` is that of the object, with its point; a key of `known` is one in any case of ASCII.
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
                    // The host does not guess which of two selectors is meant.
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
                    return Err(OpsRefusal::bad(format!("{message}; on what it works, the inputs say")));
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
            // The resource has it as text, since a binary fraction is not what was written.
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
            (form, _) => return Err(OpsRefusal::bad(format!("{path}: {}", words(form)))),
        })
    }

    fn input(&mut self, index: usize, input: Tree) -> Result<Value, OpsRefusal> {
        let path = format!("inputs[{index}]");
        let Tree::Fields(fields) = input else { return Err(OpsRefusal::bad(format!("{path}: an object"))) };
        let mut read = Map::new();
        for (key, value) in self.unique(&format!("{path}."), &INPUT, fields)? {
            if !INPUT.contains(&key.as_str()) {
                self.unwanted(format!("{path}.{}: an input has name and value alone", shown(&key, 64)))?;
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

/// The name of an input as a resource has it. Clients of that API write some in other ways.
fn input_name(text: &str) -> String {
    let name = text.trim().to_ascii_lowercase();
    match name.as_str() {
        "workloadid" => "workload".to_owned(),
        "addon_template" => "addon.template".to_owned(),
        "node_template" => "node.template".to_owned(),
        _ => name,
    }
}

/// True of a word for what a job works on. A field of that name narrows a job as its writer sees it, so nobody ignores it.
fn selects(key: &str) -> bool {
    let plain: String = key.chars().filter(char::is_ascii_alphanumeric).map(|sign| sign.to_ascii_lowercase()).collect();
    let one = plain.trim_end_matches('s');
    let one = one.strip_suffix("id").or_else(|| one.strip_suffix("name")).unwrap_or(one);
    matches!(one, "node" | "host" | "nodehost" | "workload" | "workspace" | "cluster" | "namespace" | "excludednode")
}

/// The workspace that a preflight is kept to; nothing where it is empty.
fn workspace_of(kind: OpsType, value: Tree) -> Result<Option<String>, OpsRefusal> {
    match value {
        value if value.is_zero() && (kind != OpsType::Preflight || matches!(value, Tree::Null | Tree::Text(_))) => {
            Ok(None)
        }
        Tree::Text(workspace) if kind == OpsType::Preflight => Ok(Some(workspace)),
        // It narrows the job, so it is ignored in no mode.
        Tree::Text(_) => Err(OpsRefusal::bad(format!(
            "{WORKSPACE}: for preflight, and the type is {}; it has the input workspace",
            kind.word()
        ))),
        _ => Err(OpsRefusal::bad(format!("{WORKSPACE}: text"))),
    }
}

/// Puts the workspace among the inputs, which may say the same.
fn add_workspace(inputs: &mut Vec<Value>, workspace: &str) -> Result<(), OpsRefusal> {
    let is_workspace = |input: &&Value| input.get("name").is_some_and(|name| name == "workspace");
    match inputs.iter().find(is_workspace) {
        Some(input) if input.get("value").is_some_and(|value| value == workspace) => {}
        Some(_) => {
            let words = "it is the same as the input workspace, and has another value";
            return Err(OpsRefusal::bad(format!("{WORKSPACE}: {words}")));
        }
        // A body without inputs is refused for that.
        None if inputs.is_empty() => {}
        None => inputs.push(json!({"name": "workspace", "value": workspace})),
    }
    Ok(())
}

/// The values of fields that have two names, each with the name that it came by. What is zero is absent.
#[derive(Default)]
struct Aliases(Vec<(&'static str, String, Value)>);

impl Aliases {
    fn add(&mut self, field: &'static str, name: &str, value: Value) -> Result<(), OpsRefusal> {
        if value == json!(false) || value == json!(0) {
            return Ok(());
        }
        match self.0.iter().find(|(known, ..)| *known == field) {
            Some((_, other, before)) if *before != value => {
                Err(OpsRefusal::bad(format!("{name}: it is the same as {other}, and has another value")))
            }
            Some(_) => Ok(()),
            None => {
                self.0.push((field, name.to_owned(), value));
                Ok(())
            }
        }
    }
}

/// Lists that are united where their key is repeated.
fn is_united(key: &str) -> bool {
    matches!(key, "hostpath" | "excludedNodes")
}

/// Texts, each once.
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

const fn words(form: FieldForm) -> &'static str {
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
