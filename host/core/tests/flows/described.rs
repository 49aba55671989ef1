//! The CRDs describe exactly the status fields that the host writes, for `kubectl explain`.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use oarlock_api::{Condition, FLOW_API_VERSION, FLOW_CRDS};
use oarlock_core::attempts::header::Header;
use oarlock_core::attempts::owner_summary::ParentSummary;
use oarlock_core::attempts::parent::{Parent, ParentKind};
use oarlock_core::attempts::status::{StatusInput, report};
use oarlock_core::attempts::unit::{CountsByState, JudgedBy, Unit, UnitState};
use oarlock_core::attempts::view::{ChildKind, ChildView};
use oarlock_core::job_template::template;
use serde_json::{Value, json};

fn at() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

/// Returns the schema of a kind's status.
fn schema(kind: &str) -> Value {
    let definitions = FLOW_CRDS.map(|crd| serde_saphyr::from_str::<Value>(crd).unwrap());
    let of_kind = |crd: &&Value| crd["spec"]["names"]["kind"] == kind;
    let crd = definitions.iter().find(of_kind).expect("the kind is defined");
    crd.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/status").unwrap().clone()
}

/// Collects the fields that a schema describes, as `steps[].name`. Open objects, such as the status of a Job, are left out.
fn described(schema: &Value, place: &str, found: &mut BTreeSet<String>) {
    for (field, below) in schema["properties"].as_object().into_iter().flatten() {
        let place = format!("{place}/{field}");
        described(below, &place, found);
        described(&below["items"], &format!("{place}[]"), found);
        found.insert(place);
    }
}

fn written(value: &Value, place: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (field, below) in fields {
                let place = format!("{place}/{field}");
                // The keys of this list are names, and Kubernetes defines its values.
                if field != "jobStatusList" {
                    written(below, &place, found);
                }
                found.insert(place);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| written(item, &format!("{place}[]"), found)),
        _ => {}
    }
}

/// Returns a unit with every field that the units of a kind may have. The code names each field, so that a new field cannot be forgotten here.
fn unit(kind: ParentKind, index: usize) -> Unit {
    let is_step = kind == ParentKind::Flow;
    let of = |text: &str, is_there: bool| if is_there { text.to_owned() } else { String::new() };
    Unit {
        name: format!("u{index}"),
        state: UnitState::Failed,
        reason: "R".to_owned(),
        message: "m".to_owned(),
        job: format!("j{index}"),
        job_uid: format!("uid-{index}"),
        attempt: 2,
        infra_attempts: 1,
        counted_from: 1,
        start_time: Some("2026-01-01T00:00:00Z".to_owned()),
        completion_time: Some("2026-01-01T00:00:00Z".to_owned()),
        revision: "0123456789abcdef".to_owned(),
        outdated: true,
        handled_by: of("h", is_step),
        tolerated: is_step,
        unjudged: true,
        passed_over: true,
        node_uid: of("n", !is_step),
        not_ready_since: (!is_step).then(|| "2026-01-01T00:00:00Z".to_owned()),
        template: of("t/1", is_step),
        judged_by: JudgedBy::default(),
    }
}

/// Returns the header with every field that a kind may have.
fn header(kind: ParentKind) -> Header {
    Header {
        start_time: Some(at()),
        completion_time: Some(at()),
        retry_token: Some("1".to_owned()),
        suspended_seconds: 1,
        suspended_since: Some(at()),
        set_generation: (kind == ParentKind::Daemon).then_some(1),
        imported_generation: Some(1),
        observed_generation: Some(1),
        state: "Failed".to_owned(),
        conditions: Vec::new(),
        is_truncated: true,
        lost_units: i64::from(kind == ParentKind::Daemon),
        first_record: 1,
    }
}

/// Returns the written status fields of an object with so many units that its unit table and its list of Job statuses are cut.
fn written_of(kind: ParentKind) -> BTreeSet<String> {
    let metadata = json!({"name": "p", "namespace": "d", "uid": "u", "generation": 1});
    let object = json!({"apiVersion": FLOW_API_VERSION, "kind": kind.name(), "metadata": metadata});
    let units: Vec<Unit> = (0..500).map(|index| unit(kind, index)).collect();
    let child = |unit: &Unit| {
        let job = json!({"metadata": {"name": unit.job, "namespace": "d", "uid": unit.job_uid},
            "status": {"failed": 1, "startTime": "2026-01-01T00:00:00Z"}});
        Arc::new(ChildView::read(ChildKind::Job, &job).unwrap())
    };
    let children: Vec<_> = units.iter().map(child).collect();
    let condition = Condition { observed_generation: Some(1), ..Condition::default() };
    let counts = CountsByState::of(&units);
    let summary = ParentSummary { counts, conditions: vec![condition], ..ParentSummary::default() };
    let parent = Parent::read(kind, object).unwrap();
    let header = header(kind);
    let input = StatusInput { parent: &parent, units: &units, header: &header, summary: &summary, children: &children };
    let mut found = BTreeSet::new();
    written(&report(input).status, "", &mut found);
    found
}

fn described_of(kind: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    described(&schema(kind), "", &mut found);
    found
}

#[test]
fn a_field_of_a_status_is_described_where_it_is_written_and_nowhere_else() {
    for kind in [ParentKind::Flow, ParentKind::Daemon] {
        let (described, written) = (described_of(kind.name()), written_of(kind));
        let unknown: Vec<&String> = written.difference(&described).collect();
        let never: Vec<&String> = described.difference(&written).collect();
        assert!(unknown.is_empty() && never.is_empty(), "{kind:?}: not described {unknown:?}, never written {never:?}");
    }
}

#[test]
fn the_status_of_a_template_is_described_as_it_is_written() {
    let template = template::StoredTemplate {
        namespace: "d".to_owned(),
        name: "t".to_owned(),
        uid: "u".to_owned(),
        version: "1".to_owned(),
        generation: 1,
        unread: None,
        job: json!({}),
        status: Value::Null,
    };
    let mut found = BTreeSet::new();
    written(&template::status(&template, [String::from("j")].iter(), at()), "", &mut found);
    assert_eq!(described_of("JobTemplate"), found);
}
