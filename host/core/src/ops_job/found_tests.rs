//! Tests of `found`, with answers from a few documents.

use serde_json::json;

use super::*;
use crate::ops_job::names::RESOLVED;
use crate::ops_job::spec::Defaults;
use crate::requests::reads::ReadFailed;

/// The stored objects.
struct Stored(Vec<Value>);

impl Stored {
    /// Answers a read as the API server does, with the fields that the read names and no others.
    fn answer(&self, read: &Read) -> KeptObjects {
        let is_meant = |object: &&Value| {
            let own = |pointer: &str| text(object, pointer);
            let (namespaced, name) = (own("/metadata/namespace"), own("/metadata/name"));
            own("/kind") == Some(&read.kind.kind)
                && match &read.selected {
                    Selected::One { namespace, name: one } => namespaced == namespace.as_deref() && name == Some(one),
                    Selected::All { namespace, labels, fields } => {
                        assert_eq!(*labels, None);
                        let of_name = fields.as_deref().and_then(|fields| fields.strip_prefix("metadata.name="));
                        (namespace.is_none() || namespaced == namespace.as_deref())
                            && of_name.is_none_or(|of_name| name == Some(of_name))
                    }
                }
        };
        KeptObjects::of(read, self.0.iter().filter(is_meant).map(|object| projected(object, read.reduction.fields)))
    }
}

/// Returns the bytes of the kept texts.
fn bytes(kept: &KeptObjects) -> usize {
    kept.parsed::<Value>().map(|text| text.to_string().len()).sum()
}

/// Returns the object with these fields alone.
fn projected(object: &Value, fields: &[&str]) -> Value {
    if fields.is_empty() {
        return object.clone();
    }
    let mut kept = json!({});
    for field in fields {
        let Some(value) = object.pointer(field) else { continue };
        let mut place = &mut kept;
        for token in field.split('/').skip(1) {
            place = &mut place[token.replace("~1", "/")];
        }
        *place = value.clone();
    }
    kept
}

fn word(read: &Read) -> String {
    let named = match &read.selected {
        Selected::One { namespace, name } => format!("{}/{name}", namespace.as_deref().unwrap_or_default()),
        Selected::All { namespace, fields, .. } => {
            format!("{}/* {}", namespace.as_deref().unwrap_or_default(), fields.as_deref().unwrap_or_default())
        }
    };
    format!("{} {named}", read.kind.kind).trim_end().to_owned()
}

/// Returns the result of a question, and the reads of each of its rounds.
fn asked<T>(
    stored: &Stored,
    question: impl Fn(&Answers) -> Result<T, Pending>,
) -> (Result<T, ReadFailed>, Vec<Vec<String>>) {
    let (mut answers, mut rounds) = (Answers::default(), Vec::new());
    loop {
        match question(&answers) {
            Ok(result) => return (Ok(result), rounds),
            Err(Pending::Failed(failed)) => return (Err(failed), rounds),
            Err(Pending::Reads(reads)) => {
                rounds.push(reads.iter().map(word).collect());
                assert!(rounds.len() < 8, "{rounds:?}");
                reads.into_iter().for_each(|read| {
                    let answer = stored.answer(&read);
                    answers.insert(read, Ok(answer));
                });
            }
        }
    }
}

fn spec(spec: &Value) -> OpsSpec {
    OpsSpec::read(spec, Defaults::default()).unwrap()
}

/// Returns a spec of this type with this input.
fn with_input(kind: &str, name: &str, value: &str) -> OpsSpec {
    spec(&json!({"type": kind, "inputs": [{"name": name, "value": value}]}))
}

fn found(stored: &Stored, asked: &OpsSpec) -> (Found, Vec<Vec<String>>) {
    let system = ["kube-system"];
    let (found, rounds) = self::asked(stored, |answers| find(asked, &asked.scope.workloads, &system, answers));
    (found.unwrap(), rounds)
}

/// Returns an object whose controller has this UID.
fn object(kind: &str, name: &str, owner: Option<&str>) -> Value {
    let owners: Vec<Value> = owner.iter().map(|uid| json!({"kind": "K", "uid": uid, "controller": true})).collect();
    json!({"kind": kind, "metadata": {"name": name, "namespace": "d", "uid": format!("u-{name}"), "ownerReferences": owners,
        "annotations": {"a": "b"}}})
}

fn pod(name: &str, owner: Option<&str>, node: &str) -> Value {
    let mut pod = object("Pod", name, owner);
    pod["spec"] = json!({"nodeName": node, "containers": [{"name": "c", "image": "busybox", "args": ["x"]}]});
    pod["status"] = json!({"phase": "Running"});
    pod
}

fn node(name: &str) -> Value {
    json!({"kind": "Node", "metadata": {"name": name, "uid": format!("u-{name}"), "labels": {"kubernetes.io/hostname": "h"}},
        "spec": {"unschedulable": true}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
}

/// A Deployment with two ReplicaSets, and pods of others beside its own.
fn deployment() -> Stored {
    Stored(vec![
        object("Deployment", "web", None),
        object("Deployment", "other", None),
        object("ReplicaSet", "web-1", Some("u-web")),
        object("ReplicaSet", "web-2", Some("u-web")),
        object("ReplicaSet", "other-1", Some("u-other")),
        pod("a", Some("u-web-1"), "n1"),
        pod("b", Some("u-web-2"), "n2"),
        pod("c", Some("u-other-1"), "n3"),
        pod("d", None, "n3"),
        node("n1"),
        node("n2"),
        node("n3"),
    ])
}

fn names(found: &Found) -> Vec<&str> {
    found.pods.iter().flat_map(|found| &found.pods).map(|pod| pod.name.as_str()).collect()
}

#[test]
fn pods_of_all_replica_sets_of_a_deployment_are_found_and_no_others() {
    let (found, rounds) = found(&deployment(), &with_input("dumplog", "workload", "d/deployment/web"));
    assert_eq!((names(&found), found.missing.clone()), (vec!["a", "b"], None));
    assert_eq!(found.pods.unwrap().namespace, "d");
    assert_eq!(found.of_workloads, Some(BTreeSet::from(["n1".to_owned(), "n2".to_owned()])));
    assert_eq!(rounds, [["Deployment d/web"], ["ReplicaSet d/*"], ["Pod d/*"]]);
}

#[test]
fn a_job_on_nodes_has_the_nodes_of_its_pods_and_reads_the_nodes_meanwhile() {
    let (found, rounds) = found(&deployment(), &with_input("reboot", "workload", "d/deployment/web"));
    assert_eq!(found.of_workloads, Some(BTreeSet::from(["n1".to_owned(), "n2".to_owned()])));
    assert_eq!(found.pods, None);
    let nodes: Vec<NodeFacts> =
        deployment().0.iter().filter(|one| one["kind"] == "Node").filter_map(NodeFacts::read).collect();
    assert_eq!((found.nodes.len(), &found.nodes), (3, &nodes), "the named fields are all that the facts need");
    assert_eq!(rounds, [vec!["Deployment d/web", "Node /*"], vec!["ReplicaSet d/*"], vec!["Pod d/*"]]);
}

#[test]
fn pods_of_another_kind_of_workload_need_no_replica_sets_and_a_pod_is_its_own_workload() {
    let stored = Stored(vec![object("Job", "j", None), pod("a", Some("u-j"), "n1"), pod("b", Some("u-x"), "n1")]);
    let (of_job, rounds) = found(&stored, &with_input("dumplog", "workload", "d/job/j"));
    assert_eq!((names(&of_job), rounds.len()), (vec!["a"], 2));
    let (of_pod, rounds) = found(&stored, &with_input("exportimage", "workload", "d/pod/b"));
    assert_eq!((names(&of_pod), rounds), (vec!["b"], vec![vec!["Pod d/b".to_owned()]]));
    assert_eq!(of_pod.pods.unwrap().pods[0].images.containers[0].image, "busybox");
}

#[test]
fn a_workload_that_does_not_exist_is_named() {
    for words in ["d/deployment/none", "web"] {
        let asked = spec(&json!({"type": "reboot", "inputs": [{"name": "workload", "value": words},
            {"name": "workload", "value": "d/deployment/web"}]}));
        let (found, _) = found(&deployment(), &asked);
        assert_eq!(found.missing.as_deref(), Some(words));
        assert_eq!(found.of_workloads.map(|nodes| nodes.len()), Some(2), "the other workload is found");
    }
}

#[test]
fn pods_with_too_many_images_are_refused_and_not_kept() {
    let mut stored = deployment();
    let long = json!({"name": "c", "image": "i".repeat(512)});
    let with_images = |number: usize| {
        let mut pod = pod(&format!("p{number}"), Some("u-web-1"), "n1");
        pod["spec"]["containers"] = vec![long.clone(); 64].into();
        pod
    };
    stored.0.extend((0..220).map(with_images));
    let workloads = ["d/deployment/web".to_owned()];
    let find = |kind: &str| {
        let spec = with_input(kind, "workload", &workloads[0]);
        asked(&stored, |answers| find(&spec, &workloads, &[], answers)).0
    };
    let failed = find("exportimage").unwrap_err();
    assert_eq!(
        failed.message,
        "the image names of the pods of d/deployment/web take more than 8 MiB: name one pod, d/pod/NAME"
    );
    assert_eq!((failed.is_refused, failed.retry_after), (false, None));
    assert_eq!(names(&find("dumplog").unwrap()).len(), 222, "logs need no images");
    let read = Read { most_bytes: MOST_IMAGES, ..Read::all(Kind::pod(), Some("d")).reduced(POD_WITH_IMAGES) };
    assert!((MOST_IMAGES - 100_000..MOST_IMAGES).contains(&bytes(&stored.answer(&read))));
}

#[test]
fn the_facts_of_a_pod_take_few_bytes_while_they_wait() {
    let mut pod = pod("web-7d9f8b6c5d-abcde", Some("u-web-1"), "node-0001.example.com");
    pod["metadata"]["uid"] = json!("3f1b2c4d-0000-4000-8000-000000000000");
    pod["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    let read = Read::all(Kind::pod(), None).reduced(POD);
    let kept = Stored(vec![pod.clone()]).answer(&read);
    assert!(bytes(&kept) < 200, "{} bytes", bytes(&kept));
    assert_eq!(
        kept.one(),
        PodFacts::read(&json!({"metadata": pod["metadata"], "spec": {"nodeName": "node-0001.example.com"},
        "status": pod["status"]}))
    );
}

#[test]
fn few_nodes_are_read_by_name_and_a_name_that_no_object_has_is_not_read() {
    let inputs = ["n1", "n2", "../n3", "n1"].map(|name| json!({"name": "node", "value": name}));
    let asked = spec(&json!({"type": "reboot", "inputs": inputs}));
    let (found, rounds) = found(&deployment(), &asked);
    assert_eq!(found.nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(), ["n1", "n2"]);
    assert_eq!((rounds, found.of_workloads), (vec![vec!["Node /n1".to_owned(), "Node /n2".to_owned()]], None));
}

#[test]
fn nodes_with_pods_of_workloads_are_busy_but_not_those_with_pods_of_the_system() {
    let mut stored = deployment();
    stored.0.retain(|one| one["metadata"]["name"] != "a");
    let mut system = pod("s", None, "n1");
    system["metadata"]["namespace"] = json!("kube-system");
    let mut mirror = pod("m", None, "n1");
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    stored.0.extend([system, mirror]);
    let mut asked = with_input("reboot", "cluster", "local");
    asked.filters.spares_busy = true;
    let (found, rounds) = found(&stored, &asked);
    let busy: Vec<bool> = found.nodes.iter().map(|node| node.is_busy).collect();
    assert_eq!(busy, [false, true, true]);
    assert_eq!(rounds, [["Node /*", "Pod /*"]]);
}

#[test]
fn addon_templates_are_read_after_the_node_templates_that_name_them() {
    let script = |name: &str| json!({"kind": "AddonTemplate", "metadata": {"name": name}, "spec": {"script": name}});
    let steps = json!([{"template": "b"}, {"template": "Not_A_Name"}]);
    let of_node = json!({"kind": "NodeTemplate", "metadata": {"name": "n"}, "spec": {"steps": steps}});
    let mut stored = Stored(vec![script("a"), script("b"), of_node]);
    let asked = spec(&json!({"type": "addon", "inputs": [{"name": "node", "value": "n1"},
        {"name": "node.template", "value": "n"}, {"name": "addon.template", "value": "a"}]}));
    let (refused, rounds) = found(&stored, &asked);
    assert_eq!(rounds, [["NodeTemplate /n", "Node /n1"], ["AddonTemplate /a", "AddonTemplate /b"]]);
    assert_eq!(refused.steps.unwrap_err().describe(), "there is no AddonTemplate Not_A_Name");
    stored.0[2]["spec"]["steps"] = json!([{"template": "b"}]);
    let names = |found: Found| found.steps.unwrap().into_iter().map(|step| step.name).collect::<Vec<_>>();
    assert_eq!(names(found(&stored, &asked).0), ["b", "a"]);
    stored.0.remove(2);
    assert_eq!(found(&stored, &asked).0.steps.unwrap_err().describe(), "there is no NodeTemplate n");
}

#[test]
fn a_name_means_every_workload_that_has_it_and_at_most_eleven_of_a_kind() {
    let stored = Stored(
        (0..15)
            .map(|number| {
                let mut pod = pod("web", None, "n1");
                pod["metadata"]["namespace"] = json!(format!("d{number}"));
                pod
            })
            .chain([object("Deployment", "web", None), object("Job", "other", None)])
            .collect(),
    );
    let (all, rounds) = asked(&stored, |answers| candidates("web", answers));
    let all: Vec<String> = all.unwrap().iter().map(WorkloadName::text).collect();
    assert_eq!((all.len(), all[0].as_str(), all[1].as_str()), (12, "d/deployment/web", "d0/pod/web"));
    assert_eq!((rounds.len(), rounds[0].len()), (1, 6), "all kinds are read at the same time");
    assert!(rounds[0].contains(&"Deployment /* metadata.name=web".to_owned()));
    let (all, _) = asked(&stored, |answers| candidates("d3/web", answers));
    assert_eq!(all.unwrap().iter().map(WorkloadName::text).collect::<Vec<_>>(), ["d3/pod/web"]);
    for unread in ["a,b", "D/web", "a/b/c", "../web", ""] {
        assert_eq!(asked(&stored, |answers| candidates(unread, answers)), (Ok(Vec::new()), Vec::new()), "{unread}");
    }
    let whole = asked(&stored, |answers| candidates("d/sts/none", answers));
    assert_eq!((whole.0.unwrap().len(), whole.1.len()), (1, 0), "the full name needs no read");
}

fn shipped() -> Vec<Value> {
    serde_saphyr::from_multiple(oarlock_api::OPS_ADMISSION).unwrap()
}

/// Returns a job with this spec and status.
fn job(spec: &Value, status: &Value) -> StoredOps {
    let document = json!({"metadata": {"name": "j", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": spec, "status": status});
    StoredOps::read(&document, Defaults::default()).unwrap()
}

#[test]
fn a_job_that_no_policy_checked_reads_nothing_else() {
    let (mut stored, shipped) = (deployment(), shipped());
    let job =
        job(&json!({"type": "dumplog", "inputs": [{"name": "workload", "value": "d/deployment/web"}]}), &json!({}));
    let of = |stored: &Stored| asked(stored, |answers| found_of(&job, &shipped, &[], answers));
    let (found, rounds) = of(&stored);
    let gap = found.unwrap().gap.unwrap();
    assert_eq!(gap, "ValidatingAdmissionPolicy opsjob.oarlock.dev is missing");
    assert_eq!(rounds.iter().map(Vec::len).collect::<Vec<_>>(), [6], "all policies at the same time");
    stored.0.extend(shipped.iter().cloned());
    let (found, rounds) = of(&stored);
    assert_eq!((names(&found.unwrap()), rounds.len()), (vec!["a", "b"], 4));
}

#[test]
fn a_job_with_targets_reads_its_steps_alone_and_an_export_its_chosen_pod() {
    let mut stored = deployment();
    stored.0.extend(shipped());
    let of = |job: &StoredOps| {
        let (found, rounds) = asked(&stored, |answers| found_of(job, &shipped(), &[], answers));
        (found.unwrap(), rounds)
    };
    let addon = json!({"type": "addon", "inputs": [{"name": "node", "value": "n1"}, {"name": "addon.template", "value": "a"}],
        "targets": [{"name": "n1", "uid": "u-n1"}]});
    let resolved = json!({"conditions": [{"type": RESOLVED, "status": "True"}]});
    let (found, rounds) = of(&job(&addon, &resolved));
    assert_eq!((found.steps.is_err(), rounds), (true, vec![vec!["AddonTemplate /a".to_owned()]]));
    let (found, rounds) = of(&job(&addon, &json!({})));
    assert_eq!((found, rounds.len()), (Found::default(), 1), "only the policies: the targets are stored");
    let export = json!({"type": "exportimage", "inputs": [{"name": "workload", "value": "web"}],
        "targets": [{"name": "a", "namespace": "d", "uid": "u-a"}]});
    let (found, rounds) = of(&job(&export, &json!({})));
    assert_eq!((names(&found), rounds.last().cloned()), (vec!["a"], Some(vec!["Pod d/a".to_owned()])));
}

#[test]
fn the_failure_of_a_read_is_the_result_whatever_else_is_missing() {
    let asked = with_input("reboot", "workload", "d/deployment/web");
    let failed = ReadFailed { message: "no".to_owned(), is_refused: true, retry_after: Some(3) };
    let mut answers = Answers::default();
    answers.insert(Read::all(Kind::node(), None).reduced(NODE), Err(failed.clone()));
    let found = find(&asked, &asked.scope.workloads, &[], &answers);
    assert_eq!(found, Err(Pending::Failed(failed)));
}
