//! Validation of a job's spec: a [`ValidSpec`], or the first rule that the spec breaks.
//!
//! The API server's admission checks the same rules. This check covers objects that were stored before a rule existed,
//! or while the admission policy was missing. Every message names the field. Source: docs/operationjob.md 1, 2.6, 3.13.

use std::collections::BTreeSet;

use oarlock_api::{OperationJobSpec, Selection, TargetRef};
use oarlock_contract::manifest::TargetKind;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::object::key::is_object_name;
use crate::requests::selector::TargetQuery;
use crate::status::policy::Policy;

/// Longest `parameters`, in bytes of JSON text.
pub const PARAMETERS_BYTES: usize = 16 * 1024;
/// Most targets of one job. With more targets, its status could exceed etcd's size limit.
pub const MOST_TARGETS: usize = 10_000;
/// Longest UID of a target, in characters. API servers make UUIDs of 36 characters.
const UID_BYTES: usize = 63;

/// A valid spec, with defaults applied.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ValidSpec {
    /// The kind of the targets.
    pub kind: TargetKind,
    /// The parameters, a JSON object.
    pub parameters: Value,
    /// Most targets that the job may ever start; `None` for no bound.
    pub partition: Option<u32>,
    /// Seconds before the first `operate`; 0 for no delay.
    pub delay_seconds: i64,
    /// The policy for the speed of the job and for failures.
    pub policy: Policy,
    /// The objects that the job's selector asks for; `None` if the spec names its targets.
    pub query: Option<TargetQuery>,
    /// Digest of the immutable fields.
    pub digest: String,
}

/// The reason why a spec is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Invalid {
    /// Reason of the condition `Valid`.
    pub reason: &'static str,
    /// Message that names the field and the broken rule.
    pub message: String,
}

/// The reasons of `Valid=False` for which a job cannot start until somebody edits its spec or replaces its plugin.
pub const REFUSALS: [&str; 3] = ["InvalidValue", "ParametersInvalid", "TargetKindNotSupported"];

fn invalid<T>(reason: &'static str, message: impl Into<String>) -> Result<T, Invalid> {
    Err(Invalid { reason, message: message.into() })
}

/// Default of `spec.TTLSecondsAfterFinished`, as the CustomResourceDefinition sets it.
pub const DEFAULT_TTL: i32 = 1800;

/// Returns how many seconds a job stays after its end. KusionStack's default applies if the spec has no valid value.
pub fn ttl_seconds(spec: Option<&OperationJobSpec>) -> i64 {
    i64::from(spec.and_then(|spec| spec.ttl_seconds_after_finished).filter(|ttl| *ttl > 0).unwrap_or(DEFAULT_TTL))
}

/// Returns how many seconds each target has. KusionStack's default applies if the spec has no valid value.
pub fn deadline_seconds(spec: Option<&OperationJobSpec>) -> i64 {
    i64::from(spec.and_then(|spec| spec.active_deadline_seconds).filter(|limit| *limit > 0).unwrap_or(10_800))
}

/// Checks a spec. `selection` is the list that was frozen when the job began, if it has begun.
pub fn validate(spec: Option<&OperationJobSpec>, selection: Option<&Selection>) -> Result<ValidSpec, Invalid> {
    let Some(spec) = spec else { return invalid("InvalidValue", "spec: required") };
    if spec.action.as_deref().unwrap_or_default().is_empty() {
        return invalid("InvalidValue", "spec.action: required");
    }
    let kind = kind(spec)?;
    numbers(spec)?;
    let policy = Policy::read(spec).or_else(|message| invalid("InvalidValue", message))?;
    let query = query(spec, kind)?;
    let parameters = spec.parameters.clone().unwrap_or_else(|| json!({}));
    if !parameters.is_object() {
        return invalid("ParametersInvalid", "spec.parameters: must be an object");
    }
    if parameters.to_string().len() > PARAMETERS_BYTES {
        return invalid("ParametersInvalid", "spec.parameters: at most 16 KiB");
    }
    let digest = digest(spec, kind);
    let changed = |frozen: &Selection| !frozen.digest.is_empty() && frozen.digest != digest;
    if selection.is_some_and(|frozen| changed(frozen) || frozen_kind(frozen) != kind) {
        let message = "spec.action, targets, targetKind, selector, parameters or dryRun changed after the job began: restore the original values";
        return invalid("ImmutableFieldChanged", message);
    }
    Ok(ValidSpec {
        kind,
        parameters,
        partition: spec.partition.and_then(|n| u32::try_from(n).ok()),
        // A dry run waits for nothing, so it needs no delay.
        delay_seconds: i64::from(spec.operation_delay_seconds.filter(|_| !is_dry_run(spec)).unwrap_or(0).max(0)),
        policy,
        query,
        digest,
    })
}

/// Returns true if the spec asks for a dry run.
pub fn is_dry_run(spec: &OperationJobSpec) -> bool {
    spec.dry_run == Some(true)
}

/// Returns the kind of targets that a job's spec asks for; pods if the spec names no valid kind.
pub fn asked_kind(spec: Option<&OperationJobSpec>) -> TargetKind {
    spec.map(kind).and_then(Result::ok).unwrap_or_default()
}

/// Returns the kind of the targets of a job that has begun.
pub fn frozen_kind(selection: &Selection) -> TargetKind {
    if selection.kind.as_deref() == Some(TargetKind::Node.word()) { TargetKind::Node } else { TargetKind::Pod }
}

fn kind(spec: &OperationJobSpec) -> Result<TargetKind, Invalid> {
    match spec.target_kind.as_deref() {
        None | Some("Pod") => Ok(TargetKind::Pod),
        Some("Node") => Ok(TargetKind::Node),
        Some(_) => invalid("InvalidValue", "spec.targetKind: must be Pod or Node"),
    }
}

fn numbers(spec: &OperationJobSpec) -> Result<(), Invalid> {
    if spec.partition.is_some_and(|n| n < 0) {
        return invalid("InvalidValue", "spec.partition: must be >= 0");
    }
    if spec.active_deadline_seconds.is_some_and(|n| n <= 0) {
        return invalid("InvalidValue", "spec.activeDeadlineSeconds: must be > 0");
    }
    if spec.ttl_seconds_after_finished.is_some_and(|n| n <= 0) {
        return invalid("InvalidValue", "spec.TTLSecondsAfterFinished: must be > 0");
    }
    Ok(())
}

/// Returns the query of the selector; `None` if the spec lists targets instead.
fn query(spec: &OperationJobSpec, kind: TargetKind) -> Result<Option<TargetQuery>, Invalid> {
    let listed = spec.targets.as_deref().unwrap_or_default();
    let Some(selector) = &spec.selector else { return targets(listed, kind).map(|()| None) };
    if !listed.is_empty() {
        return invalid("InvalidValue", "spec.targets: give targets or spec.selector, not both");
    }
    if kind == TargetKind::Node && selector.owner_ref.is_some() {
        // Admission uses the same words.
        return invalid("InvalidValue", "spec.selector.ownerRef: not for nodes; give labelSelector");
    }
    TargetQuery::read(selector).map(Some).or_else(|message| invalid("InvalidValue", message))
}

fn targets(targets: &[TargetRef], kind: TargetKind) -> Result<(), Invalid> {
    if targets.is_empty() {
        return invalid("NoTargets", "spec.targets: give at least one target, or spec.selector");
    }
    if targets.len() > MOST_TARGETS {
        return invalid("TooManyTargets", "spec.targets: at most 10000");
    }
    let mut seen = BTreeSet::new();
    for (index, target) in targets.iter().enumerate() {
        let name = target.name.as_deref().unwrap_or_default();
        if !is_object_name(name) {
            let shown: String = name.chars().take(80).collect();
            let message =
                format!("spec.targets[{index}].name: {shown:?} must be a DNS-1123 subdomain of at most 253 characters");
            return invalid("InvalidValue", message);
        }
        if !seen.insert(name) {
            return invalid("DuplicateTarget", format!("spec.targets[{index}].name: {name} is listed twice"));
        }
        if target.uid.as_deref().is_some_and(|uid| !is_uid(uid)) {
            let message =
                format!("spec.targets[{index}].uid: must be a UID, of at most 63 characters of a-z, 0-9 and -");
            return invalid("InvalidValue", message);
        }
        if kind == TargetKind::Node && target.containers.is_some() {
            return invalid("InvalidValue", format!("spec.targets[{index}].containers: not for nodes"));
        }
        let containers = target.containers.as_deref().unwrap_or_default();
        if containers.iter().collect::<BTreeSet<_>>().len() != containers.len() {
            return invalid("InvalidValue", format!("spec.targets[{index}].containers: duplicate"));
        }
    }
    Ok(())
}

/// Returns true if `uid` may be the UID of an object: a DNS-1123 label, as in the schema.
fn is_uid(uid: &str) -> bool {
    uid.len() <= UID_BYTES && !uid.contains('.') && is_object_name(uid)
}

/// Returns the digest of the immutable fields.
pub(crate) fn digest(spec: &OperationJobSpec, kind: TargetKind) -> String {
    // Absent parameters default to `{}`, so both have the same digest.
    let parameters = spec.parameters.as_ref().filter(|parameters| **parameters != json!({}));
    // An absent field adds nothing, so that the digests of older jobs stay the same.
    let mut frozen = vec![json!(spec.action), json!(spec.targets), json!(parameters)];
    frozen.extend(spec.selector.as_ref().map(|selector| json!(selector)));
    frozen.extend((kind == TargetKind::Node).then(|| json!(kind.word())));
    frozen.extend(is_dry_run(spec).then(|| json!("dryRun")));
    let hash = Sha256::digest(json!(frozen).to_string().as_bytes());
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(value: Value) -> Result<ValidSpec, Invalid> {
        validate(Some(&serde_json::from_value(value).unwrap()), None)
    }

    #[test]
    fn each_broken_rule_is_named_with_its_field() {
        let cases = [
            (json!({"targets": [{"name": "a"}]}), "InvalidValue", "spec.action"),
            (json!({"action": "Replace"}), "NoTargets", "spec.targets"),
            (json!({"action": "Replace", "selector": {}}), "InvalidValue", "spec.selector"),
            (
                json!({"action": "Replace", "selector": {"labelSelector": {"matchLabels": {"a": "b"}}}, "targets": [{"name": "a"}]}),
                "InvalidValue",
                "spec.targets",
            ),
            (
                json!({"action": "Replace", "targets": [{"name": "a"}, {"name": "a"}]}),
                "DuplicateTarget",
                "a is listed twice",
            ),
            (json!({"action": "Replace", "targets": [{"name": "p4/status"}]}), "InvalidValue", "p4/status"),
            (json!({"action": "Replace", "targets": [{}]}), "InvalidValue", "spec.targets[0].name"),
            (
                json!({"action": "Replace", "targets": [{"name": "a", "uid": "1"}, {"name": "b", "uid": "x/y"}]}),
                "InvalidValue",
                "spec.targets[1].uid",
            ),
            (
                json!({"action": "Replace", "targets": [{"name": "a", "uid": "u".repeat(64)}]}),
                "InvalidValue",
                "spec.targets[0].uid",
            ),
            (
                json!({"action": "Replace", "targets": [{"name": "a"}], "partition": -1}),
                "InvalidValue",
                "spec.partition",
            ),
            (
                json!({"action": "Replace", "targets": [{"name": "a"}], "activeDeadlineSeconds": 0}),
                "InvalidValue",
                "spec.activeDeadlineSeconds",
            ),
            (
                json!({"action": "Replace", "targets": [{"name": "a"}], "targetKind": "Rack"}),
                "InvalidValue",
                "spec.targetKind",
            ),
            (
                json!({"action": "Reboot", "targets": [{"name": "a"}, {"name": "b", "containers": []}], "targetKind": "Node"}),
                "InvalidValue",
                "spec.targets[1].containers: not for nodes",
            ),
            (
                json!({"action": "Reboot", "targetKind": "Node", "selector": {"ownerRef": {"apiVersion": "apps/v1",
                    "kind": "Deployment", "name": "w"}}}),
                "InvalidValue",
                "spec.selector.ownerRef: not for nodes",
            ),
            (
                json!({"action": "Replace", "targets": [{"name": "a"}], "parameters": 1}),
                "ParametersInvalid",
                "spec.parameters",
            ),
        ];
        for (value, reason, field) in cases {
            let refused = spec(value.clone()).expect_err(&value.to_string());
            assert_eq!(refused.reason, reason, "{value}");
            assert!(refused.message.contains(field), "{}", refused.message);
        }
    }

    #[test]
    fn changing_the_targets_after_the_start_is_noticed() {
        let value = json!({"action": "Replace", "targets": [{"name": "a"}]});
        let frozen = Selection { digest: spec(value).unwrap().digest, ..Selection::default() };
        for target in [json!({"name": "b"}), json!({"name": "a", "uid": "1"})] {
            let changed = serde_json::from_value(json!({"action": "Replace", "targets": [target]})).unwrap();
            assert_eq!(validate(Some(&changed), Some(&frozen)).unwrap_err().reason, "ImmutableFieldChanged");
        }
    }

    #[test]
    fn changing_the_kind_of_the_targets_after_the_start_is_noticed() {
        let value = |kind: &str| json!({"action": "Both", "targets": [{"name": "a"}], "targetKind": kind});
        let checked = |kind: &str, frozen: &Selection| {
            validate(Some(&serde_json::from_value(value(kind)).unwrap()), Some(frozen))
                .map_err(|invalid| invalid.reason)
        };
        let frozen = |kind: &str, digest: &str| {
            let kind = (kind == "Node").then(|| kind.to_owned());
            Selection { digest: digest.to_owned(), kind, ..Selection::default() }
        };
        for (kind, other) in [("Pod", "Node"), ("Node", "Pod")] {
            for digest in [spec(value(kind)).unwrap().digest.as_str(), ""] {
                assert!(checked(kind, &frozen(kind, digest)).is_ok());
                assert_eq!(checked(other, &frozen(kind, digest)), Err("ImmutableFieldChanged"));
            }
        }
    }

    #[test]
    fn changing_the_selector_after_the_start_is_noticed() {
        let value =
            |label: &str| json!({"action": "Replace", "selector": {"labelSelector": {"matchLabels": {"app": label}}}});
        let frozen = Selection { digest: spec(value("a")).unwrap().digest, ..Selection::default() };
        let checked = |value: Value| validate(Some(&serde_json::from_value(value).unwrap()), Some(&frozen));
        assert!(checked(value("a")).is_ok());
        let named = json!({"action": "Replace", "targets": [{"name": "a"}]});
        for changed in [value("b"), named] {
            assert_eq!(checked(changed).unwrap_err().reason, "ImmutableFieldChanged");
        }
    }

    #[test]
    fn making_a_dry_run_earnest_after_the_start_is_noticed_and_false_is_absent() {
        let value = |dry: Value| json!({"action": "Replace", "targets": [{"name": "a"}], "dryRun": dry});
        let digest = |dry: Value| spec(value(dry)).unwrap().digest;
        assert_eq!(digest(Value::Null), digest(json!(false)));
        let frozen = Selection { digest: digest(json!(true)), ..Selection::default() };
        let earnest = serde_json::from_value(value(Value::Null)).unwrap();
        assert_eq!(validate(Some(&earnest), Some(&frozen)).unwrap_err().reason, "ImmutableFieldChanged");
    }

    #[test]
    fn nothing_is_waited_for_in_a_dry_run() {
        let value = json!({"action": "Replace", "targets": [{"name": "a"}], "dryRun": true, "operationDelaySeconds": 5,
            "maxUnavailable": 1, "failurePolicy": {"type": "FailFast"}, "retryPolicy": {"limit": 3}, "parallelism": 2});
        let spec = spec(value).unwrap();
        assert_eq!((spec.delay_seconds, spec.policy.max_unavailable, spec.policy.retry.limit), (0, None, 0));
        assert!(!spec.policy.trips(1, 1) && spec.policy.most_in_flight(9) == 2);
    }

    #[test]
    fn parameters_that_are_absent_and_empty_ones_are_the_same() {
        let digest = |parameters: Value| {
            let value = json!({"action": "Replace", "targets": [{"name": "a"}], "parameters": parameters});
            spec(value).unwrap().digest
        };
        assert_eq!(digest(Value::Null), digest(json!({})));
        assert_ne!(digest(Value::Null), digest(json!({"a": 1})));
    }

    #[test]
    fn names_that_would_change_a_url_are_refused() {
        for name in ["p4/status", "", ".", "a..b", "A", "a%2fb", "-a", "a-", &"a".repeat(254)] {
            assert!(!is_object_name(name), "{name}");
        }
        assert!(is_object_name("web-7d9c.x-1"));
    }
}
