//! Answers lists, whole or page by page. All pages of a list show the state at the first page, as long as the log
//! reaches back to it.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::StatusCode;
use serde_json::{Value, json};

use crate::{
    selectors::{FieldSelector, LabelSelector},
    server::{
        cluster::State,
        reply::Reply,
        response_form::{ListMeta, ResponseForm},
        routing::Call,
        status::Refusal,
    },
    storage::{Key, ObjectVersion},
};

/// The selectors of a list, watch or deletecollection.
#[derive(Debug, Clone)]
pub(crate) struct Selection {
    namespace: String,
    name: String,
    labels: LabelSelector,
    fields: FieldSelector,
}

impl Selection {
    pub(crate) fn of(call: &Call) -> Result<Self, Refusal> {
        Ok(Self {
            namespace: call.namespace.clone(),
            name: call.name.clone(),
            labels: LabelSelector::parse(call.query.get("labelSelector").unwrap_or_default())?,
            fields: FieldSelector::parse(call.query.get("fieldSelector").unwrap_or_default(), &call.kind)?,
        })
    }

    pub(crate) fn covers(&self, key: &Key, object: &Value) -> bool {
        (self.namespace.is_empty() || self.namespace == key.namespace)
            && (self.name.is_empty() || self.name == key.name)
            && self.labels.matches(object)
            && self.fields.matches(object)
    }

    /// Returns the current objects that match, in key order.
    pub(crate) fn now(&self, state: &State, call: &Call) -> Vec<(Key, Arc<ObjectVersion>)> {
        let namespace = Some(self.namespace.as_str()).filter(|namespace| !namespace.is_empty());
        if let (Some(namespace), Some(name)) = (namespace, self.fields.name()) {
            let key = Key::new(namespace, name);
            let found = state.store.get(call.kind.table, &key).filter(|found| self.covers(&key, &found.value));
            return found.map(|found| (key.clone(), Arc::clone(found))).into_iter().collect();
        }
        let all = state.store.scan(call.kind.table, namespace);
        all.filter(|(key, found)| self.covers(key, &found.value)).map(|(k, v)| (k.clone(), Arc::clone(v))).collect()
    }
}

/// The message for a page whose state the log no longer has.
const TOO_OLD: &str = "The provided continue parameter is too old to display a consistent list result. You can start a \
    new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the \
    results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or \
    deleted between the time the first chunk was returned and now may show up in the list.";

/// The start of the next page.
struct Continue {
    rv: u64,
    after: Key,
}

impl Continue {
    fn encode(&self) -> String {
        let token = json!({"v": "meta.k8s.io/v1", "rv": self.rv, "ns": self.after.namespace, "after": self.after.name});
        URL_SAFE_NO_PAD.encode(token.to_string())
    }

    fn decode(token: &str) -> Result<Self, Refusal> {
        let bad = || Refusal::bad_request("continue key is not valid: it was not issued by this server");
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_not_base64| bad())?;
        let token: Value = serde_json::from_slice(&bytes).map_err(|_not_json| bad())?;
        let text = |field: &str| token.get(field).and_then(Value::as_str).map(str::to_owned).ok_or_else(bad);
        let rv = token.get("rv").and_then(Value::as_u64).ok_or_else(bad)?;
        Ok(Self { rv, after: Key::new(text("ns")?, text("after")?) })
    }
}

/// Answers a list.
pub(crate) fn list(state: &State, call: &Call) -> Result<Reply, Refusal> {
    let form = ResponseForm::wanted(call)?;
    let selection = Selection::of(call)?;
    let limit = call.query.number("limit")?.filter(|limit| *limit > 0);
    let (items, meta) = match (call.query.get("continue"), exact(state, call)?) {
        (Some(token), _) => page(state, call, &selection, (Continue::decode(token)?, limit))?,
        (None, Some(rv)) => {
            let all = Continue { rv, after: Key::new("", "") };
            page(state, call, &selection, (all, limit)).map_err(|refusal| match refusal.code {
                410 => Refusal::expired("The resourceVersion for the provided list is too old."),
                _ => refusal,
            })?
        }
        (None, None) => selection.cut(selection.now(state, call), state.store.rv(), limit),
    };
    Ok(Reply::Json(StatusCode::OK, form.list(&items, &meta, state.now)))
}

/// Returns the resourceVersion of the list if the request requires an exact one.
fn exact(state: &State, call: &Call) -> Result<Option<u64>, Refusal> {
    let Some(rv) = resource_version(call)? else { return Ok(None) };
    if rv > state.store.rv() {
        let message = format!("Too large resource version: {rv}, current: {}", state.store.rv());
        let cause = json!([{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]);
        return Err(Refusal::plain(504, "Timeout", format!("Timeout: {message}"))
            .with_details(json!({"causes": cause, "retryAfterSeconds": 1})));
    }
    Ok(Some(rv).filter(|_| call.query.get("resourceVersionMatch") == Some("Exact")))
}

/// Returns the `resourceVersion` parameter, or none if it is absent or `0`.
pub(crate) fn resource_version(call: &Call) -> Result<Option<u64>, Refusal> {
    let Some(text) = call.query.get("resourceVersion") else { return Ok(None) };
    let bad = || {
        let detail = format!("strconv.ParseUint: parsing {text:?}: invalid syntax");
        Refusal::bad_request(format!("resourceVersion: Invalid value: {text:?}: {detail}"))
    };
    text.parse().map(|rv| Some(rv).filter(|rv| *rv > 0)).map_err(|_not_a_number| bad())
}

type Cut = (Vec<Arc<ObjectVersion>>, ListMeta);

fn page(
    state: &State,
    call: &Call,
    selection: &Selection,
    (from, limit): (Continue, Option<u64>),
) -> Result<Cut, Refusal> {
    // A token with resourceVersion 0 continues with the current objects, because the log has lost the state of the first page.
    let rv = if from.rv == 0 { state.store.rv() } else { from.rv };
    let Some(objects) = state.store.at(call.kind.table, rv) else {
        let token = Continue { rv: 0, after: from.after }.encode();
        return Err(Refusal::expired(TOO_OLD).with_list_meta(json!({"continue": token})));
    };
    let rest = objects.into_iter().filter(|(key, _)| *key > from.after);
    let rest = rest.filter(|(key, found)| selection.covers(key, &found.value)).collect();
    Ok(selection.cut(rest, rv, limit))
}

impl Selection {
    fn cut(&self, mut found: Vec<(Key, Arc<ObjectVersion>)>, rv: u64, limit: Option<u64>) -> Cut {
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        let mut meta = ListMeta { rv, next: None, remaining: None };
        if found.len() > limit {
            // The real server counts the remaining objects only for lists without selectors.
            let everything = self.labels == LabelSelector::default() && self.fields == FieldSelector::default();
            meta.remaining = everything.then_some(found.len() - limit);
            found.truncate(limit);
            meta.next = found.last().map(|(after, _)| Continue { rv, after: after.clone() }.encode());
        }
        (found.into_iter().map(|(_, version)| version).collect(), meta)
    }
}
