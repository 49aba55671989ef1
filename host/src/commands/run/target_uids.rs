//! The UIDs of the objects that a job names as its targets, as the cluster has them now. One that is made anew under its name
//! before its target starts is another object, and is left alone.

use std::io::Write as _;

use anyhow::{Error, anyhow};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::Api;
use oarlock_api::OperationJob;
use oarlock_core::job::spec::asked_kind;
use oarlock_core::plugin::manifest::TargetKind;
use oarlock_view::escaped;

use super::super::jobs::JobClient;

/// Requests at once.
const AT_ONCE: usize = 16;

/// Fills in the UIDs. Whoever may not read the objects names them by their names alone, and is told.
pub(super) async fn name_objects(client: &anyhow::Result<JobClient>, job: &mut OperationJob) {
    if let Err(error) = fill_in(client, job).await {
        let by_name = "the targets have no UIDs, so each is whatever has its name as it starts";
        // There is nobody else to tell.
        let _untold = writeln!(std::io::stderr(), "warning: {error:#}; {by_name}").is_err();
    }
}

/// A target that is not there stays without UID: it fails as it starts.
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
