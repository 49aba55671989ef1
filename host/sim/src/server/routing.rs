//! Parses method, path and query of a request into verb, kind, namespace, name and subresource.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, Method, Uri, header};

use crate::{
    access::{gate, impersonation, rbac::Attributes, user::User},
    kinds::registry::Kind,
    server::{cluster::State, query::Query, status::Refusal},
};

/// Verb of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// Reads an object.
    Get,
    /// Lists objects.
    List,
    /// Streams changes.
    Watch,
    /// Creates an object.
    Create,
    /// Replaces an object.
    Update,
    /// Changes parts of an object.
    Patch,
    /// Deletes an object.
    Delete,
    /// Deletes all selected objects.
    DeleteCollection,
}

impl Verb {
    /// Returns the verb as audit logs and RBAC spell it.
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

    /// Returns true if the verb changes state.
    pub fn writes(self) -> bool {
        !matches!(self, Self::Get | Self::List | Self::Watch)
    }
}

/// A request for a resource.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) verb: Verb,
    pub(crate) kind: Arc<Kind>,
    /// Namespace of the object, empty for cluster-scoped kinds and for lists over all namespaces.
    pub(crate) namespace: String,
    /// Name of the object, empty for lists and creations.
    pub(crate) name: String,
    /// Subresource, empty for the main resource.
    pub(crate) subresource: String,
    pub(crate) query: Query,
    pub(crate) accept: String,
    pub(crate) content_type: String,
    pub(crate) user_agent: String,
    pub(crate) user: User,
    pub(crate) body: Bytes,
}

/// The target of a request.
#[derive(Debug)]
pub(crate) enum Route {
    /// A request for objects.
    Resource(Box<Call>),
    /// A document about the server: path segments and the Accept header.
    Document(Vec<String>, String),
}

/// A request before its path is parsed.
#[derive(Debug)]
pub(crate) struct Incoming<'a> {
    pub(crate) method: &'a Method,
    pub(crate) uri: &'a Uri,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: Bytes,
}

/// A path to objects, whose kind may not be served.
#[derive(Debug)]
pub(crate) struct ObjectPath {
    pub(crate) group: String,
    version: String,
    pub(crate) namespace: String,
    pub(crate) plural: String,
    pub(crate) name: String,
    pub(crate) subresource: String,
    /// Whether the path has the old form of a watch: `/api/v1/watch/namespaces/x/pods`.
    watched: bool,
}

impl ObjectPath {
    /// Parses the path of a request. Returns none if the path does not lead to objects.
    pub(crate) fn of(segments: &[String]) -> Result<Option<Self>, Refusal> {
        let text = segments.iter().map(String::as_str).collect::<Vec<_>>();
        let (group, version, rest) = match text.as_slice() {
            ["api", version, rest @ ..] if !rest.is_empty() => ("", *version, rest),
            ["apis", group, version, rest @ ..] if !rest.is_empty() => (*group, *version, rest),
            _ => return Ok(None),
        };
        let (rest, watched) = match rest {
            ["watch", rest @ ..] if !rest.is_empty() => (rest, true),
            rest => (rest, false),
        };
        let (namespace, rest) = match rest {
            // `/namespaces/x` and `/namespaces/x/status` address the Namespace itself.
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
        let [group, version, namespace, plural, name, subresource] =
            [group, version, namespace, plural, name, subresource].map(str::to_owned);
        Ok(Some(Self { group, version, namespace, plural, name, subresource, watched }))
    }

    /// Returns what a request with this path asks for, without its verb.
    pub(crate) fn attributes(&self) -> Attributes<'_> {
        // RBAC treats a namespace as an object inside itself.
        let namespace = if self.plural == "namespaces" { &self.name } else { &self.namespace };
        Attributes {
            verb: "",
            group: &self.group,
            resource: &self.plural,
            subresource: &self.subresource,
            namespace,
            name: &self.name,
            path: "",
        }
    }

    fn not_served(&self) -> Refusal {
        let version = &self.version;
        let version = if self.group.is_empty() { version.clone() } else { format!("{}/{version}", self.group) };
        Refusal::not_served(&self.plural, &version)
    }

    /// Returns the verb of a request with this path.
    pub(crate) fn verb(&self, incoming: &Incoming<'_>) -> Result<Verb, Refusal> {
        let watches = || self.watched || Query::parse(incoming.uri.query()).flag("watch");
        Ok(match (incoming.method.as_str(), !self.name.is_empty()) {
            ("GET" | "HEAD", _) if watches() => Verb::Watch,
            ("GET" | "HEAD", true) => Verb::Get,
            ("GET" | "HEAD", false) => Verb::List,
            ("POST", _) => Verb::Create,
            ("PUT", true) => Verb::Update,
            ("PATCH", true) => Verb::Patch,
            ("DELETE", true) => Verb::Delete,
            ("DELETE", false) => Verb::DeleteCollection,
            _ => return Err(Refusal::method_not_allowed()),
        })
    }
}

/// Returns the target of a request. Refuses the request if its user is not allowed to make it.
pub(crate) fn route(incoming: Incoming<'_>, state: &State) -> Result<Route, Refusal> {
    let segments = segments(incoming.uri.path())?;
    let path = ObjectPath::of(&segments)?;
    let user = impersonation::user(state, &incoming, path.as_ref())?;
    gate::pass(state, &user, &incoming, path.as_ref())?;
    let Some(path) = path else {
        return Ok(Route::Document(segments, header_text(incoming.headers, &header::ACCEPT)));
    };
    let kind = state.kinds.by_path(&path.group, &path.version, &path.plural).ok_or_else(|| path.not_served())?;
    if !kind.namespaced && !path.namespace.is_empty() {
        return Err(Refusal::no_such_path());
    }
    Ok(Route::Resource(Box::new(call(incoming, Arc::clone(kind), (path, user))?)))
}

fn segments(path: &str) -> Result<Vec<String>, Refusal> {
    let decode = |part: &str| {
        let text = percent_encoding::percent_decode_str(part).decode_utf8().map(Cow::into_owned);
        text.map_err(|_bad| Refusal::bad_request("the path of the request is not UTF-8"))
    };
    path.split('/').filter(|part| !part.is_empty()).map(decode).collect()
}

fn call(incoming: Incoming<'_>, kind: Arc<Kind>, (path, user): (ObjectPath, User)) -> Result<Call, Refusal> {
    Ok(Call {
        verb: path.verb(&incoming)?,
        kind,
        namespace: path.namespace,
        name: path.name,
        subresource: path.subresource,
        query: Query::parse(incoming.uri.query()),
        accept: header_text(incoming.headers, &header::ACCEPT),
        content_type: header_text(incoming.headers, &header::CONTENT_TYPE),
        user_agent: header_text(incoming.headers, &header::USER_AGENT),
        user,
        body: incoming.body,
    })
}

fn header_text(headers: &HeaderMap, name: &header::HeaderName) -> String {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}
