//! A record of a host becomes a unit test.

use oarlock_sdk::kit::Visit;
use oarlock_sdk::{Action, Freshness, Job, Proposal, Registration, Relation, Report, Result, Target, export};

const RECORD: &str = include_str!("../../host/contract/src/visit_record.golden.json");

const MANIFEST: &str = r#"{"schema": 1, "name": "replace", "version": "1.0.0", "action": "Replace", "target": ["Pod"],
    "reads": [{"apiVersion": "v1", "kind": "Pod", "fields": ["/status/phase", "/spec/nodeName"], "reason": "r"}],
    "parameters": {"type": "object"}, "writes": [{"verb": "evict", "apiVersion": "v1", "kind": "Pod", "reason": "r"}]}"#;

macro_rules! replace {
    ($name:ident, $grace:expr, $freshness:expr, $field:expr) => {
        struct $name;
        impl Action for $name {
            fn setup() -> Result<Registration> {
                Ok(Registration::new().relation(Relation::pods("new-pod").same_controller()))
            }
            fn operate(job: &Job, target: &Target) -> Result<Proposal> {
                assert_eq!((job.namespace().as_str(), job.name().as_str(), job.target_count()), ("shop", "job", 2));
                let new = target.related("new-pod", $freshness)?;
                assert_eq!(new.iter().map(|pod| pod.name()).collect::<Vec<_>>(), ["web-2"]);
                let Some(pod) = target.object() else { return Ok(Proposal::new()) };
                let _phase: Option<String> = pod.field($field)?;
                Ok(Proposal::new().evict(&pod, $grace).extra("b", "2").extra("a", "1"))
            }
            fn progress(_: &Job, _: &Target) -> Result<Report> {
                Ok(Report::processing())
            }
        }
        export!($name, manifest = MANIFEST);
    };
}

replace!(Same, None, Freshness::Live, "/status/phase");
replace!(Gentle, Some(30), Freshness::Live, "/status/phase");
replace!(Stale, None, Freshness::Watched, "/status/phase");
replace!(Curious, None, Freshness::Live, "/spec/nodeName");

#[test]
fn the_same_decision_passes() {
    Visit::from_record(RECORD).unwrap().replay::<Same>().unwrap();
}

#[test]
fn another_decision_fails_with_the_difference() {
    let failure = Visit::from_record(RECORD).unwrap().replay::<Gentle>().unwrap_err();
    assert_eq!(failure.reason(), "ReplayDiffers");
    assert!(
        failure.to_string().contains("/proposed/mutations/0/evict/graceSeconds: recorded null, replayed 30"),
        "{failure}"
    );
}

#[test]
fn a_read_that_the_record_lacks_fails_with_its_name() {
    let stale = Visit::from_record(RECORD).unwrap().replay::<Stale>().unwrap_err();
    assert!(stale.to_string().contains(r#"related("new-pod", watched)"#), "{stale}");
    let curious = Visit::from_record(RECORD).unwrap().replay::<Curious>().unwrap_err();
    assert!(curious.to_string().contains("/spec/nodeName"), "{curious}");
}

#[test]
fn a_text_that_is_no_record_is_refused_with_the_reason() {
    let failure = Visit::from_record(&RECORD[..300]).unwrap_err();
    assert!(failure.to_string().contains("truncated"), "{failure}");
}
