//! The scripts that a plugin may run on nodes, in the form of manifests and grants.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The scripts that a `run-on-node` may run. Each value includes the values before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ScriptRule {
    /// No scripts, written `false`.
    #[default]
    None,
    /// The scripts of AddonTemplates and NodeTemplates, written `[template]`.
    Templates,
    /// Also the scripts in OpsJobs, written `[template, input]`.
    Inputs,
    /// Scripts with any text, written `true`.
    Any,
}

impl ScriptRule {
    /// Returns the words of the list. The result is empty if the rule is written as `true` or `false`.
    const fn words(self) -> &'static [&'static str] {
        match self {
            Self::None | Self::Any => &[],
            Self::Templates => &["template"],
            Self::Inputs => &["template", "input"],
        }
    }

    /// Returns the least rule that a grant must have for this rule.
    pub const fn at_least(self) -> Self {
        match self {
            Self::Inputs => Self::Templates,
            other => other,
        }
    }

    /// Returns true for [`ScriptRule::None`].
    pub(crate) fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// The rule in its written form.
#[derive(Deserialize)]
#[serde(untagged, expecting = "`scripts` is true, [template] or [template, input]")]
enum Written {
    Flag(bool),
    Words(Vec<String>),
}

impl<'de> Deserialize<'de> for ScriptRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let words = match Written::deserialize(deserializer)? {
            Written::Flag(true) => return Ok(Self::Any),
            Written::Flag(false) => return Ok(Self::None),
            Written::Words(words) => words,
        };
        let known = [Self::Templates, Self::Inputs].into_iter().find(|rule| {
            let of = rule.words();
            of.len() == words.len() && of.iter().all(|word| words.iter().any(|one| one == word))
        });
        known.ok_or_else(|| serde::de::Error::custom("`scripts` is true, [template] or [template, input]"))
    }
}

impl Serialize for ScriptRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None | Self::Any => serializer.serialize_bool(*self == Self::Any),
            Self::Templates | Self::Inputs => self.words().serialize(serializer),
        }
    }
}

impl fmt::Display for ScriptRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None | Self::Any => write!(f, "{}", *self == Self::Any),
            Self::Templates | Self::Inputs => write!(f, "[{}]", self.words().join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn it_is_read_as_it_is_written() {
        for (rule, written) in [
            (ScriptRule::None, json!(false)),
            (ScriptRule::Any, json!(true)),
            (ScriptRule::Templates, json!(["template"])),
            (ScriptRule::Inputs, json!(["template", "input"])),
        ] {
            assert_eq!(serde_json::to_value(rule).unwrap(), written);
            assert_eq!(from_value::<ScriptRule>(written).unwrap(), rule);
        }
        assert_eq!(from_value::<ScriptRule>(json!(["input", "template"])).unwrap(), ScriptRule::Inputs);
        assert_eq!(ScriptRule::Inputs.to_string(), "[template, input]");
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for written in [json!([]), json!(["input"]), json!(["templates"]), json!(["template", "template"]), json!("x")]
        {
            let refused = from_value::<ScriptRule>(written.clone()).unwrap_err();
            assert!(refused.to_string().contains("[template, input]"), "{written}: {refused}");
        }
    }
}
