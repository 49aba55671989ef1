//! Components that were built against a released contract run on the host unchanged. `wit/frozen/README.md` describes them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use oarlock_core::object::api_object::{Kind, Object, ObjectKey};
use oarlock_core::plugin::proposal::{Mutation, Proposal, RelationKey, State};
use oarlock_core::plugin::visit::{Answer, Call};
use oarlock_wasm::Plugins;
use serde_json::{Value, json};

use crate::components::{World, all_of, component, options, pod, serving, visit};

/// The component of each folder in `wit/frozen`.
const GOLDEN: [(&str, &str); 1] = [("1.0.0", "golden_1_0_0")];

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
    let (plugins, info) = serving(name).await;
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
    for (_, name) in GOLDEN {
        let (_, info) = serving(name).await;
        let by: Vec<&RelationKey> = info.registration.relations.iter().map(|relation| &relation.by).collect();
        assert_eq!(by.len(), 7, "{by:?}");
        assert_eq!(info.registration.exclusive_extras, ["Chosen"]);
    }
}

#[tokio::test]
async fn every_function_of_a_released_contract_answers() {
    for (version, name) in GOLDEN {
        let answer = answer(name, Call::OperateThenProgress, json!({"answer": "metadata"})).await;
        let Answer::Proposed(Proposal { mutations, set_extra, remove_extra, events }) = answer else {
            panic!("{version}: {answer:?}")
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
        let [Mutation::Metadata(change)] = mutations.as_slice() else { panic!("{version}: {mutations:?}") };
        assert_eq!(change.object.uid.as_deref(), Some("uid-web"));
        assert_eq!((change.set_labels.len(), change.add_finalizers.len(), change.keep), (1, 1, false));
    }
}

#[tokio::test]
async fn every_answer_of_a_released_contract_is_understood() {
    for (version, name) in GOLDEN {
        for wanted in ["create", "patch", "evict", "delete", "schedulable", "taint", "drain", "task", "unheard-of"] {
            let answer = answer(name, Call::OperateThenProgress, json!({"answer": wanted})).await;
            let Answer::Proposed(proposal) = answer else { panic!("{version} {wanted}: {answer:?}") };
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
                other => panic!("{version} {wanted}: {other:?}"),
            };
            assert_eq!(found, wanted, "{version}");
        }
        for (end, state) in [("Succeeded", "Succeeded"), ("Failed", "Failed"), ("", "Processing")] {
            let answer = answer(name, Call::Progress, json!({"end": end})).await;
            let Answer::Reported { report, .. } = answer else { panic!("{version}: {answer:?}") };
            let found = match report.state {
                State::Processing => "Processing",
                State::Succeeded => "Succeeded",
                State::Failed(_) => "Failed",
            };
            assert_eq!((found, report.check_after_ms), (state, Some(1_000)), "{version}");
        }
        let answer = answer(name, Call::Release, json!({})).await;
        assert!(
            matches!(&answer, Answer::Failed(failure) if failure.retry_after_ms == Some(1)),
            "{version}: {answer:?}"
        );
    }
}

#[tokio::test]
async fn what_a_released_contract_leaves_open_is_refused_by_name() {
    for (_, name) in GOLDEN {
        let bytes = component(name);
        let plugins = Plugins::start(options()).await.unwrap();
        for (config, words) in [(json!({"other": true}), "unheard-of"), (json!({"fail": true}), "It was told to fail.")]
        {
            plugins.set_grants(vec![all_of(&bytes, Some(config))]).await;
            let status = plugins.publish(name, bytes.clone()).await.unwrap();
            assert!(status.message.contains(words), "{status:?}");
        }
    }
}
