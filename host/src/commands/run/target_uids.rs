//! Adds the current UIDs of a job's targets. A target that is deleted and recreated under its name before it starts is
//! another object, which the job does not touch.

use std::io::Write as _;

use anyhow::{Error, anyhow};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::Api;
use oarlock_api::OperationJob;
use oarlock_core::operation_job::spec::asked_kind;
use oarlock_core::plugin::manifest::TargetKind;
use oarlock_view::escaped;

use super::super::jobs::JobClient;

/// The number of concurrent requests.
const AT_ONCE: usize = 16;

/// Adds the UIDs. Without permission to read the objects, leaves their names alone and prints a warning.
pub(super) async fn name_objects(client: &anyhow::Result<JobClient>, job: &mut OperationJob) {
    if let Err(error) = fill_in(client, job).await {
        let by_name = "the targets have no UIDs, so each is whatever has its name as it starts";
        // If standard error is closed, there is no other place for the warning.
        let _untold = writeln!(std::io::stderr(), "warning: {error:#}; {by_name}").is_err();
    }
}

/// Adds the UIDs. A missing target gets no UID, and fails when it starts.
async fn fill_in(client: &anyhow::Result<JobClient>, job: &mut OperationJob) -> anyhow::Result<()> {
    let kind = asked_kind(job.spec.as_ref());
    let Some(targets) = job.spec.as_mut().and_then(|spec| spec.targets.as_mut()) else { return Ok(()) };
    let client = client.as_ref().map_err(|error| anyhow!("{error:#}"))?;
    let names: Vec<String> = targets.iter().filter_map(|target| target.name.clone()).collect();
    let reads = names.into_iter().map(|name| uid_of(client, kind, name));
    let uids: Vec<Option<String>> = futures::stream::iter(reads).buffered(AT_ONCE).try_collect().await?;
    for (target, uid) in targets.iter_mut().zip(uids) {
        target.uid = uid;
    }
    Ok(())
}

async fn uid_of(client: &JobClient, kind: TargetKind, name: String) -> anyhow::Result<Option<String>> {
    let raw = client.raw().clone();
    let found = match kind {
        TargetKind::Pod => {
            let pods = Api::<Pod>::namespaced(raw, client.namespace());
            pods.get_metadata_opt(&name).await.map(|found| found.map(|pod| pod.metadata))
        }
        TargetKind::Node => {
            let nodes = Api::<Node>::all(raw);
            nodes.get_metadata_opt(&name).await.map(|found| found.map(|node| node.metadata))
        }
    };
    let what = format!("cannot get {} {name}", kind.noun());
    match found {
        Ok(found) => Ok(found.and_then(|metadata| metadata.uid)),
        Err(kube::Error::Api(status)) => Err(anyhow!("{what}: {}", escaped(&status.message))),
        Err(cause) => Err(Error::new(cause).context(what)),
    }
}
