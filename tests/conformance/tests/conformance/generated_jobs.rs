//! Checks generated Jobs: the in-memory API accepts and refuses what the real API server does, for the same reasons.
//!
//! Jobs and changes of Jobs are drawn from seeds, with a mix of valid and invalid values. Each is sent as a dry run to both
//! servers. A difference is reported with its Job, so that it can become a script of `tests/conformance/cases/jobs.yaml`.

use std::collections::BTreeSet;

use http::Request;
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use oarlock_conformance::Sides;
use oarlock_sim::Random;
use regex::Regex;
use serde_json::{Map, Value, json};

use crate::groups;

/// The numbers of created Jobs and of requested changes.
const JOBS: u64 = 300;
const CHANGES: u64 = 200;
/// The namespace of all generated Jobs.
const NAMESPACE: &str = "generated-jobs";

/// Draws values: mostly valid ones, and some invalid ones.
struct Draw {
    random: Random,
    /// The percentage of odd values.
    odd: u64,
}

impl Draw {
    /// Returns a drawer for a seed. A third of the seeds have no odd value, so that enough Jobs are valid.
    fn seeded(seed: u64) -> Self {
        Self { random: Random::seeded(seed), odd: [0, 15, 50][usize::try_from(seed % 3).unwrap()] }
    }

    fn chance(&mut self, of_a_hundred: u64) -> bool {
        self.random.up_to(99) < of_a_hundred
    }

    fn count(&mut self, most: u64) -> usize {
        usize::try_from(self.random.up_to(most)).unwrap()
    }

    fn one_of(&mut self, values: &Value) -> Value {
        let values = values.as_array().unwrap();
        values[self.count(values.len() as u64 - 1)].clone()
    }

    /// Draws a usual value or an odd value.
    fn value(&mut self, usual: Value, odd: Value) -> Value {
        let is_odd = self.chance(self.odd);
        self.one_of(if is_odd { &odd } else { &usual })
    }

    /// Draws a name: short, or about as long as a label or a subdomain may be, some with dots.
    fn name(&mut self) -> String {
        let length = match self.random.up_to(9) {
            0..=4 => 1 + self.count(19),
            5..=7 => 56 + self.count(9),
            8 => 64 + self.count(40),
            _ => 249 + self.count(8),
        };
        let letters = if self.chance(self.odd) { "ab0.-A_" } else { "abc012" };
        let letters: Vec<char> = letters.chars().collect();
        let mut name: Vec<char> = (0..length).map(|_| letters[self.count(letters.len() as u64 - 1)]).collect();
        // A dot between letters makes a subdomain.
        if self.chance(20) && length > 2 {
            let place = 1 + self.count(length as u64 - 3);
            name[place] = '.';
        }
        name.into_iter().collect()
    }

    /// Draws a list of up to `most` values.
    fn list(&mut self, most: u64, one: impl Fn(&mut Self) -> Value) -> Value {
        let count = self.count(most);
        (0..count).map(|_| one(self)).collect()
    }
}

/// Sets a field in a percentage of the Jobs.
fn some(draw: &mut Draw, map: &mut Map<String, Value>, field: &str, (chance, value): (u64, fn(&mut Draw) -> Value)) {
    if draw.chance(chance) {
        map.insert(field.to_owned(), value(draw));
    }
}

fn failure_rule(draw: &mut Draw) -> Value {
    let mut rule = Map::new();
    let action = draw.value(json!(["FailJob", "Ignore", "Count"]), json!(["", "Panic", "FailIndex"]));
    rule.insert("action".to_owned(), action);
    let about_codes = draw.chance(50);
    if about_codes || draw.chance(draw.odd) {
        let mut codes = Map::new();
        codes.insert("operator".to_owned(), draw.value(json!(["In", "NotIn"]), json!(["", "Like"])));
        some(
            draw,
            &mut codes,
            "containerName",
            (30, |draw| draw.value(json!(["main", "first"]), json!(["", "other"]))),
        );
        let values =
            draw.value(json!([[1], [1, 2], [3, 40, 255]]), json!([[], [0], [0, 1], [2, 1], [1, 1], [3, 1, 3]]));
        codes.insert("values".to_owned(), values);
        rule.insert("onExitCodes".to_owned(), codes.into());
    }
    if !about_codes || draw.chance(draw.odd) {
        rule.insert("onPodConditions".to_owned(), vec![condition(draw); 1 + draw.count(1)].into());
    }
    rule.into()
}

fn condition(draw: &mut Draw) -> Value {
    let kind =
        draw.value(json!(["DisruptionTarget", "example.com/Broken"]), json!(["", "/x", "a/b/c", "-x", "Sub.Domain/y"]));
    let mut pattern = Map::from_iter([("type".to_owned(), kind)]);
    some(
        draw,
        &mut pattern,
        "status",
        (70, |draw| draw.value(json!(["True", "False", "Unknown", ""]), json!(["Maybe"]))),
    );
    pattern.into()
}

fn failure_policy(draw: &mut Draw) -> Value {
    if draw.chance(draw.odd / 10) {
        return json!({"rules": vec![failure_rule(draw); 21]});
    }
    json!({"rules": draw.list(3, failure_rule)})
}

fn success_rule(draw: &mut Draw) -> Value {
    let mut rule = Map::new();
    some(
        draw,
        &mut rule,
        "succeededIndexes",
        (60, |draw| {
            let odd = json!(["9", "a", "1,", ",", "2-1", "1-1", "1,1", "0-1-2", "-1", "+1", "01", "0-99"]);
            draw.value(json!(["", "0", "0,2", "0-1", "0,1-2"]), odd)
        }),
    );
    if rule.is_empty() || draw.chance(40) {
        rule.insert("succeededCount".to_owned(), draw.value(json!([0, 1]), json!([-1, 2, 4, 100])));
    }
    if draw.chance(draw.odd / 5) { json!({}) } else { rule.into() }
}

fn success_policy(draw: &mut Draw) -> Value {
    if draw.chance(draw.odd / 5) {
        return json!({"rules": vec![success_rule(draw); 21 * draw.count(1)]});
    }
    json!({"rules": [success_rule(draw), success_rule(draw)]})
}

fn manager(draw: &mut Draw) -> Value {
    let long = format!("example.com/{}", "a".repeat(60));
    let odd = json!(["", "a", "/a", "a/", "A.b/c", "a/b c", "a..b/c", "-/?#", long]);
    draw.value(json!(["example.com/controller", "a/b/c", "kubernetes.io/job-controller"]), odd)
}

fn numbers(draw: &mut Draw, spec: &mut Map<String, Value>, is_indexed: bool) {
    some(draw, spec, "parallelism", (50, |draw| draw.value(json!([0, 1, 3]), json!([-1, 10_001, 100_001]))));
    // A NonIndexed Job does not need `completions`.
    if is_indexed || draw.chance(50) {
        spec.insert(
            "completions".to_owned(),
            draw.value(json!([3, 5, 11, 200]), json!([0, -1, 100_001, 3_000_000_000_u64])),
        );
    }
    some(draw, spec, "backoffLimit", (30, |draw| draw.value(json!([0, 6]), json!([-1]))));
    some(draw, spec, "activeDeadlineSeconds", (20, |draw| draw.value(json!([0, 60]), json!([-1]))));
    some(draw, spec, "ttlSecondsAfterFinished", (20, |draw| draw.value(json!([0, 60]), json!([-1]))));
    if is_indexed || draw.chance(draw.odd) {
        some(draw, spec, "backoffLimitPerIndex", (50, |draw| draw.value(json!([0, 2]), json!([-1]))));
    }
    if spec.contains_key("backoffLimitPerIndex") || draw.chance(draw.odd / 2) {
        some(draw, spec, "maxFailedIndexes", (50, |draw| draw.value(json!([0, 2]), json!([-1, 7, 10_001, 100_001]))));
    }
}

fn policies(draw: &mut Draw, spec: &mut Map<String, Value>, is_indexed: bool) {
    some(draw, spec, "podFailurePolicy", (40, failure_policy));
    if is_indexed || draw.chance(draw.odd / 5) {
        some(draw, spec, "successPolicy", (50, success_policy));
    }
    some(
        draw,
        spec,
        "podReplacementPolicy",
        (30, |draw| draw.value(json!(["Failed"]), json!(["TerminatingOrFailed", "", "Never"]))),
    );
    some(draw, spec, "managedBy", (30, manager));
    some(draw, spec, "suspend", (30, |draw| draw.value(json!([true, false]), json!([null]))));
}

/// Draws a selector, and labels that it may or may not match.
fn selector(draw: &mut Draw, spec: &mut Map<String, Value>) {
    let is_manual = draw.chance(25);
    if is_manual || draw.chance(draw.odd / 5) {
        let usual =
            json!([{"matchLabels": {"app": "x"}}, {"matchExpressions": [{"key": "app", "operator": "Exists"}]}]);
        let odd = json!([
            null,
            {},
            {"matchLabels": {"app": "z"}},
            {"matchLabels": {"a b": "-"}},
            {"matchExpressions": [{"key": "app", "operator": "Like"}]},
            {"matchExpressions": [{"key": "", "operator": "In"}]},
            {"matchExpressions": [{"key": "app", "operator": "DoesNotExist", "values": ["x"]}]},
            {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["x", "a b"]}]},
        ]);
        spec.insert("selector".to_owned(), draw.value(usual, odd));
    }
    if is_manual || draw.chance(10) {
        spec.insert("manualSelector".to_owned(), is_manual.into());
    }
    if is_manual || draw.chance(30) {
        let odd =
            json!([null, {"job-name": "other"}, {"controller-uid": "mine", "app": "x"}, {"a b": "c"}, {"app": "-"}]);
        spec["template"]["metadata"]["labels"] = draw.value(json!([{"app": "x"}, {"app": "x", "b": ""}]), odd);
    }
}

fn spec(draw: &mut Draw) -> Map<String, Value> {
    let restart = draw.value(json!(["Never"]), json!(["OnFailure", "Always", "", "Sometimes"]));
    let first = json!([{"name": "first", "image": "none"}]);
    let pod = json!({
        "restartPolicy": restart, "initContainers": first, "containers": [{"name": "main", "image": "none"}],
    });
    let mut spec = Map::from_iter([("template".to_owned(), json!({"metadata": {}, "spec": pod}))]);
    let is_indexed = draw.chance(50);
    if is_indexed || draw.chance(20) {
        let other = draw.value(json!(["NonIndexed"]), json!(["", "Sideways"]));
        spec.insert("completionMode".to_owned(), if is_indexed { json!("Indexed") } else { other });
    }
    numbers(draw, &mut spec, is_indexed);
    policies(draw, &mut spec, is_indexed);
    selector(draw, &mut spec);
    // Sometimes an Indexed Job has no completions. If it also has a success policy, the real server drops the connection, because
    // it reads the missing completions.
    if is_indexed && draw.chance(draw.odd / 5) {
        spec.shift_remove("completions");
        spec.shift_remove("successPolicy");
    }
    spec
}

fn job(draw: &mut Draw) -> Value {
    let name = draw.name();
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec(draw)})
}

/// The relevant parts of a reply: the reason and unique causes of a refusal, or the spec of a Job.
#[derive(Debug, PartialEq)]
struct Answer {
    code: u16,
    reason: String,
    causes: BTreeSet<[String; 3]>,
    spec: Value,
}

impl Answer {
    /// Returns the parts that only one of the two answers has.
    fn beside(&self, sim: &Self) -> String {
        let only = |one: &Self, other: &Self| {
            let causes: Vec<_> = one.causes.difference(&other.causes).collect();
            let spec = if one.spec == other.spec { "" } else { &one.spec.to_string() };
            format!("{} {} {causes:?} {spec}", one.code, one.reason)
        };
        format!("  real {}\n  sim  {}", only(self, sim), only(sim, self))
    }
}

async fn answer(client: &Client, request: Request<Vec<u8>>) -> Answer {
    let reply = client.send(request.map(Body::from)).await.unwrap();
    let code = reply.status().as_u16();
    let content = reply.into_body().collect().await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&content).unwrap_or_default();
    let text = |value: &Value, field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let uid = Regex::new("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").unwrap();
    let message = |cause: &Value| {
        let message = text(cause, "message");
        match text(cause, "field").as_str() {
            // Go's decoder prints the whole Job here.
            "patch" => String::new(),
            // The real server prints a template as its Go structures.
            "spec.template" | "spec.template.spec" if message.ends_with("field is immutable") => String::new(),
            _ => uid.replace_all(&message, "<uid>").into_owned(),
        }
    };
    let causes = body.pointer("/details/causes").and_then(Value::as_array).into_iter().flatten();
    let causes = causes.map(|cause| [text(cause, "reason"), text(cause, "field"), message(cause)]).collect();
    let spec = body.get("spec").cloned().unwrap_or_default().to_string();
    let mut spec = serde_json::from_str(&uid.replace_all(&spec, "<uid>")).unwrap();
    without_nothing(&mut spec);
    Answer { code, reason: text(&body, "reason"), causes, spec }
}

/// Removes nulls and empty maps, which Go writes for unset fields, and empty lists, which Go does not store.
fn without_nothing(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(without_nothing),
        Value::Object(map) => {
            map.values_mut().for_each(without_nothing);
            map.retain(|_, value| ![json!(null), json!({}), json!([])].contains(value));
        }
        _ => {}
    }
}

fn request(verb: &str, path: &str, content: &str, body: &Value) -> Request<Vec<u8>> {
    let builder = Request::builder().method(verb).uri(path).header("accept", "application/json");
    builder.header("content-type", content).body(body.to_string().into_bytes()).unwrap()
}

fn path(rest: &str) -> String {
    format!("/apis/batch/v1/namespaces/{NAMESPACE}/jobs{rest}")
}

/// The answers of both servers so far.
#[derive(Default)]
struct Comparison {
    accepted: usize,
    refused: usize,
    /// Fields and reasons of refusals, to check that the drawn Jobs vary.
    kinds: BTreeSet<[String; 2]>,
    differences: Vec<String>,
}

impl Comparison {
    async fn ask(&mut self, sides: &Sides, verb: &str, (path, content): (&str, &str), body: &Value) {
        let ask = |client| answer(client, request(verb, path, content, body));
        let (real, sim) = (ask(&sides.real.client).await, ask(&sides.sim.client).await);
        if real.code < 300 {
            self.accepted += 1
        } else {
            self.refused += 1
        }
        let indexes = Regex::new(r"\[\d+\]").unwrap();
        let kind = |[reason, field, _]: &[String; 3]| [reason.clone(), indexes.replace_all(field, "").into_owned()];
        self.kinds.extend(real.causes.iter().map(kind));
        if real != sim {
            self.differences.push(format!("{verb} {path} {body}\n{}", real.beside(&sim)));
        }
    }

    /// Fails if there is a difference, or if too few cases were seen for a meaningful result.
    fn check(&self, (accepted, refused, kinds): (usize, usize, usize)) {
        let Self { differences, .. } = self;
        let shown = differences.iter().take(10).map(String::as_str).collect::<Vec<_>>().join("\n");
        assert!(differences.is_empty(), "{} differences, of which:\n{shown}", differences.len());
        let seen = (self.accepted, self.refused, self.kinds.len());
        let is_enough = seen.0 >= accepted && seen.1 >= refused && seen.2 >= kinds;
        assert!(is_enough, "accepted, refused and kinds of causes: {seen:?} of {:?}", (accepted, refused, kinds));
    }
}

/// Creates the namespace, unless the other test has created it.
async fn sides() -> Sides {
    let sides = groups::sides().await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    for side in [&sides.real, &sides.sim] {
        let made = answer(&side.client, request("POST", "/api/v1/namespaces", "application/json", &namespace)).await;
        assert!(matches!(made.code, 201 | 409), "{made:?}");
    }
    sides
}

#[tokio::test]
async fn generated_job_is_taken_or_refused_for_the_same_reasons() {
    let sides = sides().await;
    let mut seen = Comparison::default();
    for seed in 0..JOBS {
        let job = job(&mut Draw::seeded(seed));
        seen.ask(&sides, "POST", (&path("?dryRun=All"), "application/json"), &job).await;
    }
    seen.check((60, 120, 30));
}

/// Returns Jobs to change: one of each mode, running, suspended, and with policies.
fn stored() -> [Value; 4] {
    let pod = json!({
        "restartPolicy": "Never", "initContainers": [{"name": "first", "image": "none"}],
        "containers": [{"name": "main", "image": "none"}],
    });
    let template = json!({"metadata": {"labels": {"app": "x"}}, "spec": pod});
    let policy = json!({"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}]});
    let specs = [
        json!({"completions": 3}),
        json!({"completions": 3, "parallelism": 3, "completionMode": "Indexed", "suspend": true}),
        json!({"completions": 5, "completionMode": "Indexed", "backoffLimitPerIndex": 2, "podFailurePolicy": policy}),
        json!({"completions": 3, "suspend": true, "manualSelector": true, "selector": {"matchLabels": {"app": "x"}}}),
    ];
    let mut number = 0;
    specs.map(|mut spec| {
        number += 1;
        spec["template"] = template.clone();
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": format!("stored-{number}")}, "spec": spec})
    })
}

/// Draws a change of a few fields, so that some changes miss the fields that never change.
fn change(draw: &mut Draw) -> Value {
    let mut spec = spec(draw);
    let kept = 1 + draw.count(2);
    while spec.len() > kept {
        let dropped = spec.keys().nth(draw.count(spec.len() as u64 - 1)).cloned().unwrap();
        spec.shift_remove(&dropped);
    }
    if let Some(pod) =
        spec.get_mut("template").and_then(|template| template.get_mut("spec")).filter(|_| draw.chance(80))
    {
        *pod = draw.one_of(&json!([
            {"nodeSelector": {"zone": "a"}},
            {"tolerations": [{"key": "a", "operator": "Exists"}]},
            {"schedulingGates": [{"name": "example.com/gate"}]},
            {"affinity": {"podAffinity": {}}},
            {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}},
            {"containers": [{"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}]},
            {"containers": [{"name": "main", "image": "other"}]},
            {"terminationGracePeriodSeconds": 5},
        ]));
    }
    json!({ "spec": spec })
}

#[tokio::test]
async fn generated_change_of_a_job_is_taken_or_refused_for_the_same_reasons() {
    let sides = sides().await;
    let jobs = stored();
    for job in &jobs {
        for side in [&sides.real, &sides.sim] {
            let made = answer(&side.client, request("POST", &path(""), "application/json", job)).await;
            assert_eq!(made.code, 201, "{made:?}");
        }
    }
    let mut seen = Comparison::default();
    for (seed, job) in (0..CHANGES).zip(jobs.iter().cycle()) {
        let place = path(&format!("/{}?dryRun=All", job["metadata"]["name"].as_str().unwrap()));
        // Three kinds of seeds and four Jobs alternate, so each Job meets each kind.
        let change = change(&mut Draw::seeded(1_000 + seed));
        seen.ask(&sides, "PATCH", (&place, "application/merge-patch+json"), &change).await;
    }
    seen.check((40, 60, 15));
}
