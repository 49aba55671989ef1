//! Finds the objects that determine the targets of an OpsJob: policies, workloads, pods, nodes and templates. Source: docs/opsjob.md 3.
//!
//! Takes a job and the answers of live reads; yields the data for finding targets, or the reads that are missing. May not rely on the cache: the watch
//! may be late, and the job would reboot a node that the cache does not show yet.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::object::api_object::{Kind, ObjectKey};
use crate::object::fields::text;
use crate::object::key::is_object_name;
use crate::ops_job::addon::{AddonStep, StepSource, StepsRefused, TemplateKind, addon_templates, steps};
use crate::ops_job::export::ExportedImage;
use crate::ops_job::inputs::Scope;
use crate::ops_job::pod_targets::{PodFacts, WorkloadPods, resolve_pods};
use crate::ops_job::policy::{POLICIES, POLICY_KINDS, gap};
use crate::ops_job::spec::{OpsSpec, OpsType};
use crate::ops_job::stored::StoredOps;
use crate::ops_job::targets::{Filters, Here, NodeFacts, Resolved, Selectors, Unresolved, resolve};
use crate::ops_job::workload::{WorkloadName, busies, controller};
use crate::requests::reads::{Answers, KeptObjects, Pending, Read, Reduction, Selected, both, every};

/// The most bytes of the facts of all pods of a workload, if the facts have images. The authors of pods choose how many images there are.
const MOST_IMAGES: usize = 8 * 1024 * 1024;
/// The most workloads of one kind that are read for a name: one more than a text may mean.
const OF_A_KIND: usize = 11;

/// Keeps [`NodeFacts`].
const NODE: Reduction = Reduction {
    name: "node facts",
    fields: &[
        "/metadata/name",
        "/metadata/uid",
        "/metadata/labels",
        "/metadata/deletionTimestamp",
        "/spec/taints",
        "/spec/unschedulable",
        "/status/conditions",
    ],
    keep: |node, _| serde_json::to_value(NodeFacts::read(&node)?).ok(),
};

/// Keeps [`PodFacts`] without images, about 190 bytes for each pod.
const POD: Reduction = Reduction {
    name: "pod facts",
    fields: &[
        "/metadata/name",
        "/metadata/uid",
        "/metadata/creationTimestamp",
        "/metadata/ownerReferences",
        "/spec/nodeName",
        "/status/phase",
    ],
    keep: pod_facts,
};

/// Keeps [`PodFacts`] with images.
const POD_WITH_IMAGES: Reduction = Reduction {
    name: "pod facts with images",
    fields: &[
        "/metadata/name",
        "/metadata/uid",
        "/metadata/creationTimestamp",
        "/metadata/ownerReferences",
        "/spec/nodeName",
        "/spec/containers",
        "/spec/imagePullSecrets",
        "/status/phase",
        "/status/containerStatuses",
    ],
    keep: pod_facts,
};

/// Keeps the UIDs of objects. The writer of a workload chooses how large it is, so the host reads nothing else.
const UID: Reduction = Reduction {
    name: "UID",
    fields: &["/metadata/uid", "/metadata/ownerReferences"],
    keep: |object, owners| is_owned(&object, owners).then(|| text(&object, "/metadata/uid").unwrap_or_default().into()),
};

/// Keeps the names of busy nodes, one for each pod that makes its node busy. [`Read::among`] has the system namespaces.
const BUSY_NODE: Reduction = Reduction {
    name: "busy node",
    fields: &[
        "/metadata/namespace",
        "/metadata/ownerReferences",
        "/metadata/annotations/kubernetes.io~1config.mirror",
        "/spec/nodeName",
        "/status/phase",
    ],
    keep: |pod, system| busies(&pod, system).map(Into::into),
};

/// Keeps the namespaces of objects. The writer of an object chooses how large its labels are, so the host reads nothing else.
const NAMESPACE: Reduction = Reduction {
    name: "namespace",
    fields: &["/metadata/namespace"],
    keep: |object, _| text(&object, "/metadata/namespace").map(Into::into),
};

/// Returns true if one of these UIDs is the object's controller. Without UIDs, returns true for every object.
fn is_owned(object: &Value, owners: &BTreeSet<String>) -> bool {
    owners.is_empty() || controller(object).is_some_and(|owner| owners.contains(owner))
}

fn pod_facts(pod: Value, owners: &BTreeSet<String>) -> Option<Value> {
    let facts = PodFacts::read(&pod).filter(|_| is_owned(&pod, owners))?;
    serde_json::to_value(facts).ok()
}

/// The data for finding the targets of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// All nodes.
    pub nodes: Vec<NodeFacts>,
    /// The nodes of the unfinished pods of the job's workloads, if the job names workloads.
    pub of_workloads: Option<BTreeSet<String>>,
    /// The pods of the job's workload, if the job works on pods.
    pub pods: Option<WorkloadPods>,
    /// A workload that the job names and that does not exist.
    pub missing: Option<String>,
    /// The steps of an addon. Empty for other types.
    pub steps: Result<Vec<AddonStep>, StepsRefused>,
    /// The missing admission policy, without which the API server may have accepted a job that its author may not create.
    pub gap: Option<String>,
}

impl Default for Found {
    fn default() -> Self {
        Self { nodes: Vec::new(), of_workloads: None, pods: None, missing: None, steps: Ok(Vec::new()), gap: None }
    }
}

impl Found {
    /// Returns the targets of a job with this spec.
    ///
    /// # Errors
    /// If the job has no targets. The reason is for the job's owner.
    pub fn resolve(&self, asked: &OpsSpec, filters: &Filters, here: Here<'_>) -> Result<Resolved, Unresolved> {
        let Scope { nodes, hosts, workspace, cluster, workloads: _ } = &asked.scope;
        let selectors = Selectors {
            nodes: nodes.clone(),
            hosts: hosts.clone(),
            of_workload: self.of_workloads.clone(),
            workspace: workspace.clone(),
            cluster: cluster.clone(),
        };
        match &self.pods {
            Some(pods) => resolve_pods(&selectors, filters, pods, &self.nodes, here),
            None => resolve(&selectors, filters, &self.nodes, here),
        }
    }

    /// Returns the target pod whose image the job exports.
    pub fn exported_pod(&self, resolved: &Resolved) -> Option<&PodFacts> {
        let (_, target) = resolved.targets.first()?;
        self.pods.iter().flat_map(|found| &found.pods).find(|pod| pod.uid == *target)
    }

    /// Returns the image that the job exports. Returns `None` for other types of jobs.
    ///
    /// # Errors
    /// If the job has no image to export.
    pub fn exported(&self, asked: &OpsSpec, resolved: &Resolved) -> Result<Option<ExportedImage>, String> {
        if asked.kind != OpsType::Exportimage {
            return Ok(None);
        }
        let pod = self.exported_pod(resolved).ok_or_else(|| "its pod is gone".to_owned())?;
        let namespace = resolved.namespace.as_deref().unwrap_or_default();
        let may_use = |name: &str| asked.pull_secrets.iter().any(|(of, own)| of == namespace && own == name);
        let container = asked.container.as_deref();
        let exported = match asked.commits {
            true => ExportedImage::committed(&pod.images, container),
            false => {
                ExportedImage::of(&pod.images, container, may_use).map(|image| image.if_available(asked.available))
            }
        };
        exported.map(Some).map_err(|why| format!("pod {} {why}", pod.name))
    }

    /// Returns the workspace label that all of these targets share.
    pub fn shared_workspace(&self, resolved: &Resolved) -> Option<String> {
        let of: HashMap<&str, Option<&String>> =
            self.nodes.iter().map(|node| (node.uid.as_str(), node.workspace.as_ref())).collect();
        let mut all = resolved.targets.iter().map(|(_, uid)| of.get(uid.as_str()).copied().flatten());
        let first = all.next()??;
        all.all(|other| other == Some(first)).then(|| first.clone())
    }
}

/// Returns the objects that determine a job's targets, and whether the policies checked its author's rights. `shipped` are the shipped policies, and
/// `system` the namespaces whose pods make no node busy. If the targets are known, returns only the steps that an addon runs.
///
/// # Errors
/// If reads are missing or one failed.
pub fn found_of(job: &StoredOps, shipped: &[Value], system: &[&str], answers: &Answers) -> Result<Found, Pending> {
    if job.view.status.has_locked_targets() {
        let steps = match &job.spec {
            Ok(spec) => steps_of(spec, answers)?,
            Err(_) => Ok(Vec::new()),
        };
        return Ok(Found { steps, ..Found::default() });
    }
    let gap = policy_gap(job.view.created, shipped, answers)?;
    // An export needs the chosen pod too, because the pod says which image is copied.
    let is_due = |spec: &&OpsSpec| job.view.targets.is_none() || spec.kind == OpsType::Exportimage;
    let Some(spec) = job.spec.as_ref().ok().filter(|_| gap.is_none()).filter(is_due) else {
        return Ok(Found { gap, ..Found::default() });
    };
    // A REST client may have named the workload without its namespace. The resolved targets have it.
    let chosen = job.view.targets.as_ref().and_then(|resolved| Some((resolved, resolved.namespace.as_ref()?)));
    let chosen = chosen.map(|(resolved, namespace)| {
        let pods = resolved.targets.iter().map(|(pod, _)| format!("{namespace}/pod/{pod}"));
        pods.collect::<Vec<_>>()
    });
    find(spec, chosen.as_ref().unwrap_or(&spec.scope.workloads), system, answers)
}

/// Returns the objects that determine the targets of a job with these workloads.
///
/// # Errors
/// If reads are missing or one failed.
pub fn find(asked: &OpsSpec, workloads: &[String], system: &[&str], answers: &Answers) -> Result<Found, Pending> {
    let pods = every(workloads.iter().map(|words| pods_of(words, asked.kind, answers)));
    let nodes = every(node_reads(asked).iter().map(|read| answers.to(read)));
    let busy = every(busy_read(asked, system).iter().map(|read| answers.to(read)));
    let ((all, nodes), (busy, steps)) = both(both(pods, nodes), both(busy, steps_of(asked, answers)))?;
    let missing = workloads.iter().zip(&all).find(|(_, found)| found.is_none()).map(|(words, _)| words.clone());
    let found = || all.iter().flatten();
    let runs_on = found().flat_map(|found| &found.pods).filter_map(PodFacts::runs_on).map(str::to_owned);
    let of_workloads = (!workloads.is_empty()).then(|| runs_on.collect());
    let busy: BTreeSet<String> = busy.into_iter().flat_map(KeptObjects::parsed).collect();
    let mut nodes: Vec<NodeFacts> = nodes.into_iter().flat_map(KeptObjects::parsed).collect();
    nodes.iter_mut().for_each(|node| node.is_busy = busy.contains(&node.name));
    let pods = all.into_iter().flatten().last().filter(|_| !asked.kind.is_for_nodes());
    Ok(Found { nodes, of_workloads, pods, missing, steps, gap: None })
}

/// Returns the reads of the nodes that decide for a job: by name if they are few, all nodes otherwise, or none.
fn node_reads(asked: &OpsSpec) -> Vec<Read> {
    let named = asked.nodes_that_decide();
    let by_name = |name: &String| Read::one(ObjectKey { kind: Kind::node(), namespace: None, name: name.clone() });
    let reads = match (asked.asks_for_nodes(), named.is_empty()) {
        (false, _) => Vec::new(),
        (true, true) => vec![Read::all(Kind::node(), None)],
        // A name that is not an object name cannot be the name of a node.
        (true, false) => {
            let names: BTreeSet<&String> = named.iter().filter(|name| is_object_name(name)).collect();
            names.into_iter().map(by_name).collect()
        }
    };
    reads.into_iter().map(|read| read.reduced(NODE)).collect()
}

/// Returns the read of all pods that make nodes busy, if the job treats busy nodes differently.
fn busy_read(asked: &OpsSpec, system: &[&str]) -> Option<Read> {
    let among = system.iter().map(|namespace| (*namespace).to_owned()).collect();
    let read = Read { among, ..Read::all(Kind::pod(), None).reduced(BUSY_NODE) };
    (asked.filters.spares_busy || asked.filters.busy_last).then_some(read)
}

/// Returns the pods of a workload, or `None` if the workload does not exist. At 10,000 pods without images, the answers take about 2 MB, and the facts
/// as much again.
///
/// # Errors
/// If reads are missing or one failed. If the pods have too many images.
fn pods_of(words: &str, of: OpsType, answers: &Answers) -> Result<Option<WorkloadPods>, Pending> {
    let Some(WorkloadName { kind, namespace, name }) = WorkloadName::read(words) else { return Ok(None) };
    let (facts, most_bytes) = match of {
        OpsType::Exportimage => (POD_WITH_IMAGES, MOST_IMAGES),
        _ => (POD, usize::MAX),
    };
    let workload = Read::one(ObjectKey { kind: kind.clone(), namespace: Some(namespace.clone()), name });
    if kind == Kind::pod() {
        let pod = answers.to(&workload.reduced(facts))?.one();
        return Ok(pod.map(|pod| WorkloadPods { pods: vec![pod], namespace }));
    }
    let Some(uid) = answers.to(&workload.reduced(UID))?.one::<String>() else { return Ok(None) };
    let mut among = BTreeSet::from([uid]);
    if kind.kind == "Deployment" {
        let sets = Read::all(Kind::new("apps/v1", "ReplicaSet"), Some(&namespace)).reduced(UID);
        let sets = answers.to(&Read { among: among.clone(), ..sets })?;
        among.extend(sets.parsed::<String>());
    }
    let pods = Read { among, most_bytes, ..Read::all(Kind::pod(), Some(&namespace)).reduced(facts) };
    let pods = answers.to(&pods)?;
    if pods.is_cut() {
        let most = MOST_IMAGES / (1024 * 1024);
        return Err(Pending::failed(format!(
            "the image names of the pods of {words} take more than {most} MiB: name one pod, {namespace}/pod/NAME"
        )));
    }
    Ok(Some(WorkloadPods { pods: pods.parsed().collect(), namespace }))
}

/// Returns the workloads that `namespace/kind/name`, `namespace/name` or `name` may mean, at most 11 of each kind. Does not check that the first form
/// exists.
///
/// # Errors
/// If reads are missing or one failed.
pub fn candidates(words: &str, answers: &Answers) -> Result<Vec<WorkloadName>, Pending> {
    if let Some(whole) = WorkloadName::read(words) {
        return Ok(vec![whole]);
    }
    let (namespace, name) = words.split_once('/').map_or((None, words), |(namespace, name)| (Some(namespace), name));
    if !is_object_name(name) || !namespace.is_none_or(is_object_name) {
        return Ok(Vec::new());
    }
    let of_kind = |kind: Kind| {
        let (namespace, fields) = (namespace.map(str::to_owned), Some(format!("metadata.name={name}")));
        let read = Read::of(kind.clone(), Selected::All { namespace, labels: None, fields }).reduced(NAMESPACE);
        let found = answers.to(&Read { most: OF_A_KIND, ..read })?.parsed().take(OF_A_KIND);
        let of = |namespace| WorkloadName { kind: kind.clone(), namespace, name: name.to_owned() };
        Ok(found.map(of).collect::<Vec<_>>())
    };
    Ok(every(WorkloadName::kinds().map(of_kind))?.into_iter().flatten().collect())
}

/// Returns the steps that an addon runs now.
///
/// # Errors
/// If reads are missing or one failed.
fn steps_of(asked: &OpsSpec, answers: &Answers) -> Result<Result<Vec<AddonStep>, StepsRefused>, Pending> {
    let node_template = |source: &StepSource| match source {
        StepSource::Template(TemplateKind::Node, name) => Some(name.clone()),
        StepSource::Template(TemplateKind::Addon, _) | StepSource::Script(_) => None,
    };
    let of_nodes = asked.steps.iter().filter_map(node_template).collect();
    let of_nodes = templates(TemplateKind::Node, of_nodes, answers)?;
    let of_addons = addon_templates(&asked.steps, |name| of_nodes.get(name).cloned());
    let of_addons = templates(TemplateKind::Addon, of_addons, answers)?;
    Ok(steps(&asked.steps, |kind, name| match kind {
        TemplateKind::Node => of_nodes.get(name).cloned(),
        TemplateKind::Addon => of_addons.get(name).cloned(),
    }))
}

/// Returns the templates of a kind with these names, as far as they exist, by name.
fn templates(
    kind: TemplateKind,
    names: BTreeSet<String>,
    answers: &Answers,
) -> Result<BTreeMap<String, Value>, Pending> {
    let template = |name: String| {
        let key = ObjectKey { kind: kind.kind(), namespace: None, name: name.clone() };
        Ok(answers.to(&Read::one(key))?.one().map(|template| (name, template)))
    };
    let all = every(names.into_iter().filter(|name| is_object_name(name)).map(template))?;
    Ok(all.into_iter().flatten().collect())
}

/// Returns the reason why the permissions of the requester may not be checked for a job that is made now or was made at this time. Returns `None` if
/// they are checked. `shipped` are the shipped policies and their bindings.
///
/// # Errors
/// If reads are missing or one failed.
pub fn policy_gap(made: Option<Timestamp>, shipped: &[Value], answers: &Answers) -> Result<Option<String>, Pending> {
    let keys = POLICY_KINDS.iter().flat_map(|kind| POLICIES.map(|name| (*kind, name)));
    let policy = |(kind, name): (&str, &str)| {
        let kind = Kind::new("admissionregistration.k8s.io/v1", kind);
        let key = ObjectKey { kind, namespace: None, name: name.to_owned() };
        Ok(answers.to(&Read::one(key))?.one::<Value>())
    };
    let policies: Vec<Value> = every(keys.map(policy))?.into_iter().flatten().collect();
    let of = |kind: &str, name: &str| {
        let is = |one: &&Value| text(one, "/kind") == Some(kind) && text(one, "/metadata/name") == Some(name);
        policies.iter().find(is)
    };
    Ok(gap(of, shipped, made))
}

#[cfg(test)]
#[path = "found_tests.rs"]
mod tests;
