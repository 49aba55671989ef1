//! Builds an OperationJob from arguments.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use oarlock_api::{
    FailurePolicy, IntOrPercent, OPERATION_JOB_API_VERSION, OperationJob, OperationJobSpec, OwnerSelector, RetryPolicy,
    TargetRef, TargetSelector,
};
use serde_json::{Map, Value};

use super::amount::{amount, failure_policy, seconds};
use super::label_selector::label_selector;

/// The controllers that need no group in an argument, each with the names that kubectl accepts.
const OWNERS: [(&str, &str, &[&str]); 5] = [
    ("apps/v1", "Deployment", &["deployment", "deployments", "deploy"]),
    ("apps/v1", "StatefulSet", &["statefulset", "statefulsets", "sts"]),
    ("apps/v1", "DaemonSet", &["daemonset", "daemonsets", "ds"]),
    ("apps/v1", "ReplicaSet", &["replicaset", "replicasets", "rs"]),
    ("apps.kusionstack.io/v1alpha1", "CollaSet", &["collaset", "collasets", "cls"]),
];

/// Arguments that describe a job.
#[derive(Debug, Args)]
pub(super) struct JobArgs {
    /// The action, as a plugin names it
    #[arg(value_name = "ACTION")]
    action: String,
    /// The pods with these labels; the host selects the pods once
    #[arg(short = 'l', long, group = "chosen", value_name = "LABELS", value_parser = label_selector)]
    selector: Option<LabelSelector>,
    /// Pods or nodes by name, in the order in which to start them; NAME or pod/NAME
    #[arg(short, long, group = "chosen", value_name = "NAME", num_args = 1.., value_delimiter = ',')]
    target: Vec<String>,
    /// The pods of a controller, such as deployment/web or Rollout.v1alpha1.argoproj.io/web
    #[arg(long, group = "chosen", value_name = "KIND/NAME", value_parser = owner)]
    owner: Option<OwnerSelector>,
    /// Kind of the targets, Pod or Node [default: Pod]
    #[arg(long, value_name = "KIND")]
    target_kind: Option<String>,
    /// Name of the job [default: the action and a suffix that the cluster chooses]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Number of targets that may start; you can raise it later, but not lower it
    #[arg(long, value_name = "N")]
    partition: Option<i32>,
    /// Most targets in flight at once, such as 10 or 25%
    #[arg(long, value_name = "N|%", value_parser = amount)]
    parallelism: Option<IntOrPercent>,
    /// Most targets that may be unavailable at once, such as 1 or 10%
    #[arg(long, value_name = "N|%", value_parser = amount)]
    max_unavailable: Option<IntOrPercent>,
    /// A parameter of the plugin; the value is YAML, so true is a boolean and "true" is a text; can be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = parameter)]
    param: Vec<(String, Value)>,
    /// Parameters of the plugin as YAML or JSON; --param overrides them
    #[arg(long, value_name = "FILE")]
    params_file: Option<PathBuf>,
    /// Time for each target, such as 10m or 1h30m [default: 3h]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    deadline: Option<i32>,
    /// Time to keep the job after its end [default: 30m]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    ttl: Option<i32>,
    /// Time to wait before the work on each target
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    delay: Option<i32>,
    /// Effect of failures on the other targets: Continue, FailFast:N or Pause:N, where N (or %) failures are tolerated
    #[arg(long, value_name = "POLICY", value_parser = failure_policy)]
    failure_policy: Option<FailurePolicy>,
    /// Further attempts for each target
    #[arg(long, value_name = "N")]
    retries: Option<i32>,
    /// Create the job paused
    #[arg(long)]
    paused: bool,
    /// Create a job that only plans and does not change its targets
    #[arg(long)]
    dry_run: bool,
}

impl JobArgs {
    /// Returns the job, without a namespace.
    pub(super) fn job(self) -> anyhow::Result<OperationJob> {
        let parameters = self.parameters()?;
        let prefix = format!("{}-", self.action.to_lowercase());
        let metadata = ObjectMeta {
            generate_name: self.name.is_none().then_some(prefix),
            name: self.name,
            ..ObjectMeta::default()
        };
        let kind = self.target_kind.as_deref().unwrap_or("Pod");
        let named = self.target.iter().flat_map(|text| text.split_whitespace());
        let targets = named.map(|text| target(text, kind)).collect::<anyhow::Result<Vec<TargetRef>>>()?;
        let selector = TargetSelector { label_selector: self.selector, owner_ref: self.owner };
        let spec = OperationJobSpec {
            action: Some(self.action),
            targets: Some(targets).filter(|targets| !targets.is_empty()),
            selector: Some(selector).filter(|selector| *selector != TargetSelector::default()),
            partition: self.partition,
            operation_delay_seconds: self.delay,
            active_deadline_seconds: self.deadline,
            ttl_seconds_after_finished: self.ttl,
            target_kind: self.target_kind,
            parameters,
            parallelism: self.parallelism,
            max_unavailable: self.max_unavailable,
            failure_policy: self.failure_policy,
            retry_policy: self.retries.map(|limit| RetryPolicy { limit: Some(limit), ..RetryPolicy::default() }),
            paused: self.paused.then_some(true),
            dry_run: self.dry_run.then_some(true),
        };
        Ok(OperationJob {
            unread: None,
            api_version: OPERATION_JOB_API_VERSION.to_owned(),
            kind: "OperationJob".to_owned(),
            metadata,
            spec: Some(spec),
            status: None,
        })
    }

    fn parameters(&self) -> anyhow::Result<Option<Value>> {
        let mut parameters = match &self.params_file {
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .with_context(|| format!("cannot read the parameters {}", path.display()))?;
                match yaml(&text).with_context(|| format!("the parameters {} are not YAML", path.display()))? {
                    Value::Object(parameters) => parameters,
                    Value::Null => Map::new(),
                    _ => bail!("the parameters {} are no mapping of names to values", path.display()),
                }
            }
            None => Map::new(),
        };
        parameters.extend(self.param.iter().cloned());
        Ok((!parameters.is_empty()).then_some(Value::Object(parameters)))
    }
}

/// Parses a target of a job on targets of `kind`: a name, or a name as kubectl prints it, such as pod/NAME.
fn target(text: &str, kind: &str) -> anyhow::Result<TargetRef> {
    let (word, name) = text.split_once('/').unwrap_or((kind, text));
    let known: &[&str] = match kind {
        "Pod" => &["pod", "pods", "po"],
        "Node" => &["node", "nodes", "no"],
        _ => &[],
    };
    let is_of_kind = |word: &str| word.eq_ignore_ascii_case(kind) || known.contains(&word.to_lowercase().as_str());
    if !is_of_kind(word) {
        // kubectl prints a controller with its group, such as deployment.apps.
        let plain = word.split('.').next().unwrap_or(word).to_lowercase();
        let instead = match known_owner(&plain).and_then(|(_, _, words)| words.first()) {
            Some(owner) => format!("the pods of a controller are named by --owner {owner}/{name}"),
            None if ["pod", "node"].iter().any(|kind| plain.starts_with(kind)) => {
                "--target-kind says which kind the job is on".to_owned()
            }
            None => format!("write NAME or {}/NAME", kind.to_lowercase()),
        };
        bail!("--target {text}: this job is on targets of kind {kind}, and {word} is none; {instead}");
    }
    Ok(TargetRef { name: Some(name.to_owned()), ..TargetRef::default() })
}

/// Returns the controller for a lower-case word.
fn known_owner(word: &str) -> Option<&'static (&'static str, &'static str, &'static [&'static str])> {
    OWNERS.iter().find(|(_, _, words)| words.contains(&word))
}

/// Parses YAML as Kubernetes does: `no` is text, not a boolean.
fn yaml(text: &str) -> anyhow::Result<Value> {
    let options = serde_saphyr::options! { strict_booleans: true };
    Ok(serde_saphyr::from_str_with_options(text, options)?)
}

fn parameter(text: &str) -> Result<(String, Value), String> {
    let (key, value) = text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or("write KEY=VALUE")?;
    let read = if value.is_empty() { Ok(Value::String(String::new())) } else { yaml(value) };
    // A value that is no YAML is text, such as `*` or `a: b: c`.
    Ok((key.to_owned(), read.unwrap_or_else(|_| Value::String(value.to_owned()))))
}

/// Parses `KIND/NAME`. A kind of another group is written `Kind.version.group`.
fn owner(text: &str) -> Result<OwnerSelector, String> {
    let (kind, name) = text.split_once('/').ok_or("write KIND/NAME, such as deployment/web")?;
    if name.is_empty() || name.contains('/') {
        return Err("write KIND/NAME, such as deployment/web".to_owned());
    }
    let selector = |api_version: &str, kind: &str| OwnerSelector {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
    };
    if let Some((api_version, kind, _)) = known_owner(&kind.to_lowercase()) {
        return Ok(selector(api_version, kind));
    }
    let parts: Vec<&str> = kind.splitn(3, '.').collect();
    match parts.as_slice() {
        [kind, version, group] if parts.iter().all(|part| !part.is_empty()) => {
            Ok(selector(&format!("{group}/{version}"), kind))
        }
        _ => Err(format!(
            "{kind:?} is not known: write deployment, statefulset, daemonset, replicaset or collaset, or Kind.version.group"
        )),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Parser)]
    #[command(group = clap::ArgGroup::new("chosen").required(true))]
    struct Line {
        #[command(flatten)]
        job: JobArgs,
    }

    fn parsed(line: &str) -> Result<Line, clap::Error> {
        Line::try_parse_from(format!("run {line}").split(' '))
    }

    fn job(line: &str) -> Value {
        serde_json::to_value(parsed(line).unwrap().job.job().unwrap()).unwrap()
    }

    #[test]
    fn every_argument_becomes_its_field() {
        let line = "Replace --selector app=web --name x --partition 3 --parallelism 25% --max-unavailable 2 --deadline 1h \
                    --ttl 60 --delay 5s --failure-policy Pause:2 --retries 4 --paused --dry-run --target-kind Pod \
                    --param count=3 --param reason=no --param on=true --param empty=";
        assert_eq!(
            job(line)["spec"],
            json!({
                "action": "Replace", "selector": {"labelSelector": {"matchLabels": {"app": "web"}}}, "partition": 3,
                "parallelism": "25%", "maxUnavailable": 2, "activeDeadlineSeconds": 3600, "TTLSecondsAfterFinished": 60,
                "operationDelaySeconds": 5, "failurePolicy": {"type": "Pause", "maxFailures": 2}, "targetKind": "Pod",
                "retryPolicy": {"limit": 4}, "paused": true, "dryRun": true,
                "parameters": {"count": 3, "reason": "no", "on": true, "empty": ""},
            })
        );
        assert_eq!(job(line)["metadata"], json!({"name": "x"}));
    }

    #[test]
    fn a_job_without_a_name_is_called_after_its_action_and_what_is_not_said_is_absent() {
        let made = job("Replace --target a pod/b,c");
        assert_eq!(made["metadata"], json!({"generateName": "replace-"}));
        assert_eq!(
            made["spec"],
            json!({"action": "Replace", "targets": [{"name": "a"}, {"name": "b"}, {"name": "c"}]})
        );
        assert_eq!(
            (&made["apiVersion"], &made["kind"]),
            (&json!("apps.kusionstack.io/v1alpha1"), &json!("OperationJob"))
        );
    }

    #[test]
    fn a_target_of_another_kind_is_refused_by_name() {
        let refused = |line: &str| parsed(line).unwrap().job.job().unwrap_err().to_string();
        let said = refused("Replace --target deployment.apps/web");
        assert!(said.starts_with("--target deployment.apps/web: this job is on targets of kind Pod"), "{said}");
        assert!(said.ends_with("named by --owner deployment/web"), "{said}");
        assert!(refused("Replace --target a node/n1").contains("--target-kind says"));
        assert!(
            refused("Maintain --target-kind Node --target pod/a").contains("on targets of kind Node, and pod is none")
        );
        assert!(refused("Replace --target service/a").ends_with("write NAME or pod/NAME"));
        let nodes = job("Maintain --target-kind Node --target node/a nodes/b no/c d");
        let names = ["a", "b", "c", "d"].map(|name| json!({ "name": name }));
        assert_eq!(nodes["spec"]["targets"], json!(names));
    }

    #[test]
    fn owners_are_named_as_kubectl_names_them_or_with_their_group() {
        let of = |text: &str| job(&format!("Replace --owner {text}"))["spec"]["selector"]["ownerRef"].clone();
        assert_eq!(of("deploy/web"), json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}));
        assert_eq!(
            of("Rollout.v1alpha1.argoproj.io/web"),
            json!({"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "web"})
        );
        for text in ["web", "deploy/", "rollout/web", "a.b/c"] {
            assert!(parsed(&format!("Replace --owner {text}")).is_err(), "{text}");
        }
    }

    #[test]
    fn targets_are_chosen_in_exactly_one_way() {
        for line in ["Replace", "Replace --selector a=b --target c", "Replace --owner deploy/a --selector a=b"] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}
