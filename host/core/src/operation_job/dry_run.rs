//! Tells whether a job is a dry run, by its spec and by its state at the start.
//!
//! A job that began as a dry run stays one, whatever its spec says later, so that the host never changes its targets. A
//! job that began as a real run has changes to undo. Source: docs/operationjob.md 3.13, 3.14.

use oarlock_api::{OperationJob, OperationJobSpec};

use crate::operation_job::spec::{asked_kind, digest, is_dry_run};
use crate::operation_job::state::{Progress, TargetState};

/// Returns true if a job with these targets began as a dry run, or has not begun and asks for a dry run. The digest
/// that the host stored at the start decides. If the spec changed in more than `dryRun`, the job counts as a real run,
/// which undoes all changes.
pub(crate) fn began_as_dry_run(job: &OperationJob, targets: &[TargetState]) -> bool {
    let Some(spec) = &job.spec else { return false };
    let asked = is_dry_run(spec);
    let stored = job.status.as_ref().and_then(|status| Some(&status.selection.as_ref()?.digest));
    let Some(stored) = stored.filter(|digest| !digest.is_empty()) else { return asked };
    // For a job without targets in flight the answer does not matter, and a digest costs time.
    let in_flight = || targets.iter().any(|target| target.progress == Progress::Processing);
    let dry = OperationJobSpec { dry_run: Some(true), ..spec.clone() };
    (asked || in_flight()) && digest(&dry, asked_kind(Some(spec))) == *stored
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::plugin::manifest::TargetKind;

    fn job(spec: Value, digest: &str) -> OperationJob {
        let status = json!({"selection": {"source": "Targets", "time": "", "digest": digest}});
        serde_json::from_value(json!({"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob",
            "metadata": {"name": "j"}, "spec": spec, "status": status}))
        .unwrap()
    }

    #[test]
    fn a_job_stays_what_it_began_as() {
        let spec = |dry: bool, name: &str| json!({"action": "R", "targets": [{"name": name}], "dryRun": dry});
        let stored = |dry: bool| digest(&serde_json::from_value(spec(dry, "a")).unwrap(), TargetKind::Pod);
        let at_work = [TargetState { progress: Progress::Processing, ..TargetState::default() }];
        let began = |now: Value, digest: &str| began_as_dry_run(&job(now, digest), &at_work);
        assert!(began(spec(true, "a"), "") && !began(spec(false, "a"), ""), "it has not begun");
        assert!(began(spec(true, "a"), &stored(true)) && began(spec(false, "a"), &stored(true)));
        assert!(!began(spec(true, "a"), &stored(false)) && !began(spec(false, "a"), &stored(false)));
        assert!(!began(spec(true, "b"), &stored(false)) && !began(spec(false, "b"), &stored(true)));
        assert!(!began_as_dry_run(&OperationJob::default(), &at_work), "it has no spec");
    }
}
