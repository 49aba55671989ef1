//! Jobs as a flow builds them: A2, A3, A18 to A20.

use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::fixture::make::{flow, job, step};

fn pod<'a>(fixture: &'a Fixture, unit: &str) -> &'a Value {
    &fixture.object_of(unit)["spec"]["template"]["spec"]
}

#[test]
fn a_step_whose_job_would_have_more_than_128_kib_is_blocked_with_what_to_do() {
    let mut own = job();
    own["template"]["spec"]["containers"][0]["args"] = json!(["x".repeat(140 * 1024)]);
    let mut fixture = Fixture::flow(flow([json!({"name": "a", "jobTemplate": own})], json!({})));
    fixture.settle();
    assert_eq!((fixture.end_of("a").as_str(), fixture.created.len()), ("Blocked/TooLarge", 0));
    assert!(
        fixture.unit("a").message.contains("move scripts and data to a ConfigMap"),
        "{}",
        fixture.unit("a").message
    );
}

#[test]
fn an_equal_shared_volume_is_kept_once_and_another_one_blocks_until_it_is_renamed() {
    let mut own = job();
    own["template"]["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    let mounts = json!([{"name": "v", "mountPath": "/v"}]);
    let steps = [json!({"name": "a", "jobTemplate": own, "shareVolumeMounts": mounts})];
    let mut fixture = Fixture::flow(flow(steps.clone(), json!({"shareVolumes": [{"name": "v", "emptyDir": {}}]})));
    fixture.settle();
    assert_eq!(pod(&fixture, "a")["volumes"].as_array().unwrap().len(), 1);

    let mut fixture = Fixture::flow(flow(steps, json!({"shareVolumes": [{"name": "v", "hostPath": {"path": "/"}}]})));
    fixture.settle();
    assert_eq!((fixture.end_of("a").as_str(), fixture.created.len()), ("Blocked/VolumeConflict", 0));
    assert!(fixture.unit("a").message.contains("\"v\""));
    fixture.edit("/shareVolumes", json!([{"name": "w", "hostPath": {"path": "/"}}]));
    fixture.edit("/flows/0/shareVolumeMounts", json!([{"name": "w", "mountPath": "/w"}]));
    fixture.settle();
    assert_eq!(pod(&fixture, "a")["volumes"].as_array().unwrap().len(), 2);
}

#[test]
fn overrides_change_only_what_they_name_and_unknown_fields_survive() {
    let template = json!({"unheardOf": {"x": [1]}, "completions": 2, "template": {"metadata": {"labels": {"k": "v"}}, "spec": {"containers": [
        {"name": "c", "image": "i", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]}, {"name": "d", "image": "j"}]}}});
    let overrides = json!({"template": {"spec": {"containers": [{"name": "c", "image": "new", "env": [{"name": "B", "value": "2"}]}]}}});
    let mut fixture =
        Fixture::flow(flow([json!({"name": "a", "jobTemplateRef": "t", "overrides": overrides})], json!({})));
    fixture.add_template("t", "u/1", template.clone());
    fixture.settle();
    let mut wanted = template;
    wanted["template"]["spec"]["containers"][0]["image"] = "new".into();
    wanted["template"]["spec"]["containers"][0]["env"][1]["value"] = "2".into();
    wanted["template"]["spec"]["restartPolicy"] = "Never".into();
    wanted["backoffLimit"] = 0.into();
    assert_eq!(fixture.object_of("a")["spec"], wanted);
}

#[test]
fn ours_goes_on_the_job_and_never_into_the_pod_template() {
    let mut fixture = Fixture::flow(flow([step("a", &[], json!({}))], json!({"globalParams": {"labels": {"l": "1"}}})));
    fixture.settle();
    let object = fixture.object_of("a");
    assert_eq!(
        object["metadata"]["labels"],
        json!({"l": "1", "oarlock.dev/owner-kind": "JobFlow",
        "oarlock.dev/owner-uid": "f-uid-0000", "oarlock.dev/attempt": "0"})
    );
    assert_eq!(object["metadata"]["annotations"]["oarlock.dev/step"], "a");
    assert_eq!(object["metadata"]["annotations"]["oarlock.dev/revision"].as_str().unwrap().len(), 16);
    assert!(!object["spec"].to_string().contains("oarlock.dev"));
    let owner = &object["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["controller"], &owner["blockOwnerDeletion"], &owner["uid"]),
        (&json!(true), &json!(true), &json!("f-uid-0000"))
    );
}

#[test]
fn global_keys_of_the_host_mislead_nobody() {
    let own = json!({"oarlock.dev/step": "x", "oarlock.dev/node": "y", "createByJobTemplate": "n.t", "mine": "z"});
    let mut fixture = Fixture::flow(flow([step("a", &[], json!({}))], json!({"globalParams": {"annotations": own}})));
    fixture.settle();
    let annotations = &fixture.object_of("a")["metadata"]["annotations"];
    assert_eq!((&annotations["oarlock.dev/step"], &annotations["mine"]), (&json!("a"), &json!("z")));
    assert!(annotations["oarlock.dev/node"].is_null() && annotations["createByJobTemplate"].is_null(), "{annotations}");
    fixture.succeed("a");
    assert_eq!(fixture.state(), "Succeed");
}

#[test]
fn a_revision_that_no_builder_wrote_gets_into_no_status() {
    let mut fixture = Fixture::flow(flow([step("a", &[], json!({}))], json!({})));
    fixture.settle();
    let name = fixture.child_of("a");
    fixture.objects.get_mut(&name).unwrap()["metadata"]["annotations"]["oarlock.dev/revision"] =
        "x".repeat(200_000).into();
    fixture.succeed("a");
    assert!(fixture.parent.status.to_string().len() < 5_000);
}
