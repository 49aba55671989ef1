//! Replaces the values that differ between any two servers, or any two runs, by tokens.
//!
//! It replaces ids, times, generated names, tokens and resourceVersions, numbered by first appearance. Equal values get equal
//! tokens, different values get different tokens, and a version that goes back is visible.

use std::collections::BTreeMap;

use regex::{Captures, Regex};
use serde_json::{Map, Value};

use super::web_token;

/// The tokens of one script on one side.
pub(crate) struct Normal {
    /// Everything that the script itself wrote. These words are not replaced.
    own_words: String,
    tokens: BTreeMap<String, String>,
    /// The highest resourceVersion seen for each object, by uid.
    versions: BTreeMap<String, u64>,
    patterns: Option<Patterns>,
}

struct Patterns {
    web_token: Regex,
    uid: Regex,
    time: Regex,
    age: Regex,
    number: Regex,
}

impl Patterns {
    fn new() -> Option<Self> {
        Some(Self {
            web_token: Regex::new(web_token::PATTERN).ok()?,
            uid: Regex::new("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").ok()?,
            time: Regex::new(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?( \+0000 UTC( m=\+[\d.]+)?|Z)").ok()?,
            age: Regex::new(r"^(\d+[smhd]|<unknown>)+$").ok()?,
            number: Regex::new(r"<[^>]*>|\b\d+\b").ok()?,
        })
    }
}

impl Normal {
    pub(crate) fn new(own_words: &str) -> Self {
        let own_words = own_words.to_owned();
        Self { own_words, tokens: BTreeMap::new(), versions: BTreeMap::new(), patterns: Patterns::new() }
    }

    pub(crate) fn normalise(&mut self, mut body: Value) -> Value {
        self.learn(&body);
        self.replace("", &mut body);
        sort_unordered(&mut body);
        body
    }

    /// Collects the names that the server chose before anything is replaced, because a message may come before the object that it
    /// names.
    fn learn(&mut self, value: &Value) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.learn(item)),
            Value::Object(map) => {
                if let Some(metadata) = map.get("metadata").and_then(Value::as_object) {
                    self.learn_generated_name(metadata);
                }
                map.values().for_each(|value| self.learn(value));
            }
            _ => {}
        }
    }

    fn learn_generated_name(&mut self, metadata: &Map<String, Value>) {
        let field = |key: &str| metadata.get(key).and_then(Value::as_str).unwrap_or_default();
        let (prefix, name) = (field("generateName"), field("name"));
        // Servers append five characters.
        if !prefix.is_empty() && name.starts_with(prefix) && name.len() == prefix.len() + 5 {
            self.token("generated", name);
        }
    }

    fn token(&mut self, kind: &str, original: &str) -> String {
        let number = self.tokens.values().filter(|token| token.starts_with(&format!("<{kind} "))).count() + 1;
        self.tokens.entry(original.to_owned()).or_insert_with(|| format!("<{kind} {number}>")).clone()
    }

    fn replace(&mut self, key: &str, value: &mut Value) {
        match value {
            Value::Array(items) => items.iter_mut().for_each(|item| self.replace(key, item)),
            Value::Object(map) => self.replace_in_map(map),
            Value::String(text) => *text = self.replace_text(key, text),
            _ => {}
        }
    }

    fn replace_in_map(&mut self, map: &mut Map<String, Value>) {
        let is_list = map.contains_key("items") || map.contains_key("rows");
        if let Some(metadata) = map.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
            if is_list {
                // The version of a list belongs to the whole store, which others write to.
                metadata.entry("resourceVersion").and_modify(|version| *version = "<of the list>".into());
            } else {
                self.note_version(metadata);
            }
        }
        for (key, value) in map.iter_mut() {
            self.replace(key, value);
        }
    }

    /// Replaces an object's version by a mark if it is lower than an earlier version of this object.
    fn note_version(&mut self, metadata: &mut Map<String, Value>) {
        let field = |key: &str| metadata.get(key).and_then(Value::as_str).map(str::to_owned);
        let (Some(version), Some(uid)) = (field("resourceVersion"), field("uid")) else { return };
        let Ok(number) = version.parse::<u64>() else {
            metadata.insert("resourceVersion".to_owned(), format!("<not a number: {version}>").into());
            return;
        };
        let highest = self.versions.entry(uid).or_default();
        if number < *highest && !self.tokens.contains_key(&version) {
            metadata.insert("resourceVersion".to_owned(), "<went back>".into());
        }
        *highest = number.max(*highest);
    }

    fn replace_text(&mut self, key: &str, text: &str) -> String {
        match key {
            "resourceVersion" if text.parse::<u64>().is_ok_and(|number| number > 0) => {
                return self.token("version", text);
            }
            "continue" if !text.is_empty() => return "<continue>".to_owned(),
            _ => {}
        }
        let mut text = text.to_owned();
        for (original, token) in self.tokens.clone() {
            if token.starts_with("<generated") {
                text = text.replace(&original, &token);
            }
        }
        self.replace_patterns(&text)
    }

    fn replace_patterns(&mut self, text: &str) -> String {
        let Some(patterns) = self.patterns.take() else { return text.to_owned() };
        let own = self.own_words.clone();
        let kept = |found: &str| own.contains(found);
        let told = |found: &str, token: &str| match web_token::claims(found) {
            Some(claims) => format!("{token} {claims}"),
            None => token.to_owned(),
        };
        let mut replaced = patterns
            .web_token
            .replace_all(text, |found: &Captures<'_>| match &found[0] {
                found if kept(found) => found.to_owned(),
                found => told(found, &self.token("token", found)),
            })
            .into_owned();
        replaced = patterns
            .uid
            .replace_all(
                &replaced,
                |found: &Captures<'_>| if kept(&found[0]) { found[0].to_owned() } else { self.token("uid", &found[0]) },
            )
            .into_owned();
        replaced = patterns
            .time
            .replace_all(
                &replaced,
                |found: &Captures<'_>| if kept(&found[0]) { found[0].to_owned() } else { "<time>".to_owned() },
            )
            .into_owned();
        if patterns.age.is_match(&replaced) && !kept(&replaced) {
            "<age>".clone_into(&mut replaced);
        }
        let squeezed = replaced.to_lowercase().replace(' ', "");
        if squeezed.contains("resourceversion") {
            let of_the_store = squeezed.contains("tooold") || squeezed.contains("toolarge");
            // The version that a store reports belongs to the whole store, which others write to.
            let replacement = |found: &Captures<'_>| match self.tokens.get(&found[0]) {
                _ if found[0].starts_with('<') => found[0].to_owned(),
                _ if of_the_store => "<some version>".to_owned(),
                Some(token) => token.clone(),
                None => found[0].to_owned(),
            };
            replaced = patterns.number.replace_all(&replaced, replacement).into_owned();
        }
        self.patterns = Some(patterns);
        replaced
    }
}

/// Sorts the lists without a fixed order. A real server lists the resources of a group in the order in which it learned of their
/// definitions, and the rules of a user in the order of its cache.
fn sort_unordered(body: &mut Value) {
    let lists: &[&str] = match body.get("kind").and_then(Value::as_str) {
        Some("APIResourceList") => &["/resources"],
        Some("SelfSubjectRulesReview") => &["/status/resourceRules", "/status/nonResourceRules"],
        _ => &[],
    };
    for list in lists {
        if let Some(list) = body.pointer_mut(list).and_then(Value::as_array_mut) {
            let key = |one: &Value| {
                ["name", "resources", "nonResourceURLs"].map(|field| one.get(field).map(Value::to_string))
            };
            list.sort_by_cached_key(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    use serde_json::json;

    use super::*;

    fn object(uid: &str, version: &str) -> Value {
        json!({"kind": "Pod", "metadata": {"uid": uid, "resourceVersion": version, "creationTimestamp": "2026-01-02T03:04:05Z"}})
    }

    const ONE: &str = "11111111-1111-4111-8111-111111111111";
    const TWO: &str = "22222222-2222-4222-8222-222222222222";

    #[test]
    fn equal_ids_and_versions_get_equal_tokens_and_different_ones_different_tokens() {
        let mut normal = Normal::new("");
        let first = normal.normalise(object(ONE, "7"));
        assert_eq!(first, normal.normalise(object(ONE, "7")));
        let second = normal.normalise(object(TWO, "8"));
        assert_eq!(first.pointer("/metadata/creationTimestamp"), second.pointer("/metadata/creationTimestamp"));
        assert_ne!(first.pointer("/metadata/uid"), second.pointer("/metadata/uid"));
        assert_ne!(first.pointer("/metadata/resourceVersion"), second.pointer("/metadata/resourceVersion"));
    }

    #[test]
    fn version_that_goes_back_is_told() {
        let mut normal = Normal::new("");
        normal.normalise(object(ONE, "9"));
        let later = normal.normalise(object(ONE, "8"));
        assert_eq!(later.pointer("/metadata/resourceVersion"), Some(&json!("<went back>")));
    }

    #[test]
    fn words_of_the_script_stay_as_they_are() {
        let mut normal = Normal::new(ONE);
        let message = normal.normalise(json!({"message": format!("{ONE} is not {TWO}")}));
        assert_eq!(message, json!({"message": format!("{ONE} is not <uid 1>")}));
    }

    #[test]
    fn web_token_is_told_by_its_number_and_what_it_says() {
        let mut normal = Normal::new("");
        let claims = |made: u8| format!(r#"{{"iat":{made},"jti":"{ONE}"}}"#);
        let token = |made| format!("eyJhIjoxfQ.{}.x", URL_SAFE_NO_PAD.encode(claims(made)));
        let mut tell = |token: String| normal.normalise(json!({"token": token}));
        let first = json!({"token": r#"<token 1> {"iat":0,"jti":"<uid 1>"}"#});
        assert_eq!(tell(token(5)), first);
        assert_eq!(tell(token(6)), json!({"token": r#"<token 2> {"iat":0,"jti":"<uid 1>"}"#}));
        assert_eq!(tell(token(5)), first);
    }

    #[test]
    fn generated_name_is_one_token_in_object_and_message() {
        let mut normal = Normal::new("");
        let body = json!({"metadata": {"generateName": "a-", "name": "a-x7k2p"}, "message": "a-x7k2p is here"});
        let told = normal.normalise(body);
        assert_eq!(told.pointer("/metadata/name"), Some(&json!("<generated 1>")));
        assert_eq!(told.pointer("/message"), Some(&json!("<generated 1> is here")));
    }
}
