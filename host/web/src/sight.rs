//! Decides how much of a page a viewer may see, with the rights that the viewer has with kubectl. docs/page.md has the table.

use std::collections::{BTreeMap, BTreeSet};

use oarlock_core::object::own::OPS_NAMESPACE;
use oarlock_core::ops_job::access::Access;
use oarlock_core::ops_job::refusal::OpsRefusal;
use oarlock_page::{JobQuery, ObjectAddress, ObjectKind, PageAddress, PageRefusal};
use oarlock_rest::Rest;

use crate::viewer::PageViewer;

/// The namespaces of which a viewer may list the objects of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ListScope {
    /// All namespaces.
    Cluster,
    /// These namespaces.
    Namespaces(BTreeSet<String>),
}

/// The part of a page that a viewer may see.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Sight {
    /// The objects of a list, by kind. The viewer may not list the other kinds.
    List(BTreeMap<ObjectKind, ListScope>),
    /// One object, with these details.
    Object(Details),
    /// Everything.
    Whole,
}

impl Sight {
    /// Returns the details of the object that the viewer may see.
    pub(crate) fn details(&self) -> Details {
        match self {
            Self::Object(details) => *details,
            Self::List(_) | Self::Whole => Details { records: false, events: false },
        }
    }
}

/// The details of an object that a viewer may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Details {
    /// True if the viewer may read the objects that hold the details of targets, steps or nodes.
    pub(crate) records: bool,
    /// True if the viewer may read the events.
    pub(crate) events: bool,
}

/// The reason why a viewer sees nothing of a page.
#[derive(Debug)]
pub(crate) enum SightFailed {
    /// The viewer lacks all of these rights. One of them is enough.
    Forbidden(Vec<Access>),
    /// The API server did not say what the viewer may do.
    Unanswered(OpsRefusal),
}

impl SightFailed {
    /// Returns the reason as a page shows it.
    pub(crate) fn shown(&self) -> PageRefusal {
        match self {
            Self::Forbidden(all) => {
                let mut rights: Vec<String> = all.iter().map(deed).collect();
                rights.dedup();
                let namespace = all.first().map(|access| access.namespace.clone()).unwrap_or_default();
                PageRefusal::Forbidden { right: rights.join(", or "), namespace }
            }
            Self::Unanswered(refusal) => PageRefusal::Outage(refusal.message.clone()),
        }
    }

    /// Returns the reason as a sentence for the viewer.
    pub(crate) fn sentence(&self) -> String {
        match self {
            Self::Forbidden(all) => {
                let rights: Vec<String> = all.iter().map(right).collect();
                format!("You may not see this page. It needs the right to {}.", rights.join(", or to "))
            }
            Self::Unanswered(refusal) => refusal.message.clone(),
        }
    }
}

impl From<OpsRefusal> for SightFailed {
    fn from(refusal: OpsRefusal) -> Self {
        Self::Unanswered(refusal)
    }
}

/// Returns a right in words, such as `list operationjobs.apps.kusionstack.io in namespace web`.
pub(crate) fn right(access: &Access) -> String {
    let Access { namespace, name, .. } = access;
    let place = if namespace.is_empty() { "in all namespaces".to_owned() } else { format!("in namespace {namespace}") };
    let object = if name.is_empty() { String::new() } else { format!(" {name}") };
    format!("{}{object} {place}", deed(access))
}

/// Returns the verb and the resource of a right, such as `list operationjobs.apps.kusionstack.io`.
fn deed(access: &Access) -> String {
    let Access { verb, group, resource, subresource, .. } = access;
    let (slash, dot) = (if subresource.is_empty() { "" } else { "/" }, if group.is_empty() { "" } else { "." });
    format!("{verb} {resource}{slash}{subresource}{dot}{group}")
}

/// Returns the question about a verb on objects of a kind.
fn access(verb: &'static str, kind: ObjectKind) -> Access {
    let (group, resource) = match kind {
        ObjectKind::OperationJob => (oarlock_api::OPERATION_JOB_GROUP, "operationjobs"),
        ObjectKind::JobFlow => ("api.practice.com", "jobflows"),
        ObjectKind::DaemonJob => ("api.practice.com", "daemonjobs"),
        ObjectKind::OpsJob => (oarlock_api::OARLOCK_GROUP, "opsjobs"),
    };
    Access { verb, group: group.to_owned(), resource: resource.to_owned(), ..Access::default() }
}

/// Returns the question whether a viewer may read the objects that hold the details of this object.
fn of_records(object: &ObjectAddress) -> Access {
    let records = |resource: &str| {
        let (group, resource) = (oarlock_api::OARLOCK_GROUP.to_owned(), resource.to_owned());
        Access { verb: "list", group, resource, namespace: object.namespace.clone(), ..Access::default() }
    };
    match object.kind {
        ObjectKind::OperationJob => records("operationrecords"),
        ObjectKind::JobFlow | ObjectKind::DaemonJob => records("jobrecords"),
        ObjectKind::OpsJob => {
            Access { name: object.name.clone(), ..access("get", ObjectKind::OperationJob).within(OPS_NAMESPACE) }
        }
    }
}

/// Returns the question whether a viewer may read the events of an object. Those of an object without a namespace are in `default`.
fn of_events(object: &ObjectAddress) -> Access {
    let namespace = if object.namespace.is_empty() { "default" } else { &object.namespace };
    Access { verb: "list", resource: "events".to_owned(), ..Access::default() }.within(namespace)
}

/// Returns the question whether a viewer may see the plugins.
fn of_plugins() -> Access {
    let (group, resource) = (oarlock_api::OARLOCK_GROUP.to_owned(), "actionplugins".to_owned());
    Access { verb: "list", group, resource, ..Access::default() }
}

/// Returns the part of a page that a viewer may see.
pub(crate) async fn sight(rest: &Rest, viewer: &PageViewer, address: &PageAddress) -> Result<Sight, SightFailed> {
    match address {
        PageAddress::Jobs(query) => sight_of_list(rest, viewer, query).await,
        PageAddress::Object(object, _) | PageAddress::Target(object, _) => {
            let own = Access { name: object.name.clone(), ..access("get", object.kind).within(&object.namespace) };
            if !viewer.has(rest, &own).await? {
                return Err(SightFailed::Forbidden(vec![own]));
            }
            let records = viewer.has(rest, &of_records(object)).await?;
            let events = viewer.has(rest, &of_events(object)).await?;
            Ok(Sight::Object(Details { records, events }))
        }
        PageAddress::Plugins => match viewer.has(rest, &of_plugins()).await? {
            true => Ok(Sight::Whole),
            false => Err(SightFailed::Forbidden(vec![of_plugins()])),
        },
    }
}

async fn sight_of_list(rest: &Rest, viewer: &PageViewer, query: &JobQuery) -> Result<Sight, SightFailed> {
    let (mut seen, mut lacked) = (BTreeMap::new(), Vec::new());
    for kind in ObjectKind::ALL.into_iter().filter(|kind| query.kind.is_none_or(|asked| asked == *kind)) {
        let list = access("list", kind);
        if viewer.has(rest, &list).await? {
            seen.insert(kind, ListScope::Cluster);
            continue;
        }
        let mut namespaces = BTreeSet::new();
        // OpsJobs are in no namespace.
        for namespace in query.namespaces.iter().filter(|_| kind != ObjectKind::OpsJob) {
            let within = list.clone().within(namespace);
            if viewer.has(rest, &within).await? {
                namespaces.insert(namespace.clone());
            } else {
                lacked.push(within);
            }
        }
        if !namespaces.is_empty() {
            seen.insert(kind, ListScope::Namespaces(namespaces));
        } else if query.namespaces.is_empty() {
            lacked.push(list);
        }
    }
    if seen.is_empty() { Err(SightFailed::Forbidden(lacked)) } else { Ok(Sight::List(seen)) }
}
