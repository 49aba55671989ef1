//! Whether a request may make an OpsJob, and on which nodes. Source: docs/opsjob-rest.md 4.
//!
//! Takes a body and what is known; yields a job, a refusal, or what has to be known first, in the order in which clients are promised
//! their refusals. The rules of bodies, targets and holders are those of the controller. May not look anything up.

use std::collections::{BTreeSet, HashMap};

use serde_json::{Map, Value, json};

use crate::job::bound::shown;
use crate::job::spec::is_object_name;
use crate::ops_job::access::Access;
use crate::ops_job::addon::StepsRefused;
use crate::ops_job::body::{Body, FieldValidation};
use crate::ops_job::holders::{HeldPlace, PlaceTaken};
use crate::ops_job::plan::{Found, ROOM};
use crate::ops_job::quota::check_tenant;
use crate::ops_job::refusal::{Code, OpsRefusal};
use crate::ops_job::spec::{OpsSpec, OpsType, PULL_SECRETS};
use crate::ops_job::targets::{Filters, Here, Index, Resolved, Unresolved, near_node};
use crate::ops_job::told::{busy_words, unresolved_words};
use crate::ops_job::view::place;
use crate::ops_job::workload::{WorkloadName, missing_words};

/// Most workloads of a name whose readers are asked for.
const CANDIDATES: usize = 10;

/// What is known of a request. A field is filled in once a verdict needed it.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// What the caller may do.
    pub rights: HashMap<Access, bool>,
    /// Whether a namespace gives rights over the nodes of its name.
    pub node_operations: HashMap<String, bool>,
    /// What serves the type.
    pub service: Option<Service>,
    /// The bounds of the caller.
    pub bounds: Option<CallerBounds>,
    /// The workloads that a text may mean.
    pub candidates: HashMap<String, Vec<WorkloadName>>,
    /// What the targets are found by.
    pub found: Option<Found>,
    /// The job that has one of them, asked for by UID.
    pub taken: Option<Option<PlaceTaken>>,
}

/// The bounds of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallerBounds {
    /// Nothing more than anybody: he has rights in the whole cluster.
    None,
    /// The bounds of others.
    Tenant {
        /// The longest time to live in seconds.
        max_ttl: i64,
    },
}

/// What serves a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    /// A plugin.
    Plugin {
        /// What the body asks for and its grant does not cover.
        ungranted: Option<String>,
    },
    /// Nothing: why.
    None(String),
}

/// What of a job a grant does not cover that shows these directories, and takes scripts of jobs or commits or not.
pub fn ungranted(
    asked: &OpsSpec,
    shows: impl Fn(&str) -> bool,
    takes_scripts: bool,
    takes_commits: bool,
) -> Option<String> {
    if asked.commits && !takes_commits {
        return Some("inputs: the grant of exportimage covers mode copy alone".to_owned());
    }
    if let Some(path) = asked.host_paths().iter().find(|path| !shows(path)) {
        return Some(format!("hostpath: {} is not among the directories that a check may see", shown(path, 256)));
    }
    (asked.has_own_script() && !takes_scripts)
        .then(|| "inputs: the grant of addon covers the scripts of templates alone".to_owned())
}

/// What has to be known first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestNeed {
    /// Whether the caller may do these.
    Rights(Vec<Access>),
    /// Whether this namespace gives rights over nodes.
    NodeOperations(String),
    /// What serves the type.
    Service,
    /// The bounds of the caller.
    Bounds,
    /// The workloads that this text may mean.
    Candidates(String),
    /// What the targets are found by, with these workloads.
    Found(Vec<WorkloadName>),
    /// Which job has one of these.
    Taken(Vec<HeldPlace>),
}

/// What a request comes to.
#[derive(Clone, Debug, PartialEq)]
pub enum OpsVerdict {
    /// It is not known yet.
    Needs(RequestNeed),
    /// It may be made.
    Stands(NewJob),
}

/// A job that may be made.
#[derive(Clone, Debug, PartialEq)]
pub struct NewJob {
    /// Its spec, with its targets.
    pub spec: Map<String, Value>,
    /// Those.
    pub resolved: Resolved,
    /// The workspace that they share.
    pub workspace: Option<String>,
    /// What its client is told was ignored.
    pub ignored: Vec<String>,
}

/// What a request comes to.
///
/// # Errors
/// The refusal of the first thing that is wrong.
pub fn verdict(body: &Body, facts: &Facts, here: Here<'_>) -> Result<OpsVerdict, OpsRefusal> {
    let judge = Judge { body, facts, here };
    match judge.judge() {
        Ok(job) => Ok(OpsVerdict::Stands(job)),
        Err(Held::Needs(need)) => Ok(OpsVerdict::Needs(need)),
        Err(Held::Refused(refusal)) => Err(refusal),
    }
}

/// Why there is no job yet.
enum Held {
    Needs(RequestNeed),
    Refused(OpsRefusal),
}

impl From<OpsRefusal> for Held {
    fn from(refusal: OpsRefusal) -> Self {
        Self::Refused(refusal)
    }
}

fn refused<T>(code: Code, message: impl Into<String>) -> Result<T, Held> {
    Err(OpsRefusal::new(code, message).into())
}

struct Judge<'a> {
    body: &'a Body,
    facts: &'a Facts,
    here: Here<'a>,
}

impl Judge<'_> {
    fn judge(&self) -> Result<NewJob, Held> {
        self.check_rights()?;
        self.check_service()?;
        self.check_bounds()?;
        let workloads = self.workloads()?;
        let of_workload = workloads.first().map(|workload| workload.namespace.clone());
        self.check_pods(&workloads)?;
        let Some(found) = &self.facts.found else { return Err(Held::Needs(RequestNeed::Found(workloads))) };
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
            Err(refused @ StepsRefused::NotFound(..)) => return self::refused(Code::NotFound, refused.words()),
            Err(refused) => return self::refused(Code::BadRequest, refused.words()),
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
        match &self.facts.taken {
            None => {
                let places = resolved.targets.iter().map(|(_, uid)| place(Some(asked.kind), uid));
                return Err(Held::Needs(RequestNeed::Taken(places.collect())));
            }
            Some(Some(taken)) => return refused(Code::Busy, busy_words(taken, &resolved.targets).message),
            Some(None) => {}
        }
        let mut spec = self.body.spec.clone();
        if let Some(excluded) = excluded {
            spec.insert("excludedNodes".to_owned(), json!(excluded));
        }
        if !secrets.is_empty() {
            spec.insert("pullSecrets".to_owned(), json!(secrets));
        }
        // A workload that is named without its namespace does not tell it.
        let workspace = of_workload.or_else(|| found.shared_workspace(&resolved));
        Ok(NewJob { spec, resolved, workspace, ignored })
    }

    fn may(&self, access: &Access) -> Option<bool> {
        self.facts.rights.get(access).copied()
    }

    /// Those of these that the caller may not do.
    fn denied(&self, all: &[Access]) -> Result<Option<Access>, Held> {
        if all.iter().any(|access| self.may(access).is_none()) {
            return Err(Held::Needs(RequestNeed::Rights(all.to_vec())));
        }
        Ok(all.iter().find(|access| self.may(access) == Some(false)).cloned())
    }

    /// Whoever may not make such jobs for all nodes may make them for those of a workspace, where its namespace says so.
    fn check_rights(&self) -> Result<(), Held> {
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
                None => return Err(Held::Needs(RequestNeed::NodeOperations(place))),
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

    fn check_service(&self) -> Result<(), Held> {
        match &self.facts.service {
            None => Err(Held::Needs(RequestNeed::Service)),
            Some(Service::None(why)) => refused(Code::NotServed, format!("type: {why}")),
            Some(Service::Plugin { ungranted: None }) => Ok(()),
            Some(Service::Plugin { ungranted: Some(words) }) => refused(Code::Forbidden, words),
        }
    }

    /// Checks the bounds of a request that are narrower than those of a resource.
    fn check_bounds(&self) -> Result<(), Held> {
        let Some(bounds) = self.facts.bounds else { return Err(Held::Needs(RequestNeed::Bounds)) };
        if let Some(broken) = self.body.asked.refused_anew() {
            return refused(Code::BadRequest, format!("{}: {}", broken.field, broken.rule));
        }
        match bounds {
            CallerBounds::None => Ok(()),
            CallerBounds::Tenant { max_ttl } => Ok(check_tenant(&self.body.spec, max_ttl)?),
        }
    }

    /// What is read of the pods of a workload, the caller may read too.
    fn check_pods(&self, workloads: &[WorkloadName]) -> Result<(), Held> {
        let Some(workload) = workloads.first() else { return Ok(()) };
        let needed = match self.body.asked.kind {
            OpsType::Dumplog => Access::to_logs(&workload.namespace),
            OpsType::Exportimage if self.body.asked.commits => Access::to_exec(&workload.namespace),
            _ => return Ok(()),
        };
        match self.denied(&[needed])? {
            Some(denied) => refused(Code::Forbidden, format!("inputs: you may not {}", denied.words())),
            None => Ok(()),
        }
    }

    /// The pull secrets of the pod whose image is exported, as far as the caller may read them: others are not used for him.
    fn pull_secrets(&self, found: &Found, resolved: &Resolved) -> Result<Vec<Value>, Held> {
        let pod = found.exported_pod(resolved).filter(|_| self.body.asked.kind == OpsType::Exportimage);
        let (Some(pod), Some(namespace)) = (pod, &resolved.namespace) else { return Ok(Vec::new()) };
        let names = pod.images.secrets.iter().filter(|name| is_object_name(name)).take(CANDIDATES);
        let all: Vec<Access> = names.map(|name| Access::to_secret(namespace, name)).collect();
        self.denied(&all)?;
        let readable = all.iter().filter(|access| self.may(access) == Some(true)).take(PULL_SECRETS);
        Ok(readable.map(|Access { namespace, name, .. }| json!({"namespace": namespace, "name": name})).collect())
    }

    /// The workloads that are meant, of those that the caller may read.
    fn workloads(&self) -> Result<Vec<WorkloadName>, Held> {
        let texts = &self.body.asked.scope.workloads;
        let unknown = texts.iter().find(|text| !self.facts.candidates.contains_key(*text));
        if let Some(unknown) = unknown {
            return Err(Held::Needs(RequestNeed::Candidates(unknown.clone())));
        }
        texts.iter().map(|text| self.workload(text)).collect()
    }

    fn workload(&self, text: &str) -> Result<WorkloadName, Held> {
        let candidates = self.facts.candidates.get(text).map_or(&[][..], Vec::as_slice);
        let of_workspace = |candidate: &&WorkloadName| {
            self.body.asked.kind.is_for_nodes()
                || self.body.asked.scope.workspace.as_ref().is_none_or(|own| *own == candidate.namespace)
        };
        let candidates: Vec<&WorkloadName> = candidates.iter().filter(of_workspace).collect();
        if candidates.len() > CANDIDATES {
            let words = format!("more than {CANDIDATES} are called so: write it as namespace/kind/name");
            return refused(Code::BadRequest, format!("inputs: workload {}: {words}", shown(text, 256)));
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
                refused(Code::BadRequest, format!("inputs: workload {} may be {all}: write it so", shown(text, 256)))
            }
            (None, _) => no_workload(text),
        }
    }

    /// The filters, what is told of names that exclude nobody, and the excluded names where they change.
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
            let words = |name: &String| {
                let near = near_node(name, self.body.asked.scope.workspace.as_ref(), &found.nodes);
                let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
                format!("excludedNodes: no node has the {what} {}{near}", shown(name, 64))
            };
            ignored.extend(unknown.iter().take(CANDIDATES).map(words));
        }
        filters.excluded.clone_from(&kept);
        (filters, ignored, Some(kept))
    }
}

fn forbidden<T>(denied: &Access) -> Result<T, Held> {
    Err(denied.refused().into())
}

/// The same for what is not there and for what the caller may not read.
fn no_workload<T>(text: &str) -> Result<T, Held> {
    refused(Code::NoWorkload, missing_words(text))
}

fn is_namespace(text: &str) -> bool {
    text.len() <= 63 && crate::job::spec::is_object_name(text) && !text.contains('.')
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
    let message = unresolved_words(unresolved).message;
    OpsRefusal::new(code, message.strip_prefix("spec.").unwrap_or(&message))
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
