//! Answers TokenReviews. A token is valid until it expires, as long as its account and its bound object exist with the same UIDs
//! and neither was deleted more than the leeway ago.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::{
    access::{
        token::{Doubt, ISSUER},
        user::User,
    },
    kinds::registry::Kind,
    object::{self, at, str_at},
    server::{cluster::State, status::Refusal},
    storage::{Key, ObjectVersion},
};

/// Seconds that a token stays valid after its expiry, because clocks differ.
const LEEWAY: i64 = 60;

/// The kinds that a token can be bound to, with their names in a token, in the order of the checks.
pub(crate) const BINDABLE: [(&str, &str); 3] = [("secret", "Secret"), ("pod", "Pod"), ("node", "Node")];

/// Fills in the status of a TokenReview.
pub(crate) fn answer(state: &State, review: &mut Value) -> Result<(), Refusal> {
    let token = str_at(review, &["spec", "token"]);
    if token.is_empty() {
        return Err(Refusal::bad_request("token is required for TokenReview in authentication"));
    }
    // The real server parses the token as in a header, where a space ends it.
    let token = token.trim_end().split(' ').next().unwrap_or_default();
    let own = [ISSUER.to_owned()];
    let wanted = texts(at(review, &["spec", "audiences"]));
    let wanted = if wanted.is_empty() { &own[..] } else { &wanted };
    let status = match believed(state, token, wanted) {
        Ok(status) => status,
        Err(_) if token.is_empty() => json!({"user": {}}),
        Err(doubt) => json!({"user": {}, "error": doubt.sentence()}),
    };
    object::as_map(review).insert("status".into(), status);
    Ok(())
}

/// Returns the status of a review of a valid token.
fn believed(state: &State, token: &str, wanted: &[String]) -> Result<Value, Doubt> {
    let claims = state.token_key.read(token)?;
    let audiences = texts(at(&claims, &["aud"]));
    let common = wanted.iter().filter(|one| audiences.contains(one)).collect::<Vec<_>>();
    if common.is_empty() {
        let (has, wanted) = (spaced(&audiences), spaced(wanted));
        return Err(Doubt::refuted(format!("token audiences [{has}] is invalid for the target audiences [{wanted}]")));
    }
    let end = at(&claims, &["exp"]).and_then(Value::as_i64).unwrap_or_default();
    if is_past(state, Timestamp::from_second(end).ok()) {
        return Err(Doubt::refuted("service account token has expired"));
    }
    let facts = at(&claims, &["kubernetes.io"]).unwrap_or(&Value::Null);
    account_is_there(state, facts)?;
    for (name, kind) in BINDABLE {
        // A pod may outlive its node, so the node of a pod's token need not exist.
        if at(facts, &[name]).is_some() && (name != "node" || at(facts, &["pod"]).is_none()) {
            bound_is_there(state, facts, (name, kind))?;
        }
    }
    Ok(json!({"authenticated": true, "user": user(&claims, facts), "audiences": common}))
}

/// Returns the service account of a token for this server, if the token is valid.
pub(crate) fn sender(state: &State, token: &str) -> Option<User> {
    believed(state, token, &[ISSUER.to_owned()]).ok()?;
    let claims = state.token_key.read(token).ok()?;
    let of = |path: &[&str]| str_at(&claims, path).to_owned();
    let (namespace, name) = (of(&["kubernetes.io", "namespace"]), of(&["kubernetes.io", "serviceaccount", "name"]));
    Some(User::account(&namespace, &name))
}

fn texts(list: Option<&Value>) -> Vec<String> {
    let all = list.and_then(Value::as_array).into_iter().flatten();
    all.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn spaced(texts: &[String]) -> String {
    texts.iter().map(|one| format!("{one:?}")).collect::<Vec<_>>().join(" ")
}

/// Returns true if the moment is past by more than the leeway.
fn is_past(state: &State, moment: Option<Timestamp>) -> bool {
    let end = moment.and_then(|moment| Timestamp::from_second(moment.as_second() + LEEWAY).ok());
    end.is_some_and(|end| end < state.now)
}

fn is_long_deleted(state: &State, found: &ObjectVersion) -> bool {
    is_past(state, object::meta_str(&found.value, "deletionTimestamp").parse().ok())
}

fn account_is_there(state: &State, facts: &Value) -> Result<(), Doubt> {
    let (namespace, name) = (str_at(facts, &["namespace"]), str_at(facts, &["serviceaccount", "name"]));
    let Some((_, account)) = find(state, "ServiceAccount", (namespace, name)) else {
        return Err(Doubt::refuted(format!("serviceaccounts {name:?} not found")));
    };
    let (uid, claimed) = (object::uid(&account.value), str_at(facts, &["serviceaccount", "uid"]));
    if uid != claimed {
        return Err(Doubt::refuted(format!("service account UID ({uid}) does not match claim ({claimed})")));
    }
    if is_long_deleted(state, &account) {
        return Err(Doubt::refuted(format!("service account {namespace}/{name} has been deleted")));
    }
    Ok(())
}

fn bound_is_there(state: &State, facts: &Value, (claim, kind): (&str, &str)) -> Result<(), Doubt> {
    let place = (str_at(facts, &["namespace"]), str_at(facts, &[claim, "name"]));
    let gone = || Doubt::refuted("service account token has been invalidated");
    let (_, found) = find(state, kind, place).ok_or_else(gone)?;
    let (uid, claimed) = (object::uid(&found.value), str_at(facts, &[claim, "uid"]));
    if uid != claimed {
        let text = format!("{claim} UID ({uid}) does not match service account {claim} ref claim ({claimed})");
        return Err(Doubt::refuted(text));
    }
    if is_long_deleted(state, &found) { Err(gone()) } else { Ok(()) }
}

/// Returns an object of a core kind by namespace and name. Cluster-scoped kinds ignore the namespace.
pub(crate) fn find(
    state: &State,
    kind: &str,
    (namespace, name): (&str, &str),
) -> Option<(Arc<Kind>, Arc<ObjectVersion>)> {
    let kind = state.kinds.by_name("v1", kind)?;
    let namespace = if kind.namespaced { namespace } else { "" };
    let found = state.store.get(kind.table, &Key::new(namespace, name))?;
    Some((Arc::clone(kind), Arc::clone(found)))
}

/// Returns the `user` of a review: the account, the id of its token, and its pod and node.
fn user(claims: &Value, facts: &Value) -> Value {
    let fact = |claim: &str, field: &str| str_at(facts, &[claim, field]);
    let mut user = User::account(str_at(facts, &["namespace"]), fact("serviceaccount", "name")).info();
    let mut extra = Map::new();
    let mut note = |name: &str, value: &str| {
        if !value.is_empty() {
            extra.insert(format!("authentication.kubernetes.io/{name}"), json!([value]));
        }
    };
    note("credential-id", &format!("JTI={}", str_at(claims, &["jti"])));
    for claim in ["pod", "node"] {
        note(&format!("{claim}-name"), fact(claim, "name"));
        note(&format!("{claim}-uid"), fact(claim, "uid"));
    }
    let map = object::as_map(&mut user);
    map.insert("uid".into(), json!(fact("serviceaccount", "uid")));
    map.insert("extra".into(), extra.into());
    user
}
