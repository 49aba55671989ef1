//! OpsJob as a kind of a host, with what the host adds to the rounds: its settings, the grants of plugins, the history, and the files of jobs.

use std::sync::Arc;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_artefacts::{FileName, FileOwner};
use oarlock_core::kind::plan::NewStatus;
use oarlock_core::object::api_object::Kind;
use oarlock_core::ops_job::create_decision::ungranted;
use oarlock_core::ops_job::facts::{FACTS, FILE, FileFact, OpsFacts};
use oarlock_core::ops_job::kind::OpsJobs;
use oarlock_core::ops_job::outcomes::{StoredFile, log_file, report, report_file, stored_outcomes};
use oarlock_core::ops_job::phases::OpsStatus;
use oarlock_core::ops_job::plan::RowState;
use oarlock_core::ops_job::spec::{OpsSpec, OpsType};
use oarlock_core::ops_job::stored::StoredOps;
use oarlock_core::ops_job::workload::name_of;
use oarlock_core::plugin::lookup::PluginLookup;
use oarlock_core::requests::reads::{KeptObjects, Read, ReadFailed};
use oarlock_core::requests::writes::Write;
use oarlock_kube::lease::fence::Fence;
use oarlock_kube::ops::Ops;
use oarlock_kube::watch::health::KindHealth;
use oarlock_wasm::Plugins;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::engine::{HostSide, RoundView};
use crate::history::{Leading, Recorder};
use crate::host_place::HostLocation;
use crate::kinds::{self, ServedKind};
use crate::logs::{FileFailed, LogFileOf, Logs, MadeFile, digest_of};
use crate::metrics::Metrics;
use crate::ports::Ports;

/// The kind OpsJob, at the place of this host.
pub(crate) struct OpsKind {
    pub(crate) ops: Ops,
    pub(crate) place: HostLocation,
}

impl ServedKind for OpsKind {
    fn definition(&self) -> &'static str {
        self.ops.port().definition()
    }

    fn children(&self) -> Option<Kind> {
        self.ops.port().children()
    }

    fn health(&self) -> Vec<KindHealth> {
        self.ops.health()
    }

    fn lead(&self, fence: Fence, ports: &Ports) -> JoinHandle<()> {
        let host = OpsHost::begin(self.ops.clone(), self.place.clone(), ports);
        kinds::lead(self.ops.port(), host, fence, ports)
    }
}

/// This host's own part in the rounds of OpsJobs in one term.
struct OpsHost {
    ops: Ops,
    place: HostLocation,
    metrics: Arc<Metrics>,
    plugins: Plugins,
    logs: Option<Logs>,
    /// Writes the history until the term ends.
    _writes: Option<Leading>,
}

impl OpsHost {
    /// Begins a term.
    fn begin(ops: Ops, place: HostLocation, ports: &Ports) -> Self {
        let _writes = place.recorder.as_ref().map(|recorder| recorder.lead(ops.clone()));
        let (metrics, plugins, logs) = (ports.metrics.clone(), ports.plugins.clone(), ports.logs.get().cloned());
        Self { ops, place, metrics, plugins, logs, _writes }
    }
}

impl HostSide<OpsJobs> for OpsHost {
    async fn answer(&self, read: &Read, round: &RoundView<'_, OpsJobs>) -> Result<KeptObjects, ReadFailed> {
        let answer = match read.kind.kind.as_str() {
            FACTS => json!(self.facts(round.object).await),
            FILE => json!(self.file(round).await?),
            _ => Value::Null,
        };
        Ok(KeptObjects::of(read, [answer]))
    }

    fn sends(&self, job: &StoredOps, write: &Write) {
        if matches!(write, Write::Delete { uid, .. } if *uid == job.view.uid) {
            self.place.recorder.iter().for_each(|recorder| recorder.expires(&job.view.uid));
        }
    }

    fn stored(&self, job: &StoredOps, status: &NewStatus) {
        let kind = job.spec.as_ref().map_or("", |spec| spec.kind.word());
        self.metrics.ops.reported(kind, &job.view.status, &OpsStatus::read(&status.body));
    }

    fn has_seen_all(&self) {
        self.place.recorder.iter().for_each(Recorder::has_seen_all);
    }
}

impl OpsHost {
    async fn facts(&self, job: &StoredOps) -> OpsFacts {
        let HostLocation { cluster, node, artefacts, exports, recorder } = &self.place;
        let view = &job.view;
        let begins_file =
            view.kind == Some(OpsType::Dumplog) && !view.status.has_locked_targets() && !view.status.has_ended();
        let scarce = match artefacts.as_ref().filter(|_| begins_file) {
            Some(artefacts) => artefacts.scarce().await,
            None => None,
        };
        let owed = self.ops.meter(|meter, now| meter.status_waits(&view.uid, now));
        let after = |wait| SignedDuration::try_from(wait).ok().and_then(|wait| self.now().checked_add(wait).ok());
        OpsFacts {
            cluster: cluster.clone(),
            node: node.clone(),
            tasks_namespace: self.ops.cluster().tasks().namespace.clone(),
            keeps_files: artefacts.is_some(),
            scarce,
            exports: exports.as_ref().map(|exports| exports.registry.clone()),
            ungranted: job.spec.as_ref().ok().and_then(|spec| self.ungranted(spec)),
            history_row: recorder.as_ref().map_or(RowState::NotKept, |recorder| recorder.row_state(view)),
            status_not_before: owed.and_then(after),
        }
    }

    fn now(&self) -> Timestamp {
        self.ops.cluster().clock().now()
    }

    /// Returns a directory of the nodes that the job asks for and the plugin's grant does not cover. A policy cannot
    /// check this, because it does not know the grants. While no plugin serves the type, returns `None`, and the job's
    /// targets fail.
    fn ungranted(&self, spec: &OpsSpec) -> Option<String> {
        if spec.host_paths().is_empty() {
            return None;
        }
        match self.plugins.find(spec.kind.word(), None) {
            PluginLookup::Serving(plugin) => ungranted(spec, |path| plugin.grant.shows_host_path(path), true, true),
            PluginLookup::NotServing { .. } | PluginLookup::Unknown { .. } => None,
        }
    }

    /// Makes the file of a job, or goes on with making it.
    async fn file(&self, round: &RoundView<'_, OpsJobs>) -> Result<FileFact, ReadFailed> {
        let made = match round.object.view.kind {
            Some(OpsType::Dumplog) => self.log_file(round),
            _ => self.report(round).await,
        };
        match made {
            Some(MadeFile::Underway(how)) => Ok(FileFact::Underway(how)),
            Some(MadeFile::Over(Ok(file))) => Ok(FileFact::Stored(file)),
            Some(MadeFile::Over(Err(FileFailed::ForNow(why) | FileFailed::NoRoom(why)))) => Ok(FileFact::Lost(why)),
            None => {
                let message = "the file of the job lacks what it is made of".to_owned();
                Err(ReadFailed { message, is_refused: false, retry_after: None })
            }
        }
    }

    fn log_file(&self, round: &RoundView<'_, OpsJobs>) -> Option<MadeFile> {
        let job = &round.object.view;
        let spec = round.object.spec.as_ref().ok()?;
        let file = log_file(name_of(spec.scope.workloads.first()?), &job.uid);
        let (ops, uid) = (self.ops.clone(), job.uid.clone());
        let of = LogFileOf { child: &round.children.first()?.uid, owner: job.owner(), job: &job.name, file: &file };
        let made = self.logs.as_ref()?.file(&of, round.now, move || ops.port().cache().mark_dirty(&uid));
        Some(match made {
            // The job retries, because this file is its only purpose.
            MadeFile::Over(Err(FileFailed::ForNow(why))) => {
                MadeFile::Underway(format!("failed to store the logs: {why}"))
            }
            made => made,
        })
    }

    /// Stores the report of a preflight.
    async fn report(&self, round: &RoundView<'_, OpsJobs>) -> Option<MadeFile> {
        let job = &round.object.view;
        let stored = stored_outcomes(job, &round.children.first()?.uid, round.answers).ok()?;
        let (artefacts, (_, outcomes)) = (self.place.artefacts.as_ref()?, stored?);
        let (file, report) = (report_file(&job.uid), report(job, &outcomes).to_string().into_bytes());
        let size = report.len() as u64;
        let (digest, name) = (digest_of(&job.owner()), job.owner().to_string());
        let owner = FileOwner { digest: &digest, name: &name };
        let named = FileName { job: &job.name, file: &file };
        let made = artefacts.publish_for(owner, named, report, round.now).await;
        let made = made.map(|reference| StoredFile { reference, size, lines: 0 });
        Some(MadeFile::Over(made.map_err(FileFailed::from)))
    }
}
