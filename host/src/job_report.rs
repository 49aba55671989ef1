//! The reports of a round beside its record: metrics, log lines, and an event about a refused record.

use std::time::Duration;

use oarlock_api::OperationJob;
use oarlock_core::object::key::{JobKey, JobRef};
use oarlock_core::operation_job::round::context::action;
use oarlock_core::operation_job::round::decided::Commit;
use oarlock_core::operation_job::round::events::{EventBuilder, new_events};
use oarlock_core::operation_job::round::memory::JobMemory;
use oarlock_core::operation_job::shared::tables::{SharedTables, lock};
use oarlock_core::operation_job::state::Progress;
use oarlock_kube::persist::record::RecordError;

use crate::metrics::{EndedTarget, JobFigures};
use crate::ports::Ports;

/// The reports of one round of a job.
pub(crate) struct JobReport<'a> {
    /// The ports with the metrics and the events.
    pub(crate) ports: &'a Ports,
    /// The key of the job.
    pub(crate) key: &'a JobKey,
    /// The job as this round read it.
    pub(crate) job: &'a OperationJob,
}

impl JobReport<'_> {
    /// Counts and logs the changes that became durable.
    pub(crate) fn count(&self, commit: &Commit, memory: &JobMemory) {
        let Self { ports: Ports { metrics, .. }, key, job } = *self;
        let Some(status) = &commit.status else { return };
        metrics.status_sent(serde_json::to_vec(status).map_or(0, |text| text.len()));
        let before = memory.stored.status.as_ref().and_then(|status| status.progress.as_deref());
        let progress = status.progress.as_deref();
        if progress != before {
            let (succeeded, failed) = (status.succeeded_pod_count, status.failed_pod_count);
            let (action, progress) = (action(job), progress.unwrap_or_default());
            tracing::info!(job = %key, action, progress, succeeded, failed, "the progress of the job changed");
        }
        for (index, target) in memory.stored.ended_by(commit) {
            let reason = target.error.as_ref().map(|error| error.reason.as_str());
            // The field cannot be called `message`, which is the name of the line's text.
            let error = target.error.as_ref().map(|error| error.message.as_str());
            let (name, outcome) = (memory.stored.state.name(index), target.progress.word());
            tracing::info!(job = %key, action = action(job), target = name, outcome, reason, error, "a target ended");
            let took = target.start.zip(target.end).map(|(start, end)| end.duration_since(start));
            metrics.target_ended(&EndedTarget {
                action: action(job),
                outcome: target.progress.word(),
                reason: target.error.as_ref().map_or("", |error| error.reason.as_str()),
                took: took.and_then(|took| Duration::try_from(took).ok()),
            });
        }
    }

    /// Counts the limited requests of plugins since the last call.
    pub(crate) fn count_limited(&self, tables: &SharedTables) {
        let limited = lock(tables).budgets.take_limited();
        for ((plugin, what), times) in limited {
            self.ports.metrics.limited(&plugin, what.word(), times);
        }
    }

    /// Reports once, by an event on the job, that the API server refuses its record. The status cannot report this.
    pub(crate) fn tell_refused(&self, job: &JobRef, error: &RecordError, memory: &mut JobMemory) {
        if error.is_refused() {
            let message = format!("{error}; the job goes on once that is allowed");
            let note = EventBuilder { job, action: action(self.job) }.about_job(true, "StatusRefused", message);
            self.ports.cluster.emit(new_events(vec![note], &memory.stored, &mut memory.reports));
        }
    }

    /// Updates the gauges with the state of a job after a round.
    pub(crate) fn show(&self, memory: &JobMemory) {
        let Self { ports, key, job } = *self;
        let progress = memory.stored.status.as_ref().and_then(|status| status.progress.clone());
        let figures = JobFigures {
            action: action(job).to_owned(),
            progress: progress.unwrap_or_else(|| Progress::Pending.word().to_owned()),
            in_flight: memory.stored.durable.processing.len(),
            eviction_blocked: memory.targets.blocked.len(),
            lifecycle_waiting: memory.targets.lifecycle.len(),
            release_pending: memory.targets.releasing.len(),
        };
        let has_ended = [Progress::Succeeded, Progress::Failed].iter().any(|end| end.word() == figures.progress);
        let bound = memory.stored.state.plugin.as_ref().filter(|_| !has_ended);
        ports.bound.note(key, bound.map(|plugin| plugin.digest.as_str()));
        ports.metrics.job_is(key, Some(figures));
    }
}
