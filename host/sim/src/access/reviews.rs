//! Answers reviews about access and tokens. The server answers a review on creation and does not store it.

use http::StatusCode;
use serde_json::{Value, json};

use crate::{
    access::{
        rbac::{Attributes, Decision, Roles},
        token_review,
        user::User,
    },
    kinds::registry::Kind,
    object::{self, as_map, at, map_at, str_at},
    server::{
        cluster::State,
        decode,
        reply::Reply,
        routing::{Call, Verb},
        status::{FieldError, Refusal},
    },
};

/// Answers a request to create a review.
pub(crate) fn review(state: &State, call: &Call) -> Result<Reply, Refusal> {
    match call.verb {
        Verb::Create if call.name.is_empty() && call.kind.namespaced != call.namespace.is_empty() => {}
        _ if !call.name.is_empty() => return Err(Refusal::no_such_path()),
        _ => return Err(Refusal::method_not_allowed()),
    }
    let decode::Decoded { object: mut review, warnings } = decode::object(call)?;
    match call.kind.kind.as_str() {
        "SelfSubjectReview" => {
            object::set_meta(&mut review, "creationTimestamp", json!(state.time()));
            map_at(&mut review, "status").insert("userInfo".into(), call.user.info());
        }
        "TokenReview" => token_review::answer(state, &mut review)?,
        "SelfSubjectRulesReview" => review = rules(state, call, &review)?,
        _ => answer(state, call, &mut review)?,
    }
    Ok(Reply::value(StatusCode::CREATED, &review).warned(warnings))
}

/// Fills in the status of an access review: whether the user may make the described request.
fn answer(state: &State, call: &Call, review: &mut Value) -> Result<(), Refusal> {
    if call.kind.namespaced {
        object::set_meta(review, "namespace", json!(call.namespace));
    }
    let errors = errors(&call.kind, review);
    if !errors.is_empty() {
        return Err(invalid(&call.kind, &errors));
    }
    let user = if call.kind.kind.starts_with("Self") { call.user.clone() } else { subject(review) };
    let Decision { allowed, reason } = Roles::of(state).decide(&user, &asked(review));
    let status = map_at(review, "status");
    status.clear();
    status.insert("allowed".into(), json!(allowed));
    if !reason.is_empty() {
        status.insert("reason".into(), json!(reason));
    }
    Ok(())
}

fn subject(review: &Value) -> User {
    let groups = at(review, &["spec", "groups"]).and_then(Value::as_array).into_iter().flatten();
    let groups = groups.filter_map(Value::as_str).map(str::to_owned).collect();
    User::of_groups(str_at(review, &["spec", "user"]).to_owned(), groups)
}

fn asked(review: &Value) -> Attributes<'_> {
    if let Some(wanted) = at(review, &["spec", "nonResourceAttributes"]) {
        return Attributes {
            verb: str_at(wanted, &["verb"]),
            path: str_at(wanted, &["path"]),
            ..Attributes::default()
        };
    }
    let wanted = |field: &str| str_at(review, &["spec", "resourceAttributes", field]);
    Attributes {
        verb: wanted("verb"),
        group: wanted("group"),
        resource: wanted("resource"),
        subresource: wanted("subresource"),
        namespace: wanted("namespace"),
        name: wanted("name"),
        path: "",
    }
}

fn errors(kind: &Kind, review: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let of = |field: &str| at(review, &["spec", field]);
    let (resource, path) = (of("resourceAttributes"), of("nonResourceAttributes"));
    match (resource, path) {
        (Some(_), Some(path)) => {
            let detail = "cannot be specified in combination with resourceAttributes";
            errors.push(FieldError::invalid("spec.nonResourceAttributes", path, detail));
        }
        (None, None) => {
            let detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            errors.push(FieldError::invalid("spec.resourceAttributes", &Value::Null, detail));
        }
        _ => {}
    }
    let somebody = of("user").is_some() || of("groups").is_some();
    if !kind.kind.starts_with("Self") && !somebody {
        let detail = "at least one of user or group must be specified";
        errors.push(FieldError::invalid("spec.user", &json!(""), detail));
    }
    let own = |field: &&String| !(kind.namespaced && *field == "namespace");
    if let Some(metadata) =
        review.get("metadata").filter(|all| all.as_object().is_some_and(|all| all.keys().any(|one| own(&one))))
    {
        errors.push(FieldError::invalid("metadata", metadata, "must be empty"));
    }
    let elsewhere = resource.map(|resource| str_at(resource, &["namespace"]));
    if let Some(namespace) = elsewhere.filter(|one| kind.namespaced && *one != object::namespace(review)) {
        let detail = "must match metadata.namespace";
        errors.push(FieldError::invalid("spec.resourceAttributes.namespace", &json!(namespace), detail));
    }
    errors
}

/// Returns the refusal of an invalid review. As on the real server, it omits the review's kind.
fn invalid(kind: &Kind, errors: &[FieldError]) -> Refusal {
    let nameless = Kind { kind: String::new(), ..kind.clone() };
    let mut refusal = Refusal::invalid(&nameless, "", errors);
    as_map(&mut refusal.details).shift_remove("kind");
    refusal
}

fn rules(state: &State, call: &Call, review: &Value) -> Result<Value, Refusal> {
    let namespace = str_at(review, &["spec", "namespace"]);
    if namespace.is_empty() {
        return Err(Refusal::bad_request("no namespace on request"));
    }
    let rights = Roles::of(state).rights(&call.user, namespace);
    let with = |field: &str, others: &[&str]| {
        let chosen = rights.rules.iter().filter(|(_, rule)| at(rule, &[field]).is_some());
        let shown = chosen.map(|(_, rule)| {
            let kept = rule.as_object().into_iter().flatten();
            let kept = kept.filter(|(name, _)| *name == "verbs" || *name == field || others.contains(&name.as_str()));
            Value::Object(kept.map(|(name, value)| (name.clone(), value.clone())).collect())
        });
        shown.collect::<Vec<_>>()
    };
    let mut status = json!({
        "resourceRules": with("resources", &["apiGroups", "resourceNames"]),
        "nonResourceRules": with("nonResourceURLs", &[]), "incomplete": false,
    });
    if !rights.missing.is_empty() {
        as_map(&mut status).insert("evaluationError".into(), json!(rights.missing.join(", ")));
    }
    Ok(json!({
        "kind": call.kind.kind, "apiVersion": call.kind.api_version(), "metadata": {}, "spec": {}, "status": status,
    }))
}
