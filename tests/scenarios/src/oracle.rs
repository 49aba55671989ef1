//! Checks every version of all jobs, records and pods of a namespace, whatever crashed, lagged or was lost.
//!
//! Takes the history of a run; yields each version that broke a property (S1 to S7, L3), and each gap in which such a
//! version could hide. Source: docs/operationjob.md 9. Judges only by the objects that the API server stored. May not know
//! when a host was killed, nor what the host meant to do.

mod pods;
mod reasons;
mod records;
mod starts;
mod tasks;
mod told;

use std::collections::{BTreeMap, BTreeSet};

use oarlock_sim::world::{History, Version, labels};
use serde_json::Value;

pub(crate) use self::reasons::unexplained;
use self::records::StoredRecord;
use self::tasks::TaskId;
use self::told::{Target, details};
use crate::ops::CHILDREN;

/// Writes of others to objects that only the host should write. The rules about those objects are not checked.
#[derive(Clone, Debug, Default)]
pub struct Meddling {
    /// Someone else wrote statuses or records, or versions are missing because the server was killed. Rules that need each
    /// version of a status are not checked.
    pub statuses: bool,
    /// Names of jobs whose finalizer someone removed. Such a job may go and leave its holds behind for a while.
    pub stripped: BTreeSet<String>,
    /// Names of records that someone deleted. The host is not responsible for the loss of their content.
    pub removed: BTreeSet<String>,
}

/// Returns the broken properties in the history of a namespace.
#[must_use]
pub fn judge(history: &History, namespace: &str, meddling: &Meddling) -> Vec<String> {
    let mut found = breaches(&history.versions(), namespace, meddling);
    if !meddling.statuses {
        found.extend(history.gaps().iter().map(|gap| format!("the history has a gap: {gap}")));
    }
    found
}

fn breaches(versions: &[Version], namespace: &str, meddling: &Meddling) -> Vec<String> {
    let mut seen = Seen {
        meddling,
        jobs: BTreeMap::new(),
        pods: BTreeMap::new(),
        served: BTreeSet::new(),
        records: BTreeMap::new(),
        task_pods: BTreeSet::new(),
        commands: BTreeMap::new(),
    };
    let mut found = Vec::new();
    // OpsJobs run on their own clusters, so all OperationJobs in their namespace belong to them.
    let namespaces = [namespace, CHILDREN];
    let concerns = |version: &&Version| {
        namespaces.iter().any(|namespace| version.namespace == *namespace || tasks::is_of(version, namespace))
    };
    for version in versions.iter().filter(concerns) {
        let wrong = seen.enter(version);
        let about = |wrong| format!("at {} {} {}: {wrong}", version.resource_version, version.plural, version.name);
        found.extend(wrong.into_iter().map(about));
    }
    found
}

/// A job, as far as it was durable at a moment.
struct Job {
    name: String,
    /// True if its action is Replace, the one whose effect is known here, and the job is no dry run.
    replaces: bool,
    /// True if the job was created as a dry run. It stays one and changes nothing.
    dry_run: bool,
    epoch: i64,
    /// True if its targets are in records.
    in_records: bool,
    /// True if the job is being deleted.
    deleted: bool,
    targets: BTreeMap<String, Target>,
    /// The indexes of the targets in flight.
    in_flight: BTreeSet<usize>,
    /// The stored tasks: position of the target, and name.
    tasks: BTreeSet<(usize, String)>,
    /// The progress, start and end of a job that has ended.
    end: Option<[Value; 3]>,
}

/// The whole state that was durable at a moment.
struct Seen<'a> {
    meddling: &'a Meddling,
    /// Jobs by UID.
    jobs: BTreeMap<String, Job>,
    /// The last version of each pod by name, including pods that are gone.
    pods: BTreeMap<String, Version>,
    /// The UIDs of the pods that have served.
    served: BTreeSet<String>,
    /// Records by the UID of their job and their number.
    records: BTreeMap<(String, i64), StoredRecord>,
    /// The UIDs of the pods of tasks.
    task_pods: BTreeSet<String>,
    /// The UID of the pod that ran each command on a node.
    commands: BTreeMap<TaskId, String>,
}

impl Seen<'_> {
    fn enter(&mut self, version: &Version) -> Vec<String> {
        match version.plural.as_str() {
            "pods" if version.at("/metadata/labels").get(labels::TASK).is_some() => {
                let wrong = self.task_pod(version);
                self.unless_meddled(wrong)
            }
            "pods" => {
                let wrong = if self.meddling.statuses { Vec::new() } else { self.pod(version) };
                if pods::serves(version) {
                    self.served.insert(version.uid.clone());
                }
                self.pods.insert(version.name.clone(), version.clone());
                wrong
            }
            "operationjobs" if version.is_end => self.gone(version),
            "operationjobs" => self.job(version),
            "operationrecords" => self.record(version),
            _ => Vec::new(),
        }
    }

    /// Checks L3: a job that is gone holds nothing any more.
    fn gone(&mut self, version: &Version) -> Vec<String> {
        self.jobs.remove(&version.uid);
        if self.meddling.stripped.contains(&version.name) {
            return Vec::new();
        }
        let held = self.pods.values().filter(|pod| !pod.is_end && pods::holders(pod).contains(&version.uid.as_str()));
        let left: Vec<&str> = held.map(|pod| pod.name.as_str()).collect();
        if left.is_empty() { Vec::new() } else { vec![format!("L3: the job is gone and still holds {left:?}")] }
    }

    fn job(&mut self, version: &Version) -> Vec<String> {
        let empty = || Job {
            name: version.name.clone(),
            replaces: version.at("/spec/action") == "Replace" && version.at("/spec/dryRun") != true,
            dry_run: version.at("/spec/dryRun") == true,
            epoch: 0,
            in_records: false,
            deleted: false,
            targets: BTreeMap::new(),
            in_flight: BTreeSet::new(),
            tasks: BTreeSet::new(),
            end: None,
        };
        let mut job = self.jobs.remove(&version.uid).unwrap_or_else(empty);
        let mut wrong = Vec::new();
        let epoch = version.at("/status/epoch").as_i64().unwrap_or(0);
        if epoch < job.epoch {
            wrong.push(format!("S6: its epoch fell from {} to {epoch}", job.epoch));
        }
        let end = ["progress", "startTime", "endTime"].map(|field| version.at(&format!("/status/{field}")).clone());
        if job.end.as_ref().is_some_and(|before| *before != end) {
            wrong.push(format!("S2: what an ended job says of itself changed to {end:?}"));
        }
        wrong.extend(job.is_protected(version));
        job.deleted |= version.at("/metadata/deletionTimestamp").is_string();
        job.in_records |= version.at("/status/records").is_object();
        if !job.in_records {
            let told = details(version);
            let lost = job.targets.iter().filter(|(name, old)| old.is_terminal() && !told.contains_key(*name));
            wrong.extend(lost.map(|(name, _)| format!("S2: the outcome of {name} is lost")));
            wrong.extend(self.targets(&mut job, told));
        }
        wrong.extend(job.too_many(version));
        if end[2].is_string() && job.end.is_none() {
            wrong.extend(job.without_outcome(version));
        }
        job.tasks.extend(tasks::stored(version));
        (job.epoch, job.end) = (epoch, end[2].is_string().then_some(end));
        self.jobs.insert(version.uid.clone(), job);
        self.unless_meddled(wrong)
    }

    fn unless_meddled(&self, wrong: Vec<String>) -> Vec<String> {
        if self.meddling.statuses { Vec::new() } else { wrong }
    }

    /// Checks S2 and S3: an outcome stays, and a success was observed. Checks S1: no two targets have the same new pod.
    fn targets(&self, job: &mut Job, told: BTreeMap<String, Target>) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut news = false;
        for (name, now) in told {
            let before = job.targets.get(&name);
            if let Some(before) = before.filter(|before| before.is_terminal()) {
                if before.progress != now.progress {
                    let (before, now) = (&before.progress, &now.progress);
                    wrong.push(format!("S3: the outcome of {name} changed from {before} to {now}"));
                }
            } else if now.progress == "Succeeded" && job.replaces {
                wrong.extend(self.unseen(&name, &now));
            }
            news |= before.map_or("", |before| before.new_pod.as_str()) != now.new_pod;
            job.targets.insert(name, now);
        }
        if news {
            let all = || job.targets.values().map(|target| target.new_pod.as_str()).filter(|pod| !pod.is_empty());
            if all().collect::<BTreeSet<_>>().len() < all().count() {
                wrong.push("S1: two targets have the same new pod".to_owned());
            }
        }
        wrong
    }

    /// Checks S3: a pod is replaced once the pod is gone and its new pod has served.
    fn unseen(&self, name: &str, target: &Target) -> Option<String> {
        if self.pods.get(name).is_some_and(|pod| !pod.is_end && pod.uid == target.uid) {
            return Some(format!("S3: {name} is said to have succeeded, and its pod is there"));
        }
        let new = self.pods.get(&target.new_pod).filter(|pod| pod.uid != target.uid);
        let served = new.is_some_and(|pod| self.served.contains(&pod.uid));
        let why = || format!("S3: {name} is said to have succeeded, and no new pod has served: {:?}", target.new_pod);
        (!served).then(why)
    }
}

#[cfg(test)]
mod tests;
