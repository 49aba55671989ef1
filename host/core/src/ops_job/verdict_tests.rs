//! Tests of `verdict`.

use super::*;
use crate::ops_job::holders::HeldPlace;
use crate::ops_job::spec::Defaults;
use crate::ops_job::targets::NodeFacts;

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

/// All that a caller needs who may do everything.
fn facts(body: &Body) -> Facts {
    let all = Access::to_create(body.asked.kind, body.asked.has_own_script());
    let nodes = ["a", "b", "c"].map(node).to_vec();
    Facts {
        rights: all.into_iter().map(|access| (access, true)).collect(),
        service: Some(Service::Plugin { ungranted: None }),
        bounds: Some(CallerBounds::None),
        found: Some(Found { nodes, ..Found::default() }),
        taken: Some(None),
        ..Facts::default()
    }
}

fn here() -> Here<'static> {
    Here { cluster: "local", node: None }
}

fn refused(body: &Body, facts: &Facts) -> (u16, String) {
    let refusal = verdict(body, facts, here()).unwrap_err();
    (refusal.code.status(), refusal.message)
}

#[test]
fn facts_are_asked_for_one_after_the_other_and_none_before_the_one_before_it() {
    let body = body(&input("workload", "web"), FieldValidation::Warn);
    let all = facts(&body);
    let mut known = Facts::default();
    let needs = |known: &Facts| match verdict(&body, known, here()).unwrap() {
        OpsVerdict::Needs(need) => need,
        OpsVerdict::Stands(job) => panic!("{job:?}"),
    };
    assert!(matches!(needs(&known), RequestNeed::Rights(all) if all.len() == 2));
    known.rights = all.rights;
    assert_eq!(needs(&known), RequestNeed::Service);
    known.service = all.service;
    assert_eq!(needs(&known), RequestNeed::Bounds);
    known.bounds = all.bounds;
    assert_eq!(needs(&known), RequestNeed::Candidates("web".to_owned()));
    let candidate = WorkloadName::read("d/deployment/web").unwrap();
    known.candidates.insert("web".to_owned(), vec![candidate.clone()]);
    assert_eq!(needs(&known), RequestNeed::Rights(vec![Access::to_workload(&candidate)]));
    known.rights.insert(Access::to_workload(&candidate), true);
    assert_eq!(needs(&known), RequestNeed::Found(vec![candidate]));
    known.found = all.found.map(|found| Found { of_workloads: Some(BTreeSet::from(["a".to_owned()])), ..found });
    assert_eq!(needs(&known), RequestNeed::Taken(vec![HeldPlace::Node("u-a".to_owned())]));
    known.taken = Some(None);
    let OpsVerdict::Stands(job) = verdict(&body, &known, here()).unwrap() else { panic!("all is known") };
    assert_eq!((job.workspace.as_deref(), job.resolved.targets.len()), (Some("d"), 1));
}

#[test]
fn of_workloads_only_those_count_that_the_caller_may_read() {
    let body = body(&input("workload", "web"), FieldValidation::Ignore);
    let (one, other) = (WorkloadName::read("d/deployment/web").unwrap(), WorkloadName::read("e/sts/web").unwrap());
    let mut known = Facts { found: None, ..facts(&body) };
    known.candidates.insert("web".to_owned(), vec![one.clone(), other.clone()]);
    let may = |known: &mut Facts, one_may: bool, other_may: bool| {
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
    assert_eq!(verdict(&body, &known, here()), Ok(OpsVerdict::Needs(RequestNeed::Found(vec![other.clone()]))));
    // Whom the rights to so many would be asked for, some of them would not be seen.
    let many = (0..=CANDIDATES).map(|n| WorkloadName::read(&format!("n{n}/deployment/web")).unwrap());
    known.candidates.insert("web".to_owned(), many.collect());
    let told = refused(&body, &known);
    assert!(told.0 == 400 && told.1.contains("more than 10 are called so"), "{told:?}");
}

#[test]
fn whoever_has_rights_in_the_namespace_of_a_workspace_has_them_over_its_nodes() {
    let body = body(&input("workspace", "team"), FieldValidation::Ignore);
    let mut known = facts(&body);
    known.rights.values_mut().for_each(|may| *may = false);
    assert_eq!(verdict(&body, &known, here()), Ok(OpsVerdict::Needs(RequestNeed::NodeOperations("team".to_owned()))));
    known.node_operations.insert("team".to_owned(), false);
    assert_eq!(refused(&body, &known).0, 403);
    known.node_operations.insert("team".to_owned(), true);
    let there: Vec<Access> = known.rights.keys().map(|access| access.clone().within("team")).collect();
    let asked = verdict(&body, &known, here());
    assert!(
        matches!(asked, Ok(OpsVerdict::Needs(RequestNeed::Rights(all))) if all.iter().all(|access| access.namespace == "team"))
    );
    known.rights.extend(there.into_iter().map(|access| (access, true)));
    assert!(matches!(verdict(&body, &known, here()), Ok(OpsVerdict::Stands(_))));
    let wide = self::body(&input("cluster", "local"), FieldValidation::Ignore);
    assert_eq!(refused(&wide, &known).0, 403, "all nodes are not of the workspace");
}

#[test]
fn each_refusal_has_its_code() {
    let strict = body(&input("node", "a"), FieldValidation::Strict);
    let all = facts(&strict);
    assert_eq!(refused(&strict, &all), (400, "excludedNodes: no node has the name or host gone".to_owned()));
    let lax = |inputs: Value| body(&inputs, FieldValidation::Ignore);
    let with = |change: fn(&mut Facts)| {
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
                let place = HeldPlace::Node("u-a".to_owned());
                known.taken = Some(Some(PlaceTaken { place, holder: "other".to_owned() }));
            }),
            Code::Busy,
        ),
    ] {
        assert_eq!(verdict(body, &known, here()).unwrap_err().code, code);
    }
}

#[test]
fn names_that_exclude_nobody_are_told_and_not_stored_where_that_is_no_error() {
    let body = body(&input("cluster", "local"), FieldValidation::Warn);
    let OpsVerdict::Stands(job) = verdict(&body, &facts(&body), here()).unwrap() else { panic!("all is known") };
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
    let needed = verdict(&body, &known, here()).unwrap();
    assert!(
        matches!(&needed, OpsVerdict::Needs(RequestNeed::Rights(all)) if *all == [Access::to_exec("d")]),
        "{needed:?}"
    );
    known.rights.insert(Access::to_exec("d"), false);
    assert_eq!(refused(&body, &known), (403, "inputs: you may not create pods/exec of core in namespace d".to_owned()));
}

#[test]
fn a_long_label_is_refused_and_who_has_rights_in_one_namespace_keeps_no_job_for_long() {
    let of = |label: usize, ttl: i64| {
        let inputs = json!([{"name": "node", "value": "a"}, {"name": "label", "value": "x".repeat(label)}]);
        let body = json!({"name": "a", "type": "reboot", "inputs": inputs, "ttlSecondsAfterFinished": ttl});
        Body::read(body.to_string().as_bytes(), FieldValidation::Strict, Defaults::default()).unwrap()
    };
    let with = |body: &Body, bounds| Facts { bounds: Some(bounds), ..facts(body) };
    let tenant = CallerBounds::Tenant { max_ttl: 60 };
    for bounds in [CallerBounds::None, tenant] {
        let body = of(4_097, 0);
        let (status, words) = refused(&body, &with(&body, bounds));
        assert!(status == 400 && words.contains("at most 4096 bytes, and this one has 4097"), "{words}");
    }
    let body = of(4_096, -1);
    assert!(matches!(verdict(&body, &with(&body, CallerBounds::None), here()), Ok(OpsVerdict::Stands(_))));
    let (status, words) = refused(&body, &with(&body, tenant));
    assert!(status == 400 && words.starts_with("ttlSecondsAfterFinished: 0 to 60 s (--max-ttl)"), "{words}");
}
