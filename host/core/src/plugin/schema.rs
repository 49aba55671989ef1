//! JSON Schemas of a plugin's parameters and settings.
//!
//! A schema comes with a file that nobody has granted anything yet, so it is bounded before it is compiled.

use std::fmt;
use std::sync::Arc;

use jsonschema::{PatternOptions, Validator};
use serde_json::Value;

/// A compiled schema, or none: then nothing may be given.
#[derive(Clone, Default)]
pub struct Schema(Option<Arc<Validator>>);

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Schema" } else { "None" })
    }
}

impl Schema {
    /// Patterns run in linear time, so that no parameter can keep the host busy; nothing is fetched, for the crate is
    /// built without resolvers.
    ///
    /// # Errors
    ///
    /// What is wrong with it, and where.
    pub fn compile(schema: Option<&Value>) -> Result<Self, String> {
        let Some(schema) = schema else { return Ok(Self(None)) };
        let built = jsonschema::options().with_pattern_options(PatternOptions::regex()).build(schema);
        match built {
            Ok(validator) => Ok(Self(Some(Arc::new(validator)))),
            Err(error) => Err(format!("it is not a JSON Schema: at `{}`: {error}", error.instance_path())),
        }
    }

    /// Validates a value, which is of `what`.
    ///
    /// # Errors
    ///
    /// The first place that the schema refuses, and why.
    pub fn check(&self, what: &str, value: &Value) -> Result<(), String> {
        let Some(schema) = &self.0 else {
            let empty = value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
            return if empty { Ok(()) } else { Err(format!("the plugin takes no {what}: leave them out")) };
        };
        match schema.iter_errors(value).next() {
            Some(error) => Err(format!("{what}{}: {error}", error.instance_path())),
            None => Ok(()),
        }
    }
}
