//! Discovery documents about versions, groups and resources, computed from the currently served kinds.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::{
    access::token,
    discovery::{openapi, openapi_v2},
    kinds::registry::Kind,
    server::{cluster::State, reply::Reply, status::Refusal},
};

/// The version that the in-memory API claims to be.
pub(crate) const VERSION: (&str, &str) = ("1", "36");
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Returns the discovery document at a path.
pub(crate) fn document(state: &State, path: &[String], accept: &str) -> Result<Reply, Refusal> {
    let path = path.iter().map(String::as_str).collect::<Vec<_>>();
    let aggregated = accept.split(',').any(|media| {
        media.contains("as=APIGroupDiscoveryList") && media.contains("v=v2") && !media.contains("v=v2beta1")
    });
    match path.as_slice() {
        ["openapi", "v3", rest @ ..] => openapi::document(state, rest),
        ["openapi", "v2"] => Ok(openapi_v2::document(state, accept)),
        ["version"] => Ok(Reply::ok(&version())),
        ["healthz" | "livez" | "readyz"] => Ok(Reply::Document("text/plain", Bytes::from_static(b"ok"))),
        [".well-known", "openid-configuration"] => Ok(document_of("application/json", &token::configuration())),
        ["openid", "v1", "jwks"] => Ok(document_of("application/jwk-set+json", &state.token_key.documents())),
        ["api"] if aggregated => Ok(aggregated_list(state, |group| group.is_empty())),
        ["apis"] if aggregated => Ok(aggregated_list(state, |group| !group.is_empty())),
        ["api"] => Ok(Reply::ok(&json!({
            "kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1"}],
        }))),
        ["apis"] => {
            let groups =
                groups(state).into_iter().filter(|(name, _)| !name.is_empty()).map(|(name, kinds)| group(name, &kinds));
            Ok(Reply::ok(&json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups.collect::<Vec<_>>()})))
        }
        ["apis", name] => {
            let found = groups(state).remove(*name).ok_or_else(Refusal::no_such_path)?;
            let mut found = group(name, &found);
            crate::object::as_map(&mut found).insert("kind".into(), json!("APIGroup"));
            crate::object::as_map(&mut found).insert("apiVersion".into(), json!("v1"));
            Ok(Reply::ok(&found))
        }
        ["api", version] => resources(state, "", version),
        ["apis", group, version] => resources(state, group, version),
        _ => Err(Refusal::no_such_path()),
    }
}

fn document_of(media: &'static str, value: &Value) -> Reply {
    Reply::Document(media, Bytes::from(value.to_string()))
}

fn version() -> Value {
    json!({
        "major": VERSION.0, "minor": VERSION.1, "gitVersion": format!("v{}.{}.0-oarlock", VERSION.0, VERSION.1),
        "gitCommit": "", "gitTreeState": "clean", "buildDate": "2026-01-01T00:00:00Z",
        "goVersion": "", "compiler": "rustc", "platform": "in-memory",
    })
}

/// The kinds by group name and version.
type Groups<'a> = BTreeMap<&'a str, BTreeMap<&'a str, Vec<&'a Kind>>>;

fn groups(state: &State) -> Groups<'_> {
    let mut groups = Groups::new();
    for kind in state.kinds.all() {
        groups.entry(&kind.group).or_default().entry(&kind.version).or_default().push(kind);
    }
    groups
}

fn group(name: &str, versions: &BTreeMap<&str, Vec<&Kind>>) -> Value {
    let one = |version: &&str| json!({"groupVersion": format!("{name}/{version}"), "version": version});
    let all = versions.keys().rev().map(one).collect::<Vec<_>>();
    json!({"name": name, "versions": all, "preferredVersion": all.first()})
}

/// A subresource: name, group, version and kind of its objects, and verbs.
pub(crate) type Subresource<'a> = (&'static str, [&'a str; 3], &'static [&'static str]);

/// Returns the subresources of a kind in discovery order.
pub(crate) fn subresources(kind: &Kind) -> Vec<Subresource<'_>> {
    let own = [kind.group.as_str(), kind.version.as_str(), kind.kind.as_str()];
    let mut all: Vec<Subresource<'_>> = Vec::new();
    if kind.is("", "Pod") {
        all.push(("binding", ["", "v1", "Binding"], &["create"]));
        all.push(("eviction", ["policy", "v1", "Eviction"], &["create"]));
        all.push(("attach", ["", "v1", "PodAttachOptions"], &["create", "get"]));
        all.push(("ephemeralcontainers", own, &["get", "patch", "update"]));
        all.push(("exec", ["", "v1", "PodExecOptions"], &["create", "get"]));
        all.push(("log", own, &["get"]));
        all.push(("portforward", ["", "v1", "PodPortForwardOptions"], &["create", "get"]));
    }
    if kind.is("", "ServiceAccount") {
        all.push(("token", ["authentication.k8s.io", "v1", "TokenRequest"], &["create"]));
    }
    if kind.traits.scale {
        all.push(("scale", ["autoscaling", "v1", "Scale"], &["get", "patch", "update"]));
    }
    if kind.traits.status {
        all.push(("status", own, &["get", "patch", "update"]));
    }
    all
}

fn main_entry(kind: &Kind) -> Value {
    let mut entry = json!({
        "name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced, "kind": kind.kind,
        "verbs": kind.verbs(),
    });
    for (field, names) in [("shortNames", &kind.short_names), ("categories", &kind.categories)] {
        if !names.is_empty() {
            crate::object::as_map(&mut entry).insert(field.into(), json!(names));
        }
    }
    entry
}

fn subresource_entry(kind: &Kind, (name, [group, version, own], verbs): Subresource<'_>) -> Value {
    let mut entry = json!({
        "name": format!("{}/{name}", kind.plural), "singularName": "", "namespaced": kind.namespaced,
        "kind": own, "verbs": verbs,
    });
    if (group, version) != (kind.group.as_str(), kind.version.as_str()) {
        crate::object::as_map(&mut entry)
            .extend([("group".to_owned(), json!(group)), ("version".to_owned(), json!(version))]);
    }
    entry
}

fn resources(state: &State, group: &str, version: &str) -> Result<Reply, Refusal> {
    let mut list = Vec::new();
    // Discovery lists custom kinds in the order of their definitions.
    let mut kinds = state.kinds.all().filter(|kind| kind.group == group && kind.version == version).collect::<Vec<_>>();
    kinds.sort_by_key(|kind| kind.custom.is_some().then_some(kind.table));
    for kind in kinds {
        list.push(main_entry(kind));
        list.extend(subresources(kind).into_iter().map(|one| subresource_entry(kind, one)));
    }
    if list.is_empty() {
        return Err(Refusal::no_such_path());
    }
    let version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Ok(Reply::ok(&json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": list})))
}

fn aggregated_list(state: &State, wanted: impl Fn(&str) -> bool) -> Reply {
    let items = groups(state).into_iter().filter(|(name, _)| wanted(name)).map(|(name, versions)| {
        let versions = versions.iter().rev().map(|(version, kinds)| {
            let resources = kinds.iter().map(|kind| aggregated_resource(kind)).collect::<Vec<_>>();
            json!({"version": version, "resources": resources, "freshness": "Current"})
        });
        let metadata = if name.is_empty() {
            json!({"creationTimestamp": null})
        } else {
            json!({"name": name, "creationTimestamp": null})
        };
        json!({"metadata": metadata, "versions": versions.collect::<Vec<_>>()})
    });
    let document = json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
        "items": items.collect::<Vec<_>>(),
    });
    Reply::Document(AGGREGATED, Bytes::from(document.to_string()))
}

fn aggregated_resource(kind: &Kind) -> Value {
    let response = |[group, version, kind]: [&str; 3]| json!({"group": group, "version": version, "kind": kind});
    let subresources = subresources(kind)
        .into_iter()
        .map(|(name, own, verbs)| json!({"subresource": name, "responseKind": response(own), "verbs": verbs}));
    json!({
        "resource": kind.plural,
        "responseKind": response([&kind.group, &kind.version, &kind.kind]),
        "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": kind.singular, "verbs": kind.verbs(), "shortNames": kind.short_names,
        "categories": kind.categories, "subresources": subresources.collect::<Vec<_>>(),
    })
}
