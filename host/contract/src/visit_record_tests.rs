use super::*;
use crate::proposal::{ObjectRef, Registration, RelationKey, State};
use crate::replayed::differences;

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "shop", "uid": format!("u-{name}")},
        "status": {"phase": "Running"}})
}

fn related(name: &str, live: bool) -> PluginRead {
    PluginRead::Related { name: name.into(), live }
}

fn secret() -> ObjectKey {
    ObjectKey { kind: Kind::new("v1", "Secret"), namespace: Some("shop".into()), name: "key".into() }
}

fn relation() -> Relation {
    Relation { name: "new-pod".into(), kind: Kind::pod(), by: RelationKey::SameController }
}

fn evict(grace_seconds: Option<u32>) -> RecordedAnswer {
    let pod = ObjectRef { key: ObjectKey::pod("shop", "web-1"), uid: Some("u-web-1".into()) };
    let set_extra = vec![("a".into(), "1".into()), ("b".into(), "2".into())];
    RecordedAnswer::Proposed(Proposal {
        mutations: vec![Mutation::Evict { pod, grace_seconds }],
        set_extra,
        ..Proposal::default()
    })
}

fn record() -> VisitRecord {
    let limits = crate::limits::DEFAULTS;
    VisitRecord {
        format: FORMAT.into(),
        contract: CONTRACT.into(),
        plugin: RecordedPlugin {
            name: "replace".into(),
            version: "1.0.0".into(),
            digest: "sha256:00".into(),
            limits,
            config_digest: None,
            relations: vec![relation()],
        },
        job: VisitJob {
            namespace: "shop".into(),
            name: "job".into(),
            uid: "j".into(),
            action: "Replace".into(),
            now_ms: 5,
            parameters: json!({"strategy": "Evict"}),
            target_count: 2,
            cancelled: false,
        },
        target: RecordedTarget {
            name: "web-1".into(),
            index: 0,
            kind: "Pod".into(),
            uid: Some("u-web-1".into()),
            object: Some(0),
            containers: Vec::new(),
            extras: BTreeMap::new(),
            attempt: 1,
            call_try: 1,
            started_ms: 1,
            deadline_ms: Some(9),
            tasks: BTreeMap::new(),
        },
        calls: RecordedCalls::OperateThenProgress,
        position: 0,
        reads: vec![
            RecordedRead { read: related("new-pod", true), answer: ReadAnswer::Objects(vec![1]) },
            RecordedRead {
                read: PluginRead::Get { object: secret(), live: false },
                answer: ReadAnswer::Object(Some(2)),
            },
            RecordedRead { read: PluginRead::Serves { kind: Kind::node() }, answer: ReadAnswer::Served(true) },
        ],
        objects: vec![
            RecordedObject::Shown(pod("web-1")),
            RecordedObject::Shown(pod("web-2")),
            RecordedObject::Withheld(secret()),
        ],
        fields: vec![RecordedFields { kind: Kind::pod(), pointers: ["/status/phase".into()].into() }],
        answer: evict(None),
        cost: VisitCost { host_calls: 3, microseconds: 20, memory_bytes: 1 << 20 },
        verdict: RecordedVerdict::Taken,
        round: 7,
    }
}

/// Returns the record as JSON, after a change.
fn changed(change: impl FnOnce(&mut Value)) -> String {
    let mut value = serde_json::to_value(record()).unwrap();
    change(&mut value);
    value.to_string()
}

fn refusal(text: &str) -> String {
    VisitRecord::parse(text).unwrap_err().to_string()
}

/// A line of the first version that wrote the format. Never change it: hosts have stored such lines.
const GOLDEN: &str = include_str!("visit_record.golden.json");

#[test]
fn a_record_is_read_as_it_was_written_and_the_format_stays() {
    let line = record().line().unwrap();
    assert_eq!(VisitRecord::parse(&line).unwrap(), record());
    assert_eq!(line, GOLDEN.trim(), "a change of the format needs another name than {FORMAT}");
}

#[test]
fn a_record_of_another_version_or_with_unknown_fields_is_refused_with_the_reason() {
    let later = changed(|record| record["format"] = json!("oarlock.dev/visit.v2"));
    assert!(refusal(&later).contains(r#"the format "oarlock.dev/visit.v2""#), "{}", refusal(&later));
    let contract = changed(|record| record["contract"] = json!("oarlock:action@2.0.0\u{1b}[2J"));
    assert!(refusal(&contract).contains("oarlock:action@2.0.0") && !refusal(&contract).contains('\u{1b}'));
    for place in [
        "",
        "/plugin",
        "/job",
        "/target",
        "/reads/0",
        "/cost",
        "/answer/proposed",
        "/answer/proposed/mutations/0/evict",
    ] {
        let unknown = changed(|record| record.pointer_mut(place).unwrap()["glow"] = json!(1));
        assert!(refusal(&unknown).contains("unknown field `glow`"), "{place}: {}", refusal(&unknown));
    }
}

#[test]
fn a_truncated_record_is_refused_wherever_it_ends() {
    let line = record().line().unwrap();
    for end in 1..line.len() {
        let error = VisitRecord::parse(&line[..end]).unwrap_err();
        assert!(matches!(error, VisitRecordError::Truncated { .. }), "{end}: {error}");
    }
    for text in ["", "[]", "7", "{}", "nonsense"] {
        let error = refusal(text);
        assert!(error.contains("truncated") || error.contains("not a record"), "{text}: {error}");
    }
}

#[test]
fn a_record_that_is_too_long_or_names_objects_that_it_lacks_is_refused() {
    let long = changed(|record| record["job"]["parameters"] = json!("x".repeat(MAX_RECORD_BYTES)));
    assert!(refusal(&long).contains("longer than 256 KiB"));
    let mut large = record();
    large.job.parameters = json!("x".repeat(MAX_RECORD_BYTES));
    assert_eq!(large.line(), None);
    let beyond = changed(|record| record["target"]["object"] = json!(3));
    assert!(refusal(&beyond).contains("the object 3, and has only 3"), "{}", refusal(&beyond));
    let bare = changed(|record| record["objects"][1] = json!({"shown": {"kind": "Pod"}}));
    assert!(refusal(&bare).contains("the object 1 lacks a kind"));
    let deep = "{\"format\":".to_owned() + &"[".repeat(100_000);
    assert!(refusal(&deep).contains("not a record"));
}

#[test]
fn only_recorded_reads_are_answered() {
    let registration = Registration { relations: vec![relation()], ..Registration::default() };
    let record = record();
    let ask = |read: &PluginRead| record.answer_to(read, &registration);
    assert_eq!(ask(&related("new-pod", true)), Ok(ReadAnswer::Objects(vec![1])));
    assert_eq!(ask(&PluginRead::Serves { kind: Kind::node() }), Ok(ReadAnswer::Served(true)));
    let unrecorded = ask(&related("new-pod", false)).unwrap_err();
    assert_eq!(unrecorded.read, r#"related("new-pod", watched)"#);
    assert!(matches!(ask(&related("other", true)), Ok(ReadAnswer::NotDeclared(_))));
    let withheld = ask(&PluginRead::Get { object: secret(), live: false }).unwrap_err();
    assert!(withheld.why.contains("no record has the contents of Secrets"), "{withheld}");
    let other = Relation { by: RelationKey::OwnerIsJob, ..relation() };
    let registration = Registration { relations: vec![other], ..Registration::default() };
    assert!(record.answer_to(&related("new-pod", true), &registration).unwrap_err().why.contains("another rule"));
}

#[test]
fn a_field_that_was_not_recorded_is_not_taken_for_absent() {
    let record = record();
    assert_eq!(record.shows(&Kind::pod(), "/status/phase"), Ok(()));
    let unrecorded = record.shows(&Kind::pod(), "/spec/nodeName").unwrap_err();
    assert_eq!(unrecorded.read, r#"field("/spec/nodeName") of v1 Pod"#);
}

#[test]
fn answers_are_compared_by_value_and_differences_are_told() {
    assert_eq!(differences(&evict(None), &evict(None)), []);
    let mut reordered = evict(None);
    if let RecordedAnswer::Proposed(proposal) = &mut reordered {
        proposal.set_extra.reverse();
    }
    assert_eq!(differences(&evict(None), &reordered), []);
    let [difference] = differences(&evict(None), &evict(Some(5))).try_into().unwrap();
    assert_eq!(difference.to_string(), "/proposed/mutations/0/evict/graceSeconds: recorded null, replayed 5");
    let trap = |message: &str| RecordedAnswer::Trapped { reason: "PluginTrapped".into(), message: message.into() };
    assert_eq!(differences(&trap("operate trapped: at 0x1"), &trap("operate trapped: at 0x2")), []);
    assert_eq!(differences(&trap("operate trapped: x"), &trap("progress trapped: x")).len(), 1);
    let report = Report { state: State::Processing, proposal: Proposal::default(), check_after_ms: None };
    let reported = RecordedAnswer::Reported { operate: Proposal::default(), report };
    assert!(!differences(&evict(None), &reported).is_empty());
}

#[test]
fn the_contents_of_secrets_are_in_no_proposal() {
    let document = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key", "labels": {"a": "hidden"}},
        "data": {"a": "hidden"}});
    let object = ObjectRef { key: secret(), uid: None };
    let patch = Mutation::Patch { object, subresource: None, patch: json!({"data": {"a": "hidden"}}) };
    let mut proposal = Proposal { mutations: vec![Mutation::Create(document), patch], ..Proposal::default() };
    withhold(&mut proposal);
    let text = serde_json::to_string(&proposal).unwrap();
    assert!(!text.contains("hidden") && text.contains("\"name\":\"key\""), "{text}");
    assert!(is_secret(&Kind::new("external-secrets.io/v1", "ExternalSecret")) && !is_secret(&Kind::pod()));
}

#[test]
fn hostile_names_are_shown_without_control_characters() {
    let mut record = record();
    record.target.name = "a\u{1b}[2J\u{202e}b\nc".into();
    record.job.name = "\u{7}x".into();
    assert!(crate::names::is_plain(&record.subject()), "{:?}", record.subject());
    let read = PluginRead::Get { object: ObjectKey::pod("n\r", "\u{1b}]0;x\u{7}"), live: true };
    assert!(crate::names::is_plain(&read.to_string()), "{read}");
}
