//! Refuses requests that no role allows, before any lookup: a caller without access must not learn which objects exist.

use http::Method;

use crate::{
    access::{
        rbac::{Attributes, Roles},
        user::{MASTERS, User},
    },
    kinds::registry::qualified,
    server::{
        cluster::State,
        routing::{Incoming, ObjectPath, Verb},
        status::Refusal,
    },
};

/// Returns a refusal unless the user may make the request.
pub(crate) fn pass(
    state: &State,
    user: &User,
    incoming: &Incoming<'_>,
    path: Option<&ObjectPath>,
) -> Result<(), Refusal> {
    if user.is_in(MASTERS) {
        return Ok(());
    }
    let allowed = |wanted: &Attributes<'_>| Roles::of(state).decide(user, wanted).allowed;
    let Some(path) = path else {
        let verb = document_verb(incoming.method);
        let path = incoming.uri.path();
        let wanted = Attributes { verb: &verb, path, ..Attributes::default() };
        return if allowed(&wanted) { Ok(()) } else { Err(refusal(user, &wanted)) };
    };
    let verb = path.verb(incoming)?.as_str();
    let wanted = Attributes { verb, ..path.attributes() };
    if allowed(&wanted) { Ok(()) } else { Err(refusal(user, &wanted)) }
}

/// Returns the verb of a request for a document about the server.
pub(crate) fn document_verb(method: &Method) -> String {
    if method == Method::HEAD { Verb::Get.as_str().to_owned() } else { method.as_str().to_lowercase() }
}

/// Returns the refusal of a request that no role allows.
pub(crate) fn refusal(user: &User, wanted: &Attributes<'_>) -> Refusal {
    let Attributes { verb, group, resource, subresource, namespace, name, path } = *wanted;
    if !path.is_empty() {
        let text = format!("forbidden: User {:?} cannot {verb} path {path:?}", user.name);
        return Refusal::plain(403, "Forbidden", text).with_details(serde_json::json!({}));
    }
    let of = qualified(resource, group);
    let subject = if name.is_empty() { of } else { format!("{of} {name:?}") };
    let part = if subresource.is_empty() { resource.to_owned() } else { format!("{resource}/{subresource}") };
    let place = match namespace {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    let message = format!(
        "{subject} is forbidden: User {:?} cannot {verb} resource {part:?} in API group {group:?} {place}",
        user.name
    );
    let mut details = serde_json::Map::new();
    for (field, value) in [("name", name), ("group", group), ("kind", resource)] {
        if !value.is_empty() {
            details.insert(field.to_owned(), value.into());
        }
    }
    Refusal::plain(403, "Forbidden", message).with_details(details.into())
}
