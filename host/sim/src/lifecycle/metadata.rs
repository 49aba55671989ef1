//! Rules for the metadata of all kinds: names, labels, owners, finalizers and immutable fields. The messages are the real
//! server's.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Value, json};

use crate::{
    kinds::registry::Kind,
    object::{self, meta, meta_str},
    server::status::FieldError,
};

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
    and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
    start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end \
    with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
    '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or \
    '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex \
    used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
/// The finalizers that need no domain in built-in kinds.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];
/// The real server's limit for the total size of all annotations in bytes.
const ANNOTATIONS_LIMIT: u64 = 262_144;

fn pattern(text: &str) -> Option<Regex> {
    Regex::new(text).ok()
}

static SUBDOMAIN_RE: LazyLock<Option<Regex>> =
    LazyLock::new(|| pattern(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"));
static LABEL_RE: LazyLock<Option<Regex>> = LazyLock::new(|| pattern(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"));
static NAME_PART_RE: LazyLock<Option<Regex>> = LazyLock::new(|| pattern(r"^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$"));

fn fits(regex: &LazyLock<Option<Regex>>, text: &str) -> bool {
    regex.as_ref().is_some_and(|regex| regex.is_match(text))
}

/// Returns the errors of a name under the rules of its kind.
fn name_errors(kind: &Kind, name: &str) -> Vec<FieldError> {
    let field = "metadata.name";
    if kind.group == "rbac.authorization.k8s.io" {
        return path_segment_errors(field, name);
    }
    if kind.is("", "Namespace") { label_name_errors(field, name) } else { subdomain_errors(field, name) }
}

/// Returns the error of a text that is too long. The limit is in bytes, although the real server's message says characters for names.
fn length_error(field: &str, text: &str, (limit, unit): (usize, &str)) -> Option<FieldError> {
    let detail = format!("must be no more than {limit} {unit}");
    (text.len() > limit).then(|| FieldError::invalid(field, &json!(text), &detail))
}

/// Returns the errors of a DNS subdomain.
pub(crate) fn subdomain_errors(field: &str, text: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    errors.extend(length_error(field, text, (253, "characters")));
    if !fits(&SUBDOMAIN_RE, text) {
        errors.push(FieldError::invalid(field, &json!(text), SUBDOMAIN));
    }
    errors
}

/// Returns true if the text is a valid host name: a DNS label of at most 63 bytes.
pub(crate) fn is_label_name(text: &str) -> bool {
    text.len() <= 63 && fits(&LABEL_RE, text)
}

/// Returns the errors of a DNS label, such as a container name. A label that is wrong only in its dots gets its own message.
pub(crate) fn label_name_errors(field: &str, name: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    errors.extend(length_error(field, name, (63, "characters")));
    if !fits(&LABEL_RE, name) {
        let detail = if fits(&SUBDOMAIN_RE, name) { "must not contain dots" } else { LABEL };
        errors.push(FieldError::invalid(field, &json!(name), detail));
    }
    errors
}

fn path_segment_errors(field: &str, name: &str) -> Vec<FieldError> {
    let bad = ['/', '%'].into_iter().filter(|c| name.contains(*c));
    bad.map(|c| FieldError::invalid(field, &json!(name), &format!("may not contain '{c}'"))).collect()
}

/// Returns the errors of an object's metadata.
pub(crate) fn errors(kind: &Kind, object: &Value) -> Vec<FieldError> {
    let name = object::name(object);
    if name.is_empty() {
        return vec![FieldError::required("metadata.name", "name or generateName is required")];
    }
    let mut errors = name_errors(kind, name);
    errors.extend(label_errors(object, "metadata.labels"));
    errors.extend(annotation_errors(object, "metadata.annotations"));
    errors.extend(owner_errors(object));
    for (index, finalizer) in object::finalizers(object).enumerate() {
        let field = format!("metadata.finalizers[{index}]");
        let plain = kind.custom.is_none() && !finalizer.contains('/') && !STANDARD_FINALIZERS.contains(&finalizer);
        errors.extend(qualified_errors(&field, finalizer));
        if plain {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(FieldError::invalid(field, &json!(finalizer), detail));
        }
    }
    errors
}

/// Returns the errors of an object's labels.
pub(crate) fn label_errors(object: &Value, field: &str) -> Vec<FieldError> {
    label_map_errors(meta(object, "labels"), field)
}

/// Returns the errors of a label map in an object or a selector.
pub(crate) fn label_map_errors(labels: Option<&Value>, field: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (key, value) in labels.and_then(Value::as_object).into_iter().flatten() {
        errors.extend(qualified_errors(field, key));
        errors.extend(label_value_errors(field, value.as_str().unwrap_or_default()));
    }
    errors
}

/// Returns the errors of a label value.
pub(crate) fn label_value_errors(field: &str, text: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    errors.extend(length_error(field, text, (63, "bytes")));
    if !text.is_empty() && !fits(&NAME_PART_RE, text) {
        errors.push(FieldError::invalid(field, &json!(text), LABEL_VALUE));
    }
    errors
}

/// Returns the errors of an object's annotations.
pub(crate) fn annotation_errors(object: &Value, field: &str) -> Vec<FieldError> {
    let annotations = meta(object, "annotations").and_then(Value::as_object);
    let mut errors = Vec::new();
    let mut size = 0;
    for (key, value) in annotations.into_iter().flatten() {
        errors.extend(qualified_errors(field, &key.to_lowercase()));
        size += key.len() + value.as_str().unwrap_or_default().len();
    }
    if size as u64 > ANNOTATIONS_LIMIT {
        errors.push(FieldError::too_long(field, ANNOTATIONS_LIMIT));
    }
    errors
}

/// Returns the errors of a qualified name `prefix/name`.
pub(crate) fn qualified_errors(field: &str, key: &str) -> Vec<FieldError> {
    if key.matches('/').count() > 1 {
        let rule = QUALIFIED.strip_prefix("name part ").unwrap_or_default();
        let detail = format!(
            "a valid label key {rule} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        );
        return vec![FieldError::invalid(field, &json!(key), &detail)];
    }
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let mut errors = Vec::new();
    if prefix == Some("") {
        errors.push(FieldError::invalid(field, &json!(key), "prefix part must be non-empty"));
    } else if let Some(prefix) = prefix {
        if prefix.len() > 253 {
            errors.push(FieldError::invalid(field, &json!(key), "prefix part must be no more than 253 bytes"));
        }
        if !fits(&SUBDOMAIN_RE, prefix) {
            errors.push(FieldError::invalid(field, &json!(key), &format!("prefix part {SUBDOMAIN}")));
        }
    }
    if name.is_empty() {
        errors.push(FieldError::invalid(field, &json!(key), "name part must be non-empty"));
    } else if name.len() > 63 {
        errors.push(FieldError::invalid(field, &json!(key), "name part must be no more than 63 bytes"));
    }
    if !fits(&NAME_PART_RE, name) {
        errors.push(FieldError::invalid(field, &json!(key), QUALIFIED));
    }
    errors
}

fn owner_errors(object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut controllers = Vec::new();
    for owner in object::owners(object) {
        let field = "metadata.ownerReferences";
        for part in ["apiVersion", "kind", "name", "uid"] {
            if object::str_at(owner, &[part]).is_empty() {
                errors.push(FieldError::invalid(format!("{field}.{part}"), &json!(""), "must not be empty"));
            }
        }
        if owner.get("controller") == Some(&json!(true)) {
            controllers.push(format!("{}/{}", object::str_at(owner, &["kind"]), object::str_at(owner, &["name"])));
        }
    }
    if let [first, second, ..] = controllers.as_slice() {
        let detail = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {second}"
        );
        errors.push(FieldError::invalid(
            "metadata.ownerReferences",
            object::meta(object, "ownerReferences").unwrap_or(&Value::Null),
            &detail,
        ));
    }
    errors
}

/// Returns the errors of changed metadata.
pub(crate) fn change_errors(old: &Value, new: &Value) -> Vec<FieldError> {
    let immutable =
        ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"];
    let mut errors = Vec::new();
    errors.extend(new_finalizer_error(old, new));
    for field in immutable {
        if meta(old, field) != meta(new, field) {
            let value = meta(new, field).cloned().unwrap_or(Value::Null);
            errors.push(FieldError::invalid(format!("metadata.{field}"), &value, "field is immutable"));
        }
    }
    errors.extend(label_errors(new, "metadata.labels"));
    errors.extend(annotation_errors(new, "metadata.annotations"));
    errors.extend(owner_errors(new));
    errors
}

fn new_finalizer_error(old: &Value, new: &Value) -> Option<FieldError> {
    if !object::is_deleting(old) {
        return None;
    }
    let known = object::finalizers(old).collect::<Vec<_>>();
    let added = object::finalizers(new).filter(|one| !known.contains(one)).map(|one| format!("{one:?}"));
    let added = added.collect::<Vec<_>>();
    if added.is_empty() {
        return None;
    }
    let detail = format!(
        "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
        added.join(", ")
    );
    Some(FieldError::forbidden("metadata.finalizers", &detail))
}

/// Removes the metadata that a client cannot set on a new object.
pub(crate) fn strip_for_create(object: &mut Value) {
    for field in [
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "managedFields",
        "selfLink",
        "resourceVersion",
        "uid",
        "creationTimestamp",
        "generation",
    ] {
        object::set_meta(object, field, Value::Null);
    }
}

/// Fills in the fields that an update cannot change, as the real server does before it validates.
pub(crate) fn keep_for_update(old: &Value, new: &mut Value) {
    object::copy_meta(old, new, "generation");
    if meta_str(new, "uid").is_empty() {
        object::copy_meta(old, new, "uid");
    }
    object::copy_meta(old, new, "creationTimestamp");
    if object::is_deleting(old) {
        object::copy_meta(old, new, "deletionTimestamp");
    }
    if meta(old, "deletionGracePeriodSeconds").is_some() && meta(new, "deletionGracePeriodSeconds").is_none() {
        object::copy_meta(old, new, "deletionGracePeriodSeconds");
    }
}
