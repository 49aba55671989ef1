//! Tests of the cache for a child without its owner reference.

use serde_json::{Value, json};

use super::*;

const OWNER: &str = "0b9d8c1e-1111-4222-8333-444455556666";

fn parent() -> Parent {
    let metadata = json!({"namespace": "ns", "name": "f", "uid": OWNER, "resourceVersion": "1"});
    Parent::read(ParentKind::Flow, json!({ "metadata": metadata })).unwrap()
}

fn cache() -> FlowCache {
    let cache = FlowCache::default();
    cache.put_parent(parent());
    cache.take_dirty();
    cache
}

fn job(version: u64, owners: Value, labels: Value) -> ChildView {
    let metadata = json!({"namespace": "ns", "name": "f-a", "uid": "u", "resourceVersion": version.to_string(),
        "ownerReferences": owners, "labels": labels, "annotations": {"oarlock.dev/step": "a"}});
    ChildView::read(ChildKind::Job, &json!({ "metadata": metadata })).unwrap()
}

fn owned() -> Value {
    json!([{"apiVersion": "api.practice.com/v1alpha1", "kind": "JobFlow", "name": "f", "uid": OWNER}])
}

fn labelled() -> Value {
    json!({"oarlock.dev/owner-uid": OWNER, "oarlock.dev/owner-kind": "JobFlow"})
}

/// Returns whether the flow became dirty. Also returns for each child whether it is disowned and whether it is gone.
fn seen(cache: &FlowCache) -> (bool, Vec<(bool, bool)>) {
    let key = ParentKind::Flow.key("ns", "f");
    let children = cache.view(&key).unwrap().children;
    (cache.take_dirty().contains(&key), children.iter().map(|child| (child.orphaned, child.gone)).collect())
}

#[test]
fn a_stripped_child_stays_with_its_owner_until_it_goes_label_or_not() {
    for labels in [labelled(), json!({})] {
        let cache = cache();
        cache.put_child(job(2, owned(), labels.clone()));
        assert_eq!(seen(&cache), (true, vec![(false, false)]));
        cache.put_child(job(3, json!([]), labels.clone()));
        assert_eq!(seen(&cache), (true, vec![(true, false)]), "{labels}");
        cache.put_child(job(4, json!([]), labels.clone()));
        assert_eq!(seen(&cache), (true, vec![(true, false)]), "{labels}");
        cache.drop_child(job(5, json!([]), labels.clone()));
        assert_eq!(seen(&cache), (true, vec![(true, true)]), "{labels}");
        cache.forget_gone(&parent(), &["u".to_owned()]);
        assert_eq!(seen(&cache), (false, vec![]));
    }
}

#[test]
fn an_owner_reference_that_is_put_back_heals() {
    let cache = cache();
    cache.put_child(job(2, owned(), labelled()));
    cache.put_child(job(3, json!([]), labelled()));
    cache.put_child(job(4, owned(), labelled()));
    assert_eq!(seen(&cache), (true, vec![(false, false)]));
}

#[test]
fn a_stripped_child_is_found_by_its_label_in_a_first_list() {
    let cache = cache();
    cache.reset_children(ChildKind::Job, vec![job(3, json!([]), labelled())], 9);
    assert_eq!(seen(&cache), (true, vec![(true, false)]));
    cache.reset_children(ChildKind::Job, Vec::new(), 10);
    assert_eq!(seen(&cache), (true, vec![(true, true)]));
}

#[test]
fn a_child_that_another_owner_takes_is_gone_for_the_first_one() {
    let cache = cache();
    cache.put_child(job(2, owned(), labelled()));
    let other = json!([{"apiVersion": "api.practice.com/v1alpha1", "kind": "JobFlow", "name": "g", "uid": "another"}]);
    cache.put_child(job(3, other, labelled()));
    assert_eq!(seen(&cache), (true, vec![(false, true)]));
}

#[test]
fn a_template_names_its_jobs_and_those_that_changed_once_each() {
    let cache = FlowCache::default();
    let of_template = json!({"metadata": {"namespace": "ns", "name": "t", "uid": "t", "resourceVersion": "1"}});
    cache.put_template(StoredTemplate::read(of_template).unwrap());
    let made = |version: u64, name: &str, template: Option<&str>| {
        let metadata = json!({"namespace": "ns", "name": name, "uid": name, "resourceVersion": version.to_string(),
            "annotations": {"createByJobTemplate": template}});
        ChildView::read(ChildKind::Job, &json!({ "metadata": metadata })).unwrap()
    };
    let names = || cache.template(&template_key("ns", "t")).unwrap().1;
    cache.put_child(made(2, "b", Some("ns.t")));
    cache.put_child(made(3, "a", Some("ns.t")));
    cache.take_dirty();
    cache.put_child(made(4, "b", Some("ns.t")));
    assert_eq!((names(), cache.take_dirty().len()), (vec!["a".to_owned(), "b".to_owned()], 0));
    cache.put_child(made(5, "b", None));
    assert_eq!((names(), cache.take_dirty().len()), (vec!["a".to_owned()], 1));
    cache.drop_child(made(6, "a", Some("ns.t")));
    assert_eq!((names(), cache.take_dirty().len()), (vec![], 1));
}

#[test]
fn a_job_of_another_namespace_is_no_child_and_makes_no_round() {
    for (owners, labels) in [(owned(), labelled()), (owned(), json!({})), (json!([]), labelled())] {
        let cache = cache();
        let elsewhere =
            |version| ChildView { namespace: "other".to_owned(), ..job(version, owners.clone(), labels.clone()) };
        cache.put_child(elsewhere(2));
        assert_eq!(seen(&cache), (false, vec![]), "{owners} {labels}");
        cache.drop_child(elsewhere(3));
        assert_eq!(seen(&cache), (false, vec![]), "{owners} {labels}");
        cache.reset_children(ChildKind::Job, vec![elsewhere(4)], 9);
        cache.reply_child(elsewhere(5));
        assert_eq!(seen(&cache), (false, vec![]), "{owners} {labels}");
    }
}

#[test]
fn a_job_that_names_another_kind_of_owner_with_the_same_uid_is_no_child() {
    let cache = cache();
    let daemon = json!([{"apiVersion": "api.practice.com/v1alpha1", "kind": "DaemonJob", "name": "f", "uid": OWNER}]);
    cache.put_child(job(2, daemon, json!({})));
    assert!(!seen(&cache).0);
}

#[test]
fn a_doubted_view_is_trusted_after_a_newer_one_or_a_read() {
    let cache = cache();
    let key = ParentKind::Flow.key("ns", "f");
    cache.doubt(&key);
    assert!(cache.is_uncertain(&key));
    cache.put_parent(Parent { version: "2".to_owned(), ..parent() });
    assert!(!cache.is_uncertain(&key));
    cache.doubt(&key);
    let stored = json!({"metadata": {"namespace": "ns", "name": "f", "uid": OWNER, "resourceVersion": "2"}});
    cache.confirm(&key, Some(OWNER), Some(stored));
    assert!(!cache.is_uncertain(&key) && cache.view(&key).is_some());
    cache.doubt(&key);
    // After a restore of an older backup, versions are lower.
    let another = json!({"metadata": {"namespace": "ns", "name": "f", "uid": "another", "resourceVersion": "1"}});
    cache.confirm(&key, Some(OWNER), Some(another));
    assert!(!cache.is_uncertain(&key) && cache.view(&key).unwrap().parent.uid == "another");
    cache.doubt(&key);
    cache.confirm(&key, Some("another"), None);
    assert!(!cache.is_uncertain(&key) && cache.view(&key).is_none());
}

#[test]
fn a_list_drops_only_parents_of_its_kind_that_are_no_newer_than_itself() {
    let cache = cache();
    let daemon = Parent { kind: ParentKind::Daemon, uid: "d".to_owned(), version: "5".to_owned(), ..parent() };
    cache.put_parent(daemon);
    cache.reset_parents(ParentKind::Daemon, Vec::new(), 4);
    assert_eq!(cache.keys().len(), 2, "the DaemonJob was made after the list");
    cache.reset_parents(ParentKind::Daemon, Vec::new(), 5);
    assert_eq!(cache.keys(), [ParentKind::Flow.key("ns", "f")]);
}
