//! The data for finding the targets of an OpsJob. Source: docs/opsjob.md 3.

use std::collections::{BTreeSet, HashMap};

use crate::ops_job::addon::{AddonStep, StepsRefused};
use crate::ops_job::export::ExportedImage;
use crate::ops_job::inputs::Scope;
use crate::ops_job::pod_targets::{PodFacts, WorkloadPods, resolve_pods};
use crate::ops_job::spec::{OpsSpec, OpsType};
use crate::ops_job::targets::{Filters, Here, NodeFacts, Resolved, Selectors, Unresolved, resolve};

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
