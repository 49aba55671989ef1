//! The spec of a DaemonJob, checked. Source: docs/jobflow.md 1, 4.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::child::build::{Cause, has_containers};
use crate::child::fields::{at, flag, text};
use crate::child::settings::{
    Cleanup, FailurePolicyType, UnitRetry, amount, cleanup, failure_policy, retry_policy, whole,
};
use crate::job::policy::Amount;

/// The fields of the spec that are no fields of the JobSpec.
const OWN: [&str; 4] = ["excludeNodeList", "globalParams", "rollout", "cleanup"];

/// What taints mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taints {
    /// They are not looked at.
    Ignore,
    /// A node with one that is not tolerated is left out.
    Respect,
    /// Every pod tolerates all.
    TolerateAll,
}

/// The spec of a DaemonJob.
#[derive(Clone, Debug)]
pub struct DaemonSpec<'a> {
    /// The JobSpec of each node's Job.
    pub job: Value,
    /// Nodes that are left out.
    pub excluded: BTreeSet<String>,
    /// Only nodes that match.
    pub selector: Option<&'a Value>,
    /// What taints mean.
    pub taints: Taints,
    /// Cordoned nodes are left out.
    pub skip_cordoned: bool,
    /// Nodes that are not Ready are left out, and not waited for.
    pub skip_not_ready: bool,
    /// Most nodes at once.
    pub concurrency: Option<Amount>,
    /// Nodes that join later have a run too.
    pub runs_new: bool,
    /// What failures mean.
    pub failure_policy: FailurePolicyType,
    /// Failures that are tolerated.
    pub max_failures: Amount,
    /// The limit per attempt and for the wait until Ready, in seconds.
    pub node_timeout: Option<i64>,
    /// Further attempts.
    pub retry: UnitRetry,
    /// Nothing new starts.
    pub paused: bool,
    /// What happens after the end.
    pub cleanup: Cleanup,
}

impl<'a> DaemonSpec<'a> {
    /// Reads a spec.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn read(spec: &'a Value) -> Result<Self, Cause> {
        let invalid = |rule: &str| Cause::new("InvalidValue", format!("spec.{rule}"));
        if !has_containers(spec) {
            return Err(Cause::new("NoWork", "spec.template.spec.containers: give at least one container"));
        }
        if flag(spec, "/manualSelector") {
            return Err(invalid(
                "manualSelector: must not be true, for the Jobs of all nodes would select each other's pods",
            ));
        }
        let rollout = at(spec, "/rollout").unwrap_or(&Value::Null);
        let place = "spec.rollout.";
        let runs_new = match text(rollout, "/newNodePolicy") {
            None | Some("Ignore") => false,
            Some("Run") => true,
            Some(_) => return Err(invalid("rollout.newNodePolicy: must be Ignore or Run")),
        };
        let cleanup = cleanup(spec)?;
        if runs_new && cleanup.ttl.is_some() {
            return Err(invalid("cleanup.ttlSeconds: has no meaning with rollout.newNodePolicy Run, which never ends"));
        }
        let mut job = spec.clone();
        if let Some(fields) = job.as_object_mut() {
            OWN.iter().for_each(|field| drop(fields.shift_remove(*field)));
        }
        Ok(Self {
            job,
            excluded: excluded(text(spec, "/excludeNodeList").unwrap_or_default()),
            selector: at(rollout, "/nodeSelector"),
            taints: match text(rollout, "/taints") {
                None | Some("Ignore") => Taints::Ignore,
                Some("Respect") => Taints::Respect,
                Some("TolerateAll") => Taints::TolerateAll,
                Some(_) => return Err(invalid("rollout.taints: must be Ignore, Respect or TolerateAll")),
            },
            skip_cordoned: flag(rollout, "/skipCordoned"),
            skip_not_ready: match text(rollout, "/notReadyPolicy") {
                None | Some("Wait") => false,
                Some("Skip") => true,
                Some(_) => return Err(invalid("rollout.notReadyPolicy: must be Wait or Skip")),
            },
            concurrency: amount(rollout, "concurrency", place)?,
            runs_new,
            failure_policy: failure_policy(rollout, place)?,
            max_failures: amount(
                at(rollout, "/failurePolicy").unwrap_or(&Value::Null),
                "maxFailures",
                "spec.rollout.failurePolicy.",
            )?
            .unwrap_or(Amount::Count(0)),
            node_timeout: whole(rollout, "nodeTimeoutSeconds", place, 1)?,
            retry: retry_policy(rollout, place)?,
            paused: flag(rollout, "/paused"),
            cleanup,
        })
    }

    /// Most nodes at once of `desired`; a share is at least one.
    pub fn slots(&self, desired: usize) -> usize {
        match self.concurrency {
            None => usize::MAX,
            Some(Amount::Count(count)) => count,
            Some(share) => share.rounded_up(desired).max(1),
        }
    }
}

/// The names in `excludeNodeList`: split at commas, without any white space.
fn excluded(text: &str) -> BTreeSet<String> {
    let names = text.split(',').map(|name| name.chars().filter(|c| !c.is_whitespace()).collect::<String>());
    names.filter(|name| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(rollout: Value) -> Value {
        json!({"rollout": rollout, "completions": 2, "unheardOf": 1, "excludeNodeList": ",,a, ,\tb\n", "template": {"spec": {"containers": [{"name": "c"}]}}})
    }

    #[test]
    fn the_job_has_every_field_but_ours() {
        let value = spec(json!({}));
        let read = DaemonSpec::read(&value).unwrap();
        assert_eq!(
            read.job,
            json!({"completions": 2, "unheardOf": 1, "template": {"spec": {"containers": [{"name": "c"}]}}})
        );
        assert_eq!(read.excluded.into_iter().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn bad_numbers_are_named() {
        for bad in [
            json!({"concurrency": "150%"}),
            json!({"concurrency": -1}),
            json!({"concurrency": "x"}),
            json!({"nodeTimeoutSeconds": -5}),
        ] {
            let value = spec(bad.clone());
            assert!(DaemonSpec::read(&value).unwrap_err().message.starts_with("spec.rollout."), "{bad}");
        }
        let value = spec(json!({"concurrency": "10%"}));
        assert_eq!(DaemonSpec::read(&value).unwrap().slots(5), 1);
    }
}
