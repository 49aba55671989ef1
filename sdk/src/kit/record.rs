//! A visit from a record of a host: the same job, target and reads. A test then shows whether the action still decides the same.

use std::rc::Rc;

use oarlock_contract::proposal;
use oarlock_contract::replayed::differences;
use oarlock_contract::visit_record::{
    PluginRead, ReadAnswer, RecordedAnswer, RecordedCalls, RecordedTask, VisitRecord,
};
use serde_json::Value;

use super::answer::{self, permanent};
use super::call_data::{CallData, Lacks};
use super::visit::Visit;
use crate::backend::ReadError;
use crate::wit::TaskStatus;
use crate::{Plugin, Result};

/// The failures that end a replay, because the test or the host would refuse the call itself.
const NO_ANSWER: [&str; 4] = ["ManifestInvalid", "ConfigInvalid", "ParametersInvalid", "KitLacks"];

impl Visit {
    /// Makes a visit from one line of `oarlock plugin record`. The visit answers only the recorded reads. The record has no
    /// settings, so add them with [`Visit::config`].
    ///
    /// ```
    /// # use oarlock_sdk::*;
    /// # struct Wait;
    /// # impl Action for Wait {
    /// #     fn operate(_: &Job, _: &Target) -> Result<Proposal> { Ok(Proposal::new()) }
    /// #     fn progress(_: &Job, _: &Target) -> Result<Report> { Ok(Report::processing()) }
    /// # }
    /// # export!(Wait, manifest = r#"{"schema": 1, "name": "wait", "version": "0.1.0", "action": "Wait", "target": ["Pod"]}"#);
    /// # const RECORD: &str = include_str!("../../tests/wait.visit.json");
    /// kit::Visit::from_record(RECORD)?.replay::<Wait>()?;
    /// # Ok::<(), Failure>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the text is not a record that this SDK reads, with the fix.
    pub fn from_record(line: &str) -> Result<Self> {
        let record = VisitRecord::parse(line).map_err(|error| permanent("RecordInvalid", error.to_string()))?;
        let (own, object) = (record.target.clone(), record.target.object.and_then(|index| record.document(index)));
        let mut visit = Self::to_gone(&own.name);
        visit.job.uid.clone_from(&record.job.uid);
        visit.job.now_ms = record.job.now_ms;
        visit.job.parameters.clone_from(&record.job.parameters);
        visit.job.cancelled = record.job.cancelled;
        let target = &mut visit.target;
        target.object = object.cloned();
        target.uid = own.uid;
        target.controller_known = true;
        target.containers = own.containers;
        target.extras = own.extras;
        (target.attempt, target.call_try) = (own.attempt, own.call_try);
        (target.started_ms, target.deadline_ms) = (own.started_ms, own.deadline_ms);
        target.tasks = own.tasks.into_iter().map(|(name, task)| (name, status(task))).collect();
        visit.record = Some(Rc::new(record));
        Ok(visit)
    }

    /// Calls the functions of the record, and compares the answer with the recorded answer.
    ///
    /// # Errors
    ///
    /// With `ReplayDiffers` and the differences if the answer is another one, and with `KitLacks` if the action makes a read
    /// that the record lacks.
    pub fn replay<A: Plugin>(&self) -> Result<()> {
        let Some(record) = &self.record else {
            return Err(permanent("NoRecord", "Make the visit with `Visit::from_record`.".to_owned()));
        };
        let answer = match record.calls {
            RecordedCalls::OperateThenProgress => {
                match self.proposed(|| self.propose_unchecked::<A>("operate", A::operate))? {
                    Ok(operate) if operate.mutations.is_empty() => self.reported::<A>(operate)?,
                    Ok(operate) => RecordedAnswer::Proposed(operate),
                    Err(answer) => answer,
                }
            }
            RecordedCalls::Progress => self.reported::<A>(proposal::Proposal::default())?,
            RecordedCalls::Release => match self.proposed(|| self.propose_unchecked::<A>("release", A::release))? {
                Ok(release) => RecordedAnswer::Proposed(release),
                Err(answer) => answer,
            },
        };
        let found: Vec<String> = differences(&record.answer, &answer).iter().map(ToString::to_string).collect();
        if found.is_empty() { Ok(()) } else { Err(permanent("ReplayDiffers", found.join("\n"))) }
    }

    /// Returns the proposal, or the answer for a failure.
    fn proposed(
        &self,
        call: impl FnOnce() -> Result<crate::Proposal>,
    ) -> Result<std::result::Result<proposal::Proposal, RecordedAnswer>> {
        match call() {
            Ok(proposal) => answer::converted(proposal.into()).map(Ok),
            Err(failure) => failed(failure).map(Err),
        }
    }

    fn reported<A: Plugin>(&self, operate: proposal::Proposal) -> Result<RecordedAnswer> {
        match self.report_unchecked::<A>() {
            Ok(report) => Ok(RecordedAnswer::Reported { operate, report: answer::converted_report(report.into())? }),
            Err(failure) => failed(failure),
        }
    }
}

/// Returns the answer for a failure, as the host records it.
fn failed(failure: crate::Failure) -> Result<RecordedAnswer> {
    let own = answer::converted_failure(failure.clone());
    match own.reason.as_str() {
        reason if NO_ANSWER.contains(&reason) => Err(failure),
        "PluginLimitExceeded" | "PluginTrapped" => {
            Ok(RecordedAnswer::Trapped { reason: own.reason, message: own.message })
        }
        _ => Ok(RecordedAnswer::Failed(own)),
    }
}

fn status(task: RecordedTask) -> TaskStatus {
    let RecordedTask { state, exit_code, output, message } = task;
    TaskStatus { state: state.word().to_owned(), exit_code, output, message }
}

/// The answer of a record to a read.
pub(super) enum Recorded {
    Objects(Vec<Value>),
    Served(bool),
}

impl CallData {
    /// Returns the answer of the record to a read. Ends the call if the record lacks the read.
    pub(super) fn recorded(&self, record: &VisitRecord, read: &PluginRead) -> std::result::Result<Recorded, ReadError> {
        let refused = |reason: &str, message: String| ReadError { reason: reason.to_owned(), message };
        let indexes = match record.answer_to(read, &self.registration) {
            Err(unrecorded) => lacks(&unrecorded.to_string()),
            Ok(ReadAnswer::Served(served)) => return Ok(Recorded::Served(served)),
            Ok(ReadAnswer::NotDeclared(why) | ReadAnswer::NotGranted(why)) => return Err(refused("NotDeclared", why)),
            Ok(ReadAnswer::Unavailable) => {
                return Err(refused("Unavailable", "The host looks first, and then repeats the call.".to_owned()));
            }
            Ok(ReadAnswer::Objects(indexes)) => indexes,
            Ok(ReadAnswer::Object(index)) => index.into_iter().collect(),
        };
        Ok(Recorded::Objects(indexes.into_iter().filter_map(|index| record.document(index).cloned()).collect()))
    }
}

/// Ends the call, because the record does not answer a read.
pub(super) fn lacks(read: &str) -> ! {
    std::panic::resume_unwind(Box::new(Lacks(format!("the record does not answer {read}"))))
}
