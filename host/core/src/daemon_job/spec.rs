//! Reads and checks the spec of a DaemonJob. Source: docs/jobflow.md 1, 4.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::attempts::build::{Cause, has_containers};
use crate::attempts::settings::{
    Cleanup, FailurePolicyType, UnitRetry, amount, cleanup, failure_policy, retry_policy, whole,
};
use crate::object::fields::{at, flag, text};
use crate::status::policy::Amount;

/// The fields of the spec that are not fields of a JobSpec.
const OWN: [&str; 4] = ["excludeNodeList", "globalParams", "rollout", "cleanup"];

/// The effect of taints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taints {
    /// The host ignores taints.
    Ignore,
    /// The host leaves out a node with a taint that the pod does not tolerate.
    Respect,
    /// Every pod tolerates all taints.
    TolerateAll,
}

/// The checked spec of a DaemonJob.
#[derive(Clone, Debug)]
pub struct DaemonSpec<'a> {
    /// The JobSpec of each node's Job.
    pub job: Value,
    /// The nodes of `excludeNodeList`.
    pub excluded: BTreeSet<String>,
    /// The label selector of the nodes. Without it, all nodes match.
    pub selector: Option<&'a Value>,
    /// The effect of taints.
    pub taints: Taints,
    /// True if the host leaves out cordoned nodes.
    pub skip_cordoned: bool,
    /// True if the host omits nodes that are not Ready. If false, it waits for them.
    pub skip_not_ready: bool,
    /// The most nodes that run at once.
    pub concurrency: Option<Amount>,
    /// True if nodes that join later also run.
    pub runs_new: bool,
    /// The reaction to failures.
    pub failure_policy: FailurePolicyType,
    /// The number of tolerated failures.
    pub max_failures: Amount,
    /// Time limit of each attempt, and of each wait for a Ready node, in seconds.
    pub node_timeout: Option<i64>,
    /// Retries of each node.
    pub retry: UnitRetry,
    /// True if nothing new starts.
    pub paused: bool,
    /// The clean-up after the end.
    pub cleanup: Cleanup,
}

impl<'a> DaemonSpec<'a> {
    /// Reads and checks a spec.
    ///
    /// # Errors
    /// If the spec breaks a rule. The error names the first such rule.
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

    /// Returns the most nodes that run at once, out of `desired`. A percentage gives at least one.
    pub fn slots(&self, desired: usize) -> usize {
        match self.concurrency {
            None => usize::MAX,
            Some(Amount::Count(count)) => count,
            Some(share) => share.rounded_up(desired).max(1),
        }
    }
}

/// Returns the names in `excludeNodeList`, which are separated by commas. White space is ignored.
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
