//! Examples of accepted and refused manifests.

use serde_json::{Value, json};

use super::*;
use crate::grant::Grant;

pub(crate) fn replace() -> Value {
    json!({"schema": 1, "name": "replace", "version": "0.1.0", "action": "Replace", "target": ["Pod"],
        "lifecycle": "Off", "exclusive": false,
        "reads": [{"apiVersion": "v1", "kind": "Pod", "fields": ["/status/conditions"], "reason": "to see that the new pod serves"},
                  {"apiVersion": "apps/v1", "kind": "ReplicaSet", "reason": "to find the new pod of a Deployment"}],
        "writes": [{"verb": "evict", "apiVersion": "v1", "kind": "Pod", "reason": "to replace pods"},
                   {"verb": "metadata", "apiVersion": "v1", "kind": "Pod", "labels": ["collaset.kusionstack.io/to-replace"],
                    "finalizers": ["finalizer.operationjob.kusionstack.io/replace-protected"], "reason": "to ask for a new pod"}],
        "tasks": [],
        "parameters": {"type": "object", "properties": {"strategy": {"enum": ["Auto", "CollaSet", "Evict"]}}, "additionalProperties": false},
        "limits": {"callMilliseconds": 50, "memoryMiB": 16}})
}

fn parse(document: &Value) -> Result<Manifest, ManifestError> {
    Manifest::parse(document.to_string().as_bytes())
}

fn with(field: &str, value: Value) -> Value {
    let mut document = replace();
    document[field] = value;
    document
}

/// Returns the message with its causes.
fn whole(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", whole(source)),
        None => error.to_string(),
    }
}

#[test]
fn the_manifest_of_the_documentation_is_read() {
    let manifest = parse(&replace()).unwrap();
    assert_eq!((manifest.name.as_str(), manifest.action.as_str()), ("replace", "Replace"));
    assert_eq!(manifest.limits.memory_mib, Some(16));
    assert!(manifest.takes(TargetKind::Pod) && !manifest.takes(TargetKind::Node));
    assert!(manifest.declares_kind(&Kind::new("apps/v1", "ReplicaSet")));
}

#[test]
fn a_declared_field_covers_what_is_below_it_and_nothing_beside_or_above_it() {
    let manifest = parse(&replace()).unwrap();
    let reads = |pointer| manifest.declares_read(&Kind::pod(), pointer);
    assert!(reads("/status/conditions") && reads("/status/conditions/0/type"));
    assert!(!reads("/status") && !reads("/status/conditionsX") && !reads("") && !reads("/spec"));
    assert!(!manifest.declares_read(&Kind::new("apps/v1", "ReplicaSet"), "/status/conditions"));
}

#[test]
fn parameters_are_held_against_the_schema_and_the_error_names_the_place() {
    let manifest = parse(&replace()).unwrap();
    assert_eq!(manifest.check_parameters(&json!({"strategy": "Evict"})), Ok(()));
    let error = manifest.check_parameters(&json!({"strategy": "Hope"})).unwrap_err();
    assert!(error.starts_with("spec.parameters/strategy: ") && error.contains("Hope"), "{error}");
    assert!(manifest.check_parameters(&json!({"other": 1})).is_err());
}

/// Returns the message that refuses a manifest.
fn refusal(document: &Value) -> String {
    whole(&parse(document).unwrap_err())
}

#[test]
fn a_schema_that_would_cost_the_host_its_memory_or_its_time_is_refused() {
    let patterns: Vec<Value> = (0..1_000).map(|number| json!({"pattern": format!("\\w{{150}}{number}")})).collect();
    assert_eq!(
        refusal(&with("parameters", json!({"allOf": patterns}))),
        "the manifest's `parameters` is refused: it has more than 32 patterns"
    );
    let wide = refusal(&with("parameters", json!({"pattern": "\\p{L}{500}"})));
    assert!(
        wide.ends_with("at `/pattern`: \"\\\\p{L}{500}\" is not a \"regex\", or one that takes more than 128 KiB"),
        "{wide}"
    );
    let doubling: serde_json::Map<String, Value> = (0..40)
        .map(|at| {
            let next = json!({"$ref": format!("#/$defs/a{}", at + 1)});
            (format!("a{at}"), json!({"anyOf": [next, next]}))
        })
        .chain([("a40".to_owned(), json!({"type": "string"}))])
        .collect();
    let doubling = json!({"$defs": doubling, "$ref": "#/$defs/a0"});
    assert!(refusal(&with("config", doubling)).contains("`$ref` is not taken: write out what it stands for"));
    let deep = (0..40).fold(json!({"type": "string"}), |inner, _| json!({"properties": {"x": inner}}));
    assert!(refusal(&with("parameters", deep)).contains("it is more than 32 levels deep"));
    let many: Vec<Value> = (0..5_000).map(|number| json!(number)).collect();
    assert!(refusal(&with("parameters", json!({"enum": many}))).contains("it has more than 2000 values"));
}

#[test]
fn a_parameter_may_have_the_name_of_a_keyword() {
    let named = |name: &str| json!({"properties": {name: {"type": "string"}}});
    for name in ["pattern", "$ref", "$dynamicRef"] {
        let manifest = parse(&with("parameters", named(name))).unwrap();
        assert_eq!(manifest.check_parameters(&json!({name: "x"})), Ok(()));
        assert!(manifest.check_parameters(&json!({name: 1})).is_err());
    }
}

#[test]
fn a_plugin_without_a_schema_takes_no_parameters() {
    let mut document = replace();
    document.as_object_mut().unwrap().remove("parameters");
    let manifest = parse(&document).unwrap();
    assert_eq!(manifest.check_parameters(&json!({})), Ok(()));
    assert!(manifest.check_parameters(&json!({"a": 1})).is_err());
}

#[test]
fn each_bad_field_is_named_with_its_fix() {
    let write = |verb: &str, more: Value| {
        let mut rule = json!({"verb": verb, "apiVersion": "v1", "kind": "Pod", "reason": "r"});
        rule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!([rule])
    };
    let read = |version: &str, kind: &str| json!([{"apiVersion": version, "kind": kind, "reason": "r"}]);
    let task = |name: &str, more: Value| {
        let mut rule = json!({"name": name, "reason": "r"});
        rule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!([rule])
    };
    let cases = [
        (with("schema", json!(2)), "schema 2"),
        (with("schema", json!("x")), "use a newer host"),
        (with("name", json!("Replace!")), "`name`"),
        (with("version", json!("one")), "unexpected character"),
        (with("action", json!("Re place")), "`action`"),
        (with("action", json!("")), "letters, digits"),
        (with("target", json!([])), "`target`"),
        (with("target", json!(["Service"])), "Service"),
        (with("lifecycle", json!("Maybe")), "Maybe"),
        (with("surprise", json!(1)), "surprise"),
        (with("parameters", json!({"type": 7})), "not a JSON Schema"),
        (with("parameters", json!({"$ref": "http://127.0.0.1:1/x"})), "`$ref` is not taken"),
        (with("reads", json!([{"apiVersion": "v1", "kind": "Pod"}])), "reads[0].reason"),
        (with("reads", json!([{"apiVersion": "v1", "kind": "*", "reason": "r"}])), "without a pattern"),
        (
            with("reads", json!([{"apiVersion": "v1", "kind": "Pod", "fields": ["status"], "reason": "r"}])),
            "JSON Pointer",
        ),
        (with("writes", write("explode", json!({}))), "explode"),
        (with("writes", write("metadata", json!({}))), "name the `labels`"),
        (with("writes", write("evict", json!({"labels": ["a"]}))), "belong to the verb `metadata`"),
        (with("writes", write("schedulable", json!({}))), "`schedulable` is for `Node` of `v1`"),
        (with("target", json!(["Pod", "Node"])), "add `Node` of `v1`"),
        (with("writes", write("evict", json!({"subresources": ["status"]}))), "belong to the verb `patch`"),
        (with("writes", write("patch", json!({"subresources": ["a\nb"]}))), "`writes[0].subresources[0]`"),
        (with("writes", write("patch", json!({"subresources": ["a/b"]}))), "`writes[0].subresources`"),
        (with("writes", write("patch", json!({"apiVersion": "v1/.."}))), "apiVersion"),
        (with("reads", read("apps/v1\n- x", "Pod")), "`reads[0].apiVersion` is refused: it has a control character"),
        (with("reads", read("apps/v1/..", "Pod")), "`reads[0].apiVersion`"),
        (with("reads", read("v1", "pod")), "`reads[0].kind`"),
        (with("description", json!("good\u{202e}bad")), "`description`"),
        (with("reads", read("v1", "Pod\u{1b}[2J")), "`reads[0].kind`"),
        (with("tasks", json!([{"name": "run-on-node"}])), "tasks[0]"),
        (with("tasks", json!([{"name": "run\non", "reason": "r"}])), "tasks[0]"),
        (with("tasks", task("run-on-node", json!({}))), "`builtins` or `scripts`"),
        (with("tasks", task("run-on-node", json!({"builtins": ["re*"]}))), "\"re*\" is no name of a command"),
        (with("tasks", task("check-pod", json!({"builtins": ["reboot"]}))), "belong to run-on-node"),
        (with("tasks", task("check-pod", json!({"scripts": true}))), "belong to run-on-node"),
        (with("tasks", task("run-on-node", json!({"scripts": true, "hostPaths": ["/data"]}))), "belong to check-pod"),
        (with("tasks", task("check-pod", json!({"hostPaths": ["/data/../etc"]}))), "is no directory of a node"),
        (with("tasks", task("check-pod", json!({"hostPaths": ["/data/*"]}))), "is no directory of a node"),
        (with("tasks", task("check-pod", json!({"hostPaths": ["/sys/class"]}))), "no check may see \"/sys/class\""),
        (with("tasks", task("check-pod", json!({"hostPaths": ["/", "/var"]}))), "no check may see \"/var\""),
        (with("tasks", task("check-pod", json!({"capabilities": ["SYS_ADMIN"]}))), "the capability \"SYS_ADMIN\""),
        (with("tasks", task("run-on-node", json!({"scripts": true, "capabilities": ["X"]}))), "belong to check-pod"),
        (json!([1]), "not a JSON object"),
    ];
    for (document, expected) in cases {
        let error = parse(&document).unwrap_err();
        assert!(whole(&error).contains(expected), "expected {expected:?} in {:?}", whole(&error));
    }
}

#[test]
fn a_manifest_of_more_than_64_kib_is_refused_before_it_is_parsed() {
    let error = Manifest::parse(&vec![b'['; MAX_BYTES + 1]).unwrap_err();
    assert!(matches!(error, ManifestError::TooLarge { bytes } if bytes == MAX_BYTES + 1));
}

#[test]
fn deeply_nested_json_is_an_error_and_not_an_overflow() {
    assert!(matches!(Manifest::parse(&vec![b'['; MAX_BYTES]), Err(ManifestError::NotJson { .. })));
}

#[test]
fn the_cause_of_a_refusal_names_line_and_column() {
    let refused = |text: &str| crate::causes::causes(&Manifest::parse(text.as_bytes()).unwrap_err());
    let broken = refused("{\"schema\": 1,\n \"name\": \"a\",\n}");
    assert!(broken.contains("line 3 column 1"), "{broken}");
    let head = "{\"schema\": 1, \"name\": \"a\", \"version\": \"1.0.0\", \"action\": \"A\",";
    let unknown = refused(&format!("{head}\n \"target\": [\"Pod\"], \"colour\": 1}}"));
    assert!(unknown.contains("unknown field `colour`") && unknown.contains("line 2 column 28"), "{unknown}");
}

/// Returns a manifest with every field.
fn every_field() -> Value {
    json!({"$schema": "./manifest.schema.json", "schema": 1, "name": "a", "version": "1.0.0", "action": "A", "description": "d",
        "authors": ["a"], "license": "l", "source": "s", "target": ["Pod", "Node"], "lifecycle": "On", "exclusive": true,
        "denied": ["files", "sockets"],
        "reads": [{"apiVersion": "v1", "kind": "Pod", "fields": ["/spec/*"], "optional": true, "reason": "r"},
            {"apiVersion": "v1", "kind": "Node", "reason": "r"}],
        "writes": [{"verb": "metadata", "apiVersion": "v1", "kind": "Pod", "labels": ["a/*"], "annotations": ["a"],
                "finalizers": ["a"], "reason": "r"},
            {"verb": "patch", "apiVersion": "v1", "kind": "Pod", "subresources": ["status"], "reason": "r"}],
        "tasks": [{"name": "run-on-node", "builtins": ["reboot"], "scripts": true, "reason": "r"},
            {"name": "copy-image", "registries": ["docker.io/library", "*"], "authHosts": ["auth.docker.io"], "reason": "r"},
            {"name": "check-pod", "hostPaths": ["/data", "/"], "capabilities": ["DAC_READ_SEARCH"],
                "reason": "r"}], "parameters": {"type": "object"}, "config": {"type": "object"},
        "limits": {"callMilliseconds": 1, "memoryMiB": 1, "outputBytes": 1, "logBytes": 1, "hostCalls": 1, "targetsInFlight": 1}})
}

/// Returns the names of the fields in the schema of an object, or of the objects of a list.
fn fields(schema: &Value) -> std::collections::BTreeSet<String> {
    let schema = schema.get("items").unwrap_or(schema);
    schema["properties"].as_object().unwrap().keys().cloned().collect()
}

#[test]
fn the_schema_for_editors_has_the_fields_of_a_manifest_and_accepts_what_is_one() {
    let schema: Value = serde_json::from_str(JSON_SCHEMA).unwrap();
    let validator = Schema::compile(Some(&schema)).unwrap();
    let whole = every_field();
    Manifest::parse(whole.to_string().as_bytes()).unwrap();
    validator.check("the manifest", &whole).unwrap();
    // Each field of the parser is a field of the schema. A missing field would appear in the parser's error as an expected field.
    let known = |place: &Value| place.as_object().unwrap().keys().cloned().collect::<std::collections::BTreeSet<_>>();
    assert_eq!(fields(&schema), known(&whole));
    assert_eq!(fields(&schema["properties"]["limits"]), known(&whole["limits"]));
    for (list, of) in [("reads", 2), ("writes", 2), ("tasks", 3)] {
        let rules = whole[list].as_array().unwrap();
        assert_eq!(rules.len(), of);
        assert_eq!(fields(&schema["properties"][list]), rules.iter().flat_map(known).collect(), "{list}");
    }
    let refused = |edit: fn(&mut Value)| {
        let mut manifest = whole.clone();
        edit(&mut manifest);
        assert!(validator.check("the manifest", &manifest).is_err(), "{manifest}");
        assert!(Manifest::parse(manifest.to_string().as_bytes()).is_err(), "{manifest}");
    };
    refused(|manifest| manifest["colour"] = json!(1));
    refused(|manifest| manifest["limits"] = json!({"maxDeadlineSeconds": 60}));
    refused(|manifest| manifest["target"] = json!([]));
    refused(|manifest| manifest["reads"][0]["reason"] = json!(""));
    refused(|manifest| manifest["writes"][0]["lables"] = json!([]));
}

#[test]
fn the_parser_expects_no_field_that_the_schema_for_editors_lacks() {
    let schema: Value = serde_json::from_str(JSON_SCHEMA).unwrap();
    let mut manifest = every_field();
    manifest["colour"] = json!(1);
    let error = crate::causes::causes(&Manifest::parse(manifest.to_string().as_bytes()).unwrap_err());
    let expected: std::collections::BTreeSet<String> = error.split('`').skip(3).step_by(2).map(str::to_owned).collect();
    assert_eq!(expected, fields(&schema), "{error}");
}

#[test]
fn a_plugin_can_lack_a_kind_of_which_each_read_is_optional() {
    let read = |kind: &str, optional: bool| json!({"apiVersion": "a.io/v1", "kind": kind, "optional": optional, "reason": "r"});
    let mut manifest = every_field();
    manifest["target"] = json!(["Pod"]);
    manifest["reads"] = json!([read("A", true), read("B", true), read("B", false), read("C", false)]);
    let manifest = Manifest::parse(manifest.to_string().as_bytes()).unwrap();
    let lacked: Vec<&str> =
        ["A", "B", "C", "D"].into_iter().filter(|kind| manifest.can_lack(&Kind::new("a.io/v1", *kind))).collect();
    assert_eq!(lacked, ["A"]);
    assert!(Grant::of_all(&manifest).reads.iter().all(|rule| !rule.optional), "a grant has nothing to say of it");
}
