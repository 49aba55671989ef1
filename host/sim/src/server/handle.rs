//! Dispatches a routed request to the function for its verb and subresource.

use http::StatusCode;

use crate::{
    access::reviews,
    controllers::run,
    discovery::documents,
    server::{
        cluster::{Cluster, State},
        list, parameters,
        reply::Reply,
        response_form::ResponseForm,
        routing::{Call, Verb},
        status::Refusal,
        watch,
    },
    storage::{Key, ObjectVersion},
    verbs::{containers, create, delete, patch, scale, token_request, update},
};

/// Answers a request for a resource.
pub(crate) fn resource(cluster: &Cluster, call: &Call) -> Result<Reply, Refusal> {
    known_subresource(call)?;
    parameters::check(call)?;
    let mut state = cluster.lock();
    let reply = match call.verb {
        _ if call.kind.traits.create_only => reviews::review(&state, call),
        _ if containers::SUBRESOURCES.contains(&call.subresource.as_str()) => containers::answer(cluster, &state, call),
        _ if call.subresource == "scale" => scale::scale(&mut state, call),
        _ if call.subresource == "token" => token_request::answer(&mut state, call),
        Verb::Get | Verb::Update | Verb::Patch if matches!(call.subresource.as_str(), "binding" | "eviction") => {
            Err(Refusal::method_not_allowed())
        }
        Verb::Get => get(&state, call),
        Verb::List => list::list(&state, call),
        Verb::Watch => watch::start(cluster, &state, call),
        Verb::Create => create::create(&mut state, call),
        Verb::Update => update::replace(&mut state, call),
        Verb::Patch => patch::patch(&mut state, call),
        Verb::Delete => delete::delete(&mut state, call),
        Verb::DeleteCollection => delete::collection(&mut state, call),
    };
    if call.verb.writes() {
        run::run_controllers(&mut state);
    }
    reply
}

/// Answers a request for a document about the server.
pub(crate) fn document(cluster: &Cluster, path: &[String], accept: &str) -> Result<Reply, Refusal> {
    documents::document(&cluster.lock(), path, accept)
}

fn known_subresource(call: &Call) -> Result<(), Refusal> {
    let traits = call.kind.traits;
    let known = match call.subresource.as_str() {
        "" => true,
        "status" => traits.status,
        "scale" => traits.scale,
        "binding" | "eviction" => call.kind.is("", "Pod"),
        name if containers::SUBRESOURCES.contains(&name) => call.kind.is("", "Pod"),
        "finalize" => call.kind.is("", "Namespace"),
        "token" => call.kind.is("", "ServiceAccount"),
        _ => false,
    };
    match (known, call.kind.custom.is_some()) {
        (true, _) => Ok(()),
        (false, true) => Err(Refusal::not_found(&call.kind, &call.name)),
        (false, false) => Err(Refusal::no_such_path()),
    }
}

fn get(state: &State, call: &Call) -> Result<Reply, Refusal> {
    let found =
        state.store.get(call.kind.table, &key(call)).ok_or_else(|| Refusal::not_found(&call.kind, &call.name))?;
    shown(state, call, StatusCode::OK, found)
}

/// Returns the key of a call's object.
pub(crate) fn key(call: &Call) -> Key {
    Key::new(call.namespace.clone(), call.name.clone())
}

/// Returns the reply with one object in the form that the client requested.
pub(crate) fn shown(state: &State, call: &Call, code: StatusCode, version: &ObjectVersion) -> Result<Reply, Refusal> {
    let form = ResponseForm::wanted(call)?;
    Ok(Reply::Json(code, form.one(version, state.now)))
}
