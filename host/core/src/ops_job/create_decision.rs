//! Decides whether a REST request may create an OpsJob, and on which nodes. Source: docs/opsjob-rest.md 4.
//!
//! Takes a body and the known facts; yields a job, a refusal, or the fact that is needed next. The order of the checks is the order of refusals that
//! the API promises. The rules of bodies, targets and holders are those of the controller. May not read anything else.

use std::collections::{BTreeSet, HashMap};

use serde_json::{Map, Value, json};

use crate::kind::locks::{TargetLock, TargetLocked};
use crate::object::bound::shown;
use crate::object::key::is_object_name;
use crate::ops_job::access::Access;
use crate::ops_job::addon::StepsRefused;
use crate::ops_job::body::{Body, FieldValidation};
use crate::ops_job::found::Found;
use crate::ops_job::messages::{locked_message, unresolved_message};
use crate::ops_job::plan::ROOM;
use crate::ops_job::quota::check_tenant;
use crate::ops_job::refusal::{Code, OpsRefusal};
use crate::ops_job::spec::{OpsSpec, OpsType, PULL_SECRETS};
use crate::ops_job::targets::{Filters, Here, Index, Resolved, Unresolved, near_node};
use crate::ops_job::view::lock_of;
use crate::ops_job::workload::{WorkloadName, missing_message};

/// The most workloads of one name whose permissions the server checks.
const CANDIDATES: usize = 10;

/// The known facts about a request. The server fills in a field once the decision needs it.
#[derive(Clone, Debug, Default)]
pub struct RequestFacts {
    /// The permissions of the caller, as far as they are known.
    pub rights: HashMap<Access, bool>,
    /// For each namespace, true if it grants permissions on the nodes of the workspace with its name.
    pub node_operations: HashMap<String, bool>,
    /// The service for the type of the job.
    pub service: Option<Service>,
    /// The limits of the caller.
    pub bounds: Option<CallerBounds>,
    /// The workloads that each text may mean.
    pub candidates: HashMap<String, Vec<WorkloadName>>,
    /// The data for finding the targets.
    pub found: Option<Found>,
    /// The first target that another job holds, if any. The check goes by UID.
    pub locked_target: Option<Option<TargetLocked>>,
}

/// The limits of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallerBounds {
    /// No additional limits, because the caller has permissions in the whole cluster.
    None,
    /// The limits of all other callers.
    Tenant {
        /// The longest time to live in seconds.
        max_ttl: i64,
    },
}

/// The service for a type of jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    /// A plugin serves the type.
    Plugin {
        /// The part of the body that the plugin's grant does not cover.
        ungranted: Option<String>,
    },
    /// Nothing serves the type, for this reason.
    None(String),
}

/// Returns the part of a job that a grant does not cover. `shows` says whether the grant includes a host path. The flags say whether the grant
/// includes scripts of jobs, and commits.
pub fn ungranted(
    asked: &OpsSpec,
    shows: impl Fn(&str) -> bool,
    takes_scripts: bool,
    takes_commits: bool,
) -> Option<String> {
    if asked.commits && !takes_commits {
        return Some("inputs: the grant of exportimage only allows mode copy".to_owned());
    }
    if let Some(path) = asked.host_paths().iter().find(|path| !shows(path)) {
        return Some(format!(
            "hostpath: {} is not among the directories that the grant of preflight allows",
            shown(path, 256)
        ));
    }
    (asked.has_own_script() && !takes_scripts)
        .then(|| "inputs: the grant of addon only allows scripts of templates".to_owned())
}

/// The fact that the decision needs next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequiredFact {
    /// The permissions of the caller for these actions.
    Rights(Vec<Access>),
    /// The node operations of this namespace: whether it grants permissions on nodes.
    NodeOperations(String),
    /// The service for the type of the job.
    Service,
    /// The limits of the caller.
    Bounds,
    /// The workloads that this text may mean.
    Candidates(String),
    /// The data for finding the targets, with these workloads.
    Found(Vec<WorkloadName>),
    /// The job that holds one of these targets.
    Locked(Vec<TargetLock>),
}

/// The decision about a request that is not refused.
#[derive(Clone, Debug, PartialEq)]
pub enum CreateDecision {
    /// The decision needs another fact.
    NeedsFact(RequiredFact),
    /// The server may create the job.
    Accepted(NewJob),
}

/// A job that may be created.
#[derive(Clone, Debug, PartialEq)]
pub struct NewJob {
    /// The spec, with the targets.
    pub spec: Map<String, Value>,
    /// The targets of the job.
    pub resolved: Resolved,
    /// The workspace that the targets share.
    pub workspace: Option<String>,
    /// The messages for the client about ignored parts.
    pub ignored: Vec<String>,
}

/// Decides about a request.
///
/// # Errors
/// If the request breaks a rule. The refusal names the first error.
pub fn decide_create(body: &Body, facts: &RequestFacts, here: Here<'_>) -> Result<CreateDecision, OpsRefusal> {
    let judge = CreateReview { body, facts, here };
    match judge.judge() {
        Ok(job) => Ok(CreateDecision::Accepted(job)),
        Err(NotDecided::NeedsFact(need)) => Ok(CreateDecision::NeedsFact(need)),
        Err(NotDecided::Refused(refusal)) => Err(refusal),
    }
}

/// The reason why there is no job yet.
enum NotDecided {
    NeedsFact(RequiredFact),
    Refused(OpsRefusal),
}

impl From<OpsRefusal> for NotDecided {
    fn from(refusal: OpsRefusal) -> Self {
        Self::Refused(refusal)
    }
}

fn refused<T>(code: Code, message: impl Into<String>) -> Result<T, NotDecided> {
    Err(OpsRefusal::new(code, message).into())
}

struct CreateReview<'a> {
    body: &'a Body,
    facts: &'a RequestFacts,
    here: Here<'a>,
}

impl CreateReview<'_> {
    fn judge(&self) -> Result<NewJob, NotDecided> {
        self.check_rights()?;
        self.check_service()?;
        self.check_bounds()?;
        let workloads = self.workloads()?;
        let of_workload = workloads.first().map(|workload| workload.namespace.clone());
        self.check_pods(&workloads)?;
        let Some(found) = &self.facts.found else { return Err(NotDecided::NeedsFact(RequiredFact::Found(workloads))) };
        if let Some(gap) = &found.gap {
            return refused(
                Code::Unreachable,
                format!("{gap}: a cluster admin has to apply `oarlock manifests --ops`"),
            );
        }
        if let Some(missing) = &found.missing {
            return no_workload(missing);
        }
        match &found.steps {
            Err(refused @ StepsRefused::NotFound(..)) => return self::refused(Code::NotFound, refused.describe()),
            Err(refused) => return self::refused(Code::BadRequest, refused.describe()),
            Ok(_) => {}
        }
        let (filters, ignored, excluded) = self.filters(found);
        let bytes = Value::Object(self.body.spec.clone()).to_string().len();
        let asked = &self.body.asked;
        let resolved = found
            .resolve(asked, &filters, self.here)
            .and_then(|resolved| resolved.within(ROOM.saturating_sub(bytes)))
            .map_err(|unresolved| of_unresolved(&unresolved))?;
        if let Err(why) = found.exported(asked, &resolved) {
            return refused(Code::BadRequest, format!("inputs: {why}"));
        }
        let secrets = self.pull_secrets(found, &resolved)?;
        match &self.facts.locked_target {
            None => {
                let locks = resolved.targets.iter().map(|(_, uid)| lock_of(Some(asked.kind), uid));
                return Err(NotDecided::NeedsFact(RequiredFact::Locked(locks.collect())));
            }
            Some(Some(locked)) => return refused(Code::Busy, locked_message(locked, &resolved.targets).message),
            Some(None) => {}
        }
        let mut spec = self.body.spec.clone();
        if let Some(excluded) = excluded {
            spec.insert("excludedNodes".to_owned(), json!(excluded));
        }
        if !secrets.is_empty() {
            spec.insert("pullSecrets".to_owned(), json!(secrets));
        }
        // If the request names the workload without a namespace, the namespace comes from the workload found.
        let workspace = of_workload.or_else(|| found.shared_workspace(&resolved));
        Ok(NewJob { spec, resolved, workspace, ignored })
    }

    fn may(&self, access: &Access) -> Option<bool> {
        self.facts.rights.get(access).copied()
    }

    /// Returns the first of these permissions that the caller lacks.
    fn denied(&self, all: &[Access]) -> Result<Option<Access>, NotDecided> {
        if all.iter().any(|access| self.may(access).is_none()) {
            return Err(NotDecided::NeedsFact(RequiredFact::Rights(all.to_vec())));
        }
        Ok(all.iter().find(|access| self.may(access) == Some(false)).cloned())
    }

    /// Checks the permissions to create the job. A caller without permission for all nodes may create a job for the nodes of a workspace, if the
    /// workspace's namespace allows it.
    fn check_rights(&self) -> Result<(), NotDecided> {
        let asked = &self.body.asked;
        let all = Access::to_create(asked.kind, asked.has_own_script());
        let Some(denied) = self.denied(&all)? else { return Ok(()) };
        let place = if asked.kind.is_for_nodes() {
            asked.scope.workspace.clone()
        } else {
            let workload = asked.scope.workloads.first().and_then(|words| WorkloadName::read(words));
            workload.map(|workload| workload.namespace)
        };
        let Some(place) = place.filter(|place| is_namespace(place)) else { return forbidden(&denied) };
        if asked.kind.is_for_nodes() {
            match self.facts.node_operations.get(&place) {
                None => return Err(NotDecided::NeedsFact(RequiredFact::NodeOperations(place))),
                Some(false) => return forbidden(&denied),
                Some(true) => {}
            }
        }
        let there: Vec<Access> = all.into_iter().map(|access| access.within(&place)).collect();
        match self.denied(&there)? {
            Some(_) => forbidden(&denied),
            None => Ok(()),
        }
    }

    fn check_service(&self) -> Result<(), NotDecided> {
        match &self.facts.service {
            None => Err(NotDecided::NeedsFact(RequiredFact::Service)),
            Some(Service::None(why)) => refused(Code::NotServed, format!("type: {why}")),
            Some(Service::Plugin { ungranted: None }) => Ok(()),
            Some(Service::Plugin { ungranted: Some(message) }) => refused(Code::Forbidden, message),
        }
    }

    /// Checks the limits of a request that are narrower than the limits of a resource.
    fn check_bounds(&self) -> Result<(), NotDecided> {
        let Some(bounds) = self.facts.bounds else { return Err(NotDecided::NeedsFact(RequiredFact::Bounds)) };
        if let Some(broken) = self.body.asked.refused_anew() {
            return refused(Code::BadRequest, format!("{}: {}", broken.field, broken.rule));
        }
        match bounds {
            CallerBounds::None => Ok(()),
            CallerBounds::Tenant { max_ttl } => Ok(check_tenant(&self.body.spec, max_ttl)?),
        }
    }

    /// Checks that the caller may read the data that the job reads from the workload's pods.
    fn check_pods(&self, workloads: &[WorkloadName]) -> Result<(), NotDecided> {
        let Some(workload) = workloads.first() else { return Ok(()) };
        let needed = match self.body.asked.kind {
            OpsType::Dumplog => Access::to_logs(&workload.namespace),
            OpsType::Exportimage if self.body.asked.commits => Access::to_exec(&workload.namespace),
            _ => return Ok(()),
        };
        match self.denied(&[needed])? {
            Some(denied) => refused(Code::Forbidden, format!("inputs: you may not {}", denied.describe())),
            None => Ok(()),
        }
    }

    /// Returns the pull secrets of the pod that the caller may read. The host does not use the others for this caller.
    fn pull_secrets(&self, found: &Found, resolved: &Resolved) -> Result<Vec<Value>, NotDecided> {
        let pod = found.exported_pod(resolved).filter(|_| self.body.asked.kind == OpsType::Exportimage);
        let (Some(pod), Some(namespace)) = (pod, &resolved.namespace) else { return Ok(Vec::new()) };
        let names = pod.images.secrets.iter().filter(|name| is_object_name(name)).take(CANDIDATES);
        let all: Vec<Access> = names.map(|name| Access::to_secret(namespace, name)).collect();
        self.denied(&all)?;
        let readable = all.iter().filter(|access| self.may(access) == Some(true)).take(PULL_SECRETS);
        Ok(readable.map(|Access { namespace, name, .. }| json!({"namespace": namespace, "name": name})).collect())
    }

    /// Returns the workloads that the request means, out of those that the caller may read.
    fn workloads(&self) -> Result<Vec<WorkloadName>, NotDecided> {
        let texts = &self.body.asked.scope.workloads;
        let unknown = texts.iter().find(|text| !self.facts.candidates.contains_key(*text));
        if let Some(unknown) = unknown {
            return Err(NotDecided::NeedsFact(RequiredFact::Candidates(unknown.clone())));
        }
        texts.iter().map(|text| self.workload(text)).collect()
    }

    fn workload(&self, text: &str) -> Result<WorkloadName, NotDecided> {
        let candidates = self.facts.candidates.get(text).map_or(&[][..], Vec::as_slice);
        let of_workspace = |candidate: &&WorkloadName| {
            self.body.asked.kind.is_for_nodes()
                || self.body.asked.scope.workspace.as_ref().is_none_or(|own| *own == candidate.namespace)
        };
        let candidates: Vec<&WorkloadName> = candidates.iter().filter(of_workspace).collect();
        if candidates.len() > CANDIDATES {
            let message = format!("more than {CANDIDATES} workloads have this name: write namespace/kind/name");
            return refused(Code::BadRequest, format!("inputs: workload {}: {message}", shown(text, 256)));
        }
        let asked: Vec<Access> = candidates.iter().map(|candidate| Access::to_workload(candidate)).collect();
        self.denied(&asked)?;
        let is_readable = |candidate: &&&WorkloadName| self.may(&Access::to_workload(candidate)) == Some(true);
        let mut readable = candidates.iter().filter(is_readable);
        match (readable.next(), readable.next()) {
            (Some(only), None) => Ok((*only).clone()),
            (Some(first), Some(second)) => {
                let all = [first, second].into_iter().chain(readable).map(|one| one.text());
                let all = all.collect::<Vec<_>>().join(", ");
                refused(
                    Code::BadRequest,
                    format!("inputs: workload {} is ambiguous: write one of {all}", shown(text, 256)),
                )
            }
            (None, _) => no_workload(text),
        }
    }

    /// Returns the filters, the messages about excluded names that no node has, and the excluded names if they change.
    fn filters(&self, found: &Found) -> (Filters, Vec<String>, Option<BTreeSet<String>>) {
        let (mut filters, mut ignored) = (self.body.asked.filters.clone(), self.body.ignored.clone());
        if self.body.mode == FieldValidation::Strict {
            return (filters, ignored, None);
        }
        let index = Index::over(&found.nodes);
        let is_known = |name: &String| index.has_excluded(&filters, name);
        let (kept, unknown) = filters.excluded.iter().cloned().partition::<BTreeSet<_>, _>(is_known);
        if unknown.is_empty() {
            return (filters, ignored, None);
        }
        if self.body.mode == FieldValidation::Warn {
            let what = if filters.excludes_names_alone { "name" } else { "name or host" };
            let message = |name: &String| {
                let near = near_node(name, self.body.asked.scope.workspace.as_ref(), &found.nodes);
                let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
                format!("excludedNodes: no node has the {what} {}{near}", shown(name, 64))
            };
            ignored.extend(unknown.iter().take(CANDIDATES).map(message));
        }
        filters.excluded.clone_from(&kept);
        (filters, ignored, Some(kept))
    }
}

fn forbidden<T>(denied: &Access) -> Result<T, NotDecided> {
    Err(denied.refused().into())
}

/// Returns the same refusal for a workload that does not exist and for a workload that the caller may not read.
fn no_workload<T>(text: &str) -> Result<T, NotDecided> {
    refused(Code::NoWorkload, missing_message(text))
}

fn is_namespace(text: &str) -> bool {
    text.len() <= 63 && crate::object::key::is_object_name(text) && !text.contains('.')
}

fn of_unresolved(unresolved: &Unresolved) -> OpsRefusal {
    let code = match unresolved {
        Unresolved::NodeNotFound(_) => Code::NoNode,
        Unresolved::WorkspaceNotFound(_) => Code::NoWorkspace,
        Unresolved::ClusterUnknown(_) => Code::NotFound,
        Unresolved::TooLarge(..) => Code::TooLarge,
        Unresolved::HostOfTwo(..)
        | Unresolved::Outside(..)
        | Unresolved::ExcludedNotFound(..)
        | Unresolved::ExcludedNameNotFound(_)
        | Unresolved::NoTargets(_)
        | Unresolved::NoPods
        | Unresolved::TooMany(_) => Code::BadRequest,
    };
    let message = unresolved_message(unresolved).message;
    OpsRefusal::new(code, message.strip_prefix("spec.").unwrap_or(&message))
}

#[cfg(test)]
#[path = "create_decision_tests.rs"]
mod tests;
