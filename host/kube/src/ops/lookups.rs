//! Live lookups that find the targets of an OpsJob: policies, workloads, pods and nodes.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::try_join_all;
use k8s_openapi::jiff::Timestamp;
use oarlock_core::attempts::node;
use oarlock_core::object::api_object::{Kind, ObjectKey};
use oarlock_core::object::fields::text;
use oarlock_core::object::key::is_object_name;
use oarlock_core::ops_job::addon::{AddonStep, StepSource, StepsRefused, TemplateKind, addon_templates, steps};
use oarlock_core::ops_job::export::PodImages;
use oarlock_core::ops_job::found::Found;
use oarlock_core::ops_job::pod_targets::{PodFacts, WorkloadPods};
use oarlock_core::ops_job::policy::{POLICIES, POLICY_KINDS, gap};
use oarlock_core::ops_job::spec::{OpsSpec, OpsType};
use oarlock_core::ops_job::targets::NodeFacts;
use oarlock_core::ops_job::workload::{WorkloadName, busies, controller};
use oarlock_core::requests::reads::ReadFailed;
use serde_json::Value;

use crate::ops::port::Ops;
use crate::read::past_cache::{ListPick, ListSelection};
use crate::transport::projection::Projection;

/// The most bytes of the image names of all pods of a workload.
const MOST_IMAGES: usize = 8 * 1024 * 1024;

/// The fields of nodes that decide whether a node is a target.
static NODE: LazyLock<Projection> = LazyLock::new(|| Projection::of_object(&node::FIELDS.map(str::to_owned)));

/// The shipped admission policies and their bindings.
static SHIPPED: LazyLock<Vec<Value>> =
    LazyLock::new(|| serde_saphyr::from_multiple(oarlock_api::OPS_ADMISSION).unwrap_or_default());

/// Returns the fields of pods that jobs of this type need.
fn fields(kind: OpsType) -> Projection {
    let images = if kind == OpsType::Exportimage { &PodImages::FIELDS[..] } else { &[] };
    let all = PodFacts::FIELDS.iter().chain(images).map(|field| (*field).to_owned());
    Projection::of_object(&all.collect::<Vec<_>>())
}

impl Ops {
    /// Returns the nodes that run a pod of a workload. Pods of these system namespaces do not count.
    ///
    /// # Errors
    /// If the list fails, with the message of the API server.
    async fn busy_nodes(&self, system: &[&str]) -> Result<BTreeSet<String>, ReadFailed> {
        let busy = |pod: Value| busies(&pod, system).map(str::to_owned);
        Ok(self.list(Kind::pod(), ListSelection::default(), &fields(OpsType::Addon), busy).await?.into_iter().collect())
    }

    /// Returns the objects that determine the targets of a job with these workloads.
    ///
    /// # Errors
    /// If a read fails, with the message of the API server.
    pub async fn find(&self, asked: &OpsSpec, workloads: &[String], system: &[&str]) -> Result<Found, ReadFailed> {
        let (mut of_workloads, mut of_pods, mut missing) = (BTreeSet::new(), None, None);
        for words in workloads {
            let Some(found) = self.pods_of(words, asked.kind).await? else {
                missing = missing.or_else(|| Some(words.clone()));
                continue;
            };
            of_workloads.extend(found.pods.iter().filter_map(PodFacts::runs_on).map(str::to_owned));
            of_pods = Some(found).filter(|_| !asked.kind.is_for_nodes());
        }
        let mut nodes = match asked.asks_for_nodes() {
            true => self.nodes(asked.nodes_that_decide()).await?,
            false => Vec::new(),
        };
        if asked.filters.spares_busy || asked.filters.busy_last {
            let busy = self.busy_nodes(system).await?;
            nodes.iter_mut().for_each(|node| node.is_busy = busy.contains(&node.name));
        }
        let of_workloads = (!workloads.is_empty()).then_some(of_workloads);
        let steps = self.steps(asked).await?;
        Ok(Found { nodes, of_workloads, pods: of_pods, missing, steps, gap: None })
    }

    /// Returns the workloads of this name in one or all namespaces, at most `most` of each kind. Their creators choose the size of the
    /// labels, so this function reads only the namespace.
    ///
    /// # Errors
    /// If a list fails, with the message of the API server.
    pub async fn named(
        &self,
        namespace: Option<&str>,
        name: &str,
        most: usize,
    ) -> Result<Vec<WorkloadName>, ReadFailed> {
        let link = &self.cluster.link;
        let fields = format!("metadata.name={name}");
        let selected = ListSelection { namespace, fields: Some(&fields), labels: None };
        let projection = Projection::of_namespace();
        let of_kind = WorkloadName::kinds().map(|kind| {
            let projection = &projection;
            async move {
                let pick = |item: Value| text(&item, "/metadata/namespace").map(str::to_owned);
                let kept = ListPick { projection, pick, most };
                let mut found = link.all_stored(&link.transport, &kind, selected, kept).await?;
                found.truncate(most);
                let of = |namespace| WorkloadName { kind: kind.clone(), namespace, name: name.to_owned() };
                Ok::<_, ReadFailed>(found.into_iter().map(of).collect::<Vec<_>>())
            }
        });
        Ok(try_join_all(of_kind).await?.into_iter().flatten().collect())
    }

    /// Reads the steps that an addon runs now.
    ///
    /// # Errors
    /// If a read fails, with the message of the API server.
    pub async fn steps(&self, asked: &OpsSpec) -> Result<Result<Vec<AddonStep>, StepsRefused>, ReadFailed> {
        let (mut templates, node) = (HashMap::new(), TemplateKind::Node);
        for source in &asked.steps {
            if let StepSource::Template(TemplateKind::Node, name) = source {
                templates.insert((node, name.clone()), self.template(node, name).await?);
            }
        }
        let found = |templates: &HashMap<_, Option<Value>>, kind, name: &str| {
            templates.get(&(kind, name.to_owned())).cloned().flatten()
        };
        for name in addon_templates(&asked.steps, |name| found(&templates, node, name)) {
            let template = self.template(TemplateKind::Addon, &name).await?;
            templates.insert((TemplateKind::Addon, name), template);
        }
        Ok(steps(&asked.steps, |kind, name| found(&templates, kind, name)))
    }

    async fn template(&self, kind: TemplateKind, name: &str) -> Result<Option<Value>, ReadFailed> {
        let key = ObjectKey { kind: kind.kind(), namespace: None, name: name.to_owned() };
        if is_object_name(name) { self.cluster.link.stored(&key).await } else { Ok(None) }
    }

    /// Returns the reason why the permissions of the requester may not be checked for a job that is made now or was made at this time.
    /// Returns `None` if they are checked.
    ///
    /// # Errors
    /// If a read fails, with the message of the API server.
    pub async fn policy_gap(&self, made: Option<Timestamp>) -> Result<Option<String>, ReadFailed> {
        let keys = POLICY_KINDS.iter().flat_map(|kind| POLICIES.map(|name| (*kind, name)));
        let read = keys.map(|(kind, name)| async move {
            let kind = Kind::new("admissionregistration.k8s.io/v1", kind);
            self.cluster.link.stored(&ObjectKey { kind, namespace: None, name: name.to_owned() }).await
        });
        let policies: Vec<Value> = try_join_all(read).await?.into_iter().flatten().collect();
        let of = |kind: &str, name: &str| {
            let is = |one: &&Value| text(one, "/kind") == Some(kind) && text(one, "/metadata/name") == Some(name);
            policies.iter().find(is)
        };
        Ok(gap(of, &SHIPPED, made))
    }

    /// Reads the nodes that decide for a job with these node names, or all nodes if the job names none. The read is live, because the watch
    /// may be late and the job would reboot a node that the cache does not show yet.
    ///
    /// # Errors
    /// If a read fails, with the message of the API server.
    async fn nodes(&self, named: &[String]) -> Result<Vec<NodeFacts>, ReadFailed> {
        if named.is_empty() {
            return self.list(Kind::node(), ListSelection::default(), &NODE, |node| NodeFacts::read(&node)).await;
        }
        let mut nodes = Vec::new();
        // A name that is not an object name cannot be the name of a node.
        for name in named.iter().filter(|name| is_object_name(name)).collect::<BTreeSet<_>>() {
            let key = ObjectKey { kind: Kind::node(), namespace: None, name: name.clone() };
            nodes.extend(self.cluster.link.stored(&key).await?.as_ref().and_then(NodeFacts::read));
        }
        Ok(nodes)
    }

    async fn pods_of(&self, words: &str, of: OpsType) -> Result<Option<WorkloadPods>, ReadFailed> {
        let Some(WorkloadName { kind, namespace, name }) = WorkloadName::read(words) else { return Ok(None) };
        let key = ObjectKey { kind: kind.clone(), namespace: Some(namespace.clone()), name };
        // The writer of a workload chooses how large it is, so the host reads only these fields.
        let Some(workload) = self.cluster.link.stored_fields(&key, &fields(of)).await? else { return Ok(None) };
        if kind == Kind::pod() {
            return Ok(Some(WorkloadPods { pods: PodFacts::read(&workload).into_iter().collect(), namespace }));
        }
        let uid = workload.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default().to_owned();
        let there = ListSelection { namespace: Some(&namespace), ..ListSelection::default() };
        let mut owners = HashSet::from([uid]);
        if kind.kind == "Deployment" {
            let own = |set: Value| {
                let is_own = controller(&set).is_some_and(|owner| owners.contains(owner));
                set.pointer("/metadata/uid").and_then(Value::as_str).filter(|_| is_own).map(str::to_owned)
            };
            let sets = self.list(Kind::new("apps/v1", "ReplicaSet"), there, &fields(of), own).await?;
            owners.extend(sets);
        }
        let of_images = AtomicUsize::new(0);
        let of_pod = |pod: Value| {
            let is_own = controller(&pod).is_some_and(|owner| owners.contains(owner));
            let mut pod = PodFacts::read(&pod).filter(|_| is_own)?;
            let bytes = pod.images.bytes();
            if of_images.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) > MOST_IMAGES {
                pod.images = PodImages::default();
            }
            Some(pod)
        };
        let pods = self.list(Kind::pod(), there, &fields(of), of_pod).await?;
        if of_images.load(Ordering::Relaxed) > MOST_IMAGES {
            let most = MOST_IMAGES / (1024 * 1024);
            let message = format!(
                "the image names of the pods of {words} take more than {most} MiB: name one pod, {namespace}/pod/NAME"
            );
            return Err(ReadFailed { message, is_refused: false, retry_after: None });
        }
        Ok(Some(WorkloadPods { pods, namespace }))
    }
}
