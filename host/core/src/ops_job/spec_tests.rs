//! Tests of `spec`.

use serde_json::json;

use super::*;
use crate::object::own::OPS_POD_ACTIONS;
use crate::requests::scripts::sha256;

fn read(spec: &Value) -> Result<OpsSpec, String> {
    OpsSpec::read(spec, Defaults::default()).map_err(|broken| broken.message())
}

fn with(mut spec: Value, more: &Value) -> Value {
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec
}

/// Returns one of the two documented bodies of this version, as a resource.
fn reboot() -> Value {
    json!({"type": "reboot", "inputs": [{"name": "node", "value": "gpu-node-001"}], "ttlSecondsAfterFinished": 3600})
}

fn preflight() -> Value {
    json!({"type": "preflight", "inputs": [{"name": "cluster", "value": "prod-cluster"}],
        "resource": {"cpu": "8", "memory": "32Gi"}, "image": "harbor.example.com/tools/preflight:latest",
        "entryPoint": "YmFzaCAtYyAnZWNobyAnJw==", "env": {"CHECK_DISK": "true"}, "hostpath": ["/var/log", "/nfs_models/"],
        "ttlSecondsAfterFinished": 3600, "timeoutSecond": 7200, "isTolerateAll": true})
}

#[test]
fn the_documented_reboot_goes_one_node_after_the_other_and_all_have_to_succeed() {
    let spec = read(&reboot()).unwrap();
    assert_eq!((spec.kind, spec.batch, spec.timeout), (OpsType::Reboot, Some(1), None));
    assert_eq!(spec.scope.nodes, ["gpu-node-001"]);
    assert_eq!((spec.ratio.tolerated(10), spec.parameters.len()), (0, 0));
    let drained = json!({"inputs": [{"name": " Node ", "value": "a"}, {"name": "drain", "value": "true"}]});
    assert_eq!(read(&with(reboot(), &drained)).unwrap().parameters["drain"], true);
}

#[test]
fn the_documented_preflight_checks_all_nodes_at_once() {
    let spec = read(&preflight()).unwrap();
    assert_eq!((spec.batch, spec.timeout, spec.filters.unschedulable), (None, Some(7_200), Extent::Never));
    assert_eq!(
        Value::Object(spec.parameters),
        json!({"image": "harbor.example.com/tools/preflight:latest", "script": {"sha256": sha256("bash -c 'echo ''")},
            "env": {"CHECK_DISK": "true"}, "hostPaths": ["/nfs_models", "/var/log"], "tolerateAll": true,
            "resources": {"cpu": "8", "memory": "32Gi"}})
    );
}

#[test]
fn what_breaks_a_rule_is_named_with_its_field_and_the_rule() {
    let input = |name: &str, value: &str| json!({"inputs": [{"name": name, "value": value}]});
    let twice = json!({"inputs": [{"name": "cluster", "value": "a"}, {"name": "cluster", "value": "a"}]});
    let cases = [
        (with(reboot(), &json!({"type": "Reboot"})), "spec.type: one of addon,"),
        (with(reboot(), &json!({"type": "dumplog"})), "spec.inputs: dumplog needs exactly one workload"),
        (
            with(
                reboot(),
                &json!({"inputs": [{"name": "drain", "value": "true"}, {"name": "drain", "value": "false"}]}),
            ),
            "spec.inputs[1]: one drain at most",
        ),
        (with(preflight(), &json!({"env": {"A": "a\u{0}"}})), "spec.env.A: text by name, without NUL"),
        (
            with(json!({"type": "exportimage"}), &input("container", "a/b")),
            "spec.inputs[0].value: a/b is no name of a container",
        ),
        (
            with(json!({"type": "exportimage", "pullSecrets": [{"name": "a"}]}), &input("workload", "a/pod/b")),
            "spec.pullSecrets: at most 4 names of Secrets",
        ),
        (with(reboot(), &json!({"inputs": []})), "spec.inputs: 1 to 5000"),
        (
            with(reboot(), &json!({"inputs": vec![json!({"name": "workload", "value": "a/pod/b"}); 5]})),
            "spec.inputs: at most 4 workloads",
        ),
        (
            with(reboot(), &json!({"securityUpgrade": true})),
            "spec.securityUpgrade: for addon, preflight, and the type is reboot",
        ),
        (with(reboot(), &json!({"image": "i"})), "spec.image: for preflight, and"),
        (with(reboot(), &json!({"replica": 1})), "spec.replica: for preflight, and"),
        (with(reboot(), &input("foo", "x")), "spec.inputs[0].name: foo is none of node,"),
        (with(reboot(), &input("image", "x")), "spec.inputs[0].name: image is added by the host"),
        (with(reboot(), &input("node", "")), "spec.inputs[0].value: must have 1 to 65536 bytes"),
        (with(reboot(), &input("node", "a\0")), "spec.inputs[0].value: must have 1 to"),
        (with(reboot(), &input("drain", "true")), "spec.inputs: give at least one of node,"),
        (with(reboot(), &input("drain", "maybe")), "spec.inputs[0]: drain is true or false"),
        (with(preflight(), &input("drain", "true")), "spec.inputs[0].name: drain is for reboot"),
        (with(reboot(), &twice), "spec.inputs[1]: one cluster at most"),
        (with(reboot(), &json!({"timeoutSecond": 1.5})), "spec.timeoutSecond: a whole number"),
        (with(reboot(), &json!({"timeoutSecond": 3_000_000_000_i64})), "spec.timeoutSecond: a whole number"),
        (with(reboot(), &json!({"batchCount": -1})), "spec.batchCount: 0 or more"),
        (with(reboot(), &json!({"availableRatio": 0.9})), "spec.availableRatio: a decimal number as text"),
        (with(reboot(), &json!({"availableRatio": "1.1"})), "spec.availableRatio: a number above 0"),
        (with(preflight(), &json!({"image": ""})), "spec.image: a preflight needs the image"),
        (with(preflight(), &json!({"entryPoint": "%%"})), "spec.entryPoint: a preflight needs a script"),
        (with(preflight(), &json!({"entryPoint": ""})), "spec.entryPoint: a preflight needs a script"),
        (with(preflight(), &json!({"env": {"A": 1}})), "spec.env.A: text"),
        (with(preflight(), &json!({"env": {"OARLOCK_X": "1"}})), "spec.env.OARLOCK_X: text"),
        (with(preflight(), &json!({"hostpath": ["rel"]})), "spec.hostpath: absolute"),
        (with(preflight(), &json!({"hostpath": ["/a/../b"]})), "spec.hostpath: absolute"),
        (with(preflight(), &json!({"resource": {"gpu": "lots"}})), "spec.resource.gpu: a number"),
        (with(preflight(), &json!({"resource": {"disk": "1"}})), "spec.resource.disk: none of"),
    ];
    for (spec, words) in cases {
        let told = read(&spec).unwrap_err();
        assert!(told.starts_with(words), "{told}");
    }
}

#[test]
fn zero_and_null_are_as_absent() {
    let none = json!({"image": "", "env": {}, "hostpath": [], "replica": 0, "securityUpgrade": false, "batchCount": 0, "availableRatio": null, "timeoutSecond": 0, "ttlSecondsAfterFinished": -1});
    let spec = read(&with(reboot(), &none)).unwrap();
    assert_eq!((spec.batch, spec.ratio, spec.timeout), (Some(1), Ratio::default(), None));
    assert_eq!(time_to_live(&json!({"ttlSecondsAfterFinished": -1}), Defaults::default()), None);
}

#[test]
fn types_for_pods_are_what_flows_may_not_do() {
    let of_pods = OpsType::ALL.into_iter().filter(|kind| !kind.is_for_nodes()).map(OpsType::word);
    assert_eq!(of_pods.collect::<Vec<_>>(), OPS_POD_ACTIONS);
}
