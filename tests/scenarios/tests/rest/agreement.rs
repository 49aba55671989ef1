//! REST and kubectl agree: each refuses a body if and only if the other refuses the matching resource.

use std::sync::Arc;

use anyhow::ensure;
use kube::Client;
use kube::api::{Api, DynamicObject, PostParams};
use oarlock::manifests::{HostAccount, ops_manifests};
use oarlock_core::ops_job::body::{Body, FieldValidation};
use oarlock_core::ops_job::spec::Defaults;
use oarlock_core::ops_job::stored::StoredOps;
use oarlock_scenarios::ops::resource;
use oarlock_support::install::{self, Way};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Map, Value, json};

/// Number of bodies that are tried.
const BODIES: usize = 3_000;

/// Returns a strategy that picks one of these JSON texts.
fn one_of(texts: &'static [&'static str]) -> BoxedStrategy<String> {
    prop::sample::select(texts).prop_map(str::to_owned).boxed()
}

fn input() -> BoxedStrategy<String> {
    let names = one_of(&[
        "node",
        "Node",
        "node.host",
        "workload",
        "workspace",
        "cluster",
        "label",
        "drain",
        "addon.template",
        "node.template",
        "script",
        "mode",
        "foo",
        "image",
    ]);
    let values = one_of(&["node-0", "local", "true", "maybe", "a/pod/b", "copy", "dHJ1ZQ==", "", " "]);
    (names, values).prop_map(|(name, value)| json!({"name": name, "value": value}).to_string()).boxed()
}

/// Returns the fields other than name and inputs, each with right and wrong values.
fn fields() -> Vec<(&'static str, BoxedStrategy<String>)> {
    vec![
        ("timeoutSecond", one_of(&["0", "-1", "5", "2147483647", "2147483648", "1.5", "\"2\""])),
        ("ttlSecondsAfterFinished", one_of(&["0", "-1", "3600", "99999999999"])),
        ("excludedNodes", one_of(&["[]", "[\"a\"]", "[\"\"]", "[1]", "\"a\""])),
        ("isTolerateAll", one_of(&["true", "false", "1"])),
        ("batchCount", one_of(&["0", "2", "-1", "2147483648"])),
        (
            "availableRatio",
            one_of(&["1", "1.0", "0.9", "0.123456789", "0.1234567891", "0", "0.0", "1.1", "-0.1", "00.5", "2"]),
        ),
        ("securityUpgrade", one_of(&["true", "false"])),
        ("image", one_of(&["\"busybox\"", "\"a/B\"", "\"\"", "\"reg:5000/a@sha256:x\"", "7"])),
        ("entryPoint", one_of(&["\"dHJ1ZQ==\"", "\"dHJ1ZQ\"", "\"%\"", "\"\""])),
        ("env", one_of(&["{}", "{\"A\": \"b\"}", "{\"A\": 1}", "{\"OARLOCK_X\": \"\"}", "{\"1\": \"\"}"])),
        (
            "hostpath",
            one_of(&["[]", "[\"/var/log\"]", "[\"/a/\"]", "[\"rel\"]", "[\"/a/../b\"]", "[\"/a//b\"]", "[\"\"]"]),
        ),
        (
            "resource",
            one_of(&[
                "{}",
                "{\"cpu\": \"1\"}",
                "{\"cpu\": \"lots\"}",
                "{\"gpu\": \"8\"}",
                "{\"gpu\": \"x\"}",
                "{\"memory\": \"-1\"}",
                "{\"gpuName\": \"a b\"}",
            ]),
        ),
        ("replica", one_of(&["0", "3", "-1"])),
    ]
}

fn bodies() -> BoxedStrategy<String> {
    let kinds = one_of(&["reboot", "reboot", "preflight", "preflight", "addon", "dumplog", "exportimage", "Reboot"]);
    // Without a node input, no body would be valid.
    let node = prop::option::weighted(0.9, one_of(&[r#"{"name": "node", "value": "node-0"}"#]));
    let more = prop::option::weighted(0.3, input());
    let inputs = (node, more).prop_map(|(node, more)| node.into_iter().chain(more).collect::<Vec<_>>());
    let whole = fields().into_iter().map(|(name, values)| {
        // A preflight without `image` and `entryPoint` would never be valid.
        let chance = if matches!(name, "image" | "entryPoint") { 0.6 } else { 0.1 };
        prop::option::weighted(chance, values)
            .prop_map(move |value| value.map(|value| format!(", \"{name}\": {value}")))
    });
    let whole: Vec<_> = whole.collect();
    (kinds, inputs, whole)
        .prop_map(|(kind, inputs, fields)| {
            let fields: String = fields.into_iter().flatten().collect();
            format!(r#"{{"name": "a", "type": "{kind}", "inputs": [{}]{fields}}}"#, inputs.join(", "))
        })
        .boxed()
}

/// Returns the spec of the resource that means the same as the body.
fn spec_of(body: &str) -> anyhow::Result<Map<String, Value>> {
    let Value::Object(mut spec) = serde_json::from_str(body)? else { anyhow::bail!("an object") };
    spec.shift_remove("name");
    if spec.contains_key("availableRatio") {
        let text = body.split("\"availableRatio\": ").nth(1).and_then(|rest| rest.split([',', '}']).next());
        spec.insert("availableRatio".to_owned(), json!(text.unwrap_or_default()));
    }
    Ok(spec)
}

#[tokio::test]
async fn what_is_refused_by_rest_is_refused_by_kubectl_and_the_other_way() -> anyhow::Result<()> {
    let clock = Arc::new(oarlock_sim::RealClock);
    let cluster = oarlock_sim::Cluster::new(oarlock_sim::Options { clock, ..oarlock_sim::Options::default() });
    let client = Client::new(cluster.service(), "default");
    let documents = [oarlock::manifests()?, ops_manifests(&HostAccount::default())].join("---\n");
    install::install(&client, &install::documents(&documents)?, Way::CreateMissing).await?;
    let jobs: Api<DynamicObject> = Api::all_with(client, &resource());
    let mut runner = TestRunner::new_with_rng(
        Config::default(),
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let (strategy, mut accepted) = (bodies(), 0);
    for number in 0..BODIES {
        let body = strategy.new_tree(&mut runner).map_err(|reason| anyhow::anyhow!("{reason}"))?.current();
        // Neither side accepts a body that is not JSON.
        let Ok(spec) = spec_of(&body) else { continue };
        let by_rest = Body::read(body.as_bytes(), FieldValidation::Strict, Defaults::default());
        let by_rest = by_rest.map_err(|refusal| refusal.message);
        let own = by_rest.as_ref().map_or(spec, |body| body.spec.clone());
        let object = DynamicObject::new(&format!("a-{number}"), &resource()).data(json!({ "spec": own }));
        let by_kubectl = match jobs.create(&PostParams::default(), &object).await {
            Err(error) => Err(error.to_string()),
            Ok(stored) => {
                let stored = StoredOps::read(&serde_json::to_value(stored)?, Defaults::default());
                stored.ok_or_else(|| anyhow::anyhow!("not read"))?.spec.map(drop).map_err(|broken| broken.message())
            }
        };
        // REST refuses a type that this version does not serve with 501, after all other checks.
        let is_unserved = by_kubectl.as_ref().is_err_and(|told| told.contains("is not served by this version"));
        ensure!(
            by_rest.is_ok() == (by_kubectl.is_ok() || is_unserved),
            "{body}\nREST: {by_rest:?}\nkubectl: {by_kubectl:?}"
        );
        accepted += usize::from(by_rest.is_ok());
    }
    ensure!(accepted > BODIES / 50, "{accepted} of {BODIES} were accepted");
    Ok(())
}
