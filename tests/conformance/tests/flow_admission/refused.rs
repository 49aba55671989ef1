//! The objects that the API server refuses, and the words of each refusal.

use std::time::Duration;

use http::Method;
use kube::Client;
use oarlock_support::install::{self, Way};
use serde_json::{Value, json};

use crate::server::{changed, create, daemon, flow, job, object, path, send, step};

/// Checks that the policy refuses a flow with these steps, with a message that ends with `words`.
async fn refuses(client: &Client, spec: &Value, words: &str) {
    let (code, message) = flow(client, "refused", spec).await.expect_err(words);
    let policy = "ValidatingAdmissionPolicy 'jobflow.oarlock.dev' with binding 'jobflow.oarlock.dev' denied request: ";
    assert!(code == 422 && message.ends_with(&format!("{policy}{words}")), "{code} {message}\nis not\n{words}");
}

pub(crate) async fn a_bad_name_of_a_step_is_refused_by_name(client: &Client) {
    let rule = "must be 1 to 63 of a-z, 0-9, \"-\" and \".\", with alphanumeric ends";
    let long = "x".repeat(64);
    for bad in ["Build", "a_b", "-a", "a-", "a/b", long.as_str()] {
        let words = format!("spec.flows[1].name: \"{bad}\" {rule}");
        refuses(client, &json!({"flows": [step("a", &[]), step(bad, &[])]}), &words).await;
        let words = format!("spec.finally[0].name: \"{bad}\" {rule}");
        refuses(client, &json!({"flows": [step("a", &[])], "finally": [step(bad, &[])]}), &words).await;
    }
    let required = "spec.flows[0].name: required; give the step a unique name";
    for none in [json!(""), Value::Null] {
        refuses(client, &json!({"flows": [changed(step("a", &[]), json!({"name": none}))]}), required).await;
    }
    let twice = "step \"a\": another step has this name; rename one of them";
    refuses(client, &json!({"flows": [step("a", &[]), step("b", &[]), step("a", &[])]}), twice).await;
    refuses(client, &json!({"flows": [step("a", &[])], "finally": [step("a", &[])]}), twice).await;
    let mut many = (0..200).map(|index| step(&format!("s-{index}"), &[])).collect::<Vec<_>>();
    many.push(step("s-7", &[]));
    let (_, message) = flow(client, "refused", &json!({"flows": many})).await.unwrap_err();
    assert!(message.contains("s-7 already exists"), "{message}");
}

pub(crate) async fn a_bad_dependency_is_refused_by_step(client: &Client) {
    let cases = [
        (
            step("b", &["a", "job2"]),
            "step \"b\": depends on \"job2\", but no step has this name; add that step to flows or remove the dependency",
        ),
        (step("b", &["a", "b"]), "step \"b\": depends on itself; remove the step from its own dependencies"),
        (
            step("b", &["end"]),
            "step \"b\": depends on \"end\", a step of finally, which runs after flows; move that step to flows or remove the dependency",
        ),
    ];
    for (bad, words) in cases {
        refuses(client, &json!({"flows": [step("a", &[]), bad], "finally": [step("end", &[])]}), words).await;
    }
}

pub(crate) async fn a_step_without_one_kind_of_work_is_refused(client: &Client) {
    let none = "step \"a\": has no work; add a jobTemplate with containers, a jobTemplateRef or an operation";
    let half = [
        json!({}),
        json!({"jobTemplate": {}, "jobTemplateRef": ""}),
        json!({"jobTemplate": {"template": {"metadata": {}, "spec": {"containers": null}}}}),
        json!({"jobTemplate": {"template": {"spec": {"containers": []}}}}),
    ];
    for work in half {
        let bare = changed(json!({"name": "a"}), work);
        refuses(client, &json!({"flows": [bare]}), none).await;
        refuses(client, &json!({"flows": [], "finally": [bare]}), none).await;
    }
    let two = "step \"a\": has an operation and a Job; keep one of operation, jobTemplateRef and jobTemplate";
    for work in [json!({"jobTemplate": job()}), json!({"jobTemplateRef": "t"})] {
        let both = changed(json!({"name": "a", "operation": {"action": "reboot"}}), work);
        refuses(client, &json!({"flows": [both]}), two).await;
    }
}

pub(crate) async fn fields_that_do_not_fit_together_are_refused(client: &Client) {
    let operation = json!({"name": "b", "operation": {"action": "reboot"}, "shareVolumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let cases = [
        (operation, "step \"b\": an operation mounts no volumes; remove shareVolumeMounts"),
        (
            changed(step("b", &[]), json!({"overrides": {"parallelism": 2}})),
            "step \"b\": overrides needs a jobTemplateRef; change jobTemplate itself, or use a jobTemplateRef",
        ),
        (
            changed(step("b", &[]), json!({"when": "failure"})),
            "step \"b\": \"when: failure\" needs dependencies; name the steps that may fail, or move the step to finally",
        ),
        (
            changed(step("b", &["a"]), json!({"handlesFailure": true})),
            "step \"b\": handlesFailure needs \"when: failure\"; add \"when: failure\", or remove handlesFailure",
        ),
    ];
    for (bad, words) in cases {
        refuses(client, &json!({"flows": [step("a", &[]), bad]}), words).await;
    }
    let words =
        "step \"end\": steps of finally cannot have dependencies; remove the dependencies, or move the step to flows";
    refuses(client, &json!({"flows": [step("a", &[])], "finally": [step("end", &["a"])]}), words).await;
}

pub(crate) async fn too_much_of_anything_is_refused(client: &Client) {
    let many = (0..500).map(|index| step(&format!("s-{index}"), &[])).collect::<Vec<_>>();
    let words = "spec.flows: at most 500 steps, including finally, but there are 501; split the flow";
    refuses(client, &json!({"flows": many, "finally": [step("end", &[])]}), words).await;
    let names = (0..101).map(|index| format!("s-{index}")).collect::<Vec<_>>();
    let mut flows = names.iter().map(|name| step(name, &[])).collect::<Vec<_>>();
    flows.push(step("join", &names.iter().map(String::as_str).collect::<Vec<_>>()));
    let words = "step \"join\": at most 100 dependencies, but the step has 101; add a step that joins some of them";
    refuses(client, &json!({"flows": flows}), words).await;
    for (fields, field) in [
        (json!({"timeoutSeconds": -5}), "spec.flows[0].timeoutSeconds"),
        (json!({"timeoutSeconds": 0}), "spec.flows[0].timeoutSeconds"),
        (json!({"retryPolicy": {"limit": -1}}), "spec.flows[0].retryPolicy.limit"),
        (json!({"when": "never"}), "spec.flows[0].when"),
    ] {
        let spec = json!({"flows": [changed(step("a", &[]), fields)]});
        let (code, message) = flow(client, "refused", &spec).await.unwrap_err();
        assert!(code == 422 && message.contains(field), "{code} {message}");
    }
    let (code, message) = flow(client, "refused", &json!({"flows": [], "timeoutSeconds": -1})).await.unwrap_err();
    assert!(code == 422 && message.contains("spec.timeoutSeconds"), "{code} {message}");
}

pub(crate) async fn wrong_numbers_of_a_daemon_job_are_refused(client: &Client) {
    let with = |fields: Value| changed(job(), fields);
    let limit = |value: &Value| with(json!({"rollout": {"failurePolicy": {"type": "Continue", "maxFailures": value}}}));
    let no_container = "spec.template.spec.containers: give at least one container";
    let mut cases = vec![
        (json!({}), no_container.to_owned()),
        (json!({"template": {"spec": {"containers": null}}}), no_container.to_owned()),
        (
            with(json!({"manualSelector": true})),
            "spec.manualSelector: must not be true, because the Jobs would count each other's pods; remove the field".to_owned(),
        ),
        (
            with(json!({"rollout": {"newNodePolicy": "Run"}, "cleanup": {"ttlSeconds": 0}})),
            "spec.cleanup.ttlSeconds: not allowed with spec.rollout.newNodePolicy Run, which waits for new nodes; remove one of the two fields".to_owned(),
        ),
        (with(json!({"rollout": {"nodeTimeoutSeconds": 0}})), "should be greater than or equal to 1".to_owned()),
        (with(json!({"rollout": {"nodeTimeoutSeconds": -7}})), "should be greater than or equal to 1".to_owned()),
    ];
    for bad in [json!("150%"), json!(-1), json!("x"), json!("101%"), json!("-5%"), json!("5")] {
        let rule = format!("must be an integer >= 0 or 0% to 100%, but is {}", bad.to_string().trim_matches('"'));
        cases.push((with(json!({"rollout": {"concurrency": bad}})), format!("spec.rollout.concurrency: {rule}")));
        cases.push((limit(&bad), format!("spec.rollout.failurePolicy.maxFailures: {rule}")));
    }
    for (spec, words) in cases {
        let (code, message) = daemon(client, "refused", &spec).await.expect_err(&words);
        assert!(code == 422 && message.ends_with(&words), "{code} {message}\nis not\n{words}");
    }
    for (index, good) in [json!(0), json!("0%"), json!("100%"), json!(7), json!("33%")].into_iter().enumerate() {
        let rollout = json!({"rollout": {"concurrency": good, "failurePolicy": {"maxFailures": good}}});
        daemon(client, &format!("good-{index}"), &with(rollout)).await.unwrap();
    }
}

/// Gives a user a role with these rules.
async fn allow(client: &Client, user: &str, rules: &str) {
    let roles = format!(
        "apiVersion: rbac.authorization.k8s.io/v1\n\
         kind: Role\n\
         metadata: {{name: of-{user}, namespace: default}}\n\
         rules: {rules}\n\
         ---\n\
         apiVersion: rbac.authorization.k8s.io/v1\n\
         kind: RoleBinding\n\
         metadata: {{name: of-{user}, namespace: default}}\n\
         roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: of-{user}}}\n\
         subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: User, name: {user}}}]\n"
    );
    install::install(client, &install::documents(&roles).unwrap(), Way::CreateMissing).await.unwrap();
}

/// Sends a request that the server must refuse in these words. A real server learns of a role and a policy a moment later, so the
/// request is a dry run that repeats until then.
async fn refused_as(client: &Client, user: &str, (method, place): (Method, &str), (body, words): (&Value, &str)) {
    let place = format!("{}?dryRun=All", path(place));
    let mut last = Value::Null;
    let asking = async {
        loop {
            match send(client, Some(user), method.clone(), &place, body).await {
                Err((403, message)) if message.ends_with(words) => return,
                said => last = json!(said),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let asked = tokio::time::timeout(Duration::from_secs(60), asking).await;
    assert!(asked.is_ok(), "{last}\nis not\n{words}");
}

const FLOW_KINDS: &str =
    "{apiGroups: [api.practice.com], resources: [jobflows, jobtemplates, daemonjobs], verbs: [create, patch]}";
const JOBS: &str = "{apiGroups: [batch], resources: [jobs], verbs: [create]}";

fn reboot() -> Value {
    json!({"action": "reboot", "targetKind": "Node", "targets": [{"name": "n7"}]})
}

pub(crate) async fn an_operation_needs_the_right_to_create_operation_jobs(client: &Client) {
    allow(client, "ann", &format!("[{FLOW_KINDS}, {JOBS}]")).await;
    let spec = json!({"flows": [step("a", &[]), {"name": "b", "dependencies": ["a"], "operation": reboot()}]});
    let asked = object("JobFlow", "operates", &spec);
    let words = "step \"b\": you may not create operationjobs of apps.kusionstack.io in this namespace; ask a cluster admin \
                 for the right, or remove the step";
    refused_as(client, "ann", (Method::POST, "jobflows"), (&asked, words)).await;
    let plain = object("JobFlow", "of-ann", &json!({"flows": [step("a", &[])]}));
    send(client, Some("ann"), Method::POST, &path("jobflows"), &plain).await.unwrap();
    let stored = create(client, "jobflows", &asked).await.unwrap();
    assert_eq!(stored["spec"]["flows"][1]["operation"], reboot());
}

pub(crate) async fn an_operation_has_no_action_of_ops_jobs_alone(client: &Client) {
    let operations = "{apiGroups: [apps.kusionstack.io], resources: [operationjobs], verbs: [create]}";
    allow(client, "eve", &format!("[{FLOW_KINDS}, {JOBS}, {operations}]")).await;
    let words = "only an OpsJob can run dumplog and exportimage; create an OpsJob";
    for (of, action) in [("flows", "exportimage"), ("finally", "dumplog")] {
        let operation = json!({"action": action, "targets": [{"name": "a"}]});
        let mut spec = json!({"flows": [step("a", &[])]});
        spec[of] = json!([{"name": "b", "operation": operation}]);
        refused_as(client, "eve", (Method::POST, "jobflows"), (&object("JobFlow", "exports", &spec), words)).await;
    }
}

pub(crate) async fn whatever_makes_jobs_needs_the_right_to_create_jobs(client: &Client) {
    allow(
        client,
        "bob",
        &format!("[{FLOW_KINDS}, {{apiGroups: [apps.kusionstack.io], resources: [operationjobs], verbs: [create]}}]"),
    )
    .await;
    let words = "spec: this object creates Jobs, but you may not create jobs of batch in this namespace; ask a cluster admin for the right";
    let of_bob = |kind: &str, spec: &Value| object(kind, &format!("of-bob-{}", kind.to_lowercase()), spec);
    let finally = json!({"flows": [{"name": "a", "operation": reboot()}], "finally": [step("z", &[])]});
    let by_template = json!({"flows": [{"name": "a", "jobTemplateRef": "t"}]});
    let daemon = json!({"template": job()["template"]});
    for (plural, asked) in [
        ("jobflows", of_bob("JobFlow", &json!({"flows": [step("a", &[])]}))),
        ("jobflows", of_bob("JobFlow", &finally)),
        ("jobflows", of_bob("JobFlow", &by_template)),
        ("jobtemplates", of_bob("JobTemplate", &json!({"jobTemplate": job()}))),
        ("daemonjobs", of_bob("DaemonJob", &daemon)),
    ] {
        refused_as(client, "bob", (Method::POST, plural), (&asked, words)).await;
        // Another user may create it. Then bob may change its labels, but nothing that runs.
        let stored = create(client, plural, &asked).await.unwrap();
        let place = format!("{plural}/{}", stored["metadata"]["name"].as_str().unwrap());
        let labels = json!({"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}});
        send(client, Some("bob"), Method::PATCH, &path(&place), &labels).await.unwrap();
        let spec = match plural {
            "jobtemplates" => json!({"spec": {"jobTemplate": {"backoffLimit": 3}}}),
            _ => json!({"spec": {"suspend": true}}),
        };
        refused_as(client, "bob", (Method::PATCH, &place), (&spec, words)).await;
        send(client, None, Method::DELETE, &path(&place), &Value::Null).await.unwrap();
    }
    let operates = of_bob("JobFlow", &json!({"flows": [{"name": "a", "operation": reboot()}]}));
    send(client, Some("bob"), Method::POST, &path("jobflows"), &operates).await.unwrap();
}

pub(crate) async fn a_retry_needs_the_rights_of_the_first_start(client: &Client) {
    allow(client, "cat", &format!("[{FLOW_KINDS}, {JOBS}]")).await;
    allow(client, "dan", &format!("[{FLOW_KINDS}]")).await;
    let operation = object("JobFlow", "retried", &json!({"flows": [{"name": "a", "operation": reboot()}]}));
    create(client, "jobflows", &operation).await.unwrap();
    create(client, "daemonjobs", &object("DaemonJob", "retried", &json!({"template": job()["template"]})))
        .await
        .unwrap();
    let retry = |value: &str| json!({"metadata": {"annotations": {"oarlock.dev/retry": value}}});
    let operates = "step \"a\": you may not create operationjobs of apps.kusionstack.io in this namespace; ask a cluster admin \
                    for the right, or remove the step";
    let makes = "you may not create jobs of batch in this namespace; ask a cluster admin for the right";
    refused_as(client, "cat", (Method::PATCH, "jobflows/retried"), (&retry("1"), operates)).await;
    refused_as(client, "dan", (Method::PATCH, "daemonjobs/retried"), (&retry("1"), makes)).await;
    send(client, Some("cat"), Method::PATCH, &path("daemonjobs/retried"), &retry("1")).await.unwrap();
    send(client, None, Method::PATCH, &path("jobflows/retried"), &retry("1")).await.unwrap();
    // The flow has a retry token now. Another token is a retry, and a label is not.
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    send(client, Some("cat"), Method::PATCH, &path("jobflows/retried"), &label).await.unwrap();
    refused_as(client, "cat", (Method::PATCH, "jobflows/retried"), (&retry("2"), operates)).await;
}
