//! The documents of a kind of the engine: its definition, and the role of the host with its binding.
//!
//! The rules follow from the definition and from the kind of the children. They allow what the engine does for any kind.
//! A plan that reads other objects needs more.

use oarlock_api::HostAccount;
use oarlock_core::kind::plan_kind::PlanKind;
use oarlock_core::object::api_object::Kind;
use serde_json::json;

use super::kinds::{KnownKinds, NamedKind};
use super::roles::{READ, RoleDocument, RoleError, Rules, binding, role};
use super::{ManifestsError, join, yaml};

/// Returns the documents that a kind needs beside those of `manifests`, for a host with this account.
///
/// # Errors
/// If the definition is no CustomResourceDefinition, or if the resource name of the children is not known.
pub fn kind_manifests(kind: &impl PlanKind, host: &HostAccount) -> Result<String, ManifestsError> {
    let children = kind.children().map(|children| children.kind);
    let rules = kind_rules(kind.definition(), children.as_ref()).map_err(ManifestsError::Roles)?;
    let plural = NamedKind::read(kind.definition()).map(|named| named.plural).unwrap_or_default();
    let (name, labels) = (format!("oarlock-{plural}"), json!({"app.kubernetes.io/name": "oarlock"}));
    let metadata = json!({"name": name, "labels": labels});
    let comment = format!("Lets the host reconcile {plural}.");
    let documents = [
        RoleDocument { comment, content: role(&metadata, &rules) },
        RoleDocument { comment: String::new(), content: binding(&name, metadata, None) },
    ];
    let roles: Vec<String> = documents.iter().map(yaml).collect::<Result<_, _>>()?;
    let all: Vec<&str> = std::iter::once(kind.definition()).chain(roles.iter().map(String::as_str)).collect();
    Ok(host.fill(&join(&all)))
}

/// Returns what the host does with the objects of a kind and with their children, by API group and resource.
pub(crate) fn kind_rules(definition: &str, children: Option<&Kind>) -> Result<Rules, RoleError> {
    let NamedKind { group, plural, .. } = NamedKind::read(definition).ok_or(RoleError::Definition)?;
    let of = |below: &str| (group.clone(), format!("{plural}{below}"));
    let mut rules = Rules::new();
    rules.entry(of("")).or_default().extend(READ.into_iter().chain(["patch", "delete"]));
    rules.entry(of("/status")).or_default().insert("patch");
    if let Some(children) = children {
        let known = KnownKinds::built_in();
        let unknown = || RoleError::Child { kind: children.kind.clone() };
        let child = known.find(group_of(children), &children.kind).ok_or_else(unknown)?;
        let all = READ.into_iter().chain(["create", "patch", "delete"]);
        rules.entry((child.group.clone(), child.plural.clone())).or_default().extend(all);
        // Lets a child name its owner with blockOwnerDeletion.
        rules.entry(of("/finalizers")).or_default().insert("update");
    }
    Ok(rules)
}

/// Returns the group of a kind. The core group is empty.
fn group_of(kind: &Kind) -> &str {
    kind.api_version.split_once('/').map_or("", |(group, _)| group)
}
