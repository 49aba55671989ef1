//! The product's own definitions and admission policy on the in-memory API, enforced as by a real server.

use kube::{
    Api, Client,
    api::{Api as KubeApi, DynamicObject, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use oarlock_sim::{Cluster, Options};
use serde_json::{Value, json};

fn resource(group: &str, version: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

async fn install(client: &Client) {
    let policies = oarlock_api::ADMISSION.replace("OARLOCK_GRANTED", "{}");
    let documents = oarlock_api::CRDS.iter().copied().chain(policies.split("\n---"));
    for text in documents {
        let object: DynamicObject = serde_saphyr::from_str(text).unwrap();
        let types = object.types.clone().unwrap();
        let (group, version) = types.api_version.split_once('/').unwrap();
        let plural = match types.kind.as_str() {
            "ValidatingAdmissionPolicy" => "validatingadmissionpolicies".to_owned(),
            kind => format!("{}s", kind.to_lowercase()),
        };
        let resource = ApiResource { plural, ..resource(group, version, &types.kind) };
        Api::<DynamicObject>::all_with(client.clone(), &resource)
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
    }
}

async fn jobs() -> KubeApi<DynamicObject> {
    let client = Client::new(Cluster::new(Options::default()).service(), "default");
    install(&client).await;
    Api::default_namespaced_with(client, &resource("apps.kusionstack.io", "v1alpha1", "OperationJob"))
}

fn job(name: &str, spec: Value) -> DynamicObject {
    let job = json!({"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob", "metadata": {"name": name}, "spec": spec});
    serde_json::from_value(job).unwrap()
}

async fn refusal(jobs: &KubeApi<DynamicObject>, spec: Value) -> (u16, String) {
    match jobs.create(&PostParams::default(), &job("x", spec)).await.unwrap_err() {
        kube::Error::Api(status) => (status.code, status.message),
        other => panic!("not a Status: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn defaults_are_filled_in_also_for_null_and_unknown_fields_are_dropped() {
    let jobs = jobs().await;
    let spec = json!({"action": "Replace", "targets": [{"name": "p1", "nope": 1}], "activeDeadlineSeconds": null, "partition": null});
    let made = jobs.create(&PostParams::default(), &job("x", spec)).await.unwrap();
    let wanted = json!({"action": "Replace", "targets": [{"name": "p1"}], "activeDeadlineSeconds": 10800, "TTLSecondsAfterFinished": 1800});
    assert_eq!(made.data["spec"], wanted);
    assert_eq!(made.metadata.generation, Some(1));
    assert!(made.data.get("status").is_none());
}

#[tokio::test(start_paused = true)]
async fn the_schema_refuses_wrong_types_by_field() {
    let jobs = jobs().await;
    let (code, message) = refusal(
        &jobs,
        json!({"action": "Replace", "targets": [{"name": "p"}], "partition": "1", "targetKind": "Tree"}),
    )
    .await;
    assert_eq!(code, 422);
    assert_eq!(
        message,
        "OperationJob.apps.kusionstack.io \"x\" is invalid: [spec.partition: Invalid value: \"string\": spec.partition in \
         body must be of type integer: \"string\", spec.targetKind: Unsupported value: \"Tree\": supported values: \"Pod\", \
         \"Node\"]"
    );
}

#[tokio::test(start_paused = true)]
async fn the_admission_policy_refuses_in_the_servers_words() {
    let jobs = jobs().await;
    let denied = |text: &str| {
        (
            422,
            format!(
                "operationjobs.apps.kusionstack.io \"x\" is forbidden: ValidatingAdmissionPolicy 'operationjob.oarlock.dev' \
                 with binding 'operationjob.oarlock.dev' denied request: {text}"
            ),
        )
    };
    let target = json!([{"name": "p1"}]);
    let cases = [
        (json!({"targets": target}), "spec.action: required"),
        (json!({"action": "R", "targets": target, "partition": -1}), "spec.partition: must be >= 0, and is -1"),
        (json!({"action": "R", "targets": []}), "spec.targets: name at least one target"),
        (
            json!({"action": "R", "targets": [{"name": "p4/status"}]}),
            "spec.targets[0].name: \"p4/status\" must be a DNS-1123 subdomain of at most 253 characters",
        ),
        (
            json!({"action": "R", "targets": [{"name": "p", "containers": ["a", "a"]}]}),
            "spec.targets[0].containers: \"a\" is there twice",
        ),
        (
            json!({"action": "R", "targets": target, "activeDeadlineSeconds": 0}),
            "spec.activeDeadlineSeconds: must be > 0, and is 0",
        ),
        (
            json!({"action": "R", "targets": target, "targetKind": "Node"}),
            "spec.targetKind: Node needs the namespace label oarlock.dev/node-operations=true, and for action R a plugin that \
             works on Nodes",
        ),
        (
            json!({"action": "R", "targets": target, "parallelism": 0}),
            "spec.parallelism: must be an integer >= 1 or 1% to 100%",
        ),
    ];
    for (spec, text) in cases {
        assert_eq!(refusal(&jobs, spec).await, denied(text));
    }
    let (code, message) =
        refusal(&jobs, json!({"action": "R", "targets": [{"name": "p4"}, {"name": "p1"}, {"name": "p4"}]})).await;
    assert_eq!(code, 422);
    assert!(message.ends_with("spec.targets[0].name: \"p4\" is there twice"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn only_a_change_of_spec_is_judged_again() {
    let jobs = jobs().await;
    let spec = json!({"action": "R", "targets": [{"name": "p1"}], "partition": 2});
    jobs.create(&PostParams::default(), &job("x", spec)).await.unwrap();
    let patch = |patch: Value| {
        let jobs = jobs.clone();
        async move { jobs.patch("x", &PatchParams::default(), &Patch::Merge(patch)).await }
    };
    let message = |result: kube::Result<DynamicObject>| match result.unwrap_err() {
        kube::Error::Api(status) => status.message,
        other => panic!("{other:?}"),
    };
    let raised = patch(json!({"spec": {"partition": 3}})).await.unwrap();
    assert_eq!(raised.metadata.generation, Some(2));
    let labelled = patch(json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap();
    assert_eq!(labelled.metadata.generation, Some(2));
    for (change, text) in [
        (json!({"spec": {"partition": 1}}), "spec.partition: must not be lowered or removed, and was 3"),
        (json!({"spec": {"partition": null}}), "spec.partition: must not be lowered or removed, and was 3"),
        (json!({"spec": {"action": "Other"}}), "spec.action: immutable"),
        (json!({"spec": {"targets": [{"name": "p2"}]}}), "spec.targets: immutable, order too"),
        (json!({"spec": {"dryRun": true}}), "spec.dryRun: immutable"),
    ] {
        let told = message(patch(change).await);
        assert!(told.ends_with(text), "{told}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_status_patch_changes_nothing_but_status_and_ignores_a_wrong_uid() {
    let jobs = jobs().await;
    let made = jobs
        .create(&PostParams::default(), &job("x", json!({"action": "R", "targets": [{"name": "p"}]})))
        .await
        .unwrap();
    let patch = json!({"metadata": {"uid": "wrong", "labels": {"a": "b"}}, "spec": {"partition": 7}, "status": {"progress": "Pending", "nope": 1}});
    let written = jobs.patch_status("x", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    assert_eq!(written.metadata.uid, made.metadata.uid);
    assert_eq!(written.metadata.generation, Some(1));
    assert!(written.metadata.labels.is_none());
    assert_eq!(written.data["status"], json!({"progress": "Pending"}));
    assert!(written.data["spec"].get("partition").is_none());
    let stale =
        json!({"metadata": {"resourceVersion": made.metadata.resource_version}, "status": {"progress": "Failed"}});
    let refused = jobs.patch_status("x", &PatchParams::default(), &Patch::Merge(stale)).await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 409));
    let wrong = jobs
        .patch("x", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"uid": "wrong"}})))
        .await
        .unwrap_err();
    assert!(matches!(wrong, kube::Error::Api(status) if status.code == 422));
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_targets_pass_admission() {
    let jobs = jobs().await;
    let targets = (0..10_000).map(|index| json!({"name": format!("pod-{index}")})).collect::<Vec<_>>();
    jobs.create(&PostParams::default(), &job("x", json!({"action": "R", "targets": targets}))).await.unwrap();
    let (_, message) = refusal(&jobs, json!({"action": "R", "targets": (0..10_001).map(|index| json!({"name": format!("pod-{index}")})).collect::<Vec<_>>()})).await;
    assert!(message.ends_with("spec.targets: at most 10000"), "{message}");
}
