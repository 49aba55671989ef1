//! Describes the caveats of a plan: what the plan could not read, and the fix.

use oarlock_core::operation_job::round::fit::NODE_OPERATIONS;
use oarlock_core::plugin::manifest::TargetKind;
use oarlock_kube::read::snapshot::UnlistedKind;

use super::job_file::PlannedJob;
use super::rights::Lacking;
use crate::preview::PreviewCaveat;

const JOBS: &str = "operationjobs.apps.kusionstack.io,operationrecords.oarlock.dev";

/// Returns the sentence for a caveat.
pub(super) fn describe(caveat: &PreviewCaveat, job: &PlannedJob) -> String {
    let (namespace, name, on_nodes) = (job.namespace(), job.name(), job.kind() == TargetKind::Node);
    let jobs_here = Lacking { role: "oarlock-plan-jobs", verb: "list", resources: JOBS, namespace: Some(namespace) };
    let jobs = Lacking { namespace: None, ..jobs_here };
    let unlisted = |what: &str, error: &UnlistedKind, lacking: Lacking<'_>| {
        let remedy = if matches!(error, UnlistedKind::Forbidden { .. }) { lacking.remedy() } else { String::new() };
        format!("{what}: {error}{remedy}")
    };
    match caveat {
        PreviewCaveat::NotServed => {
            "this cluster does not serve OperationJobs yet; `oarlock manifests | kubectl apply -f -` prepares it"
                .to_owned()
        }
        PreviewCaveat::NameTaken => format!(
            "there is a job {name} in namespace {namespace} already: delete it first, or give this one another name; the \
             targets are shown as they are without it"
        ),
        PreviewCaveat::Namespace(failure) => {
            let label =
                format!(", is being deleted or lacks the label {NODE_OPERATIONS}=true, which jobs on nodes need");
            let label = if on_nodes { label } else { " or is being deleted".to_owned() };
            let (role, resources) = ("oarlock-plan-namespace", "namespaces");
            let lacking = Lacking { role, verb: "get", resources, namespace: Some(namespace) };
            let remedy = if failure.refused { lacking.remedy() } else { String::new() };
            let message = &failure.message;
            format!(
                "namespace {namespace} was not read, so it is not known whether it is missing{label}: {message}{remedy}"
            )
        }
        PreviewCaveat::Jobs(error) => {
            unlisted("other jobs were not read, so what they work on does not count", error, jobs_here)
        }
        PreviewCaveat::JobsOnNodes(error) => {
            let what = "the jobs of other namespaces were not read, so the nodes that they work on do not count";
            unlisted(what, error, jobs)
        }
        PreviewCaveat::JobsInFlight(error) => {
            let what = "the jobs of other namespaces were not read, so what they use up of limits.targetsInFlight does not count";
            unlisted(what, error, jobs)
        }
        PreviewCaveat::Records(error) => {
            let what = "which targets large jobs work on was not read, and does not count";
            unlisted(what, error, if on_nodes { jobs } else { jobs_here })
        }
    }
}

#[cfg(test)]
mod tests {
    use oarlock_core::requests::live_reads::ReadFailure;

    use super::*;
    use crate::commands::plan::job_file;

    fn job(kind: &str) -> PlannedJob {
        let job = serde_json::json!({"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob",
            "metadata": {"name": "web"}, "spec": {"action": "X", "targetKind": kind}});
        job_file::placed(serde_json::from_value(job).unwrap(), Some("shop"), "").unwrap()
    }

    #[test]
    fn a_namespace_that_was_not_read_says_what_that_leaves_open() {
        let refused = PreviewCaveat::Namespace(ReadFailure { message: "403".into(), refused: true });
        let pods = describe(&refused, &job("Pod"));
        assert!(pods.contains("it is not known whether it is missing or is being deleted: 403; an admin"), "{pods}");
        let role = "`kubectl -n shop create role oarlock-plan-namespace --verb=get --resource=namespaces`";
        assert!(pods.contains(role), "{pods}");
        let nodes = describe(&refused, &job("Node"));
        assert!(
            nodes.contains("lacks the label oarlock.dev/node-operations=true, which jobs on nodes need"),
            "{nodes}"
        );
        let unanswered = PreviewCaveat::Namespace(ReadFailure { message: "timed out".into(), refused: false });
        assert!(describe(&unanswered, &job("Pod")).ends_with(": timed out"));
    }

    #[test]
    fn the_command_is_for_the_place_that_was_not_read() {
        let forbidden =
            || UnlistedKind::Forbidden { resource: "operationjobs".into(), namespaced: true, message: "403".into() };
        let here = describe(&PreviewCaveat::Jobs(forbidden()), &job("Pod"));
        assert!(here.contains("`kubectl -n shop create role oarlock-plan-jobs --verb=list --resource=operationjobs."));
        for all in [PreviewCaveat::JobsOnNodes(forbidden()), PreviewCaveat::JobsInFlight(forbidden())] {
            let all = describe(&all, &job("Node"));
            assert!(
                all.contains("`kubectl create clusterrole oarlock-plan-jobs --verb=list --resource=operationjobs.")
            );
        }
        let failed = PreviewCaveat::Records(UnlistedKind::Failed { message: "timed out".into() });
        assert!(describe(&failed, &job("Pod")).ends_with("does not count: timed out"));
    }
}
