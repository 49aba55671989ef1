//! Checks that each reason in the code has an entry in `host/view/reasons.yaml`, which `oarlock explain` prints, and that the code
//! makes each reason that has an entry.
//!
//! The search takes every literal of the product that is one word in CamelCase. A literal that is no reason stands in [`NO_REASONS`].

#![cfg(test)]

use std::collections::BTreeSet;

use oarlock_repository::root;
use regex::Regex;

/// The folders with code that makes reasons.
const SEARCHED: [&str; 3] = ["host", "plugins", "sdk/src"];
/// Parts of these folders whose words are no reasons of their own.
const LEFT_OUT: [&str; 6] = [
    // Imitates Kubernetes.
    "host/sim/",
    // Show the words of others.
    "host/view/",
    "host/page/",
    "host/web/",
    // Prints manifests.
    "host/src/manifests",
    // Names metrics.
    "host/src/metrics",
];

/// Words in CamelCase that are no reasons, with what they are instead.
const NO_REASONS: [(&str, &str); 7] = [
    (
        "kinds",
        "ActionPlugin AddonTemplate ClusterRole ClusterRoleBinding CollaSet ConfigMap ContainerRecreateRequest DaemonJob DaemonJobs \
         DaemonSet Deployment Event Eviction HostTask Job JobFlow JobFlows JobRecord JobTemplate Namespace Node NodeTemplate \
         OperationJob OperationJobs OperationRecord OpsFacts OpsFile OpsJob OpsJobs PluginFacts Pod PodDisruptionBudget ReplicaSet Secret SelfSubjectAccessReview \
         ServiceAccount StatefulSet Status ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding",
    ),
    (
        "types of conditions",
        "Complete FailureTarget FilesWritable HostMayNot OperationJobCreated PodScheduled Progressing Ready Reconciling SpecInForce Stalled \
         Stopping SuccessCriteriaMet TargetsEnded TargetsResolved Valid DisruptionTarget",
    ),
    (
        "values and states in specs and statuses",
        "Absent All Always Background Continue DeleteAll DeleteSucceeded Deny Directory Discovered DoesNotExist Drained Draining Equivalent Evict Exists Fail \
         FallbackToLogsOnError False Foreground Gt IfPossible Ignore In InPlace Indexed Keep LimitExceeded Lt Memory Merge Never NoExecute NoSchedule \
         None Normal NotIn Opaque Orphan Pause PreferNoSchedule Processing Quarantined Recreating Respect Run Running RuntimeDefault \
         Selector Skip Strict Targets Terminating TolerateAll Trapped True Unknown Wait Warn Warning",
    ),
    (
        "extras and fields",
        "BootID ClaimedUID DrainSince EvictedAt ExitCode Mode NodeName Owner Plan RebootSince Released Request Steps \
         TTLSecondsAfterFinished TaintedSince WaitsFor WaitsSince WasUnschedulable",
    ),
    (
        "words of Kubernetes, registries and stores that the code reads",
        "AccessDenied AccessKey ContainerCreating ContainerStatusUnknown DisruptionBudget Error Evicted FailedScheduling Image \
         InsufficientStorage InvalidNodeInfo NoSpace NoSuchBucket NoSuchKey NodeAffinity NodeLost NodePorts NodeShutdown \
         NotAllowedToReplaceNewPod OutOf PodCompleted PodFailed PodInitializing Preempting Quota RegistryUnavailable Shutdown \
         Signature SignatureValidationFailed SlowDown StorageFull TaintToleration Token TopologyAffinityError UnexpectedAdmissionError",
    ),
    ("actions of events, and parts of words", "Canceled Compile Finished Reconcile Sweep"),
    (
        "names, units, headers, and labels of metrics",
        "Backend Bearer Code Credentials Ei ErrorBody Gi Ki Login Message Mi Other Pi Quarantine Range Schema ServerClock String Ti",
    ),
];

/// Reasons that no literal has, with what makes them.
const BUILT: [(&str, &str); 4] = [
    ("the SDKs of JavaScript and Python", "PluginException PluginIsAsync"),
    ("a Job, whose reason a step takes", "BackoffLimitExceeded FailedIndexes MaxFailedIndexesExceeded"),
    ("`format!` in host/core/src/operation_job", "<Action>OpsLifecycleCanceled <Action>OpsLifecycleFinished"),
    // These texts have two words.
    ("`format!` in host/core/src/operation_job/round/held_back.rs", "Other_jobs Replacement_of"),
];

/// The enum whose variants are reasons by their names.
const SKIP_REASONS: (&str, &str) = ("host/core/src/ops_job/targets.rs", "pub enum SkipReason {");

/// Returns the sources that may make reasons, without their comments and tests, with their paths.
fn sources() -> Vec<(String, String)> {
    let tests = Regex::new(r"(?s)#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*mod \w+ \{.*").unwrap();
    let comment = Regex::new(r"(?m)//.*$").unwrap();
    let (mut found, mut folders) = (Vec::new(), SEARCHED.map(|folder| root().join(folder)).to_vec());
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let shown = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if LEFT_OUT.iter().any(|part| format!("{shown}/").starts_with(part)) {
                continue;
            }
            if path.is_dir() && !["tests", "examples", "target", "kit"].contains(&name.as_str()) {
                folders.push(path);
            } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((shown, comment.replace_all(&tests.replace(&text, ""), "").into_owned()));
            }
        }
    }
    found
}

/// Returns the words of the catalogue.
fn entries() -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("host/view/reasons.yaml")).unwrap();
    let words = text.lines().filter_map(|line| line.strip_prefix("- reason: \"")?.strip_suffix('"'));
    words.map(str::to_owned).collect()
}

/// Returns the words of a source that may be reasons: literals of one word in CamelCase that are no keys, and codes of the REST API.
fn words(text: &str) -> BTreeSet<String> {
    let literal = Regex::new(r#""([A-Z][A-Za-z]*[a-z][A-Za-z]*|Primus\.[0-9]+|TTL)"(\s*:)?"#).unwrap();
    literal.captures_iter(text).filter(|found| found.get(2).is_none()).map(|found| found[1].to_owned()).collect()
}

/// Returns the variants of the enum that begins with `start`.
fn variants(text: &str, start: &str) -> BTreeSet<String> {
    let (_, rest) = text.split_once(start).unwrap();
    let (body, _) = rest.split_once('}').unwrap();
    let names = body.lines().map(str::trim).filter_map(|line| line.strip_suffix(','));
    names.filter(|name| name.chars().all(char::is_alphanumeric)).map(str::to_owned).collect()
}

fn listed(lists: &[(&str, &str)]) -> BTreeSet<String> {
    let all = lists.iter().flat_map(|(_, words)| words.split_whitespace()).map(|word| word.replace('_', " "));
    all.collect()
}

/// The words of the code, apart from [`NO_REASONS`] and [`BUILT`], each with the first file that has it.
fn made() -> Vec<(String, String)> {
    let of_file = |(path, text): (String, String)| {
        let mut found = words(&text);
        if path == SKIP_REASONS.0 {
            found.extend(variants(&text, SKIP_REASONS.1));
        }
        found.into_iter().map(move |word| (word, path.clone())).collect::<Vec<_>>()
    };
    sources().into_iter().flat_map(of_file).collect()
}

#[test]
fn every_reason_in_the_code_has_an_entry() {
    let known: BTreeSet<String> = entries().union(&listed(&NO_REASONS)).cloned().collect();
    let unknown: Vec<String> = made()
        .into_iter()
        .filter(|(word, _)| !known.contains(word))
        .map(|(word, path)| format!("{word} in {path}"))
        .collect();
    assert!(
        unknown.is_empty(),
        "give each reason an entry in host/view/reasons.yaml, and each other word a place in NO_REASONS:\n{}",
        unknown.join("\n")
    );
}

#[test]
fn no_entry_and_no_exception_is_stale() {
    let (made, entries): (BTreeSet<String>, _) = (made().into_iter().map(|(word, _)| word).collect(), entries());
    assert!(entries.len() > 200 && made.len() > 300, "{} entries, {} words", entries.len(), made.len());
    let (built, others) = (listed(&BUILT), listed(&NO_REASONS));
    let stale = entries.iter().filter(|word| !made.contains(*word) && !built.contains(*word));
    let stale: Vec<String> = stale.map(|word| format!("{word}: nothing makes this reason")).collect();
    let unused =
        others.iter().filter(|word| !made.contains(*word)).map(|word| format!("{word}: no code has this word"));
    let twice = others.intersection(&entries).map(|word| format!("{word}: has an entry, so it is a reason"));
    let unbuilt = built.iter().filter(|word| !entries.contains(*word)).map(|word| format!("{word}: has no entry"));
    let wrong: Vec<String> = stale.into_iter().chain(unused).chain(twice).chain(unbuilt).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_literal_a_code_and_a_variant_are_words_and_a_key_is_none() {
    let found = words("a(\"NotReady\", \"Two words\", \"GET\", \"Key\": 1, \"Primus.00001\", \"lower\", \"TTL\")");
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["NotReady", "Primus.00001", "TTL"]);
    let found = variants(
        "enum Other { X }\npub enum A {\n    Busy,\n    #[serde(rename = \"x\")]\n    Excluded,\n}\n",
        "pub enum A {",
    );
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["Busy", "Excluded"]);
}
