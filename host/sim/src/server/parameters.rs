//! Refuses invalid query parameters before the server reads any object.

use serde_json::json;

use crate::server::{
    routing::{Call, Verb},
    status::{FieldError, Refusal},
};

/// The longest name of a field manager in bytes.
const LONGEST_MANAGER: usize = 128;

/// Refuses parameters that are invalid or contradict each other.
pub(crate) fn check(call: &Call) -> Result<(), Refusal> {
    let (kind, errors) = match call.verb {
        Verb::Get => return Ok(()),
        Verb::List => ("ListOptions", list_errors(call)),
        Verb::Watch => ("ListOptions", watch_errors(call)),
        Verb::Create => ("CreateOptions", write_errors(call)),
        Verb::Update => ("UpdateOptions", write_errors(call)),
        Verb::Patch => ("PatchOptions", patch_errors(call)),
        Verb::Delete | Verb::DeleteCollection => ("DeleteOptions", dry_run_errors(call)),
    };
    if errors.is_empty() { Ok(()) } else { Err(Refusal::invalid_options(kind, &errors)) }
}

fn dry_run_errors(call: &Call) -> Vec<FieldError> {
    let value = call.query.get("dryRun").filter(|value| *value != "All");
    let wrong = value.map(|value| FieldError::not_supported("dryRun", &json!([value]), &["All".to_owned()]));
    wrong.into_iter().collect()
}

fn write_errors(call: &Call) -> Vec<FieldError> {
    let mut errors = dry_run_errors(call);
    if call.query.get("fieldManager").is_some_and(|manager| manager.len() > LONGEST_MANAGER) {
        errors.push(FieldError::too_long("fieldManager", LONGEST_MANAGER as u64));
    }
    if let Some(value) =
        call.query.get("fieldValidation").filter(|value| !matches!(*value, "Ignore" | "Warn" | "Strict"))
    {
        let allowed = ["Ignore", "Strict", "Warn"].map(str::to_owned);
        errors.push(FieldError::not_supported("fieldValidation", &json!(value), &allowed));
    }
    errors
}

fn patch_errors(call: &Call) -> Vec<FieldError> {
    let mut errors = write_errors(call);
    if call.content_type.starts_with("application/apply-patch") {
        if call.query.get("fieldManager").is_none() {
            errors.push(FieldError::required("fieldManager", "is required for apply patch"));
        }
    } else if call.query.get("force").is_some() {
        errors.push(FieldError::forbidden("force", "may not be specified for non-apply patch"));
    }
    errors
}

fn list_errors(call: &Call) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let field = "resourceVersionMatch";
    let Some(wanted) = call.query.get(field) else { return errors };
    if call.query.get("resourceVersion").is_none() {
        errors
            .push(FieldError::forbidden(field, "resourceVersionMatch is forbidden unless resourceVersion is provided"));
    }
    if call.query.get("continue").is_some() {
        errors.push(FieldError::forbidden(field, "resourceVersionMatch is forbidden when continue is provided"));
    }
    if !matches!(wanted, "Exact" | "NotOlderThan") {
        let allowed = ["Exact", "NotOlderThan", ""].map(str::to_owned);
        errors.push(FieldError::not_supported(field, &json!(wanted), &allowed));
    }
    if wanted == "Exact" && call.query.get("resourceVersion") == Some("0") {
        let detail = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
        errors.push(FieldError::forbidden(field, detail));
    }
    errors
}

fn watch_errors(call: &Call) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let field = "resourceVersionMatch";
    let (wanted, initial) = (call.query.get(field), call.query.get("sendInitialEvents").is_some());
    if initial && wanted != Some("NotOlderThan") {
        let detail = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        errors.push(FieldError::forbidden(field, detail));
    }
    let Some(wanted) = wanted else { return errors };
    if !initial {
        let detail = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
        errors.push(FieldError::forbidden(field, detail));
    }
    if wanted != "NotOlderThan" {
        errors.push(FieldError::not_supported(field, &json!(wanted), &["NotOlderThan".to_owned()]));
    }
    errors
}
