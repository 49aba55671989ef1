//! Reads the words of a registry's refusal: errors of the distribution protocol, of stores and of token servers, or plain text.
//!
//! The words must not repeat a secret that was sent, nor the query of a URL.

use oarlock_signature::shortened_to;
use serde_json::Value;

/// The most bytes of a body that are read for its words.
pub(crate) const MOST: usize = 64 * 1024;
/// The most characters of the words.
const WORDS: usize = 300;
/// The most characters of the detail of an error.
const DETAIL: usize = 120;
/// The most errors of a body that are shown.
const ERRORS: usize = 3;
/// The fewest characters of a secret. Hiding a shorter text would leave holes in the words.
const SHORTEST_SECRET: usize = 4;

/// The words of a registry's refusal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RegistryWords {
    /// The error codes, such as `NAME_UNKNOWN`.
    pub(crate) codes: Vec<String>,
    /// All errors in one line.
    pub(crate) message: String,
}

impl RegistryWords {
    /// Reads the words at the beginning of a body. `secrets` are texts that the words must not contain.
    pub(crate) fn read(body: &[u8], secrets: &[String]) -> Self {
        let text = String::from_utf8_lossy(body);
        let text = text.trim_start_matches('\u{feff}').trim();
        let errors = errors_in(text);
        let codes = errors.iter().filter_map(|error| error.code.clone()).collect();
        let message = if errors.is_empty() { plain(text) } else { join(&errors) };
        Self { codes, message: clean(&message, secrets) }
    }

    /// Returns true if a body is an error, whatever its status is.
    pub(crate) fn is_error(body: &[u8]) -> bool {
        let text = String::from_utf8_lossy(body.get(..MOST.min(body.len())).unwrap_or_default());
        let text = text.trim_start_matches('\u{feff}').trim_start();
        text.starts_with('<') || text.starts_with('{') && text.contains("\"errors\"")
    }

    /// Returns true if the registry asks the client to retry later, with any status.
    pub(crate) fn is_later(&self) -> bool {
        self.has("TOOMANYREQUESTS") || self.has("UNAVAILABLE") || self.has("SlowDown")
    }

    pub(crate) fn has(&self, code: &str) -> bool {
        self.codes.iter().any(|own| own.eq_ignore_ascii_case(code))
    }

    /// Returns a message followed by the registry's words.
    pub(crate) fn after(&self, message: &str) -> String {
        if self.message.is_empty() { message.to_owned() } else { format!("{message}: {}", self.message) }
    }
}

#[derive(Default)]
struct OneError {
    code: Option<String>,
    message: Option<String>,
    detail: Option<String>,
}

impl OneError {
    fn read(value: &Value) -> Option<Self> {
        let find = |names: &[&str]| {
            let texts = names.iter().filter_map(|name| value.get(name)).filter_map(as_text);
            texts.into_iter().find(|text| !text.is_empty())
        };
        let own = match value {
            Value::String(text) => Self { message: Some(text.clone()), ..Self::default() },
            _ => Self {
                code: find(&["code", "Code"]),
                message: find(&["message", "Message", "msg", "error_description", "details", "reason"]),
                detail: value.get("detail").filter(|detail| !detail.is_null()).map(shown_detail),
            },
        };
        (own.code.is_some() || own.message.is_some() || own.detail.is_some()).then_some(own)
    }

    fn describe(&self) -> String {
        let said: Vec<&str> = [&self.code, &self.message].into_iter().flatten().map(String::as_str).collect();
        let said = said.join(": ");
        match self.detail.as_deref().filter(|detail| !detail.is_empty() && !said.contains(detail)) {
            Some(detail) if said.is_empty() => detail.to_owned(),
            Some(detail) => format!("{said} ({detail})"),
            None => said,
        }
    }
}

fn as_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

fn shown_detail(detail: &Value) -> String {
    let text = as_text(detail).unwrap_or_else(|| match detail {
        Value::Object(all) if all.is_empty() => String::new(),
        Value::Array(all) if all.is_empty() => String::new(),
        other => other.to_string(),
    });
    shortened_to(&text, DETAIL)
}

fn join(errors: &[OneError]) -> String {
    let shown: Vec<String> = errors.iter().take(ERRORS).map(OneError::describe).collect();
    let more = errors.len().saturating_sub(ERRORS);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    format!("{}{more}", shown.join("; "))
}

/// Returns the errors in a body: JSON, whole or cut off, or the XML of a store.
fn errors_in(text: &str) -> Vec<OneError> {
    if text.starts_with('<') {
        let one = OneError { code: element(text, "Code"), message: element(text, "Message"), detail: None };
        return if one.code.is_some() { vec![one] } else { Vec::new() };
    }
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(body)) => {
            let within = body.get("errors").or_else(|| body.get("error").filter(|error| error.is_object()));
            match within {
                Some(Value::Array(all)) => all.iter().filter_map(OneError::read).collect(),
                Some(one) => OneError::read(one).into_iter().collect(),
                None => {
                    let own = OneError::read(&Value::Object(body.clone()));
                    let word = body.get("error").and_then(as_text);
                    let code = |own: OneError| OneError { code: own.code.or_else(|| word.clone()), ..own };
                    own.map(code)
                        .or_else(|| word.clone().map(|word| OneError { message: Some(word), ..OneError::default() }))
                        .into_iter()
                        .collect()
                }
            }
        }
        Ok(_) => Vec::new(),
        Err(_) if text.starts_with('{') => {
            let one = OneError { code: field(text, "code"), message: field(text, "message"), detail: None };
            if one.code.is_some() || one.message.is_some() { vec![one] } else { Vec::new() }
        }
        Err(_) => Vec::new(),
    }
}

/// Returns the text of a field in JSON that was cut off.
fn field(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("\"{name}\""))?;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
    let mut is_escaped = false;
    let end = rest.find(|c| {
        let is_end = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        is_end
    });
    let raw = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
    Some(serde_json::from_str(&format!("\"{raw}\"")).unwrap_or_else(|_| raw.to_owned()))
}

/// Returns the text of the first element with this name in XML or HTML. The case of the name does not matter.
fn element(text: &str, name: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let begin = lower.find(&format!("<{}>", name.to_ascii_lowercase()))?;
    let from = begin.checked_add(name.len())?.checked_add(2)?;
    let within = text.get(from..)?;
    let end = within.find('<').unwrap_or(within.len());
    let found = unescaped(within.get(..end)?.trim());
    (!found.is_empty()).then_some(found)
}

/// Returns the words of a body that has no list of errors: the title of a page, the text of a page, or the body itself.
fn plain(text: &str) -> String {
    if !text.starts_with('<') {
        return if text.contains('\0') { String::new() } else { text.to_owned() };
    }
    element(text, "title").or_else(|| element(text, "h1")).unwrap_or_else(|| {
        let mut words = String::new();
        for piece in text.split('<') {
            words.push_str(piece.split_once('>').map_or("", |(_, after)| after));
            words.push(' ');
        }
        unescaped(&words)
    })
}

fn unescaped(text: &str) -> String {
    let signs = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&nbsp;", " "), ("&amp;", "&")];
    signs.iter().fold(text.to_owned(), |text, (sign, plain)| text.replace(sign, plain))
}

/// Returns the text as one short line without secrets and without queries of URLs.
fn clean(text: &str, secrets: &[String]) -> String {
    let hidden = secrets.iter().filter(|secret| secret.len() >= SHORTEST_SECRET);
    let text = hidden.fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "(hidden)"));
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let words: Vec<&str> = plain.split_whitespace().map(without_query).collect();
    shortened_to(&words.join(" "), WORDS)
}

/// Returns a word without its query, if the word is a URL or a path.
fn without_query(word: &str) -> &str {
    match word.split_once('?') {
        Some((before, after)) if before.contains('/') && after.contains('=') => before,
        _ => word,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(body: &str) -> String {
        RegistryWords::read(body.as_bytes(), &["hunter2-and-a-half".to_owned(), "abc".to_owned()]).message
    }

    #[test]
    fn codes_and_words_are_found_in_whatever_form_they_come() {
        let long = "x".repeat(9_000);
        for (body, said) in [
            (r#"{"errors":[{"code":"NAME_UNKNOWN","message":"repository name not known to registry","detail":{"name":"a"}}]}"#.to_owned(), "NAME_UNKNOWN: repository name not known to registry ({\"name\":\"a\"})"),
            (r#"{"errors":[{"code":"DENIED","message":"no"},{"code":"UNAUTHORIZED"},{"message":"m"},{"code":"d"}]}"#.to_owned(), "DENIED: no; UNAUTHORIZED; m; and 1 more"),
            (r#"{"errors":[{"code":"DENIED","message":"access to"#.to_owned(), "DENIED: access to"),
            ("\u{feff} {\"errors\": [{\"code\":\"A\",\"message\":\"says \\\"no\\\"\",".to_owned(), "A: says \"no\""),
            (r#"{"errors":["just text"]}"#.to_owned(), "just text"),
            (r#"{"errors":{"code":500,"detail":"d"}}"#.to_owned(), "500 (d)"),
            (r#"{"details":"incorrect username or password"}"#.to_owned(), "incorrect username or password"),
            (r#"{"error":"invalid_grant","error_description":"expired"}"#.to_owned(), "invalid_grant: expired"),
            (r#"{"error":{"code":"X","message":"y"}}"#.to_owned(), "X: y"),
            (r#"{"error":"denied"}"#.to_owned(), "denied"),
            (r#"{"a":1}"#.to_owned(), r#"{"a":1}"#),
            ("<html><head><title>502 Bad Gateway</title></head></html>".to_owned(), "502 Bad Gateway"),
            ("<!DOCTYPE html><p>Tom &amp; Jerry<br>say no".to_owned(), "Tom & Jerry say no"),
            ("<?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>Please reduce</Message><Key>k</Key></Error>".to_owned(), "SlowDown: Please reduce"),
            ("  plain\n\ttext \u{1b}[31m".to_owned(), "plain text [31m"),
            ("see https://s3/a/b?X-Amz-Signature=1234 why?".to_owned(), "see https://s3/a/b why?"),
            ("the password hunter2-and-a-half is wrong, abc too".to_owned(), "the password (hidden) is wrong, abc too"),
            ("a\0b".to_owned(), ""),
            (String::new(), ""),
            (format!("{{\"errors\":[{{\"code\":\"A\",\"message\":\"{long}\"}}]}}"), ""),
        ] {
            let found = message(&body);
            assert!(found.chars().count() <= WORDS, "{found}");
            if said.is_empty() && !body.is_empty() && !body.contains('\0') {
                assert!(found.starts_with("A: xxx"), "{found}");
            } else {
                assert_eq!(found, said);
            }
        }
    }

    #[test]
    fn a_registry_that_is_busy_says_so_by_its_code_too() {
        let said =
            |code: &str| RegistryWords::read(format!("{{\"errors\":[{{\"code\":\"{code}\"}}]}}").as_bytes(), &[]);
        assert!(said("TOOMANYREQUESTS").is_later() && said("unavailable").is_later() && !said("DENIED").is_later());
        assert!(
            RegistryWords::is_error(b"<html>")
                && RegistryWords::is_error(br#" {"errors": []}"#)
                && !RegistryWords::is_error(br#"{"schemaVersion": 2}"#)
        );
    }
}
