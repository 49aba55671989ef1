//! Builds a visit to a target, and calls the functions of an action. It applies
//! no change: the answers show the proposals.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use oarlock_contract::extras::OWNER;
use oarlock_contract::proposal::Registration;
use oarlock_contract::visit_record::VisitRecord;
use serde_json::{Value, json};

use super::answer::{self, Rules};
use super::call_data::{CallData, JobFacts, TargetFacts};
use super::memory;
use super::sample::Sample;
use crate::wit::TaskStatus;
use crate::{Failure, Job, Plugin, Proposal, Report, Result, Target};

/// The default time of a visit: 2026-01-31T12:00:00Z.
pub const NOW: u64 = 1_769_860_800_000;

/// One visit to one target. The job is `job` in the namespace `default`, with
/// the UID `uid-of-job`. The target started one minute before [`NOW`].
#[derive(Debug, Clone)]
#[must_use = "call `operate`, `progress` or `release`"]
pub struct Visit {
    pub(super) job: JobFacts,
    pub(super) target: TargetFacts,
    pub(super) watched: Vec<Value>,
    pub(super) live: Vec<Value>,
    looked: bool,
    claimed: Vec<String>,
    unserved: Vec<String>,
    config: Value,
    /// The record that answers all reads, if the visit is from a record.
    pub(super) record: Option<Rc<VisitRecord>>,
}

impl Visit {
    /// Makes a visit to this object.
    pub fn to(target: &Sample) -> Self {
        let of_target = crate::wit::ObjectRef::from(target);
        let mut visit = Self::to_gone(&of_target.name);
        visit.target.uid = of_target.uid;
        visit.target.object = Some(target.json().clone());
        visit.target.controller_known = true;
        visit.object(target)
    }

    /// Makes a visit to a target whose object is gone. Set the facts that the
    /// host knows with [`Visit::uid`] and [`Visit::controller`].
    pub fn to_gone(name: &str) -> Self {
        let parameters = json!({});
        let job = JobFacts { uid: "uid-of-job".to_owned(), now_ms: NOW, parameters, cancelled: false };
        let target = TargetFacts {
            name: name.to_owned(),
            uid: None,
            object: None,
            controller_known: false,
            containers: Vec::new(),
            extras: BTreeMap::new(),
            attempt: 1,
            call_try: 1,
            started_ms: NOW - 60_000,
            deadline_ms: None,
            tasks: BTreeMap::new(),
        };
        let (watched, live, claimed, unserved) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { job, target, watched, live, looked: true, claimed, unserved, config: json!({}), record: None }
    }

    /// Sets the UID that the target's object has or had.
    pub fn uid(mut self, uid: &str) -> Self {
        self.target.uid = Some(uid.to_owned());
        self
    }

    /// Sets the root controller that the target had when it started. Its UID is
    /// `uid-of-<name>`. If the object exists, its controller is already known.
    pub fn controller(self, kind: &str, name: &str) -> Self {
        self.extra(OWNER, &format!("{kind}/{name}/uid-of-{name}"))
    }

    /// Says that the target had no controller when it started.
    pub fn without_controller(mut self) -> Self {
        self.target.controller_known = true;
        self
    }

    /// Sets the parameters of the job.
    pub fn parameters(mut self, parameters: Value) -> Self {
        self.job.parameters = parameters;
        self
    }

    /// Sets the operator's settings.
    pub fn config(mut self, config: Value) -> Self {
        self.config = config;
        self
    }

    /// Sets the time of the visit, in milliseconds since 1970.
    pub fn now_ms(mut self, now_ms: u64) -> Self {
        self.job.now_ms = now_ms;
        self
    }

    /// Marks the job as cancelled.
    pub fn cancelled(mut self) -> Self {
        self.job.cancelled = true;
        self
    }

    /// Stores an extra of the plugin or of the host.
    pub fn extra(mut self, key: &str, value: &str) -> Self {
        self.target.controller_known |= key == OWNER;
        self.target.extras.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Sets the requested containers.
    pub fn containers(mut self, names: &[&str]) -> Self {
        self.target.containers = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    /// Sets the number of the attempt at the target.
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.target.attempt = attempt;
        self
    }

    /// Sets the number of the try of the call.
    pub fn call_try(mut self, call_try: u32) -> Self {
        self.target.call_try = call_try;
        self
    }

    /// Sets the time when the host gives up on the target, in milliseconds
    /// since 1970.
    pub fn deadline_ms(mut self, deadline_ms: u64) -> Self {
        self.target.deadline_ms = Some(deadline_ms);
        self
    }

    /// Adds a task of this name.
    pub fn task(mut self, name: &str, status: TaskStatus) -> Self {
        self.target.tasks.insert(name.to_owned(), status);
        self
    }

    /// Adds an object to the cluster.
    pub fn object(self, object: &Sample) -> Self {
        self.unseen(object).lost(object)
    }

    /// Adds an object that only a live read finds.
    pub fn unseen(mut self, object: &Sample) -> Self {
        self.live.push(object.json().clone());
        self
    }

    /// Adds an object that is gone, but still in the watch cache of the host.
    pub fn lost(mut self, object: &Sample) -> Self {
        self.watched.push(object.json().clone());
        self
    }

    /// Lets another target hold the object of this name.
    pub fn claimed(mut self, name: &str) -> Self {
        self.claimed.push(name.to_owned());
        self
    }

    /// Removes this kind from the kinds that the cluster serves.
    pub fn unserved(mut self, api_version: &str, kind: &str) -> Self {
        self.unserved.push(format!("{api_version} {kind}"));
        self
    }

    /// Lets every live read fail with `Unavailable`, as the host does at first.
    /// A `get` is always live if its kind is neither that of the target nor of
    /// a relation.
    pub fn before_look(mut self) -> Self {
        self.looked = false;
        self
    }

    /// Calls `operate` and returns the proposal.
    ///
    /// # Errors
    ///
    /// If the action fails, or the host would refuse the answer: for its
    /// manifest, parameters or settings, with `MutationDenied`, or with
    /// `PluginLimitExceeded`. With `KitLacks` if a relation needs a value that
    /// the test does not set.
    pub fn operate<A: Plugin>(&self) -> Result<Proposal> {
        self.propose::<A>("operate", A::operate)
    }

    /// Calls `progress` and returns the report.
    ///
    /// # Errors
    ///
    /// If the call fails for one of the reasons of [`Visit::operate`].
    pub fn progress<A: Plugin>(&self) -> Result<Report> {
        let (call_data, report) = self.call::<A, _>("progress", A::progress)?;
        answer::report(&call_data, report.clone().into())?;
        Ok(report)
    }

    /// Calls a function as a call of the plugin `A`, to test parts of the
    /// plugin. Returns the result of the function.
    ///
    /// # Errors
    ///
    /// If the call fails for one of the reasons of [`Visit::operate`].
    pub fn read<A: Plugin, T>(&self, function: impl FnOnce(&Job, &Target) -> Result<T>) -> Result<T> {
        self.call::<A, _>("the function", function).map(|(_, read)| read)
    }

    /// Calls `release` and returns the proposal.
    ///
    /// # Errors
    ///
    /// If the call fails for one of the reasons of [`Visit::operate`].
    pub fn release<A: Plugin>(&self) -> Result<Proposal> {
        self.propose::<A>("release", A::release)
    }

    /// Calls `operate` or `release` without the checks of the host.
    pub(super) fn propose_unchecked<A: Plugin>(
        &self,
        name: &str,
        function: fn(&Job, &Target) -> Result<Proposal>,
    ) -> Result<Proposal> {
        self.call::<A, _>(name, function).map(|(_, proposal)| proposal)
    }

    /// Calls `progress` without the checks of the host.
    pub(super) fn report_unchecked<A: Plugin>(&self) -> Result<Report> {
        self.call::<A, _>("progress", A::progress).map(|(_, report)| report)
    }

    fn propose<A: Plugin>(&self, name: &str, function: fn(&Job, &Target) -> Result<Proposal>) -> Result<Proposal> {
        let (call_data, proposal) = self.call::<A, _>(name, function)?;
        answer::proposal(name, &call_data, proposal.clone().into())?;
        Ok(proposal)
    }

    fn call<A: Plugin, T>(
        &self,
        name: &str,
        function: impl FnOnce(&Job, &Target) -> Result<T>,
    ) -> Result<(Rc<CallData>, T)> {
        let mut call_data = self.call_data(Rules::of::<A>()?);
        let manifest = &call_data.rules.manifest;
        manifest.check_config(&self.config).map_err(|why| Failure::permanent("ConfigInvalid", why))?;
        let given = manifest.check_parameters(&self.job.parameters);
        given.map_err(|why| Failure::permanent("ParametersInvalid", why))?;
        let setup = memory::within(&Rc::new(call_data.clone()), || answer::limited("setup", A::setup))?;
        call_data.registration = answer::registration(&call_data, setup)?;
        let call_data = Rc::new(call_data);
        let (job, target) = (Job(memory::Job(Rc::clone(&call_data))), Target(memory::Target(Rc::clone(&call_data))));
        match memory::within(&call_data, || answer::limited(name, || function(&job, &target))) {
            Ok(answer) => Ok((call_data, answer)),
            Err(failure) => Err(answer::failure(name, &call_data, failure)),
        }
    }

    /// Builds the data that the call can read.
    fn call_data(&self, rules: Rules) -> CallData {
        let Self { job, target, watched, live, looked, claimed, unserved, config, record } = self.clone();
        let (registration, host_calls, read) = (Registration::default(), Cell::new(0), RefCell::default());
        let mut call_data = CallData {
            rules,
            registration,
            job,
            target,
            watched,
            live,
            looked,
            claimed,
            unserved,
            config,
            record,
            host_calls,
            read,
        };
        if call_data.record.is_none() {
            call_data.target.note_start(&call_data.live);
        }
        call_data
    }
}
