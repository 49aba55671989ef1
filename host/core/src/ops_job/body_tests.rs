//! Tests of `body`.

use super::*;

fn read(body: &str, mode: FieldValidation) -> Result<Body, String> {
    Body::read(body.as_bytes(), mode, Defaults::default()).map_err(|refusal| {
        assert_eq!(refusal.code.status(), 400, "{}", refusal.message);
        refusal.message
    })
}

fn strict(body: &str) -> Result<Body, String> {
    read(body, FieldValidation::Strict)
}

/// Returns a reboot with additional fields.
fn reboot(more: &str) -> String {
    format!(r#"{{"name": "a", "type": "reboot", "inputs": [{{"name": "node", "value": "n"}}] {more}}}"#)
}

/// Returns a preflight with additional fields.
fn preflight(more: &str) -> String {
    let inputs = r#"[{"name": "cluster", "value": "local"}]"#;
    format!(
        r#"{{"name": "a", "type": "preflight", "inputs": {inputs}, "image": "busybox", "entryPoint": "dHJ1ZQ==" {more}}}"#
    )
}

#[test]
fn the_documented_bodies_are_read() {
    let addon = r#"{"name": "addon-upgrade", "type": "addon", "inputs": [{"name": "addon.template", "value": "disable-os-upgrade"},
        {"name": "workspace", "value": "prod-cluster-ai-team"}], "type": "addon", "batchCount": 2, "availableRatio": 1.0,
        "securityUpgrade": true, "timeoutSecond": 1800, "excludedNodes": ["node-id1"], "ttlSecondsAfterFinished": 600,
        "isTolerateAll": false}"#;
    let read = strict(addon).unwrap();
    assert_eq!(
        (read.spec["availableRatio"].as_str(), read.spec["securityUpgrade"].as_bool()),
        (Some("1.0"), Some(true))
    );
    let check = r#"{"name": "preflight-check", "type": "preflight", "inputs": [{"name": "cluster", "value": "prod-cluster"}],
        "resource": {"cpu": "8", "memory": "32Gi"}, "image": "harbor.example.com/tools/preflight:latest",
        "entryPoint": "YmFzaCAtYyAnZWNobyAnJw==", "env": {"CHECK_DISK": "true"}, "hostpath": ["/var/log"],
        "ttlSecondsAfterFinished": 3600, "timeoutSecond": 7200, "isTolerateAll": true, "hostpath": ["/nfs_models"]}"#;
    let read = strict(check).unwrap();
    assert_eq!(read.spec["hostpath"], json!(["/var/log", "/nfs_models"]));
    assert_eq!((read.name.as_str(), read.spec["jobName"].as_str()), ("preflight-check", Some("preflight-check")));
    for kind in ["dumplog", "exportimage"] {
        let body = format!(
            r#"{{"name": "x", "type": "{kind}", "inputs": [{{"name": "workload", "value": "my-training-job-abc123"}}]}}"#
        );
        strict(&body).unwrap();
    }
}

#[test]
fn what_is_wrong_is_named_with_its_field_and_the_nearest_word() {
    let cases = [
        ("[]".to_owned(), "the body must be a JSON object"),
        ("{".to_owned(), "the body is no JSON: EOF"),
        ("{} {}".to_owned(), "the body is no JSON: trailing"),
        ("{}".to_owned(), "type: required, one of addon,"),
        (
            reboot("").replace("\"reboot\"", "\"Reboot\""),
            "type: one of addon, preflight, dumplog, reboot, exportimage, and is \"Reboot\"; did you mean reboot?",
        ),
        (reboot("").replace("\"reboot\"", "\"prewarm\""), "type: one of"),
        (reboot("").replace("\"reboot\"", "7"), "type: text"),
        (reboot("").replace("\"name\": \"a\",", ""), "name: must have 1 to 256 bytes"),
        (reboot("").replace("\"a\"", "\"---\""), "name: must have 1 to"),
        (reboot("").replace("\"a\"", &format!("\"{}\"", "a".repeat(257))), "name: must have 1 to"),
        (reboot(r#", "batchcounts": 2"#), "batchcounts: no field of an OpsJob; did you mean batchCount?"),
        (reboot(r#", "image": "busybox""#), "image: for preflight, and the type is reboot"),
        (reboot(r#", "securityOperation": true"#), "securityOperation: for addon, preflight, and"),
        (reboot(r#", "batchCount": 2, "batchCount": 3"#), "batchCount: given twice"),
        (reboot(r#", "batchCount": "2""#), "batchCount: a whole number"),
        (reboot(r#", "batchCount": 2.0"#), "batchCount: a whole number"),
        (reboot(r#", "batchCount": 1e3"#), "batchCount: a whole number"),
        (reboot(r#", "batchCount": -1"#), "batchCount: 0 or more"),
        (reboot(r#", "timeoutSecond": 2147483648"#), "timeoutSecond: a whole number of 32 bits"),
        (reboot(r#", "availableRatio": 1.1"#), "availableRatio: a number above 0"),
        (reboot(r#", "availableRatio": -0.1"#), "availableRatio: a number above 0"),
        (reboot(r#", "availableRatio": 9e-1"#), "availableRatio: a number above 0"),
        (reboot(r#", "availableRatio": 0.1234567890"#), "availableRatio: a number above 0"),
        (reboot(r#", "availableRatio": "0.9""#), "availableRatio: a number above 0"),
        (reboot(r#", "inputs": "x""#), "inputs: given twice"),
        (reboot("").replace("[{", "{\"x\": {").replace("}]", "}}"), "inputs: a list of objects"),
        (reboot("").replace("\"node\"", "\"foo\""), "inputs[0].name: foo is none of"),
        (reboot("").replace("\"value\": \"n\"", "\"value\": \"\""), "inputs[0].value: must have 1 to"),
        (reboot("").replace(", \"value\": \"n\"", ""), "inputs[0].value: required"),
        (reboot("").replace("\"value\": \"n\"", "\"value\": \"n\", \"x\": 1"), "inputs[0].x: an input has"),
        (reboot("").replace("[{\"name\": \"node\", \"value\": \"n\"}]", "[]"), "inputs: 1 to 5000"),
        (preflight("").replace("\"image\": \"busybox\",", ""), "image: a preflight needs the image of the check"),
        (preflight("").replace("busybox", "a/B"), "image: a/B is no reference"),
        (preflight("").replace("dHJ1ZQ==", "%"), "entryPoint: a preflight needs a script"),
        (preflight(r#", "resource": {"cpu": "lots"}"#), "resource.cpu: lots is no amount"),
        (preflight(r#", "resource": {"cpu": "-1"}"#), "resource.cpu: -1 is no amount"),
        (preflight(r#", "resource": {"cpus": "1"}"#), "resource.cpus: no field of a resource; did you mean cpu?"),
        (preflight(r#", "resource": {"replica": 2}, "replica": 3"#), "replica: differs from resource.replica"),
        (preflight(r#", "securityUpgrade": true, "securityOperation": true, "env": {"A": 1}"#), "env.A: text"),
        (preflight(r#", "env": {"OARLOCK_X": "1"}"#), "env.OARLOCK_X: text by name"),
        (preflight(r#", "hostpath": ["rel"]"#), "hostpath: absolute"),
        (preflight(r#", "hostpath": [1]"#), "hostpath[0]: text"),
    ];
    for (body, words) in cases {
        let told = strict(&body).expect_err(&body);
        assert!(told.starts_with(words), "{body}\n{told}\n{words}");
    }
}

#[test]
fn zeros_and_null_of_what_another_type_has_are_as_absent() {
    let zeros = r#", "image": "", "env": {}, "hostpath": [], "replica": 0, "securityUpgrade": false, "resource": null, "entryPoint": """#;
    let read = strict(&reboot(zeros)).unwrap();
    assert_eq!(read.spec.keys().collect::<Vec<_>>(), ["type", "inputs", "jobName"]);
    let own = r#", "batchCount": null, "timeoutSecond": 0, "excludedNodes": null, "isTolerateAll": false"#;
    assert_eq!(strict(&reboot(own)).unwrap().asked.batch, Some(1));
}

#[test]
fn aliases_of_one_value_are_one_field() {
    let read = strict(&preflight(r#", "resource": {"replica": 2, "cpu": "1"}, "securityOperation": true"#)).unwrap();
    assert_eq!((&read.spec["replica"], &read.spec["securityUpgrade"]), (&json!(2), &json!(true)));
    assert_eq!(read.spec["resource"], json!({"cpu": "1"}));
}

#[test]
fn without_strictness_what_is_not_known_is_ignored_and_told_where_that_is_asked_for() {
    let body = reboot(r#", "batchcounts": 2, "batchCount": 2, "batchCount": 3, "image": "busybox""#);
    let warned = read(&body, FieldValidation::Warn).unwrap();
    assert_eq!((warned.ignored.len(), warned.asked.batch), (3, Some(3)), "{:?}", warned.ignored);
    let ignored = read(&body, FieldValidation::Ignore).unwrap();
    assert_eq!((ignored.ignored.len(), &ignored.spec), (0, &warned.spec));
    assert!(read(&reboot(r#", "batchCount": "2""#), FieldValidation::Ignore).is_err(), "a wrong type is wrong");
}

#[test]
fn very_many_fields_cost_no_more_than_their_bytes() {
    let keys = |many: usize| -> String { (0..many).map(|key| format!(r#", "{key}": 1"#)).collect() };
    for mode in [FieldValidation::Strict, FieldValidation::Warn, FieldValidation::Ignore] {
        assert!(read(&reboot(&keys(20_000)), mode).is_err());
        let many = Body::read(reboot(&keys(100_000)).as_bytes(), mode, Defaults::default());
        assert_eq!(many.unwrap_err().code, Code::TooLarge);
    }
    let variables = format!(r#", "env": {{"a": "b"{}}}"#, keys(20_000).replace(": 1", r#": "1""#));
    assert!(strict(&preflight(&variables)).unwrap_err().contains("more than 1000 fields"));
}

#[test]
fn who_has_no_right_in_the_whole_cluster_sends_less_and_is_told_who_may_send_more() {
    let within = |body: &str| {
        Body::read_within(BodyBounds::OTHERS, body.as_bytes(), FieldValidation::Ignore, Defaults::default())
    };
    let filled = |bytes: usize| format!("{}{}", reboot(""), " ".repeat(bytes - reboot("").len()));
    assert!(within(&filled(64 * 1024)).is_ok());
    let told = within(&filled(64 * 1024 + 1)).unwrap_err();
    assert_eq!(told.code, Code::TooLarge);
    assert!(
        told.message.contains("65536 bytes")
            && told.message.contains("in the whole cluster may send more, up to 2097152"),
        "{}",
        told.message
    );
    let values = |many: usize| reboot(&format!(r#", "excludedNodes": ["a"{}]"#, r#","a""#.repeat(many)));
    assert!(within(&values(1_990)).is_ok());
    let told = within(&values(1_999)).unwrap_err();
    assert!(told.code == Code::TooLarge && told.message.contains("more than 2000 values"), "{}", told.message);
    assert!(strict(&values(1_999)).is_ok(), "rights in the whole cluster");
}

#[test]
fn the_largest_job_that_is_documented_has_place() {
    let inputs: Vec<String> = (0..5_000).map(|node| format!(r#"{{"name":"node","value":"node-{node}"}}"#)).collect();
    let excluded: Vec<String> = (0..5_000).map(|node| format!("\"other-{node}\"")).collect();
    let body = format!(
        r#"{{"name": "a", "type": "reboot", "inputs": [{}], "excludedNodes": [{}]}}"#,
        inputs.join(","),
        excluded.join(",")
    );
    assert_eq!(strict(&body).unwrap().asked.kind, OpsType::Reboot);
}

#[test]
fn a_body_has_the_digest_of_what_it_says_in_whatever_order() {
    let one = strict(r#"{"name": "a", "type": "reboot", "inputs": [{"name": "node", "value": "n"}]}"#).unwrap();
    let same = strict(r#"{"inputs": [{"value": "n", "name": "node"}], "type": "reboot", "name": "a"}"#).unwrap();
    assert_eq!(one.digest, same.digest);
    assert_ne!(one.digest, strict(&reboot(r#", "batchCount": 2"#)).unwrap().digest);
}

#[test]
fn names_of_fields_are_read_in_any_case_of_ascii_and_those_of_variables_as_they_are() {
    let body = r#"{"Name": "a", "TYPE": "preflight", "Inputs": [{"Name": "Cluster", "VALUE": "local"}], "IMAGE": "busybox",
        "EntryPoint": "dHJ1ZQ==", "SecurityOperation": true, "Resource": {"CPU": "1", "Replica": 2}, "BATCHCOUNT": 3,
        "Env": {"Name": "x", "name": "y"}, "hostPath": ["/a"], "HOSTPATH": ["/b"]}"#;
    let read = strict(body).unwrap();
    assert_eq!((read.name.as_str(), read.asked.batch, read.spec["replica"].as_i64()), ("a", Some(3), Some(2)));
    assert_eq!((&read.spec["securityUpgrade"], &read.spec["hostpath"]), (&json!(true), &json!(["/a", "/b"])));
    assert_eq!((&read.spec["env"], &read.spec["resource"]), (&json!({"Name": "x", "name": "y"}), &json!({"cpu": "1"})));
    let twice = strict(&reboot(r#", "batchCount": 2, "BatchCount": 3"#)).unwrap_err();
    assert!(twice.starts_with("batchCount: given twice"), "{twice}");
}

#[test]
fn inputs_that_another_client_names_otherwise_are_those_that_are_known() {
    let input = |kind: &str, name: &str| {
        let body = json!({"name": "a", "type": kind, "inputs": [{"name": name, "value": "t"}, {"name": "label", "value": "x"},
            {"name": if kind == "addon" { "node" } else { "label" }, "value": "n"}]});
        strict(&body.to_string()).unwrap().spec["inputs"][0]["name"].clone()
    };
    assert_eq!(input("exportimage", "workloadId"), "workload");
    assert_eq!(input("addon", "addon_template"), "addon.template");
    assert_eq!(input("addon", " Node_Template "), "node.template");
}

#[test]
fn a_preflight_is_kept_to_its_workspace_id_beside_its_inputs() {
    let inputs = |more: &str| strict(&preflight(more)).unwrap().spec["inputs"].clone();
    let cluster = json!({"name": "cluster", "value": "local"});
    let team = json!({"name": "workspace", "value": "team-a"});
    assert_eq!(inputs(r#", "workspaceId": """#), json!([cluster]));
    assert_eq!(inputs(r#", "workspaceId": null"#), json!([cluster]));
    assert_eq!(inputs(r#", "workspaceID": "team-a""#), json!([cluster, team]));
    let read = strict(&preflight(r#", "workspaceId": "team-a""#)).unwrap();
    assert_eq!(read.asked.scope.workspace.as_deref(), Some("team-a"));
    let with_input = |value: &str| {
        let more = format!(r#"}}, {{"name": "workspace", "value": "{value}"}}]"#);
        preflight(r#", "workspaceId": "team-a""#).replace("}]", &more)
    };
    assert_eq!(strict(&with_input("team-a")).unwrap().spec["inputs"], json!([cluster, team]));
    assert!(strict(&with_input("team-b")).unwrap_err().starts_with("workspaceId: differs from the input"));
    assert!(strict(&preflight(r#", "workspaceId": 7"#)).unwrap_err().starts_with("workspaceId: text"));
    let without = preflight(r#", "workspaceId": "team-a""#).replace(r#"{"name": "cluster", "value": "local"}"#, "");
    assert!(strict(&without).unwrap_err().starts_with("inputs: 1 to"), "{without}");
}

#[test]
fn no_mode_ignores_what_a_client_takes_for_a_selector() {
    let other = r#"[{"name": "node", "value": "m"}]"#;
    for body in [
        reboot(r#", "workspaceId": "team-a""#),
        reboot(r#", "workspace": "team-a""#),
        reboot(r#", "workspace_id": "team-a""#),
        reboot(r#", "nodes": ["a"]"#),
        reboot(r#", "clusterId": "a""#),
        reboot(r#", "excludedNode": ["a"]"#),
        reboot(&format!(r#", "inputs": {other}"#)),
        preflight(&format!(r#", "Inputs": {other}"#)),
        preflight(r#", "workspaceId": "a", "workspaceid": "b""#),
        reboot("").replace(r#""value": "n""#, r#""value": "n", "value": "m""#),
    ] {
        for mode in [FieldValidation::Strict, FieldValidation::Warn, FieldValidation::Ignore] {
            assert!(read(&body, mode).is_err(), "{mode:?}: {body}");
        }
    }
    let zeros = r#", "workspaceId": "", "nodes": [], "workspace": null"#;
    assert_eq!(read(&reboot(zeros), FieldValidation::Ignore).unwrap().spec["inputs"].as_array().map(Vec::len), Some(1));
    assert!(strict(&reboot(r#", "workspaceId": """#)).is_ok(), "what is empty is absent");
}

#[test]
fn a_name_has_any_script_and_shows_something() {
    let named = |name: &str| strict(&reboot("").replacen("\"a\"", &json!(name).to_string(), 1));
    for name in
        ["\u{91cd}\u{542f}", "\u{627}\u{644}\u{639}", "\u{1f680}", "e\u{301}", "\u{202e}abc", "\u{661}", "\u{2603}"]
    {
        assert_eq!(named(name).unwrap().spec["jobName"], name);
    }
    for name in ["", "---", " ", "\u{200b}", "\u{feff}\u{200f}", "\u{3000}", "\u{e0020}", "\u{3164}", "\u{7}"] {
        assert!(named(name).unwrap_err().starts_with("name: must have 1 to 256 bytes"), "{name:?}");
    }
    assert!(named(&"\u{91cd}".repeat(86)).is_err(), "258 bytes");
}
