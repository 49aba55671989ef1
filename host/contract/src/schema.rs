//! The JSON Schemas of a plugin's parameters and settings.
//!
//! The size of a schema is checked before compilation, because it comes with a file that has no grant yet.

use std::fmt;
use std::sync::Arc;

use jsonschema::error::ValidationErrorKind;
use jsonschema::{PatternOptions, Validator};
use serde_json::Value;

/// The most values in a schema, including containers.
const VALUES: usize = 2_000;
/// The most levels of a schema.
const LEVELS: usize = 32;
/// The most patterns of a schema.
const PATTERNS: usize = 32;
/// The most bytes of one compiled pattern, and of its cache while it runs.
const PATTERN_BYTES: usize = 128 << 10;
/// Keywords by which a small schema can expand into a huge one.
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];

/// A compiled schema. Without a schema, the plugin accepts no values.
#[derive(Clone, Default)]
pub struct Schema(Option<Arc<Validator>>);

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Schema" } else { "None" })
    }
}

impl Schema {
    /// Compiles a schema. Patterns run in linear time, so that no parameter can keep the host busy. The schema fetches nothing, because the
    /// crate is built without resolvers.
    ///
    /// # Errors
    ///
    /// If the schema is invalid, with the problem and its place.
    pub fn compile(schema: Option<&Value>) -> Result<Self, String> {
        let Some(schema) = schema else { return Ok(Self(None)) };
        Size::default().add(schema, 1)?;
        let patterns = PatternOptions::regex().size_limit(PATTERN_BYTES).dfa_size_limit(PATTERN_BYTES);
        let built = jsonschema::options().with_pattern_options(patterns).build(schema);
        match built {
            Ok(validator) => Ok(Self(Some(Arc::new(validator)))),
            Err(error) => {
                let pattern = matches!(error.kind(), ValidationErrorKind::Format { format } if format == "regex");
                let limit = PATTERN_BYTES >> 10;
                let hint = if pattern { format!(", or one that takes more than {limit} KiB") } else { String::new() };
                Err(format!("it is not a JSON Schema: at `{}`: {error}{hint}", error.instance_path()))
            }
        }
    }

    /// Validates the value at `place`, such as `spec.parameters`.
    ///
    /// # Errors
    ///
    /// If the schema refuses the value, with the first refused place and the reason.
    pub fn check(&self, place: &str, value: &Value) -> Result<(), String> {
        let Some(schema) = &self.0 else {
            let empty = value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
            return if empty { Ok(()) } else { Err(format!("{place}: the plugin takes none; leave {place} out")) };
        };
        match schema.iter_errors(value).next() {
            Some(error) => Err(format!("{place}{}: {error}", error.instance_path())),
            None => Ok(()),
        }
    }
}

/// The size of a schema.
#[derive(Debug, Default)]
struct Size {
    values: usize,
    patterns: usize,
}

impl Size {
    fn add(&mut self, value: &Value, level: usize) -> Result<(), String> {
        self.values = self.values.saturating_add(1);
        if self.values > VALUES {
            return Err(format!("it has more than {VALUES} values"));
        }
        if level > LEVELS {
            return Err(format!("it is more than {LEVELS} levels deep"));
        }
        let next = level.saturating_add(1);
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    self.keyword(name, value)?;
                    self.add(value, next)?;
                }
                Ok(())
            }
            Value::Array(values) => values.iter().try_for_each(|value| self.add(value, next)),
            _ => Ok(()),
        }
    }

    /// Checks a keyword. A property may have the name of a keyword, and then its value is a schema and not a text.
    fn keyword(&mut self, name: &str, value: &Value) -> Result<(), String> {
        if REFERENCES.contains(&name) && value.is_string() {
            return Err(format!("`{name}` is not taken: write out what it stands for"));
        }
        let patterns = match (name, value) {
            ("pattern", Value::String(_)) => 1,
            ("patternProperties", Value::Object(patterns)) => patterns.len(),
            _ => 0,
        };
        self.patterns = self.patterns.saturating_add(patterns);
        if self.patterns > PATTERNS { Err(format!("it has more than {PATTERNS} patterns")) } else { Ok(()) }
    }
}
