//! Components that were built against a released contract run on the host unchanged. `wit/frozen/README.md` describes them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use oarlock_core::object::api_object::{Kind, Object, ObjectKey};
use oarlock_core::plugin::proposal::{Mutation, Proposal, RelationKey, State};
use oarlock_core::plugin::visit::{Answer, Call};
use oarlock_wasm::{Options, Plugins};
use serde_json::{Value, json};

use crate::components::{World, all_of, component, options, pod, serving_file, visit};

/// The component of each folder in `wit/frozen`.
const GOLDEN: [(&str, &str); 1] = [("1.0.0", "golden_1_0_0")];
/// The component that QuickJS runs. `tests/plugins/golden-languages` describes it.
const JAVASCRIPT: &[u8] = include_bytes!("../../../../tests/plugins/golden-languages/golden-javascript.wasm");
/// The environment variable with the path of the component that CPython runs. It is too large for the repository.
const PYTHON: &str = "OARLOCK_GOLDEN_PYTHON";

/// Returns the bytes of a golden component.
fn golden(name: &str) -> Vec<u8> {
    match name {
        "javascript" => JAVASCRIPT.to_vec(),
        "python" => {
            std::fs::read(std::env::var_os(PYTHON).expect("`cargo xtask test rest` builds the component")).unwrap()
        }
        name => component(name),
    }
}

/// Returns the golden components that every run of the tests has.
fn all() -> impl Iterator<Item = &'static str> {
    GOLDEN.into_iter().map(|(_, name)| name).chain(["javascript"])
}

/// Returns the options of a host. CPython needs a host with 1 GiB.
fn sufficient(name: &str) -> Options {
    Options { memory_limit: (name == "python").then_some(1 << 30), ..options() }
}

#[test]
fn each_released_contract_has_a_component() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../wit/frozen");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let mut versions: Vec<String> =
        entries.filter(|entry| entry.path().is_dir()).map(|entry| entry.file_name().into_string().unwrap()).collect();
    versions.sort();
    assert_eq!(versions, GOLDEN.map(|(version, _)| version));
}

/// Returns the component's answer to a call with these parameters. All objects that the component reads exist.
async fn answer(name: &str, call: Call, parameters: Value) -> Answer {
    let (plugins, info) = serving_file(name, golden(name), sufficient(name)).await;
    let mut visit = visit("Golden", call, parameters);
    let related = info.registration.relations.iter();
    let related = related.map(|relation| (relation.name.clone(), vec![pod("web-2", json!({}))])).collect();
    let key = ObjectKey { kind: Kind::new("v1", "ConfigMap"), namespace: Some("shop".into()), name: "colours".into() };
    let document = json!({"metadata": {"name": "colours", "namespace": "shop", "uid": "u"}});
    let map = Arc::new(Object::slim(&document, &key.kind, &[]).unwrap());
    visit.target.extras = BTreeMap::from([("Chosen".into(), "web-2".into())]);
    visit.reads = Arc::new(World { related, objects: BTreeMap::from([(key, map)]), not_read_live: false });
    plugins.wave(&info.digest).unwrap().call(visit).await
}

#[tokio::test]
async fn what_was_built_against_a_released_contract_is_vetted_linked_and_set_up() {
    for name in all() {
        let (_, info) = serving_file(name, golden(name), sufficient(name)).await;
        let by: Vec<&RelationKey> = info.registration.relations.iter().map(|relation| &relation.by).collect();
        assert_eq!(by.len(), 7, "{by:?}");
        assert_eq!(info.registration.exclusive_extras, ["Chosen"]);
    }
}

#[tokio::test]
async fn every_function_of_a_released_contract_answers() {
    for name in all() {
        every_function_answers(name).await;
    }
}

async fn every_function_answers(name: &str) {
    let answer = answer(name, Call::OperateThenProgress, json!({"answer": "metadata"})).await;
    let Answer::Proposed(Proposal { mutations, set_extra, remove_extra, events }) = answer else {
        panic!("{name}: {answer:?}")
    };
    let seen: BTreeMap<String, String> = set_extra.into_iter().collect();
    assert_eq!(seen["job"], "shop/job job-1 Golden");
    assert_eq!(seen["target"], "web 0 Pod Some(\"uid-web\")");
    assert_eq!(
        (seen["by-parameter"].as_str(), seen["map"].as_str(), seen["serves"].as_str()),
        ("1", "colours", "true")
    );
    assert!(seen["object"].contains("web uid-web true"), "{}", seen["object"]);
    assert_eq!((remove_extra, events.len()), (vec!["Gone".to_owned()], 1));
    let [Mutation::Metadata(change)] = mutations.as_slice() else { panic!("{name}: {mutations:?}") };
    assert_eq!(change.object.uid.as_deref(), Some("uid-web"));
    assert_eq!((change.set_labels.len(), change.add_finalizers.len(), change.keep), (1, 1, false));
}

#[tokio::test]
async fn every_answer_of_a_released_contract_is_understood() {
    for name in all() {
        every_answer_is_understood(name).await;
    }
}

async fn every_answer_is_understood(name: &str) {
    for wanted in ["create", "patch", "evict", "delete", "schedulable", "taint", "drain", "task", "unheard-of"] {
        let answer = answer(name, Call::OperateThenProgress, json!({"answer": wanted})).await;
        let Answer::Proposed(proposal) = answer else { panic!("{name} {wanted}: {answer:?}") };
        let found = match &proposal.mutations[0] {
            Mutation::Metadata(_) => "metadata",
            Mutation::Create(_) => "create",
            Mutation::Patch { .. } => "patch",
            Mutation::Evict { grace_seconds: Some(5), .. } => "evict",
            Mutation::Delete { propagation: Some(_), .. } => "delete",
            Mutation::Schedulable { schedulable: false, .. } => "schedulable",
            Mutation::Taint(taint) if taint.present && taint.effect == "NoSchedule" => "taint",
            Mutation::Drain(drain) if !drain.force => "drain",
            Mutation::Task(task) if task.kind == "run-on-node" => "task",
            Mutation::Other { verb } => verb,
            other => panic!("{name} {wanted}: {other:?}"),
        };
        assert_eq!(found, wanted, "{name}");
    }
    for (end, state) in [("Succeeded", "Succeeded"), ("Failed", "Failed"), ("", "Processing")] {
        let answer = answer(name, Call::Progress, json!({"end": end})).await;
        let Answer::Reported { report, .. } = answer else { panic!("{name}: {answer:?}") };
        let found = match report.state {
            State::Processing => "Processing",
            State::Succeeded => "Succeeded",
            State::Failed(_) => "Failed",
        };
        assert_eq!((found, report.check_after_ms), (state, Some(1_000)), "{name}");
    }
    let answer = answer(name, Call::Release, json!({})).await;
    assert!(matches!(&answer, Answer::Failed(failure) if failure.retry_after_ms == Some(1)), "{name}: {answer:?}");
}

#[tokio::test]
async fn what_a_released_contract_leaves_open_is_refused_by_name() {
    for name in all() {
        let bytes = golden(name);
        let plugins = Plugins::start(options()).await.unwrap();
        for (config, words) in [(json!({"other": true}), "unheard-of"), (json!({"fail": true}), "It was told to fail.")]
        {
            plugins.set_grants(vec![all_of(&bytes, Some(config))]).await;
            let status = plugins.publish(name, bytes.clone()).await.unwrap();
            assert!(status.message.contains(words), "{status:?}");
        }
    }
}

#[tokio::test]
async fn an_exception_becomes_a_failure_with_its_stack_and_no_trap() {
    let answer = answer("javascript", Call::OperateThenProgress, json!({"answer": "raise"})).await;
    let Answer::Failed(failure) = answer else { panic!("{answer:?}") };
    assert_eq!((failure.retryable, failure.reason.as_str()), (false, "PluginException"));
    let words = "RangeError: It was told to. at operate (/plugin.js:";
    assert!(failure.message.starts_with(words), "{}", failure.message);
    let answer = self::answer("javascript", Call::OperateThenProgress, json!({"answer": "open"})).await;
    assert!(matches!(&answer, Answer::Failed(failure) if failure.reason == "PluginIsAsync"), "{answer:?}");
    let answer = self::answer("javascript", Call::OperateThenProgress, json!({"answer": "print"})).await;
    assert!(matches!(&answer, Answer::Proposed(_)), "{answer:?}");
}

#[tokio::test]
#[ignore = "`cargo xtask test rest` builds the component of Python and runs this test"]
async fn a_plugin_in_python_runs_on_a_host_with_the_memory_that_it_needs() {
    every_function_answers("python").await;
    every_answer_is_understood("python").await;
    let answer = answer("python", Call::OperateThenProgress, json!({"answer": "raise"})).await;
    let Answer::Failed(failure) = answer else { panic!("{answer:?}") };
    assert_eq!((failure.retryable, failure.reason.as_str()), (false, "PluginException"));
    let words = "RuntimeError: It was told to. at operate (/0/plugin.py:";
    assert!(failure.message.starts_with(words), "{}", failure.message);
    let answer = self::answer("python", Call::OperateThenProgress, json!({"answer": "open"})).await;
    let Answer::Failed(failure) = answer else { panic!("{answer:?}") };
    assert!(failure.message.starts_with("FileNotFoundError: "), "{}", failure.message);
    let answer = self::answer("python", Call::OperateThenProgress, json!({"answer": "print"})).await;
    assert!(matches!(&answer, Answer::Proposed(_)), "{answer:?}");
}
