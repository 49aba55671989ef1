//! Tests of `decide_create`.

use super::*;
use crate::kind::locks::TargetLock;
use crate::ops_job::spec::Defaults;
use crate::ops_job::targets::NodeFacts;
use crate::ops_job::view::NODE_WORK;

fn body(inputs: &Value, mode: FieldValidation) -> Body {
    let body = json!({"name": "a", "type": "reboot", "inputs": inputs, "excludedNodes": ["gone", "c"]});
    Body::read(body.to_string().as_bytes(), mode, Defaults::default()).unwrap()
}

fn input(name: &str, value: &str) -> Value {
    json!([{"name": name, "value": value}])
}

fn node(name: &str) -> NodeFacts {
    let workspace = Some("team".to_owned());
    NodeFacts { name: name.to_owned(), uid: format!("u-{name}"), is_ready: true, workspace, ..NodeFacts::default() }
}

/// Returns the facts for a caller who may do everything.
fn facts(body: &Body) -> RequestFacts {
    let all = Access::to_create(body.asked.kind, body.asked.has_own_script());
    let nodes = ["a", "b", "c"].map(node).to_vec();
    RequestFacts {
        rights: all.into_iter().map(|access| (access, true)).collect(),
        service: Some(Service::Plugin { ungranted: None }),
        bounds: Some(CallerBounds::None),
        found: Some(Found { nodes, ..Found::default() }),
        locked_target: Some(None),
        ..RequestFacts::default()
    }
}

fn here() -> Here<'static> {
    Here { cluster: "local", node: None }
}

fn refused(body: &Body, facts: &RequestFacts) -> (u16, String) {
    let refusal = decide_create(body, facts, here()).unwrap_err();
    (refusal.code.status(), refusal.message)
}

#[test]
fn facts_are_asked_for_one_after_the_other_and_none_before_the_one_before_it() {
    let body = body(&input("workload", "web"), FieldValidation::Warn);
    let all = facts(&body);
    let mut known = RequestFacts::default();
    let needs = |known: &RequestFacts| match decide_create(&body, known, here()).unwrap() {
        CreateDecision::NeedsFact(need) => need,
        CreateDecision::Accepted(job) => panic!("{job:?}"),
    };
    assert!(matches!(needs(&known), RequiredFact::Rights(all) if all.len() == 2));
    known.rights = all.rights;
    assert_eq!(needs(&known), RequiredFact::Service);
    known.service = all.service;
    assert_eq!(needs(&known), RequiredFact::Bounds);
    known.bounds = all.bounds;
    assert_eq!(needs(&known), RequiredFact::Candidates("web".to_owned()));
    let candidate = WorkloadName::read("d/deployment/web").unwrap();
    known.candidates.insert("web".to_owned(), vec![candidate.clone()]);
    assert_eq!(needs(&known), RequiredFact::Rights(vec![Access::to_workload(&candidate)]));
    known.rights.insert(Access::to_workload(&candidate), true);
    assert_eq!(needs(&known), RequiredFact::Found(vec![candidate]));
    known.found = all.found.map(|found| Found { of_workloads: Some(BTreeSet::from(["a".to_owned()])), ..found });
    assert_eq!(needs(&known), RequiredFact::Locked(vec![TargetLock::new(NODE_WORK, "u-a")]));
    known.locked_target = Some(None);
    let CreateDecision::Accepted(job) = decide_create(&body, &known, here()).unwrap() else { panic!("all is known") };
    assert_eq!((job.workspace.as_deref(), job.resolved.targets.len()), (Some("d"), 1));
}

#[test]
fn of_workloads_only_those_count_that_the_caller_may_read() {
    let body = body(&input("workload", "web"), FieldValidation::Ignore);
    let (one, other) = (WorkloadName::read("d/deployment/web").unwrap(), WorkloadName::read("e/sts/web").unwrap());
    let mut known = RequestFacts { found: None, ..facts(&body) };
    known.candidates.insert("web".to_owned(), vec![one.clone(), other.clone()]);
    let may = |known: &mut RequestFacts, one_may: bool, other_may: bool| {
        known.rights.insert(Access::to_workload(&one), one_may);
        known.rights.insert(Access::to_workload(&other), other_may);
    };
    may(&mut known, false, false);
    let unseen = refused(&body, &known);
    assert_eq!(unseen.0, 404);
    known.candidates.insert("web".to_owned(), Vec::new());
    assert_eq!(refused(&body, &known), unseen, "in the words of one that is not there");
    known.candidates.insert("web".to_owned(), vec![one.clone(), other.clone()]);
    may(&mut known, true, true);
    let told = refused(&body, &known);
    assert!(told.0 == 400 && told.1.contains("d/deployment/web, e/statefulset/web"), "{told:?}");
    may(&mut known, false, true);
    assert_eq!(
        decide_create(&body, &known, here()),
        Ok(CreateDecision::NeedsFact(RequiredFact::Found(vec![other.clone()])))
    );
    // The server does not check the permissions of so many workloads, and refuses the text.
    let many = (0..=CANDIDATES).map(|n| WorkloadName::read(&format!("n{n}/deployment/web")).unwrap());
    known.candidates.insert("web".to_owned(), many.collect());
    let told = refused(&body, &known);
    assert!(told.0 == 400 && told.1.contains("more than 10 workloads have this name"), "{told:?}");
}

#[test]
fn each_refusal_has_its_code() {
    let strict = body(&input("node", "a"), FieldValidation::Strict);
    let all = facts(&strict);
    assert_eq!(refused(&strict, &all), (400, "excludedNodes: no node has the name or host gone".to_owned()));
    let lax = |inputs: Value| body(&inputs, FieldValidation::Ignore);
    let with = |change: fn(&mut RequestFacts)| {
        let mut known = facts(&strict);
        change(&mut known);
        known
    };
    let of_node = lax(input("node", "a"));
    for (body, known, code) in [
        (&of_node, with(|known| known.service = Some(Service::None("none".to_owned()))), Code::NotServed),
        (
            &of_node,
            with(|known| known.service = Some(Service::Plugin { ungranted: Some("hostpath: /x".to_owned()) })),
            Code::Forbidden,
        ),
        (
            &of_node,
            with(|known| known.found.as_mut().unwrap().gap = Some("it is missing".to_owned())),
            Code::Unreachable,
        ),
        (&lax(input("node", "z")), all.clone(), Code::NoNode),
        (&lax(input("workspace", "z")), all.clone(), Code::NoWorkspace),
        (&lax(input("cluster", "z")), all.clone(), Code::NotFound),
        (&lax(input("node", "c")), all.clone(), Code::BadRequest),
        (
            &of_node,
            with(|known| {
                let target = TargetLock::new(NODE_WORK, "u-a");
                known.locked_target = Some(Some(TargetLocked { target, holder: "other".to_owned() }));
            }),
            Code::Busy,
        ),
    ] {
        assert_eq!(decide_create(body, &known, here()).unwrap_err().code, code);
    }
}

#[test]
fn names_that_exclude_nobody_are_told_and_not_stored_where_that_is_no_error() {
    let body = body(&input("cluster", "local"), FieldValidation::Warn);
    let CreateDecision::Accepted(job) = decide_create(&body, &facts(&body), here()).unwrap() else {
        panic!("all is known")
    };
    assert_eq!(job.spec["excludedNodes"], json!(["c"]));
    assert_eq!((job.ignored.len(), job.resolved.targets.len(), job.workspace.as_deref()), (1, 2, Some("team")));
}

#[test]
fn whoever_may_not_exec_into_pods_commits_none_of_their_containers() {
    let inputs = json!([{"name": "workload", "value": "d/pod/web"}, {"name": "mode", "value": "commit"}]);
    let body = json!({"name": "a", "type": "exportimage", "inputs": inputs});
    let body = Body::read(body.to_string().as_bytes(), FieldValidation::Strict, Defaults::default()).unwrap();
    let workload = WorkloadName::read("d/pod/web").unwrap();
    let mut known = facts(&body);
    known.candidates.insert("d/pod/web".to_owned(), vec![workload.clone()]);
    known.rights.insert(Access::to_workload(&workload), true);
    let needed = decide_create(&body, &known, here()).unwrap();
    assert!(
        matches!(&needed, CreateDecision::NeedsFact(RequiredFact::Rights(all)) if *all == [Access::to_exec("d")]),
        "{needed:?}"
    );
    known.rights.insert(Access::to_exec("d"), false);
    assert_eq!(refused(&body, &known), (403, "inputs: you may not create pods/exec of core in namespace d".to_owned()));
}
