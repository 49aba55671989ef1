//! Reads method, path and query of a request: verb, kind, namespace, name and subresource.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, Method, Uri, header};

use crate::{
    kinds::registry::{Kind, Kinds},
    server::{query::Query, status::Refusal},
};

/// Verb of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// One object is read.
    Get,
    /// Objects are listed.
    List,
    /// Changes are streamed.
    Watch,
    /// An object is created.
    Create,
    /// An object is replaced.
    Update,
    /// An object is changed in part.
    Patch,
    /// An object is deleted.
    Delete,
    /// All selected objects are deleted.
    DeleteCollection,
}

impl Verb {
    /// The verb as audit logs and RBAC spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }

    /// True if the verb changes state.
    pub fn writes(self) -> bool {
        !matches!(self, Self::Get | Self::List | Self::Watch)
    }
}

/// A request for a resource.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) verb: Verb,
    pub(crate) kind: Arc<Kind>,
    /// Empty for cluster-scoped kinds and for lists over all namespaces.
    pub(crate) namespace: String,
    /// Empty for lists and creations.
    pub(crate) name: String,
    /// Empty for the main resource.
    pub(crate) subresource: String,
    pub(crate) query: Query,
    pub(crate) accept: String,
    pub(crate) content_type: String,
    pub(crate) user_agent: String,
    pub(crate) body: Bytes,
}

/// Target of a path.
#[derive(Debug)]
pub(crate) enum Route {
    /// To objects.
    Resource(Box<Call>),
    /// To a document about the server: path segments, the media type asked for.
    Document(Vec<String>, String),
}

/// A request before its path is understood.
#[derive(Debug)]
pub(crate) struct Incoming<'a> {
    pub(crate) method: &'a Method,
    pub(crate) uri: &'a Uri,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: Bytes,
}

/// The part of a path after group and version.
struct PathParts {
    namespace: String,
    plural: String,
    name: String,
    subresource: String,
}

/// Finds the object or document that a request is about.
pub(crate) fn route(incoming: Incoming<'_>, kinds: &Kinds) -> Result<Route, Refusal> {
    let segments = segments(incoming.uri.path())?;
    let text = segments.iter().map(String::as_str).collect::<Vec<_>>();
    let (group, version, rest) = match text.as_slice() {
        ["api", version, rest @ ..] if !rest.is_empty() => ("", *version, rest),
        ["apis", group, version, rest @ ..] if !rest.is_empty() => (*group, *version, rest),
        _ => return Ok(Route::Document(segments, header_text(incoming.headers, &header::ACCEPT))),
    };
    // The old form of a watch: `/api/v1/watch/namespaces/x/pods`.
    let (rest, watched) = match rest {
        ["watch", rest @ ..] if !rest.is_empty() => (rest, true),
        rest => (rest, false),
    };
    let place = place(rest)?;
    let kind = kinds.by_path(group, version, &place.plural).ok_or_else(Refusal::no_such_path)?;
    if !kind.namespaced && !place.namespace.is_empty() {
        return Err(Refusal::no_such_path());
    }
    let mut call = call(incoming, Arc::clone(kind), place)?;
    if watched {
        call.verb = Verb::Watch;
    }
    Ok(Route::Resource(Box::new(call)))
}

fn segments(path: &str) -> Result<Vec<String>, Refusal> {
    let decode = |part: &str| {
        let text = percent_encoding::percent_decode_str(part).decode_utf8().map(Cow::into_owned);
        text.map_err(|_bad| Refusal::bad_request("the path of the request is not UTF-8"))
    };
    path.split('/').filter(|part| !part.is_empty()).map(decode).collect()
}

fn place(rest: &[&str]) -> Result<PathParts, Refusal> {
    let (namespace, rest) = match rest {
        // `/namespaces/x` and `/namespaces/x/status` are about the Namespace itself.
        ["namespaces", _, "status" | "finalize"] | ["namespaces", _] | ["namespaces"] => ("", rest),
        ["namespaces", namespace, rest @ ..] => (*namespace, rest),
        rest => ("", rest),
    };
    let (plural, name, subresource) = match rest {
        [plural] => (*plural, "", ""),
        [plural, name] => (*plural, *name, ""),
        [plural, name, subresource] => (*plural, *name, *subresource),
        _ => return Err(Refusal::no_such_path()),
    };
    let own = str::to_owned;
    Ok(PathParts { namespace: own(namespace), plural: own(plural), name: own(name), subresource: own(subresource) })
}

fn call(incoming: Incoming<'_>, kind: Arc<Kind>, place: PathParts) -> Result<Call, Refusal> {
    let query = Query::parse(incoming.uri.query());
    let named = !place.name.is_empty();
    let verb = match (incoming.method.as_str(), named) {
        ("GET" | "HEAD", _) if query.flag("watch") => Verb::Watch,
        ("GET" | "HEAD", true) => Verb::Get,
        ("GET" | "HEAD", false) => Verb::List,
        ("POST", _) => Verb::Create,
        ("PUT", true) => Verb::Update,
        ("PATCH", true) => Verb::Patch,
        ("DELETE", true) => Verb::Delete,
        ("DELETE", false) => Verb::DeleteCollection,
        _ => return Err(Refusal::method_not_allowed()),
    };
    Ok(Call {
        verb,
        kind,
        namespace: place.namespace,
        name: place.name,
        subresource: place.subresource,
        query,
        accept: header_text(incoming.headers, &header::ACCEPT),
        content_type: header_text(incoming.headers, &header::CONTENT_TYPE),
        user_agent: header_text(incoming.headers, &header::USER_AGENT),
        body: incoming.body,
    })
}

fn header_text(headers: &HeaderMap, name: &header::HeaderName) -> String {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}
