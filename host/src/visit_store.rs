//! Stores the records of visits as compressed JSON lines, in the folder or bucket of the host.
//!
//! Rounds do not wait for the store. If the store is slow or down, the host drops the oldest records and counts them.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use oarlock_artefacts::{Artefacts, VisitsOf};
use oarlock_core::plugin::visit_note::VisitNote;

use crate::ports::Ports;

/// The time between two writes to the store.
const EVERY: Duration = Duration::from_secs(5);
/// The most compressed bytes that one process stores for one job. Later records of the job stay in memory only.
const MOST_OF_JOB: usize = 4 << 20;
/// The most jobs whose stored bytes are counted.
const MOST_JOBS: usize = 10_000;

/// A job with its namespace.
type JobOfVisits = (String, String);

/// Stores the records until the task is aborted.
pub(crate) async fn store_visits(ports: Arc<Ports>, artefacts: Artefacts) {
    let mut ticks = tokio::time::interval(EVERY);
    let mut stored = BTreeMap::new();
    let mut number = 0;
    loop {
        ticks.tick().await;
        store_finished(&ports, &artefacts, &mut stored, &mut number).await;
    }
}

/// Stores the records that no call has stored yet.
async fn store_finished(
    ports: &Ports,
    artefacts: &Artefacts,
    stored: &mut BTreeMap<JobOfVisits, usize>,
    number: &mut u64,
) {
    let notes = ports.recorder.take_finished();
    if notes.is_empty() {
        return;
    }
    let Ok(files) = tokio::task::spawn_blocking(move || compressed(&notes)).await else { return };
    if stored.len() > MOST_JOBS {
        stored.clear();
    }
    for ((namespace, job), file) in files {
        let bytes = stored.entry((namespace.clone(), job.clone())).or_default();
        if *bytes + file.len() > MOST_OF_JOB {
            continue;
        }
        *bytes += file.len();
        *number += 1;
        let of = VisitsOf { namespace: &namespace, job: &job };
        if let Err(error) = artefacts.put_visits(of, file, ports.clock(), *number).await {
            tracing::warn!(error = %error, namespace, job, "failed to store records of visits; they are lost");
        }
    }
}

/// Returns a compressed file of JSON lines for each job.
pub(crate) fn compressed(notes: &[Arc<VisitNote>]) -> BTreeMap<JobOfVisits, Vec<u8>> {
    let mut files: BTreeMap<JobOfVisits, GzEncoder<Vec<u8>>> = BTreeMap::new();
    for note in notes {
        let (namespace, job) = note.job();
        let Some(line) = note.record().line() else { continue };
        let file = files.entry((namespace.to_owned(), job.to_owned()));
        let file = file.or_insert_with(|| GzEncoder::new(Vec::new(), Compression::default()));
        // Writing to memory cannot fail.
        let _ = writeln!(file, "{line}");
    }
    files.into_iter().filter_map(|(job, file)| Some((job, file.finish().ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::MultiGzDecoder;
    use oarlock_contract::visit_record::{RecordedVerdict, VisitRecord};
    use oarlock_core::object::api_object::{Kind, Object, ObjectKey};
    use oarlock_core::plugin::grant::Grant;
    use oarlock_core::plugin::lookup::PluginInfo;
    use oarlock_core::plugin::manifest::Manifest;
    use oarlock_core::plugin::proposal::{Mutation, ObjectRef, Proposal, Registration};
    use oarlock_core::plugin::visit::{Answer, Call, JobFacts, ReadRefusal, Reads, TargetFacts, Visit, VisitUse};
    use oarlock_core::plugin::visit_note::{BegunNote, VisitOutputs};
    use oarlock_core::plugin::visit_recorder::{RecorderBounds, VisitRecorder};
    use serde_json::json;

    use super::*;

    /// Reads of one pod beside the target.
    struct OneMore(Arc<Object>);

    impl Reads for OneMore {
        fn related(&self, _: &str, _: bool) -> Result<Vec<Arc<Object>>, ReadRefusal> {
            Ok(vec![self.0.clone()])
        }

        fn get(&self, _: &ObjectKey, _: bool) -> Result<Option<Arc<Object>>, ReadRefusal> {
            Ok(None)
        }

        fn serves(&self, _: &Kind) -> Result<bool, ReadRefusal> {
            Ok(true)
        }
    }

    fn uid(seed: u64) -> String {
        let mixed = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        format!("{:08x}-0d4f-4a52-9d0c-{:012x}", mixed >> 32, mixed & 0xffff_ffff_ffff)
    }

    fn pod(number: u64) -> Arc<Object> {
        let condition =
            |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:10Z"});
        let document = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("web-6d4cf56db6-{}", &uid(number)[..5]),
            "namespace": "shop", "uid": uid(number), "resourceVersion": format!("{}", 4_000_000 + number * 37),
            "labels": {"app": "web", "pod-template-hash": "6d4cf56db6"}, "creationTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-6d4cf56db6", "uid": uid(1 << 40), "controller": true}]},
            "status": {"conditions": [condition("PodScheduled"), condition("Initialized"), condition("ContainersReady"), condition("Ready")]}});
        Arc::new(Object::slim(&document, &Kind::pod(), &["/status/conditions".into()]).unwrap())
    }

    fn plugin() -> Arc<PluginInfo> {
        let manifest = json!({"schema": 1, "name": "replace", "version": "1.0.0", "action": "Replace", "target": ["Pod"],
            "reads": [{"apiVersion": "v1", "kind": "Pod", "fields": ["/status/conditions"], "reason": "r"}]});
        let manifest = Manifest::parse(manifest.to_string().as_bytes()).unwrap();
        let digest = format!("sha256:{}", "ab".repeat(32));
        Arc::new(PluginInfo {
            grant: Grant::of_all(&manifest),
            manifest,
            registration: Registration::default(),
            digest,
        })
    }

    fn visit(number: u64) -> Visit {
        let job = JobFacts {
            namespace: "shop".into(),
            name: "replace-web".into(),
            uid: uid(1 << 41),
            action: "Replace".into(),
            now_ms: 1_800_000_000_000 + number * 17,
            parameters: json!({}),
            target_count: 1_000,
            cancelled: false,
        };
        let object = pod(number);
        let target = TargetFacts {
            name: object.key.name.clone(),
            index: u32::try_from(number).unwrap(),
            kind: "Pod".into(),
            uid: Some(object.uid.clone()),
            object: Some(object),
            containers: Vec::new(),
            extras: [("Owner".to_owned(), format!("Deployment/web/{}", uid(1 << 42)))].into(),
            attempt: 1,
            call_try: 1,
            started_ms: 1_800_000_000_000,
            deadline_ms: Some(1_800_000_600_000),
            tasks: std::collections::BTreeMap::new(),
        };
        let reads = Arc::new(OneMore(pod(number + 5_000)));
        Visit { job: Arc::new(job), target, call: Call::OperateThenProgress, reads }
    }

    #[test]
    fn a_stored_visit_takes_at_most_a_kibibyte_and_is_read_back() {
        const VISITS: u64 = 200;
        let bounds = RecorderBounds { visits: 1_000, stores: true, ..RecorderBounds::default() };
        let (recorder, plugin) = (VisitRecorder::new(bounds), plugin());
        for number in 0..VISITS {
            let mut visit = visit(number);
            let pod = visit.target.object.clone().unwrap();
            let begun = BegunNote::begin(&mut visit);
            visit.reads.related("new-pod", true).unwrap();
            let pod = ObjectRef { key: pod.key.clone(), uid: Some(pod.uid.clone()) };
            let mutations = vec![Mutation::Evict { pod, grace_seconds: None }];
            let answer = Answer::Proposed(Proposal { mutations, ..Proposal::default() });
            let cost = VisitUse { host_calls: 12, memory_bytes: 1_179_648, answer_bytes: 200, position: 3 };
            let outputs = VisitOutputs { answer, cost, microseconds: 17 + number, verdict: RecordedVerdict::Taken };
            recorder.round(&plugin, false).unwrap().end(begun, outputs);
        }
        let notes = recorder.take_finished();
        let files = compressed(&notes);
        let [(job, file)] = files.into_iter().collect::<Vec<_>>().try_into().unwrap();
        assert_eq!((job.0.as_str(), job.1.as_str()), ("shop", "replace-web"));
        let mut text = String::new();
        MultiGzDecoder::new(&file[..]).read_to_string(&mut text).unwrap();
        let records: Vec<VisitRecord> = text.lines().map(|line| VisitRecord::parse(line).unwrap()).collect();
        assert_eq!(records.len() as u64, VISITS);
        let each = file.len() as u64 / VISITS;
        println!("{each} bytes a visit stored, {} before compression", text.len() as u64 / VISITS);
        assert!(each <= 1_024, "{each} bytes a visit");
    }
}
