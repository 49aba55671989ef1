//! Tests of `published`.

use serde_json::{Value, json};

use super::*;
use crate::ops_job::body::{Body, FieldValidation};
use crate::ops_job::spec::Defaults;

fn reach(namespaces: &[&str]) -> Reach {
    Reach { namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(), ..Reach::default() }
}

fn published() -> Published {
    let types = [
        ("reboot", ServedType::Serves(reach(&["oarlock-*"]))),
        ("dumplog", ServedType::Serves(reach(&["team"]))),
        ("exportimage", ServedType::Serves(reach(&["*"]))),
        ("preflight", ServedType::Serves(Reach { host_paths: vec!["/var/log".to_owned()], ..reach(&["*"]) })),
        ("addon", ServedType::missing("addon", "its grant does not cover it")),
    ];
    Published {
        renewal: 1,
        renewed_at: 1_000,
        keeps_files: true,
        exports: true,
        types: types.into_iter().map(|(word, own)| (word.to_owned(), own)).collect(),
        settings: SharedSettings::default().digests(),
        ..Published::default()
    }
}

fn service(published: &Published, body: &Value) -> String {
    let read = Body::read(body.to_string().as_bytes(), FieldValidation::Strict, Defaults::default());
    match published.service(&read.unwrap().asked) {
        Service::None(why) => why,
        Service::Plugin { ungranted } => ungranted.unwrap_or_else(|| "served".to_owned()),
    }
}

fn body(kind: &str, input: (&str, &str), more: &Value) -> Value {
    let mut body = json!({"name": "a", "type": kind, "inputs": [{"name": input.0, "value": input.1}]});
    let own = body.as_object_mut().unwrap();
    own.extend(more.as_object().cloned().unwrap_or_default());
    body
}

#[test]
fn a_type_is_served_as_far_as_its_grant_reaches_and_else_says_why_not() {
    let (all, node, none) = (published(), ("node", "n"), json!({}));
    assert_eq!(service(&all, &body("reboot", node, &none)), "served");
    assert_eq!(service(&all, &body("dumplog", ("workload", "team/pod/a"), &none)), "served");
    let elsewhere = service(&all, &body("dumplog", ("workload", "other/pod/a"), &none));
    assert_eq!(elsewhere, "the grant of the plugin for dumplog does not reach the namespace other");
    let addon = json!({"inputs": [{"name": "node", "value": "n"}, {"name": "script", "value": "dHJ1ZQ=="}]});
    assert_eq!(service(&all, &body("addon", node, &addon)), "no plugin serves addon: its grant does not cover it");
    let check = |path: &str| json!({"image": "i", "entryPoint": "dHJ1ZQ==", "hostpath": [path]});
    assert_eq!(service(&all, &body("preflight", node, &check("/var/log/apt"))), "served");
    assert!(service(&all, &body("preflight", node, &check("/srv"))).contains("/srv is not among the directories"));
    let bare = Published { keeps_files: false, exports: false, types: BTreeMap::new(), ..all };
    assert_eq!(service(&bare, &body("reboot", node, &none)), unserved("reboot"));
    assert_eq!(service(&bare, &body("dumplog", ("workload", "team/pod/a"), &none)), NO_FILES);
    assert_eq!(service(&bare, &body("exportimage", ("workload", "team/pod/a"), &none)), NO_REGISTRY);
}

#[test]
fn what_is_written_is_read_as_it_was_and_what_other_versions_add_is_no_fault() {
    let all = published();
    assert_eq!(Published::read(&all.clone().text()), Some(all.clone()));
    let mut later: Value = serde_json::from_str(&all.clone().text()).unwrap();
    later["quotas"] = json!({"jobs": 200});
    assert_eq!(Published::read(&later.to_string()), Some(all));
    assert_eq!(Published::read("{}"), None);
}

#[test]
fn a_grant_that_is_too_long_costs_its_own_type_alone() {
    let mut all = published();
    let long: Vec<String> = (0..100_000).map(|number| format!("team-{number}")).collect();
    all.types.insert("reboot".to_owned(), ServedType::Serves(Reach { namespaces: long, ..Reach::default() }));
    let text = all.text();
    assert!(text.len() <= MOST_BYTES);
    let read = Published::read(&text).unwrap();
    assert!(service(&read, &body("reboot", ("node", "n"), &json!({}))).contains("too long to be published"));
    assert_eq!(
        service(&read, &body("preflight", ("node", "n"), &json!({"image": "i", "entryPoint": "dHJ1ZQ=="}))),
        "served"
    );
}

#[test]
fn what_is_not_renewed_for_a_while_is_old_however_far_the_clocks_are_apart() {
    let second = Duration::from_secs(1);
    for skew in [-600, 0, 600] {
        let (mut renewals, mut read) = (Renewals::default(), published());
        assert!(!renewals.are_fresh(Duration::ZERO), "nothing was read");
        renewals.take(&read, Duration::ZERO, read.renewed_at + skew);
        assert!(renewals.are_fresh(OLD_AFTER), "{skew}");
        renewals.take(&read, OLD_AFTER, read.renewed_at + skew);
        assert!(!renewals.are_fresh(OLD_AFTER + second), "{skew}: reading it again renews nothing");
        read.renewal += 1;
        renewals.take(&read, OLD_AFTER + 2 * second, read.renewed_at + skew);
        assert!(renewals.are_fresh(2 * OLD_AFTER), "{skew}: it is fresh again");
    }
}

#[test]
fn what_a_host_left_that_went_long_ago_is_old_at_once_and_fresh_once_another_one_renews_it() {
    let (mut renewals, mut read) = (Renewals::default(), published());
    renewals.take(&read, Duration::ZERO, read.renewed_at + 700);
    assert!(!renewals.are_fresh(Duration::ZERO));
    read.renewal += 1;
    renewals.take(&read, Duration::ZERO, read.renewed_at + 700);
    assert!(renewals.are_fresh(Duration::ZERO));
}

#[test]
fn other_settings_are_named_and_no_value_of_them_is_published() {
    let own = SharedSettings { cluster: "blue".into(), history: "postgres://db/hidden".into(), ..Default::default() };
    let mut renewals = Renewals::default();
    let read = Published { settings: own.digests(), ..published() };
    assert!(!read.clone().text().contains("hidden"));
    renewals.take(&read, Duration::ZERO, read.renewed_at);
    let judged = |own: &SharedSettings| check(&read, &own.digests(), &renewals, Duration::ZERO);
    assert_eq!(judged(&own), Ok(()));
    let other = SharedSettings { history: String::new(), files: "s3://b".into(), ..own };
    let why = judged(&other).unwrap_err().describe();
    assert!(why.contains("--data or --artefacts, --history") && !why.contains("cluster"), "{why}");
}
