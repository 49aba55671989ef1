//! Jobs that are stored without admission, and edits that admission would refuse.

use serde_json::{Value, json};

use super::told::POD;
use super::{Begin, Misfit, Told};

/// Returns a job of the shipped plugin on the misfit's pod, with further fields of its spec.
fn replace(more: Value) -> Value {
    let mut spec = json!({"action": "Replace", "targets": [{ "name": POD }]});
    if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
        spec.extend(more);
    }
    json!({ "spec": spec })
}

fn invalid(name: &str, data: Value, reason: &'static str, words: &'static str) -> Misfit {
    Misfit::new(name, Begin::Job(data), Told::Condition("Valid", reason, words))
}

fn field(name: &str, value: Value, words: &'static str) -> Misfit {
    invalid(&format!("spec.{name}: {value}"), replace(json!({ name: value })), "False/InvalidValue", words)
}

/// Returns jobs that break a rule of the spec.
fn rules() -> Vec<Misfit> {
    let many: Vec<_> = (0..10_001).map(|number| json!({"name": format!("t{number}")})).collect();
    let twice = json!({"targets": [{ "name": POD }, { "name": POD }]});
    let containers = json!({"targets": [{"name": POD, "containers": ["a", "a"]}]});
    vec![
        invalid("no spec", json!({}), "False/InvalidValue", "spec: required"),
        invalid("no action", replace(json!({"action": ""})), "False/InvalidValue", "spec.action"),
        invalid("no targets", replace(json!({"targets": []})), "False/NoTargets", "spec.targets"),
        invalid("10,001 targets", replace(json!({ "targets": many })), "False/TooManyTargets", "at most 10000"),
        invalid("a target that is named twice", replace(twice), "False/DuplicateTarget", "listed twice"),
        invalid("a container that is named twice", replace(containers), "False/InvalidValue", "containers"),
        invalid("a target without a name", replace(json!({"targets": [{}]})), "False/InvalidValue", "targets[0].name"),
        invalid(
            "a target that is a path",
            replace(json!({"targets": [{"name": "p4/status"}]})),
            "False/InvalidValue",
            "p4/status",
        ),
        invalid(
            "a target that climbs",
            replace(json!({"targets": [{"name": "../../x"}]})),
            "False/InvalidValue",
            "../../x",
        ),
        invalid(
            "a target that clears the screen",
            replace(json!({"targets": [{"name": "a\u{1b}[2J"}]})),
            "False/InvalidValue",
            "targets[0].name",
        ),
        invalid(
            "a target with a name of 5,000 letters",
            replace(json!({"targets": [{"name": "a".repeat(5_000)}]})),
            "False/InvalidValue",
            "253",
        ),
        field("partition", json!(-1), "spec.partition"),
        field("activeDeadlineSeconds", json!(0), "spec.activeDeadlineSeconds"),
        field("activeDeadlineSeconds", json!(i32::MIN), "spec.activeDeadlineSeconds"),
        field("TTLSecondsAfterFinished", json!(-7), "spec.TTLSecondsAfterFinished"),
        field("parallelism", json!(0), "spec.parallelism"),
        field("parallelism", json!("0%"), "spec.parallelism"),
        field("maxUnavailable", json!("101%"), "spec.maxUnavailable"),
        field("failurePolicy", json!({"type": "Pause", "maxFailures": -1}), "spec.failurePolicy.maxFailures"),
        field("selector", json!({"labelSelector": {"matchLabels": {"a": "b"}}}), "spec.targets: give targets or"),
        invalid(
            "a node",
            replace(json!({"targetKind": "Node"})),
            "False/TargetKindNotSupported",
            "plugin replace works on Pods, and spec.targetKind is Node; spec.targetKind: Node needs the namespace label",
        ),
    ]
}

/// Returns jobs that ask for something that their plugin or the host does not offer.
fn asked() -> Vec<Misfit> {
    let large: String = "x".repeat(20 << 10);
    let named = |action: &str| replace(json!({ "action": action }));
    let nobody = |name: &str, action: &str, words| {
        Misfit::new(name, Begin::Job(named(action)), Told::Condition("ActionAvailable", "False/NoPlugin", words))
    };
    vec![
        invalid(
            "parameters of 20 KiB",
            replace(json!({"parameters": {"strategy": large}})),
            "False/ParametersInvalid",
            "16 KiB",
        ),
        invalid(
            "parameters that do not fit",
            replace(json!({"parameters": {"strategy": "Hope"}})),
            "False/ParametersInvalid",
            "strategy",
        ),
        invalid(
            "parameters that nobody knows",
            replace(json!({"parameters": {"colour": "red"}})),
            "False/ParametersInvalid",
            "colour",
        ),
        invalid(
            "a deep parameter",
            replace(json!({"parameters": {"strategy": (0..60).fold(json!(1), |inner, _| json!([inner]))}})),
            "False/ParametersInvalid",
            "strategy",
        ),
        nobody("an action that nobody serves", "Explode", "Explode"),
        nobody("an action of 5,000 letters", &"A".repeat(5_000), "AAAA"),
        nobody("an action that clears the screen", "a\u{1b}[2J\nb", "Replace"),
        Misfit::new(
            "a job that begins in 68 years",
            Begin::Job(replace(json!({"operationDelaySeconds": i32::MAX, "activeDeadlineSeconds": 5}))),
            Told::Target("Failed/DeadlineExceeded"),
        ),
        Misfit::new(
            "a job that nobody can look after before it ends",
            Begin::Job(replace(json!({"TTLSecondsAfterFinished": 1, "targets": [{"name": "never"}]}))),
            Told::Event("TTL"),
        ),
        Misfit::new(
            "10,000 targets that are not there",
            Begin::Job(replace(
                json!({"targets": (0..10_000).map(|n| json!({"name": format!("gone-{n}")})).collect::<Vec<_>>()}),
            )),
            Told::Ends("Failed"),
        ),
        Misfit::new(
            "a job whose finalizer is a stranger's",
            Begin::Job({
                let mut data = replace(json!({"targets": [{"name": "never"}]}));
                if let Some(fields) = data.as_object_mut() {
                    fields.insert("metadata".to_owned(), json!({"finalizers": ["stranger.test/stays"]}));
                }
                data
            }),
            Told::Ends("Failed"),
        ),
        invalid(
            "a null of everything",
            json!({"spec": {"action": null, "targets": null, "parameters": null}}),
            "False/InvalidValue",
            "spec.action",
        ),
        Misfit::new(
            "parameters that are a list",
            Begin::Job(replace(json!({"parameters": [1]}))),
            Told::Refused("parameters"),
        ),
        Misfit::new(
            "targets that are a text",
            Begin::Job(replace(json!({"targets": "all"}))),
            Told::Refused("targets"),
        ),
        Misfit::new(
            "a failure policy that nobody knows",
            Begin::Job(replace(json!({"failurePolicy": {"type": "Hope"}}))),
            Told::Refused("failurePolicy.type"),
        ),
        Misfit::new(
            "fewer attempts than none",
            Begin::Job(replace(json!({"retryPolicy": {"limit": -1}}))),
            Told::Refused("retryPolicy.limit"),
        ),
        Misfit::new(
            "a pause that is a text",
            Begin::Job(replace(json!({"paused": "for a while"}))),
            Told::Refused("paused"),
        ),
        Misfit::new(
            "a job whose next attempt begins in 68 years",
            Begin::Job(json!({"spec": {
                "action": "Hostile", "targets": [{ "name": POD }], "parameters": {"do": "fail-in-operate"},
                "activeDeadlineSeconds": 5, "retryPolicy": {"limit": i32::MAX, "backoffSeconds": i32::MAX, "maxBackoffSeconds": i32::MAX},
            }})),
            Told::Target("Failed/DeadlineExceeded"),
        ),
        Misfit::new(
            "a partition that is a text",
            Begin::Job(replace(json!({"partition": "all"}))),
            Told::Refused("partition"),
        ),
    ]
}

/// Returns edits of a job in flight.
fn edits() -> Vec<Misfit> {
    let edit = |name: &str, spec: Value, told: Told| Misfit::new(name, Begin::Edit(spec), told);
    let changed = || Told::Condition("Valid", "False/ImmutableFieldChanged", "restore the original values");
    vec![
        edit("the action is another", json!({"action": "Replace"}), changed()),
        edit("the targets are others", json!({"targets": [{"name": "bystander"}]}), changed()),
        edit(
            "the targets are gone",
            json!({ "targets": null }),
            Told::Condition("Valid", "False/NoTargets", "spec.targets"),
        ),
        edit("the parameters are others", json!({"parameters": {"do": "trap-in-progress"}}), changed()),
        edit(
            "the time is over before it began",
            json!({"activeDeadlineSeconds": 1}),
            Told::Target("Failed/DeadlineExceeded"),
        ),
    ]
}

/// Returns all misfits of this module.
pub fn table() -> Vec<Misfit> {
    rules().into_iter().chain(asked()).chain(edits()).collect()
}
