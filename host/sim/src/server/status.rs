//! Refusals, and their `Status` objects with the real API server's messages.

use serde_json::{Map, Value, json};

use crate::kinds::registry::Kind;

/// The server's refusal of a request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Refusal {
    /// HTTP status code.
    pub(crate) code: u16,
    /// Machine-readable reason, such as `NotFound`. May be empty.
    pub(crate) reason: &'static str,
    /// Message for people.
    pub(crate) message: String,
    /// `details` of the Status, `null` if there are none.
    pub(crate) details: Box<Value>,
    /// `metadata` of the Status.
    pub(crate) list_meta: Box<Value>,
}

/// The error of one field.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FieldError {
    /// Path of the field, such as `spec.containers[0].name`.
    pub(crate) field: String,
    /// Reason, such as `FieldValueRequired`.
    pub(crate) reason: &'static str,
    /// Message after the path.
    pub(crate) text: String,
}

impl FieldError {
    fn new(field: impl Into<String>, reason: &'static str, text: String) -> Self {
        Self { field: field.into(), reason, text }
    }

    pub(crate) fn required(field: impl Into<String>, detail: &str) -> Self {
        let text = if detail.is_empty() { "Required value".into() } else { format!("Required value: {detail}") };
        Self::new(field, "FieldValueRequired", text)
    }

    pub(crate) fn invalid(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        Self::new(field, "FieldValueInvalid", format!("Invalid value: {}: {detail}", quoted(value)))
    }

    /// Returns an error about a composite value. The message does not show the value.
    pub(crate) fn invalid_without_value(field: impl Into<String>, detail: &str) -> Self {
        Self::new(field, "FieldValueInvalid", format!("Invalid value: {detail}"))
    }

    pub(crate) fn type_invalid(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        Self::new(field, "FieldValueTypeInvalid", format!("Invalid value: {}: {detail}", quoted(value)))
    }

    pub(crate) fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self::new(field, "FieldValueForbidden", format!("Forbidden: {detail}"))
    }

    pub(crate) fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        Self::new(field, "FieldValueDuplicate", format!("Duplicate value: {}", quoted(value)))
    }

    pub(crate) fn too_long(field: impl Into<String>, limit: u64) -> Self {
        let unit = if limit == 1 { "byte" } else { "bytes" };
        Self::new(field, "FieldValueTooLong", format!("Too long: may not be more than {limit} {unit}"))
    }

    pub(crate) fn too_many(field: impl Into<String>, actual: usize, limit: u64) -> Self {
        let unit = if limit == 1 { "item" } else { "items" };
        Self::new(field, "FieldValueTooMany", format!("Too many: {actual}: must have at most {limit} {unit}"))
    }

    pub(crate) fn not_supported(field: impl Into<String>, value: &Value, allowed: &[String]) -> Self {
        let allowed = allowed.iter().map(|one| format!("{one:?}")).collect::<Vec<_>>().join(", ");
        let text = format!("Unsupported value: {}: supported values: {allowed}", quoted(value));
        Self::new(field, "FieldValueNotSupported", text)
    }

    /// Returns true if CEL rules do not run on an object with this error.
    pub(crate) fn blocks_rules(&self) -> bool {
        !matches!(self.reason, "FieldValueInvalid" | "FieldValueDuplicate" | "FieldValueForbidden")
    }

    /// Returns the note that CEL rules did not run.
    pub(crate) fn rules_not_run() -> Self {
        let text = "Invalid value: null: some validation rules were not checked because the object was invalid; correct \
                    the existing errors to complete validation";
        Self::new("<nil>", "FieldValueInvalid", text.to_owned())
    }

    /// Returns the error as one sentence: the field and its message.
    pub(crate) fn sentence(&self) -> String {
        if self.field.is_empty() { self.text.clone() } else { format!("{}: {}", self.field, self.text) }
    }

    fn cause(&self) -> Value {
        json!({"reason": self.reason, "message": self.text, "field": self.field})
    }
}

/// Returns a value as error messages show it: as JSON, with text in quotes.
fn quoted(value: &Value) -> String {
    value.to_string()
}

/// Joins the sentences of all errors without duplicates.
fn sentences(errors: &[FieldError]) -> String {
    let mut all: Vec<String> = Vec::new();
    for sentence in errors.iter().map(FieldError::sentence) {
        if !all.contains(&sentence) {
            all.push(sentence);
        }
    }
    match all.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

/// Returns the `details` that name an object by its resource.
fn resource_details(kind: &Kind, name: &str) -> Map<String, Value> {
    let mut details = Map::new();
    if !name.is_empty() {
        details.insert("name".into(), json!(name));
    }
    if !kind.group.is_empty() {
        details.insert("group".into(), json!(kind.group));
    }
    details.insert("kind".into(), json!(kind.plural));
    details
}

impl Refusal {
    /// Returns a refusal without details.
    pub(crate) fn plain(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: Box::default(), list_meta: Box::new(json!({})) }
    }

    pub(crate) fn with_details(mut self, details: Value) -> Self {
        self.details = Box::new(details);
        self
    }

    pub(crate) fn with_list_meta(mut self, meta: Value) -> Self {
        self.list_meta = Box::new(meta);
        self
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::plain(400, "BadRequest", message)
    }

    pub(crate) fn not_found(kind: &Kind, name: &str) -> Self {
        let message = format!("{} {name:?} not found", kind.resource());
        Self::plain(404, "NotFound", message).with_details(resource_details(kind, name).into())
    }

    /// Returns the refusal of a path that does not exist.
    pub(crate) fn no_such_path() -> Self {
        Self::plain(404, "NotFound", "the server could not find the requested resource").with_details(json!({}))
    }

    /// Returns the refusal of a kind or version that this cluster does not serve.
    pub(crate) fn not_served(plural: &str, group_version: &str) -> Self {
        let message = format!(
            "a cluster in memory does not serve {plural} of {group_version}: `kubectl api-resources` lists what it serves"
        );
        Self::plain(404, "NotFound", message).with_details(json!({}))
    }

    pub(crate) fn already_exists(kind: &Kind, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", kind.resource());
        Self::plain(409, "AlreadyExists", message).with_details(resource_details(kind, name).into())
    }

    pub(crate) fn conflict(kind: &Kind, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", kind.resource());
        Self::plain(409, "Conflict", message).with_details(resource_details(kind, name).into())
    }

    /// Returns the conflict of a write with an outdated resourceVersion.
    pub(crate) fn modified(kind: &Kind, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(kind, name, why)
    }

    pub(crate) fn forbidden(kind: &Kind, name: &str, why: &str) -> Self {
        let subject = if name.is_empty() { kind.resource() } else { format!("{} {name:?}", kind.resource()) };
        let message = format!("{subject} is forbidden: {why}");
        Self::plain(403, "Forbidden", message).with_details(resource_details(kind, name).into())
    }

    pub(crate) fn invalid(kind: &Kind, name: &str, errors: &[FieldError]) -> Self {
        // The real server uses the core group for both APIs of Event in this error.
        let core = Kind { group: String::new(), ..kind.clone() };
        let kind = if kind.is("events.k8s.io", "Event") { &core } else { kind };
        let message = format!("{} {name:?} is invalid: {}", kind.group_kind(), sentences(errors));
        let mut details = resource_details(kind, name);
        details.insert("kind".into(), json!(kind.kind));
        details.insert("causes".into(), errors.iter().map(FieldError::cause).collect());
        Self::plain(422, "Invalid", message).with_details(details.into())
    }

    pub(crate) fn method_not_allowed() -> Self {
        Self::plain(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
            .with_details(json!({}))
    }

    /// Returns the refusal of a verb that the path of a custom kind does not support.
    pub(crate) fn not_supported(kind: &Kind, verb: &str) -> Self {
        let message = format!("{verb} is not supported on resources of kind {:?}", kind.resource());
        Self::plain(405, "MethodNotAllowed", message).with_details(json!({"group": kind.group, "kind": kind.plural}))
    }

    /// Returns the refusal of invalid request options.
    pub(crate) fn invalid_options(kind: &str, errors: &[FieldError]) -> Self {
        let message = format!("{kind}.meta.k8s.io \"\" is invalid: {}", sentences(errors));
        let causes = errors.iter().map(FieldError::cause).collect::<Vec<_>>();
        Self::plain(422, "Invalid", message)
            .with_details(json!({"group": "meta.k8s.io", "kind": kind, "causes": causes}))
    }

    pub(crate) fn unsupported_media(accepted: &str) -> Self {
        let message =
            format!("the body of the request was in an unknown format - accepted media types include: {accepted}");
        Self::plain(415, "UnsupportedMediaType", message)
    }

    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::plain(410, "Expired", message)
    }

    /// Returns the refusal of an object that is too large. The real server passes on etcd's error unchanged.
    pub(crate) fn too_large() -> Self {
        Self::plain(500, "", "etcdserver: request is too large")
    }

    pub(crate) fn internal(message: impl std::fmt::Display) -> Self {
        Self::plain(500, "InternalError", format!("Internal error occurred: {message}"))
            .with_details(json!({"causes": [{"message": message.to_string()}]}))
    }

    /// Returns the refusal as a Status object.
    pub(crate) fn to_value(&self) -> Value {
        let mut status = Map::new();
        status.insert("kind".into(), json!("Status"));
        status.insert("apiVersion".into(), json!("v1"));
        status.insert("metadata".into(), (*self.list_meta).clone());
        status.insert("status".into(), json!("Failure"));
        status.insert("message".into(), json!(self.message));
        if !self.reason.is_empty() {
            status.insert("reason".into(), json!(self.reason));
        }
        if !self.details.is_null() {
            status.insert("details".into(), (*self.details).clone());
        }
        status.insert("code".into(), json!(self.code));
        status.into()
    }
}

/// Returns the Status of a successful request that returns no object.
pub(crate) fn success(details: Value) -> Value {
    let mut status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
    if let (Some(map), false) = (status.as_object_mut(), details.is_null()) {
        map.insert("details".into(), details);
    }
    status
}
