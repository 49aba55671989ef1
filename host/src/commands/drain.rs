//! `oarlock drain`: refuses, without a change, while an object needs the host.
//!
//! An object needs the host if it could not end without the host. These objects are OperationJobs that have started and
//! not ended, OpsJobs with locked targets, pods and nodes with holds, and pods of tasks. A job that has ended keeps its
//! finalizer, so it needs the host only if its kind is deleted too.

use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::core::PartialObjectMeta;
use oarlock_core::object::api_object::Kind;
use oarlock_core::object::own::TASKS_NAMESPACE;
use oarlock_core::operation_job::holds::HOLD;
use oarlock_core::operation_job::round::finalize;
use oarlock_core::ops_job::names as ops;
use oarlock_kube::transport::client::connect;
use oarlock_view::escaped;
use serde_json::Value;

use super::host::ClusterArgs;
use super::jobs::every_page;
use super::output::print;
use super::run::amount::seconds;

const EXAMPLES: &str = "\
Examples:
  oarlock drain --all                   exit with 0 if nothing needs the host, otherwise list what does and exit with 1
  oarlock drain --all --timeout 10m     wait that long for jobs in flight to end
  oarlock drain --all --crds            the same before you delete the CustomResourceDefinitions too

The command changes nothing, so new jobs can start meanwhile. `helm uninstall` runs it before it removes the host.";

/// The time between two looks at the cluster.
const EVERY: Duration = Duration::from_secs(1);
/// The selector of pods that have not ended.
const RUNNING: &str = "status.phase!=Succeeded,status.phase!=Failed";
/// The number of objects that the refusal names.
const NAMED: usize = 20;

/// Arguments of `oarlock drain`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DrainArgs {
    /// Check the jobs of all namespaces, and all pods and nodes
    #[arg(long, required = true)]
    all: bool,
    /// Time to wait until nothing needs the host
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = seconds)]
    timeout: i32,
    /// Also refuse while a job that has ended has a finalizer of the host, because the deletion of its kind would then
    /// hang
    #[arg(long)]
    crds: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// An object that needs the host.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Needing {
    /// The kind, the namespace if there is one, and the name.
    object: String,
    why: String,
}

impl fmt::Display for Needing {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "  {}: {}", escaped(&self.object), escaped(&self.why))
    }
}

/// Waits until nothing needs the host.
pub(crate) async fn run(args: DrainArgs) -> anyhow::Result<ExitCode> {
    let (client, _server) = connect(&args.cluster.source()?).await?;
    let patience = Duration::from_secs(u64::try_from(args.timeout).unwrap_or_default());
    let began = Instant::now();
    loop {
        let needing = needing(&client, args.crds).await?;
        if needing.is_empty() {
            return print("nothing needs the host\n");
        }
        if began.elapsed() >= patience {
            bail!("{}", refusal(&needing));
        }
        tokio::time::sleep(EVERY.min(patience.saturating_sub(began.elapsed()))).await;
    }
}

fn refusal(needing: &[Needing]) -> String {
    let mut lines: Vec<String> = needing.iter().take(NAMED).map(ToString::to_string).collect();
    if needing.len() > NAMED {
        lines.push(format!("  and {} more", needing.len() - NAMED));
    }
    format!(
        "refused, and nothing was removed: without the host, these objects could not end or go away:\n{}\nWait until the jobs \
         end, or delete them while the host runs (`kubectl delete operationjob NAME -n NAMESPACE`). To remove the host anyway, \
         run `helm uninstall RELEASE --no-hooks`: finalizers, labels, taints and cordons of these objects then stay until a \
         host runs again, or until you remove them by hand (docs/install.md, Remove). To keep the host, run `helm rollback RELEASE \
         REVISION` with the last revision, because Helm has marked the release as being uninstalled",
        lines.join("\n")
    )
}

/// Returns the objects that need the host.
async fn needing(client: &Client, deletes_kinds: bool) -> anyhow::Result<Vec<Needing>> {
    let finalizers = [finalize::FINALIZER, ops::FINALIZER, ops::HISTORY];
    let mut found = Vec::new();
    for kind in [Kind::job(), ops::ops_kind()] {
        let why = |job: &DynamicObject| {
            let names = job.metadata.finalizers.iter().flatten();
            let own: Vec<&str> = names.map(String::as_str).filter(|name| finalizers.contains(name)).collect();
            if is_in_flight(job, &own) {
                return Some("is in flight".to_owned());
            }
            let finalizer = own.first().filter(|_| deletes_kinds)?;
            Some(format!("has ended, and only the host removes its finalizer {finalizer}; delete it"))
        };
        let (group, version) = kind.api_version.split_once('/').unwrap_or(("", &kind.api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind.kind));
        let all: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let pick = |job: DynamicObject| Some(Needing { why: why(&job)?, object: named(&kind.kind, &job.metadata) });
        found.extend(known(every_page(async |page: &ListParams| all.list(page).await, pick).await, &resource)?);
    }
    found.extend(held(client, ApiResource::erase::<Pod>(&())).await?);
    found.extend(held(client, ApiResource::erase::<Node>(&())).await?);
    found.extend(tasks(client).await?);
    Ok(found)
}

/// Returns true if a job with these finalizers of the host has started and not ended, or is being deleted.
fn is_in_flight(job: &DynamicObject, finalizers: &[&str]) -> bool {
    let progress = job.data.pointer("/status/progress").and_then(Value::as_str);
    let has_ended = progress.is_some_and(|progress| ["Succeeded", "Failed"].contains(&progress));
    // The host removes the finalizer of targets when an OpsJob ends.
    let locks_targets = finalizers.contains(&ops::FINALIZER);
    let is_started = finalizers.contains(&finalize::FINALIZER) && !has_ended;
    locks_targets || is_started || (!finalizers.is_empty() && job.metadata.deletion_timestamp.is_some())
}

/// Returns the pods of tasks that have not ended.
async fn tasks(client: &Client) -> anyhow::Result<Vec<Needing>> {
    let resource = ApiResource::erase::<Pod>(&());
    let pods: Api<DynamicObject> = Api::namespaced_with(client.clone(), TASKS_NAMESPACE, &resource);
    let pick = |pod: PartialObjectMeta<DynamicObject>| {
        Some(Needing { object: named("Pod", &pod.metadata), why: "is a task that has not ended".to_owned() })
    };
    let listed = async |page: &ListParams| pods.list_metadata(&page.clone().fields(RUNNING)).await;
    known(every_page(listed, pick).await, &resource)
}

/// Returns the objects of a kind with holds.
async fn held(client: &Client, resource: ApiResource) -> anyhow::Result<Vec<Needing>> {
    let kind = resource.kind.clone();
    let pick = |object: PartialObjectMeta<DynamicObject>| {
        let none = BTreeMap::new();
        let annotations = object.metadata.annotations.as_ref().unwrap_or(&none);
        let jobs: Vec<&str> = annotations.keys().filter_map(|key| key.strip_prefix(HOLD)).collect();
        let why = || format!("is held by the job with the UID {}", jobs.join(", "));
        (!jobs.is_empty()).then(|| Needing { object: named(&kind, &object.metadata), why: why() })
    };
    let all: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    known(every_page(async |page: &ListParams| all.list_metadata(page).await, pick).await, &resource)
}

/// Returns the listed objects. A cluster that does not serve the kind has none.
fn known(listed: kube::Result<Vec<Needing>>, resource: &ApiResource) -> anyhow::Result<Vec<Needing>> {
    match listed {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        listed => listed.with_context(|| format!("cannot list {}", resource.plural)),
    }
}

fn named(kind: &str, metadata: &ObjectMeta) -> String {
    let (kind, name) = (kind.to_lowercase(), metadata.name.as_deref().unwrap_or_default());
    match &metadata.namespace {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_job_needs_the_host_from_its_first_start_to_its_end_and_while_it_is_deleted() {
        let job = |finalizers: &[&str], progress: &str, deleted: bool| {
            let mut metadata = json!({"name": "a", "finalizers": finalizers});
            if deleted {
                metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            let document =
                json!({"apiVersion": "v1", "kind": "X", "metadata": metadata, "status": {"progress": progress}});
            is_in_flight(&serde_json::from_value(document).unwrap(), finalizers)
        };
        assert!(job(&[finalize::FINALIZER], "Processing", false) && job(&[finalize::FINALIZER], "", false));
        assert!(!job(&[], "Pending", false) && !job(&[finalize::FINALIZER], "Succeeded", false));
        assert!(job(&[finalize::FINALIZER], "Failed", true) && !job(&[], "Failed", true));
        assert!(job(&[ops::FINALIZER, ops::HISTORY], "", false) && !job(&[ops::HISTORY], "", false));
        assert!(job(&[ops::HISTORY], "", true));
    }

    #[test]
    fn a_refusal_names_objects_and_the_way_to_force_it() {
        let one =
            |number: usize| Needing { object: format!("pod shop/web-{number}"), why: "is held\u{1b}[2J".to_owned() };
        let all: Vec<Needing> = (0..25).map(one).collect();
        let text = refusal(&all);
        assert!(text.contains("pod shop/web-19") && !text.contains("web-20") && text.contains("and 5 more"), "{text}");
        assert!(text.contains("--no-hooks") && !text.contains('\u{1b}'), "{text}");
    }
}
