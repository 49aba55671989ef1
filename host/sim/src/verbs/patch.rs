//! Answers a PATCH: applies the patch to the stored object and updates the object. The lock is held, so no retry is needed.

use json_patch::PatchOperation;
use serde_json::Value;

use crate::{
    lifecycle::normalise,
    merge::{managed_fields, strategic_merge},
    object,
    server::{
        cluster::State, decode, handle::key, reply::Reply, response_form::converted, routing::Call, status::Refusal,
    },
    verbs::{
        apply,
        create::name_matches,
        update::{self, Managed},
    },
};

const MERGE: &str = "application/merge-patch+json";
const JSON: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// Answers a PATCH.
pub(crate) fn patch(state: &mut State, call: &Call) -> Result<Reply, Refusal> {
    let kind = &call.kind;
    let media = call.content_type.split(';').next().unwrap_or_default().trim();
    match media {
        // Custom kinds do not define how to merge their lists.
        STRATEGIC if kind.custom.is_some() => {
            return Err(Refusal::unsupported_media(&format!("{JSON}, {MERGE}, {APPLY}")));
        }
        MERGE | JSON | STRATEGIC | APPLY => {}
        _ => {
            let text = "415: Unsupported Media Type";
            return Err(Refusal::plain(415, "UnsupportedMediaType", text).with_details(serde_json::json!({})));
        }
    }
    if media == APPLY {
        return apply::apply(state, call);
    }
    let old = state.store.get(kind.table, &key(call)).cloned();
    let old = old.ok_or_else(|| Refusal::not_found(kind, &call.name))?;
    let shown = if old.value.get("apiVersion") == Some(&Value::String(kind.api_version())) {
        old.value.clone()
    } else {
        converted(kind, &old.value)
    };
    let mut patched = patched(media, call, shown)?;
    let warnings =
        decode::normalise(call, &mut patched).map_err(|refusal| normalise::blame_patch(&patched, refusal))?;
    let mut new = decode::stored_form(kind, patched);
    name_matches(call, &mut new)?;
    Ok(update::change(state, call, &old, (new, Managed::Track))?.warned(warnings))
}

fn patched(media: &str, call: &Call, mut object: Value) -> Result<Value, Refusal> {
    if media == JSON {
        return json_patch(call, object);
    }
    let patch = decode::json_text(&call.body)?;
    if !patch.is_object() {
        return Err(Refusal::bad_request(
            "error decoding patch: json: cannot unmarshal into Go value of type map[string]interface {}",
        ));
    }
    if media == MERGE {
        json_patch::merge(&mut object, &patch);
        return Ok(object);
    }
    managed_fields::with_schema(&call.kind, |schema| strategic_merge::merge(schema, &mut object, &patch))?;
    Ok(object)
}

fn json_patch(call: &Call, mut object: Value) -> Result<Value, Refusal> {
    let operations: json_patch::Patch = serde_json::from_slice(&call.body)
        .map_err(|cause| Refusal::bad_request(format!("error decoding patch: {cause}")))?;
    for operation in operations.0 {
        // The real server adds the value if a replaced path is absent.
        let operation = match operation {
            PatchOperation::Replace(replace) if object.pointer(replace.path.as_str()).is_none() => {
                PatchOperation::Add(json_patch::AddOperation { path: replace.path, value: replace.value })
            }
            other => other,
        };
        json_patch::patch(&mut object, &[operation]).map_err(|_cause| {
            let text = "the server rejected our request due to an error in our request";
            Refusal::plain(422, "Invalid", text).with_details(serde_json::json!({}))
        })?;
    }
    object::as_map(&mut object);
    Ok(object)
}
