//! Takes a target and what surrounds it, built word by word, and yields the
//! answers of an action. May not make any change: it shows what was proposed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use oarlock_contract::extras::OWNER;
use oarlock_contract::proposal::Registration;
use serde_json::{Value, json};

use super::answer::{self, Rules};
use super::memory;
use super::sample::Sample;
use super::scene::{JobFacts, Scene, TargetFacts};
use crate::wit::TaskStatus;
use crate::{Failure, Job, Plugin, Proposal, Report, Result, Target};

/// When each visit takes place, unless it says otherwise: 2026-01-31T12:00:00Z.
pub const NOW: u64 = 1_769_860_800_000;

/// One visit to one target. The job is `job` of the namespace `default`, with
/// the UID `uid-of-job`; the target started one minute before [`NOW`].
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
}

impl Visit {
    /// A visit to this object.
    pub fn to(target: &Sample) -> Self {
        let of_target = crate::wit::ObjectRef::from(target);
        let mut visit = Self::to_gone(&of_target.name);
        visit.target.uid = of_target.uid;
        visit.target.object = Some(target.json().clone());
        visit.target.controller_known = true;
        visit.object(target)
    }

    /// A visit to a target whose object is gone. What the host knew of it, say
    /// with [`Visit::uid`] and [`Visit::controller`].
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
        Self { job, target, watched, live, looked: true, claimed, unserved, config: json!({}) }
    }

    /// Sets the UID that the target's object has or had.
    pub fn uid(mut self, uid: &str) -> Self {
        self.target.uid = Some(uid.to_owned());
        self
    }

    /// Sets the root controller that the target had when it started, whose UID
    /// is `uid-of-<name>`. That of an object that is there is known.
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

    /// Sets when the visit takes place, in milliseconds since 1970.
    pub fn now_ms(mut self, now_ms: u64) -> Self {
        self.job.now_ms = now_ms;
        self
    }

    /// Has somebody ask for the job to stop.
    pub fn cancelled(mut self) -> Self {
        self.job.cancelled = true;
        self
    }

    /// Stores an extra, of the plugin or of the host.
    pub fn extra(mut self, key: &str, value: &str) -> Self {
        self.target.controller_known |= key == OWNER;
        self.target.extras.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Names the containers that were asked for.
    pub fn containers(mut self, names: &[&str]) -> Self {
        self.target.containers = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    /// Sets which attempt at the target this is.
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.target.attempt = attempt;
        self
    }

    /// Sets which try of the call this is.
    pub fn call_try(mut self, call_try: u32) -> Self {
        self.target.call_try = call_try;
        self
    }

    /// Sets when the host gives up on the target, in milliseconds since 1970.
    pub fn deadline_ms(mut self, deadline_ms: u64) -> Self {
        self.target.deadline_ms = Some(deadline_ms);
        self
    }

    /// Has a task of this name.
    pub fn task(mut self, name: &str, status: TaskStatus) -> Self {
        self.target.tasks.insert(name.to_owned(), status);
        self
    }

    /// Adds an object to the cluster.
    pub fn object(self, object: &Sample) -> Self {
        self.unseen(object).lost(object)
    }

    /// Adds an object that only a look at the API server shows.
    pub fn unseen(mut self, object: &Sample) -> Self {
        self.live.push(object.json().clone());
        self
    }

    /// Adds an object that is gone but still in what the host watches.
    pub fn lost(mut self, object: &Sample) -> Self {
        self.watched.push(object.json().clone());
        self
    }

    /// Has another target hold the object of this name.
    pub fn claimed(mut self, name: &str) -> Self {
        self.claimed.push(name.to_owned());
        self
    }

    /// Has the cluster not serve this kind.
    pub fn unserved(mut self, api_version: &str, kind: &str) -> Self {
        self.unserved.push(format!("{api_version} {kind}"));
        self
    }

    /// Has every live read answer `Unavailable`, as the host does the first
    /// time. A `get` of a kind that is neither the target's nor a relation's is
    /// always live.
    pub fn before_look(mut self) -> Self {
        self.looked = false;
        self
    }

    /// What the action proposes.
    ///
    /// # Errors
    ///
    /// The failure of the action, or the refusal of the host: a manifest,
    /// parameters or settings that it does not take, `MutationDenied`,
    /// `PluginLimitExceeded`. `KitLacks` where a relation needs what the test
    /// does not say.
    pub fn operate<A: Plugin>(&self) -> Result<Proposal> {
        self.propose::<A>("operate", A::operate)
    }

    /// What the action found.
    ///
    /// # Errors
    ///
    /// As [`Visit::operate`].
    pub fn progress<A: Plugin>(&self) -> Result<Report> {
        let (scene, report) = self.call::<A, _>("progress", A::progress)?;
        answer::report(&scene, report.clone().into())?;
        Ok(report)
    }

    /// What a function reads during a call of the plugin `A`, for tests of
    /// parts of it.
    ///
    /// # Errors
    ///
    /// As [`Visit::operate`].
    pub fn read<A: Plugin, T>(&self, function: impl FnOnce(&Job, &Target) -> Result<T>) -> Result<T> {
        self.call::<A, _>("the function", function).map(|(_, read)| read)
    }

    /// What the action takes back.
    ///
    /// # Errors
    ///
    /// As [`Visit::operate`].
    pub fn release<A: Plugin>(&self) -> Result<Proposal> {
        self.propose::<A>("release", A::release)
    }

    fn propose<A: Plugin>(&self, name: &str, function: fn(&Job, &Target) -> Result<Proposal>) -> Result<Proposal> {
        let (scene, proposal) = self.call::<A, _>(name, function)?;
        answer::proposal(name, &scene, proposal.clone().into())?;
        Ok(proposal)
    }

    fn call<A: Plugin, T>(
        &self,
        name: &str,
        function: impl FnOnce(&Job, &Target) -> Result<T>,
    ) -> Result<(Rc<Scene>, T)> {
        let mut scene = self.scene(Rules::of::<A>()?);
        let manifest = &scene.rules.manifest;
        manifest.check_config(&self.config).map_err(|why| Failure::permanent("ConfigInvalid", why))?;
        let given = manifest.check_parameters(&self.job.parameters);
        given.map_err(|why| Failure::permanent("ParametersInvalid", why))?;
        let setup = memory::within(&Rc::new(scene.clone()), || answer::limited("setup", A::setup))?;
        scene.registration = answer::registration(&scene, setup)?;
        let scene = Rc::new(scene);
        let (job, target) = (Job(memory::Job(Rc::clone(&scene))), Target(memory::Target(Rc::clone(&scene))));
        match memory::within(&scene, || answer::limited(name, || function(&job, &target))) {
            Ok(answer) => Ok((scene, answer)),
            Err(failure) => Err(answer::failure(name, &scene, failure)),
        }
    }

    /// What can be read during the call.
    fn scene(&self, rules: Rules) -> Scene {
        let Self { job, target, watched, live, looked, claimed, unserved, config } = self.clone();
        let (registration, host_calls, read) = (Registration::default(), Cell::new(0), RefCell::default());
        let mut scene = Scene {
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
            host_calls,
            read,
        };
        scene.target.note_start(&scene.live);
        scene
    }
}
