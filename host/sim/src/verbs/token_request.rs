//! Answers a POST to `serviceaccounts/x/token`: creates a token for an existing account, bound to an object if the request says so.
//! The server stores nothing, so a dry run creates a token too.

use std::sync::Arc;

use http::StatusCode;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::{
    access::{
        token::ISSUER,
        token_review::{BINDABLE, find},
        user::User,
    },
    clock,
    kinds::registry::{Kind, split_api_version},
    object::{self, at, map_at, str_at},
    server::{
        cluster::State,
        decode,
        handle::key,
        reply::Reply,
        routing::{Call, Verb},
        status::{FieldError, Refusal},
    },
    verbs::create,
};

/// The lifetime of a token in seconds: default, minimum and maximum.
const LIFE: (i64, i64, i64) = (3_600, 600, 1 << 32);

/// Answers a POST with a token request.
pub(crate) fn answer(state: &mut State, call: &Call) -> Result<Reply, Refusal> {
    if call.verb != Verb::Create {
        return Err(Refusal::method_not_allowed());
    }
    let kind = Kind {
        group: "authentication.k8s.io".into(),
        kind: "TokenRequest".into(),
        // Here the real server's errors name the kind. Elsewhere they name the resource.
        plural: "TokenRequest".into(),
        ..(*call.kind).clone()
    };
    let asked = Call { kind: Arc::new(kind), ..call.clone() };
    let decode::Decoded { object: mut request, warnings } = decode::object(&asked)?;
    create::place(&asked, &mut request)?;
    create::namespace_admits(state, call, &call.name)?;
    let account = account(state, call, (&asked.kind, &request))?;
    fill(state, &mut request, &account);
    let life = life(&request);
    let errors = life_errors(life);
    if !errors.is_empty() {
        return Err(Refusal::invalid(&asked.kind, "", &errors));
    }
    let claims = claims(state, &request, &bound(state, &request)?);
    let token = state.token_key.sign(&claims);
    let token = token.ok_or_else(|| Refusal::internal("failed to generate token: the machine gave no random key"))?;
    let end = state.now.checked_add(SignedDuration::from_secs(life)).unwrap_or(Timestamp::MAX);
    let status = json!({"token": token, "expirationTimestamp": clock::seconds(end)});
    object::as_map(&mut request).insert("status".into(), status);
    Ok(Reply::value(StatusCode::CREATED, &request).warned(warnings))
}

/// Returns the account in the path. Refuses a request that names another account.
fn account(state: &State, call: &Call, (kind, request): (&Kind, &Value)) -> Result<Value, Refusal> {
    let said = object::name(request);
    if !said.is_empty() && said != call.name {
        let detail = "must match the service account name if specified";
        let error = FieldError::invalid("metadata.name", &json!(said), detail);
        return Err(Refusal::invalid(kind, &call.name, &[error]));
    }
    let account = state.store.get(call.kind.table, &key(call));
    let account = &account.ok_or_else(|| Refusal::not_found(&call.kind, &call.name))?.value;
    let (said, uid) = (object::uid(request), object::uid(account));
    if !said.is_empty() && said != uid {
        let why =
            format!("the UID in the token request ({said}) does not match the UID of the service account ({uid})");
        return Err(Refusal::conflict(kind, &call.name, &why));
    }
    Ok(account.clone())
}

/// Fills in the fields that the request leaves out.
fn fill(state: &State, request: &mut Value, account: &Value) {
    for field in ["name", "uid"] {
        object::copy_meta(account, request, field);
    }
    object::set_meta(request, "creationTimestamp", json!(state.time()));
    let spec = map_at(request, "spec");
    let is_open = |value: Option<&Value>| value.and_then(Value::as_array).is_none_or(Vec::is_empty);
    if is_open(spec.get("audiences")) {
        spec.insert("audiences".into(), json!([ISSUER]));
    }
    if spec.get("expirationSeconds").is_none_or(Value::is_null) {
        spec.insert("expirationSeconds".into(), json!(LIFE.0));
    }
    spec.entry("boundObjectRef").or_insert(Value::Null);
}

fn life(request: &Value) -> i64 {
    at(request, &["spec", "expirationSeconds"]).and_then(Value::as_i64).unwrap_or_default()
}

fn life_errors(life: i64) -> Vec<FieldError> {
    let error = |detail: &str| vec![FieldError::invalid("spec.expirationSeconds", &json!(life), detail)];
    match life {
        _ if life < LIFE.1 => error("may not specify a duration less than 10 minutes"),
        _ if life > LIFE.2 => error("may not specify a duration larger than 2^32 seconds"),
        _ => Vec::new(),
    }
}

/// Returns the claims about the bound object, by the kind's name in a token. Empty if the token is not bound.
fn bound(state: &State, request: &Value) -> Result<Value, Refusal> {
    let Some(reference) = at(request, &["spec", "boundObjectRef"]) else { return Ok(json!({})) };
    let said = |field: &str| str_at(reference, &[field]);
    let (group, version) = split_api_version(said("apiVersion"));
    let Some((claim, kind)) = BINDABLE.into_iter().find(|(_, kind)| group.is_empty() && *kind == said("kind")) else {
        let text = format!("cannot bind token to object of type {group}/{version}, Kind={}", said("kind"));
        return Err(Refusal::bad_request(text));
    };
    let found = find(state, kind, (object::namespace(request), said("name")));
    let (kind, found) = found.ok_or_else(|| {
        let unknown = state.kinds.by_name("v1", kind).map(|kind| Refusal::not_found(kind, said("name")));
        unknown.unwrap_or_else(Refusal::no_such_path)
    })?;
    let account = object::name(request);
    if claim == "pod" && str_at(&found.value, &["spec", "serviceAccountName"]) != account {
        let text = format!(
            "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
        );
        return Err(Refusal::bad_request(text));
    }
    let uid = object::uid(&found.value);
    if !said("uid").is_empty() && said("uid") != uid {
        let named = Kind { plural: kind.kind.clone(), ..(*kind).clone() };
        let why = format!(
            "the UID in the bound object reference ({}) does not match the UID in record. The object might have been \
             deleted and then recreated",
            said("uid")
        );
        return Err(Refusal::conflict(&named, said("name"), &why));
    }
    let mut facts = json!({claim: {"name": said("name"), "uid": uid}});
    let node = str_at(&found.value, &["spec", "nodeName"]);
    if claim == "pod" && !node.is_empty() {
        object::as_map(&mut facts).insert("node".into(), node_fact(state, node));
    }
    Ok(facts)
}

/// Returns the claims about the node of the bound pod. The node may not exist.
fn node_fact(state: &State, name: &str) -> Value {
    match find(state, "Node", ("", name)) {
        Some((_, node)) => json!({"name": name, "uid": object::uid(&node.value)}),
        None => json!({"name": name}),
    }
}

/// Returns the claims of a token.
fn claims(state: &mut State, request: &Value, bound: &Value) -> Value {
    let (namespace, name) = (object::namespace(request), object::name(request));
    let mut facts = json!({"namespace": namespace});
    object::as_map(&mut facts).extend(bound.as_object().cloned().unwrap_or_default());
    let account = json!({"name": name, "uid": object::uid(request)});
    object::as_map(&mut facts).insert("serviceaccount".into(), account);
    let now = state.now.as_second();
    json!({
        "aud": at(request, &["spec", "audiences"]), "exp": now + life(request), "iat": now, "iss": ISSUER,
        "jti": state.random.uid(), "kubernetes.io": facts, "nbf": now, "sub": User::account(namespace, name).name,
    })
}
