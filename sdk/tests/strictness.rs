//! Checks that the kit refuses the same answers as the host, with the same words.

use oarlock_sdk::kit::{Visit, object, pod};
use oarlock_sdk::{
    Action, Change, Failure, Freshness, Job, ObjectRef, Proposal, Registration, Relation, Report, Result, Target,
    export, get,
};
use serde_json::json;

/// Proposes the deed that the parameter `deed` names, so that one manifest is enough for all tests.
struct Strange;

impl Action for Strange {
    fn setup() -> Result<Registration> {
        Ok(Registration::new().relation(Relation::pods("siblings").same_controller()))
    }

    fn operate(job: &Job, target: &Target) -> Result<Proposal> {
        let Some(pod) = target.object() else { return Ok(Proposal::new()) };
        let nothing = Proposal::new();
        let widget = |namespace: &str| ObjectRef::new("x.io/v1", "Widget", Some(namespace.to_owned()), "w");
        let deed: String = job.parameter("/deed")?.unwrap_or_default();
        Ok(match deed.as_str() {
            "foreign namespace" => nothing.delete(widget("elsewhere")),
            "label value" => nothing.change(Change::of(&pod).set_label("a.b/c", "no value!")),
            "label key" => nothing.change(Change::of(&pod).set_label("a.b/-c", "1")),
            "host's key" => nothing.change(Change::of(&pod).set_label("x.oarlock.dev/c", "1")),
            "mutations" => (0..65).fold(nothing, |all, _| all.delete(widget("default"))),
            "events" => (0..17).fold(nothing, |all, n| all.event("Noted", n.to_string())),
            "extras" => nothing.extra("a", "x".repeat(2000)),
            "host's extra" => nothing.extra("Owner", "me"),
            "another pod" => nothing.evict(ObjectRef::new("v1", "Pod", pod.namespace(), "other"), None),
            "another uid" => nothing.evict(ObjectRef { uid: Some("u".to_owned()), ..ObjectRef::from(&pod) }, None),
            "unread" => nothing.delete(widget("default")),
            "whose" => {
                get(&widget("default"), Freshness::Watched)?;
                nothing.delete(widget("default"))
            }
            "subresource" => {
                get(&widget("default"), Freshness::Watched)?;
                nothing.patch(widget("default"), "[]")
            }
            "generated name" => nothing.create(
                json!({"apiVersion": "x.io/v1", "kind": "Widget", "metadata": {"generateName": "w-"}}).to_string(),
            ),
            "no JSON" => nothing.create("{"),
            "drain" => nothing.drain("node-1"),
            "many calls" => {
                (0..10_001).for_each(|_| drop(pod.name()));
                nothing
            }
            "large" => (0..60).fold(nothing, |all, n| all.event("Noted", format!("{n}{}", "x".repeat(5_000)))),
            "strange name" => {
                let found = get(&ObjectRef::new("x.io/v1", "Widget", pod.namespace(), "../w"), Freshness::Watched)?;
                nothing.extra("found", found.is_some().to_string())
            }
            _ => nothing,
        })
    }

    fn progress(_: &Job, target: &Target) -> Result<Report> {
        let siblings = target.related("siblings", Freshness::Watched)?;
        Ok(Report::processing().with(Proposal::new().extra("siblings", siblings.len().to_string())))
    }
}

export!(
    Strange,
    manifest = r#"{
    "schema": 1, "name": "strange", "version": "0.1.0", "action": "Strange", "target": ["Pod"],
    "reads": [{"apiVersion": "v1", "kind": "Pod", "reason": "r"},
              {"apiVersion": "x.io/v1", "kind": "Widget", "fields": ["/spec"], "reason": "r"}],
    "writes": [{"verb": "metadata", "apiVersion": "v1", "kind": "Pod", "reason": "r",
                "labels": ["a.b/*", "x.oarlock.dev/*"]},
               {"verb": "evict", "apiVersion": "v1", "kind": "Pod", "reason": "r"},
               {"verb": "create", "apiVersion": "x.io/v1", "kind": "Widget", "reason": "r"},
               {"verb": "patch", "apiVersion": "x.io/v1", "kind": "Widget", "reason": "r"},
               {"verb": "delete", "apiVersion": "x.io/v1", "kind": "Widget", "reason": "r"}],
    "parameters": {"type": "object", "properties": {"deed": {"type": "string"}}, "additionalProperties": false}}"#
);

fn deed(deed: &str) -> Visit {
    Visit::to(&pod("web")).parameters(json!({"deed": deed}))
}

fn refusal(visit: &Visit) -> Failure {
    let answer = visit.operate::<Strange>();
    assert!(answer.is_err(), "the host would refuse it: {answer:?}");
    answer.err().unwrap_or_else(|| Failure::permanent("", ""))
}

#[test]
fn what_the_host_would_refuse_the_kit_refuses_too() {
    for (name, words) in [
        ("foreign namespace", "the job is in namespace default"),
        ("label value", "is not a label value"),
        ("label key", "is not a qualified name"),
        ("host's key", "belongs to the host"),
        ("mutations", "65 mutations in one proposal; at most 64"),
        ("extras", "at most 1024 are stored"),
        ("host's extra", "extra Owner belongs to the host"),
        ("another pod", "the target is Pod web"),
        ("another uid", "it has another UID than the target"),
        ("subresource", "the patch is not a JSON object"),
        ("generated name", "has no name"),
        ("drain", "the target is Pod web"),
    ] {
        let failure = refusal(&deed(name));
        assert_eq!(failure.reason(), "MutationDenied", "{name}: {failure}");
        assert!(failure.message().contains(words), "{name}: {failure}");
    }
    let failure = refusal(&deed("no JSON"));
    assert!(failure.message().contains("not JSON") && failure.message().contains("line 1 column 1"), "{failure}");
}

#[test]
fn events_beyond_the_host_s_bound_are_refused() {
    let failure = refusal(&deed("events"));
    assert!(failure.message().contains("17 events in one proposal; at most 16"), "{failure}");
}

#[test]
fn a_call_that_asks_too_much_of_the_host_exceeds_its_limit() {
    let failure = refusal(&deed("many calls"));
    assert_eq!(failure.reason(), "PluginLimitExceeded", "{failure}");
    assert!(failure.message().contains("called the host more than 10000 times"), "{failure}");
    let failure = refusal(&deed("large"));
    assert!(failure.message().contains("more than 262144 bytes"), "{failure}");
}

#[test]
fn an_object_that_another_job_owns_is_left_alone() {
    let widget = object("x.io/v1", "Widget", Some("default"), "w");
    assert!(refusal(&deed("unread").object(&widget)).message().contains("read it with `get` first"));
    let theirs = widget.clone().controller("apps.kusionstack.io/v1alpha1", "OperationJob", "another");
    assert!(refusal(&deed("whose").object(&theirs)).message().contains("it belongs to job another"));
    assert!(deed("whose").object(&widget).operate::<Strange>().is_ok());
}

#[test]
fn parameters_that_the_schema_refuses_reach_no_call() {
    let failure = refusal(&Visit::to(&pod("web")).parameters(json!({"deed": 1})));
    assert_eq!(failure.reason(), "ParametersInvalid");
    assert!(failure.message().contains("1 is not of type \"string\""), "{failure}");
    let failure = refusal(&Visit::to(&pod("web")).parameters(json!({"speed": "high"})));
    assert!(failure.message().contains("speed"), "{failure}");
    let failure = refusal(&Visit::to(&pod("web")).config(json!({"colour": "blue"})));
    assert_eq!(failure.reason(), "ConfigInvalid");
}

#[test]
fn an_object_of_a_name_that_no_object_has_is_not_found() {
    let odd = object("x.io/v1", "Widget", Some("default"), "../w");
    let proposal = deed("strange name").object(&odd).operate::<Strange>().unwrap();
    assert_eq!(proposal, Proposal::new().extra("found", "false"));
}

#[test]
fn a_relation_by_the_controller_says_that_the_target_has_none() {
    let failure = Visit::to_gone("web").progress::<Strange>().unwrap_err();
    assert_eq!(failure.reason(), "KitLacks");
    assert!(failure.message().contains("relation siblings") && failure.message().contains("`controller`"), "{failure}");
}

/// Defines a plugin that the host refuses, for its registration or its manifest.
macro_rules! refused {
    ($name:ident, $setup:expr, $manifest:expr) => {
        struct $name;
        impl Action for $name {
            fn setup() -> Result<Registration> {
                Ok($setup)
            }
            fn operate(_: &Job, _: &Target) -> Result<Proposal> {
                Ok(Proposal::new())
            }
            fn progress(_: &Job, _: &Target) -> Result<Report> {
                Ok(Report::succeeded())
            }
        }
        export!($name, manifest = $manifest);
    };
}

refused!(
    Undeclared,
    Registration::new().relation(Relation::objects("maps", "v1", "ConfigMap").by_extra("map")),
    r#"{"schema": 1, "name": "a", "version": "0.1.0", "action": "A", "target": ["Pod"]}"#
);
refused!(
    Misspelt,
    Registration::new(),
    r#"{"schema": 1, "name": "a", "version": "0.1.0", "action": "A", "target": ["Pod"],
        "writes": [{"verb": "metadata", "apiVersion": "v1", "kind": "Pod", "lables": ["a"], "reason": "r"}]}"#
);
refused!(Broken, Registration::new(), "{\"schema\": 1,\n \"name\": \"a\",\n}");
refused!(NoTarget, Registration::new(), r#"{"schema": 1, "name": "a", "version": "0.1.0", "action": "A"}"#);

#[test]
fn a_manifest_that_the_host_refuses_fails_each_call_with_the_cause_and_its_place() {
    let refused = |failure: Failure, words: &[&str]| {
        assert_eq!(failure.reason(), "ManifestInvalid");
        words.iter().for_each(|word| assert!(failure.message().contains(word), "{failure}"));
    };
    let web = pod("web");
    refused(Visit::to(&web).operate::<Misspelt>().unwrap_err(), &["unknown field `lables`", "`labels`"]);
    refused(Visit::to(&web).operate::<Broken>().unwrap_err(), &["line 3 column 1"]);
    refused(Visit::to(&web).progress::<NoTarget>().unwrap_err(), &["missing field `target`"]);
}

#[test]
fn a_relation_that_the_manifest_does_not_declare_fails_each_call() {
    let failure = Visit::to(&pod("web")).operate::<Undeclared>().unwrap_err();
    assert_eq!(failure.reason(), "RegistrationRefused");
    assert!(failure.message().contains("add it to `reads` of the manifest"), "{failure}");
}
