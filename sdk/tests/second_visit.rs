//! Checks that the kit builds a second visit from the proposal of the first one.

use oarlock_sdk::kit::{Visit, object, pod};
use oarlock_sdk::{
    Action, Change, Freshness, Job, Mark, ObjectRef, Proposal, Registration, Relation, Report, Result, Target, export,
    get,
};
use serde_json::json;

/// Marks the pod, evicts it, and waits for a sibling.
struct Renew;

impl Action for Renew {
    fn setup() -> Result<Registration> {
        Ok(Registration::new().relation(Relation::pods("siblings").same_controller()))
    }

    fn operate(job: &Job, target: &Target) -> Result<Proposal> {
        let Some(pod) = target.object().filter(|pod| !pod.is_terminating()) else { return Ok(Proposal::new()) };
        if !pod.holds(job).has(Mark::Label("a.b/going")) {
            let mark = Change::of(&pod).set_label("a.b/going", "true").add_finalizer("a.b/guard");
            return Ok(Proposal::new().extra("Step", "marked").change(mark));
        }
        Ok(Proposal::new().extra("Step", "evicted").evict(&pod, Some(5)))
    }

    fn progress(_: &Job, target: &Target) -> Result<Report> {
        let new = target.related("siblings", Freshness::Watched)?.into_iter().next();
        Ok(match (target.object(), new) {
            (None, Some(new)) => Report::succeeded().with(Proposal::new().extra("New", new.name())),
            _ => Report::processing(),
        })
    }

    fn release(_: &Job, target: &Target) -> Result<Proposal> {
        let pod = target.object();
        let unmark = pod.map(|pod| Change::of(&pod).remove_label("a.b/going").remove_finalizer("a.b/guard"));
        Ok(unmark.map_or(Proposal::new(), |change| Proposal::new().change(change)))
    }
}

export!(
    Renew,
    manifest = r#"{"schema": 1, "name": "renew", "version": "0.1.0", "action": "Renew", "target": ["Pod"],
    "reads": [{"apiVersion": "v1", "kind": "Pod", "fields": ["/spec"], "reason": "r"},
              {"apiVersion": "x.io/v1", "kind": "Widget", "fields": ["/spec"], "reason": "r"}],
    "writes": [{"verb": "evict", "apiVersion": "v1", "kind": "Pod", "reason": "r"},
               {"verb": "metadata", "apiVersion": "v1", "kind": "Pod", "labels": ["a.b/going"],
                "finalizers": ["a.b/guard"], "reason": "r"},
               {"verb": "create", "apiVersion": "x.io/v1", "kind": "Widget", "reason": "r"},
               {"verb": "patch", "apiVersion": "x.io/v1", "kind": "Widget", "reason": "r"},
               {"verb": "delete", "apiVersion": "x.io/v1", "kind": "Widget", "reason": "r"}]}"#
);

#[test]
fn each_visit_finds_what_the_one_before_proposed() {
    let web = pod("web").controller("apps/v1", "ReplicaSet", "rs").created("2026-01-01T00:00:00Z");
    let first = Visit::to(&web);
    let second = first.after(&first.operate::<Renew>().unwrap());
    let evict = second.operate::<Renew>().unwrap();
    assert_eq!(evict, Proposal::new().extra("Step", "evicted").evict(&web, Some(5)));
    let third = second.after(&evict);
    assert_eq!(third.operate::<Renew>().unwrap(), Proposal::new(), "the pod is terminating");
    assert_eq!(third.progress::<Renew>().unwrap(), Report::processing());
    let new = pod("new").controller("apps/v1", "ReplicaSet", "rs").created("2026-01-31T12:00:01Z");
    let gone = third.gone().object(&new);
    assert_eq!(gone.progress::<Renew>().unwrap(), Report::succeeded().with(Proposal::new().extra("New", "new")));
}

#[test]
fn a_mark_is_a_hold_and_letting_go_of_it_takes_it_off() {
    let first = Visit::to(&pod("web"));
    let marked = first.after(&first.operate::<Renew>().unwrap());
    let clean = marked.after(&marked.release::<Renew>().unwrap());
    assert_eq!(clean.operate::<Renew>().unwrap().mutations(), first.operate::<Renew>().unwrap().mutations());
    // A mark that was there before is not a hold of this job, and stays.
    let foreign = Visit::to(&pod("web").label("a.b/going", "theirs"));
    let after = foreign.after(&foreign.operate::<Renew>().unwrap());
    assert!(
        after.operate::<Renew>().unwrap().mutations().iter().any(|m| matches!(m, oarlock_sdk::Mutation::Metadata(_)))
    );
}

/// Returns the Widget that a lookup finds after a proposal, as JSON.
fn widget_after(proposal: &Proposal, before: Visit) -> Option<serde_json::Value> {
    let found = before.after(proposal).read::<Renew, _>(|job, _| {
        let name = job.local("x.io/v1", "Widget", "w");
        Ok(get(&name, Freshness::Live)?.map(|widget| widget.json()).transpose()?)
    });
    assert!(found.is_ok(), "{found:?}");
    found.ok().flatten()
}

#[test]
fn objects_are_created_once_and_patched_and_deleted() {
    let name = ObjectRef::new("x.io/v1", "Widget", Some("default".to_owned()), "w");
    let create = |size: u32| {
        let document = json!({"apiVersion": "x.io/v1", "kind": "Widget",
            "metadata": {"name": "w", "namespace": "default"}, "spec": {"size": size, "colour": "red"}});
        Proposal::new().create(document.to_string())
    };
    let empty = Visit::to(&pod("web"));
    let made = widget_after(&create(1), empty.clone()).unwrap();
    assert_eq!(made["spec"], json!({"size": 1, "colour": "red"}));
    assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "uid-of-job");
    let created = empty.after(&create(1));
    assert_eq!(widget_after(&create(2), created.clone()).unwrap()["spec"]["size"], 1, "it is there already");
    let patch = Proposal::new().patch(name.clone(), json!({"spec": {"size": 3, "colour": null}}).to_string());
    assert_eq!(widget_after(&patch, created.clone()).unwrap()["spec"], json!({"size": 3}));
    assert_eq!(widget_after(&Proposal::new().delete(name.clone()), created), None);
    let guarded = Visit::to(&pod("web")).object(&object("x.io/v1", "Widget", Some("default"), "w").finalizer("a.b/c"));
    let leaving = widget_after(&Proposal::new().delete(name), guarded).unwrap();
    assert_eq!(leaving["metadata"]["deletionTimestamp"], "2026-01-31T12:00:00Z");
}

/// Waits for the ConfigMap that a parameter names.
struct Wait;

impl Action for Wait {
    fn setup() -> Result<Registration> {
        Ok(Registration::new().relation(Relation::objects("settings", "v1", "ConfigMap").by_parameter("/settings")))
    }

    fn operate(_: &Job, _: &Target) -> Result<Proposal> {
        Ok(Proposal::new())
    }

    fn progress(_: &Job, target: &Target) -> Result<Report> {
        let found = !target.related("settings", Freshness::Watched)?.is_empty();
        Ok(if found { Report::succeeded() } else { Report::processing() })
    }
}

export!(
    Wait,
    manifest = r#"{"schema": 1, "name": "wait", "version": "0.1.0", "action": "Wait", "target": ["Pod"],
    "reads": [{"apiVersion": "v1", "kind": "ConfigMap", "reason": "r"}],
    "parameters": {"type": "object", "properties": {"settings": {"type": "string"}}}}"#
);

#[test]
fn an_object_that_a_parameter_names_is_related() {
    let map = |name: &str| object("v1", "ConfigMap", Some("default"), name);
    let visit = Visit::to(&pod("web")).object(&map("other"));
    assert_eq!(visit.progress::<Wait>().unwrap(), Report::processing());
    let visit = visit.parameters(json!({"settings": "wanted"}));
    assert_eq!(visit.progress::<Wait>().unwrap(), Report::processing());
    assert_eq!(visit.object(&map("wanted")).progress::<Wait>().unwrap(), Report::succeeded());
}
